"""A hostile member, with genuine papers, says about others what only they may say. The law: it harms only itself.

The honest brokers are processes; the hostile one runs in the test and speaks the overlay's own messages. Each attack
below ended another organisation's subscription, silenced it or sent brokers elsewhere before records were sealed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.live.test_liars import WithLiar, plates, take
from tidings.delivery.durable_interest import BrokerInterests, DurableInterest, sign_advertisement
from tidings.net import DevNetwork, ReadAccess
from tidings.net.clock import now_us
from tidings.net.transport.frames import OverlayMessages
from tidings.node import node_id_of
from tidings.overlay import EventId, Everything, Header, Interest, NodeId, Packet, Peer, SubscriptionId, View
from tidings.overlay.baselines.flooding import Flood
from tidings.overlay.cbdlo.attribute_tree import Registration
from tidings.overlay.cbdlo.messages import AbsorbTopology
from tidings.overlay.hermes.messages import ToRendezvous
from tidings.overlay.immune.messages import Advertise, EventBroadcast
from tidings.overlay.immune.reverse_path import Advert, AdvertId
from tidings.overlay.irbr.filter_table import EntryState, FailureNotice, FilterEntry
from tidings.overlay.irbr.messages import UPDATE, EventMulticast, TaskId, UpdateMulticast, content_mark
from tidings.overlay.pastry.messages import Heartbeat
from tidings.overlay.random_graph.access_points import AccessPoint, TreeId
from tidings.overlay.random_graph.graph import AccessPointAnnouncement
from tidings.overlay.random_graph.partition import AttributeAxis
from tidings.overlay.spanhop.messages import (
    AdvertisementUpdate,
    Records,
    SubscriptionRecord,
    ZoneAdvertisement,
    ZoneClaim,
)
from tidings.security import Identity, Mode

pytestmark = [pytest.mark.live, pytest.mark.slow]

NOWHERE = "127.0.0.1:9"  # Nobody listens there.
FAR = (1 << 64) - 1
READERS = {"ccs": ReadAccess(), "yard": ReadAccess(("plate",))}
MADE_UP = 1000


def overlay_of(victim: Peer, type: str) -> dict[str, list[Any]]:
    """For each overlay what a hostile member says in a victim's name, in the overlay's own messages."""
    id, elsewhere = SubscriptionId(victim.id, victim.incarnation, 1), Peer(victim.id, NOWHERE, victim.incarnation + 9)
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
        "spanhop": [
            Records(tuple(SubscriptionRecord(interest, elsewhere, (), v, deleted=True) for v in (1 << 40, FAR))),
            AdvertisementUpdate(ZoneAdvertisement(elsewhere, 1 << 40, (ZoneClaim((), 1 << 40),)), ()),
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


def run(folder: Path, overlay: str, attack: Callable[[WithLiar], Any]) -> None:
    """The attack, between two batches of events that a live and a durable subscriber of another organisation get."""
    layout = DevNetwork(
        first_port=0, brokers={"police": 1, "ccs": 1, "yard": 1}, readers=READERS, overlay=overlay, mode=Mode.ATTRIBUTE
    )

    async def scenario() -> None:
        async with WithLiar(folder, layout) as network:
            camera, desk = await network.client("police/camera"), await network.client("ccs/desk")
            kept = await desk.subscribe("Numberplate", "speed >= 0", durable="all").ready()
            live = await desk.subscribe("Numberplate", "speed < 1000").ready()
            ids = await camera.publish_many("Numberplate", plates(3))
            assert await take(kept, 3) == ids
            assert set(await take(live, 3)) == set(ids)
            ids = await attack(network) or []
            ids += await camera.publish_many("Numberplate", plates(5))
            assert await take(kept, len(ids)) == ids
            assert set(await take(live, len(ids))) == set(ids)
            # Who is new after the attack gets keys, too: the key manager has not been silenced.
            late = await (await network.client("ccs/desk")).subscribe("Numberplate", "speed >= 3").ready()
            ids = await camera.publish_many("Numberplate", plates(5))
            assert set(await take(late, 2)) == set(ids[3:])
            assert all(broker.is_up for broker in network.brokers.values())

    asyncio.run(scenario())


@pytest.mark.parametrize("overlay", ["irbr", "hermes", "immune", "flooding", "spanhop", "cbdlo"])
def test_what_a_member_says_in_the_name_of_others_changes_nothing(overlay: str, tmp_path: Path) -> None:
    async def attack(network: WithLiar) -> None:
        for victim in ("ccs-1", "police-1"):
            description = Peer(network.id_of(victim), NOWHERE, 1)
            for to in ("police-1", "ccs-1"):
                said = overlay_of(description, network.type_name)[overlay]
                await network.say(to, *(OverlayMessages((network.liar.node.encode(each),)) for each in said))

    run(tmp_path, overlay, attack)


def test_brokers_that_nobody_vouches_for_are_owed_nothing_and_not_dialled(tmp_path: Path) -> None:
    async def attack(network: WithLiar) -> list[str]:
        dialled = 0

        async def count(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal dialled
            dialled += 1
            writer.close()

        server = await asyncio.start_server(count, "127.0.0.1", 0)
        address = "{}:{}".format(*server.sockets[0].getsockname())
        rights = network.liar.node.neighbours.shown()
        made_up = [Identity(n.to_bytes(32, "big")) for n in range(1, 1 + MADE_UP)]
        await network.say("police-1", *(_wants(each, address, network.type_name, rights) for each in made_up))
        camera = await network.client("police/camera")
        ids = await camera.publish_many("Numberplate", plates(20))
        (status,) = await camera.ask("status")
        owed: set[NodeId] = set(status["owed"])
        print(f"{MADE_UP} made-up brokers: {dialled} dials, owed to {len(owed)}")
        assert not owed & {node_id_of(each.public_key) for each in made_up}
        assert dialled == 0
        server.close()
        return ids

    run(tmp_path, "irbr", attack)


def _wants(identity: Identity, address: str, type: str, rights: tuple[tuple[bytes, bytes], ...]) -> Any:
    who = Peer(node_id_of(identity.public_key), address)
    return sign_advertisement(BrokerInterests(who, now_us(), (DurableInterest("all", type, "", 0),)), identity, rights)
