"""Events that are published together come to the same as one by one: who gets them, in which order, after which faults."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.live.processes import LiveNetwork
from tests.live.together import Together
from tidings.errors import InputError
from tidings.events import Timestamp, columns_of_rows, rows_of_records
from tidings.net import Client, DevNetwork, ReadAccess, Subscription, read_broker
from tidings.net.client.client import IN_FLIGHT_MAX
from tidings.net.ids import show_event
from tidings.net.transport.frames import AnyFrame, Publish, PublishBatch
from tidings.security import Mode

pytestmark = pytest.mark.live

ARRIVE_S_MAX = 90.0  # Not a promise: how long a loaded machine may take before the test gives up.
ALONE = DevNetwork(first_port=0, brokers={"police": 1})
TWO = DevNetwork(first_port=0, brokers={"police": 1, "ccs": 1}, readers={"ccs": ReadAccess()})


def plates(first: int, count: int) -> list[dict[str, Any]]:
    """Some of them without a speed."""
    return [
        {"plate": f"AB{n}", "speed": float(n % 100)} if n % 7 else {"plate": f"ÄÖ{n}"}
        for n in range(first, first + count)
    ]


async def take(subscription: Subscription, count: int) -> list[tuple[str, dict[str, Any]]]:
    """The next events, in the order in which they come."""
    async with asyncio.timeout(ARRIVE_S_MAX):
        found = [await anext(subscription) for _ in range(count)]
    return [(each.id, dict(each.values)) for each in found]


def fast(events: Sequence[dict[str, Any]], ids: Sequence[str], at_least: float) -> list[tuple[str, dict[str, Any]]]:
    return [(id, each) for id, each in zip(ids, events, strict=True) if each.get("speed", -1.0) >= at_least]


async def batches_of(network: Together) -> int:
    """How many batches the broker has on disk."""
    journal = network.brokers["police-1"].journal
    await journal.committed()
    return int(journal.read_now("SELECT count(*) FROM batches")[0][0])


def batches_in(config: Path) -> int:
    """The same of a broker that is a process of its own."""
    with contextlib.closing(sqlite3.connect(read_broker(config).data / "journal.db")) as journal:
        return int(journal.execute("SELECT count(*) FROM batches").fetchone()[0])


@pytest.mark.parametrize(
    ("overlay", "mode"), [("flooding", Mode.PLAIN), ("irbr", Mode.PLAIN), ("flooding", Mode.ATTRIBUTE)]
)
def test_a_batch_is_delivered_as_its_events_would_be_one_by_one(tmp_path: Path, overlay: str, mode: Mode) -> None:
    async def scenario() -> None:
        layout = DevNetwork(first_port=0, brokers={"police": 1}, overlay=overlay, mode=mode)
        async with Together(tmp_path, layout) as network:
            camera, desk = await network.client("police/camera"), await network.client("police/desk")
            live = await desk.subscribe("Numberplate", "speed >= 50").ready()
            few = await desk.subscribe("Numberplate", "speed >= 98").ready()
            kept = await desk.subscribe("Numberplate", "speed >= 90", durable="kept").ready()
            many = plates(0, 1500)
            together = await camera.publish_many("Numberplate", many)
            assert await batches_of(network) == 2
            names = [f"event {n}" for n in range(len(many))]
            apart = await camera.publish_many("Numberplate", many, names=names)
            assert await batches_of(network) == 2
            numbers = [int(id.rpartition(".")[2]) for id in together + apart]
            if mode is Mode.PLAIN:
                assert numbers == list(range(numbers[0], numbers[0] + 3000))
            assert numbers == sorted(set(numbers))
            for subscription, at_least in ((live, 50), (few, 98), (kept, 90)):
                wanted = [*fast(many, together, at_least), *fast(many, apart, at_least)]
                assert await take(subscription, len(wanted)) == wanted

    asyncio.run(scenario())


def test_events_published_without_waiting_and_rows_of_arrow_become_batches(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Together(tmp_path, ALONE) as network:
            camera, desk = await network.client("police/camera"), await network.client("police/desk")
            live = await desk.subscribe("Numberplate", "speed >= 50").ready()
            many = plates(0, 100)
            await camera.event_type("Numberplate")
            ids = await asyncio.gather(*(camera.publish("Numberplate", each) for each in many))
            table = pa.Table.from_pylist(many, pa.schema({"plate": pa.string(), "speed": pa.float32()}))
            ids += await camera.publish_many("Numberplate", table)
            ids += await camera.publish_many("Numberplate", table.combine_chunks().to_batches()[0])
            assert await batches_of(network) == 3
            wanted = fast(many * 3, ids, 50)
            assert await take(live, len(wanted)) == wanted

    asyncio.run(scenario())


def test_while_frames_are_under_way_events_published_one_by_one_are_gathered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidings.net.client.client.LINGER_S", 3600.0)  # So that an answer ends it, and no timer.

    async def scenario() -> None:
        async with Together(tmp_path, ALONE) as network:
            camera, desk = await network.client("police/camera"), await network.client("police/desk")
            live = await desk.subscribe("Numberplate", "speed >= 50").ready()
            await camera.event_type("Numberplate")
            held: list[AnyFrame] = []
            send = camera._send
            monkeypatch.setattr(camera, "_send", held.append)
            many, answers = plates(0, 100), []
            for each in many:
                answers.append(asyncio.ensure_future(camera.publish("Numberplate", each)))
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            assert [frame.__class__ for frame in held] == [Publish] * IN_FLIGHT_MAX
            send(held[0])
            ids = [await answers[0]]
            assert isinstance(gathered := held[-1], PublishBatch)
            assert gathered.columns.rows == len(many) - IN_FLIGHT_MAX
            monkeypatch.setattr(camera, "_send", send)
            for frame in held[1:]:
                send(frame)
            ids += await asyncio.gather(*answers[1:])
            wanted = fast(many, ids, 50)
            assert await take(live, len(wanted)) == wanted

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("wrong", "refused"),
    [([{"plate": "\ud800"}], 1), ([{"plate": object()}], 1), ([{"plate": "x" * 100_000} for _ in range(60)], 0)],
    ids=["no text", "no value", "more than a frame"],
)
def test_what_cannot_be_sent_fails_and_nothing_that_was_gathered_besides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: list[dict[str, Any]], refused: int
) -> None:
    monkeypatch.setattr("tidings.net.client.client.LINGER_S", 3600.0)

    async def scenario() -> None:
        async with Together(tmp_path, ALONE) as network:
            camera = await network.client("police/camera")
            answers = []
            for each in plates(0, IN_FLIGHT_MAX):
                answers.append(asyncio.ensure_future(camera.publish("Numberplate", each)))
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            answers += [asyncio.ensure_future(camera.publish("Numberplate", each)) for each in wrong]
            async with asyncio.timeout(ARRIVE_S_MAX):
                found = await asyncio.gather(*answers, return_exceptions=True)
                assert await camera.publish("Numberplate", {"plate": "AB1"})
            assert [each.__class__ for each in found if not isinstance(each, str)] == [InputError] * refused

    asyncio.run(scenario())


def test_one_wrong_event_refuses_the_batch_as_it_would_refuse_the_events(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Together(tmp_path, ALONE) as network:
            camera = await network.client("police/camera")
            for wrong in ({"plate": 7}, {"nothing": "x"}, {"plate": "A", "speed": "fast"}):
                with pytest.raises(InputError):
                    await camera.publish_many("Numberplate", [*plates(0, 50), wrong])
            assert network.brokers["police-1"].counts["published"] == 0

    asyncio.run(scenario())


def test_an_event_of_a_batch_is_traced_by_itself(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Together(tmp_path, ALONE) as network:
            camera, desk = await network.client("police/camera"), await network.client("police/desk")
            live = await desk.subscribe("Numberplate", "speed >= 50").ready()
            many = plates(0, 100)
            ids = await camera.publish_many("Numberplate", many)
            assert await batches_of(network) == 1
            await take(live, len(fast(many, ids, 50)))
            assert [len(await told(camera, ids[row])) for row in (7, 51, 13, 99)] == [0, 1, 0, 1]

    asyncio.run(scenario())


async def told(client: Client, event: str) -> list[Any]:
    (hop,) = await client.ask("trace", event=event)
    return list(hop["told"])


def test_what_a_subscriber_rejects_of_a_batch_is_one_dead_letter(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Together(tmp_path, ALONE) as network:
            camera, desk = await network.client("police/camera"), await network.client("police/desk")
            kept = await desk.subscribe("Numberplate", "speed >= 98", durable="kept").ready()
            ids = await camera.publish_many("Numberplate", plates(0, 100))
            async with asyncio.timeout(ARRIVE_S_MAX):
                event = await anext(kept)
            await kept.reject(event, "cannot be used")
            (letter,) = await desk.ask("dlq")
            assert letter["event"] == event.id
            assert event.id in ids

    asyncio.run(scenario())


@pytest.mark.parametrize("mode", [Mode.PLAIN, Mode.ATTRIBUTE])
def test_a_subscription_that_begins_in_the_past_gets_what_batches_it_matches(tmp_path: Path, mode: Mode) -> None:
    async def scenario() -> None:
        async with Together(tmp_path, replace(ALONE, mode=mode)) as network:
            camera, desk = await network.client("police/camera"), await network.client("police/desk")
            many = plates(0, 300)
            ids = await camera.publish_many("Numberplate", many[:100])
            ids += await camera.publish_many("Numberplate", many[100:200], names=[f"n{n}" for n in range(100)])
            ids += await camera.publish_many("Numberplate", many[200:])
            assert await batches_of(network) == 2
            kept = await desk.subscribe("Numberplate", "speed >= 90", durable="kept", since=Timestamp(0)).ready()
            wanted = fast(many, ids, 90)
            assert await take(kept, len(wanted)) == wanted

    asyncio.run(scenario())


@pytest.mark.parametrize("mode", [Mode.PLAIN, Mode.ATTRIBUTE])
def test_batches_outlast_a_restart_and_reach_a_broker_that_comes_later(tmp_path: Path, mode: Mode) -> None:
    async def scenario() -> None:
        network, many = Together(tmp_path, replace(TWO, mode=mode)), plates(0, 400)
        try:
            ids = await published_alone(network, many[:200])
            assert await batches_of(network) == 1
            await network.stop("police-1")
            ids += await published_alone(network, many[200:])
            await (await network.start("ccs-1")).is_joined.wait()
            desk = await network.client("ccs/desk")
            kept = await desk.subscribe("Numberplate", "speed >= 90", durable="kept", since=Timestamp(0)).ready()
            wanted = fast(many, ids, 90)
            assert await take(kept, len(wanted)) == wanted
            ids = await (await network.client("police/camera")).publish_many("Numberplate", many)
            wanted = fast(many, ids, 90)
            assert await take(kept, len(wanted)) == wanted
        finally:
            await network.__aexit__()

    asyncio.run(scenario())


async def published_alone(network: Together, events: Sequence[dict[str, Any]]) -> list[str]:
    broker = await network.start("police-1")
    await broker.is_joined.wait()
    return await (await network.client("police/camera")).publish_many("Numberplate", events)


def test_a_client_of_an_earlier_version_gets_the_events_of_a_batch_one_by_one(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Together(tmp_path, ALONE) as network:
            camera, desk = await network.client("police/camera"), await network.client("police/desk")
            live = await desk.subscribe("Numberplate", "speed >= 50").ready()
            for session in network.brokers["police-1"]._acceptor.sessions.values():
                if session.name.endswith("desk") or "desk" in session.link.proven.name:
                    object.__setattr__(session.link.proven, "version", 2)
            many = plates(0, 200)
            ids = await camera.publish_many("Numberplate", many)
            assert await batches_of(network) == 1
            wanted = fast(many, ids, 50)
            assert await take(live, len(wanted)) == wanted

    asyncio.run(scenario())


def test_a_batch_that_is_published_one_by_one_is_published_once_under_either_name(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Together(tmp_path, TWO) as network:
            camera, desk = await network.client("police/camera"), await network.client("ccs/desk")
            kept = await desk.subscribe("Numberplate", "speed >= 90", durable="kept").ready()
            number, many = await camera.event_type("Numberplate"), plates(0, 100)
            rows = rows_of_records(many, number)
            assert rows is not None
            columns = columns_of_rows(rows)
            for _ in range(2):
                await camera.request(lambda ticket: PublishBatch(ticket, "Numberplate", "once", columns))
            named = tuple((f"once.{row}", each) for row, each in enumerate(many))
            answer = await camera.request(lambda ticket: Publish(ticket, "Numberplate", named))
            assert network.brokers["police-1"].counts["published"] == 100
            assert await batches_of(network) == 0
            wanted = fast(many, [show_event(id) for id in answer.ids], 90)
            assert await take(kept, len(wanted)) == wanted

    asyncio.run(scenario())


def test_whoever_is_killed_a_batch_is_published_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with LiveNetwork(tmp_path, ALONE) as network:
            camera, desk = await network.client("police/camera"), await network.client("police/desk")
            kept = await desk.subscribe("Numberplate", "speed >= 50", durable="kept").ready()
            many = plates(0, 20_000)
            publishing = asyncio.create_task(camera.publish_many("Numberplate", many))
            (first,) = await take(kept, 1)
            await network.brokers["police-1"].kill()
            await network.brokers["police-1"].start()
            async with asyncio.timeout(ARRIVE_S_MAX):
                ids = await publishing
            assert batches_in(network.laid.brokers["police-1"]) > 0
            wanted = fast(many, ids, 50)
            assert [first, *await take(kept, len(wanted) - 1)] == wanted
            (last,) = await camera.publish_many("Numberplate", [{"plate": "LAST", "speed": 99.0}])
            assert await take(kept, 1) == [(last, {"plate": "LAST", "speed": 99.0})]

    asyncio.run(scenario())
