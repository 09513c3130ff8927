"""Flooding, one node at a time and as a whole."""

from __future__ import annotations

from random import Random

import pytest

from tidings.overlay import Deliver, EventId, Header, Packet, Send, View
from tidings.overlay.baselines.flooding import HOPS_COUNTED, Flood, Flooding
from tidings.sim import TOPOLOGIES, World, topology

QUAKE = Packet(Header(EventId("x", 0, 1), "Quake"), View({"magnitude": 7}))


def test_a_first_copy_is_delivered_and_forwarded_to_all_but_the_sender() -> None:
    node = Flooding(neighbours=["a", "b", "c"])
    onward = Flood(QUAKE, hops=4)
    assert node.receive("b", Flood(QUAKE, hops=3), now=0.0) == [
        Deliver(QUAKE),
        Send("a", onward),
        Send("c", onward),
    ]


def test_a_second_copy_goes_no_further() -> None:
    node = Flooding(neighbours=["a", "b"])
    node.receive("a", Flood(QUAKE, hops=3), now=0.0)
    assert node.receive("b", Flood(QUAKE, hops=3), now=0.1) == []


@pytest.mark.parametrize("hops", [0, 1 << 16, (1 << 64) - 1])
def test_nobody_ends_a_flood_by_what_it_says_about_its_hops(hops: int) -> None:
    node = Flooding(neighbours=["a", "b"])
    delivered, onward = node.receive("a", Flood(QUAKE, hops), now=0.0)
    assert delivered == Deliver(QUAKE)
    assert isinstance(onward, Send)
    assert onward.to == "b"
    assert onward.message.hops <= HOPS_COUNTED


@pytest.mark.parametrize("kind", TOPOLOGIES)
def test_a_flood_takes_two_messages_a_link_less_one_a_node(kind: str) -> None:
    """IMMUNE-Q5: exactly 2E - (N - 1), and everyone is reached."""
    for seed in range(5):
        graph = topology(kind, 60, Random(seed))
        world = World("flooding", topology=graph, seed=seed)
        world.publish(seed, {"x": 1})
        world.run_until_quiet()
        assert world.trace.messages() == 2 * len(graph.links) - 59
        assert len(world.trace.deliveries) == 60
