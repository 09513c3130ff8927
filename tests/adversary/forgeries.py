"""What a hostile member says in the name of another broker, in each overlay's own messages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tidings.overlay import EventId, Everything, Header, Interest, Packet, Peer, SubscriptionId, View
from tidings.overlay.baselines.flooding import Flood
from tidings.overlay.baselines.gossip import GossipEvent
from tidings.overlay.cbdlo.attribute_tree import Registration
from tidings.overlay.cbdlo.messages import AbsorbTopology
from tidings.overlay.hermes.messages import ToRendezvous
from tidings.overlay.immune.messages import Advertise, EventBroadcast
from tidings.overlay.immune.reverse_path import Advert, AdvertId
from tidings.overlay.irbr.filter_table import EntryState, FailureNotice, FilterEntry
from tidings.overlay.irbr.messages import UPDATE, EventMulticast, TaskId, UpdateMulticast, content_mark
from tidings.overlay.prefix.messages import Heartbeat
from tidings.overlay.random_graph.access_points import AccessPoint, TreeId
from tidings.overlay.random_graph.graph import AccessPointAnnouncement
from tidings.overlay.random_graph.partition import AttributeAxis
from tidings.overlay.spanhop.messages import (
    AdvertisementUpdate,
    IndexPut,
    Records,
    RoutedDatagram,
    SubscriptionRecord,
    ZoneAdvertisement,
    ZoneClaim,
)
from tidings.overlay.spanhop.next_hop import RouteHeader

FAR = (1 << 64) - 1


def in_anothers_name(victim: Peer, type: str) -> dict[str, list[Any]]:
    """For each overlay what a hostile member says in a victim's name, in the overlay's own messages."""
    id, elsewhere = (
        SubscriptionId(victim.id, victim.incarnation, 1),
        Peer(victim.id, victim.address, victim.incarnation + 9),
    )
    interest = Interest(id, type, Everything())
    axis = AttributeAxis(type, "plate")
    gone = [
        FilterEntry(SubscriptionId(victim.id, victim.incarnation, n), elsewhere, clock, 0, EntryState.GONE)
        for n in range(1, 9)
        for clock in (1 << 40, (1 << 62) - 1)
    ]
    notices = [
        FailureNotice(victim.id, victim.incarnation + 5, clock, final) for clock in (FAR, 99) for final in (False, True)
    ]
    ids = [EventId(victim.id, victim.incarnation, 1 + n) for n in range(400)]
    ids += [EventId(victim.id, victim.incarnation, (1 << 62) + 1 + n) for n in range(400)]
    forged = [Packet(Header(each, f"~keys/{type}"), View({}), bytes(64) + b"x") for each in ids]
    forged += [Packet(Header(each, "unheard of"), View({})) for each in ids]
    return {
        "irbr": [
            *_updates(victim, [*gone, *notices]),
            *(EventMulticast(packet, 0) for packet in forged),
            Heartbeat(elsewhere, (elsewhere,)),
        ],
        "hermes": [*(ToRendezvous(packet, 0, elsewhere) for packet in forged), Heartbeat(elsewhere, (elsewhere,))],
        "immune": [
            *(EventBroadcast(packet) for packet in forged),
            *(Advertise(Advert(AdvertId(victim.id, victim.incarnation, type), seq)) for seq in (1 << 40, FAR)),
        ],
        "flooding": [Flood(packet, 30) for packet in forged],
        "gossip": [GossipEvent(packet) for packet in forged],
        "spanhop": [
            Records(tuple(SubscriptionRecord(interest, elsewhere, (), v, deleted=True) for v in (1 << 40, FAR))),
            AdvertisementUpdate(ZoneAdvertisement(elsewhere, 1 << 40, (ZoneClaim((), 1 << 40),)), ()),
            *(
                RoutedDatagram(RouteHeader((0,)), IndexPut((), victim, (), version, deleted))
                for version in (1, 1 << 40)
                for deleted in (True, False)
            ),
        ],
        "cbdlo": [
            AbsorbTopology(1, axis, TreeId(elsewhere, 1), (Registration(elsewhere, interest),)),
            AccessPointAnnouncement(AccessPoint(axis, elsewhere, TreeId(elsewhere, 1))),
        ],
    }


def _updates(victim: Peer, updates: Iterable[Any]) -> list[UpdateMulticast]:
    return [
        UpdateMulticast(TaskId(UPDATE, victim.id, victim.incarnation, 1 + n, content_mark(update)), 0, update)
        for n, update in enumerate(updates)
    ]
