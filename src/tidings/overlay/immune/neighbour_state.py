"""What one node knows of its neighbours and of its own role: a record that the parts of the protocol share.

`role_election` and `core_maintenance` change it; here it only answers questions. A node
knows each neighbour by its last `NeighbourStatus`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random

from tidings.errors import InputError
from tidings.overlay.failure_detector import FailureDetector
from tidings.overlay.immune.link_delays import LinkDelays
from tidings.overlay.immune.messages import NeighbourStatus
from tidings.overlay.messages import NodeId, Peer

NEIGHBOURS_MAX = 4096  # Four times the largest hub in the lab.

# In heartbeats. A beacon every other one; three missed beacons, as three missed heartbeats, are too many.
BEACON_EVERY, BEACON_LOST_AFTER, SETTLED_AFTER = 2, 6, 4
FORGOTTEN_AFTER = 60  # A link on which nobody answers.

FORWARD_MODES = ("core_flood", "core_elim", "core_tree")
STRETCH_MAX = 100.0


@dataclass(frozen=True, slots=True)
class ImmuneOptions:
    """How a network of this protocol runs; the same for all its nodes."""

    delta: int = 3
    """Nodes with at most so many links are immune."""
    heartbeat_s: float = 1.0
    """0: no heartbeats, for a network that never changes."""
    forward: str = "core_elim"
    """How the core forwards: core_flood, core_elim or core_tree (see the package)."""
    mode: str = "traverse"
    """Broadcast events (traverse), or send them along reverse paths (advertise)."""
    demotion: str = "guarded"
    """How unelected nodes leave the core: all at once, as published (literal), or if it stays connected (guarded)."""
    check: str = "global"
    """How far a precomputed network looks (see `global_construction.guarded`); nodes by themselves look two hops far."""
    epoch_s: float = 300.0
    """After so long ranks are taken anew. 0: never."""
    lowers_max: int = NEIGHBOURS_MAX
    """Immune nodes that one core node forwards to."""
    weight: str = "none"
    """What a link weighs. `delay`: nodes measure round trips; an immune node moves to the nearest upper, and a node
    leaves the core only if ways around it are short. With `none` all links are alike."""
    stretch: float = 1.5
    """With weights: how many times longer the ways around a node may be that leaves the core."""
    acks: bool = True
    """Acknowledge and retransmit broadcasts, hop by hop."""

    def __post_init__(self) -> None:
        for name, allowed in (
            ("forward", FORWARD_MODES),
            ("mode", ("traverse", "advertise")),
            ("demotion", ("literal", "guarded")),
            ("check", ("local", "global")),
            ("weight", ("none", "delay")),
        ):
            if getattr(self, name) not in allowed:
                raise InputError(f"expected {name} to be one of {', '.join(allowed)}, got {getattr(self, name)!r}")
        if self.delta < 0 or self.heartbeat_s < 0 or self.epoch_s < 0 or self.lowers_max < 1:
            raise InputError(f"expected no negative options and lowers_max of at least 1, got {self}")
        if not 1.0 <= self.stretch <= STRETCH_MAX:
            raise InputError(f"expected a stretch from 1 to {STRETCH_MAX:g}, got {self.stretch}")
        if self.weight == "delay" and (self.demotion == "literal" or not self.heartbeat_s):
            raise InputError('weight = "delay" needs heartbeats, which measure delays, and guarded demotion')

    @classmethod
    def paper(cls) -> ImmuneOptions:
        """As published: the three steps taken literally, on a network that never changes, each message sent once."""
        return cls(demotion="literal", forward="core_flood", heartbeat_s=0.0, acks=False)

    @classmethod
    def robust(cls) -> ImmuneOptions:
        """For networks that lose messages and nodes: the defaults."""
        return cls()


@dataclass(slots=True)
class RootState:
    """The root that a core node follows, and its parent on the tree of beacons."""

    id: NodeId
    degree: int
    parent: NodeId = ""

    @property
    def rank(self) -> tuple[int, NodeId]:
        """Smaller is better."""
        return (-self.degree, self.id)


class NeighbourState:
    """One node's links, its neighbours as it knows them, and its own role."""

    def __init__(self, me: Peer, links: tuple[NodeId, ...], options: ImmuneOptions, rng: Random) -> None:
        self.me, self.id, self.options = me, me.id, options
        self.delays = LinkDelays(rng) if options.weight == "delay" else None
        self.beat_s = options.heartbeat_s or 1.0
        self.links: dict[NodeId, None] = dict.fromkeys(links)
        """All links, also those on which nobody answers: the node behind one may come back."""
        self._given = frozenset(links)
        self._silent_since: dict[NodeId, float] = {}
        self.neighbours: dict[NodeId, NeighbourStatus] = {}
        self.alive = FailureDetector(self.beat_s)
        self.losses: dict[NodeId, int] = {}
        """For each link, how often the node behind it was declared dead."""
        self.degree, self.epoch = len(self.links), 0
        self.decided = self.in_core = self.leaving = False
        self.kept = False
        """In the core without lowers, because the core would fall apart without this node."""
        self.demotion_tries = 0
        self.upper: NodeId = ""
        self.lowers: dict[NodeId, float] = {}
        self.children: dict[NodeId, float] = {}
        """On the tree of beacons, and until when each counts as a child."""
        self.root = RootState(self.id, self.degree)
        self.beacon_at = self.changed_at = self.epoch_at = 0.0
        self.unstable_until = -math.inf

    def heard_of(self, peer: NodeId) -> None:
        """There is a link to this node, and somebody answers on it or will."""
        self.links[peer] = None
        self._silent_since.pop(peer, None)

    def fell_silent(self, peer: NodeId, now: float) -> None:
        """Nobody answers on this link any more."""
        self._silent_since[peer] = now

    def forget_silent_links(self, now: float) -> None:
        """Links that came up later, and on which nobody has answered for long, are gone: nodes move. Those that this
        node was given stay, as the nodes behind them may be cut off for any time and know of no one else."""
        for peer, since in list(self._silent_since.items()):
            if now > since + FORGOTTEN_AFTER * self.beat_s:
                del self._silent_since[peer]
                if peer not in self._given:
                    self.links.pop(peer, None)
                    self.losses.pop(peer, None)

    def start_clocks(self, now: float) -> None:
        """All that counts from when the node started."""
        self.beacon_at = self.changed_at = self.epoch_at = now

    def status(self, adverts: int) -> NeighbourStatus:
        """This node as its neighbours are to know it; `adverts` is the fingerprint of the adverts it knows."""
        return NeighbourStatus(
            self.me, self.epoch, self.degree, self.decided, self.in_core, self.leaving, bool(self.lowers),
            self.is_idle(), self.upper, self.root.id, self.root.degree, self.root.parent,
            {peer: self.losses.get(peer, 0) for peer in self.neighbours}, tuple(self.core_neighbours()), adverts,
        )  # fmt: skip

    def core_neighbours(self) -> list[NodeId]:
        return [peer for peer, status in self.neighbours.items() if status.core and not status.leaving]

    def best_upper(self) -> NodeId:
        """The best-ranked core neighbour; empty if there is none."""
        return min(self.core_neighbours(), key=self.rank, default="")

    def nearer_upper(self) -> NodeId:
        """The nearest core neighbour, if that is nearer than the upper by enough to change; empty otherwise."""
        measured = self.delays.known(self.core_neighbours()) if self.delays else {}
        nearest = min(measured, key=lambda peer: (measured[peer], peer), default="")
        return nearest if self.delays and nearest and self.delays.is_nearer(nearest, self.upper) else ""

    def rank(self, peer: NodeId) -> tuple[int, NodeId]:
        """A neighbour's rank; smaller is better."""
        return (-self.neighbours[peer].degree, peer)

    @property
    def own_rank(self) -> tuple[int, NodeId]:
        return (-self.degree, self.id)

    def is_idle(self) -> bool:
        """Whether no immune node needs this core node, and it has not been found to hold the core together."""
        return self.in_core and not self.lowers and not self.kept and not self.leaving

    def is_unstable(self, now: float) -> bool:
        """Whether this node's role is not to be relied on, so that it has to flood."""
        if self.options.demotion == "literal" and self.decided:
            return False
        return not self.decided or now < self.unstable_until or not (self.in_core or self.upper)

    def stay_unstable(self, until: float) -> None:
        """Do not rely on this node's role before then."""
        self.unstable_until = max(self.unstable_until, until)


def root_rank(status: NeighbourStatus) -> tuple[int, NodeId]:
    """The rank of the root that a neighbour follows; smaller is better."""
    return (-status.root_degree, status.root)
