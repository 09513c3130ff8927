"""NATS: every event to every subscriber, and a filter in the subscriber's own process.

NATS routes by subject, not by content, so whoever wants some of the events takes all of them and looks.

- **core**: it is spared TLS, disk and acknowledgements. The server is Debian's `nats-server`.
- **JetStream**: with the promises of Tidings: TLS, and on disk before an event is acknowledged (`sync_interval: always`), to
  a durable consumer that acknowledges. Published in atomic batches, or each event by itself with many under way. The
  server is the one that `go install` brings, since Debian's is older.

The client is nats-py, with events as msgpack.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import ssl
import subprocess
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.live.certificates import ServerFiles, server_files
from benchmarks.live.client_filter import ClientFilter
from benchmarks.live.contender import Unavailable, free_ports
from benchmarks.live.workload import MARK, EventValues, event

SUBJECT = "sightings"
START_S_MAX = 10.0
PART = 500  # Events between two looks at the socket, so that publisher and subscriber take turns.
BATCH = 512  # Events of an atomic batch.
UNACKED_MAX = 1 << 17  # Of a consumer: more than any round has.
SERVER = "github.com/nats-io/nats-server/v2@v2.15.2"
INSTALL_S_MAX = 400


class Nats(ClientFilter):
    """One NATS server, and an index in its subscriber."""

    name = "NATS, filter in the client"

    def __init__(self) -> None:
        super().__init__()
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        if find_spec("nats") is None:
            raise Unavailable("its client is not installed: pip install nats-py")
        server = await asyncio.to_thread(self._server)
        (port,) = free_ports(1)
        self._folder = tempfile.TemporaryDirectory()
        folder = Path(self._folder.name)
        files = server_files(folder)
        config = folder / "nats.conf"
        config.write_text(f'listen: "127.0.0.1:{port}"\nmax_pending: 1GB\n{self._settings(folder, files)}')
        nowhere = asyncio.subprocess.DEVNULL
        self._process = await asyncio.create_subprocess_exec(server, "-c", str(config), stdout=nowhere, stderr=nowhere)
        trusted = ssl.create_default_context(cafile=str(files.certificate)) if self.tls else None
        self._publisher = await _connected(port, trusted)
        self._subscriber = await _connected(port, trusted)
        await self._subscribe()
        await self._subscriber.flush()
        await self.want(MARK, 0)

    def _server(self) -> str:
        found = shutil.which("nats-server")
        if found is None:
            raise Unavailable("NATS is not installed: apt-get install nats-server")
        return found

    def _settings(self, folder: Path, files: ServerFiles) -> str:
        return ""

    async def _subscribe(self) -> None:
        await self._subscriber.subscribe(SUBJECT, cb=self._hear, pending_msgs_limit=-1, pending_bytes_limit=-1)

    async def _hear(self, message: Any) -> None:
        self._arrived(message.data)

    async def say(self, events: Sequence[EventValues]) -> None:
        for at, values in enumerate(events):
            await self._publisher.publish(SUBJECT, msgspec.msgpack.encode(values))
            if at % PART == 0:
                await self._publisher.flush()

    def say_mark(self) -> None:
        self._saying = asyncio.create_task(self._publisher.publish(SUBJECT, msgspec.msgpack.encode(event(MARK))))

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


class JetStream(Nats):
    """One NATS server that keeps events in a stream, and hands them to a durable consumer."""

    tls = on_disk = True

    def __init__(self, *, batched: bool) -> None:
        super().__init__()
        self._batched = batched
        self.name = f"NATS JetStream, {f'batches of {BATCH}' if batched else 'one by one'}"
        self._batches = 0
        self._unacked: Any = None
        self._answers: set[asyncio.Task[Any]] = set()

    def _server(self) -> str:
        return jetstream_server()

    def _settings(self, folder: Path, files: ServerFiles) -> str:
        return (
            f'jetstream {{ store_dir: "{folder}/stored", sync_interval: always }}\n'
            f'tls {{ cert_file: "{files.certificate}", key_file: "{files.key}" }}\n'
        )

    async def _subscribe(self) -> None:
        from nats.js import api

        self._stream = self._publisher.jetstream()
        await self._stream.add_stream(name=SUBJECT, subjects=[SUBJECT], allow_atomic=self._batched)
        config = api.ConsumerConfig(ack_policy=api.AckPolicy.ALL, max_ack_pending=UNACKED_MAX)
        await self._subscriber.jetstream().subscribe(
            SUBJECT,
            durable="desk",
            config=config,
            cb=self._hear,
            manual_ack=True,
            pending_msgs_limit=-1,
            pending_bytes_limit=-1,
        )

    async def _hear(self, message: Any) -> None:
        if self._unacked is None:
            asyncio.get_running_loop().call_soon(self._acknowledge)
        self._unacked = message
        self._arrived(message.data)

    def _acknowledge(self) -> None:
        """The last one that has arrived in this turn, and with it all before."""
        message, self._unacked = self._unacked, None
        self._start(message.ack())

    def _start(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._answers.add(task)
        task.add_done_callback(self._answers.discard)

    async def say(self, events: Sequence[EventValues]) -> None:
        if self._batched:
            for start in range(0, len(events), BATCH):
                await self._say_batch(events[start : start + BATCH])
            return
        for values in events:
            await self._stream.publish_async(SUBJECT, msgspec.msgpack.encode(values))
        await self._stream.publish_async_completed()

    async def _say_batch(self, events: Sequence[EventValues]) -> None:
        """On disk as a whole when this returns."""
        self._batches += 1
        *first, last = (msgspec.msgpack.encode(values) for values in events)
        headers = {"Nats-Batch-Id": str(self._batches)}
        for number, body in enumerate(first, 1):
            await self._publisher.publish(SUBJECT, body, headers={**headers, "Nats-Batch-Sequence": str(number)})
        commit = {**headers, "Nats-Batch-Sequence": str(len(events)), "Nats-Batch-Commit": "1"}
        answer = json.loads((await self._publisher.request(SUBJECT, last, headers=commit, timeout=START_S_MAX)).data)
        assert answer.get("count") == len(events), answer

    def say_mark(self) -> None:
        self._start(self._stream.publish(SUBJECT, msgspec.msgpack.encode(event(MARK))))


def jetstream_server() -> str:
    """A `nats-server` with JetStream of this benchmark's version, installed where there is Go."""
    go = shutil.which("go")
    if go is None:
        raise Unavailable(f"Go is not installed, which installs {SERVER}")
    folder = Path(__file__).parents[2] / "build" / "go"
    program = folder / "nats-server"
    if not program.exists():
        environment = {**os.environ, "GOBIN": str(folder)}
        done = subprocess.run(
            [go, "install", SERVER], env=environment, capture_output=True, text=True, timeout=INSTALL_S_MAX, check=False
        )
        if done.returncode != 0:
            raise Unavailable(f"go install {SERVER}: {done.stderr.strip()[:200]}")
    return str(program)


async def _not_yet(_: Exception) -> None:
    """The server does not listen yet; the client would print a trace."""


async def _connected(port: int, trusted: ssl.SSLContext | None) -> Any:
    import nats

    deadline = asyncio.get_running_loop().time() + START_S_MAX
    address = f"{'tls' if trusted else 'nats'}://127.0.0.1:{port}"
    while True:
        try:
            return await nats.connect(address, tls=trusted, allow_reconnect=False, error_cb=_not_yet)
        except (OSError, nats.errors.Error):
            if asyncio.get_running_loop().time() > deadline:
                raise Unavailable(f"NATS did not start within {START_S_MAX:.0f} s") from None
            await asyncio.sleep(0.1)
