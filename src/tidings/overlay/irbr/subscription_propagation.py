"""Subscription propagation in IRBR: how a node's own interests become known to every node that must know them.

- *Covering.* An interest that another one in the same range covers is not announced
  outside that range: from its `scope_row` on, outer rows know the cover and send here for it.
- *Outermost row first.* Each row acknowledges an interest before the next gets it. So a
  node that sees an interest, and relies on it, can be sure that the rows outside know it.
- *Two phases to withdraw.* The interest first *retires*: nobody may rely on it any more, and
  a node that did announces its own before it acknowledges. Only then is it *gone*.

A subscription is stable, and stays so whatever other nodes do, from the moment its last
row has acknowledged it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tidings.overlay.interest import Interest
from tidings.overlay.irbr.custody_transfer import CustodyKey, CustodyTask, CustodyTransfer
from tidings.overlay.irbr.filter_table import EntryState, FilterEntry, FilterTable, OriginClock
from tidings.overlay.messages import Packet, Peer, SubscriptionId
from tidings.overlay.prefix.routing_state import PrefixState, shared
from tidings.overlay.router import Completed, Effect, Failed

OWN_MAX = 65_536  # Subscriptions of one node.


@dataclass(slots=True)
class OwnSubscription:
    """A subscription of this node."""

    interest: Interest
    clock: int = 0
    scope_row: int = -1  # The first row that has acknowledged it, with all deeper ones; -1: not announced yet.
    target_row: int = -1  # The first row it is being announced to.
    stable: bool = False
    state: EntryState = EntryState.LIVE
    task: CustodyKey | None = None  # The announcement to one row, while it is under way.
    waiters: list[CustodyKey] = field(default_factory=list)  # Tasks that must not complete before it is announced.
    replacement: Interest | None = None
    asked: bool = True  # Whether `Completed` is still to be reported.

    @property
    def is_announced(self) -> bool:
        """Whether it has been or is being announced as it is."""
        return self.state is EntryState.LIVE and self.target_row >= 0


class SubscriptionPropagator:
    """The subscriptions of one node."""

    def __init__(
        self,
        routing: PrefixState,
        clock: OriginClock,
        table: FilterTable,
        custody: CustodyTransfer,
        *,
        covering: bool,
        two_phase: bool,
        own_max: int = OWN_MAX,
    ) -> None:
        self.me, self.covering, self.two_phase, self.own_max = routing.me, covering, two_phase, own_max
        self._routing, self._clock, self._table, self._custody = routing, clock, table, custody
        self.own: dict[SubscriptionId, OwnSubscription] = {}

    # ── Subscribing ──────────────────────────────────────────────────────────

    def subscribe(self, interest: Interest, now: float, *, is_ready: bool) -> list[Effect]:
        """Announce an interest, or keep it until `announce_new` if this node is not ready."""
        own = self.own.get(interest.id)
        if own is not None:
            return self._replace(own, interest, now)
        if len(self.own) >= self.own_max:
            return [Failed("subscribe", f"a node has at most {self.own_max} subscriptions", interest.id)]
        self.own[interest.id] = own = OwnSubscription(interest)
        return self._announce(own, now) if is_ready else []

    def announce_new(self, now: float) -> list[Effect]:
        """This node is ready: announce what was subscribed to until now."""
        new = [own for own in self.own.values() if own.target_row < 0]
        return [effect for own in new for effect in self._announce(own, now)]

    def announce_again(self, now: float, *, upto: int | None = None) -> list[Effect]:
        """Announce everything again, or what was announced up to a certain clock."""
        void = [own for own in self.own.values() if own.is_announced and (upto is None or own.clock <= upto)]
        return [effect for own in void for effect in self._announce(own, now)]

    def unsubscribe(self, id: SubscriptionId, now: float) -> list[Effect]:
        own = self.own.get(id)
        if own is None:
            return [Completed("unsubscribe", id)]
        if own.state is not EntryState.LIVE:
            own.replacement = None
            return []
        if own.target_row < 0:
            del self.own[id]
            return [Completed("unsubscribe", id)]
        return self._retire(own, now)

    def reconsider(self, lost: Sequence[FilterEntry], now: float) -> list[Effect]:
        """Nobody can rely on these entries any more: announce what only they covered."""
        effects: list[Effect] = []
        for own in list(self.own.values()):
            relied = own.state is EntryState.LIVE and own.target_row > 0 and _any_covers(lost, own.interest)
            if relied and self._scope_of(own) < own.target_row:
                effects += self._announce(own, now)
        return effects

    def delay_until_announced(self, task: CustodyTask) -> None:
        """Do not complete the task before what this node is announcing has been announced."""
        for id, own in self.own.items():
            if own.task is not None:
                task.waits[id] = None
                own.waiters.append(task.key)

    # ── Queries ──────────────────────────────────────────────────────────────

    def is_interested(self, packet: Packet) -> bool:
        """Also while an interest is being replaced. A withdrawn one counts no more, though events still come for it."""
        return any(
            (own.replacement or own.interest).matches(packet)
            for own in self.own.values()
            if own.state is EntryState.LIVE or own.replacement
        )

    def known_to(self, asker: Peer) -> list[FilterEntry]:
        """What another node should know of this one's interests."""
        row = shared(asker.id, self.me.id)
        return [self._entry(own) for own in self.own.values() if 0 <= own.target_row <= row]

    # ── Announcing row by row ────────────────────────────────────────────────

    def on_completed(self, then: tuple[Any, ...], now: float) -> list[Effect]:
        """Every node has what was multicast: go on with what comes next."""
        match then:
            case ("announced", SubscriptionId() as id, int(row)) if id in self.own:
                return self._announce_row(self.own[id], row + 1, now)
            case ("retired", SubscriptionId() as id) if id in self.own:
                return self._end(self.own[id], now)
            case ("ended", SubscriptionId() as id) if id in self.own:
                return self._ended(self.own[id], now)
        return []

    def _announce(self, own: OwnSubscription, now: float) -> list[Effect]:
        self._custody.cancel(own.task)
        own.clock, own.target_row = self._clock.tick(), self._scope_of(own)
        return self._announce_row(own, own.target_row, now)

    def _announce_row(self, own: OwnSubscription, row: int, now: float) -> list[Effect]:
        if row >= self._routing.depth():
            return self._announced(own, now)
        task = self._custody.new_update(self._entry(own), ("announced", own.interest.id, row))
        own.task = task.key
        return self._custody.multicast(task, range(row, row + 1), now)

    def _announced(self, own: OwnSubscription, now: float) -> list[Effect]:
        own.task, own.scope_row, own.stable = None, own.target_row, True
        effects: list[Effect] = [Completed("subscribe", own.interest.id)] if own.asked else []
        own.asked = False
        return [*effects, *self._release_waiters(own, now)]

    def _release_waiters(self, own: OwnSubscription, now: float) -> list[Effect]:
        waiters, own.waiters = own.waiters, []
        return [effect for key in waiters for effect in self._custody.stop_waiting(key, own.interest.id, now)]

    def _scope_of(self, own: OwnSubscription) -> int:
        """The first row that must get the interest because no entry known there covers it.

        A cover counts for a row only if it was itself announced there: two equal interests
        would otherwise rely on each other, and neither would reach the rows outside.
        """
        if not self.covering:
            return 0
        covered = self._table.covered_rows(own.interest)
        covered += [
            (other.scope_row, self._routing.length)
            for other in self.own.values()
            if other.stable and other.state is EntryState.LIVE and other is not own
            if other.interest.covers(own.interest)
        ]
        row = 0
        while row < self._routing.length and any(first <= row < end for first, end in covered):
            row += 1
        return row

    # ── Withdrawing ──────────────────────────────────────────────────────────

    def _replace(self, own: OwnSubscription, interest: Interest, now: float) -> list[Effect]:
        """The same id with another interest: withdraw the old one, then announce the new one."""
        if own.target_row < 0:
            own.interest = interest
            return []
        own.replacement = interest
        return self._retire(own, now) if own.state is EntryState.LIVE else []

    def _retire(self, own: OwnSubscription, now: float) -> list[Effect]:
        """First of two phases: from now on nobody may rely on this interest."""
        self._custody.cancel(own.task)
        live = self._entry(own)
        own.state, own.clock, own.task = EntryState.RETIRING, self._clock.tick(), None
        effects = self._release_waiters(own, now)
        if own.asked and own.replacement is None:
            effects.append(Failed("subscribe", "taken back before it was known everywhere", own.interest.id))
        if not self.two_phase:
            return [*effects, *self._end(own, now), *self.reconsider([live], now)]
        effects += self.reconsider([live], now)
        task = self._custody.new_update(self._entry(own), ("retired", own.interest.id))
        self.delay_until_announced(task)
        return [*effects, *self._custody.multicast(task, self._custody.rows_from(own.target_row), now)]

    def _end(self, own: OwnSubscription, now: float) -> list[Effect]:
        """Second phase: the interest is gone."""
        own.clock, own.state = self._clock.tick(), EntryState.GONE
        task = self._custody.new_update(self._entry(own), ("ended", own.interest.id))
        return self._custody.multicast(task, self._custody.rows_from(own.target_row), now)

    def _ended(self, own: OwnSubscription, now: float) -> list[Effect]:
        id, replacement = own.interest.id, own.replacement
        self.own.pop(id, None)
        if replacement is None:
            return [Completed("unsubscribe", id)]
        self.own[id] = fresh = OwnSubscription(replacement, clock=own.clock)
        return self._announce(fresh, now)

    def _entry(self, own: OwnSubscription) -> FilterEntry:
        interest = own.interest if own.state is not EntryState.GONE else None
        return FilterEntry(own.interest.id, self.me, own.clock, own.target_row, own.state, interest)


def _any_covers(entries: Sequence[FilterEntry], interest: Interest) -> bool:
    return any(entry.interest is not None and entry.interest.covers(interest) for entry in entries)
