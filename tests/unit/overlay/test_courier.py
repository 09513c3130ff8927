"""Calls are made again until they are answered, and given up in the end."""

from __future__ import annotations

from tidings.overlay import Send, WakeAt
from tidings.overlay.cbdlo.messages import Done
from tidings.overlay.courier import TRIES_MAX, WAIT_S, WAIT_S_MAX, Courier


def test_a_call_is_made_again_with_longer_and_longer_waits_and_given_up_in_the_end() -> None:
    courier = Courier()
    effects = courier.call("a", Done, "greeting", now=0.0)
    assert effects == [Send("a", Done(1)), WakeAt(WAIT_S, ("call", 1, 1))]
    waits = []
    for tries in range(1, TRIES_MAX):
        effects, lost = courier.overdue(1, tries, now=0.0)
        assert lost is None
        waits += [effect.when for effect in effects if isinstance(effect, WakeAt)]
    assert waits[0] == 2 * WAIT_S
    assert waits[-1] == WAIT_S_MAX
    effects, lost = courier.overdue(1, TRIES_MAX, now=0.0)
    assert (effects, lost and lost.about, len(courier)) == ([], "greeting", 0)


def test_an_answer_counts_once_and_only_from_whom_it_was_asked() -> None:
    courier = Courier()
    courier.call("a", Done, "greeting", now=0.0)
    assert courier.answered(1, "b") is None
    answered = courier.answered(1, "a")
    assert answered is not None
    assert answered.about == "greeting"
    assert courier.answered(1, "a") is None
    assert courier.overdue(1, 1, now=1.0) == ([], None)


def test_calls_to_a_node_that_is_gone_are_given_up_together() -> None:
    courier = Courier()
    for to in ("a", "b", "a"):
        courier.call(to, Done, to, now=0.0)
    assert [call.about for call in courier.give_up("a")] == ["a", "a"]
    assert courier.about() == ["b"]


def test_open_calls_are_bounded() -> None:
    courier = Courier(at_most=2)
    for number in range(5):
        courier.call("a", Done, number, now=0.0)
    assert courier.about() == [3, 4]
