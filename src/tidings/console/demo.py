"""A network to look at: London with three organisations, their brokers in this process, and made-up traffic.

The police publishes sightings of number plates, each attribute encrypted by itself. The congestion charge (ccs) may
read plates, the yard everything about one car. A Spark pipeline beside it, as a process of its own, matches what the
police's desk receives against subscriptions in a file. Everything is in a temporary folder and ends with the program.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tidings.errors import TidingsError
from tidings.events import Timestamp
from tidings.net import Client, DevNetwork, DevNetworkFiles, lay_out, read_broker
from tidings.security import Mode

if TYPE_CHECKING:
    from tidings.net import Broker

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

PIPELINE = """
name = "sightings"
checkpoint = "state"
[events]
format = "tidings"
client = "london/police/desk/client.toml"
type_name = "Numberplate"
subscription = "spark"
[subscriptions]
path = "wanted"
[deliveries]
format = "parquet"
path = "deliveries"
[quarantine]
path = "quarantine"
[trigger]
every_s = 5.0
"""
WANTED_BY = [
    {"id": "fast", "subscriber": "road safety", "filter": "speed > 50"},
    {"id": "city", "subscriber": "city planning", "filter": "area LIKE 'E%' AND speed < 20"},
    {"id": "one-car", "subscriber": "detective", "filter": f"plate = '{WANTED}'"},
    {"id": "typo", "subscriber": "road safety", "filter": "sped > 50"},
]
STOP_S_MAX = 20.0  # For Spark.
PART_S_MAX = 3.0  # For a broker or a client.


class London:
    """The network, while it is up."""

    def __init__(self, *, seed: int = 7, events_per_s: float = EVENTS_PER_S, spark: bool = False) -> None:
        """With `spark`, the pipeline runs, too; it needs Java."""
        self._seed, self._events_per_s, self._spark = seed, events_per_s, spark
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
        from tidings.net import Broker  # Loads the matching kernels, which a console without a demo does not need.

        broker = await Broker.start(read_broker(file))
        self._stack.push_async_callback(_ended, broker.stop)
        return broker

    async def _live(self) -> None:
        loop = asyncio.get_running_loop()
        for who, condition in SUBSCRIPTIONS.items():
            client = await self._client(who)
            self._tasks.append(loop.create_task(_read(client, condition)))
        self._tasks.append(loop.create_task(self._publish(await self._client("police/camera"))))
        if self._spark:
            await self._start_pipeline(await self._client("police/desk"))

    async def _start_pipeline(self, desk: Client) -> None:
        await (await desk.subscribe("Numberplate", durable="spark").ready()).close()
        folder = self.pipeline.parent
        (folder / "wanted").mkdir()
        (folder / "wanted" / "1.jsonl").write_text("".join(json.dumps(each) + "\n" for each in WANTED_BY))
        self.pipeline.write_text(PIPELINE)
        with (folder / "spark.log").open("wb") as said:
            command = [sys.executable, "-m", "tidings", "run", str(self.pipeline), "--master", "local[1]"]
            process = await asyncio.create_subprocess_exec(*command, stdout=said, stderr=said)
        self._stack.push_async_callback(_stop, process)

    async def _client(self, who: str) -> Client:
        client = await Client.connect(self.files.clients[who])
        self._stack.push_async_callback(_ended, client.close)
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
    def pipeline(self) -> Path:
        """The file of the pipeline; it exists if the pipeline was asked for."""
        return self.files.folder.parent / "sightings.toml"

    @property
    def organisation(self) -> Path:
        """The folder of the police, whose administrator may change rights."""
        return self.files.folder / "police"

    @property
    def registry(self) -> Path:
        return self.files.folder / "police" / "tidings.db"


async def _ended(stop: Callable[[], Awaitable[object]]) -> None:
    """Stops a part, and goes on if it does not stop in time: the program is about to end."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(PART_S_MAX):
            await stop()


async def _stop(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        await asyncio.wait_for(process.wait(), STOP_S_MAX)
    except TimeoutError:
        process.kill()
        await process.wait()


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
