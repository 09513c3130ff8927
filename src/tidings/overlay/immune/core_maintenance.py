"""Core maintenance: keeping the core connected, and no larger than it has to be.

The best-ranked node of the core is its *root* and sends a beacon through it. A core node
that gets no beacon is cut off, and one whose neighbours follow a better root searches for a
path there. A member that nobody needs asks the core around it whether that stays connected
without it, and leaves the core.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Protocol

from tidings.overlay.dedup import SeenIds
from tidings.overlay.immune import global_construction, link_delays
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
    NeighbourState,
    RootState,
    root_rank,
)
from tidings.overlay.messages import NodeId
from tidings.overlay.router import Count, Effect, Send, WakeAt

PATH_MAX = 32  # Nodes on the path of a repair; the core is next to everyone, so three would do while all is well.
# Ten years. Whoever names a far later epoch would have it run over, and beacons be unwritable.
EPOCHS_AT_ONCE = 1 << 20
NUMBER_MAX = 1 << 61  # Of a beacon.
DEMOTION_TRIES_MAX = 12  # In one epoch; then the node stays in the core.
REPAIR_AFTER, ASK_WITHIN, GRANTED_FOR = 3, 2, 5  # In heartbeats.


class RoleChanges(Protocol):
    """What core maintenance needs of the election of roles."""

    def announce_role(self) -> list[Effect]:
        """Send this node's status to all neighbours."""

    def enter_core(self, now: float) -> None:
        """Become a member of the core."""

    def join_core(self, now: float) -> list[Effect]:
        """Enter the core, unless this node is in it, and announce that."""


@dataclass(slots=True)
class _DemotionRound:
    """A question to the core within two hops, ours or one that we relay: who has yet to answer, and who is there."""

    round: int
    waiting: dict[NodeId, None]
    seen: dict[NodeId, tuple[NodeId, ...]] = field(default_factory=dict)
    delays: dict[NodeId, dict[NodeId, float]] = field(default_factory=dict)
    asked: tuple[NodeId, ...] = ()


class CoreMaintenance:
    """One node's part in maintaining the core, in it or next to it."""

    def __init__(self, state: NeighbourState, roles: RoleChanges) -> None:
        self._state, self._roles = state, roles
        self._beacon_seq = 0  # Of the root's last beacon.
        self._beacons_sent = 0
        self._foreign_since: float | None = None
        self._repaired_at = -math.inf
        self._round = self._bridged = 0
        self._asking: _DemotionRound | None = None
        self._relays: dict[tuple[NodeId, int], _DemotionRound] = {}
        self.granted: dict[NodeId, float] = {}
        """Candidates for whose demotion this node stays in the core, and until when."""
        self._repairs_seen = SeenIds[tuple[NodeId, int]](4096)

    def tick(self, now: float) -> list[Effect]:
        """Each heartbeat: follow the root, look for other pieces of the core, and consider leaving it."""
        return self._keep_root(now) + self._find_other_pieces(now) + self._consider_demotion(now)

    def expire(self, now: float) -> None:
        """Forget grants that have run out."""
        self.granted = {candidate: until for candidate, until in self.granted.items() if until >= now}

    def receive(self, sender: NodeId, message: Any, now: float) -> list[Effect]:
        """Take a message about the core from a neighbour."""
        match message:
            case Beacon():
                return self._on_beacon(sender, message, now)
            case Foreign():
                return self._start_repair(now) if self._state.in_core else []
            case Repair():
                return self._on_repair(sender, message, now)
            case RepairPath(round, path):
                return self._on_repair_path(round, path)
            case Bridge(path):
                return self._on_bridge(path, now)
            case DemoteAsk():
                return self._on_ask(sender, message, now)
            case DemoteGrant():
                return self._on_grant(sender, message, now)
            case DemoteDeny(candidate, round):
                return self._on_deny(candidate, round)
            case DemoteEnd(candidate, relayed):
                return self._on_end(sender, candidate, relayed)
        return []

    def on_ask_timeout(self, round: int) -> list[Effect]:
        """Not all have answered in time whether this node may leave the core."""
        return self._stop_asking() if self._asking and self._asking.round == round else []

    def holdings(self) -> dict[str, tuple[int, int]]:
        return {
            "relays": (len(self._relays), NEIGHBOURS_MAX),
            "promises": (len(self.granted), NEIGHBOURS_MAX),
        }

    # ── Root and epoch ─────────────────────────────────────────────────────────

    def _keep_root(self, now: float) -> list[Effect]:
        """In the core: send the beacon if this node is the root, and notice when none comes any more."""
        state = self._state
        if not state.in_core:
            return self._follow_upper(now)
        if state.leaving:
            return []
        effects: list[Effect] = []
        if state.root.id != state.id and now > state.beacon_at + BEACON_LOST_AFTER * state.beat_s:
            state.root = RootState(state.id, state.degree)
            state.unstable_until = now + SETTLED_AFTER * state.beat_s
            effects += self._roles.announce_role()
        if state.root.id == state.id and now >= state.beacon_at + BEACON_EVERY * state.beat_s:
            effects += self._send_beacon(now)
        return effects

    def _follow_upper(self, now: float) -> list[Effect]:
        """An immune node's root and epoch are its upper's. In a new epoch it elects a better upper."""
        state = self._state
        upper = state.neighbours.get(state.upper)
        state.root.id, state.root.degree = (upper.root, upper.root_degree) if upper else (state.id, state.degree)
        if upper is None or upper.epoch <= state.epoch:
            return []
        self._follow_epoch(upper.epoch, now)
        best = state.best_upper()
        change: list[Effect] = [Send(best, Elect())] if not state.in_core and best not in ("", state.upper) else []
        return self._roles.announce_role() + change

    def _send_beacon(self, now: float) -> list[Effect]:
        state = self._state
        state.beacon_at = now
        self._beacons_sent += 1
        if state.options.epoch_s and now >= state.epoch_at + state.options.epoch_s:
            self._enter_epoch(state.epoch + 1, now)
        beacon = Beacon(state.id, state.degree, self._beacons_sent, state.epoch)
        return [Send(peer, beacon) for peer in state.core_neighbours()]

    def _on_beacon(self, sender: NodeId, beacon: Beacon, now: float) -> list[Effect]:
        state = self._state
        if not state.in_core or state.leaving or not state.neighbours[sender].core:
            return []
        if not 0 <= beacon.seq <= NUMBER_MAX:
            return []
        theirs, ours = (-beacon.root_degree, beacon.root), state.root.rank
        if theirs > ours or beacon.root == state.id or (theirs == ours and beacon.seq <= self._beacon_seq):
            return []
        is_change = (state.root.id, state.root.parent) != (beacon.root, sender)
        if theirs < ours:
            state.stay_unstable(now + state.beat_s)
        # The parent is whoever brings a beacon first: the parents of one beacon form a tree, whatever has changed.
        state.root = RootState(beacon.root, beacon.root_degree, sender)
        self._beacon_seq, state.beacon_at = beacon.seq, now
        if beacon.epoch > state.epoch:
            self._follow_epoch(beacon.epoch, now)
        onward: list[Effect] = [Send(peer, beacon) for peer in state.core_neighbours() if peer != sender]
        return onward + (self._roles.announce_role() if is_change else [])

    def _follow_epoch(self, theirs: int, now: float) -> None:
        """Others are in a later epoch: enter it, or come as near to it as one may at once."""
        self._enter_epoch(min(theirs, self._state.epoch + EPOCHS_AT_ONCE), now)

    def _enter_epoch(self, epoch: int, now: float) -> None:
        """Take the ranks anew, and ask again which nodes the core needs."""
        state = self._state
        is_wide = len(state.neighbours) > state.options.delta
        # With weights all that are wide enough come back: which ways are short may be other ones by now.
        has_grown = is_wide and (state.degree <= state.options.delta or state.delays is not None)
        state.epoch, state.epoch_at, state.degree = epoch, now, len(state.neighbours)
        state.kept, state.demotion_tries, state.changed_at = False, 0, now
        if has_grown and not state.in_core and state.upper:
            self._roles.enter_core(now)

    # ── Pieces of the core that lost each other ────────────────────────────────

    def _find_other_pieces(self, now: float) -> list[Effect]:
        """A neighbour that follows a better root than ours for long is in another piece of the core."""
        state = self._state
        ours = state.root.rank
        others = [s for s in state.neighbours.values() if s.decided and not s.leaving and (s.core or s.upper)]
        if not any(root_rank(status) < ours for status in others):
            self._foreign_since = None
            return []
        if self._foreign_since is None:
            self._foreign_since = now
        if now < self._foreign_since + REPAIR_AFTER * state.beat_s:
            return []
        if state.in_core:
            state.stay_unstable(now + SETTLED_AFTER * state.beat_s)
            return self._start_repair(now)
        return [Send(state.upper, Foreign())] if state.upper else []

    def _start_repair(self, now: float) -> list[Effect]:
        """Search for a better-ranked piece, unless a node of this piece has just done so."""
        state = self._state
        if now < self._repaired_at + SETTLED_AFTER * state.beat_s or state.leaving:
            return []
        self._repaired_at = now
        self._round += 1
        search = Repair(state.root.id, state.root.degree, self._round, (state.id,))
        self._repairs_seen.add((state.id, self._round))
        return [Count("repair"), *(Send(peer, search) for peer in state.neighbours)]

    def _on_repair(self, sender: NodeId, search: Repair, now: float) -> list[Effect]:
        state, path = self._state, search.path
        if not path or path[-1] != sender or len(path) >= PATH_MAX:
            return []
        if not self._repairs_seen.add((path[0], search.round)):
            return []
        theirs, ours = (-search.root_degree, search.root), state.root.rank
        if theirs == ours:
            self._repaired_at = now
        if state.in_core and not state.leaving and ours < theirs:
            return [Send(sender, RepairPath(search.round, (*path, state.id)))]
        onward = Repair(search.root, search.root_degree, search.round, (*path, state.id))
        return [Send(peer, onward) for peer in state.neighbours if peer not in path] if not state.leaving else []

    def _on_repair_path(self, round: int, path: tuple[NodeId, ...]) -> list[Effect]:
        state = self._state
        if state.id not in path:
            return []
        at = path.index(state.id)
        if at > 0:
            return [Send(path[at - 1], RepairPath(round, path))]
        if round <= self._bridged or not state.in_core or len(path) < 2:
            return []
        self._bridged = round
        return [Send(path[1], Bridge(path))]

    def _on_bridge(self, path: tuple[NodeId, ...], now: float) -> list[Effect]:
        state = self._state
        if state.id not in path or state.leaving:
            return []
        rest = path[path.index(state.id) + 1 :]
        onward: list[Effect] = [Send(rest[0], Bridge(path))] if rest else []
        return (self._roles.join_core(now) if not state.in_core else []) + onward

    # ── Leaving the core ───────────────────────────────────────────────────────

    def _consider_demotion(self, now: float) -> list[Effect]:
        state = self._state
        if not state.is_idle() or self._asking or self.granted or not state.core_neighbours():
            return []
        if any(state.neighbours[peer].idle and state.rank(peer) > state.own_rank for peer in state.core_neighbours()):
            return []  # It goes first, and would only deny.
        is_settled = now >= state.changed_at + SETTLED_AFTER * state.beat_s and now >= state.unstable_until
        is_agreed = all(state.neighbours[peer].root == state.root.id for peer in state.core_neighbours())
        if not is_settled or not is_agreed or not all(status.decided for status in state.neighbours.values()):
            return []
        if state.delays and any(state.delays.of(peer) is None for peer in state.core_neighbours()):
            return []
        if state.options.demotion == "literal":
            return self._leave_core(state.core_neighbours(), now)
        state.demotion_tries += 1
        if state.demotion_tries > DEMOTION_TRIES_MAX:
            state.kept = True
            return [Count("kept")]
        return self._start_asking(now)

    def _start_asking(self, now: float) -> list[Effect]:
        state = self._state
        self._round += 1
        near = state.core_neighbours()
        self._asking = _DemotionRound(self._round, dict.fromkeys(near), asked=tuple(near))
        ask = DemoteAsk(state.id, state.degree, self._round, relayed=False)
        within = WakeAt(now + ASK_WITHIN * state.beat_s, ("asked", self._round))
        return [*(Send(peer, ask) for peer in self._asking.waiting), within]

    def _on_ask(self, sender: NodeId, ask: DemoteAsk, now: float) -> list[Effect]:
        state, candidate, round = self._state, ask.candidate, ask.round
        if not state.in_core or state.leaving:
            return [Send(sender, DemoteGrant(candidate, round, ()))]
        if candidate == state.id or (not ask.relayed and candidate != sender):
            return []
        if state.is_idle() and state.own_rank > (-ask.degree, candidate):
            return [Send(sender, DemoteDeny(candidate, round))]
        effects = self._stop_asking() if self._asking else []
        if len(self.granted) >= NEIGHBOURS_MAX or len(self._relays) >= NEIGHBOURS_MAX:
            return [*effects, Send(sender, DemoteDeny(candidate, round))]
        self.granted[candidate] = now + GRANTED_FOR * state.beat_s
        others = [peer for peer in state.core_neighbours() if peer != candidate]
        if ask.relayed or not others:
            return [*effects, Send(sender, DemoteGrant(candidate, round, (self._seen_here(),), self._delays_here()))]
        self._relays = {key: relay for key, relay in self._relays.items() if key[0] != candidate}
        self._relays[candidate, round] = _DemotionRound(round, dict.fromkeys(others))
        onward = DemoteAsk(candidate, ask.degree, round, relayed=True)
        return effects + [Send(peer, onward) for peer in others]

    def _on_grant(self, sender: NodeId, grant: DemoteGrant, now: float) -> list[Effect]:
        state, candidate, round = self._state, grant.candidate, grant.round
        ask = self._asking if candidate == state.id else self._relays.get((candidate, round))
        if ask is None or ask.round != round or sender not in ask.waiting:
            return []
        del ask.waiting[sender]
        ask.seen.update(grant.seen)
        ask.delays.update(grant.delays)
        if ask.waiting:
            return []
        if candidate == state.id:
            return self._decide_demotion(ask, now)
        del self._relays[candidate, round]
        if not state.in_core:
            return [Send(candidate, DemoteGrant(candidate, round, ()))]
        seen, delays = (self._seen_here(), *ask.seen.items()), (*self._delays_here(), *ask.delays.items())
        return [Send(candidate, DemoteGrant(candidate, round, seen, delays))]

    def _seen_here(self) -> tuple[NodeId, tuple[NodeId, ...]]:
        return self._state.id, tuple(self._state.core_neighbours())

    def _delays_here(self) -> tuple[tuple[NodeId, dict[NodeId, float]], ...]:
        state = self._state
        return ((state.id, state.delays.known(state.core_neighbours())),) if state.delays else ()

    def _on_deny(self, candidate: NodeId, round: int) -> list[Effect]:
        if candidate == self._state.id:
            if self._asking and self._asking.round == round:
                self._state.demotion_tries -= 1  # Having to wait is no failure.
                return self._stop_asking()
            return []
        return [Send(candidate, DemoteDeny(candidate, round))] if self._relays.pop((candidate, round), None) else []

    def _decide_demotion(self, ask: _DemotionRound, now: float) -> list[Effect]:
        """All within two hops keep their roles. Leave if the core neighbours are connected by what they have confirmed."""
        state = self._state
        seen = {peer: theirs for peer, theirs in ask.seen.items() if peer != state.id}
        near = [peer for peer in ask.asked if peer in state.neighbours and peer in seen]
        edges = {peer: [third for third in theirs if third in seen] for peer, theirs in seen.items()}
        if not state.is_idle() or self.granted or now < state.unstable_until:
            return self._stop_asking()
        if near and global_construction.stay_connected(near, edges) and self._ways_stay_short(near, edges, ask):
            return self._leave_core(near, now)
        state.kept = True
        return [Count("kept"), *self._stop_asking()]

    def _ways_stay_short(self, near: list[NodeId], edges: dict[NodeId, list[NodeId]], ask: _DemotionRound) -> bool:
        """Where links are weighed: whether the ways around this node are short enough, by what others have measured."""
        delays = self._state.delays
        if delays is None:
            return True
        ways = {peer: self._measured(peer, to, ask) for peer, to in edges.items()}
        return link_delays.ways_stay_short(delays.known(near), ways, self._state.options.stretch)

    def _measured(self, peer: NodeId, ends: list[NodeId], ask: _DemotionRound) -> dict[NodeId, float]:
        """Delays of a node's links to these ends; what it has not measured, or cannot be, is no way."""
        told = ask.delays.get(peer, {})
        return {end: told[end] for end in ends if told.get(end, -1.0) >= 0.0}

    def _leave_core(self, near: list[NodeId], now: float) -> list[Effect]:
        state = self._state
        upper = min(near, key=lambda peer: (not state.neighbours[peer].has_lowers, state.rank(peer)))
        state.in_core, state.changed_at = False, now
        state.root = RootState(state.neighbours[upper].root, state.neighbours[upper].root_degree)
        return [Count("demoted"), Send(upper, Elect()), *self._roles.announce_role(), *self._stop_asking()]

    def _stop_asking(self) -> list[Effect]:
        asked, self._asking = self._asking, None
        end = DemoteEnd(self._state.id, relayed=False)
        return [Send(peer, end) for peer in asked.asked] if asked else []

    def _on_end(self, sender: NodeId, candidate: NodeId, relayed: bool) -> list[Effect]:
        self.granted.pop(candidate, None)
        self._relays = {key: relay for key, relay in self._relays.items() if key[0] != candidate}
        if relayed or sender != candidate:
            return []
        onward = DemoteEnd(candidate, relayed=True)
        return [Send(peer, onward) for peer in self._state.core_neighbours() if peer != candidate]
