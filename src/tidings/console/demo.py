"""A network to look at: London with three organisations, their brokers in this process, and made-up traffic.

The police publishes sightings of number plates, each attribute encrypted by itself. The congestion charge (ccs) may
read plates, the yard everything about one car. Everything is in a temporary folder and ends with the program.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from tidings.errors import TidingsError
from tidings.events import Timestamp
from tidings.net import Broker, Client, DevNetwork, DevNetworkFiles, lay_out, read_broker
from tidings.security import Mode

BROKERS = {"police": 2, "ccs": 2, "yard": 1}
EVENTS_PER_S = 12.0
AREAS = ("EC1", "EC2", "EC3", "SE1", "SW1", "W1", "WC1", "N1", "NW3", "E14")
WANTED = "AB12CDE"
WANTED_SHARE = 0.08
SUBSCRIPTIONS = {
    "police/desk": "speed > 55 AND area IN ('EC1', 'EC2', 'EC3')",
    "ccs/desk": "plate LIKE 'A%' OR plate LIKE 'K%'",
    "yard/desk": f"plate = '{WANTED}'",
}


class London:
    """The network, while it is up."""

    def __init__(self, *, seed: int = 7, events_per_s: float = EVENTS_PER_S) -> None:
        self._seed, self._events_per_s = seed, events_per_s
        self._stack = contextlib.AsyncExitStack()
        self._tasks: list[asyncio.Task[None]] = []
        self.files: DevNetworkFiles

    async def __aenter__(self) -> London:
        try:
            folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="tidings-london-")))
            layout = DevNetwork(brokers=BROKERS, first_port=0, registry=True, mode=Mode.ATTRIBUTE)
            self.files = lay_out(folder / "london", layout)
            started = [await self._start(file) for file in self.files.brokers.values()]
            for broker in started:
                await broker.is_joined.wait()
            await self._live()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def _start(self, file: Path) -> Broker:
        broker = await Broker.start(read_broker(file))
        self._stack.push_async_callback(broker.stop)
        return broker

    async def _live(self) -> None:
        loop = asyncio.get_running_loop()
        for who, condition in SUBSCRIPTIONS.items():
            client = await self._client(who)
            self._tasks.append(loop.create_task(_read(client, condition)))
        self._tasks.append(loop.create_task(self._publish(await self._client("police/camera"))))

    async def _client(self, who: str) -> Client:
        client = await Client.connect(self.files.clients[who])
        self._stack.push_async_callback(client.close)
        return client

    async def _publish(self, camera: Client) -> None:
        for sighting in sightings(self._seed):
            with contextlib.suppress(TidingsError):  # "Not yet", until the broker has the keys.
                await camera.publish("Numberplate", {**sighting, "seen_at": Timestamp(time.time_ns() // 1000)})
            await asyncio.sleep(1 / self._events_per_s)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._stack.aclose()

    @property
    def console_clients(self) -> list[Path]:
        """Whom a console acts as here: one client of each organisation, the administrator of the police first."""
        return [self.files.clients[who] for who in ("police/camera", "police/desk", "ccs/desk", "yard/desk")]

    @property
    def registry(self) -> Path:
        return self.files.folder / "police" / "tidings.db"


async def _read(client: Client, condition: str) -> None:
    async for _ in client.subscribe("Numberplate", condition, durable="london"):
        pass


def sightings(seed: int) -> Iterator[Mapping[str, Any]]:
    """Made-up sightings of number plates, without end; the same for the same seed."""
    rng = random.Random(seed)
    letters = "ABCDEFGHJKLMNOPRSTUVWXY"
    while True:
        plate = "".join((*rng.choices(letters, k=2), f"{rng.randrange(2, 74):02}", *rng.choices(letters, k=3)))
        wanted = rng.random() < WANTED_SHARE
        speed = round(max(0.0, rng.gauss(34, 14)), 1)
        yield {"plate": WANTED if wanted else plate, "area": rng.choice(AREAS), "speed": speed}
