"""A trace can be counted, compared and shown."""

from __future__ import annotations

from tidings.sim import SimulationTrace, World


def a_world(seed: int = 3) -> World:
    world = World("flooding", node_count=12, seed=seed)
    world.publish(0, {"x": 1})
    world.publish(1, {"x": 2})
    world.run_until_quiet()
    return world


def test_equal_runs_have_equal_digests_and_others_do_not() -> None:
    assert a_world().trace.digest() == a_world().trace.digest()
    assert a_world(3).trace.digest() != a_world(4).trace.digest()


def test_one_row_more_is_another_digest() -> None:
    world = a_world()
    before = world.trace.digest()
    world.trace.note(9.0, "crash", "n0001")
    assert world.trace.digest() != before


def test_the_timeline_shows_one_events_way_in_order() -> None:
    trace = a_world().trace
    event = next(iter(trace.publications))
    lines = trace.timeline(event=event).splitlines()
    assert "publish" in lines[0]
    assert len(lines) == len(trace.about(event)) > 12
    assert [line.split()[0] for line in lines] == sorted((line.split()[0] for line in lines), key=float)


def test_a_long_timeline_says_what_it_leaves_off() -> None:
    trace = a_world().trace
    assert trace.timeline(rows_max=3).splitlines()[-1] == f"… and {len(trace.rows) - 3} more"


def test_counts_are_kept_without_recording() -> None:
    quiet = World("flooding", node_count=12, seed=3, recording=False)
    quiet.publish(0, {"x": 1})
    quiet.run_until_quiet()
    assert quiet.trace.rows == []
    assert quiet.trace.messages("Flood") == quiet.trace.messages() > 11
    assert SimulationTrace().messages() == 0
