"""Gossip: cheaper than flooding, without a guarantee."""

from __future__ import annotations

from random import Random

import pytest

from tidings.errors import InputError
from tidings.overlay import Deliver, EventId, Header, Packet, Send, View
from tidings.overlay.baselines.gossip import Gossip, GossipEvent

QUAKE = Packet(Header(EventId("x", 0, 1), "Quake"), View({"magnitude": 7}))


def test_with_probability_one_gossip_is_a_flood() -> None:
    node = Gossip(["a", "b"], Random(1), chance=1.0)
    assert node.receive("a", GossipEvent(QUAKE), now=0.0) == [Deliver(QUAKE), Send("b", GossipEvent(QUAKE))]


def test_with_probability_zero_an_event_is_not_forwarded() -> None:
    assert Gossip(["a", "b"], Random(1), chance=0.0).publish(QUAKE, now=0.0) == [Deliver(QUAKE)]


def test_events_go_to_as_many_peers_as_the_fan_out_says_and_never_back() -> None:
    for seed in range(20):
        node = Gossip(["a", "b", "c", "d"], Random(seed), fan_out=2)
        sent = [effect.to for effect in node.receive("c", GossipEvent(QUAKE), now=0.0) if isinstance(effect, Send)]
        assert len(set(sent)) == 2
        assert "c" not in sent


def test_a_second_copy_goes_no_further() -> None:
    node = Gossip(["a", "b"], Random(1))
    node.publish(QUAKE, now=0.0)
    assert node.receive("a", GossipEvent(QUAKE), now=0.1) == []


@pytest.mark.parametrize("options", [{"chance": 1.5}, {"chance": -0.1}, {"fan_out": 0}])
def test_invalid_options_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(InputError, match="expected a"):
        Gossip(["a"], Random(1), **options)  # type: ignore[arg-type]
