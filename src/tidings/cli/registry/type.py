"""`tidings type …`: event types that their owners signed: declared, listed, shown and verified."""

from __future__ import annotations

import enum
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from tidings.cli.organisation.folder import organisation_here
from tidings.cli.registry.registry import (
    DEFAULT_REGISTRY,
    FOR_EVER_MS,
    FromOption,
    OrgOption,
    RegistryOption,
    UntilOption,
    actor,
    moment,
    now_ms,
    open_registry,
    read_key,
    show_key,
    show_moment,
)
from tidings.cli.registry.tokens import TokenContext, read_token
from tidings.cli.terminal import Output, OutputOption, Row, refusing_what_is_broken, show, tell
from tidings.errors import Denied, InputError
from tidings.events import read_file
from tidings.security import PROFILES, Mode, PadPolicy, SignedType, fingerprint, from_fingerprint

if TYPE_CHECKING:
    from tidings.net import Organisation
    from tidings.security import Identity
    from tidings.store import Registry

SIGNED_FILE_BYTES_MAX = 2**20 + 1  # One more than a definition may have, so that a longer one is detected.

app = typer.Typer(
    name="type",
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Event types, signed by their owners: declare, list, show and verify them.",
)

NameArgument: TypeAlias = Annotated[
    str,
    typer.Argument(metavar="NAME", help="Numberplate (the newest version), Numberplate@1, the full name, or the id."),
]


class ModeChoice(enum.StrEnum):
    """What of an event is encrypted."""

    ATTRIBUTE = "attribute"
    EVENT = "event"
    PLAIN = "plain"


class ProfileChoice(enum.StrEnum):
    """Which ciphers and identifiers."""

    MODERN = "modern"
    PAPER = "paper"


@app.command()
def declare(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The event type, in TOML or JSON.")],
    key: Annotated[
        Path | None, typer.Option("--key", metavar="FILE", help="Your private key; not needed with --org.")
    ] = None,
    version: Annotated[int, typer.Option("--version", help="Of the type; a changed type needs a new version.")] = 1,
    mode: Annotated[
        ModeChoice, typer.Option("--mode", help="Encrypt each attribute by itself, the event as one, or nothing.")
    ] = ModeChoice.ATTRIBUTE,
    key_manager: Annotated[
        str | None,
        typer.Option(
            "--key-manager", metavar="WHO", help="Who distributes the keys. [default: your first broker, or you]"
        ),
    ] = None,
    pad: Annotated[PadPolicy, typer.Option("--pad", help="Pad values, to hide their length.")] = PadPolicy.NONE,
    signatures: Annotated[
        bool,
        typer.Option(
            "--signatures/--no-signatures",
            help="Brokers sign events, and readers in the network ask for it. Without: whoever may read can forge.",
        ),
    ] = True,
    profile: Annotated[
        ProfileChoice, typer.Option("--profile", help="Ciphers and formats: of today, or those of the paper.")
    ] = ProfileChoice.MODERN,
    begins: FromOption = None,
    ends: UntilOption = None,
    org: OrgOption = None,
    registry: RegistryOption = DEFAULT_REGISTRY,
    output: OutputOption = Output.TABLE,
) -> None:
    """Sign an event type with your key and put it into the registry.

    You own the type: its name begins with your key, so nobody else can declare it, and
    only you can grant rights to it. The registry is created if it does not exist. A declared
    version never changes. With --org, the organisation owns it: its brokers use the type within seconds, and the
    first of them distributes its keys.

    \b
    Examples:
      tidings type declare plate.toml --org police
      tidings identity new police.pem
      tidings type declare plate.toml --key police.pem
      tidings type declare plate.toml --key police.pem --version 2 --mode event
    """
    now = now_ms()
    here, event_type = organisation_here(org) if key is None else None, read_file(file)
    if key is None and here is None:
        raise InputError("expected --key FILE, or --org with your organisation's folder")
    with open_registry(registry, create=True) as opened:
        owner = _owner(opened, here, event_type.name) if here is not None else read_key(key or Path())
        manager = _manager_key(opened, key_manager, owner.public_key, (event_type.name, version))
        signed = SignedType.make(
            owner,
            event_type,
            key_manager=manager,
            version=version,
            mode=Mode[mode.name],
            pad_policy=pad,
            suite=PROFILES[profile].suite,
            signatures=signatures,
            not_before=moment(begins, 0, now),
            not_after=moment(ends, FOR_EVER_MS, now),
        )
        if not opened.types.declare(signed, by=fingerprint(owner.public_key), now_ms=now):
            tell("note: this type was declared before")
    if here is not None:
        here.refresh()
        if signed.mode is not Mode.PLAIN and manager == owner.public_key:
            tell(f"note: no broker distributes its keys yet: put {here.folder / 'authority.pem'} into its `manages`")
    show([_summary(signed, {}, output)], output)


def _owner(opened: Registry, here: Organisation, name: str) -> Identity:
    """The organisation's key that owns other versions of the type, which may be a former one; else its present key."""
    owners = {signed.owner_key for signed in opened.types.all() if signed.event_type.name == name}
    return next((key for key in here.keys if key.public_key in owners), here.authority)


def _manager_key(opened: Registry, name: str | None, owner: bytes, of: tuple[str, int]) -> bytes:
    """The key that distributes the keys: of a broker of ours, if there is one, its own key for that purpose.

    Declared again, a version keeps the one that it has.
    """
    if name is None:
        for signed in opened.types.all():
            if (signed.owner_key, signed.event_type.name, signed.version) == (owner, *of):
                return signed.key_manager
    brokers = {one.name: one.manager_key for one in opened.participants.all("broker") if one.manager_key is not None}
    if name is None:
        return next(iter(brokers.values()), owner)
    return brokers[name] if name in brokers else opened.domains.key_of(name)


@app.command("import")
def import_type(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="As written by `tidings type show --out FILE`.")],
    owner: Annotated[
        str | None, typer.Option("--owner", metavar="WHO", help="Refuse it unless this is its owner.")
    ] = None,
    org: OrgOption = None,
    registry: RegistryOption = DEFAULT_REGISTRY,
    output: OutputOption = Output.TABLE,
) -> None:
    """Put a type that another organisation has signed into your registry.

    \b
    Example:
      tidings type import plate.type --owner police
    """
    signed = _read_signed(file)
    with refusing_what_is_broken(), open_registry(registry, create=True) as opened:
        if owner is not None:
            _check_owner(signed, opened.domains.key_of(owner))
        if not opened.types.declare(signed, by=actor(), now_ms=now_ms()):
            tell("note: the registry already has this type")
    show([_summary(signed, {}, output)], output)


@app.command("ls")
def list_types(
    org: OrgOption = None, registry: RegistryOption = DEFAULT_REGISTRY, output: OutputOption = Output.TABLE
) -> None:
    """List the types in the registry, every version.

    \b
    Example:
      tidings type ls -o json | jq -r .name
    """
    with open_registry(registry) as opened:
        names = opened.domains.names()
        rows = [_summary(signed, names, output) for signed in opened.types.all()]
    show(rows, output, ("type", "version", "owner", "mode", "attributes"))


@app.command("show")
def show_type(
    name: NameArgument,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Write the signed type here, for `tidings type import`."),
    ] = None,
    org: OrgOption = None,
    registry: RegistryOption = DEFAULT_REGISTRY,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show a type: its attributes, how its events are protected, and its owner.

    \b
    Examples:
      tidings type show Numberplate
      tidings type show Numberplate@1 --out plate.type      to hand to another organisation
    """
    with open_registry(registry) as opened:
        signed, names = opened.types.find(name), opened.domains.names()
    if out is not None:
        out.write_bytes(signed.to_bytes())
    if output is Output.JSON:
        show([_details(signed)], output)
        return
    for word, value in _protection(signed, names).items():
        print(f"{word:<12} {value}")
    print()
    show(
        [{"attribute": a.name, "type": a.type, "required": "required" if a.required else ""} for a in signed.event_type]
    )


@app.command("asyncapi")
def describe_type(
    name: NameArgument,
    right: Annotated[
        str | None,
        typer.Option(
            "--right", metavar="TOKEN", help="Only what the holder of this right may do and read; - is stdin."
        ),
    ] = None,
    owner: Annotated[
        str | None, typer.Option("--owner", metavar="WHO", help="Who issued the right, if the registry does not know.")
    ] = None,
    org: OrgOption = None,
    registry: RegistryOption = DEFAULT_REGISTRY,
) -> None:
    """Print a type as AsyncAPI 3.0: its channel, what can be published and received, and the schema of its events.

    With --right, it is what the holder of the right sees: the operations that it allows, the attributes
    that it shows, and its condition in words. The right is checked for its signature, not for its dates.

    \b
    Examples:
      tidings type asyncapi Numberplate > numberplate.json
      tidings type asyncapi Numberplate --right desk.token
    """
    from tidings.cli.registry.asyncapi import asyncapi

    with open_registry(registry) as opened:
        signed = opened.types.find(name)
        token = TokenContext.of_open(opened, registry).read(read_token(right), owner) if right is not None else None
    print(json.dumps(asyncapi(signed, token.right() if token is not None else None), indent=2))


@app.command()
def verify(
    name: Annotated[str, typer.Argument(metavar="NAME|FILE", help="A type in the registry, or a signed type's file.")],
    owner: Annotated[
        str | None,
        typer.Option("--owner", metavar="WHO", help="Also check that this is its owner: ed25519:… or a domain."),
    ] = None,
    org: OrgOption = None,
    registry: RegistryOption = DEFAULT_REGISTRY,
    output: OutputOption = Output.TABLE,
) -> None:
    """Check that a type is exactly what its owner signed, and that it is valid now.

    Exits with 3, and the reason, if it was altered or truncated, has an unknown cipher suite, has
    expired, is not yet valid, or has another owner.

    \b
    Examples:
      tidings type verify Numberplate
      tidings type verify plate.type --owner ed25519:ba9e…
    """
    if Path(name).is_file():
        signed, key = _read_signed(Path(name)), _key_of(owner, registry) if owner else None
    else:
        with open_registry(registry) as opened:
            signed, key = opened.types.find(name), opened.domains.key_of(owner) if owner else None
    with refusing_what_is_broken():
        signed.verify(now_ms())
    if key is not None:
        _check_owner(signed, key)
    show([{"verified": signed.name, "id": signed.type_id.hex()}], output)


def _key_of(name: str, registry: str) -> bytes:
    """A fingerprint needs no registry."""
    if name.startswith("ed25519:"):
        return from_fingerprint(name)
    with open_registry(registry) as opened:
        return opened.domains.key_of(name)


def _check_owner(signed: SignedType, key: bytes) -> None:
    if signed.owner_key != key:
        raise Denied(f"owner: {signed.event_type.name} is {fingerprint(signed.owner_key)}'s, not {fingerprint(key)}'s")


def _read_signed(file: Path) -> SignedType:
    with file.open("rb") as stream:
        raw = stream.read(SIGNED_FILE_BYTES_MAX)
    if file.suffix.lower() in (".toml", ".json"):
        raise InputError(f"{file} is a declaration, not a signed type; sign it with `tidings type declare`")
    with refusing_what_is_broken():
        return SignedType.from_bytes(raw)


def _summary(signed: SignedType, names: dict[bytes, str], output: Output) -> Row:
    if output is Output.JSON:
        return _details(signed)
    return {
        "type": signed.event_type.name,
        "version": signed.version,
        "owner": show_key(signed.owner_key, names),
        "mode": signed.mode.name.lower(),
        "attributes": ", ".join(attribute.name for attribute in signed.event_type),
    }


def _details(signed: SignedType) -> Row:
    return {
        "type": signed.event_type.name,
        "version": signed.version,
        "name": signed.name,
        "id": signed.type_id.hex(),
        "owner": fingerprint(signed.owner_key),
        "key_manager": fingerprint(signed.key_manager),
        "mode": signed.mode.name.lower(),
        "suite": signed.suite,
        "pad": str(signed.pad_policy),
        "signatures": signed.signatures,
        "from": show_moment(signed.not_before),
        "until": show_moment(signed.not_after),
        "attributes": {a.name: {"type": str(a.type), "required": a.required} for a in signed.event_type},
    }


def _protection(signed: SignedType, names: dict[bytes, str]) -> dict[str, object]:
    return {
        "name": signed.name,
        "id": signed.type_id.hex(),
        "owner": show_key(signed.owner_key, names),
        "key manager": show_key(signed.key_manager, names),
        "sealed": {Mode.PLAIN: "no", Mode.EVENT: "as one", Mode.ATTRIBUTE: "each attribute"}[signed.mode],
        "cipher": f"0x{signed.suite:02x}, the {signed.profile.name} profile",
        "signed": "by the publisher's broker" if signed.signatures else "no: whoever may read can forge an event",
        "from": show_moment(signed.not_before) or "always",
        "until": show_moment(signed.not_after) or "for ever",
    }
