"""`tidings identity …`: make a key pair, and show its public half."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from tidings.cli.registry.registry import key_password, read_key
from tidings.cli.terminal import Output, OutputOption, show
from tidings.errors import InputError
from tidings.security import Identity, fingerprint

app = typer.Typer(
    name="identity",
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Make a key pair, and show its public half: who you are to others.",
)

FileArgument: TypeAlias = Annotated[Path, typer.Argument(metavar="FILE", help="The private key, as PKCS#8 PEM.")]


@app.command()
def new(file: FileArgument, output: OutputOption = Output.TABLE) -> None:
    """Make a new key in FILE, which only you can read, and print its public half.

    The public half, ed25519:…, is who you are: give it to whoever grants you rights. The
    file is the proof; whoever has it is you. With TIDINGS_KEY_PASSWORD set, the file is
    encrypted, and the same variable opens it.

    \b
    Example:
      tidings identity new police.pem
    """
    made = Identity.make(secrets.token_bytes)
    try:
        opened = os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    except FileExistsError:
        raise InputError(f"{file} is there already, and a key is not overwritten; name another file") from None
    with os.fdopen(opened, "wb") as stream:
        stream.write(made.to_pem(key_password()))
    _show_public(made, output)


@app.command("show")
def show_identity(file: FileArgument, output: OutputOption = Output.TABLE) -> None:
    """Print the public half of the key in FILE.

    \b
    Example:
      tidings identity show police.pem
    """
    _show_public(read_key(file), output)


def _show_public(identity: Identity, output: Output) -> None:
    shown = fingerprint(identity.public_key)
    if output is Output.JSON:
        show([{"key": shown}], output)
    else:
        print(shown)
