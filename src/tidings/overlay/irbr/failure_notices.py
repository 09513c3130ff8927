"""Failure notices in IRBR: nodes that failed, and nodes that were declared dead by mistake.

The clockwise neighbour of a failed node multicasts a failure notice, which ends all that
the node had subscribed to. In two phases it first retires those subscriptions, so that a
node that relied on one announces its own before it ends. Only a node itself can end what
it subscribed to in a former incarnation. A node that receives a notice about itself
refutes it: it announces all its subscriptions again, with newer clocks.

A notice is what one node says about another, so it may be false. Whoever hears it asks the
node itself, and does nothing while that answers: a notice says where to look, not what is so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tidings.overlay.irbr.custody_transfer import CustodyKey, CustodyTask, CustodyTransfer
from tidings.overlay.irbr.filter_table import (
    CLOCK_MAX,
    EntryState,
    FailureNotice,
    FilterEntry,
    FilterTable,
    OriginClock,
)
from tidings.overlay.messages import NodeId, Peer, SubscriptionId
from tidings.overlay.prefix.network import PrefixNetwork
from tidings.overlay.router import Effect, WakeAt

REFUTE_S = 15.0  # How long after a notice about itself a node announces its subscriptions once more; at most so often.
SUSPECTS_MAX = 1024  # Nodes that are being asked whether they live; a notice about one more is not acted on.
LOOKS_MAX = 32  # At one suspect, each after twice the time of an answer; then it is left to the next who notices.


@dataclass(slots=True)
class _Suspect:
    notice: FailureNotice
    looks: int = 0
    waiting: list[CustodyKey] = field(default_factory=list)  # Tasks that must not complete before it is decided.


class OwnAnnouncements(Protocol):
    """What failure handling needs of the node's own subscriptions."""

    def reconsider(self, lost: Sequence[FilterEntry], now: float) -> list[Effect]:
        """Announce what only these entries covered."""

    def announce_again(self, now: float, *, upto: int | None = None) -> list[Effect]:
        """Announce everything again, or what was announced up to a certain clock."""

    def delay_until_announced(self, task: CustodyTask) -> None:
        """Do not complete the task before what is being announced has been announced."""


class FailureNotices:
    """The failure notices that one node sends and receives, and those about itself."""

    def __init__(
        self,
        ring: PrefixNetwork,
        clock: OriginClock,
        table: FilterTable,
        custody: CustodyTransfer,
        announcements: OwnAnnouncements,
        *,
        two_phase: bool,
    ) -> None:
        self.me, self.two_phase = ring.me, two_phase
        self._ring, self._clock, self._table = ring, clock, table
        self._custody, self._announcements = custody, announcements
        self._ends_former_self = False  # Whether it is ending the subscriptions of its former incarnation.
        self._refute_at = 0.0
        self._refuted_clock = 0  # What was announced later has been announced since the first of these notices.
        self._refute_once_more = False
        self._suspects: dict[NodeId, _Suspect] = {}

    def declare_failed(self, peer: Peer, now: float) -> list[Effect]:
        """Multicast that a node has failed, unless everybody knows and nothing of it is left."""
        known = self._table.notice(peer.id)
        stale = [e for e in self._table.under(self._ring.cell(peer.id)) if e.origin.id == peer.id] if known else []
        if known and known.incarnation >= peer.incarnation and all(e.state is EntryState.GONE for e in stale):
            return []
        incarnation, clock = self._table.last_heard(peer.id, peer.incarnation)
        heard = clock if incarnation == peer.incarnation else 0
        return self._multicast(self._first(peer.id, peer.incarnation, heard), now)

    def on_notice(self, notice: FailureNotice, now: float, task: CustodyTask | None = None) -> list[Effect]:
        """A node is said to have failed: act on it if this node knows better than by hearsay, else look.

        A task waits until that is decided, so that its origin does not end what others still have to replace.
        """
        if notice.id == self.me.id:
            return self.refute(notice, now)
        if not self._ring.is_id(notice.id) or self._is_settled(notice):
            return []
        if self._is_proven(notice):
            return self._apply(notice, now)
        suspect = self._suspects.get(notice.id)
        effects: list[Effect] = []
        if suspect is None:
            if len(self._suspects) >= SUSPECTS_MAX:
                return []
            self._suspects[notice.id] = suspect = _Suspect(notice)
            effects = [*self._look(notice.id, now), self._look_again(notice.id, now)]
        elif (notice.incarnation, notice.final) > (suspect.notice.incarnation, suspect.notice.final):
            suspect.notice = notice
        if task is not None and notice.id in self._suspects:
            task.waits[_decision_on(notice.id)] = None
            suspect.waiting.append(task.key)
        return effects

    def on_node_failed(self, id: NodeId, now: float) -> list[Effect]:
        """This node has found out for itself that another has failed."""
        return self._decide(id, now) if id in self._suspects else []

    def look(self, id: NodeId, now: float) -> list[Effect]:
        """Time to see whether a suspect has answered."""
        suspect = self._suspects.get(id)
        if suspect is None:
            return []
        suspect.looks += 1
        if self._ring.is_being_asked(id) and suspect.looks < LOOKS_MAX:
            return [self._look_again(id, now)]
        return self._decide(id, now)

    def _is_settled(self, notice: FailureNotice) -> bool:
        """Whether there is nothing that this notice could end."""
        entries = self._table.under(self._ring.cell(notice.id))
        return not any(entry.origin.id == notice.id and entry.state is not EntryState.GONE for entry in entries)

    def _is_proven(self, notice: FailureNotice) -> bool:
        """Whether this node has itself found the other dead, or in a later life."""
        known = self._ring.knows(notice.id)
        later = max((p.incarnation for p in self._descriptions(notice.id)), default=0) > notice.incarnation
        return self._ring.is_dead(notice.id) or later or (known is not None and known.incarnation > notice.incarnation)

    def _descriptions(self, id: NodeId) -> list[Peer]:
        return [e.origin for e in self._table.under(self._ring.cell(id)) if e.origin.id == id]

    def _look(self, id: NodeId, now: float) -> list[Effect]:
        if self._ring.knows(id):
            return self._ring.probe(id, now)
        newest = max(self._descriptions(id), key=lambda peer: peer.incarnation, default=Peer(id))
        return self._ring.check(newest, now)

    def _look_again(self, id: NodeId, now: float) -> WakeAt:
        return WakeAt(now + 2 * self._ring.answer_s, ("suspect", id))

    def _decide(self, id: NodeId, now: float) -> list[Effect]:
        suspect = self._suspects.pop(id)
        effects = self._apply(suspect.notice, now) if self._is_proven(suspect.notice) else []
        for key in suspect.waiting:
            self._custody.delay(key, self._announcements.delay_until_announced)
            effects += self._custody.stop_waiting(key, _decision_on(id), now)
        return effects

    def _apply(self, notice: FailureNotice, now: float) -> list[Effect]:
        return self._announcements.reconsider(self._table.apply_notice(notice, now), now)

    def on_completed(self, notice: FailureNotice, now: float) -> list[Effect]:
        """Everybody has a notice of this node's: the final one follows, or all is done."""
        if not notice.final:
            return self._multicast(FailureNotice(notice.id, notice.incarnation, notice.clock, True), now)
        if notice.id == self.me.id:
            self._ends_former_self = False
        return []

    def on_former_entry(self, entry: FilterEntry, now: float, *, is_ready: bool) -> list[Effect]:
        """Somebody still has a subscription of this node's former incarnation, which only the node itself can end."""
        if entry.id.incarnation >= self.me.incarnation or self._ends_former_self:
            return []
        self._ends_former_self = True
        return self._end_former_self(now) if is_ready else []

    def on_ready(self, now: float) -> list[Effect]:
        """This node can multicast now."""
        return self._end_former_self(now) if self._ends_former_self else []

    def refute(self, notice: FailureNotice, now: float) -> list[Effect]:
        """This node was declared dead: all it announced before is void, so it announces it again.

        And once more when contacts are stable: right after a split has healed, the nodes
        that can be reached are not yet all.
        """
        if notice.id != self.me.id or notice.incarnation < self.me.incarnation:
            return []
        effects: list[Effect] = []
        if now >= self._refute_at:
            self._refuted_clock, self._refute_once_more = self._clock.time, False
            effects.append(self._refute_later(now))
        else:
            self._refute_once_more = True
        return [*effects, *self._announcements.announce_again(now, upto=min(notice.clock, self._refuted_clock))]

    def refute_again(self, now: float) -> list[Effect]:
        """Once contacts are stable."""
        if now < self._refute_at:
            return []
        again = self._announcements.announce_again(now)
        if self._refute_once_more:
            self._refute_once_more, self._refuted_clock = False, self._clock.time
            return [*again, self._refute_later(now)]
        return again

    def _refute_later(self, now: float) -> WakeAt:
        self._refute_at = now + REFUTE_S
        return WakeAt(self._refute_at, ("refute",))

    def _end_former_self(self, now: float) -> list[Effect]:
        return self._multicast(self._first(self.me.id, self.me.incarnation - 1, CLOCK_MAX), now)

    def _first(self, id: NodeId, incarnation: int, clock: int) -> FailureNotice:
        return FailureNotice(id, incarnation, clock, final=not self.two_phase)

    def _multicast(self, notice: FailureNotice, now: float) -> list[Effect]:
        lost = self._table.apply_notice(notice, now) if notice.id != self.me.id else []
        effects = self._announcements.reconsider(lost, now)
        task = self._custody.new_update(notice, ("mourned", notice))
        self._announcements.delay_until_announced(task)
        return [*effects, *self._custody.multicast(task, self._custody.rows_from(0), now)]


def _decision_on(id: NodeId) -> SubscriptionId:
    """What a task waits for while a node is being asked whether it lives; no subscription has this id."""
    return SubscriptionId(id, -1, -1)
