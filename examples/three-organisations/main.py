"""Three organisations on one machine: brokers over mutual TLS, a sealed type, and each reader sees what it may.

The police publishes what its cameras see. The congestion charge may read plates and nothing else, the yard everything
about one car. A durable subscriber is away while events come, and misses none. All three brokers run in this
one process, for brevity; `tidings init` and `tidings broker run` make real ones (docs/guide/live-network.md).
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from tidings.net import Broker, Client, DevNetwork, DevNetworkFiles, lay_out, read_broker
from tidings.security import Mode

SEEN = [
    {"plate": "AB12CDE", "area": "EC2", "speed": 31.0},
    {"plate": "XY99ZZZ", "area": "WC1", "speed": 19.0},
]


async def main(folder: Path) -> None:
    network = lay_out(folder, DevNetwork(mode=Mode.ATTRIBUTE, first_port=0))
    brokers = [await Broker.start(read_broker(file)) for file in network.brokers.values()]
    for broker in brokers:
        await broker.is_joined.wait()
    await subscribe_and_leave(network)
    async with await Client.connect(network.clients["police/camera"]) as camera:
        await camera.publish_many("Numberplate", SEEN)
    await come_back(network, "ccs/desk", count=2)
    await come_back(network, "yard/desk", count=1)
    for broker in brokers:
        await broker.stop()


async def subscribe_and_leave(network: DevNetworkFiles) -> None:
    for name in ("ccs/desk", "yard/desk"):
        async with await Client.connect(network.clients[name]) as client:
            await client.subscribe("Numberplate", durable="morning").ready()


async def come_back(network: DevNetworkFiles, name: str, count: int) -> None:
    """Collect what has come in the meantime. The yard's right is for one car: it gets that one only."""
    async with await Client.connect(network.clients[name]) as client:
        waiting = client.subscribe("Numberplate", durable="morning")
        for _ in range(count):
            event = await anext(waiting)
            print(f"{name} received {dict(sorted(event.values.items()))}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder) / "network"))
