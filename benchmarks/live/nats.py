"""NATS: every event to every subscriber, and a filter in the subscriber's own process.

NATS routes by subject, not by content, so whoever wants some of the events takes all of them and looks. The filter is the best
there is at hand, this project's own index. NATS is spared TLS, disk and acknowledgements. The server is Debian's
`nats-server`; the client is nats-py, with events as msgpack.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections import Counter, deque
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec

import tidings
from benchmarks.live.contender import Contender, Unavailable, free_ports
from benchmarks.live.workload import MARK, EventValues, condition, event

SUBJECT = "sightings"
START_S_MAX = 10.0
PART = 500  # Events between two looks at the socket, so that publisher and subscriber take turns.


class Nats(Contender):
    """One NATS server, and an index in its subscriber."""

    name = "NATS, filter in the client"

    def __init__(self) -> None:
        self._index = tidings.Index(tidings.EventType("Sighting", plate=str, area=str, speed=float))
        self._told: Counter[int] = Counter()
        self._came = asyncio.Event()
        self._marks: deque[None] = deque()
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        server = shutil.which("nats-server")
        if server is None:
            raise Unavailable("NATS is not installed: apt-get install nats-server")
        if find_spec("nats") is None:
            raise Unavailable("its client is not installed: pip install nats-py")
        (port,) = free_ports(1)
        self._folder = tempfile.TemporaryDirectory()
        config = Path(self._folder.name) / "nats.conf"
        config.write_text(f'listen: "127.0.0.1:{port}"\nmax_pending: 1GB\n')
        nowhere = asyncio.subprocess.DEVNULL
        self._process = await asyncio.create_subprocess_exec(server, "-c", str(config), stdout=nowhere, stderr=nowhere)
        self._publisher = await _connected(port)
        self._subscriber = await _connected(port)
        await self._subscriber.subscribe(SUBJECT, cb=self._hear, pending_msgs_limit=-1, pending_bytes_limit=-1)
        await self._subscriber.flush()
        await self.want(MARK, 0)

    async def _hear(self, message: Any) -> None:
        for name in self._index.match(msgspec.msgpack.decode(message.data)):
            number = int(name)
            if number == MARK:
                self._marks.append(None)
            else:
                self._told[number] += 1
            self._came.set()

    async def want(self, first: int, end: int) -> None:
        self._index.add_all([(str(number), condition(number)) for number in range(first, end)])
        self._index.settle()

    async def say(self, events: Sequence[EventValues]) -> None:
        for at, values in enumerate(events):
            await self._publisher.publish(SUBJECT, msgspec.msgpack.encode(values))
            if at % PART == 0:
                await self._publisher.flush()

    async def heard(self, numbers: Sequence[int]) -> bool:
        while self._told.total() < len(numbers):
            self._came.clear()
            await self._came.wait()
        told, self._told = self._told, Counter()
        return told == Counter(numbers)

    def say_mark(self) -> None:
        self._saying = asyncio.create_task(self._publisher.publish(SUBJECT, msgspec.msgpack.encode(event(MARK))))

    async def hear_mark(self) -> None:
        while not self._marks:
            self._came.clear()
            await self._came.wait()
        self._marks.popleft()

    async def stop(self) -> None:
        if self._process is None:
            return
        await self._publisher.close()
        await self._subscriber.close()
        self._process.kill()
        await self._process.wait()
        self._folder.cleanup()

    def servers(self) -> Sequence[int]:
        assert self._process is not None
        return [self._process.pid]


async def _connected(port: int) -> Any:
    import nats

    deadline = asyncio.get_running_loop().time() + START_S_MAX
    while True:
        try:
            return await nats.connect(f"nats://127.0.0.1:{port}", allow_reconnect=False)
        except (OSError, nats.errors.Error):
            if asyncio.get_running_loop().time() > deadline:
                raise Unavailable(f"NATS did not start within {START_S_MAX:.0f} s") from None
            await asyncio.sleep(0.1)
