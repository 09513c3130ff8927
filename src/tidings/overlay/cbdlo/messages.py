"""What nodes of CBDLO say to each other, beyond the lower layer (`random_graph`).

    events           Walk, TreeStep, Match; in answer Found, Astray, Reached, Stale
    subscribing      Register, Unregister; in answer Registered, Elsewhere
    the tree         Place, Vacate, Copy, Absorb, Inherit, Moved; in answer Done, Refused
    upkeep           Renew, Renewed, Ping, Pong, Missing, Probe, Rival

What has a `request` is sent again until it is answered with that number.
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
    """A sub-space, by its lower cut, and who looks after it."""

    low: Cut
    owner: Peer


class PartitionState(msgspec.Struct, frozen=True, array_like=True):
    """A sub-space as its owner knows it. A new owner begins a new `epoch`; any change is a new `version`."""

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
    """What an owner says of a sub-space it looks after."""

    low: Cut
    epoch: int
    version: int
    registered: int


# ── Events ─────────────────────────────────────────────────────────────────────


class Walk(Message, frozen=True):
    """One attribute of an event, looking for somebody who knows the way into its topology."""

    packet: Packet
    axis: AttributeAxis
    origin: Peer
    attempt: int
    path: WalkPath


class TreeStep(Message, frozen=True):
    """One attribute of an event, in its topology, on its way to the sub-space that holds its value."""

    packet: Packet
    axis: AttributeAxis
    origin: Peer
    attempt: int
    path: WalkPath
    steps: int = 0


class Match(Message, frozen=True):
    """An event whose attribute lies in these interests of yours. Call 0 wants no answer."""

    request: int
    packet: Packet
    axis: AttributeAxis
    ids: tuple[SubscriptionId, ...]


class TopologyFound(Message, frozen=True, tag="Found"):
    """The walk has come to a member of the topology."""

    event: EventId
    axis: AttributeAxis


class WalkFailed(Message, frozen=True, tag="Astray"):
    """The walk has ended and found nobody."""

    event: EventId
    axis: AttributeAxis
    attempt: int


class SubscribersNotified(Message, frozen=True, tag="Reached"):
    """Everybody registered where the event belongs has it."""

    event: EventId
    axis: AttributeAxis


class StaleAccessPoint(Message, frozen=True, tag="Stale"):
    """I do not know the way into this topology any more."""

    axis: AttributeAxis


# ── Subscribing ────────────────────────────────────────────────────────────────


class Register(Message, frozen=True):
    """Note this interest in all sub-spaces that it covers."""

    request: int
    axis: AttributeAxis
    tree: TreeId
    registration: Registration


class Unregister(Message, frozen=True):
    """Forget this interest."""

    request: int
    axis: AttributeAxis
    tree: TreeId
    id: SubscriptionId


class Registered(Message, frozen=True):
    """It is known wherever it must be; `anchor` is a way into the tree."""

    request: int
    anchor: PartitionRef | None


class NotCoordinator(Message, frozen=True, tag="Elsewhere"):
    """I am not the steward of that; if I know who is, it is this one's."""

    request: int
    axis: AttributeAxis
    tree: TreeId
    now: TreeId | None


# ── The tree ───────────────────────────────────────────────────────────────────


class AssignPartition(Message, frozen=True, tag="Place"):
    """Look after this sub-space, or know what has changed about it."""

    request: int
    axis: AttributeAxis
    tree: TreeId
    space: PartitionState
    whole: bool
    """Whether this is all there is to know, or what has changed since the last version."""
    added: tuple[Registration, ...]
    gone: tuple[SubscriptionId, ...]


class RevokePartition(Message, frozen=True, tag="Vacate"):
    """No longer look after a sub-space, unless in a later reign than this."""

    request: int
    axis: AttributeAxis
    tree: TreeId
    low: Cut
    epoch: int


class Replicate(Message, frozen=True, tag="Copy"):
    """For a deputy: what is registered. `since` tells when it became one, `serial` which change this belongs to.

    The first in rank takes the steward's place; the next if that one does not.
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
    """Two topologies of one attribute are one too many: take over these registrations of mine."""

    request: int
    axis: AttributeAxis
    tree: TreeId
    registrations: tuple[Registration, ...]


class TakeOver(Message, frozen=True, tag="Inherit"):
    """For a deputy: I am going, be the steward."""

    request: int
    axis: AttributeAxis
    tree: TreeId


class TopologyMoved(Message, frozen=True, tag="Moved"):
    """The topology you are in is now this one."""

    request: int
    axis: AttributeAxis
    old: TreeId
    new: TreeId


class RequestDone(Message, frozen=True, tag="Done"):
    """What the call asked for is done."""

    request: int


class RequestRefused(Message, frozen=True, tag="Refused"):
    """I am not as you think: I have begun a new life, say, and do not know what you build on."""

    request: int


# ── Upkeep ─────────────────────────────────────────────────────────────────────


class RenewLease(Message, frozen=True, tag="Renew"):
    """I am still here, with these interests, and look after these sub-spaces."""

    chatter: ClassVar[bool] = True
    axis: AttributeAxis
    tree: TreeId
    me: Peer
    ids: tuple[SubscriptionId, ...]
    held: tuple[PartitionSummary, ...]
    complete: bool = True
    """Whether these are all; a list that is too long is cut."""


class LeaseRenewed(Message, frozen=True, tag="Renewed"):
    """Noted. These interests of yours I do not know; `anchor` is a way into the tree."""

    chatter: ClassVar[bool] = True
    axis: AttributeAxis
    tree: TreeId
    unknown: tuple[SubscriptionId, ...]
    anchor: PartitionRef | None


class Ping(Message, frozen=True):
    """Are you there?"""

    chatter: ClassVar[bool] = True


class Pong(Message, frozen=True):
    """Yes, in this life."""

    chatter: ClassVar[bool] = True
    incarnation: int


class PeerSuspected(Message, frozen=True, tag="Missing"):
    """A neighbour of mine in the tree does not answer."""

    chatter: ClassVar[bool] = True
    axis: AttributeAxis
    tree: TreeId
    peer: NodeId


class Probe(Message, frozen=True):
    """Others say that you, in this life, do not answer."""

    request: int
    incarnation: int


class DuplicateTopology(Message, frozen=True, tag="Rival"):
    """There is another topology for an attribute of yours."""

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
    | RequestDone
    | RequestRefused
    | RenewLease
    | LeaseRenewed
    | Ping
    | Pong
    | PeerSuspected
    | Probe
    | DuplicateTopology
    | GraphMessage
)
