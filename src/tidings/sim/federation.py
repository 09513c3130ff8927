"""Simulated organisations: who owns the network and the types, which nodes belong to whom, and who may read what.

All keys derive from the seed, so the same federation comes out each time. Only the ephemeral keys inside tokens are
the library's own and differ from run to run, at the same length.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random

from tidings.events import EventType
from tidings.security import (
    ANY_TYPE,
    BiscuitCapability,
    Grant,
    Identity,
    KeyManager,
    Mode,
    RandomBytes,
    SignedType,
    grant,
)

START_MS = 1_767_225_600_000  # When a simulation starts: the beginning of 2026.
DAY_MS = 86_400_000


@dataclass(slots=True)
class Federation:
    """The organisations of one world: the owner of the network, the owner of the types, and any members by name."""

    seed: int = 0
    days: int = 30
    """How long rights hold."""
    _identities: dict[str, Identity] = field(default_factory=dict)

    def identity(self, name: str) -> Identity:
        """The key of the participant with this name."""
        if name not in self._identities:
            self._identities[name] = Identity(Random(f"identity/{self.seed}/{name}").randbytes(32))
        return self._identities[name]

    @property
    def network(self) -> Identity:
        return self.identity("network")

    @property
    def owner(self) -> Identity:
        return self.identity("owner")

    @property
    def manager(self) -> Identity:
        return self.identity("manager")

    def type(self, event_type: EventType, mode: Mode, **fields: object) -> SignedType:
        """A type of the owner, with the federation's key manager."""
        return SignedType.make(self.owner, event_type, mode=mode, key_manager=self.manager.public_key, **fields)

    def key_manager(self, signed: SignedType, now_ms: int = START_MS) -> KeyManager:
        return KeyManager(signed, self.manager, Random(f"manager/{self.seed}").randbytes, now_ms)

    def membership(self, organisation: str, node: Identity) -> BiscuitCapability:
        """A node's membership in the network, delegated by its organisation."""
        org, joins = self.identity(organisation), frozenset({"join-net"})
        start, end = START_MS - DAY_MS, START_MS + self.days * DAY_MS
        whole = Grant(ANY_TYPE, joins, org.public_key, not_before=start, not_after=end, delegate=True, max_depth=1)
        part = Grant(ANY_TYPE, joins, node.public_key, not_before=start, not_after=end)
        return grant(self.network, whole, self._random(node)).narrow(part, org)

    def right(
        self,
        signed: SignedType,
        holder: Identity,
        attributes: Iterable[str] | None = None,
        *,
        actions: Iterable[str] = ("publish", "subscribe"),
        constraints: tuple[str, ...] = (),
        until_ms: int | None = None,
    ) -> BiscuitCapability:
        """A right to some attributes of a type, or to all of them."""
        granted = Grant(
            signed.type_id,
            frozenset(actions),
            holder.public_key,
            attributes=None if attributes is None else frozenset(signed.attr_id(name) for name in attributes),
            not_before=START_MS - DAY_MS,
            not_after=START_MS + self.days * DAY_MS if until_ms is None else until_ms,
            constraints=constraints,
        )
        return grant(self.owner, granted, self._random(holder))

    def _random(self, holder: Identity) -> RandomBytes:
        return Random(f"grant/{self.seed}/{holder.public_key.hex()}").randbytes
