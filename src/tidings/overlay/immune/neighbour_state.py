"""Immune, among neighbours: who is there, how each stands, and in which role oneself.

A node knows each neighbour by its last `NeighbourStatus`. From these it takes its own role: a node
with few links listens and elects an *upper*, one with many enters the *core*. The story
that this is a part of is told in `immune`; `immune_core` keeps the core whole and small.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

from tidings.errors import InputError
from tidings.overlay.failure_detector import FailureDetector
from tidings.overlay.immune.messages import (
    CorePromotion,
    Elect,
    ElectNo,
    ElectOk,
    ImmuneMessage,
    LeaveNotice,
    NeighbourStatus,
    Release,
    RoleChange,
)
from tidings.overlay.messages import NodeId
from tidings.overlay.router import Effect, Place, Router, Send

NEIGHBOURS_MAX = 4096  # Four times the largest hub in the lab.

# In heartbeats. A beacon every other one; three missed beacons, as three missed heartbeats, are too many.
BEACON_EVERY, BEACON_LOST_AFTER, SETTLED_AFTER = 2, 6, 4

FORWARD_MODES = ("core_flood", "core_elim", "core_tree")


@dataclass(frozen=True, slots=True)
class ImmuneOptions:
    """How a network of this protocol is run; the same for all its nodes."""

    delta: int = 3
    heartbeat_s: float = 1.0
    """0: no heartbeats, for a network that never changes."""
    forward: str = "core_elim"
    mode: str = "traverse"
    demotion: str = "guarded"
    check: str = "global"
    """How far a whole network settled at once looks (see `backbone.guarded`); nodes by themselves look two hops far."""
    epoch_s: float = 300.0
    lowers_max: int = NEIGHBOURS_MAX
    acks: bool = True

    def __post_init__(self) -> None:
        for name, allowed in (
            ("forward", FORWARD_MODES),
            ("mode", ("traverse", "advertise")),
            ("demotion", ("literal", "guarded")),
            ("check", ("local", "global")),
        ):
            if getattr(self, name) not in allowed:
                raise InputError(f"expected {name} to be one of {', '.join(allowed)}, got {getattr(self, name)!r}")
        if self.delta < 0 or self.heartbeat_s < 0 or self.epoch_s < 0 or self.lowers_max < 1:
            raise InputError(f"expected no negative settings and room for at least one lower, got {self}")


class Neighbour(Router[ImmuneMessage]):
    """One node among its neighbours: its links, how those at their ends stand, its own role."""

    def __init__(self, place: Place, options: ImmuneOptions | None = None) -> None:
        self.me, self.options, self._rng = place.me, options or ImmuneOptions(), place.rng
        self.id = place.me.id
        self.wires: dict[NodeId, None] = {peer.id: None for peer in place.neighbours}
        """All links there are, also those nobody answers on: they are kept, for the day somebody does."""
        self.near: dict[NodeId, NeighbourStatus] = {}
        self.degree, self.epoch = len(self.wires), 0
        self.decided = self.core = self.kept = self.leaving = False
        self.upper: NodeId = ""
        self.lowers: dict[NodeId, float] = {}
        self.root, self.root_degree, self.parent = self.id, self.degree, ""
        self._beat = self.options.heartbeat_s or 1.0
        self._alive = FailureDetector(self._beat)
        self._begun = self._beacon_at = self._changed_at = self._epoch_at = 0.0
        self._shaky_until = -math.inf
        self._asks = 0
        self._children: dict[NodeId, float] = {}
        self._electing: tuple[NodeId, int] = ("", 0)
        self._losses: dict[NodeId, int] = {}  # By wire.

    # ── What others add to it ──────────────────────────────────────────────────

    @abstractmethod
    def _on_met(self, peer: NodeId, now: float) -> list[Effect]:
        """A neighbour is new, or was gone and is back."""

    @abstractmethod
    def _on_lost(self, peer: NodeId, now: float) -> list[Effect]:
        """A neighbour is gone."""

    @abstractmethod
    def _known_adverts(self) -> int:
        """A fingerprint of the adverts that this node knows."""

    # ── Neighbours ─────────────────────────────────────────────────────────────

    def _on_status(self, sender: NodeId, status: NeighbourStatus, now: float) -> list[Effect]:
        if sender not in self.wires and len(self.wires) >= NEIGHBOURS_MAX:
            return []
        known = self.near.get(sender)
        effects: list[Effect] = []
        if known and (known.me.incarnation != status.me.incarnation or self._forgotten_by(known, status)):
            self._losses[sender] = self._losses.get(sender, 0) - 1  # Its mistake, not to be answered with ours.
            effects += self._lose(sender, now)
            known = None
        self.wires[sender] = None
        self._alive.watch(sender, now)
        self.near[sender] = status
        if known is None or (known.core, known.leaving) != (status.core, status.leaving):
            self._changed_at = now
            effects += self._tell_all() if self.core and self.decided else []
        effects += self._on_met(sender, now) if known is None else []
        effects += self._on_their_role(sender, status, now)
        return effects + (self._stand(now) if self.decided else self._decide_if_all_greeted(now))

    def _forgotten_by(self, known: NeighbourStatus, status: NeighbourStatus) -> bool:
        """Whether a neighbour that knew us took us for dead since; perhaps it knows us again by now."""
        return self.id in known.neighbours and status.neighbours.get(self.id) != known.neighbours[self.id]

    def _on_their_role(self, sender: NodeId, status: NeighbourStatus, now: float) -> list[Effect]:
        """Agree with a neighbour on who is whose upper, lower and child."""
        if status.parent == self.id:
            self._children[sender] = math.inf
        elif self._children.get(sender) == math.inf:
            self._children[sender] = now + 2 * self._beat  # For what the new parent does not send it yet.
        if sender == self.upper and (not status.core or status.leaving):
            self.upper = ""
        if status.core:
            self.lowers.pop(sender, None)
        elif status.upper == self.id:
            return [] if self._take_lower(sender, now) else [Send(sender, ElectNo(self._status()))]
        elif now > self.lowers.get(sender, now) + 2 * self._beat:
            del self.lowers[sender]
        return []

    def _lose(self, peer: NodeId, now: float) -> list[Effect]:
        """A neighbour is gone."""
        status = self.near.pop(peer, None)
        if status is None:
            return []
        self._alive.forget(peer)
        self._losses[peer] = self._losses.get(peer, 0) + 1
        if peer in (self.upper, *self.lowers) or (status.core and self.core):
            self._shaky_until = max(self._shaky_until, now + SETTLED_AFTER * self._beat)
        self.lowers.pop(peer, None)
        self._children.pop(peer, None)
        self.upper = "" if self.upper == peer else self.upper
        if self.parent == peer:
            self.parent = ""
            self._beacon_at = min(self._beacon_at, now - (BEACON_LOST_AFTER - BEACON_EVERY - 1) * self._beat)
        return self._on_lost(peer, now) + self._tell_all() + self._stand(now)

    def _status(self) -> NeighbourStatus:
        return NeighbourStatus(
            self.me, self.epoch, self.degree, self.decided, self.core, self.leaving, bool(self.lowers), self._is_idle(), self.upper,
            self.root, self.root_degree, self.parent, {peer: self._losses.get(peer, 0) for peer in self.near},
            tuple(self._core_near()), self._known_adverts(),
        )  # fmt: skip

    def _core_near(self) -> list[NodeId]:
        return [peer for peer, status in self.near.items() if status.core and not status.leaving]

    def _tell_all(self) -> list[Effect]:
        news = RoleChange(self._status())
        return [Send(peer, news) for peer in self.near]

    def _rank(self, peer: NodeId) -> tuple[int, NodeId]:
        return (-self.near[peer].degree, peer)

    def _is_idle(self) -> bool:
        """Whether nobody needs this core node for itself, and it has not been found to be needed by the core."""
        return self.core and not self.lowers and not self.kept and not self.leaving

    def _root_rank(self, status: NeighbourStatus) -> tuple[int, NodeId]:
        return (-status.root_degree, status.root)

    # ── Roles ──────────────────────────────────────────────────────────────────

    def _decide_if_all_greeted(self, now: float) -> list[Effect]:
        return self._decide(now) if all(peer in self.near for peer in self.wires) else []

    def _decide(self, now: float) -> list[Effect]:
        """Take the first role: by the number of links when all begin together, else that of a listener."""
        if self.decided:
            return []
        self.decided, self._changed_at = True, now
        newcomer = self.me.incarnation > 0 or any(status.epoch > 0 for status in self.near.values())
        self.degree = len(self.wires)
        if not self.near or (self.degree > self.options.delta and not newcomer):
            self._enter_core(now)
        if newcomer:
            self.epoch = max((status.epoch for status in self.near.values()), default=0)
        return self._tell_all() + self._stand(now)

    def _stand(self, now: float) -> list[Effect]:
        """See to it that this node is in the core or has an upper."""
        if not self.decided or self.core or self.upper or self.leaving:
            return []
        if not all(status.decided for status in self.near.values()) and now < self._changed_at + 3 * self._beat:
            return []  # Somebody is still greeting and may be the better choice.
        best = self._best_upper()
        if best and self._electing == (best, round(now / self._beat)):
            return []  # Asked within this heartbeat.
        if best:
            self._electing = (best, round(now / self._beat))
            return [Send(best, Elect())]
        standing = [peer for peer, status in self.near.items() if not status.leaving]
        if not standing:
            return self._join_core(now)
        return [Send(min(standing, key=self._rank), CorePromotion())]

    def _best_upper(self) -> NodeId:
        return min(self._core_near(), key=self._rank, default="")

    def _enter_core(self, now: float) -> None:
        self.core, self.kept, self.upper, self._asks = True, False, "", 0
        self._changed_at = self._beacon_at = now
        self.root, self.root_degree, self.parent = self.id, self.degree, ""
        best = min(self._core_near(), key=lambda peer: self._root_rank(self.near[peer]), default="")
        if best and self._root_rank(self.near[best]) < (-self.degree, self.id):
            self.root, self.root_degree, self.parent = self.near[best].root, self.near[best].root_degree, best

    def _join_core(self, now: float) -> list[Effect]:
        if self.core:
            return self._tell_all()
        self._enter_core(now)
        return self._tell_all()

    def _on_election(self, sender: NodeId, message: Any, now: float) -> list[Effect]:
        match message:
            case Elect():
                return [Send(sender, ElectOk() if self._take_lower(sender, now) else ElectNo(self._status()))]
            case ElectOk():
                return self._on_elected(sender, now)
            case ElectNo(status):
                self.near[sender] = status
                self.upper = "" if self.upper == sender else self.upper
                return self._stand(now)
            case Release():
                self.lowers.pop(sender, None)
            case CorePromotion():
                return self._join_core(now) if self.decided and not self.leaving else []
            case LeaveNotice():
                del self.wires[sender]
                self._losses.pop(sender, None)
                return self._lose(sender, now)
        return []

    def _take_lower(self, peer: NodeId, now: float) -> bool:
        if not self.core or self.leaving or (peer not in self.lowers and len(self.lowers) >= self.options.lowers_max):
            return False
        self.lowers[peer] = now
        return True

    def _on_elected(self, upper: NodeId, now: float) -> list[Effect]:
        if self.core or self.leaving:
            return [Send(upper, Release())]
        release: list[Effect] = [Send(self.upper, Release())] if self.upper and self.upper != upper else []
        self.upper = upper
        return release + self._tell_all()
