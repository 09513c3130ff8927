"""TERA on a few nodes: the overlays of a topic merge, and its subscribers forward."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from tests.unit.overlay.harness import TYPE, Bench
from tidings.errors import InputError
from tidings.overlay import Peer, Place, Ranges, protocol
from tidings.overlay.baselines.tera import PROTOCOL, Tera, TopicFlood
from tidings.overlay.random_graph.partition import AttributeAxis

X = AttributeAxis(TYPE, "x")
IDS = [f"n{k}" for k in range(10)]


def a_bench(**options: Any) -> Bench:
    return Bench(PROTOCOL, IDS, delay_s=0.01, **options)


def test_subscribers_of_a_topic_find_each_other_and_drop_what_does_not_match() -> None:
    bench = a_bench()
    for id, low in (("n1", 0), ("n2", 0), ("n3", 100), ("n4", 0)):
        bench.subscribe(id, Ranges.of(x=(low, low + 50)))
    bench.run(60.0)
    topics: dict[str, Tera] = {id: bench.routers[id] for id in ("n1", "n2", "n3", "n4")}
    assert all(len(router.topics[X]) >= 2 for router in topics.values())
    event = bench.publish("n7", x=7)
    bench.run(70.0)
    assert sorted(node for node, id in bench.delivered if id == event) == ["n1", "n2", "n4"]
    forwarded_by = {sender for sender, _, message in bench.sent if isinstance(message, TopicFlood)}
    assert "n3" in forwarded_by, "a subscriber forwards also the events of the topic that it drops"


def test_a_node_that_has_unsubscribed_leaves_the_topic() -> None:
    bench = a_bench()
    wish = bench.subscribe("n1", Ranges.of(x=(0, 50)))
    bench.run(30.0)
    bench.unsubscribe(wish)
    assert bench.routers["n1"].topics == {}


def test_a_walk_for_a_topic_without_subscribers_ends_at_the_hop_limit() -> None:
    bench = a_bench(hops_max=4)
    bench.run(10.0)
    bench.publish("n7", x=7)
    bench.run(20.0)
    assert bench.delivered == []


@pytest.mark.parametrize("options", [{"hops_max": 0}, {"period_s": -1}, {"wings": 2}], ids=str)
def test_invalid_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        protocol("tera").build(Place(Peer("a"), (), Random(0)), **options)
