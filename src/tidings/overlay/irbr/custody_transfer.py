"""Custody transfer: multicast to ranges of the identifier space, with responsibility handed from node to node.

A task is something to multicast (an event, an update) and the cells that still have to be
reached. Each cell is a *branch*: one node of it gets the task and accepts custody
(`CustodyAccepted`) at once if it has more to do, and reports `CustodyComplete` when every
node in its range has it. A node that does not answer is suspected, and another of the cell
is tried. When none is left the ring searches the range, and only when both neighbours of
the range say that it is empty is the branch given up.

So completion at the origin means that every live node has it, whoever failed on the way.

A branch is not a plain retransmission (`tidings.overlay.retransmit`): the addressee changes
after two tries, the first wait follows the round trips measured lately, and a node that
accepts custody resets the tries and is asked again on a schedule of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from tidings.overlay.dedup import SEEN_MAX, SeenIds
from tidings.overlay.irbr.messages import UPDATE, CustodyAccepted, CustodyComplete, TaskId, content_mark
from tidings.overlay.messages import Message, NodeId, Peer, SubscriptionId
from tidings.overlay.prefix.network import PrefixNetwork
from tidings.overlay.prefix.search import SearchResult
from tidings.overlay.router import Count, Effect, Send, WakeAt

ACCEPTED_S = 5.0  # How long a node that accepted custody may take before it is asked again.
ACCEPTED_MAX = 24  # How often it may accept before another node is asked: two minutes.
TRIES_MAX = 2  # For one node of a range; then the next is tried.
ROUNDS_MAX = 8  # Searches of a range that may not be empty; with the pauses between them some four minutes.
TASKS_MAX = 65_536  # One too many is sent once, without custody.
WAIT_S_MIN = 0.02  # Below this the clock of a busy node is too coarse.


CustodyKey: TypeAlias = tuple[TaskId, int]


@dataclass(slots=True)
class RangeBranch:
    """One cell for which another node has to take custody."""

    to: NodeId = ""  # Empty while the ring searches for a node.
    tried: dict[NodeId, None] = field(default_factory=dict)
    tries: int = 0
    accepted: int = 0
    rounds: int = 0
    attempt: int = 0  # Counts everything sent and waited for, so that old wakes are recognised.
    sent_at: float = 0.0


@dataclass(slots=True)
class CustodyTask:
    """Something to multicast to all nodes that share `range_len` digits with this one, and whom to answer then."""

    id: TaskId
    range_len: int
    cargo: Any
    parents: list[NodeId] = field(default_factory=list)
    branches: dict[str, RangeBranch] = field(default_factory=dict)
    waits: dict[SubscriptionId, None] = field(default_factory=dict)  # What this node itself has to do first.
    then: tuple[Any, ...] = ()  # What the origin does next.
    is_kept: bool = True  # Whether to wait for answers; if not, each branch is sent once.

    @property
    def key(self) -> CustodyKey:
        return self.id, self.range_len


class CustodyClient(Protocol):
    """What custody transfer needs of the protocol that uses it."""

    def candidates(self, task: CustodyTask, cell: str) -> Iterator[NodeId]:
        """Nodes of the cell that may be alive, best first."""

    def packed(self, task: CustodyTask, cell: str) -> Message:
        """The message for a node of the cell."""

    def on_task_done(self, task: CustodyTask, now: float) -> list[Effect]:
        """The task is complete, and its parents have been answered."""


class CustodyTransfer:
    """The tasks in one node's custody."""

    def __init__(self, ring: PrefixNetwork, client: CustodyClient) -> None:
        self._ring, self._client = ring, client
        self._tasks: dict[CustodyKey, CustodyTask] = {}
        self._done = SeenIds[CustodyKey](SEEN_MAX)
        self._searched: dict[str, dict[CustodyKey, None]] = {}
        self._rtt_s = ring.answer_s / 3
        self._made = 0

    def __len__(self) -> int:
        return len(self._tasks)

    def new_update(self, cargo: Any, then: tuple[Any, ...]) -> CustodyTask:
        """A new task of this node's own; `then` comes back when it is complete."""
        self._made += 1
        me = self._ring.me
        id = TaskId(UPDATE, me.id, me.incarnation, self._made, content_mark(cargo))
        return CustodyTask(id, 0, cargo, then=then)

    def multicast(self, task: CustodyTask, rows: range, now: float) -> list[Effect]:
        """Take custody of a task for every node in these rows."""
        for row in rows:
            for cell in self._ring.cells(row):
                if not self._ring.is_empty(cell, now):
                    task.branches[cell] = RangeBranch()
        return self.take(task, now)

    def rows_from(self, row: int) -> range:
        """This row and all deeper ones that have nodes in them."""
        return range(max(row, 0), self._ring.depth())

    def take(self, task: CustodyTask, now: float) -> list[Effect]:
        """Take custody of a task: send its branches, and answer whoever handed it over."""
        effects: list[Effect] = []
        if len(self._tasks) >= TASKS_MAX:
            task.is_kept = False
            effects.append(Count("sent without custody"))
        self._tasks[task.key] = task
        for cell in list(task.branches):
            effects += self._send(task, cell, now)
        effects += self.complete_if_done(task.key, now)
        if task.is_kept and task.key in self._tasks:
            effects += [Send(parent, CustodyAccepted(*task.key)) for parent in task.parents]
        return effects

    def answer_if_known(self, key: CustodyKey, sender: NodeId) -> list[Effect] | None:
        """The answer if this node has, or had, the task already; None if it is new."""
        if key in self._done:
            return [Send(sender, CustodyComplete(*key))]
        task = self._tasks.get(key)
        if task is None:
            return None
        if sender not in task.parents:
            task.parents.append(sender)
        return [Send(sender, CustodyAccepted(*key))]

    def is_first(self, key: CustodyKey) -> bool:
        """Whether a task without custody comes for the first time."""
        return self._done.add(key)

    def complete_if_done(self, key: CustodyKey, now: float) -> list[Effect]:
        """If nothing is left to wait for, report completion."""
        task = self._tasks.get(key)
        if task is None or task.branches or task.waits:
            return []
        del self._tasks[key]
        answers: list[Effect] = []
        if task.parents:
            self._done.add(key)
            answers += [Send(parent, CustodyComplete(*key)) for parent in task.parents]
        return [*answers, *self._client.on_task_done(task, now)]

    def stop_waiting(self, key: CustodyKey, id: SubscriptionId, now: float) -> list[Effect]:
        """This node has done what the task waited for."""
        if key in self._tasks:
            self._tasks[key].waits.pop(id, None)
        return self.complete_if_done(key, now)

    def delay(self, key: CustodyKey, by: Callable[[CustodyTask], None]) -> None:
        """Give a task more to wait for, if it is still in custody."""
        if key in self._tasks:
            by(self._tasks[key])

    def cancel(self, key: CustodyKey | None) -> None:
        """Something newer replaces this task."""
        if key is not None:
            self._tasks.pop(key, None)

    # ── Answers ──────────────────────────────────────────────────────────────

    def on_accepted(self, answer: CustodyAccepted, sender: NodeId, now: float) -> list[Effect]:
        """A node has accepted a branch; it is asked again if it takes long, and not for ever."""
        effects: list[Effect] = []
        for task, cell in self._branches_of(answer, sender):
            branch = task.branches[cell]
            self._measure(branch, now)
            branch.accepted, branch.attempt = branch.accepted + 1, branch.attempt + 1
            branch.tries = 0 if branch.accepted < ACCEPTED_MAX else TRIES_MAX
            effects.append(self._wake(task, cell, now + ACCEPTED_S))
        return effects

    def on_complete(self, answer: CustodyComplete, sender: NodeId, now: float) -> list[Effect]:
        """Every node of a branch has it."""
        effects: list[Effect] = []
        for task, cell in self._branches_of(answer, sender):
            self._measure(task.branches.pop(cell), now)
            effects += self.complete_if_done(task.key, now)
        return effects

    def on_overdue(self, key: CustodyKey, cell: str, attempt: int, now: float) -> list[Effect]:
        """No answer in time: try the same node once more, then another."""
        task = self._tasks.get(key)
        branch = task.branches.get(cell) if task else None
        if task is None or branch is None or branch.attempt != attempt:
            return []
        if not branch.to:
            return self._send(task, cell, now)
        if branch.tries < TRIES_MAX:
            return self._send_to(task, cell, branch.to, branch.tries + 1, now)
        branch.tried[branch.to], branch.accepted = None, 0
        return [*self._ring.doubt(branch.to, now), *self._send(task, cell, now)]

    def redirect(self, id: NodeId, now: float) -> list[Effect]:
        """A node is gone: hand its branches to other nodes of their ranges."""
        effects: list[Effect] = []
        for task in list(self._tasks.values()):
            for cell, branch in list(task.branches.items()):
                if branch.to == id and cell in task.branches:
                    branch.tried[id] = None
                    effects += self._send(task, cell, now)
        return effects

    def send_elsewhere(self, task: CustodyTask, cell: str, id: NodeId, now: float) -> list[Effect]:
        """A branch without custody has bounced off this node: send it to another."""
        task = self._tasks.setdefault(task.key, task)
        task.branches[cell] = RangeBranch(tried={id: None})
        return [*self._send(task, cell, now), *self.complete_if_done(task.key, now)]

    def on_search_ended(self, prefix: str, what: Peer | SearchResult, now: float) -> list[Effect]:
        """The ring has searched a range."""
        effects: list[Effect] = []
        for key in self._searched.pop(prefix, {}):
            task = self._tasks.get(key)
            if task is not None and prefix in task.branches and not task.branches[prefix].to:
                effects += [*self._use_result(task, prefix, what, now), *self.complete_if_done(key, now)]
        return effects

    # ── Private steps ────────────────────────────────────────────────────────

    def _send(self, task: CustodyTask, cell: str, now: float) -> list[Effect]:
        """Hand a branch to the next node of its cell, or search for one."""
        to = next(self._client.candidates(task, cell), None)
        if to is not None:
            return self._send_to(task, cell, to, 1, now)
        branch = task.branches[cell]
        branch.to, branch.attempt = "", branch.attempt + 1
        self._searched.setdefault(cell, {})[task.key] = None
        return self._ring.seek(cell, now)

    def _send_to(self, task: CustodyTask, cell: str, to: NodeId, tries: int, now: float) -> list[Effect]:
        message = self._client.packed(task, cell)
        if not task.is_kept:
            del task.branches[cell]
            return [Send(to, message)]
        branch = task.branches[cell]
        branch.to, branch.tries, branch.attempt = to, tries, branch.attempt + 1
        branch.sent_at = now
        return [Send(to, message), self._wake(task, cell, now + self._wait_s() * tries)]

    def _wake(self, task: CustodyTask, cell: str, when: float) -> WakeAt:
        return WakeAt(when, ("leg", task.id, task.range_len, cell, task.branches[cell].attempt))

    def _use_result(self, task: CustodyTask, cell: str, what: Peer | SearchResult, now: float) -> list[Effect]:
        branch = task.branches[cell]
        branch.rounds += 1
        if what is SearchResult.EMPTY:
            del task.branches[cell]
            return []
        if branch.rounds > ROUNDS_MAX:
            del task.branches[cell]
            return [Count("ranges given up")]
        if isinstance(what, Peer):
            branch.tried.clear()
            return self._send_to(task, cell, what.id, 1, now)
        branch.attempt += 1
        return [self._wake(task, cell, now + self._ring.answer_s * 2**branch.rounds)]

    def _branches_of(self, answer: CustodyAccepted | CustodyComplete, sender: NodeId) -> list[tuple[CustodyTask, str]]:
        """The branches that this answers, of nodes that were asked. A node may have a task for ranges of several lengths."""
        cell = sender[: answer.range_len]
        mine = [self._tasks.get((answer.task, shorter)) for shorter in range(len(cell))]
        branches = ((task, task.branches[cell]) for task in mine if task is not None and cell in task.branches)
        return [(task, cell) for task, branch in branches if sender == branch.to or sender in branch.tried]

    def _measure(self, branch: RangeBranch, now: float) -> None:
        if branch.tries == 1:
            self._rtt_s = max(0.9 * self._rtt_s, now - branch.sent_at)

    def _wait_s(self) -> float:
        """Three of the slowest round trips lately: an answer that takes longer is not worth waiting for."""
        return min(self._ring.answer_s, max(WAIT_S_MIN, 3 * self._rtt_s))
