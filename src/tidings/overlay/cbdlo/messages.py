"""What nodes of CBDLO say to each other, beyond the lower layer (`random_graph`).

    events           Walk, TreeStep, Match; in answer Found, Astray, Reached, Stale
    subscribing      Register, Unregister; in answer Registered, Elsewhere
    the tree         Place, Vacate, Copy, Absorb, Inherit, Moved; in answer Done, Refused
    upkeep           Renew, Renewed, Ping, Pong, Missing, Probe, Rival

What has a `call` is sent again until it is answered with that number.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple, TypeAlias

import msgspec

from tidings.overlay.cbdlo.attribute_tree import Registration
from tidings.overlay.messages import EventId, Message, NodeId, Packet, Peer, SubscriptionId
from tidings.overlay.random_graph.access_points import Tree
from tidings.overlay.random_graph.graph import GraphMessage
from tidings.overlay.random_graph.partition import Axis, Cut
from tidings.overlay.random_graph.random_walk import Path


class Ref(msgspec.Struct, frozen=True, array_like=True):
    """A sub-space, by its lower cut, and who looks after it."""

    low: Cut
    owner: Peer


class Placed(msgspec.Struct, frozen=True, array_like=True):
    """A sub-space as its owner knows it. A new owner begins a new `reign`; any change is a new `version`."""

    low: Cut
    high: Cut
    first: Cut
    last: Cut
    reign: int
    version: int
    parent: Ref | None = None
    left: Ref | None = None
    right: Ref | None = None
    before: Ref | None = None
    after: Ref | None = None
    fingers: tuple[Ref, ...] = ()


class Held(NamedTuple):
    """What an owner says of a sub-space it looks after."""

    low: Cut
    reign: int
    version: int
    registered: int


# ── Events ─────────────────────────────────────────────────────────────────────


class Walk(Message, frozen=True):
    """One attribute of an event, looking for somebody who knows the way into its topology."""

    packet: Packet
    axis: Axis
    origin: Peer
    attempt: int
    path: Path


class TreeStep(Message, frozen=True):
    """One attribute of an event, in its topology, on its way to the sub-space that holds its value."""

    packet: Packet
    axis: Axis
    origin: Peer
    attempt: int
    path: Path
    steps: int = 0


class Match(Message, frozen=True):
    """An event whose attribute lies in these interests of yours. Call 0 wants no answer."""

    call: int
    packet: Packet
    axis: Axis
    ids: tuple[SubscriptionId, ...]


class Found(Message, frozen=True):
    """The walk has come to a member of the topology."""

    event: EventId
    axis: Axis


class Astray(Message, frozen=True):
    """The walk has ended and found nobody."""

    event: EventId
    axis: Axis
    attempt: int


class Reached(Message, frozen=True):
    """Everybody registered where the event belongs has it."""

    event: EventId
    axis: Axis


class Stale(Message, frozen=True):
    """I do not know the way into this topology any more."""

    axis: Axis


# ── Subscribing ────────────────────────────────────────────────────────────────


class Register(Message, frozen=True):
    """Note this interest in all sub-spaces that it covers."""

    call: int
    axis: Axis
    tree: Tree
    registration: Registration


class Unregister(Message, frozen=True):
    """Forget this interest."""

    call: int
    axis: Axis
    tree: Tree
    id: SubscriptionId


class Registered(Message, frozen=True):
    """It is known wherever it must be; `anchor` is a way into the tree."""

    call: int
    anchor: Ref | None


class Elsewhere(Message, frozen=True):
    """I am not the steward of that; if I know who is, it is this one's."""

    call: int
    axis: Axis
    tree: Tree
    now: Tree | None


# ── The tree ───────────────────────────────────────────────────────────────────


class Place(Message, frozen=True):
    """Look after this sub-space, or know what has changed about it."""

    call: int
    axis: Axis
    tree: Tree
    space: Placed
    whole: bool
    """Whether this is all there is to know, or what has changed since the last version."""
    added: tuple[Registration, ...]
    gone: tuple[SubscriptionId, ...]


class Vacate(Message, frozen=True):
    """No longer look after a sub-space, unless in a later reign than this."""

    call: int
    axis: Axis
    tree: Tree
    low: Cut
    reign: int


class Copy(Message, frozen=True):
    """For a deputy: what is registered. `since` tells when it became one, `serial` which change this belongs to.

    The first in rank takes the steward's place; the next if that one does not.
    """

    call: int
    axis: Axis
    tree: Tree
    rank: int
    since: int
    serial: int
    added: tuple[Registration, ...]
    gone: tuple[SubscriptionId, ...]


class Absorb(Message, frozen=True):
    """Two topologies of one attribute are one too many: take over these registrations of mine."""

    call: int
    axis: Axis
    tree: Tree
    registrations: tuple[Registration, ...]


class Inherit(Message, frozen=True):
    """For a deputy: I am going, be the steward."""

    call: int
    axis: Axis
    tree: Tree


class Moved(Message, frozen=True):
    """The topology you are in is now this one."""

    call: int
    axis: Axis
    old: Tree
    new: Tree


class Done(Message, frozen=True):
    """What the call asked for is done."""

    call: int


class Refused(Message, frozen=True):
    """I am not as you think: I have begun a new life, say, and do not know what you build on."""

    call: int


# ── Upkeep ─────────────────────────────────────────────────────────────────────


class Renew(Message, frozen=True):
    """I am still here, with these interests, and look after these sub-spaces."""

    chatter: ClassVar[bool] = True
    axis: Axis
    tree: Tree
    me: Peer
    ids: tuple[SubscriptionId, ...]
    held: tuple[Held, ...]
    complete: bool = True
    """Whether these are all; a list that is too long is cut."""


class Renewed(Message, frozen=True):
    """Noted. These interests of yours I do not know; `anchor` is a way into the tree."""

    chatter: ClassVar[bool] = True
    axis: Axis
    tree: Tree
    unknown: tuple[SubscriptionId, ...]
    anchor: Ref | None


class Ping(Message, frozen=True):
    """Are you there?"""

    chatter: ClassVar[bool] = True


class Pong(Message, frozen=True):
    """Yes, in this life."""

    chatter: ClassVar[bool] = True
    incarnation: int


class Missing(Message, frozen=True):
    """A neighbour of mine in the tree does not answer."""

    chatter: ClassVar[bool] = True
    axis: Axis
    tree: Tree
    peer: NodeId


class Probe(Message, frozen=True):
    """Others say that you, in this life, do not answer."""

    call: int
    incarnation: int


class Rival(Message, frozen=True):
    """There is another topology for an attribute of yours."""

    chatter: ClassVar[bool] = True
    axis: Axis
    tree: Tree


CbdloMessage: TypeAlias = (
    Walk
    | TreeStep
    | Match
    | Found
    | Astray
    | Reached
    | Stale
    | Register
    | Unregister
    | Registered
    | Elsewhere
    | Place
    | Vacate
    | Copy
    | Absorb
    | Inherit
    | Moved
    | Done
    | Refused
    | Renew
    | Renewed
    | Ping
    | Pong
    | Missing
    | Probe
    | Rival
    | GraphMessage
)
