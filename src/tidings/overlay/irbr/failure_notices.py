"""Failure notices in IRBR: nodes that failed, and nodes that were declared dead by mistake.

The clockwise neighbour of a failed node multicasts a failure notice, which ends all that
the node had subscribed to. In two phases it first retires those subscriptions, so that a
node that relied on one announces its own before it ends. Only a node itself can end what
it subscribed to in a former incarnation. A node that receives a notice about itself
refutes it: it announces all its subscriptions again, with newer clocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tidings.overlay.irbr.custody_transfer import CustodyTask, CustodyTransfer
from tidings.overlay.irbr.filter_table import EntryState, FailureNotice, FilterEntry, FilterTable, LamportClock
from tidings.overlay.messages import NodeId, Peer
from tidings.overlay.pastry.routing_table import PastryState
from tidings.overlay.router import Effect, WakeAt

REFUTE_S = 15.0  # How long after the last notice about itself a node announces its subscriptions once more.


class OwnAnnouncements(Protocol):
    """What failure handling needs of the node's own subscriptions."""

    def reconsider(self, lost: Sequence[FilterEntry], now: float) -> list[Effect]:
        """Announce what only these entries covered."""

    def announce_again(self, now: float, *, before: int | None = None) -> list[Effect]:
        """Announce everything again, or what was announced before a certain clock."""

    def delay_until_announced(self, task: CustodyTask) -> None:
        """Do not complete the task before what is being announced has been announced."""


class FailureNotices:
    """The failure notices that one node sends and receives, and those about itself."""

    def __init__(
        self,
        routing: PastryState,
        clock: LamportClock,
        table: FilterTable,
        custody: CustodyTransfer,
        announcements: OwnAnnouncements,
        *,
        two_phase: bool,
    ) -> None:
        self.me, self.two_phase = routing.me, two_phase
        self._routing, self._clock, self._table = routing, clock, table
        self._custody, self._announcements = custody, announcements
        self._ends_former_self = False  # Whether it is ending the subscriptions of its former incarnation.
        self._refute_at = 0.0

    def declare_failed(self, peer: Peer, now: float) -> list[Effect]:
        """Multicast that a node has failed, unless everybody knows and nothing of it is left."""
        known = self._table.notice(peer.id)
        stale = [e for e in self._table.under(self._routing.cell(peer.id)) if e.origin.id == peer.id] if known else []
        if known and known.incarnation >= peer.incarnation and all(e.state is EntryState.GONE for e in stale):
            return []
        return self._multicast(self._first(peer.id, peer.incarnation), now)

    def on_notice(self, notice: FailureNotice, now: float) -> list[Effect]:
        """A node is said to have failed."""
        if notice.id == self.me.id:
            return self.refute(notice, now)
        self._clock.observe(notice.clock)
        if not self._routing.is_id(notice.id):
            return []
        return self._announcements.reconsider(self._table.apply_notice(notice, now), now)

    def on_completed(self, notice: FailureNotice, now: float) -> list[Effect]:
        """Everybody has a notice of this node's: the final one follows, or all is done."""
        if not notice.final:
            return self._multicast(FailureNotice(notice.id, notice.incarnation, self._clock.tick(), True), now)
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
        self._clock.observe(notice.clock)
        if notice.id != self.me.id or notice.incarnation < self.me.incarnation:
            return []
        self._refute_at = now + REFUTE_S
        again = WakeAt(self._refute_at, ("refute",))
        return [again, *self._announcements.announce_again(now, before=notice.clock)]

    def refute_again(self, now: float) -> list[Effect]:
        """Once contacts are stable."""
        return self._announcements.announce_again(now) if now >= self._refute_at else []

    def _end_former_self(self, now: float) -> list[Effect]:
        return self._multicast(self._first(self.me.id, self.me.incarnation - 1), now)

    def _first(self, id: NodeId, incarnation: int) -> FailureNotice:
        return FailureNotice(id, incarnation, self._clock.tick(), final=not self.two_phase)

    def _multicast(self, notice: FailureNotice, now: float) -> list[Effect]:
        lost = self._table.apply_notice(notice, now) if notice.id != self.me.id else []
        effects = self._announcements.reconsider(lost, now)
        task = self._custody.new_update(notice, ("mourned", notice))
        self._announcements.delay_until_announced(task)
        return [*effects, *self._custody.multicast(task, self._custody.rows_from(0), now)]
