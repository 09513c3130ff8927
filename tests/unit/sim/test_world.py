"""The world keeps time, carries out what routers ask for, and lets go wrong what it is told to."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, ClassVar

import pytest

from tidings.errors import InputError
from tidings.overlay import (
    Completed,
    Count,
    Deliver,
    Effect,
    EventId,
    Header,
    Message,
    NodeId,
    Packet,
    Place,
    Protocol,
    Ranges,
    Router,
    Send,
    View,
    WakeAt,
)
from tidings.sim import CheckFailed, Crash, Slow, Storm, Topology, Weather, World, topology
from tidings.sim.network import Flat

PAIR = Topology(2, ((0, 1),), Flat(0.5))


class Note(Message, frozen=True):
    text: str


class Beat(Message, frozen=True):
    chatter: ClassVar[bool] = True


class Scribe(Router[Note]):
    """Writes down what happens to it, and does what it was told to do at the start."""

    def __init__(self, place: Place, first: Callable[[Place], list[Effect]]) -> None:
        self.place, self.first = place, first
        self.heard: list[tuple[float, str]] = []

    def start(self, now: float, memory: bytes = b"") -> list[Effect]:
        return self.first(self.place)

    def publish(self, packet: Packet, now: float) -> list[Effect]:
        return [Deliver(packet)]

    def receive(self, sender: NodeId, message: Any, now: float) -> list[Effect]:
        self.heard.append((now, getattr(message, "text", "beat")))
        return []

    def wake(self, token: object, now: float) -> list[Effect]:
        self.heard.append((now, f"woke {token}"))
        return [WakeAt(now + 1.0, token, idle=True)] if token == "routine" else []

    def unsent(self, to: NodeId, message: Any, now: float) -> list[Effect]:
        self.heard.append((now, f"unsent {message.text}"))
        return []

    def memory(self) -> bytes:
        return b"remembered"


def scribes(first: Callable[[Place], list[Effect]] = lambda place: []) -> Protocol:
    return Protocol("scribes", lambda place: Scribe(place, first), Note, frozenset(), on_graph=True)


def from_first(*effects: Effect) -> Protocol:
    """Scribes of which the first, n0000, begins with these effects."""
    return scribes(lambda place: list(effects) if place.me.id == "n0000" else [])


def heard(world: World, node: int) -> list[tuple[float, str]]:
    router = world.nodes[node].router
    assert isinstance(router, Scribe)
    return router.heard


def test_a_message_takes_as_long_as_the_space_says() -> None:
    world = World(from_first(Send("n0001", Note("hi"))), topology=PAIR)
    world.run_for(0.4)
    assert heard(world, 1) == []
    world.run_for(0.2)
    assert heard(world, 1) == [(0.5, "hi")]
    assert world.now == pytest.approx(0.6)


def test_messages_of_one_moment_arrive_in_the_order_they_were_sent() -> None:
    world = World(from_first(*(Send("n0001", Note(str(i))) for i in range(9))), topology=PAIR)
    world.run_until_quiet()
    assert [text for _, text in heard(world, 1)] == list("012345678")


def test_without_reordering_a_link_keeps_the_order_however_the_delay_varies() -> None:
    sends = [Send("n0001", Note(f"{i:02}")) for i in range(50)]
    world = World(from_first(*sends), topology=PAIR, weather=Weather(jitter_s=3.0))
    world.run_until_quiet()
    assert [text for _, text in heard(world, 1)] == [f"{i:02}" for i in range(50)]
    shuffled = World(from_first(*sends), topology=PAIR, weather=Weather(jitter_s=3.0, reorder=True))
    shuffled.run_until_quiet()
    texts = [text for _, text in heard(shuffled, 1)]
    assert sorted(texts) == [f"{i:02}" for i in range(50)] != texts


def test_loss_and_repeats_happen_about_as_often_as_the_weather_says() -> None:
    sends = [Send("n0001", Note("x")) for _ in range(2000)]
    world = World(from_first(*sends), topology=PAIR, weather=Weather(loss=0.25, repeat=0.5))
    world.run_until_quiet()
    assert world.trace.counted["lost"] == pytest.approx(500, abs=80)
    assert len(heard(world, 1)) == 2000 - world.trace.counted["lost"] + world.trace.counted["repeated"]
    assert world.trace.counted["repeated"] == pytest.approx(750, abs=80)


def test_a_wake_comes_at_its_time_with_its_token() -> None:
    world = World(from_first(WakeAt(2.0, "tea")), topology=PAIR)
    world.run_until_quiet()
    assert heard(world, 0) == [(2.0, "woke tea")]


def test_routines_and_chatter_do_not_keep_a_world_from_being_quiet() -> None:
    world = World(from_first(WakeAt(1.0, "routine", idle=True), Send("n0001", Beat())), topology=PAIR)
    assert world.is_quiet()
    world.run_for(10.0)
    assert len(heard(world, 0)) == 10
    assert heard(world, 1) == [(0.5, "beat")]


def test_a_world_that_does_not_fall_quiet_is_found_out() -> None:
    class Restless(Scribe):
        def wake(self, token: object, now: float) -> list[Effect]:
            return [WakeAt(now + 1.0, token)]

    restless = Protocol("restless", lambda place: Restless(place, lambda _: [WakeAt(1.0, "x")]), Note, frozenset())
    with pytest.raises(CheckFailed, match="not quiet after 50 s"):
        World(restless, topology=PAIR).run_until_quiet(within_s=50)


def test_a_message_to_a_node_that_is_down_bounces() -> None:
    world = World(from_first(Send("n0001", Note("hi"))), topology=PAIR)
    world.crash(1)
    world.run_until_quiet()
    assert heard(world, 0) == [(1.0, "unsent hi")]
    assert world.trace.counted["missed"] == 1
    silent = World(from_first(Send("n0001", Note("hi"))), topology=PAIR)
    silent.bounces = False
    silent.crash(1)
    silent.run_until_quiet()
    assert heard(silent, 0) == []


def test_nothing_passes_a_split_and_everything_after_it() -> None:
    world = World(scribes(), topology=PAIR)
    with world.split(side=[1]):
        world.carry_out(world.nodes[0], [Send("n0001", Note("lost"))])
        world.run_until_quiet()
    world.carry_out(world.nodes[0], [Send("n0001", Note("found"))])
    world.run_until_quiet()
    assert [text for _, text in heard(world, 1)] == ["found"]


def test_a_slow_node_takes_its_messages_one_after_the_other() -> None:
    sends = [Send("n0001", Note(str(i))) for i in range(3)]
    world = World(from_first(*sends), topology=PAIR)
    world.strike([Slow(0.0, until=100.0, node=1, each_s=2.0)])
    world.run_until_quiet()
    assert heard(world, 1) == [(2.5, "0"), (4.5, "1"), (6.5, "2")]


def test_a_restarted_node_does_not_wake_for_its_old_life() -> None:
    world = World(from_first(WakeAt(5.0, "tea")), topology=PAIR)
    world.run_for(1.0)
    world.crash(0)
    world.restart(0)
    assert world.nodes[0].peer.incarnation == 1
    world.run_until_quiet()
    assert heard(world, 0) == [(5.0, "woke tea")]  # Once: the new life asked for it as well.


def test_a_restart_keeps_subscriptions_with_memory_and_loses_them_without() -> None:
    world = World(scribes(), topology=PAIR)
    world.subscribe(0, Ranges.of(x=(1, 2)))
    world.crash(0)
    world.restart(0, memory=True)
    assert [id.incarnation for id in world.nodes[0].subscriptions] == [1]
    world.crash(0)
    world.restart(0, memory=False)
    assert world.nodes[0].subscriptions == {}


def test_only_subscriptions_that_match_are_told() -> None:
    world = World(scribes(), topology=PAIR)
    near, far = world.subscribe(0, Ranges.of(x=(0, 9))), world.subscribe(0, Ranges.of(x=(90, 99)))
    event = world.publish(0, {"x": 5})
    assert [(notice.event, notice.subscription) for notice in world.trace.notices] == [(event, near)]
    world.unsubscribe(near)
    world.publish(0, {"x": 6})
    assert len(world.trace.notices) == 1
    assert far in world.nodes[0].subscriptions


def test_what_routers_count_is_in_the_trace() -> None:
    world = World(from_first(Count("walks", 3), Count("walks"), Completed("join")), topology=PAIR)
    assert world.trace.counted["walks"] == 4


def test_faults_that_make_no_sense_do_nothing() -> None:
    world = World("flooding", node_count=3)
    world.strike([Crash(0.0, 99), Crash(1.0, 1), Crash(2.0, 1)])
    world.run_until_quiet()
    assert world.up() == [0, 2]


def test_a_storm_passes() -> None:
    world = World("flooding", node_count=3)
    world.strike([Storm(1.0, until=2.0, weather=Weather(loss=1.0))])
    world.run_for(1.5)
    assert world.weather.loss == 1.0
    world.run_for(1.0)
    assert world.weather.calm


def test_the_parts_of_a_broken_graph_are_told_apart() -> None:
    world = World("flooding", topology=Topology(5, ((0, 1), (1, 2), (3, 4)), Flat()))
    parts = world.parts()
    assert parts["n0000"] == parts["n0002"] != parts["n0003"] == parts["n0004"]
    world.crash(1)
    assert len(set(world.parts().values())) == 3


def test_a_joiner_gets_links_and_its_neighbours_learn_of_it() -> None:
    world = World("flooding", node_count=10, seed=1)
    new = world.join(contacts=2)
    world.publish(new, {"x": 1})
    world.run_until_quiet()
    assert len(world.trace.deliveries) == 11
    assert len(world.nodes[new].links) == 2


def test_links_come_and_go_and_only_new_ones_are_told() -> None:
    world = World("flooding", topology=Topology(4, ((0, 1), (1, 2)), Flat()))
    world.relink([(0, 1), (3, 1)])
    world.publish(0, {"x": 1})
    world.run_until_quiet()
    assert {node for _, node in world.trace.deliveries} == {"n0000", "n0001", "n0003"}
    assert world.trace.counted["lost"] == 1  # To node 2, of whose going nobody was told.
    assert world.nodes[2].links == []
    assert len(set(world.parts().values())) == 2
    new = world.join(contacts=1)
    world.publish(new, {"x": 1})
    world.run_until_quiet()
    assert len(world.trace.deliveries) > 4


def test_a_world_without_nodes_is_refused() -> None:
    with pytest.raises(InputError, match="at least 1 node"):
        World("flooding", node_count=0)
    with pytest.raises(InputError, match="loss between 0 and 1"):
        World("flooding", node_count=2, weather=Weather(loss=1.5))


def test_a_message_is_described_by_its_kind_size_and_event() -> None:
    world = World("flooding", topology=topology("ring", 3, Random(1)))
    event = world.publish(0, {"x": 1})
    (first, *_) = [row for row in world.trace if row.kind == "send"]
    assert (first.what, first.about) == ("Flood", event)
    assert first.size > 10
    assert world.trace.bytes("Flood") >= 2 * first.size
    assert EventId("n0000", 0, 1) == event
    assert Packet(Header(event, "Event"), View({"x": 1})) == world.trace.publications[event].packet
