"""A real network for tests: brokers as processes of their own, on real sockets, that can be killed, stopped and revived."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.live.nursery import Child
from tidings.net import Client, DevNetwork, DevNetworkFiles, lay_out, read_broker, read_client
from tidings.net.transport.capture import file_for
from tidings.node import node_id_of
from tidings.overlay import NodeId
from tidings.security import Identity, fingerprint

READY_S_MAX = 300.0  # A busy machine takes its time to start Python a dozen times; who crashes is not waited for.


class BrokerProcess:
    """One broker, as `tidings broker run` runs it."""

    def __init__(self, name: str, config: Path, *options: str) -> None:
        """`options` go to `tidings broker run`, too."""
        self.name, self.config, self._options = name, config, options
        self.said: dict[str, dict[str, Any]] = {}
        self._process: Child | None = None
        self._changed = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None
        self.log = config.parent / "log.jsonl"
        self.clock = config.parent / "clock-is-wrong-by"

    async def start(self) -> None:
        self.said.clear()
        command = ("broker", "run", "--config", str(self.config), "-o", "json", *self._options)
        self._process = Child(command, clock=self.clock, log=self.log)
        self._reading = asyncio.create_task(self._read(self._process))

    async def _read(self, process: Child) -> None:
        stdout = await process.stdout()
        while line := await stdout.readline():
            row = json.loads(line)
            self.said[row["state"]] = row
            self._changed.set()
        self.said["ended"] = {}
        self._changed.set()

    async def until(self, state: str) -> dict[str, Any]:
        """Waits until the broker has said that it is in this state."""
        async with asyncio.timeout(READY_S_MAX):
            while state not in self.said:
                assert "ended" not in self.said, f"{self.name} ended: {self.tail()}"
                self._changed.clear()
                await self._changed.wait()
        return self.said[state]

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_up(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def kill(self, how: signal.Signals = signal.SIGKILL) -> int:
        """Ends it, by default without a last word; returns its exit code."""
        assert self._process is not None
        if self.is_up:
            os.kill(self.pid, how)
        code = await self._process.wait()
        if self._reading is not None:
            await self._reading
        return code

    async def ended(self) -> int:
        """Waits until it ends by itself; returns its exit code."""
        assert self._process is not None
        code = await self._process.wait()
        if self._reading is not None:
            await self._reading  # Or what it said last would be taken for the next one's.
        return code

    def freeze(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        if self.is_up:
            os.kill(self.pid, signal.SIGCONT)

    def set_clock(self, wrong_by_s: float) -> None:
        """Have this broker's clock on the wall be wrong, from now on and after a restart."""
        # At once: the broker may be looking at this moment, and must not find half a file.
        written = self.clock.with_suffix(".new")
        written.write_text(str(wrong_by_s))
        written.replace(self.clock)
        os.kill(self.pid, signal.SIGUSR1)

    def tail(self) -> str:
        return self.log.read_text()[-3000:]


class LiveNetwork:
    """A laid-out network and its broker processes."""

    def __init__(self, folder: Path, layout: DevNetwork, *, captured: bool = False) -> None:
        """With `captured`, each broker writes down what it sends to others, found by `captured`."""
        self.laid: DevNetworkFiles = lay_out(folder / "network", layout)
        self.brokers = {
            name: BrokerProcess(name, config, *(("--capture", str(config.parent / "captured")) if captured else ()))
            for name, config in self.laid.brokers.items()
        }
        self._clients: list[Client] = []

    def pids(self) -> dict[str, int]:
        """The processes of the brokers that are up."""
        return {name: broker.pid for name, broker in self.brokers.items() if broker.is_up}

    def id_of(self, broker: str) -> NodeId:
        return node_id_of(Identity.from_pem(read_broker(self.laid.brokers[broker]).key.read_bytes()).public_key)

    def captured(self, *, to: str) -> list[Path]:
        """What the brokers of other organisations have sent to one broker, or to all of an organisation."""
        ids = [self.id_of(name) for name in self.brokers if name == to or name.rpartition("-")[0] == to]
        senders = [b for name, b in self.brokers.items() if name.rpartition("-")[0] != to.partition("-")[0]]
        files = [file_for(sender.config.parent / "captured", id) for sender in senders for id in ids]
        return [file for file in files if file.exists()]

    async def __aenter__(self) -> LiveNetwork:
        try:
            for broker in self.brokers.values():
                await broker.start()
            await self.joined()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def joined(self) -> None:
        """Waits until all are part of the network."""
        for broker in self.brokers.values():
            await broker.until("joined")

    async def __aexit__(self, *_: object) -> None:
        for client in self._clients:
            await client.close()
        for broker in self.brokers.values():
            if broker.is_up:
                broker.thaw()
                await broker.kill()

    async def client(self, name: str, broker: str = "") -> Client:
        """A connected client, by `organisation/name`, at its usual broker or another; closed with the network."""
        config = read_client(self.laid.clients[name])
        if broker:
            described = read_broker(self.laid.brokers[broker])
            key = fingerprint(Identity.from_pem(described.key.read_bytes()).public_key)
            config = replace(config, broker=described.listen, broker_key=key)
        client = await Client.connect(config)
        self._clients.append(client)
        return client

    async def restart(self, name: str) -> None:
        """Kills a broker if it is up, and starts it again."""
        await self.brokers[name].kill()
        await self.brokers[name].start()
        await self.brokers[name].until("listening")
