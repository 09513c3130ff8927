"""Custody: what a node has undertaken to bring to ranges of the identifier space, and has not finished.

A task is something to spread (an event, an announcement) and the cells it still has to
reach. Each cell is a *leg*: one node of it is handed the task and answers `Got` at once if
it has more to do, and `Done` when everybody in its range has it. One that does not answer
is doubted and another of the cell is tried; when there is none left the ring searches,
and only when both neighbours of the range say that it is empty is the leg given up.

So `Done` at the origin means that everybody alive has it, whoever died on the way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias

from tidings.overlay.dedup import SEEN_MAX, SeenIds
from tidings.overlay.messages import Message, NodeId, Peer, SubscriptionId
from tidings.overlay.pastry.lookup import Found
from tidings.overlay.pastry.ring import Ring
from tidings.overlay.router import Count, Effect, Send, WakeAt

HELD_S = 5.0  # How long a node that said `Got` may take before it is asked again.
HOLDS_MAX = 24  # How often it may say so before another is asked: two minutes.
TRIES_MAX = 2  # For one node of a range; then the next is tried.
ROUNDS_MAX = 8  # Searches for a range that may have somebody in it; with the pauses between them some four minutes.
TASKS_MAX = 65_536  # One too many is sent once and not kept.
PATIENCE_S_MIN = 0.02  # Below this the clock of a busy node is too coarse.

EVENT, NEWS = 0, 1  # Kinds of tasks.


class TaskId(NamedTuple):
    """Names something that is being spread: an event by its id, news by a number of its origin's."""

    kind: int
    origin: NodeId
    incarnation: int
    seq: int


class Got(Message, frozen=True):
    """I have it and see to it."""

    task: TaskId
    range_len: int


class Done(Message, frozen=True):
    """Everybody in the range has it."""

    task: TaskId
    range_len: int


TaskKey: TypeAlias = tuple[TaskId, int]


@dataclass(slots=True)
class Leg:
    """One cell that somebody else has to see to."""

    to: NodeId = ""  # Empty while somebody is sought.
    tried: dict[NodeId, None] = field(default_factory=dict)
    tries: int = 0
    holds: int = 0
    rounds: int = 0
    attempt: int = 0  # Counts everything sent and waited for, so that old wakes are recognised.
    sent_at: float = 0.0


@dataclass(slots=True)
class Task:
    """Something to spread to all nodes that share `range_len` digits with this one, and whom to answer then."""

    id: TaskId
    range_len: int
    cargo: Any
    parents: list[NodeId] = field(default_factory=list)
    legs: dict[str, Leg] = field(default_factory=dict)
    waits: dict[SubscriptionId, None] = field(default_factory=dict)  # What this node itself has to do first.
    then: tuple[Any, ...] = ()  # What the origin does next.
    is_kept: bool = True  # Whether answers are awaited; if not, each leg is sent once.

    @property
    def key(self) -> TaskKey:
        return self.id, self.range_len


class Keeper(Protocol):
    """Whose custody it is: it knows who can be sent what."""

    def candidates(self, task: Task, cell: str) -> Iterator[NodeId]:
        """Nodes of the cell that may be alive, best first."""

    def packed(self, task: Task, cell: str) -> Message:
        """What to send to a node of the cell."""

    def finished(self, task: Task, now: float) -> list[Effect]:
        """Nobody has to be waited for any more; parents have been answered."""


class Custody:
    """The tasks of one node."""

    def __init__(self, ring: Ring, keeper: Keeper) -> None:
        self._ring, self._keeper = ring, keeper
        self._tasks: dict[TaskKey, Task] = {}
        self._done = SeenIds[TaskKey](SEEN_MAX)
        self._sought: dict[str, dict[TaskKey, None]] = {}
        self._rtt_s = ring.answer_s / 3
        self._made = 0

    def __len__(self) -> int:
        return len(self._tasks)

    def news(self, cargo: Any, then: tuple[Any, ...]) -> Task:
        """A new task of this node's own; `then` comes back when it is done."""
        self._made += 1
        me = self._ring.me
        return Task(TaskId(NEWS, me.id, me.incarnation, self._made), 0, cargo, then=then)

    def spread(self, task: Task, rows: range, now: float) -> list[Effect]:
        """Undertake to bring a task to everybody in these rows."""
        for row in rows:
            for cell in self._ring.cells(row):
                if not self._ring.is_empty(cell, now):
                    task.legs[cell] = Leg()
        return self.take(task, now)

    def rows_from(self, row: int) -> range:
        """This row and all deeper ones that anybody is in."""
        return range(max(row, 0), self._ring.depth())

    def take(self, task: Task, now: float) -> list[Effect]:
        """Undertake a task: send out its legs, and answer whoever handed it over."""
        effects: list[Effect] = []
        if len(self._tasks) >= TASKS_MAX:
            task.is_kept = False
            effects.append(Count("sent without custody"))
        self._tasks[task.key] = task
        for cell in list(task.legs):
            effects += self._send(task, cell, now)
        effects += self.check(task.key, now)
        if task.is_kept and task.key in self._tasks:
            effects += [Send(parent, Got(*task.key)) for parent in task.parents]
        return effects

    def known(self, key: TaskKey, sender: NodeId) -> list[Effect] | None:
        """What to answer if this node has, or had, the task already; None if it is new."""
        if key in self._done:
            return [Send(sender, Done(*key))]
        task = self._tasks.get(key)
        if task is None:
            return None
        if sender not in task.parents:
            task.parents.append(sender)
        return [Send(sender, Got(*key))]

    def is_first(self, key: TaskKey) -> bool:
        """Whether a task that is not kept comes for the first time."""
        return self._done.add(key)

    def check(self, key: TaskKey, now: float) -> list[Effect]:
        """If nothing is left to wait for, say so."""
        task = self._tasks.get(key)
        if task is None or task.legs or task.waits:
            return []
        del self._tasks[key]
        answers: list[Effect] = []
        if task.parents:
            self._done.add(key)
            answers += [Send(parent, Done(*key)) for parent in task.parents]
        return [*answers, *self._keeper.finished(task, now)]

    def wait_no_more(self, key: TaskKey, id: SubscriptionId, now: float) -> list[Effect]:
        """This node has done what the task waited for."""
        if key in self._tasks:
            self._tasks[key].waits.pop(id, None)
        return self.check(key, now)

    def forget(self, key: TaskKey | None) -> None:
        """Something newer has taken the place of this task."""
        if key is not None:
            self._tasks.pop(key, None)

    # ── Answers ──────────────────────────────────────────────────────────────

    def got(self, answer: Got, sender: NodeId, now: float) -> list[Effect]:
        """Somebody sees to a leg; it is asked again if that takes long, and not for ever."""
        effects: list[Effect] = []
        for task, cell in self._legs_of(answer, sender):
            leg = task.legs[cell]
            self._measure(leg, now)
            leg.holds, leg.attempt = leg.holds + 1, leg.attempt + 1
            leg.tries = 0 if leg.holds < HOLDS_MAX else TRIES_MAX
            effects.append(self._wake(task, cell, now + HELD_S))
        return effects

    def done(self, answer: Done, sender: NodeId, now: float) -> list[Effect]:
        """A leg has arrived everywhere."""
        effects: list[Effect] = []
        for task, cell in self._legs_of(answer, sender):
            self._measure(task.legs.pop(cell), now)
            effects += self.check(task.key, now)
        return effects

    def overdue(self, key: TaskKey, cell: str, attempt: int, now: float) -> list[Effect]:
        """No answer in time: once more to the same node, then to another."""
        task = self._tasks.get(key)
        leg = task.legs.get(cell) if task else None
        if task is None or leg is None or leg.attempt != attempt:
            return []
        if not leg.to:
            return self._send(task, cell, now)
        if leg.tries < TRIES_MAX:
            return self._send_to(task, cell, leg.to, leg.tries + 1, now)
        leg.tried[leg.to], leg.holds = None, 0
        return [*self._ring.doubt(leg.to, now), *self._send(task, cell, now)]

    def redirect(self, id: NodeId, now: float) -> list[Effect]:
        """A node is gone: what it had to see to, others of its range have to."""
        effects: list[Effect] = []
        for task in list(self._tasks.values()):
            for cell, leg in list(task.legs.items()):
                if leg.to == id and cell in task.legs:
                    leg.tried[id] = None
                    effects += self._send(task, cell, now)
        return effects

    def send_elsewhere(self, task: Task, cell: str, id: NodeId, now: float) -> list[Effect]:
        """A leg that was sent once and not kept has bounced off this node: have another take it."""
        task = self._tasks.setdefault(task.key, task)
        task.legs[cell] = Leg(tried={id: None})
        return [*self._send(task, cell, now), *self.check(task.key, now)]

    def found(self, prefix: str, what: Peer | Found, now: float) -> list[Effect]:
        """The ring has searched a range."""
        effects: list[Effect] = []
        for key in self._sought.pop(prefix, {}):
            task = self._tasks.get(key)
            if task is not None and prefix in task.legs and not task.legs[prefix].to:
                effects += [*self._found(task, prefix, what, now), *self.check(key, now)]
        return effects

    # ── Private steps ────────────────────────────────────────────────────────

    def _send(self, task: Task, cell: str, now: float) -> list[Effect]:
        """Hand a leg to the next node of its cell, or search for one."""
        to = next(self._keeper.candidates(task, cell), None)
        if to is not None:
            return self._send_to(task, cell, to, 1, now)
        leg = task.legs[cell]
        leg.to, leg.attempt = "", leg.attempt + 1
        self._sought.setdefault(cell, {})[task.key] = None
        return self._ring.seek(cell, now)

    def _send_to(self, task: Task, cell: str, to: NodeId, tries: int, now: float) -> list[Effect]:
        message = self._keeper.packed(task, cell)
        if not task.is_kept:
            del task.legs[cell]
            return [Send(to, message)]
        leg = task.legs[cell]
        leg.to, leg.tries, leg.attempt = to, tries, leg.attempt + 1
        leg.sent_at = now
        return [Send(to, message), self._wake(task, cell, now + self._patience_s() * tries)]

    def _wake(self, task: Task, cell: str, when: float) -> WakeAt:
        return WakeAt(when, ("leg", task.id, task.range_len, cell, task.legs[cell].attempt))

    def _found(self, task: Task, cell: str, what: Peer | Found, now: float) -> list[Effect]:
        leg = task.legs[cell]
        leg.rounds += 1
        if what is Found.EMPTY:
            del task.legs[cell]
            return []
        if leg.rounds > ROUNDS_MAX:
            del task.legs[cell]
            return [Count("ranges given up")]
        if isinstance(what, Peer):
            leg.tried.clear()
            return self._send_to(task, cell, what.id, 1, now)
        leg.attempt += 1
        return [self._wake(task, cell, now + self._ring.answer_s * 2**leg.rounds)]

    def _legs_of(self, answer: Got | Done, sender: NodeId) -> list[tuple[Task, str]]:
        """Whose answer this is. A node may have a task twice, for ranges of different lengths."""
        cell = sender[: answer.range_len]
        mine = [self._tasks.get((answer.task, shorter)) for shorter in range(len(cell))]
        return [(task, cell) for task in mine if task is not None and cell in task.legs]

    def _measure(self, leg: Leg, now: float) -> None:
        if leg.tries == 1:
            self._rtt_s = max(0.9 * self._rtt_s, now - leg.sent_at)

    def _patience_s(self) -> float:
        """Three round trips of the slowest lately: what takes longer is not worth waiting for."""
        return min(self._ring.answer_s, max(PATIENCE_S_MIN, 3 * self._rtt_s))
