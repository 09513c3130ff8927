"""What every overlay must do, over real processes: the laws of `tests.conformance` where they can be seen from outside.

Whoever wants an event and may have it gets it once, in order and no more of it than it may see, whichever overlay
carries it and whichever broker dies. What brokers hold stays within what they say they may hold.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.live.processes import LiveNetwork
from tidings.net import Client, DevNetwork, ReadAccess, Received, Subscription

pytestmark = [pytest.mark.live, pytest.mark.slow]

OVERLAYS = ("irbr", "hermes", "immune", "flooding", "spanhop", "cbdlo")
AS_PUBLISHED = {"profile": "paper"}  # CBDLO: one walk an attribute, and subscribers count the attributes that match.
ARRIVE_S_MAX = 90.0  # Not a promise: how long a loaded machine may take before the test gives up.
READERS = {"ccs": ReadAccess(), "yard": ReadAccess(("plate",), ("plate = 'P7'",))}


def sightings(first: int, count: int) -> list[dict[str, Any]]:
    return [
        {"plate": f"P{n}", "area": "EC2" if n % 2 else "WC1", "speed": float(n)} for n in range(first, first + count)
    ]


async def take(subscription: Subscription, count: int) -> list[Received]:
    async with asyncio.timeout(ARRIVE_S_MAX):
        return [await anext(subscription) for _ in range(count)]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_an_overlay_keeps_the_laws_between_processes(overlay: str, tmp_path: Path) -> None:
    layout = DevNetwork(first_port=0, brokers={"police": 2, "ccs": 1, "yard": 1}, readers=READERS, overlay=overlay)

    async def scenario() -> None:
        async with LiveNetwork(tmp_path, layout) as network:
            camera = await network.client("police/camera", "police-2")
            await each_gets_what_it_wants_and_may_have(network, camera)
            await what_is_taken_back_comes_no_more(network, camera)
            await a_broker_that_dies_misses_nothing(network, camera)
            await nobody_holds_more_than_it_may(network)

    asyncio.run(scenario())


def test_subscribers_count_the_attributes_that_match_between_processes(tmp_path: Path) -> None:
    layout = DevNetwork(
        first_port=0, brokers={"police": 2, "ccs": 1, "yard": 1}, readers=READERS, overlay="cbdlo",
        overlay_options=AS_PUBLISHED,
    )  # fmt: skip

    async def scenario() -> None:
        async with LiveNetwork(tmp_path, layout) as network:
            camera, desk = await network.client("police/camera", "police-2"), await network.client("ccs/desk")
            both = await desk.subscribe("Numberplate", "area = 'EC2' AND speed >= 4 AND speed < 9").ready()
            await each_gets_what_it_wants_and_may_have(network, camera)
            assert {event.values["plate"] for event in await take(both, 2)} == {"P5", "P7"}

    asyncio.run(scenario())


async def each_gets_what_it_wants_and_may_have(network: LiveNetwork, camera: Client) -> None:
    """Also without a durable subscription: then it is the overlay that brings it."""
    near = await (await network.client("police/desk")).subscribe("Numberplate", "area = 'EC2'").ready()
    far = await (await network.client("ccs/desk")).subscribe("Numberplate", "speed >= 5 AND speed < 8").ready()
    little = (
        await (await network.client("yard/desk")).subscribe("Numberplate", "plate LIKE 'P%'", durable="one").ready()
    )
    ids = await camera.publish_many("Numberplate", sightings(0, 10))
    # Without the promise made to durable subscriptions, not every overlay keeps the order.
    assert {event.id for event in await take(near, 5)} == set(ids[1::2])
    assert {event.id for event in await take(far, 3)} == set(ids[5:8])
    (only,) = await take(little, 1)
    assert (only.id, only.values) == (ids[7], {"plate": "P7"})


async def what_is_taken_back_comes_no_more(network: LiveNetwork, camera: Client) -> None:
    desk = await network.client("ccs/desk")
    brief, lasting = desk.subscribe("Numberplate", "speed = 100"), desk.subscribe("Numberplate", "speed >= 100")
    await brief.ready()
    await lasting.ready()
    await brief.close()
    ids = await camera.publish_many("Numberplate", sightings(100, 2))
    assert {event.id for event in await take(lasting, 2)} == set(ids)
    assert [event async for event in brief] == []


async def a_broker_that_dies_misses_nothing(network: LiveNetwork, camera: Client) -> None:
    kept = await (await network.client("ccs/desk")).subscribe("Numberplate", "speed >= 200", durable="kept").ready()
    ids = await camera.publish_many("Numberplate", sightings(200, 20))
    await network.brokers["ccs-1"].kill()
    ids += await camera.publish_many("Numberplate", sightings(220, 20))
    await network.brokers["ccs-1"].start()
    ids += await camera.publish_many("Numberplate", sightings(240, 20))
    assert [event.id for event in await take(kept, 60)] == ids


async def nobody_holds_more_than_it_may(network: LiveNetwork) -> None:
    for name in ("police/desk", "ccs/desk", "yard/desk"):
        (status,) = await (await network.client(name)).ask("status")
        over = {what: amount for what, amount in status["holdings"].items() if amount[0] > amount[1]}
        assert over == {}, f"{status['broker']} holds too much"
