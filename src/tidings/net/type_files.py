"""Event types as files: open ones as TOML or JSON, signed ones as `tidings type show --out` writes them."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from tidings.errors import PeerError
from tidings.events import EventType, read_file
from tidings.security import SignedType

TYPE_BYTES_MAX = 1 << 20


class TypeDefinition(NamedTuple):
    """A type that can be declared to a node. `name` is its wire name: a signed type's id, an open type's own name."""

    name: str
    event_type: EventType
    signed: SignedType | None


def read_type(file: Path) -> TypeDefinition:
    """A type from a file: TOML or JSON for an open one, anything else as `tidings type show --out` writes it."""
    if file.suffix in (".toml", ".json"):
        event_type = read_file(file)
        return TypeDefinition(event_type.name, event_type, None)
    with file.open("rb") as stream:
        raw = stream.read(TYPE_BYTES_MAX + 1)
    try:
        return of_signed(SignedType.from_bytes(raw))
    except PeerError as wrong:
        raise PeerError(f"{wrong} (in {file})", code=wrong.code) from None


def of_signed(signed: SignedType) -> TypeDefinition:
    """A signed type; the caller has checked its signature, or will."""
    return TypeDefinition(signed.type_id.hex(), signed.event_type, signed)
