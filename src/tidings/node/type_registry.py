"""The event types that a node knows, by every name that they go by.

Packets carry a type's *wire name*: the id of a signed type in hex, the plain name of an open one. Clients may also use
the local name (`Sighting`), the name with a version (`Sighting@2`) and the full name with its owner.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidings.errors import InputError, did_you_mean
from tidings.events import EventType
from tidings.node.type_crypto import TypeCrypto
from tidings.security import Mode, SignedType

if TYPE_CHECKING:
    from tidings.node.local_delivery import LocalSubscriptions

CONTROL = "~"  # Names that begin with it belong to the network itself; no event type may use them.
TYPES_MAX = 4096  # Declared at one node.


@dataclass(slots=True, eq=False)
class RegisteredType:
    """A type that was declared to this node, with the node's keys and local subscriptions for it."""

    name: str
    """The wire name."""
    event_type: EventType
    signed: SignedType | None
    """None for an open type: no rights, nothing sealed."""
    keys: TypeCrypto | None
    """None if events of this type are not sealed."""
    local: LocalSubscriptions

    @property
    def is_plain(self) -> bool:
        """Whether anybody on the way may read its events."""
        return self.signed is None or self.signed.mode is Mode.PLAIN

    @property
    def is_unsigned(self) -> bool:
        """Whether its owner does without signatures."""
        return self.signed is not None and not self.signed.signatures

    def status(self) -> dict[str, Any]:
        """Its state for operators, as JSON values; no key is among them."""
        keys = self.keys
        held = {gid.hex()[:16]: [key.epoch for key in keys.keyring.epochs(gid)] for gid in keys.members} if keys else {}
        started = (
            [keys.keyring.epochs(gid)[-1].start_ms for gid in keys.members if keys.keyring.epochs(gid)] if keys else []
        )
        lasts_ms = self.signed.refresh_secs * 1000 if self.signed else 0
        return {
            "name": self.event_type.name,
            "id": self.name,
            "mode": self.signed.mode.name.lower() if self.signed else "open",
            "epochs": held,
            "keys_since_ms": max(started, default=None),
            "keys_until_ms": min(started) + lasts_ms if started and lasts_ms else None,
            "sender_id": keys.sender_id if keys else 0,
            "subscriptions": len(self.local),
        }


class TypeRegistry:
    """All types of one node. `get` takes a wire name, `find` any name that a client may use."""

    def __init__(self) -> None:
        self._types: dict[str, RegisteredType] = {}
        self._by_any_name: dict[str, dict[str, RegisteredType]] = {}
        self.get = self._types.get
        self.own_keys: frozenset[bytes] = frozenset()
        """Of the node's own organisation: its types are meant before those of others with the same name."""

    def add(self, new: RegisteredType) -> bool:
        """Register a type; False if it was registered before.

        Raises InputError beyond TYPES_MAX, and for another definition under the name of an open type.
        """
        if new.name.startswith(CONTROL):
            raise InputError(f"{new.name!r}: names that begin with {CONTROL} are the network's own")
        if (there := self._types.get(new.name)) is not None:
            if there.event_type != new.event_type:
                raise InputError(f"{new.name} is declared here already, with other attributes")
            return False
        if len(self._types) >= TYPES_MAX:
            raise InputError(f"this broker knows {TYPES_MAX} types already")
        self._types[new.name] = new
        for name in _names(new):
            self._by_any_name.setdefault(name, {})[new.name] = new
        return True

    def find(self, name: str) -> RegisteredType:
        """The type that a client means, in its newest version: its own organisation's, or the only one of that name.

        Raises InputError if there is none, and if several other owners use the name: none of them may take it over.
        """
        found = list(self._by_any_name.get(name, {}).values())
        if len(found) == 1:  # Asked with every publish.
            return found[0]
        own = [known for known in found if known.signed and known.signed.owner_key in self.own_keys]
        if len({known.signed.owner_key if known.signed else b"" for known in own or found}) > 1:
            names = ", ".join(known.signed.name if known.signed else known.name for known in (own or found)[:5])
            raise InputError(f"several owners have a type {name[:100]!r}; choose one: {names}")
        if found:
            return max(own or found, key=lambda known: known.signed.version if known.signed else 0)
        hint = did_you_mean(name, self._by_any_name) or "`tidings ls types` lists those it knows"
        raise InputError(f"this broker knows no event type {name[:100]!r}; {hint}")

    def event_type(self, name: str) -> EventType | None:
        """The event type with this wire name; None if it is not known here."""
        known = self._types.get(name)
        return known.event_type if known else None

    def display_name(self, name: str) -> str:
        """As people call the type with this wire name; of one that is not known here only that is left."""
        known = self._types.get(name)
        return known.event_type.name if known else name

    def is_plain(self, name: str) -> bool:
        """Whether the type with this wire name is known here and not sealed."""
        known = self._types.get(name)
        return known is not None and known.is_plain

    def owner_of(self, type_id: bytes) -> bytes | None:
        """The owner of a signed type; None if it is not known here."""
        known = self._types.get(type_id.hex())
        return known.signed.owner_key if known is not None and known.signed is not None else None

    def owners(self) -> list[bytes]:
        return [known.signed.owner_key for known in self._types.values() if known.signed is not None]

    def all(self) -> list[RegisteredType]:
        """Every type, in the order of declaration."""
        return list(self._types.values())

    def __getitem__(self, name: str) -> RegisteredType:
        return self._types[name]


def _names(known: RegisteredType) -> tuple[str, ...]:
    if known.signed is None:
        return (known.name,)
    local = known.event_type.name
    return (local, f"{local}@{known.signed.version}", known.signed.name, known.name)
