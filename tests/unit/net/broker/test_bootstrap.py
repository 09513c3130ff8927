"""How a broker joins: in which order links, and what is said over them, may come."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Any, cast

from tidings.net.broker.bootstrap import Bootstrap
from tidings.net.transport.frames import JoinStatus
from tidings.node import LocalIdentity, Node, NodeEffect, node_id_of
from tidings.overlay import Completed, Failed, NodeId, Peer, Send, protocol
from tidings.overlay.prefix.messages import LookupRequest, Ping
from tidings.security import Identity


@dataclass
class Proven:
    peer: Peer

    @property
    def id(self) -> NodeId:
        return self.peer.id


@dataclass
class Wire:
    proven: Proven
    sent: list[Any] = field(default_factory=list)

    def send(self, frame: Any) -> None:
        self.sent.append(frame)


class Wires:
    """The links of a broker, all of them ready."""

    def __init__(self, me: Peer, *peers: Peer) -> None:
        self.me, self.open = me, {peer.id: Wire(Proven(peer)) for peer in peers}

    def ready_peers(self) -> list[NodeId]:
        return list(self.open)

    def ready_links(self) -> list[Wire]:
        return list(self.open.values())

    def ready(self, id: NodeId) -> Wire | None:
        return self.open.get(id)


class Newcomer:
    """A broker whose id is lower than those of its two peers: of three that start together it would begin."""

    def __init__(self) -> None:
        numbers = Random(20)
        keys = [Identity.make(numbers.randbytes) for _ in range(3)]
        mine, *theirs = sorted(keys, key=lambda key: node_id_of(key.public_key))
        me = Peer(node_id_of(mine.public_key), "here:1")
        self.others = [Peer(node_id_of(key.public_key), "there:1") for key in theirs]
        self.sent: list[tuple[NodeId, Any]] = []
        node = Node(
            LocalIdentity(me, mine), protocol("irbr"), rng=Random(1), random=numbers.randbytes, options={"sync_s": 2.0}
        )
        self.links = Wires(me, *self.others)
        self.bootstrap = Bootstrap(
            node,
            cast(Any, self.links),
            [peer.id for peer in self.others],
            self.carry_out,
            on_graph=False,
            router_memory=b"",
            alone_after_s=300.0,
        )

    def carry_out(self, effects: Iterable[NodeEffect]) -> None:
        for effect in effects:
            match effect:
                case Send(to, message):
                    self.sent.append((to, message))
                case Completed("join") | Failed("join"):
                    self.bootstrap.completed(effect.why if isinstance(effect, Failed) else "")

    def was_sent(self, kind: type, to: Peer) -> bool:
        return any(isinstance(message, kind) and id == to.id for id, message in self.sent)


def test_a_broker_begins_no_network_before_its_peers_have_said_whether_they_are_in_one() -> None:
    async def scenario() -> None:
        broker = Newcomer()
        broker.bootstrap.try_join()  # Both links are ready, and nothing has been said over them yet.
        assert not broker.bootstrap.is_joined.is_set()
        broker.bootstrap.receive_status(broker.others[0].id, True)
        assert not broker.bootstrap.is_joined.is_set()
        assert broker.was_sent(LookupRequest, broker.others[0])

    asyncio.run(scenario())


def test_the_lowest_begins_when_all_have_said_that_they_are_in_none() -> None:
    async def scenario() -> None:
        broker = Newcomer()
        for peer in broker.others:
            assert not broker.bootstrap.is_joined.is_set()
            broker.bootstrap.receive_status(peer.id, False)
        assert broker.bootstrap.is_joined.is_set()
        assert all(link.sent == [JoinStatus(True)] for link in broker.links.open.values())

    asyncio.run(scenario())


def test_brokers_that_began_apart_meet_when_both_are_in() -> None:
    async def scenario() -> None:
        broker = Newcomer()
        for peer in broker.others:
            broker.bootstrap.receive_status(peer.id, False)
        assert not broker.was_sent(Ping, broker.others[1])
        broker.bootstrap.receive_status(broker.others[1].id, True)
        assert broker.was_sent(Ping, broker.others[1])

    asyncio.run(scenario())
