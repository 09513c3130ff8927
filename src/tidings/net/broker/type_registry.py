"""The event types a broker knows: those in its files and those in its registry, by every name they go by."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from tidings.errors import InputError, did_you_mean
from tidings.events import EventType, read_file
from tidings.security import Mode, SignedType

TYPE_BYTES_MAX = 1 << 20


class KnownType(NamedTuple):
    """One type. `name` is what heads of events carry: a signed type's id, an open type's own name."""

    name: str
    event_type: EventType
    signed: SignedType | None

    @property
    def is_plain(self) -> bool:
        """Whether anybody on the way may read its events."""
        return self.signed is None or self.signed.mode is Mode.PLAIN


class KnownTypes:
    """All types of one broker."""

    def __init__(self, types: Iterable[KnownType] = ()) -> None:
        self._by_name: dict[str, KnownType] = {}
        self._meant: dict[str, dict[str, KnownType]] = {}
        for known in types:
            self.add(known)

    def add(self, known: KnownType) -> None:
        self._by_name[known.name] = known
        for name in _names(known):
            self._meant.setdefault(name, {})[known.name] = known

    def named(self, name: str) -> EventType | None:
        """The type whose events carry this name in their heads."""
        known = self._by_name.get(name)
        return known.event_type if known else None

    def is_plain(self, name: str) -> bool:
        known = self._by_name.get(name)
        return known is not None and known.is_plain

    def meant(self, name: str) -> KnownType:
        """The type a client means; raises InputError if there is none, or more than one."""
        found = list(self._meant.get(name, {}).values())
        newest = max((known.signed.version for known in found if known.signed), default=0)
        found = [known for known in found if known.signed is None or known.signed.version == newest]
        if len(found) == 1:
            return found[0]
        if found:
            raise InputError(f"several owners have a type {name[:100]!r}; say which by its full name")
        hint = did_you_mean(name, self._meant) or "the broker's file lists those it knows"
        raise InputError(f"this broker knows no event type {name[:100]!r}; {hint}")

    def all(self) -> list[KnownType]:
        return list(self._by_name.values())


def _names(known: KnownType) -> tuple[str, ...]:
    if known.signed is None:
        return (known.name,)
    local = known.event_type.name
    return (local, f"{local}@{known.signed.version}", known.signed.name, known.name)


def read_type(file: Path) -> KnownType:
    """A type from a file: TOML or JSON for an open one, anything else as `tidings type show --out` writes it."""
    if file.suffix in (".toml", ".json"):
        event_type = read_file(file)
        return KnownType(event_type.name, event_type, None)
    with file.open("rb") as stream:
        return of_signed(SignedType.from_bytes(stream.read(TYPE_BYTES_MAX + 1)))


def of_signed(signed: SignedType) -> KnownType:
    """A signed type, whose signature the caller has checked or will."""
    return KnownType(signed.type_id.hex(), signed.event_type, signed)
