"""A made-up city: brokers of several organisations, a sealed type, and who may read which of its attributes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tidings.events import EventType
from tidings.node import Joined, NodePolicy
from tidings.overlay import EventId, SubscriptionId
from tidings.security import BiscuitCapability, KeyManager, Mode, SignedType
from tidings.sim import Federation, NodeWorld

Sighting = EventType("Sighting", plate=str, place=str, speed=int)
NAMES = ("plate", "place", "speed")
MANAGER_AT = 0  # The node that hosts the key manager.


@dataclass(slots=True)
class City:
    """A world of nodes in which everybody who may has keys. Each node with a right has a client, `c3` at node 3."""

    world: NodeWorld
    signed: SignedType
    manager: KeyManager
    rights: dict[int, BiscuitCapability]

    def client(self, index: int) -> str:
        return f"c{index}"

    def say(self, index: int, **values: object) -> EventId:
        return self.world.publish_as(index, self.client(index), "Sighting", values)

    def ask(self, index: int, condition: str) -> SubscriptionId:
        id = self.world.subscribe_as(index, self.client(index), "Sighting", condition)
        self.settle(3.0)
        return id

    def settle(self, seconds: float = 1.0) -> None:
        """Let so much time pass. A world whose key manager speaks every few seconds is never quiet for long."""
        self.world.run_for(seconds)

    def told(self) -> list[tuple[str, dict[str, object]]]:
        """What each client was told, in order."""
        return [(delivery.client, delivery.values) for delivery in self.world.deliveries]


def a_city(
    protocol: str,
    mode: Mode,
    reads: Sequence[Sequence[str] | None],
    *,
    seed: int = 0,
    organisations: Sequence[str] = (),
    policy: NodePolicy | None = None,
    knowing: Sequence[int] | None = None,
    skew_ms: Callable[[int], int] = lambda index: 0,
    **fields: object,
) -> City:
    """Brokers that read what `reads` says of each: these attributes, all of them (None), or nothing (empty).

    `fields` are those of the signed type.
    """
    federation = Federation(seed)
    names = organisations or ["all"] * len(reads)
    world = NodeWorld(
        protocol,
        node_count=len(reads),
        seed=seed,
        federation=federation,
        organisation_of=lambda index: names[index],
        policy=policy or NodePolicy(network_key=federation.network.public_key),
        skew_ms=skew_ms,
    )
    signed = federation.type(Sighting, mode, **fields)
    world.declare(signed, at=knowing)
    manager = federation.key_manager(signed)
    world.host(MANAGER_AT, manager)
    world.run_for(5.0)
    city = City(world, signed, manager, {})
    for index, attributes in enumerate(reads):
        if attributes is None or attributes:
            give(city, index, attributes)
    world.run_for(12.0)
    return city


def give(city: City, index: int, attributes: Sequence[str] | None) -> None:
    """Give a broker and its client a right."""
    federation = city.world.federation
    city.rights[index] = federation.right(city.signed, city.world.identity(index), attributes)
    city.world.hold(index, city.rights[index])
    client = city.client(index)
    city.world.attach(index, client, [federation.right(city.signed, federation.identity(client), attributes)])


def joined(city: City) -> list[str]:
    """The nodes that were let into key groups."""
    return [node for node, effect in city.world.effects if isinstance(effect, Joined)]
