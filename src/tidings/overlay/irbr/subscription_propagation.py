"""Announcing: how a node's own interests become known to everybody who has to know them.

The part of `irbr` that speaks for this node's subscribers. Two savings and one safety:

- An interest that another one in the same range covers is not announced outside that
  range: from its `scope_row` on, outer rows know the cover and send here for its sake.
- It is announced outermost row first, each row acknowledged before the next. So whoever
  sees an interest, and relies on it, can be sure that the rows outside know it.
- One that is taken back first *retires*: nobody may rely on it any more, and whoever did
  announces its own before it agrees. Only then is it *gone*.

A subscription is stable, and stays so whatever others do, from the moment its last row
has acknowledged it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tidings.overlay.interest import Interest
from tidings.overlay.irbr.custody_transfer import Custody, Task, TaskKey
from tidings.overlay.irbr.filter_table import Entry, FilterTable, Standing
from tidings.overlay.messages import Packet, Peer, SubscriptionId
from tidings.overlay.pastry.ring import Ring
from tidings.overlay.pastry.routing_table import shared
from tidings.overlay.router import Completed, Effect, Failed

OWN_MAX = 65_536  # Subscriptions of one node.


@dataclass(slots=True)
class Own:
    """A subscription of this node."""

    interest: Interest
    clock: int = 0
    scope_row: int = -1  # From which row on everybody has acknowledged it; -1: not announced yet.
    target_row: int = -1  # From which row on it is being announced.
    stable: bool = False
    standing: Standing = Standing.LIVE
    task: TaskKey | None = None  # The row being announced.
    waiters: list[TaskKey] = field(default_factory=list)  # Tasks that are not done before this is announced.
    replacement: Interest | None = None
    asked: bool = True  # Whether somebody waits to be told that it is stable.

    @property
    def is_out(self) -> bool:
        """Whether others have been told, or are being told, of it as it is."""
        return self.standing is Standing.LIVE and self.target_row >= 0


class Announcer:
    """The subscriptions of one node, and its Lamport clock: what it says later has a higher time."""

    def __init__(
        self, me: Peer, ring: Ring, table: FilterTable, custody: Custody, *, covering: bool, two_phase: bool
    ) -> None:
        self.me, self.covering, self.two_phase = me, covering, two_phase
        self._ring, self._table, self._custody = ring, table, custody
        self.own: dict[SubscriptionId, Own] = {}
        self.clock = 0

    def tick(self) -> int:
        """The time of something about to be said."""
        self.clock += 1
        return self.clock

    def hear(self, clock: int) -> None:
        """Somebody has spoken at this time; what this node says from now on is later."""
        self.clock = max(self.clock, clock) + 1

    # ── Subscribing ──────────────────────────────────────────────────────────

    def subscribe(self, interest: Interest, now: float, *, is_ready: bool) -> list[Effect]:
        """Announce an interest, or keep it until `announce_new` if this node is not ready."""
        own = self.own.get(interest.id)
        if own is not None:
            return self._exchange(own, interest, now)
        if len(self.own) >= OWN_MAX:
            return [Failed("subscribe", f"a node has at most {OWN_MAX} subscriptions", interest.id)]
        self.own[interest.id] = own = Own(interest)
        return self._announce(own, now) if is_ready else []

    def announce_new(self, now: float) -> list[Effect]:
        """This node is ready: say what was wanted until now."""
        new = [own for own in self.own.values() if own.target_row < 0]
        return [effect for own in new for effect in self._announce(own, now)]

    def say_again(self, now: float, *, before: int | None = None) -> list[Effect]:
        """Announce everything once more, or what was said before a certain time."""
        void = [own for own in self.own.values() if own.is_out and (before is None or own.clock < before)]
        return [effect for own in void for effect in self._announce(own, now)]

    def unsubscribe(self, id: SubscriptionId, now: float) -> list[Effect]:
        own = self.own.get(id)
        if own is None:
            return [Completed("unsubscribe", id)]
        if own.standing is not Standing.LIVE:
            own.replacement = None
            return []
        if own.target_row < 0:
            del self.own[id]
            return [Completed("unsubscribe", id)]
        return self._retire(own, now)

    def reconsider(self, lost: Sequence[Entry], now: float) -> list[Effect]:
        """Entries can no longer be relied on: announce what only they covered."""
        effects: list[Effect] = []
        for own in list(self.own.values()):
            relied = own.standing is Standing.LIVE and own.target_row > 0 and _any_covers(lost, own.interest)
            if relied and self._scope_of(own) < own.target_row:
                effects += self._announce(own, now)
        return effects

    def hold_up(self, task: Task) -> None:
        """The task is not done before what this node is announcing has been announced."""
        for id, own in self.own.items():
            if own.task is not None:
                task.waits[id] = None
                own.waiters.append(task.key)

    # ── Being asked ──────────────────────────────────────────────────────────

    def wants(self, packet: Packet) -> bool:
        """Also while an interest is being replaced; one that is taken back is forwarded for, not delivered."""
        return any(
            (own.replacement or own.interest).matches(packet)
            for own in self.own.values()
            if own.standing is Standing.LIVE or own.replacement
        )

    def told_to(self, asker: Peer) -> list[Entry]:
        """What another node should know of this one's interests."""
        row = shared(asker.id, self.me.id)
        return [self._entry(own) for own in self.own.values() if 0 <= own.target_row <= row]

    # ── Rows ─────────────────────────────────────────────────────────────────

    def go_on(self, then: tuple[Any, ...], now: float) -> list[Effect]:
        """Everybody has what was said: what comes next."""
        match then:
            case ("announced", SubscriptionId() as id, int(row)) if id in self.own:
                return self._announce_row(self.own[id], row + 1, now)
            case ("retired", SubscriptionId() as id) if id in self.own:
                return self._end(self.own[id], now)
            case ("ended", SubscriptionId() as id) if id in self.own:
                return self._ended(self.own[id], now)
        return []

    def _announce(self, own: Own, now: float) -> list[Effect]:
        self._custody.forget(own.task)
        own.clock, own.target_row = self.tick(), self._scope_of(own)
        return self._announce_row(own, own.target_row, now)

    def _announce_row(self, own: Own, row: int, now: float) -> list[Effect]:
        if row >= self._ring.depth():
            return self._announced(own, now)
        task = self._custody.news(self._entry(own), ("announced", own.interest.id, row))
        own.task = task.key
        return self._custody.spread(task, range(row, row + 1), now)

    def _announced(self, own: Own, now: float) -> list[Effect]:
        own.task, own.scope_row, own.stable = None, own.target_row, True
        effects: list[Effect] = [Completed("subscribe", own.interest.id)] if own.asked else []
        own.asked = False
        return [*effects, *self._wait_no_more(own, now)]

    def _wait_no_more(self, own: Own, now: float) -> list[Effect]:
        waiters, own.waiters = own.waiters, []
        return [effect for key in waiters for effect in self._custody.wait_no_more(key, own.interest.id, now)]

    def _scope_of(self, own: Own) -> int:
        """The first row that has to be told because nobody it knows of covers the interest.

        A cover counts for a row only if it was itself announced there: two equal interests
        would otherwise rely on each other, and nobody would tell the rows outside.
        """
        if not self.covering:
            return 0
        covered = self._table.rows_covered(own.interest)
        covered += [
            (other.scope_row, self._ring.length)
            for other in self.own.values()
            if other.stable and other.standing is Standing.LIVE and other is not own
            if other.interest.covers(own.interest)
        ]
        row = 0
        while row < self._ring.length and any(first <= row < end for first, end in covered):
            row += 1
        return row

    # ── Taking back ──────────────────────────────────────────────────────────

    def _exchange(self, own: Own, interest: Interest, now: float) -> list[Effect]:
        """The same id with another interest: the old one is taken back, then the new one announced."""
        if own.target_row < 0:
            own.interest = interest
            return []
        own.replacement = interest
        return self._retire(own, now) if own.standing is Standing.LIVE else []

    def _retire(self, own: Own, now: float) -> list[Effect]:
        """First of two phases: from now on nobody may rely on this interest."""
        self._custody.forget(own.task)
        live = self._entry(own)
        own.standing, own.clock, own.task = Standing.RETIRING, self.tick(), None
        effects = self._wait_no_more(own, now)
        if own.asked and own.replacement is None:
            effects.append(Failed("subscribe", "taken back before it was known everywhere", own.interest.id))
        if not self.two_phase:
            return [*effects, *self._end(own, now), *self.reconsider([live], now)]
        effects += self.reconsider([live], now)
        task = self._custody.news(self._entry(own), ("retired", own.interest.id))
        self.hold_up(task)
        return [*effects, *self._custody.spread(task, self._custody.rows_from(own.target_row), now)]

    def _end(self, own: Own, now: float) -> list[Effect]:
        """Second phase: the interest is gone."""
        own.clock, own.standing = self.tick(), Standing.GONE
        task = self._custody.news(self._entry(own), ("ended", own.interest.id))
        return self._custody.spread(task, self._custody.rows_from(own.target_row), now)

    def _ended(self, own: Own, now: float) -> list[Effect]:
        id, wanted = own.interest.id, own.replacement
        self.own.pop(id, None)
        if wanted is None:
            return [Completed("unsubscribe", id)]
        self.own[id] = fresh = Own(wanted, clock=own.clock)
        return self._announce(fresh, now)

    def _entry(self, own: Own) -> Entry:
        interest = own.interest if own.standing is not Standing.GONE else None
        return Entry(own.interest.id, self.me, own.clock, own.target_row, own.standing, interest)


def _any_covers(entries: Sequence[Entry], interest: Interest) -> bool:
    return any(entry.interest is not None and entry.interest.covers(interest) for entry in entries)
