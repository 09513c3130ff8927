"""`tidings domain …`: names for organisations and their keys, and trust between organisations."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tidings.cli.registry.registry import DEFAULT_REGISTRY, OrgOption, RegistryOption, actor, now_ms, open_registry
from tidings.cli.terminal import Output, OutputOption, show, tell
from tidings.errors import InputError
from tidings.security import fingerprint, from_fingerprint

AUTHORITY = "authority.crt"  # As `tidings init` calls it.

app = typer.Typer(
    name="domain",
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Name the organisations whose keys you know, and link organisations.",
)


@app.command()
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What you call the organisation.")],
    keys: Annotated[list[str], typer.Argument(metavar="KEY...", help="Its public keys: ed25519:…")],
    org: OrgOption = None,
    registry: RegistryOption = DEFAULT_REGISTRY,
) -> None:
    """Register an organisation's public keys under a name.

    The name is local and proves nothing: verify by other means that the key is theirs.

    \b
    Example:
      tidings domain add ccs ed25519:0bff…
    """
    with open_registry(registry, create=True) as opened:
        if not opened.domains.add(name, map(from_fingerprint, keys), by=actor(), now_ms=now_ms()):
            tell(f"note: {name} has these keys already")


@app.command("ls")
def list_domains(
    org: OrgOption = None, registry: RegistryOption = DEFAULT_REGISTRY, output: OutputOption = Output.TABLE
) -> None:
    """List the organisations and their keys.

    \b
    Example:
      tidings domain ls --org police
    """
    with open_registry(registry) as opened:
        rows = [{"domain": known.name, "key": fingerprint(key)} for known in opened.domains.all() for key in known.keys]
    show(rows, output, ("domain", "key"))


@app.command("rm")
def remove(
    name: Annotated[str, typer.Argument(metavar="NAME", help="As `tidings domain ls` shows it.")],
    org: OrgOption = None,
    registry: RegistryOption = DEFAULT_REGISTRY,
) -> None:
    """Remove an organisation's name and keys. Rights of its keys stay: revoke them separately.

    \b
    Example:
      tidings domain rm ccs --org police
    """
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
        typer.Option(
            "--network", metavar="FILE", help="The network's private key. [default: network.pem in OURS or beside it]"
        ),
    ] = None,
    registry: Annotated[
        str | None,
        typer.Option("--registry", metavar="URL", help="Also register the other's key there, under its name."),
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Link two organisations, so that events of one reach those who may read them at the other.

    With both folders, this does everything: each side trusts the other's authority, their brokers know and connect
    to each other, brokers that are new to the network get tokens for it, and each side has the other's types. With only
    the other's certificate, your brokers and clients trust it, and the other side does the same. Rights
    (`tidings grant`) decide what the other may publish and read. Verify by other means that the certificate is theirs.

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
    tell("restart running brokers, so that they use it" if changed else f"note: {name} is linked already")


def _authority(file: Path) -> tuple[str, bytes, bytes]:
    """An organisation's name, its authority's key and its certificate. Raises InputError for any other certificate."""
    from cryptography import x509

    from tidings.net import domains_in

    pem = file.read_bytes()
    try:
        (read,) = x509.load_pem_x509_certificates(pem)
        read.verify_directly_issued_by(read)
        is_authority = read.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except Exception:  # noqa: BLE001  An invalid certificate can raise errors of many classes.
        is_authority = False
    if not is_authority:
        raise InputError(f"{file}: expected the certificate of one authority, signed by itself")
    ((name, key),) = domains_in(pem).items()
    return name, key, pem
