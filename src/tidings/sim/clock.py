"""The time of a world: steps in their order, run one after the other.

A step is something that happens at a moment: a message arrives, a node wakes, a fault
strikes. Steps wait in a heap ordered by time and, within one moment, by when they were
thought of. Time stands still between calls that say `run`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from tidings.overlay import Effect
from tidings.sim.members import Member
from tidings.sim.trace import CheckFailed, Trace

QUIET_WITHIN_S = 3600.0  # Virtual. A world that still talks an hour after the last word has a loop in it.

# Kinds of steps. Chatter and idle wakes do not keep a world from being quiet.
MESSAGE, CHATTER, WAKE, IDLE, CALL, BOUNCE, TAKEN = range(7)
KEEPS_BUSY = (True, False, True, False, True, True, True)


class Clock(ABC):
    """Steps that wait for their time; what they do is for the world to say."""

    def __init__(self, trace: Trace) -> None:
        self.now, self.trace = 0.0, trace
        self._heap: list[tuple[float, int, int, Any, Any, Any, Any]] = []
        self._order = self._pending = 0

    def at(self, when: float, do: Callable[[], object]) -> None:
        """Do something at a later moment."""
        self._push(when, CALL, None, do, None, None)

    def run_for(self, seconds: float) -> None:
        """Let so much time pass."""
        until = self.now + seconds
        self._run(until, stop_when_quiet=False)
        self.now = until

    def run_until_quiet(self, within_s: float = QUIET_WITHIN_S) -> None:
        """Let time pass until only heartbeats are left; raises CheckFailed if that takes too long."""
        self._run(self.now + within_s, stop_when_quiet=True)
        if self._pending:
            raise CheckFailed(f"not quiet after {within_s} s: {self._pending} steps are still to come", self.trace)

    def is_quiet(self) -> bool:
        """Whether nothing is on its way but what is said on schedule."""
        return self._pending == 0

    def _run(self, until: float, *, stop_when_quiet: bool) -> None:
        # The inner loop. Messages are handled right here: a call more for each would cost a tenth of the speed.
        heap, carry_out = self._heap, self._carry_out
        while heap and heap[0][0] <= until and not (stop_when_quiet and not self._pending):
            now, _, kind, member, what, who, extra = heappop(heap)
            self.now = now
            if KEEPS_BUSY[kind]:
                self._pending -= 1
            if kind <= CHATTER and member.up and not member.each_s:
                carry_out(member, member.router.receive(who, what, now))
            else:
                self._step(kind, member, what, who, extra)

    def _push(self, when: float, kind: int, member: Member | None, what: Any, who: Any, extra: Any) -> None:
        self._order += 1
        self._pending += KEEPS_BUSY[kind]
        heappush(self._heap, (when, self._order, kind, member, what, who, extra))

    @abstractmethod
    def _step(self, kind: int, member: Member, what: Any, who: Any, extra: Any) -> None:
        """Any step but a message that arrives at a node that is up and quick."""

    @abstractmethod
    def _carry_out(self, member: Member, effects: list[Effect]) -> None:
        """Do what a node asks for."""
