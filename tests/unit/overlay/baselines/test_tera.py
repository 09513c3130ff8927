"""TERA on a handful of nodes: topics grow together, and who subscribes passes on."""

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


def test_subscribers_of_a_topic_find_each_other_and_drop_what_they_do_not_want() -> None:
    bench = a_bench()
    for id, low in (("n1", 0), ("n2", 0), ("n3", 100), ("n4", 0)):
        bench.subscribe(id, Ranges.of(x=(low, low + 50)))
    bench.run(60.0)
    topics: dict[str, Tera] = {id: bench.routers[id] for id in ("n1", "n2", "n3", "n4")}
    assert all(len(router.topics[X]) >= 2 for router in topics.values())
    event = bench.publish("n7", x=7)
    bench.run(70.0)
    assert sorted(node for node, id in bench.delivered if id == event) == ["n1", "n2", "n4"]
    passed_on = {sender for sender, _, said in bench.sent if isinstance(said, TopicFlood)}
    assert "n3" in passed_on, "who does not want this event passes it on to others of the topic"


def test_who_has_unsubscribed_passes_nothing_on() -> None:
    bench = a_bench()
    wish = bench.subscribe("n1", Ranges.of(x=(0, 50)))
    bench.run(30.0)
    bench.unsubscribe(wish)
    assert bench.routers["n1"].topics == {}


def test_a_topic_that_nobody_subscribes_to_is_looked_for_so_many_hops_and_no_more() -> None:
    bench = a_bench(hops_max=4)
    bench.run(10.0)
    bench.publish("n7", x=7)
    bench.run(20.0)
    assert bench.delivered == []


@pytest.mark.parametrize("options", [{"hops_max": 0}, {"period_s": -1}, {"wings": 2}], ids=str)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        protocol("tera").build(Place(Peer("a"), (), Random(0)), **options)
