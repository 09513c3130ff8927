"""A broker that was away catches up: many events at a time, and confirming none that it could still lose."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.live.together import Together
from tidings.delivery import InterestAdvertisement
from tidings.delivery.inbox import NACKED_AT_ONCE
from tidings.net import Client, DevNetwork, ReadAccess, Subscription

pytestmark = [pytest.mark.live]

MISSED = 2 * NACKED_AT_ONCE
TWO = DevNetwork(first_port=0, brokers={"police": 1, "ccs": 1}, readers={"ccs": ReadAccess()})


def sightings(count: int) -> list[dict[str, Any]]:
    return [{"plate": f"AB{number}", "area": "EC2", "speed": 31.0} for number in range(count)]


async def wanting(client: Client) -> Subscription:
    return await client.subscribe("Numberplate", durable="desk").ready()


async def next_of(subscription: Subscription, count: int) -> list[str]:
    return [(await anext(subscription)).values["plate"] for _ in range(count)]


async def until_all_have_come(network: Together) -> None:
    inbox, police = network.brokers["ccs-1"].receiver.inbox, network.brokers["police-1"].me.id

    def is_missing() -> bool:
        is_announced = inbox.event_at(police, MISSED) is not None
        return inbox.expects(police, MISSED) if is_announced else inbox.position(police)[1] <= MISSED

    while is_missing():  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0.01)


def test_what_cannot_be_written_is_not_confirmed_however_much_is_asked_for(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Together(tmp_path, TWO) as network:
            camera = await network.client("police/camera")
            async with await Client.connect(network.laid.clients["ccs/desk"]) as desk:
                await wanting(desk)
            await network.stop("ccs-1")
            await camera.publish_many("Numberplate", sightings(MISSED))
            late = await network.start("ccs-1")
            with closing(sqlite3.connect(late.journal.storage.where, isolation_level=None)) as backup:
                backup.execute("BEGIN IMMEDIATE")  # Nothing can be written while somebody else may.
                await until_all_have_come(network)
                pending = network.brokers["police-1"].sender.pending_count()
            assert pending == MISSED
            desk = await network.client("ccs/desk")
            assert await next_of(await wanting(desk), MISSED) == [event["plate"] for event in sightings(MISSED)]

    asyncio.run(scenario())


def test_nothing_is_given_up_as_long_as_nobody_has_answered_for_the_keys(tmp_path: Path) -> None:
    layout = DevNetwork(first_port=0, brokers={"police": 1}, limits={"unreadable_s_max": 0.001})

    async def scenario() -> None:
        async with Together(tmp_path, layout) as network:
            broker, camera = network.brokers["police-1"], await network.client("police/camera")
            subscription = await wanting(await network.client("police/desk"))
            (durable,) = broker.queues.all.values()
            broker.subscriptions.suspended = {"another": durable}  # As after a restart, until all keys have come.
            await camera.publish_many("Numberplate", sightings(3))
            await broker.sender.deliver_own()
            assert await broker.journal.dead_letters() == []
            broker.subscriptions.settle_keys(durable.type)  # Refused: what comes now is a dead letter.
            async with asyncio.timeout(60):
                while len(await broker.journal.dead_letters()) < 3:
                    await broker.sender.deliver_own()
            broker.subscriptions.suspended = {}
            await (await network.client("police/desk")).ask("dlq replay")
            assert await next_of(subscription, 3) == ["AB0", "AB1", "AB2"]

    asyncio.run(scenario())


def test_what_waits_for_subscribers_beside_the_publisher_is_written_in_few_groups(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Together(tmp_path) as network:
            broker, camera = network.brokers["police-1"], await network.client("police/camera")
            subscription = await wanting(await network.client("police/desk"))
            (durable,) = broker.queues.all.values()
            broker.subscriptions.suspended = {"another": durable}  # As after a restart, until all keys have come.
            await camera.publish_many("Numberplate", sightings(MISSED))
            groups = broker.journal.committed_groups
            broker.subscriptions.suspended = {}
            assert await next_of(subscription, MISSED) == [event["plate"] for event in sightings(MISSED)]
            assert broker.journal.committed_groups - groups < MISSED / 4

    asyncio.run(scenario())


def test_an_advertisement_of_an_older_version_is_renewed_and_brings_only_what_was_published_since(
    tmp_path: Path,
) -> None:
    """A broker of 0.1 kept advertisements without rights: they do not count until they are made again."""

    async def scenario() -> None:
        async with Together(tmp_path, TWO) as network:
            camera, desk = await network.client("police/camera"), await network.client("ccs/desk")
            subscription = await wanting(desk)
            await camera.publish_many("Numberplate", sightings(2))
            assert await next_of(subscription, 2) == ["AB0", "AB1"]
            await network.stop("police-1")
            with closing(sqlite3.connect(tmp_path / "network/police/police-1/data/journal.db")) as disk, disk:
                ((body,),) = disk.execute("SELECT body FROM wants").fetchall()
                old = msgspec.structs.replace(msgspec.msgpack.decode(body, type=InterestAdvertisement), rights=())
                disk.execute("UPDATE wants SET body = ?", (msgspec.msgpack.encode(old),))
            await network.stop("ccs-1")
            for _ in range(2):  # What is published after the first start is not forgotten by the second.
                await network.start("police-1")
                await camera.publish_many("Numberplate", [{"plate": "LATER"}])
                await network.stop("police-1")
            await network.start("police-1")
            await network.start("ccs-1")
            await camera.publish_many("Numberplate", [{"plate": "LAST"}])
            assert await next_of(subscription, 3) == ["LATER", "LATER", "LAST"]

    asyncio.run(scenario())
