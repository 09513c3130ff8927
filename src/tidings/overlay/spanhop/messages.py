"""Spanhop's messages and the records inside them, in the order in which a broker's life needs them.

    RoutedEvent, Routed       an event, or a control payload, on its way to a point; acknowledged hop by hop (HopAck)
    RoutedDatagram            a payload that is sent periodically, therefore once and without acknowledgement
    Notification, …           an event for its subscribers: straight to one home broker, or multicast along the space
    Stored                    a zone has stored its part of a subscription
    AdvertisementUpdate, …    which broker owns which zones, exchanged between neighbours
    Offer … HandoffAck        the transfer of a zone from one broker to another
    IndexPut, NearQuery, …    network coordinates and the index of them (MGNP)

A class that was renamed keeps its first name as its tag on the wire.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, TypeAlias

import msgspec

from tidings.overlay.interest import Interest
from tidings.overlay.messages import Message, NodeId, OriginRecord, Packet, Peer, SubscriptionId, in_messages
from tidings.overlay.spanhop.next_hop import Point, RouteHeader
from tidings.space import Path, Zone

# ── Records ──────────────────────────────────────────────────────────────────


class ZoneClaim(msgspec.Struct, frozen=True, array_like=True):
    """A broker's claim to a zone. Each change of owner raises the epoch; where claims overlap, the highest wins."""

    path: Path
    epoch: int


class ZoneAdvertisement(OriginRecord, frozen=True, array_like=True):
    """The zones that a broker says it owns, and its network coordinates. A later version replaces an earlier."""

    peer: Peer
    version: int
    claims: tuple[ZoneClaim, ...]
    at: tuple[float, ...] = ()  # Network coordinates, as soon as the broker knows them.
    seal: bytes = b""

    def speaker(self) -> NodeId:
        return self.peer.id

    def statement(self) -> tuple[Any, ...]:
        return self.peer.id, self.version, self.claims, self.at


class TableEntry(msgspec.Struct, frozen=True, array_like=True):
    """A broker and the zone it owned when it was recorded in the neighbour table of an ancestor."""

    peer: Peer
    path: Path


NeighbourTable: TypeAlias = tuple[TableEntry, ...]  # The neighbours of one ancestor, as they were recorded.


class SubscriptionRecord(OriginRecord, frozen=True, array_like=True):
    """A subscription as zones store it. Of two with the same id the later version wins; `deleted` is a tombstone."""

    interest: Interest
    home: Peer
    home_point: Point
    version: int
    deleted: bool = False
    seal: bytes = b""

    def speaker(self) -> NodeId:
        return self.home.id if self.home.id == self.interest.id.origin else ""

    def statement(self) -> tuple[Any, ...]:
        return self.interest.statement(), self.home.id, self.home_point, self.version, self.deleted


RECORDS_PER_MESSAGE = 256  # If they are small.


def in_parts(records: Sequence[SubscriptionRecord]) -> list[tuple[SubscriptionRecord, ...]]:
    """Records in chunks, one for each message."""
    return in_messages(records, RECORDS_PER_MESSAGE)


# ── Routed to a point ────────────────────────────────────────────────────────


class PlaceSubscription(Message, frozen=True, tag="Plant"):
    """Store this subscription in every zone that the piece touches; with `acknowledge`, answer its home with Stored."""

    record: SubscriptionRecord
    piece: Zone
    acknowledge: bool = True


class Join(Message, frozen=True):
    """The joiner asks for a zone. `redirected`: another broker has sent the request on to one with a larger zone."""

    joiner: Peer
    number: int
    redirected: bool = False


class FindPair(Message, frozen=True):
    """Asks for a broker that can leave its own zone to its sibling and take over one of the asker's."""

    asker: Peer
    number: int


class DomainQuery(Message, frozen=True):
    """Asks who owns this place now, to refresh an entry in the table of an ancestor."""

    asker: Peer
    path: Path


class OwnershipProbe(Message, frozen=True, tag="Patrol"):
    """Routed to a zone that its sender owns. If it arrives at another broker, two brokers claim the zone."""

    advert: ZoneAdvertisement


class IndexPut(Message, OriginRecord, frozen=True):
    """Index this broker, at these network coordinates, under the zone of this path. A later version replaces it."""

    path: Path
    peer: Peer
    at: tuple[float, ...]
    version: int
    deleted: bool = False
    home: Path = ()  # The broker's own zone, for those who look for a broker in a part of the path's zone.
    seal: bytes = b""

    def speaker(self) -> NodeId:
        return self.peer.id

    def statement(self) -> tuple[Any, ...]:
        return self.path, self.peer.id, self.peer.incarnation, self.at, self.version, self.deleted, self.home

    @property
    def age(self) -> tuple[int, int]:
        """Of two records of one broker under one path, the one with the higher age is the later."""
        return self.peer.incarnation, self.version


class PendingZone(msgspec.Struct, frozen=True, array_like=True):
    """A zone that a query has yet to visit: its ring, its owner, and its point nearest to the one sought."""

    ring: int
    owner: NodeId
    point: Point


class NearQuery(Message, frozen=True):
    """Asks which brokers in the zone of this path are near these network coordinates."""

    path: Path
    asker: Peer
    at: tuple[float, ...]
    point: Point
    ring: int = 0  # How many rings of zones lie between this one and the first.
    asked: tuple[NodeId, ...] = ()
    pending: tuple[PendingZone, ...] = ()  # To visit, in this order, if nobody is indexed here.


Payload: TypeAlias = PlaceSubscription | Join | FindPair | DomainQuery | OwnershipProbe | IndexPut | NearQuery


class RoutedEvent(Message, frozen=True, tag="Carry"):
    """An event for every zone that the piece touches."""

    number: int
    route: RouteHeader
    packet: Packet
    piece: Zone
    span: Path | None = None  # The recorded zone for which the receiver was chosen from an ancestor's table.


class Routed(Message, frozen=True):
    """A control payload on its way to a point."""

    number: int
    route: RouteHeader
    payload: Payload
    span: Path | None = None


class RoutedDatagram(Message, frozen=True, tag="Whisper"):
    """A payload that is sent periodically: nobody acknowledges it, the next one makes up for a loss."""

    chatter: ClassVar[bool] = True
    route: RouteHeader
    payload: Payload


class HopAck(Message, frozen=True, tag="Got"):
    """The receiver has taken over the message of this number."""

    number: int


class LocatedHopAck(Message, frozen=True, tag="GotAt"):
    """A HopAck to a broker that took this one from its tables of ancestors: it also names the zones owned now."""

    number: int
    zones: tuple[Path, ...]


class WrongDomain(Message, frozen=True):
    """The sender of a message took this broker for an owner inside the span; it is not."""

    span: Path


class DomainAnswer(Message, frozen=True):
    """Answers a DomainQuery: `owner` is in that zone."""

    path: Path
    owner: Peer


class LocatedDomainAnswer(Message, frozen=True):
    """A DomainAnswer where all tables are used together: it also names the zones that the owner owns now."""

    path: Path
    owner: Peer
    zones: tuple[Path, ...]


# ── To home brokers ──────────────────────────────────────────────────────────


class Notification(Message, frozen=True, tag="Notify"):
    """An event that matches some subscriptions of the receiver."""

    number: int
    packet: Packet
    subscriptions: tuple[SubscriptionId, ...]


class Target(msgspec.Struct, frozen=True, array_like=True):
    """A home broker, and a point of the zone it owned when it subscribed."""

    home: Peer
    point: Point
    subscriptions: tuple[SubscriptionId, ...]


class MulticastNotification(Message, frozen=True, tag="Tell"):
    """An event for several home brokers, forwarded along the space: one copy for all that share the next hop."""

    number: int
    packet: Packet
    targets: tuple[Target, ...]
    trace: tuple[NodeId, ...] = ()


class Stored(Message, frozen=True):
    """A zone has stored this version of a subscription for this part of its box."""

    id: SubscriptionId
    version: int
    part: Zone


class ReplicaUpdate(Message, frozen=True, tag="Copies"):
    """Records of the sender's zone, which the receiver keeps in case the sender fails."""

    path: Path
    records: tuple[SubscriptionRecord, ...]


class ReplicaRefresh(ReplicaUpdate, frozen=True, tag="Recopied"):
    """The same, sent periodically."""

    chatter: ClassVar[bool] = True


class Records(Message, frozen=True):
    """Records of a zone that the receiver owns now."""

    records: tuple[SubscriptionRecord, ...]


# ── Between neighbours ───────────────────────────────────────────────────────


class Heartbeat(Message, frozen=True):
    """The sender is alive, its advertisement has this version, and it knows the receiver's in that one."""

    chatter: ClassVar[bool] = True
    incarnation: int
    version: int
    known_version: int


class AdvertisementRequest(Message, frozen=True, tag="Ask"):
    """Asks for the receiver's advertisement."""

    chatter: ClassVar[bool] = True


class AdvertisementUpdate(Message, frozen=True, tag="Update"):
    """The sender's advertisement, and those of its neighbours."""

    advert: ZoneAdvertisement
    neighbours: tuple[ZoneAdvertisement, ...]


class AdvertisementGossip(AdvertisementUpdate, frozen=True, tag="Rumour"):
    """The same, sent periodically."""

    chatter: ClassVar[bool] = True


# ── Zone transfer ────────────────────────────────────────────────────────────


class Busy(Message, frozen=True):
    """The receiver cannot have a zone from this broker now and should ask again, perhaps elsewhere."""

    number: int


class ZoneDescriptor(msgspec.Struct, frozen=True, array_like=True):
    """A zone and its state: the claim to it, the tables of its ancestors, its neighbours, its part of the index."""

    claim: ZoneClaim
    ancestors: tuple[NeighbourTable, ...]
    neighbours: tuple[ZoneAdvertisement, ...]
    index: tuple[IndexPut, ...] = ()


class Offer(Message, frozen=True):
    """Offers a zone to a newcomer. The records come in parts; each part is accepted before the next is sent."""

    number: int
    descriptor: ZoneDescriptor
    records: tuple[SubscriptionRecord, ...]
    part: int
    last: bool


class Accept(Message, frozen=True):
    """The newcomer has this part of the offer."""

    number: int
    part: int


class Committed(Message, frozen=True):
    """The zone belongs to the newcomer from now on; these records arrived during the transfer."""

    number: int
    records: tuple[SubscriptionRecord, ...]


class Handoff(Message, frozen=True, tag="Hand"):
    """Asks the receiver to take over a zone: to `merge` it with its sibling, or to own it beside its own."""

    number: int
    descriptor: ZoneDescriptor
    records: tuple[SubscriptionRecord, ...]
    merge: bool
    part: int
    last: bool


class HandoffAck(Message, frozen=True, tag="Took"):
    """The receiver has this part of the handoff; after the last part the zone is its own."""

    number: int
    part: int


class HandoffRefused(Message, frozen=True, tag="Refused"):
    """The receiver cannot take the zone now."""

    number: int


class PairFound(Message, frozen=True):
    """Answers a FindPair: `taker` can take over a zone."""

    number: int
    taker: Peer


# ── Network coordinates ──────────────────────────────────────────────────────


class NearAnswer(Message, frozen=True):
    """Brokers in the zone of this path, as they have indexed themselves."""

    path: Path
    found: tuple[IndexPut, ...]


class IndexChanged(Message, frozen=True):
    """An earlier NearAnswer about this zone is out of date."""

    path: Path


class Ping(Message, frozen=True):
    """Measures the round trip time."""

    chatter: ClassVar[bool] = True
    number: int


class Pong(Message, frozen=True):
    """Answers a Ping with the sender's Vivaldi coordinates and its estimate of their error."""

    chatter: ClassVar[bool] = True
    number: int
    at: tuple[float, ...]
    error: float


class LandmarkRequest(Message, frozen=True, tag="LandmarkAsk"):
    """Asks for the coordinates of the landmarks."""

    chatter: ClassVar[bool] = True


class LandmarkRtts(Message, frozen=True):
    """One landmark's round trip times to all landmarks, in their order, for the first landmark to embed."""

    chatter: ClassVar[bool] = True
    rtts: tuple[float, ...]


class Landmarks(Message, frozen=True):
    """The landmarks, their coordinates, and the bounds within which all coordinates are taken to lie."""

    chatter: ClassVar[bool] = True
    peers: tuple[Peer, ...]
    at: tuple[tuple[float, ...], ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


SpanhopMessage: TypeAlias = (
    RoutedEvent
    | Routed
    | RoutedDatagram
    | HopAck
    | LocatedHopAck
    | WrongDomain
    | DomainAnswer
    | LocatedDomainAnswer
    | Notification
    | MulticastNotification
    | Stored
    | ReplicaUpdate
    | ReplicaRefresh
    | Records
    | Heartbeat
    | AdvertisementRequest
    | AdvertisementUpdate
    | AdvertisementGossip
    | Busy
    | Offer
    | Accept
    | Committed
    | Handoff
    | HandoffAck
    | HandoffRefused
    | PairFound
    | NearAnswer
    | IndexChanged
    | Ping
    | Pong
    | LandmarkRequest
    | LandmarkRtts
    | Landmarks
)
