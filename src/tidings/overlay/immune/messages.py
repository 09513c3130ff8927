"""The messages of immune routing, beside those of reverse paths."""

from __future__ import annotations

from typing import ClassVar, TypeAlias

import msgspec

from tidings.overlay.immune.reverse_path import (
    Advert,
    AdvertConfirm,
    AdvertSubscribe,
    AdvertUnsubscribe,
    Forward,
    Forwarded,
)
from tidings.overlay.messages import Message, NodeId, Packet, Peer


class NeighbourStatus(msgspec.Struct, frozen=True, array_like=True):
    """A node as its neighbours know it."""

    me: Peer
    epoch: int
    degree: int
    decided: bool
    core: bool
    leaving: bool
    has_lowers: bool
    idle: bool
    upper: NodeId
    root: NodeId
    root_degree: int
    parent: NodeId
    neighbours: dict[NodeId, int]
    """Those that answer, and how often each was declared dead: a change tells that neighbour that its state here is gone."""
    core_neighbours: tuple[NodeId, ...]
    adverts: int
    """A fingerprint of the adverts it knows."""


class Hello(Message, frozen=True):
    """My status, on schedule."""

    chatter: ClassVar[bool] = True
    status: NeighbourStatus


class RoleChange(Message, frozen=True, tag="Role"):
    """My status, because something has changed. Answered in kind if `asking`."""

    status: NeighbourStatus
    asking: bool = False


class Elect(Message, frozen=True):
    """Be my upper."""


class ElectOk(Message, frozen=True):
    """I am your upper."""


class ElectNo(Message, frozen=True):
    """I cannot be your upper; this is my status."""

    status: NeighbourStatus


class Release(Message, frozen=True):
    """You are no longer my upper."""


class CorePromotion(Message, frozen=True, tag="Promote"):
    """Join the core: I have no other neighbour that could be my upper."""


class Beacon(Message, frozen=True):
    """The core is connected as far as this travels, and this is its best-ranked node."""

    chatter: ClassVar[bool] = True
    root: NodeId
    root_degree: int
    seq: int
    epoch: int


class Foreign(Message, frozen=True):
    """An immune node to its upper: I have a neighbour in a better-ranked piece of the core."""


class Repair(Message, frozen=True):
    """A search for a better-ranked piece of the core than that of `root`; `path` is the path so far."""

    root: NodeId
    root_degree: int
    round: int
    path: tuple[NodeId, ...]


class RepairPath(Message, frozen=True):
    """The search has found one, at the end of this path; on its way back to the start."""

    round: int
    path: tuple[NodeId, ...]


class Bridge(Message, frozen=True):
    """Everyone on this path joins the core; on its way to the end."""

    path: tuple[NodeId, ...]


class DemoteAsk(Message, frozen=True):
    """May this candidate leave the core? Stay as you are until it has decided."""

    candidate: NodeId
    degree: int
    round: int
    relayed: bool


class DemoteGrant(Message, frozen=True):
    """It may, as far as I and my neighbours are concerned. `seen` are those of us in the core, with their core neighbours."""

    candidate: NodeId
    round: int
    seen: tuple[tuple[NodeId, tuple[NodeId, ...]], ...]
    delays: tuple[tuple[NodeId, dict[NodeId, float]], ...] = ()
    """Where links are weighed by delay: how far each of them is from its core neighbours, in seconds."""


class DemoteDeny(Message, frozen=True):
    """The candidate must wait."""

    candidate: NodeId
    round: int


class DemoteEnd(Message, frozen=True):
    """The candidate has decided."""

    candidate: NodeId
    relayed: bool


class LeaveNotice(Message, frozen=True, tag="Bye"):
    """I leave the network."""


class DelayProbe(Message, frozen=True):
    """Answer at once: I measure how far you are."""

    chatter: ClassVar[bool] = True
    number: int


class DelayAnswer(Message, frozen=True):
    """The answer to the probe with this number."""

    chatter: ClassVar[bool] = True
    number: int


class EventBroadcast(Message, frozen=True, tag="Spread"):
    """An event for every node. `safe`: forward it to all neighbours, whatever your role."""

    packet: Packet
    safe: bool = False


class Advertise(Message, frozen=True):
    """An advert for every node, broadcast like an event."""

    advert: Advert
    safe: bool = False


class RenewAdvert(Message, frozen=True, tag="Renew"):
    """For every node, so that it reaches the publisher: the tree of this advert is broken, reported by `asker` the n-th time."""

    advert: Advert
    asker: NodeId
    nth: int
    safe: bool = False


class BroadcastAck(Message, frozen=True, tag="Ack"):
    """I have received this broadcast."""

    key: str


class AdvertRequest(Message, frozen=True, tag="Pull"):
    """Which adverts do you know?"""

    chatter: ClassVar[bool] = True


class AdvertList(Message, frozen=True, tag="Adverts"):
    """The adverts I know."""

    chatter: ClassVar[bool] = True

    adverts: tuple[Advert, ...]


BroadcastMessage: TypeAlias = EventBroadcast | Advertise | RenewAdvert
ImmuneMessage: TypeAlias = (
    Hello | RoleChange | Elect | ElectOk | ElectNo | Release | CorePromotion | Beacon | Foreign | Repair | RepairPath | Bridge
    | DemoteAsk | DemoteGrant | DemoteDeny | DemoteEnd | LeaveNotice | DelayProbe | DelayAnswer | EventBroadcast | Advertise | RenewAdvert | BroadcastAck | AdvertRequest | AdvertList
    | AdvertSubscribe | AdvertConfirm | AdvertUnsubscribe | Forward | Forwarded
)  # fmt: skip


def key_of(message: BroadcastMessage) -> str:
    """The key that identifies a broadcast."""
    match message:
        case EventBroadcast(packet):
            origin, incarnation, seq = packet.header.id
            return f"e{origin}/{incarnation}/{seq}"
        case Advertise(advert):
            return f"a{advert.id.origin}/{advert.id.incarnation}/{advert.id.type}/{advert.seq}"
        case RenewAdvert(advert, asker, nth):
            return f"r{advert.id.origin}/{advert.id.incarnation}/{advert.id.type}/{advert.seq}/{asker}/{nth}"
