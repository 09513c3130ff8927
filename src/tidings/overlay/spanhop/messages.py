"""What brokers of a partitioned space say to each other, and what travels in it.

Carry, Routed     an event, or anything else, on its way to a point of the space; answered hop by hop with Got
Whisper           the same, said on schedule and not answered
Notify, Tell      an event for those who want it: straight to one home, or along the space to many
Stored            a zone has taken in its part of a subscription
Update, Ask …     who holds which zone, told to neighbours
Offer … Took      a zone changes hands
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, TypeAlias

import msgspec

from tidings.overlay.interest import Interest
from tidings.overlay.messages import Message, NodeId, Packet, Peer, SubscriptionId
from tidings.overlay.spanhop.next_hop import Point, RouteHeader
from tidings.space import Path, Zone


class ZoneClaim(msgspec.Struct, frozen=True, array_like=True):
    """A zone somebody holds. Every change of hands raises the epoch; of two claims the higher one counts."""

    path: Path
    epoch: int


class ZoneAdvertisement(msgspec.Struct, frozen=True, array_like=True):
    """All zones a broker holds, as it said itself, and where it is by network. A later version replaces an earlier one."""

    peer: Peer
    version: int
    claims: tuple[ZoneClaim, ...]
    at: tuple[float, ...] = ()  # Network coordinates, once it knows them.


class TableEntry(msgspec.Struct, frozen=True, array_like=True):
    """A broker and the zone it had when it was recorded in the table of an ancestor."""

    peer: Peer
    path: Path


NeighbourTable: TypeAlias = tuple[TableEntry, ...]  # What was next to one ancestor.


class SubscriptionRecord(msgspec.Struct, frozen=True, array_like=True):
    """A subscription as zones keep it. Of two with the same id the later version counts; `gone` takes it back."""

    interest: Interest
    home: Peer
    home_point: Point
    version: int
    gone: bool = False


RECORDS_AT_ONCE = 256  # In one message.


def in_parts(records: Sequence[SubscriptionRecord]) -> list[tuple[SubscriptionRecord, ...]]:
    """Records as they go into messages, one part each."""
    return [tuple(records[i : i + RECORDS_AT_ONCE]) for i in range(0, len(records), RECORDS_AT_ONCE)]


# ── What travels to a point ──────────────────────────────────────────────────


class PlaceSubscription(Message, frozen=True, tag="Plant"):
    """Keep this subscription in every zone that the piece touches; `told` says whether its home is to be told."""

    record: SubscriptionRecord
    piece: Zone
    told: bool = True


class Join(Message, frozen=True):
    """I would like a zone; `handed` if somebody has passed this on to a neighbour with a larger one."""

    joiner: Peer
    number: int
    handed: bool = False


class FindPair(Message, frozen=True):
    """Who of you can give its zone to its sibling and take one from me?"""

    asker: Peer
    number: int


class DomainQuery(Message, frozen=True):
    """Who is there now? Asked to keep the table of an ancestor fresh."""

    asker: Peer
    path: Path


class OwnershipProbe(Message, frozen=True, tag="Patrol"):
    """I hold the zone that this is on its way to; does anybody else?"""

    card: ZoneAdvertisement


class IndexPut(Message, frozen=True):
    """Keep in mind that this broker, at these network coordinates, is in the zone of this path."""

    path: Path
    peer: Peer
    at: tuple[float, ...]
    version: int
    gone: bool = False
    home: Path = ()  # The broker's own zone: who wants somebody of a part of the path's zone can tell.


class PendingZone(msgspec.Struct, frozen=True, array_like=True):
    """A zone still to be asked: in which ring it lies, whose it is, and its point nearest to the one sought."""

    ring: int
    owner: NodeId
    point: Point


class NearQuery(Message, frozen=True):
    """Which brokers in the zone of this path are near these network coordinates?"""

    path: Path
    asker: Peer
    at: tuple[float, ...]
    point: Point
    ring: int = 0  # How far from the first zone asked this one is.
    asked: tuple[NodeId, ...] = ()
    waiting: tuple[PendingZone, ...] = ()  # To be asked if there is nobody here, in their order.


Payload: TypeAlias = PlaceSubscription | Join | FindPair | DomainQuery | OwnershipProbe | IndexPut | NearQuery


class RoutedEvent(Message, frozen=True, tag="Carry"):
    """An event for every zone that the piece touches."""

    number: int
    route: RouteHeader
    packet: Packet
    piece: Zone
    span: Path | None = None  # The zone in whose name the receiver was chosen from an ancestor's table.


class Routed(Message, frozen=True):
    """Anything else on its way to a point."""

    number: int
    route: RouteHeader
    payload: Payload
    span: Path | None = None


class RoutedDatagram(Message, frozen=True, tag="Whisper"):
    """The same, said on schedule: nobody answers."""

    chatter: ClassVar[bool] = True
    route: RouteHeader
    payload: Payload


class HopAck(Message, frozen=True, tag="Got"):
    """I see to it."""

    number: int


class WrongDomain(Message, frozen=True):
    """You took me for somebody in this zone. I am not."""

    span: Path


class DomainAnswer(Message, frozen=True):
    """I am in the zone you asked about."""

    path: Path
    owner: Peer


# ── What goes to homes ───────────────────────────────────────────────────────


class Notification(Message, frozen=True, tag="Notify"):
    """An event that some subscriptions of yours want."""

    number: int
    packet: Packet
    wanted: tuple[SubscriptionId, ...]


class Target(msgspec.Struct, frozen=True, array_like=True):
    """A home, and a point near which it was when it subscribed."""

    home: Peer
    point: Point
    wanted: tuple[SubscriptionId, ...]


class MulticastNotification(Message, frozen=True, tag="Tell"):
    """An event for several homes, along the space: one copy for all that go the same way."""

    number: int
    packet: Packet
    targets: tuple[Target, ...]
    trace: tuple[NodeId, ...] = ()


class Stored(Message, frozen=True):
    """The subscription, in this version, is now known in this part of its box."""

    id: SubscriptionId
    version: int
    part: Zone


class ReplicaUpdate(Message, frozen=True, tag="Copies"):
    """What my zone keeps, for the case that I am gone."""

    path: Path
    records: tuple[SubscriptionRecord, ...]


class ReplicaRefresh(ReplicaUpdate, frozen=True, tag="Recopied"):
    """The same, said on schedule."""

    chatter: ClassVar[bool] = True


class Records(Message, frozen=True):
    """Subscriptions of a zone that is yours now."""

    records: tuple[SubscriptionRecord, ...]


# ── Who holds what ───────────────────────────────────────────────────────────


class Heartbeat(Message, frozen=True):
    """I am here, my card is in this version, and yours I have in that one."""

    chatter: ClassVar[bool] = True
    incarnation: int
    version: int
    yours: int


class AdvertisementRequest(Message, frozen=True, tag="Ask"):
    """Show me your card."""

    chatter: ClassVar[bool] = True


class AdvertisementUpdate(Message, frozen=True, tag="Update"):
    """My card, and those of my neighbours."""

    card: ZoneAdvertisement
    around: tuple[ZoneAdvertisement, ...]


class AdvertisementGossip(AdvertisementUpdate, frozen=True, tag="Rumour"):
    """The same, said on schedule."""

    chatter: ClassVar[bool] = True


# ── A zone changes hands ─────────────────────────────────────────────────────


class Busy(Message, frozen=True):
    """Not now. Ask again, perhaps elsewhere."""

    number: int


class ZoneDescriptor(msgspec.Struct, frozen=True, array_like=True):
    """A zone with what belongs to it: its claim, its ancestors' tables, whom it borders on."""

    claim: ZoneClaim
    ancestors: tuple[NeighbourTable, ...]
    cards: tuple[ZoneAdvertisement, ...]
    index: tuple[IndexPut, ...] = ()


class Offer(Message, frozen=True):
    """Have this zone. The records come in parts; each is accepted before the next."""

    number: int
    deed: ZoneDescriptor
    records: tuple[SubscriptionRecord, ...]
    part: int
    last: bool


class Accept(Message, frozen=True):
    """I have this part."""

    number: int
    part: int


class Committed(Message, frozen=True):
    """The zone is yours from now on; these records came meanwhile."""

    number: int
    records: tuple[SubscriptionRecord, ...]


class Handoff(Message, frozen=True, tag="Hand"):
    """Take over this zone from me: `merge` it with yours, its sibling, or hold it besides."""

    number: int
    deed: ZoneDescriptor
    records: tuple[SubscriptionRecord, ...]
    merge: bool
    part: int
    last: bool


class HandoffAck(Message, frozen=True, tag="Took"):
    """I have this part; if it was the last, the zone is mine."""

    number: int
    part: int


class HandoffRefused(Message, frozen=True, tag="Refused"):
    """I cannot take it now."""

    number: int


class PairFound(Message, frozen=True):
    """I can take a zone from you."""

    number: int
    taker: Peer


# ── Where in the network ─────────────────────────────────────────────────────


class NearAnswer(Message, frozen=True):
    """Brokers in the zone of this path, with their network coordinates and their own zones."""

    path: Path
    found: tuple[tuple[Peer, tuple[float, ...], Path], ...]


class IndexChanged(Message, frozen=True):
    """What I told you of the brokers in this zone is no longer so."""

    path: Path


class Ping(Message, frozen=True):
    """How far are you?"""

    chatter: ClassVar[bool] = True
    number: int


class Pong(Message, frozen=True):
    """As far as this took; and where I am, with how sure I am of it."""

    chatter: ClassVar[bool] = True
    number: int
    at: tuple[float, ...]
    error: float


class LandmarkRequest(Message, frozen=True, tag="LandmarkAsk"):
    """Where are the landmarks?"""

    chatter: ClassVar[bool] = True


class LandmarkRtts(Message, frozen=True):
    """How far a landmark is from each landmark, in their order; for the one that places them all."""

    chatter: ClassVar[bool] = True
    rtts: tuple[float, ...]


class Landmarks(Message, frozen=True):
    """The landmarks, where each is, and between which bounds all coordinates are taken to lie."""

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
    | WrongDomain
    | DomainAnswer
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
