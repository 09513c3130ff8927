"""Immune, in the core: keeping it whole, and no larger than it has to be.

The best-ranked node of the core is its *root* and sends a beacon through it; who hears none
is cut off, and who has neighbours that follow a better root looks for a way there. A member
that nobody needs asks those around whether they hold together without it, and leaves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from tidings.overlay.dedup import SeenIds
from tidings.overlay.immune import global_construction
from tidings.overlay.immune.messages import (
    Beacon,
    Bridge,
    DemoteAsk,
    DemoteDeny,
    DemoteEnd,
    DemoteGrant,
    Elect,
    Foreign,
    Repair,
    RepairPath,
)
from tidings.overlay.immune.neighbour_state import (
    BEACON_EVERY,
    BEACON_LOST_AFTER,
    NEIGHBOURS_MAX,
    SETTLED_AFTER,
    ImmuneOptions,
    Neighbour,
)
from tidings.overlay.messages import NodeId
from tidings.overlay.router import Count, Effect, Place, Send, WakeAt

PATH_MAX = 32  # Nodes on a repair's way; the core is next to everyone, so three would do while all is well.
ASKS_MAX = 12  # Times a core node tries to be let go in one epoch; then it stays.
REPAIR_AFTER, ASK_WITHIN, PROMISE_FOR = 3, 2, 5  # In heartbeats.


@dataclass(slots=True)
class _Ask:
    """A question to the core within two hops, ours or one that we relay: who has yet to answer, and who is there."""

    round: int
    waiting: dict[NodeId, None]
    seen: dict[NodeId, tuple[NodeId, ...]] = field(default_factory=dict)
    asked: tuple[NodeId, ...] = ()


class CoreMember(Neighbour):
    """A node as far as it is, was or may come to be in the core."""

    def __init__(self, place: Place, options: ImmuneOptions | None = None) -> None:
        super().__init__(place, options)
        self._beacon_seq = 0
        self._foreign_since: float | None = None
        self._repaired_at = -math.inf
        self._round = self._bridged = 0
        self._ask: _Ask | None = None
        self._relays: dict[tuple[NodeId, int], _Ask] = {}
        self._promises: dict[NodeId, float] = {}
        self._repairs_seen = SeenIds[tuple[NodeId, int]](4096)

    # ── Root and epoch ─────────────────────────────────────────────────────────

    def _keep_root(self, now: float) -> list[Effect]:
        """In the core: send the beacon on if it is ours, and notice when it no longer comes."""
        if not self.core:
            return self._follow_upper(now)
        if self.leaving:
            return []
        effects: list[Effect] = []
        if self.root != self.id and now > self._beacon_at + BEACON_LOST_AFTER * self._beat:
            self.root, self.root_degree, self.parent = self.id, self.degree, ""
            self._shaky_until = now + SETTLED_AFTER * self._beat
            effects += self._tell_all()
        if self.root == self.id and now >= self._beacon_at + BEACON_EVERY * self._beat:
            effects += self._send_beacon(now)
        return effects

    def _follow_upper(self, now: float) -> list[Effect]:
        """An immune node's root and epoch are its upper's. In a new epoch it looks for a better upper."""
        upper = self.near.get(self.upper)
        self.root, self.root_degree = (upper.root, upper.root_degree) if upper else (self.id, self.degree)
        if upper is None or upper.epoch <= self.epoch:
            return []
        self._enter_epoch(upper.epoch, now)
        best = self._best_upper()
        change: list[Effect] = [Send(best, Elect())] if not self.core and best not in ("", self.upper) else []
        return self._tell_all() + change

    def _send_beacon(self, now: float) -> list[Effect]:
        self._beacon_at = now
        self._beacon_seq += 1
        if self.options.epoch_s and now >= self._epoch_at + self.options.epoch_s:
            self._enter_epoch(self.epoch + 1, now)
        beacon = Beacon(self.id, self.degree, self._beacon_seq, self.epoch)
        return [Send(peer, beacon) for peer in self._core_near()]

    def _on_beacon(self, sender: NodeId, beacon: Beacon, now: float) -> list[Effect]:
        if not self.core or self.leaving or not self.near[sender].core:
            return []
        theirs, ours = (-beacon.root_degree, beacon.root), (-self.root_degree, self.root)
        if theirs > ours or beacon.root == self.id or (theirs == ours and beacon.seq <= self._beacon_seq):
            return []
        news = (self.root, self.parent) != (beacon.root, sender)
        if theirs < ours:
            self._shaky_until = max(self._shaky_until, now + self._beat)
        self.parent = sender  # Whoever brings a beacon first: those of one beacon form a tree, whatever has changed.
        self.root, self.root_degree, self._beacon_seq, self._beacon_at = (
            beacon.root,
            beacon.root_degree,
            beacon.seq,
            now,
        )
        if beacon.epoch > self.epoch:
            self._enter_epoch(beacon.epoch, now)
        onward: list[Effect] = [Send(peer, beacon) for peer in self._core_near() if peer != sender]
        return onward + (self._tell_all() if news else [])

    def _enter_epoch(self, epoch: int, now: float) -> None:
        """Take the ranks anew, and ask again who is needed in the core."""
        grown = self.degree <= self.options.delta < len(self.near)
        self.epoch, self._epoch_at, self.degree = epoch, now, len(self.near)
        self.kept, self._asks, self._changed_at = False, 0, now
        if grown and not self.core and self.upper:
            self._enter_core(now)

    # ── Pieces of the core that lost each other ────────────────────────────────

    def _look_for_others(self, now: float) -> list[Effect]:
        """A neighbour that follows a better root than ours for long is in another piece of the core."""
        ours = (-self.root_degree, self.root)
        others = [s for s in self.near.values() if s.decided and not s.leaving and (s.core or s.upper)]
        if not any(self._root_rank(status) < ours for status in others):
            self._foreign_since = None
            return []
        if self._foreign_since is None:
            self._foreign_since = now
        if now < self._foreign_since + REPAIR_AFTER * self._beat:
            return []
        if self.core:
            self._shaky_until = max(self._shaky_until, now + SETTLED_AFTER * self._beat)
            return self._repair(now)
        return [Send(self.upper, Foreign())] if self.upper else []

    def _repair(self, now: float) -> list[Effect]:
        """Start looking for a better-ranked piece, unless somebody has just done so."""
        if now < self._repaired_at + SETTLED_AFTER * self._beat or self.leaving:
            return []
        self._repaired_at = now
        self._round += 1
        search = Repair(self.root, self.root_degree, self._round, (self.id,))
        self._repairs_seen.add((self.id, self._round))
        return [Count("repair"), *(Send(peer, search) for peer in self.near)]

    def _on_repair(self, sender: NodeId, search: Repair, now: float) -> list[Effect]:
        path = search.path
        if not path or path[-1] != sender or len(path) >= PATH_MAX:
            return []
        if not self._repairs_seen.add((path[0], search.round)):
            return []
        theirs, ours = (-search.root_degree, search.root), (-self.root_degree, self.root)
        if theirs == ours:
            self._repaired_at = now
        if self.core and not self.leaving and ours < theirs:
            return [Send(sender, RepairPath(search.round, (*path, self.id)))]
        onward = Repair(search.root, search.root_degree, search.round, (*path, self.id))
        return [Send(peer, onward) for peer in self.near if peer not in path] if not self.leaving else []

    def _on_repair_path(self, round: int, path: tuple[NodeId, ...]) -> list[Effect]:
        if self.id not in path:
            return []
        at = path.index(self.id)
        if at > 0:
            return [Send(path[at - 1], RepairPath(round, path))]
        if round <= self._bridged or not self.core or len(path) < 2:
            return []
        self._bridged = round
        return [Send(path[1], Bridge(path))]

    def _on_bridge(self, path: tuple[NodeId, ...], now: float) -> list[Effect]:
        if self.id not in path or self.leaving:
            return []
        rest = path[path.index(self.id) + 1 :]
        onward: list[Effect] = [Send(rest[0], Bridge(path))] if rest else []
        return (self._join_core(now) if not self.core else []) + onward

    # ── Leaving the core ───────────────────────────────────────────────────────

    def _consider_leaving_core(self, now: float) -> list[Effect]:
        if not self._is_idle() or self._ask or self._promises or not self._core_near():
            return []
        if any(self.near[peer].idle and self._rank(peer) > (-self.degree, self.id) for peer in self._core_near()):
            return []  # It goes first, and would only deny.
        settled = now >= self._changed_at + SETTLED_AFTER * self._beat and now >= self._shaky_until
        agreed = all(self.near[peer].root == self.root for peer in self._core_near())
        if not settled or not agreed or not all(status.decided for status in self.near.values()):
            return []
        if self.options.demotion == "literal":
            return self._leave_core(self._core_near(), now)
        self._asks += 1
        if self._asks > ASKS_MAX:
            self.kept = True
            return [Count("kept")]
        return self._start_asking(now)

    def _start_asking(self, now: float) -> list[Effect]:
        self._round += 1
        near = self._core_near()
        self._ask = _Ask(self._round, dict.fromkeys(near), asked=tuple(near))
        ask = DemoteAsk(self.id, self.degree, self._round, relayed=False)
        within = WakeAt(now + ASK_WITHIN * self._beat, ("asked", self._round))
        return [*(Send(peer, ask) for peer in self._ask.waiting), within]

    def _on_ask(self, sender: NodeId, ask: DemoteAsk, now: float) -> list[Effect]:
        candidate, round = ask.candidate, ask.round
        if not self.core or self.leaving:
            return [Send(sender, DemoteGrant(candidate, round, ()))]
        if candidate == self.id or (not ask.relayed and candidate != sender):
            return []
        if self._is_idle() and (-self.degree, self.id) > (-ask.degree, candidate):
            return [Send(sender, DemoteDeny(candidate, round))]
        effects = self._stop_asking() if self._ask else []
        if len(self._promises) >= NEIGHBOURS_MAX or len(self._relays) >= NEIGHBOURS_MAX:
            return [*effects, Send(sender, DemoteDeny(candidate, round))]
        self._promises[candidate] = now + PROMISE_FOR * self._beat
        others = [peer for peer in self._core_near() if peer != candidate]
        if ask.relayed or not others:
            return [*effects, Send(sender, DemoteGrant(candidate, round, (self._seen_here(),)))]
        self._relays = {key: relay for key, relay in self._relays.items() if key[0] != candidate}
        self._relays[candidate, round] = _Ask(round, dict.fromkeys(others))
        onward = DemoteAsk(candidate, ask.degree, round, relayed=True)
        return effects + [Send(peer, onward) for peer in others]

    def _on_grant(self, sender: NodeId, grant: DemoteGrant, now: float) -> list[Effect]:
        candidate, round = grant.candidate, grant.round
        ask = self._ask if candidate == self.id else self._relays.get((candidate, round))
        if ask is None or ask.round != round or sender not in ask.waiting:
            return []
        del ask.waiting[sender]
        ask.seen.update(grant.seen)
        if ask.waiting:
            return []
        if candidate == self.id:
            return self._decide_on_leaving_core(ask, now)
        del self._relays[candidate, round]
        seen = (self._seen_here(), *ask.seen.items()) if self.core else ()
        return [Send(candidate, DemoteGrant(candidate, round, seen))]

    def _seen_here(self) -> tuple[NodeId, tuple[NodeId, ...]]:
        return self.id, tuple(self._core_near())

    def _on_deny(self, candidate: NodeId, round: int) -> list[Effect]:
        if candidate == self.id:
            if self._ask and self._ask.round == round:
                self._asks -= 1  # Being told to wait is no failure.
                return self._stop_asking()
            return []
        return [Send(candidate, DemoteDeny(candidate, round))] if self._relays.pop((candidate, round), None) else []

    def _decide_on_leaving_core(self, ask: _Ask, now: float) -> list[Effect]:
        """All within two hops stand still. Leave if those next to us are joined by what they have just confirmed."""
        seen = {peer: theirs for peer, theirs in ask.seen.items() if peer != self.id}
        near = [peer for peer in ask.asked if peer in self.near and peer in seen]
        edges = {peer: [third for third in theirs if third in seen] for peer, theirs in seen.items()}
        if not self._is_idle() or self._promises or now < self._shaky_until:
            return self._stop_asking()
        if near and global_construction.stay_connected(near, edges):
            return self._leave_core(near, now)
        self.kept = True
        return [Count("kept"), *self._stop_asking()]

    def _leave_core(self, near: list[NodeId], now: float) -> list[Effect]:
        upper = min(near, key=lambda peer: (not self.near[peer].has_lowers, self._rank(peer)))
        self.core, self.parent, self._changed_at = False, "", now
        self.root, self.root_degree = self.near[upper].root, self.near[upper].root_degree
        return [Count("demoted"), Send(upper, Elect()), *self._tell_all(), *self._stop_asking()]

    def _stop_asking(self) -> list[Effect]:
        asked, self._ask = self._ask, None
        end = DemoteEnd(self.id, relayed=False)
        return [Send(peer, end) for peer in asked.asked] if asked else []

    def _on_end(self, sender: NodeId, candidate: NodeId, relayed: bool) -> list[Effect]:
        self._promises.pop(candidate, None)
        self._relays = {key: relay for key, relay in self._relays.items() if key[0] != candidate}
        if relayed or sender != candidate:
            return []
        onward = DemoteEnd(candidate, relayed=True)
        return [Send(peer, onward) for peer in self._core_near() if peer != candidate]
