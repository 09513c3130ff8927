"""Messages are sent again until they are acknowledged, and given up in the end."""

from __future__ import annotations

from tidings.overlay import Send, WakeAt
from tidings.overlay.cbdlo.messages import OperationDone
from tidings.overlay.retransmit import TRIES_MAX, WAIT_S, WAIT_S_MAX, Backoff, Requests, RetransmitQueue


def test_a_call_is_made_again_with_longer_and_longer_waits_and_given_up_in_the_end() -> None:
    requests = Requests()
    effects = requests.send("a", OperationDone, "greeting", now=0.0)
    assert effects == [Send("a", OperationDone(1)), WakeAt(WAIT_S, ("call", 1, 1))]
    waits = []
    for tries in range(1, TRIES_MAX):
        effects, lost = requests.overdue(1, tries, now=0.0)
        assert lost is None
        waits += [effect.when for effect in effects if isinstance(effect, WakeAt)]
    assert waits[0] == 2 * WAIT_S
    assert waits[-1] == WAIT_S_MAX
    effects, lost = requests.overdue(1, TRIES_MAX, now=0.0)
    assert (effects, lost and lost.about, len(requests)) == ([], "greeting", 0)


def test_an_answer_counts_once_and_only_from_whom_it_was_asked() -> None:
    requests = Requests()
    requests.send("a", OperationDone, "greeting", now=0.0)
    assert requests.answered(1, "b") is None
    answered = requests.answered(1, "a")
    assert answered is not None
    assert answered.about == "greeting"
    assert requests.answered(1, "a") is None
    assert requests.overdue(1, 1, now=1.0) == ([], None)


def test_calls_to_a_node_that_is_gone_are_given_up_together() -> None:
    requests = Requests()
    for to in ("a", "b", "a"):
        requests.send(to, OperationDone, to, now=0.0)
    assert [call.about for call in requests.take_back("a")] == ["a", "a"]
    assert requests.about() == ["b"]


def test_open_calls_are_bounded() -> None:
    requests = Requests(at_most=2)
    for number in range(5):
        requests.send("a", OperationDone, number, now=0.0)
    assert requests.about() == [3, 4]


def test_waits_double_and_end() -> None:
    calls = RetransmitQueue[str](Backoff(1.0, tries_max=3), at_most=8)
    assert calls.add("k", "peer", "message", now=0.0) == 1.0
    assert calls.retry("k", now=1.0) == 3.0
    assert calls.retry("k", now=3.0) == 7.0
    assert calls.retry("k", now=7.0) is None
    assert calls.acknowledge("k") is None


def test_a_call_is_overdue_when_its_wait_is_over_and_not_after_it_was_tried_again() -> None:
    calls = RetransmitQueue[str](Backoff(1.0, tries_max=3), at_most=8)
    calls.add("k", "peer", "message", now=0.0)
    assert calls.overdue("k", now=0.5) is None
    assert calls.overdue("k", now=1.0) == calls.get("k")
    calls.retry("k", now=1.0)
    assert calls.overdue("k", now=1.0) is None
    assert calls.overdue("never asked", now=9.0) is None


def test_when_full_the_oldest_call_is_given_up() -> None:
    calls = RetransmitQueue[int](Backoff(1.0, tries_max=3), at_most=2)
    for key in (1, 2, 3):
        calls.add(key, "peer", key, now=0.0)
    assert [key in calls for key in (1, 2, 3)] == [False, True, True]
    assert calls.keys_to("peer") == [2, 3]
