"""Brokers of this version and the next are in one network: they find out what both speak, whoever dials."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.live.processes import LiveNetwork
from tidings.net import DevNetwork, ReadAccess
from tidings.net.transport.frames import BETWEEN_BROKERS, VERSIONS

pytestmark = [pytest.mark.live, pytest.mark.slow]

LAYOUT = DevNetwork(first_port=0, brokers={"police": 1, "ccs": 1}, readers={"ccs": ReadAccess()})
NEXT = VERSIONS[-1]
"""What brokers will call a version of theirs is what clients call one of theirs now: it must not be mixed up."""


async def versions_spoken(network: LiveNetwork) -> list[list[int]]:
    """What each of the two brokers speaks with the other, in the words of its status."""
    statuses = [await (await network.client(name)).ask("status") for name in ("police/camera", "ccs/desk")]
    return [[link["speaks"] for link in status["linked"]] for (status,) in statuses]


def test_brokers_of_this_version_and_the_next_speak_this_one_and_lose_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        assert BETWEEN_BROKERS[-1] < NEXT
        network = LiveNetwork(tmp_path, LAYOUT)
        (network.laid.brokers["ccs-1"].parent / "next-version").write_text(str(NEXT))
        async with network:
            kept = (
                await (await network.client("ccs/desk")).subscribe("Numberplate", "speed > 20", durable="kept").ready()
            )
            for number, restarted in enumerate(("", "police-1", "ccs-1")):  # Who starts last dials.
                if restarted:
                    await network.restart(restarted)
                    await network.joined()
                camera = await network.client("police/camera")
                await camera.publish("Numberplate", {"plate": f"AB{number}", "speed": 31.0})
                async with asyncio.timeout(300):
                    assert (await anext(kept)).values["plate"] == f"AB{number}"
                assert await versions_spoken(network) == [[BETWEEN_BROKERS[-1]]] * 2

    asyncio.run(scenario())
