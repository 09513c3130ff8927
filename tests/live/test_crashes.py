"""Brokers as real processes, killed, frozen and started again: what was acknowledged arrives, once and in order."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from tests.live.faults import Troubled
from tests.live.processes import LiveNetwork
from tidings.errors import Denied, SetupError
from tidings.net import Client, DevNetwork, ReadAccess, Subscription, read_client
from tidings.security import Mode

pytestmark = pytest.mark.live

ARRIVE_S_MAX = 90.0  # Not a promise: how long a loaded machine may take before the test gives up.
THREE = DevNetwork(first_port=0, readers={"ccs": ReadAccess(), "yard": ReadAccess(("plate",))})


async def take(subscription: Subscription, count: int) -> list[str]:
    """The ids of the next events, in the order they come."""
    async with asyncio.timeout(ARRIVE_S_MAX):
        return [(await anext(subscription)).id for _ in range(count)]


def plates(first: int, count: int) -> list[dict[str, object]]:
    return [{"plate": f"AB{number}", "speed": float(number % 100)} for number in range(first, first + count)]


def test_what_was_acknowledged_arrives_once_and_in_order_whoever_is_killed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with LiveNetwork(tmp_path, THREE) as network:
            camera, desk = await network.client("police/camera"), await network.client("ccs/desk")
            fast = await desk.subscribe("Numberplate", "speed >= 50", durable="fast").ready()
            said = await camera.publish_many("Numberplate", plates(0, 200))
            # The subscriber's broker dies with the events in flight, and is away for the next ones.
            await network.brokers["ccs-1"].kill()
            said += await camera.publish_many("Numberplate", plates(200, 100))
            # The origin dies too, while nobody but its disk knows of them.
            await network.brokers["police-1"].kill()
            await network.brokers["police-1"].start()
            await network.brokers["ccs-1"].start()
            said += await camera.publish_many("Numberplate", plates(300, 100))
            wanted = [id for number, id in enumerate(said) if number % 100 >= 50]
            assert await take(fast, len(wanted)) == wanted
            # Nothing is left over: the next event that comes is the next one published.
            (last,) = await camera.publish_many("Numberplate", plates(99, 1))
            assert await take(fast, 1) == [last]

    asyncio.run(scenario())


def test_a_durable_subscription_that_was_refused_before_it_was_taken_outlives_its_broker(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with LiveNetwork(tmp_path, THREE) as network:
            camera, desk = await network.client("police/camera"), await network.client("ccs/desk")
            rightless = replace(read_client(network.laid.clients["ccs/desk"]), tokens=())
            async with await Client.connect(rightless) as same_key:
                with pytest.raises(Denied):
                    await same_key.subscribe("Numberplate", "speed >= 50", durable="fast").ready()
            fast = await desk.subscribe("Numberplate", "speed >= 50", durable="fast").ready()
            said = await camera.publish_many("Numberplate", plates(50, 10))
            assert await take(fast, 10) == said
            await network.brokers["ccs-1"].kill()
            said = await camera.publish_many("Numberplate", plates(60, 10))
            await network.brokers["ccs-1"].start()
            said += await camera.publish_many("Numberplate", plates(70, 10))
            assert await take(fast, 20) == said

    asyncio.run(scenario())


def test_what_a_subscriber_has_had_when_it_ended_does_not_come_again_after_a_kill(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with LiveNetwork(tmp_path, DevNetwork(first_port=0, brokers={"police": 1})) as network:
            camera, desk = await network.client("police/camera"), await network.client("police/desk")
            kept = await desk.subscribe("Numberplate", durable="kept").ready()
            said = await camera.publish_many("Numberplate", plates(0, 10))
            assert await take(kept, 4) == said[:4]
            await kept.close()
            await network.restart("police-1")
            again = await (await network.client("police/desk")).subscribe("Numberplate", durable="kept").ready()
            assert await take(again, 6) == said[4:]

    asyncio.run(scenario())


def test_a_sealed_event_is_kept_for_a_broker_that_is_frozen_and_only_its_attributes_are_shown(tmp_path: Path) -> None:
    layout = DevNetwork(first_port=0, readers=THREE.readers, mode=Mode.ATTRIBUTE)

    async def scenario() -> None:
        async with LiveNetwork(tmp_path, layout) as network:
            camera, desk = await network.client("police/camera"), await network.client("yard/desk")
            seen = await desk.subscribe("Numberplate", "plate LIKE 'AB%'", durable="seen").ready()
            network.brokers["yard-1"].freeze()
            said = await camera.publish_many("Numberplate", plates(0, 20))
            network.brokers["yard-1"].thaw()
            async with asyncio.timeout(ARRIVE_S_MAX):
                events = [await anext(seen) for _ in said]
            assert [event.id for event in events] == said
            assert all(set(event.values) == {"plate"} for event in events)

    asyncio.run(scenario())


def test_a_broker_on_a_full_disk_refuses_publishes_and_goes_on_when_there_is_room(tmp_path: Path) -> None:
    async def scenario() -> None:
        network = Troubled(tmp_path, DevNetwork(first_port=0, brokers={"police": 1}), small=["police-1"], disk_mb=16)
        async with network:
            camera, desk = await network.client("police/camera"), await network.client("police/desk")
            kept = await desk.subscribe("Numberplate", durable="kept").ready()
            network.disks["police-1"].fill()
            waits = asyncio.create_task(camera.publish_many("Numberplate", plates(0, 100)))
            async with asyncio.timeout(ARRIVE_S_MAX):
                while not (await desk.ask("status"))[0]["stuck"]:
                    pass  # Each question is a round trip to the broker.
            with pytest.raises(SetupError, match="disk: this broker cannot write its journal"):
                await camera.publish("Numberplate", {"plate": "AB"})
            assert not waits.done()
            network.disks["police-1"].empty()
            said = [*await waits, *await camera.publish_many("Numberplate", plates(100, 10))]
            assert await take(kept, 110) == said

    asyncio.run(scenario())


def test_a_publisher_s_broker_whose_clock_was_ahead_publishes_again_when_it_is_right(tmp_path: Path) -> None:
    layout = DevNetwork(first_port=0, brokers={"police": 1}, mode=Mode.ATTRIBUTE)

    async def scenario() -> None:
        async with LiveNetwork(tmp_path, layout) as network:
            camera, desk = await network.client("police/camera"), await network.client("police/desk")
            kept = await desk.subscribe("Numberplate", durable="kept").ready()
            police, said = network.brokers["police-1"], await camera.publish_many("Numberplate", plates(0, 10))
            ahead = moment(said[0]) + 1_000_000
            async with asyncio.timeout(ARRIVE_S_MAX):  # The broker looks at its clock in its own time.
                police.set_clock(1800.0)
                while moment(said[-1]) < ahead:
                    said += await camera.publish_many("Numberplate", plates(0, 10))
                police.set_clock(0.0)
                while moment(said[-1]) > ahead:
                    said += await camera.publish_many("Numberplate", plates(0, 10))
            assert await take(kept, len(said)) == said

    asyncio.run(scenario())


def moment(id: str) -> int:
    """When a sealed event was sealed, in ms by its broker's clock."""
    return int(id.rpartition(".")[2]) >> 20
