"""Calls: messages that are sent again until they are answered.

A call has a number; who gets it answers with that number once it has done what was asked,
so the same call may come twice and must mean the same. The wait doubles up to a maximum: a
node that is slow is not pressed, and one that is gone is noticed in the end.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from tidings.overlay.messages import Message, NodeId
from tidings.overlay.router import Effect, Send, WakeAt

WAIT_S = 0.5  # Five times the slowest round trip of the simulated networks.
WAIT_S_MAX = 4.0
TRIES_MAX = 12  # Some 40 seconds. With one message in five lost, both ways, all fail once in 200,000 calls.
CALLS_MAX = 65_536  # One too many pushes out the oldest.


@dataclass(slots=True)
class Call:
    """One that has not been answered."""

    to: NodeId
    message: Message
    about: Any  # Hashable: what the caller wants to be told when it is answered or lost.
    tries: int = 1
    tries_max: int = TRIES_MAX


class Courier:
    """The open calls of one node."""

    def __init__(self, *, at_most: int = CALLS_MAX) -> None:
        self.at_most = at_most
        self._calls: OrderedDict[int, Call] = OrderedDict()
        self._made = 0

    def __len__(self) -> int:
        return len(self._calls)

    def call(
        self,
        to: NodeId,
        make: Callable[[int], Message],
        about: Hashable,
        now: float,
        tries_max: int = TRIES_MAX,
    ) -> list[Effect]:
        """Send what `make` makes of the call's number, and keep at it."""
        self._made += 1
        number = self._made
        if len(self._calls) >= self.at_most:
            self._calls.popitem(last=False)
        self._calls[number] = call = Call(to, make(number), about, tries_max=tries_max)
        return [Send(to, call.message), self._wake(number, call, now)]

    def answered(self, number: int, by: NodeId) -> Call | None:
        """The call that this answers; None if none is open, or it was put to somebody else."""
        call = self._calls.get(number)
        if call is None or call.to != by:
            return None
        return self._calls.pop(number)

    def overdue(self, number: int, tries: int, now: float) -> tuple[list[Effect], Call | None]:
        """What to send again; or the call, if it was tried often enough and is given up."""
        call = self._calls.get(number)
        if call is None or call.tries != tries:
            return [], None
        if call.tries >= call.tries_max:
            return [], self._calls.pop(number)
        call.tries += 1
        return [Send(call.to, call.message), self._wake(number, call, now)], None

    def give_up(self, to: NodeId) -> list[Call]:
        """All calls to a node that is gone; they are open no more."""
        numbers = [number for number, call in self._calls.items() if call.to == to]
        return [self._calls.pop(number) for number in numbers]

    def take_back(self, is_meant: Callable[[Any], bool]) -> None:
        """Send no more what this says of, by what the calls are about."""
        for number in [number for number, call in self._calls.items() if is_meant(call.about)]:
            del self._calls[number]

    def about(self) -> list[Any]:
        """What the open calls are about."""
        return [call.about for call in self._calls.values()]

    def _wake(self, number: int, call: Call, now: float) -> WakeAt:
        wait_s = min(WAIT_S_MAX, WAIT_S * 2 ** (call.tries - 1))
        return WakeAt(now + wait_s, ("call", number, call.tries))
