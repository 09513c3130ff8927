"""`tidings domain …`: names for the organisations whose keys we know."""

from __future__ import annotations

from typing import Annotated

import typer

from tidings.cli.frame import Output, OutputOption, show, tell
from tidings.cli.registry import DEFAULT_REGISTRY, RegistryOption, actor, now_ms, open_registry
from tidings.security import fingerprint, from_fingerprint

app = typer.Typer(
    name="domain",
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Name the organisations whose keys you know, so that commands and lists can.",
)


@app.command()
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What you call the organisation.")],
    keys: Annotated[list[str], typer.Argument(metavar="KEY...", help="Its public keys: ed25519:…")],
    registry: RegistryOption = DEFAULT_REGISTRY,
) -> None:
    """Book an organisation's public keys under a name.

    The name is yours alone and proves nothing: make sure by other means that the key is
    theirs.

    \b
    Example:
      tidings domain add ccs ed25519:0bff…
    """
    with open_registry(registry, create=True) as opened:
        if not opened.domains.add(name, map(from_fingerprint, keys), by=actor(), now_ms=now_ms()):
            tell(f"note: {name} has these keys already")


@app.command("ls")
def list_domains(registry: RegistryOption = DEFAULT_REGISTRY, output: OutputOption = Output.TABLE) -> None:
    """List the organisations and their keys."""
    with open_registry(registry) as opened:
        rows = [{"domain": known.name, "key": fingerprint(key)} for known in opened.domains.all() for key in known.keys]
    show(rows, output, ("domain", "key"))


@app.command("rm")
def remove(
    name: Annotated[str, typer.Argument(metavar="NAME", help="As `tidings domain ls` shows it.")],
    registry: RegistryOption = DEFAULT_REGISTRY,
) -> None:
    """Forget an organisation's name and keys. Rights given to its keys stay: revoke them by themselves."""
    with open_registry(registry) as opened:
        opened.domains.remove(name, by=actor(), now_ms=now_ms())
