"""Tidings: brokers in a line, each a process of its own, mutual TLS 1.3, every publish on disk before it is acknowledged.

The publisher is at the first broker and the subscriber at the last, so that events pass all of them (flooding).
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.live.contender import Contender, Unavailable, cpu_s_of
from benchmarks.live.workload import MARK, EventValues, condition, event, number_of
from tests.postgres_server import PASSWORD, WHY_SKIPPED, PostgresCluster, new_home, programs
from tidings.net import Client, DevNetwork, DevNetworkFiles, ReadAccess, Subscription, lay_out
from tidings.security import Mode

TYPE = "Numberplate"
STREAMS_MAX = 50_000  # Subscriptions on one connection; a broker allows some more.
PLACED_AT_ONCE = 2_000


class Tidings(Contender):
    """A network of brokers."""

    tls = on_disk = True
    rights = "by attribute"

    def __init__(self, brokers: int, *, sealed: bool, signed: bool = True) -> None:
        self.brokers, self.sealed, self.signed = brokers, sealed, signed
        self.name = f"Tidings{', sealed' if sealed else ''}{'' if signed else ', unsigned'}"
        self._folder = tempfile.TemporaryDirectory()
        self._processes: list[asyncio.subprocess.Process] = []
        self._desks: list[Client] = []
        self._subscriptions: list[Subscription] = []
        self._answers: set[asyncio.Task[str]] = set()
        self._told = 0

    async def start(self) -> None:
        names = {f"o{n}": 1 for n in range(self.brokers)}
        laid = lay_out(
            Path(self._folder.name) / "network",
            DevNetwork(
                first_port=0,
                brokers=names,
                readers={name: ReadAccess() for name in names},
                overlay="flooding",
                in_line=True,
                mode=Mode.ATTRIBUTE if self.sealed else Mode.PLAIN,
                signatures=self.signed,
            ),
        )
        await self._before_start(laid)
        await self._start_brokers(laid)
        self._desk_file = laid.clients[f"o{self.brokers - 1}/desk"]
        self._camera = await Client.connect(laid.clients["o0/camera"])
        self._marks = await (await self._desk()).subscribe(TYPE, condition(MARK)).ready()

    async def _before_start(self, laid: DevNetworkFiles) -> None:
        """What is to be changed in the brokers' files, if anything."""

    async def _start_brokers(self, laid: DevNetworkFiles) -> None:
        for config in laid.brokers.values():
            command = [sys.executable, "-m", "tidings", "broker", "run", "--config", str(config), "--log", "error"]
            self._processes.append(await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE))
        for process in self._processes:
            assert process.stdout is not None
            while b"joined" not in await process.stdout.readline():
                assert process.returncode is None, "a broker did not start"

    async def _desk(self) -> Client:
        if len(self._subscriptions) >= STREAMS_MAX * len(self._desks):
            self._desks.append(await Client.connect(self._desk_file))
        return self._desks[-1]

    async def want(self, first: int, end: int) -> None:
        for start in range(first, end, PLACED_AT_ONCE):
            desk = await self._desk()
            part = [desk.subscribe(TYPE, condition(n)) for n in range(start, min(start + PLACED_AT_ONCE, end))]
            for each in part:
                await each.ready()
            self._subscriptions += part

    async def say(self, events: Sequence[EventValues]) -> None:
        await self._camera.publish_many(TYPE, events)

    async def heard(self, numbers: Sequence[int]) -> bool:
        found = [number_of((await anext(self._subscriptions[number])).values["plate"]) for number in numbers]
        self._told += len(numbers)
        return found == list(numbers) and await self._said_to_desks() == self._told

    async def _said_to_desks(self) -> int:
        """How many notices the last broker has sent to all desks: no more than were expected."""
        (status,) = await self._desks[0].ask("status")
        return sum(each["told"] for each in status["connected"])

    def say_mark(self) -> None:
        answer = asyncio.create_task(self._camera.publish(TYPE, event(MARK)))
        self._answers.add(answer)
        answer.add_done_callback(self._answers.discard)

    async def hear_mark(self) -> None:
        await anext(self._marks)
        self._told += 1

    async def stop(self) -> None:
        for client in [*self._desks, *([self._camera] if hasattr(self, "_camera") else [])]:
            await client.close()
        for process in self._processes:
            process.kill()
            await process.wait()
        self._folder.cleanup()

    def servers(self) -> Sequence[int]:
        return [process.pid for process in self._processes]


class OnPostgres(Tidings):
    """The same with the journals in a PostgreSQL server, which a synchronous standby may follow; both on this machine."""

    def __init__(self, brokers: int, *, standby: bool) -> None:
        super().__init__(brokers, sealed=False)
        self.name = f"Tidings on PostgreSQL{', with a synchronous standby' if standby else ''}"
        self._with_standby = standby
        self._clusters: list[PostgresCluster] = []
        self._homes: list[Path] = []

    async def _before_start(self, laid: DevNetworkFiles) -> None:
        if programs() is None:
            raise Unavailable(WHY_SKIPPED)
        await asyncio.to_thread(self._start_database)
        for config in laid.brokers.values():
            (config.parent / "journal-password").write_text(PASSWORD)
            at = f"postgresql://tester@127.0.0.1:{self._clusters[0].port}/postgres"
            added = f'journal = "{at}"\njournal_password = "file:journal-password"\n'
            config.write_text(config.read_text().replace("listen = ", f"{added}listen = ", 1))

    def _start_database(self) -> None:
        self._homes.append(new_home())
        primary = PostgresCluster(self._homes[0])
        primary.make()
        primary.start()
        self._clusters.append(primary)
        if self._with_standby:
            self._homes.append(new_home())
            self._clusters.append(primary.add_standby(self._homes[1]))

    async def stop(self) -> None:
        await super().stop()
        for cluster in self._clusters:
            await asyncio.to_thread(cluster.stop)
        for home in self._homes:
            shutil.rmtree(home, ignore_errors=True)

    def cpu_s(self) -> float:
        """Of the brokers, and of all processes of the databases, which come and go."""
        used = super().cpu_s()
        for cluster in self._clusters:
            server, *children = cluster.pids()
            used += cpu_s_of(server, with_ended=True)
            for pid in children:
                with contextlib.suppress(OSError):  # It has just ended.
                    used += cpu_s_of(pid)
        return used
