"""`tidings identity …`: creates a key pair, and shows its public key."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from tidings.cli.registry.registry import key_password, read_key
from tidings.cli.terminal import Output, OutputOption, show, writing_to
from tidings.errors import InputError
from tidings.security import Identity, fingerprint

app = typer.Typer(
    name="identity",
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Create a key pair, and show its public key: who you are to others.",
)

FileArgument: TypeAlias = Annotated[Path, typer.Argument(metavar="FILE", help="The private key, as PKCS#8 PEM.")]


@app.command()
def new(file: FileArgument, output: OutputOption = Output.TABLE) -> None:
    """Create a private key in FILE, which only you can read, and print the public key.

    The public key, ed25519:…, is your identity: give it to whoever grants you rights. Whoever
    has the file can act as you. If TIDINGS_KEY_PASSWORD is set, the file is encrypted with
    it, and the same variable decrypts it.

    \b
    Example:
      tidings identity new police.pem
    """
    made = Identity.make(secrets.token_bytes)
    try:
        opened = os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    except FileExistsError:
        raise InputError(f"{file} exists already, and a key is not overwritten; name another file") from None
    with writing_to(file), os.fdopen(opened, "wb") as stream:
        stream.write(made.to_pem(key_password()))
    _show_public(made, output)


@app.command("show")
def show_identity(file: FileArgument, output: OutputOption = Output.TABLE) -> None:
    """Print the public key of the private key in FILE.

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
