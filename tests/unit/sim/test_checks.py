"""Checks find what is wrong, and only that. Each is shown a run with one flaw."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tidings.overlay import EventId, NodeId, Ranges
from tidings.overlay.baselines.flooding import Flooding
from tidings.sim import (
    CheckFailed,
    World,
    check_bounded,
    check_no_loops,
    check_nothing_invented,
    check_nothing_lost,
    check_nothing_twice,
    check_nothing_unwanted,
    check_quiet,
    check_safe,
)
from tidings.sim.trace import NotificationRecord


def a_good_run() -> World:
    world = World("flooding", node_count=12, seed=2)
    for node in range(6):
        world.subscribe(node, Ranges.of(x=(0, 5)))
    world.run_for(1.0)
    for x in range(8):
        world.publish(11, {"x": x})
    world.run_until_quiet()
    return world


def test_a_good_run_passes_every_check() -> None:
    world = a_good_run()
    assert len(world.trace.notices) == 36
    check_safe(world)
    check_quiet(world)
    check_nothing_lost(world.trace)


def lose_one(world: World) -> None:
    world.trace.notices.pop()


def tell_twice(world: World) -> None:
    world.trace.notices.append(world.trace.notices[0])


def deliver_twice(world: World) -> None:
    world.trace.deliveries[next(iter(world.trace.deliveries))] += 1


def tell_the_uninterested(world: World) -> None:
    unwanted = list(world.trace.publications)[-1]
    world.trace.notices.append(NotificationRecord(9.0, unwanted, next(iter(world.trace.subscriptions))))


def tell_one_that_took_it_back(world: World) -> None:
    next(iter(world.trace.subscriptions.values())).dropped_at = 0.5


def invent(world: World) -> None:
    world.trace.deliveries[EventId("nobody", 0, 1), "n0001"] += 1


def go_in_circles(world: World) -> None:
    world.trace.rows.append(next(row for row in world.trace.rows if row[1] == "send"))


@pytest.mark.parametrize(
    ("flaw", "check", "said"),
    [
        (lose_one, check_nothing_lost, "did not reach"),
        (tell_twice, check_nothing_twice, "2 times"),
        (deliver_twice, check_nothing_twice, "delivered 2 times"),
        (tell_the_uninterested, check_nothing_unwanted, "does not match"),
        (tell_one_that_took_it_back, check_nothing_unwanted, "taken back"),
        (invent, check_nothing_invented, "never published"),
        (go_in_circles, check_no_loops, "crossed"),
    ],
)
def test_a_flaw_is_found(flaw: Callable[[World], None], check: Callable[..., None], said: str) -> None:
    world = a_good_run()
    check(world.trace)
    flaw(world)
    with pytest.raises(CheckFailed, match=said):
        check(world.trace)


def test_a_node_that_holds_too_much_is_found() -> None:
    world = a_good_run()

    class Hoarder(Flooding):
        def holdings(self) -> dict[str, tuple[int, int]]:
            return {"letters": (11, 10)}

    world.nodes[3].router = Hoarder([])
    with pytest.raises(CheckFailed, match="n0003 holds 11 letters"):
        check_bounded(world)


def test_a_world_with_a_message_on_its_way_is_not_quiet() -> None:
    world = a_good_run()
    world.publish(0, {"x": 1})
    with pytest.raises(CheckFailed, match="not quiet"):
        check_quiet(world)


def test_nothing_is_owed_to_a_node_that_went_down_or_across_a_broken_graph() -> None:
    world = a_good_run()
    lost = world.trace.notices.pop()
    world.trace.absences[lost.subscription.origin] = [[2.0, 3.0]]
    check_nothing_lost(world.trace)
    world.trace.absences.clear()
    parts: dict[NodeId, int] = {member.id: 0 for member in world.nodes} | {lost.subscription.origin: 1}
    check_nothing_lost(world.trace, parts=parts)


def test_events_published_in_a_disturbance_are_excused_for_as_long_as_one_says() -> None:
    world = a_good_run()
    world.trace.notices.clear()
    world.trace.disturbances.append([0.0, 0.9])
    check_nothing_lost(world.trace, calm_s=0.2)
    with pytest.raises(CheckFailed, match="… and 31 more"):
        check_nothing_lost(world.trace, calm_s=0.05)


def test_a_failure_names_the_command_that_shows_it_again() -> None:
    world = a_good_run()
    world.trace.rerun = "python -m tidings.sim replay '{}'"
    tell_twice(world)
    with pytest.raises(CheckFailed, match=r"to see it again:\n  python -m tidings.sim replay"):
        check_nothing_twice(world.trace)
