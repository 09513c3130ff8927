"""Proximity between live brokers, through wires with made-up delays: two sites, far from each other.

Brokers at one site must find each other near by network, with either method and nothing but the option that names it.
"""

from __future__ import annotations

import asyncio
import math
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from tests.live.faults import through
from tests.live.processes import LiveNetwork
from tests.live.wires import Wires
from tidings.cli.network.status import in_words
from tidings.errors import InputError
from tidings.net import Broker, Client, DevNetwork, lay_out, read_broker
from tidings.net.ids import broker_id
from tidings.security import from_fingerprint

pytestmark = [pytest.mark.live, pytest.mark.slow]

BROKERS = 5  # One more than the tables of ancestors begin with.
FAR_S, NEAR_S = 0.06, 0.002  # One way, between and within the two sites. A busy machine adds some milliseconds.
FOUND_S_MAX = 100.0  # Not a promise: how long a loaded machine may take before the test takes another network.
# Brokers measure their neighbours only, and who these are depends on their keys. Two of a site that are no neighbours, with
# the same distances to all others, may come to lie on either side of those, and stay there: distances fit all the same.
NETWORKS_MAX = 4
AXES = {"speed": [0.0, 100.0], "area": ["0", "z"]}


def site(broker: str) -> int:
    return int(broker.rpartition("-")[2]) % 2


def delay_s(ends: frozenset[str]) -> float:
    return FAR_S if len(set(map(site, ends))) > 1 else NEAR_S


class TwoSites(LiveNetwork):
    """Brokers that reach each other through proxies, which take their time."""

    async def __aenter__(self) -> TwoSites:
        self.wires = Wires(self.pids, delay_s)
        listens = {name: read_broker(broker.config).listen for name, broker in self.brokers.items()}
        proxies = {address: await self.wires.lead_to(name, address) for name, address in listens.items()}
        for name, broker in self.brokers.items():
            broker.config.write_text(through(broker.config.read_text(), listens[name], proxies))
        await super().__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await super().__aexit__()
        await self.wires.close()


@pytest.mark.parametrize("method", ["vivaldi", "gnp"])
def test_brokers_of_a_site_find_each_other_near_by_network(method: str, tmp_path: Path) -> None:
    options = {"axes": AXES, "proximity": method}
    layout = DevNetwork(first_port=0, brokers={"police": BROKERS}, overlay="spanhop", overlay_options=options)

    async def is_found(folder: Path) -> bool:
        async with TwoSites(folder, layout) as network:
            clients = {name: await network.client("police/camera", name) for name in network.brokers}
            found = await statuses(clients)
            try:
                async with asyncio.timeout(FOUND_S_MAX):
                    while not is_right({name: proximity(status) for name, status in found.items()}):
                        await asyncio.sleep(0.5)
                        found = await statuses(clients)
            except TimeoutError:
                assert all(proximity(status)["coordinates_ms"] for status in found.values()), found
                return False
            each_says_so_in_words(found)
            return True

    assert any(asyncio.run(is_found(tmp_path / str(number))) for number in range(NETWORKS_MAX))


async def statuses(clients: dict[str, Client]) -> dict[str, Any]:
    return {name: (await client.ask("status"))[0] for name, client in clients.items()}


def proximity(status: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = status["overlay"]["proximity"]
    return found


def is_right(found: dict[str, dict[str, Any]]) -> bool:
    """Every broker has coordinates and has put records of them, some are indexed, and sites are apart."""
    at = {name: each["coordinates_ms"] for name, each in found.items()}
    if not all(at.values()) or not all(each["published"] for each in found.values()):
        return False
    apart = {pair: math.dist(at[pair[0]], at[pair[1]]) for pair in combinations(at, 2)}
    within = [away for (one, other), away in apart.items() if site(one) == site(other)]
    between = [away for (one, other), away in apart.items() if site(one) != site(other)]
    return max(within) < min(between) and any(each["indexed"] for each in found.values())


def each_says_so_in_words(found: dict[str, Any]) -> None:
    for status in found.values():
        (row,) = [row["is"] for row in in_words(status) if row["what"] == "proximity"]
        assert " at (" in row
        assert "of the index here" in row


def test_landmarks_are_named_by_address_or_key(tmp_path: Path) -> None:
    options = {"axes": {"speed": [0.0, 100.0]}, "proximity": "gnp"}
    laid = lay_out(
        tmp_path / "n",
        DevNetwork(first_port=0, brokers={"police": 2}, overlay="spanhop", overlay_options=options),
    )
    files = list(laid.brokers.values())
    keys = read_broker(files[0]).overlay_options["landmarks"]
    addresses = [read_broker(file).listen for file in files]
    text = files[0].read_text()
    by_address = text.replace(keys[0], addresses[0]).replace(f'"{keys[1]}"]', f'"{addresses[1]}"]')

    async def landmarks(written: str) -> tuple[str, ...]:
        files[0].write_text(written)
        broker = await Broker.start(read_broker(files[0]))
        try:
            return tuple(broker.node.router.proximity.landmarks)  # type: ignore[attr-defined]
        finally:
            await broker.stop()

    ids = tuple(broker_id(from_fingerprint(key)) for key in keys)
    assert asyncio.run(landmarks(text)) == ids
    assert asyncio.run(landmarks(by_address)) == ids
    assert asyncio.run(landmarks(text.replace(keys[0], ids[0]))) == ids
    with pytest.raises(InputError, match="landmarks: no .* has the address 'nowhere:1'"):
        asyncio.run(landmarks(text.replace(keys[0], "nowhere:1")))


def test_too_few_brokers_for_landmarks_are_refused(tmp_path: Path) -> None:
    layout = DevNetwork(first_port=0, brokers={"police": 2}, overlay="spanhop", overlay_options={"proximity": "gnp"})
    with pytest.raises(InputError, match="gnp needs 4 brokers as landmarks for 3 axes, and there are 2"):
        lay_out(tmp_path / "n", layout)
