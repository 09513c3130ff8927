"""What nodes of CBDLO send each other, besides the messages of the random graph.

    events           Walk, TreeStep, Match; in answer TopologyFound, WalkFailed, SubscribersNotified, StaleAccessPoint
    registration     Register, Unregister; in answer Registered, NotCoordinator
    the tree         AssignPartition, RevokePartition, Replicate, AbsorbTopology, TakeOver, TopologyMoved;
                     in answer OperationDone, OperationRefused
    periodic         RenewLease, LeaseRenewed, Ping, Pong, PeerSuspected, Probe, DuplicateTopology

A message with a `request` number is retransmitted until it is answered with that number.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple, TypeAlias

import msgspec

from tidings.overlay.cbdlo.attribute_tree import Registration
from tidings.overlay.messages import EventId, Message, NodeId, Packet, Peer, SubscriptionId
from tidings.overlay.random_graph.access_points import TreeId
from tidings.overlay.random_graph.graph import GraphMessage
from tidings.overlay.random_graph.partition import AttributeAxis, Cut
from tidings.overlay.random_graph.random_walk import WalkPath


class PartitionRef(msgspec.Struct, frozen=True, array_like=True):
    """A partition, by its lower cut, and its owner."""

    low: Cut
    owner: Peer


class PartitionState(msgspec.Struct, frozen=True, array_like=True):
    """A partition as its owner knows it. A new owner begins a new `epoch`; each change is a new `version`."""

    low: Cut
    high: Cut
    first: Cut
    last: Cut
    epoch: int
    version: int
    parent: PartitionRef | None = None
    left: PartitionRef | None = None
    right: PartitionRef | None = None
    before: PartitionRef | None = None
    after: PartitionRef | None = None
    fingers: tuple[PartitionRef, ...] = ()


class PartitionSummary(NamedTuple):
    """What an owner reports of a partition, for the coordinator to compare."""

    low: Cut
    epoch: int
    version: int
    registered: int


# ── Events ─────────────────────────────────────────────────────────────────────


class Walk(Message, frozen=True):
    """An event on a random walk to the topology of one of its attributes."""

    packet: Packet
    axis: AttributeAxis
    origin: Peer
    attempt: int
    path: WalkPath


class TreeStep(Message, frozen=True):
    """An event inside the topology of one of its attributes, on its way to the partition that contains its value."""

    packet: Packet
    axis: AttributeAxis
    origin: Peer
    attempt: int
    path: WalkPath
    steps: int = 0


class Match(Message, frozen=True):
    """An event for the subscriber with these interests. Request 0 needs no answer."""

    request: int
    packet: Packet
    axis: AttributeAxis
    ids: tuple[SubscriptionId, ...]


class TopologyFound(Message, frozen=True, tag="Found"):
    """To the publisher: the walk has reached a member of the topology."""

    event: EventId
    axis: AttributeAxis


class WalkFailed(Message, frozen=True, tag="Astray"):
    """To the publisher: the walk has ended without finding the topology."""

    event: EventId
    axis: AttributeAxis
    attempt: int


class SubscribersNotified(Message, frozen=True, tag="Reached"):
    """To the publisher: all subscribers registered in the event's partition have the event."""

    event: EventId
    axis: AttributeAxis


class StaleAccessPoint(Message, frozen=True, tag="Stale"):
    """The sender is no longer a member of this attribute's topology."""

    axis: AttributeAxis


# ── Registration ───────────────────────────────────────────────────────────────


class Register(Message, frozen=True):
    """A subscriber asks the coordinator to store its interest in all partitions that the interest covers."""

    request: int
    axis: AttributeAxis
    tree: TreeId
    registration: Registration


class Unregister(Message, frozen=True):
    """A subscriber withdraws its interest."""

    request: int
    axis: AttributeAxis
    tree: TreeId
    id: SubscriptionId


class Registered(Message, frozen=True):
    """All owners and replicas have stored the interest; `anchor` is a partition to enter the tree by."""

    request: int
    anchor: PartitionRef | None


class NotCoordinator(Message, frozen=True, tag="Elsewhere"):
    """The sender does not coordinate that topology; `now` is the topology that replaced it, if the sender knows."""

    request: int
    axis: AttributeAxis
    tree: TreeId
    now: TreeId | None


# ── The tree ───────────────────────────────────────────────────────────────────


class AssignPartition(Message, frozen=True, tag="Place"):
    """The coordinator assigns a partition to an owner, or tells its owner what has changed."""

    request: int
    axis: AttributeAxis
    tree: TreeId
    state: PartitionState
    whole: bool
    """Whether `added` holds all registrations, or only those since the last version."""
    added: tuple[Registration, ...]
    gone: tuple[SubscriptionId, ...]


class RevokePartition(Message, frozen=True, tag="Vacate"):
    """The coordinator takes a partition from its owner, unless it was assigned again in a later epoch."""

    request: int
    axis: AttributeAxis
    tree: TreeId
    low: Cut
    epoch: int


class Replicate(Message, frozen=True, tag="Copy"):
    """Changed registrations for a replica, which is one `since` that round; `serial` is the round of this change.

    The replica of rank 0 takes over from a failed coordinator; the next one does if rank 0 fails too.
    """

    request: int
    axis: AttributeAxis
    tree: TreeId
    rank: int
    since: int
    serial: int
    added: tuple[Registration, ...]
    gone: tuple[SubscriptionId, ...]


class AbsorbTopology(Message, frozen=True, tag="Absorb"):
    """The coordinator of one topology hands its registrations to that of another, for the same attribute."""

    request: int
    axis: AttributeAxis
    tree: TreeId
    registrations: tuple[Registration, ...]


class TakeOver(Message, frozen=True, tag="Inherit"):
    """A coordinator that leaves asks a replica to become the coordinator."""

    request: int
    axis: AttributeAxis
    tree: TreeId


class TopologyMoved(Message, frozen=True, tag="Moved"):
    """To the members of a topology: another one has replaced it."""

    request: int
    axis: AttributeAxis
    old: TreeId
    new: TreeId


class OperationDone(Message, frozen=True, tag="Done"):
    """The receiver has carried out the request."""

    request: int


class OperationRefused(Message, frozen=True, tag="Refused"):
    """The receiver lacks the state that the request builds on: it has restarted, for example."""

    request: int


# ── Periodic ───────────────────────────────────────────────────────────────────


class RenewLease(Message, frozen=True, tag="Renew"):
    """A member is alive, with these interests and these partitions."""

    chatter: ClassVar[bool] = True
    axis: AttributeAxis
    tree: TreeId
    me: Peer
    ids: tuple[SubscriptionId, ...]
    owned: tuple[PartitionSummary, ...]
    complete: bool = True
    """Whether the lists are complete; one that is too long is truncated."""


class LeaseRenewed(Message, frozen=True, tag="Renewed"):
    """The coordinator's answer: the interests that it does not know, and a partition to enter the tree by."""

    chatter: ClassVar[bool] = True
    axis: AttributeAxis
    tree: TreeId
    unknown: tuple[SubscriptionId, ...]
    anchor: PartitionRef | None


class Ping(Message, frozen=True):
    """The receiver answers with Pong."""

    chatter: ClassVar[bool] = True


class Pong(Message, frozen=True):
    """The sender is alive, in this incarnation."""

    chatter: ClassVar[bool] = True
    incarnation: int


class PeerSuspected(Message, frozen=True, tag="Missing"):
    """To the coordinator: a member does not answer the sender."""

    chatter: ClassVar[bool] = True
    axis: AttributeAxis
    tree: TreeId
    peer: NodeId


class Probe(Message, frozen=True):
    """The coordinator asks a suspected member whether it still runs in this incarnation."""

    request: int
    incarnation: int


class DuplicateTopology(Message, frozen=True, tag="Rival"):
    """There is another topology for the same attribute."""

    chatter: ClassVar[bool] = True
    axis: AttributeAxis
    tree: TreeId


CbdloMessage: TypeAlias = (
    Walk
    | TreeStep
    | Match
    | TopologyFound
    | WalkFailed
    | SubscribersNotified
    | StaleAccessPoint
    | Register
    | Unregister
    | Registered
    | NotCoordinator
    | AssignPartition
    | RevokePartition
    | Replicate
    | AbsorbTopology
    | TakeOver
    | TopologyMoved
    | OperationDone
    | OperationRefused
    | RenewLease
    | LeaseRenewed
    | Ping
    | Pong
    | PeerSuspected
    | Probe
    | DuplicateTopology
    | GraphMessage
)
