"""`tidings domain …`: names for the organisations whose keys we know, and which of them we are linked with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tidings.cli.registry.registry import DEFAULT_REGISTRY, RegistryOption, actor, now_ms, open_registry
from tidings.cli.terminal import Output, OutputOption, show, tell
from tidings.errors import InputError
from tidings.security import fingerprint, from_fingerprint

AUTHORITY = "authority.crt"  # As `tidings init` calls it.

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


@app.command()
def trust(
    ours: Annotated[Path, typer.Argument(metavar="OURS", help="Your organisation's folder, with its brokers in it.")],
    theirs: Annotated[
        Path, typer.Argument(metavar="THEIRS", help="The other's authority.crt; or its folder, to link both ways.")
    ],
    network: Annotated[
        Path | None,
        typer.Option("--network", metavar="FILE", help="The network's private key; default: network.pem beside it."),
    ] = None,
    registry: Annotated[
        str | None, typer.Option("--registry", metavar="URL", help="Book the other's key under its name there, too.")
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Link two organisations, so that what is published at one reaches who may read it at the other.

    With both folders at hand, all of it: each trusts the other's authority, their brokers know and dial each other, those that
    are new to the network get tokens for it, and each knows the types of the other. With the other's certificate alone: it is
    trusted by your brokers and clients, and each side does its own part. What the other may publish and read is said by
    rights (`tidings grant`). Make sure by other means that the certificate is theirs.

    \b
    Examples:
      tidings domain trust police ccs
      tidings domain trust police ccs-authority.crt
    """
    from tidings.net import introduce, trust_authority

    name, key, pem = _authority(theirs / AUTHORITY if theirs.is_dir() else theirs)
    changed = trust_authority(ours, pem)
    if theirs.is_dir():
        changed += trust_authority(theirs, _authority(ours / AUTHORITY)[2])
        changed += introduce(ours, theirs, network)
    if registry is not None:
        with open_registry(registry, create=True) as opened:
            opened.domains.add(name, [key], by=actor(), now_ms=now_ms())
    show([{"domain": name, "key": fingerprint(key), "file": str(file)} for file in changed], output)
    tell("brokers that run take it up when they are started again" if changed else f"note: {name} is linked already")


def _authority(file: Path) -> tuple[str, bytes, bytes]:
    """An organisation's name, its authority's key and its certificate. Raises InputError for any other certificate."""
    from cryptography import x509

    from tidings.net import domains_in

    pem = file.read_bytes()
    try:
        (read,) = x509.load_pem_x509_certificates(pem)
        read.verify_directly_issued_by(read)
        is_authority = read.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except Exception:  # noqa: BLE001  There are as many ways to be no certificate as classes of errors.
        is_authority = False
    if not is_authority:
        raise InputError(f"{file}: expected the certificate of one authority, signed by itself")
    ((name, key),) = domains_in(pem).items()
    return name, key, pem
