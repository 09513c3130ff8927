"""IRBR on Tapestry between live brokers: events arrive, and a broker on Pastry is refused."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.live.together import Together
from tidings.cli.network.status import in_words
from tidings.net import Broker, DevNetwork, ReadAccess, read_broker
from tidings.overlay import protocol

pytestmark = pytest.mark.live

ARRIVE_S_MAX = 90.0  # Not a promise: how long a loaded machine may take before the test gives up.


def test_events_cross_brokers_on_tapestry_and_one_on_pastry_is_refused(tmp_path: Path) -> None:
    layout = DevNetwork(
        first_port=0,
        brokers={"police": 2, "ccs": 1, "yard": 1},
        readers={"ccs": ReadAccess(), "yard": ReadAccess()},
        overlay_options={"network": "tapestry"},
    )

    async def scenario() -> None:
        async with Together(tmp_path, layout) as network, asyncio.timeout(ARRIVE_S_MAX):
            far = await (await network.client("ccs/desk")).subscribe("Numberplate", "speed > 1").ready()
            near = await (await network.client("yard/desk")).subscribe("Numberplate", "area = 'EC2'").ready()
            camera = await network.client("police/camera")
            ids = await camera.publish_many(
                "Numberplate", [{"plate": f"P{n}", "area": "EC2", "speed": float(n)} for n in range(4)]
            )
            assert [(await anext(far)).id for _ in range(2)] == ids[2:]
            assert [(await anext(near)).id for _ in range(4)] == ids
            (status,) = await camera.ask("status")
            assert {"what": "routing", "is": "irbr on tapestry; 3 neighbours"} in in_words(status)
            await network.stop("police-2")
            await a_broker_on_pastry_is_refused(network)

    asyncio.run(scenario())


async def a_broker_on_pastry_is_refused(network: Together) -> None:
    file = network.laid.brokers["police-2"]
    file.write_text(file.read_text().replace('network = "tapestry"', 'network = "pastry"'))
    broker = await Broker.start(read_broker(file))
    try:
        why: list[str] = []
        while not why:
            await asyncio.sleep(0.05)
            why = [peer["why"] for peer in broker.links.unlinked() if peer["why"]]
        assert "irbr network=tapestry" in why[0]
        assert not broker.links.open
    finally:
        await broker.stop()


def test_the_name_of_an_overlay_tells_networks_apart_and_is_the_old_one_by_default() -> None:
    irbr = protocol("irbr")
    assert irbr.full_name({}) == irbr.full_name({"network": "pastry", "sync_s": 1.0}) == "irbr"
    assert irbr.full_name({"network": "tapestry"}) == "irbr network=tapestry"
    assert protocol("spanhop").full_name({"network": "tapestry"}) == "spanhop"
