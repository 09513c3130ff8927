"""A hostile member, with genuine papers, says about others what only they may say. The law: it harms only itself.

The honest brokers are processes; the hostile one runs in the test and speaks the overlay's own messages. Each attack
below ended another organisation's subscription, silenced it or sent brokers elsewhere before records were sealed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.adversary.catalogue import OVERLAYS, HostilePlan, judged
from tests.live.test_liars import WithLiar, arrives, plates, take, with_liar
from tidings.delivery.durable_interest import BrokerInterests, DurableInterest, sign_advertisement
from tidings.net import Client, DevNetwork, ReadAccess, Subscription
from tidings.net.clock import now_us
from tidings.node import node_id_of
from tidings.overlay import NodeId, Peer
from tidings.security import Identity, Mode

pytestmark = [pytest.mark.live, pytest.mark.slow]

SEEDS = {overlay: 11 + number for number, overlay in enumerate((*OVERLAYS, "irbr-tapestry"))}
READERS = {"ccs": ReadAccess(), "yard": ReadAccess(("plate",))}
MADE_UP = 1000


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


@pytest.mark.parametrize("overlay", SEEDS)
def test_a_hostile_member_and_a_stranger_harm_only_themselves(overlay: str) -> None:
    """The catalogue, from a fixed seed; `make soak` takes new ones."""
    outcome = judged(HostilePlan(overlay, seed=SEEDS[overlay], attacks=4))
    print("\n".join(outcome.lines))
    assert outcome.wrong == []


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


@pytest.mark.parametrize("readers", [("ccs",), ("ccs", "yard")], ids=["without a right", "with a right"])
def test_a_member_that_asks_for_the_past_gets_what_it_may_and_keeps_nobody_waiting(
    readers: tuple[str, ...], tmp_path: Path
) -> None:
    """Each subscription has the longest condition there may be, which takes a thirtieth of a second to parse."""
    layout = DevNetwork(first_port=0, readers={name: ReadAccess() for name in readers}, overlay="flooding")

    async def attack(network: WithLiar, camera: Client, heard: Subscription) -> None:
        await arrives(camera, heard, 100)
        rights, me = network.liar.node.neighbours.shown(), network.liar.me
        said = " OR ".join(f"plate = 'X{n}'" for n in range(1500))
        wants = tuple(DurableInterest(f"{n}", network.type_name, said, 0) for n in range(40))
        everything = DurableInterest("all", network.type_name, "", 0)
        for asked in (wants, (*wants, everything)):
            await network.say(
                "police-1", sign_advertisement(BrokerInterests(me, now_us(), asked), network.liar.identity, rights)
            )
            await arrives(camera, heard, 5)
        (status,) = await camera.ask("status")
        if "yard" not in readers:
            assert me.id not in status["owed"]

    with_liar(tmp_path, attack, layout)


def _wants(identity: Identity, address: str, type: str, rights: tuple[tuple[bytes, bytes], ...]) -> Any:
    who = Peer(node_id_of(identity.public_key), address)
    return sign_advertisement(BrokerInterests(who, now_us(), (DurableInterest("all", type, "", 0),)), identity, rights)
