"""The types a node has been told of, by all the names they go by."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tidings.errors import InputError, did_you_mean
from tidings.events import EventType
from tidings.node.key_distribution import CONTROL
from tidings.node.local_subscriptions import LocalSubscriptions
from tidings.node.type_crypto import TypeKeys
from tidings.security import SignedType

TYPES_MAX = 4096  # Declared at one node.


@dataclass(slots=True, eq=False)
class Known:
    """A type this node has been told of."""

    name: str
    """As heads of packets have it: the id of a signed type, the name of an open one."""
    event_type: EventType
    signed: SignedType | None
    keys: TypeKeys | None
    """None where nothing is sealed."""
    local: LocalSubscriptions

    def status(self) -> dict[str, Any]:
        """What there is to see of it, as JSON has it; no key is."""
        keys = self.keys
        held = {gid.hex()[:16]: [key.epoch for key in keys.keyring.epochs(gid)] for gid in keys.members} if keys else {}
        return {
            "name": self.event_type.name,
            "id": self.name,
            "mode": self.signed.mode.name.lower() if self.signed else "open",
            "epochs": held,
            "sender_id": keys.sender_id if keys else 0,
            "subscriptions": len(self.local),
        }


class Catalogue:
    """All types of one node. `get` takes the name that heads have, `find` any name that people use."""

    def __init__(self) -> None:
        self._types: dict[str, Known] = {}
        self._names: dict[str, list[str]] = {}
        self.get = self._types.get

    def add(self, known: Known) -> bool:
        """Takes a type up; False if it was there. Raises InputError for one too many, or another of the same name."""
        if known.name.startswith(CONTROL):
            raise InputError(f"{known.name!r}: names that begin with {CONTROL} are the network's own")
        if (there := self._types.get(known.name)) is not None:
            if there.event_type != known.event_type:
                raise InputError(f"{known.name} is declared here already, with other attributes")
            return False
        if len(self._types) >= TYPES_MAX:
            raise InputError(f"this node knows {TYPES_MAX} types already")
        self._types[known.name] = known
        for name in dict.fromkeys(
            (known.name, known.event_type.name, known.signed.name if known.signed else known.name)
        ):
            self._names.setdefault(name, []).append(known.name)
        return True

    def find(self, name: str) -> Known:
        """The type of this name, full name or id; raises InputError, with the nearest name, unless it is one."""
        names = self._names.get(name, [])
        if len(names) == 1:
            return self._types[names[0]]
        if names:
            raise InputError(f"{len(names)} types are called {name!r}; say which by the full name or the id")
        raise InputError(f"there is no event type {name!r} here; {did_you_mean(name, self._names)}".rstrip("; "))

    def owner_of(self, type_id: bytes) -> bytes | None:
        """Who owns a signed type; None of one that is not known here."""
        known = self._types.get(type_id.hex())
        return known.signed.owner_key if known is not None and known.signed is not None else None

    def owners(self) -> list[bytes]:
        return [known.signed.owner_key for known in self._types.values() if known.signed is not None]

    def __iter__(self) -> Iterator[Known]:
        return iter(tuple(self._types.values()))

    def __getitem__(self, name: str) -> Known:
        return self._types[name]
