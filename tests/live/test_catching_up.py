"""A broker that was away catches up: many events at a time, and confirming none that it could still lose."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.live.together import Together
from tidings.net import Client, Layout, Reader, Subscription
from tidings.net.broker.owed import ASKED_AT_ONCE

pytestmark = [pytest.mark.live]

MISSED = 2 * ASKED_AT_ONCE
TWO = Layout(first_port=0, brokers={"police": 1, "ccs": 1}, readers={"ccs": Reader()})


def sightings(count: int) -> list[dict[str, Any]]:
    return [{"plate": f"AB{number}", "area": "EC2", "speed": 31.0} for number in range(count)]


async def wanting(client: Client) -> Subscription:
    return await client.subscribe("Numberplate", durable="desk").ready()


async def next_of(subscription: Subscription, count: int) -> list[str]:
    return [(await anext(subscription)).values["plate"] for _ in range(count)]


async def until_all_have_come(network: Together) -> None:
    dues, police = network.brokers["ccs-1"].promises.dues, network.brokers["police-1"].me.id

    def is_missing() -> bool:
        is_listed = dues.event_at(police, MISSED) is not None
        return dues.is_due(police, MISSED) if is_listed else dues.next_number(police) <= MISSED

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
            with closing(sqlite3.connect(late.journal.file, isolation_level=None)) as backup:
                backup.execute("BEGIN IMMEDIATE")  # Nothing can be written while somebody else may.
                await until_all_have_come(network)
                owed = network.brokers["police-1"].promises.owed_count()
            assert owed == MISSED
            desk = await network.client("ccs/desk")
            assert await next_of(await wanting(desk), MISSED) == [event["plate"] for event in sightings(MISSED)]

    asyncio.run(scenario())


def test_nothing_is_given_up_as_long_as_nobody_has_answered_for_the_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with Together(tmp_path) as network:
            broker, camera = network.brokers["police-1"], await network.client("police/camera")
            subscription = await wanting(await network.client("police/desk"))
            (durable,) = broker.queues.all.values()
            monkeypatch.setattr("tidings.net.broker.promises.UNREADABLE_S_MAX", 0.0)
            broker.subscribing.resting = {"another": durable}  # As after a restart, until all keys have come.
            await camera.publish_many("Numberplate", sightings(3))
            await broker.promises._pay_myself()
            assert await broker.journal.dead_letters() == []
            broker.subscribing.settle_keys(durable.type)  # Refused: what comes now is put aside.
            await broker.promises._pay_myself()
            assert len(await broker.journal.dead_letters()) == 3
            broker.subscribing.resting = {}
            await (await network.client("police/desk")).ask("dlq replay")
            assert await next_of(subscription, 3) == ["AB0", "AB1", "AB2"]

    asyncio.run(scenario())


def test_what_waits_for_subscribers_beside_the_publisher_is_written_in_few_groups(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Together(tmp_path) as network:
            broker, camera = network.brokers["police-1"], await network.client("police/camera")
            subscription = await wanting(await network.client("police/desk"))
            (durable,) = broker.queues.all.values()
            broker.subscribing.resting = {"another": durable}  # As after a restart, until all keys have come.
            await camera.publish_many("Numberplate", sightings(MISSED))
            groups = broker.journal.committed_groups
            broker.subscribing.resting = {}
            assert await next_of(subscription, MISSED) == [event["plate"] for event in sightings(MISSED)]
            assert broker.journal.committed_groups - groups < MISSED / 4

    asyncio.run(scenario())
