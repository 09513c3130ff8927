"""The dead of IRBR, and those who were only thought dead.

Who dies is mourned by its clockwise neighbour: an obituary goes to everybody and ends all
that the dead had subscribed to. In two phases it retires that first, so that whoever
relied on it can announce its own before it ends. What a node wanted in a former life only
that node itself can mourn. Whoever hears its own obituary says all it wants again.
"""

from __future__ import annotations

from tidings.overlay.irbr.custody_transfer import Custody
from tidings.overlay.irbr.filter_table import Entry, FilterTable, Obituary, Standing
from tidings.overlay.irbr.subscription_propagation import Announcer
from tidings.overlay.messages import NodeId, Peer
from tidings.overlay.pastry.ring import Ring
from tidings.overlay.router import Effect, WakeAt

REFUTE_S = 15.0  # How long after the last sign of having been thought dead a node says again what it wants.


class Mourner:
    """One node's part in obituaries: those it says, those it hears, and its own."""

    def __init__(
        self, me: Peer, ring: Ring, table: FilterTable, custody: Custody, announcer: Announcer, *, two_phase: bool
    ) -> None:
        self.me, self.two_phase = me, two_phase
        self._ring, self._table, self._custody, self._announcer = ring, table, custody, announcer
        self._mourns_itself = False  # Its former life, that is.
        self._refute_at = 0.0

    def mourn(self, peer: Peer, now: float) -> list[Effect]:
        """Say that a node has died, unless everybody knows and nothing of it is left."""
        known = self._table.obituary(peer.id)
        stale = [e for e in self._table.under(self._ring.cell(peer.id)) if e.origin.id == peer.id] if known else []
        if known and known.incarnation >= peer.incarnation and all(e.standing is Standing.GONE for e in stale):
            return []
        return self._say(self._first(peer.id, peer.incarnation), now)

    def hear(self, obituary: Obituary, now: float) -> list[Effect]:
        """Somebody is said to have died."""
        if obituary.id == self.me.id:
            return self.refute(obituary, now)
        self._announcer.hear(obituary.clock)
        if not self._ring.is_id(obituary.id):
            return []
        return self._announcer.reconsider(self._table.bury(obituary, now), now)

    def go_on(self, obituary: Obituary, now: float) -> list[Effect]:
        """Everybody has an obituary of this node's: the final one follows, or all is said."""
        if not obituary.final:
            return self._say(Obituary(obituary.id, obituary.incarnation, self._announcer.tick(), True), now)
        if obituary.id == self.me.id:
            self._mourns_itself = False
        return []

    def meet_former_life(self, entry: Entry, now: float, *, is_ready: bool) -> list[Effect]:
        """Somebody still has what this node wanted in an earlier life: nobody but itself can mourn that."""
        if entry.id.incarnation >= self.me.incarnation or self._mourns_itself:
            return []
        self._mourns_itself = True
        return self._mourn_itself(now) if is_ready else []

    def make_ready(self, now: float) -> list[Effect]:
        """This node can speak to everybody now."""
        return self._mourn_itself(now) if self._mourns_itself else []

    def refute(self, obituary: Obituary, now: float) -> list[Effect]:
        """Thought dead: all that was said before is void, so it is said again.

        And once more when contacts have settled: after a split the first who can be
        reached are not yet everybody.
        """
        self._announcer.hear(obituary.clock)
        if obituary.id != self.me.id or obituary.incarnation < self.me.incarnation:
            return []
        self._refute_at = now + REFUTE_S
        again = WakeAt(self._refute_at, ("refute",))
        return [again, *self._announcer.say_again(now, before=obituary.clock)]

    def refute_again(self, now: float) -> list[Effect]:
        """Once contacts have settled."""
        return self._announcer.say_again(now) if now >= self._refute_at else []

    def _mourn_itself(self, now: float) -> list[Effect]:
        return self._say(self._first(self.me.id, self.me.incarnation - 1), now)

    def _first(self, id: NodeId, incarnation: int) -> Obituary:
        return Obituary(id, incarnation, self._announcer.tick(), final=not self.two_phase)

    def _say(self, obituary: Obituary, now: float) -> list[Effect]:
        lost = self._table.bury(obituary, now) if obituary.id != self.me.id else []
        effects = self._announcer.reconsider(lost, now)
        task = self._custody.news(obituary, ("mourned", obituary))
        self._announcer.hold_up(task)
        return [*effects, *self._custody.spread(task, self._custody.rows_from(0), now)]
