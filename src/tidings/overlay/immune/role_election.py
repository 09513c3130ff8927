"""Role election: greeting neighbours, noticing their loss, electing an upper, entering the core.

A node with few links becomes immune and elects an *upper*; one with many enters the *core*.
`core_maintenance` keeps the core connected and small.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

from tidings.overlay.immune.messages import (
    CorePromotion,
    Elect,
    ElectNo,
    ElectOk,
    LeaveNotice,
    NeighbourStatus,
    Release,
    RoleChange,
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
from tidings.overlay.router import Effect, Send


class NeighbourObserver(Protocol):
    """What forwards messages, and so has to know which neighbours there are."""

    def on_neighbour_met(self, peer: NodeId, now: float) -> list[Effect]:
        """A neighbour is new, or was gone and is back."""

    def on_neighbour_lost(self, peer: NodeId, now: float) -> list[Effect]:
        """A neighbour is gone."""

    def adverts_fingerprint(self) -> int:
        """A fingerprint of the adverts that this node knows, for its status."""


class RoleElection:
    """How one node takes its role among its neighbours."""

    def __init__(self, state: NeighbourState, observer: NeighbourObserver) -> None:
        self._state, self._observer = state, observer
        self._electing: tuple[NodeId, int] = ("", 0)  # Whom this node asked, and in which heartbeat.
        self._moved_at = -math.inf  # When it last asked a nearer one.

    def status(self) -> NeighbourStatus:
        """This node as its neighbours are to know it."""
        return self._state.status(self._observer.adverts_fingerprint())

    def announce_role(self) -> list[Effect]:
        """Send this node's status to all neighbours."""
        change = RoleChange(self.status())
        return [Send(peer, change) for peer in self._state.neighbours]

    # ── Neighbours ─────────────────────────────────────────────────────────────

    def on_status(self, sender: NodeId, status: NeighbourStatus, now: float) -> list[Effect]:
        state = self._state
        if sender not in state.links and len(state.links) >= NEIGHBOURS_MAX:
            return []
        known = state.neighbours.get(sender)
        effects: list[Effect] = []
        if known and (known.me.incarnation != status.me.incarnation or self._was_lost_by(known, status)):
            state.losses[sender] = state.losses.get(sender, 0) - 1  # Its mistake, not to be answered with ours.
            effects += self.lose(sender, now)
            known = None
        state.heard_of(sender)
        state.alive.watch(sender, now)
        state.neighbours[sender] = status
        if known is None or (known.core, known.leaving) != (status.core, status.leaving):
            state.changed_at = now
            effects += self.announce_role() if state.in_core and state.decided else []
        effects += self._observer.on_neighbour_met(sender, now) if known is None else []
        effects += self._agree_on_roles(sender, status, now)
        return effects + (self.ensure_role(now) if state.decided else self.decide_if_all_greeted(now))

    def _was_lost_by(self, known: NeighbourStatus, status: NeighbourStatus) -> bool:
        """Whether a neighbour that knew this node declared it dead since; it may know it again by now."""
        id = self._state.id
        return id in known.neighbours and status.neighbours.get(id) != known.neighbours[id]

    def _agree_on_roles(self, sender: NodeId, status: NeighbourStatus, now: float) -> list[Effect]:
        """Agree with a neighbour on who is whose upper, lower and child."""
        state = self._state
        if status.parent == state.id:
            state.children[sender] = math.inf
        elif state.children.get(sender) == math.inf:
            state.children[sender] = now + 2 * state.beat_s  # For what the new parent does not send it yet.
        if sender == state.upper and (not status.core or status.leaving):
            state.upper = ""
        if status.core:
            state.lowers.pop(sender, None)
        elif status.upper == state.id:
            return [] if self._accept_lower(sender, now) else [Send(sender, ElectNo(self.status()))]
        elif now > state.lowers.get(sender, now) + 2 * state.beat_s:
            del state.lowers[sender]
        return []

    def lose(self, peer: NodeId, now: float) -> list[Effect]:
        """A neighbour is gone."""
        state = self._state
        status = state.neighbours.pop(peer, None)
        if status is None:
            return []
        state.alive.forget(peer)
        if state.delays:
            state.delays.forget(peer)
        state.losses[peer] = state.losses.get(peer, 0) + 1
        state.fell_silent(peer, now)
        if peer in (state.upper, *state.lowers) or (status.core and state.in_core):
            state.stay_unstable(now + SETTLED_AFTER * state.beat_s)
        state.lowers.pop(peer, None)
        state.children.pop(peer, None)
        state.upper = "" if state.upper == peer else state.upper
        if state.root.parent == peer:
            state.root.parent = ""
            state.beacon_at = min(state.beacon_at, now - (BEACON_LOST_AFTER - BEACON_EVERY - 1) * state.beat_s)
        return self._observer.on_neighbour_lost(peer, now) + self.announce_role() + self.ensure_role(now)

    # ── Roles ──────────────────────────────────────────────────────────────────

    def decide_if_all_greeted(self, now: float) -> list[Effect]:
        state = self._state
        return self.decide(now) if all(peer in state.neighbours for peer in state.links) else []

    def decide(self, now: float) -> list[Effect]:
        """Take the first role: by the number of links when all nodes begin together, else immune."""
        state = self._state
        if state.decided:
            return []
        state.decided, state.changed_at = True, now
        is_newcomer = state.me.incarnation > 0 or any(status.epoch > 0 for status in state.neighbours.values())
        state.degree = len(state.links)
        if not state.neighbours or (state.degree > state.options.delta and not is_newcomer):
            self.enter_core(now)
        if is_newcomer:
            state.epoch = max((status.epoch for status in state.neighbours.values()), default=0)
        return self.announce_role() + self.ensure_role(now)

    def ensure_role(self, now: float) -> list[Effect]:
        """See to it that this node is in the core or has an upper."""
        state = self._state
        if not state.decided or state.in_core or state.upper or state.leaving:
            return []
        undecided = not all(status.decided for status in state.neighbours.values())
        if undecided and now < state.changed_at + 3 * state.beat_s:
            return []  # Somebody is still greeting and may be the better choice.
        best = state.best_upper()
        if best and self._electing == (best, round(now / state.beat_s)):
            return []  # Asked within this heartbeat.
        if best:
            self._electing = (best, round(now / state.beat_s))
            return [Send(best, Elect())]
        staying = [peer for peer, status in state.neighbours.items() if not status.leaving]
        if not staying:
            return self.join_core(now)
        return [Send(min(staying, key=state.rank), CorePromotion())]

    def move_nearer(self, now: float) -> list[Effect]:
        """Where links are weighed: elect a core neighbour that is nearer than the upper, once the core has settled."""
        state = self._state
        if not state.delays or state.in_core or not state.upper or state.leaving or state.is_unstable(now):
            return []
        if now < max(state.changed_at, self._moved_at) + SETTLED_AFTER * state.beat_s:
            return []
        nearer = state.nearer_upper()
        if not nearer:
            return []
        self._moved_at = now
        return [Send(nearer, Elect())]

    def enter_core(self, now: float) -> None:
        """Become a member of the core, and follow the best root that a core neighbour follows."""
        state = self._state
        state.in_core, state.kept, state.upper, state.demotion_tries = True, False, "", 0
        state.changed_at = state.beacon_at = now
        state.root = RootState(state.id, state.degree)
        best = min(state.core_neighbours(), key=lambda peer: root_rank(state.neighbours[peer]), default="")
        if best and root_rank(state.neighbours[best]) < state.own_rank:
            state.root = RootState(state.neighbours[best].root, state.neighbours[best].root_degree, best)

    def join_core(self, now: float) -> list[Effect]:
        """Enter the core, unless this node is in it, and announce that."""
        if not self._state.in_core:
            self.enter_core(now)
        return self.announce_role()

    def receive(self, sender: NodeId, message: Any, now: float) -> list[Effect]:
        """Take a message of the election."""
        state = self._state
        match message:
            case Elect():
                return [Send(sender, ElectOk() if self._accept_lower(sender, now) else ElectNo(self.status()))]
            case ElectOk():
                return self._on_elected(sender)
            case ElectNo(status):
                state.neighbours[sender] = status
                state.upper = "" if state.upper == sender else state.upper
                return self.ensure_role(now)
            case Release():
                state.lowers.pop(sender, None)
            case CorePromotion():
                return self.join_core(now) if state.decided and not state.leaving else []
            case LeaveNotice():
                del state.links[sender]
                state.losses.pop(sender, None)
                return self.lose(sender, now)
        return []

    def _accept_lower(self, peer: NodeId, now: float) -> bool:
        state = self._state
        is_full = peer not in state.lowers and len(state.lowers) >= state.options.lowers_max
        if not state.in_core or state.leaving or is_full:
            return False
        state.lowers[peer] = now
        return True

    def _on_elected(self, upper: NodeId) -> list[Effect]:
        state = self._state
        if state.in_core or state.leaving:
            return [Send(upper, Release())]
        release: list[Effect] = [Send(state.upper, Release())] if state.upper and state.upper != upper else []
        state.upper = upper
        return release + self.announce_role()
