"""A broker that outlives its machine: two processes of it, a PostgreSQL primary and its synchronous standby.

    python -m tests.live.outliving [--events 100000] [--seconds 150] [--only kill freeze …]

While events are published without a pause, one thing after the other happens to who serves and to the database: see `Trials`.
In the end each acknowledged event has come exactly once, in order, to a durable subscriber of the same broker and to
one of another organisation; and how long each takeover took is told.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from tests.live.disks import SmallDisk
from tests.live.lines import Line
from tests.live.outcome import described, leaves
from tests.live.processes import BrokerProcess, LiveNetwork
from tests.postgres_server import PASSWORD, PostgresCluster, new_home
from tidings.errors import Denied, PeerError, SetupError
from tidings.matching import load_kernels
from tidings.net import Client, DevNetwork, ReadAccess, Subscription, read_broker
from tidings.net.config import Limits
from tidings.net.dev_network import free_ports
from tidings.security import Mode

BATCH = 50
AGAIN_S = 0.05
COMES_S_MAX = 240.0  # Not a promise: how long a loaded machine may take.
WHAT_ENDS = ("disk:", "key:", "draining", "beacon:")  # Refusals that end by themselves.
DISK_MB = 1024  # With room for all events, and for the log that the server keeps of them.
LEASE_S = Limits().lease_s
Say = Callable[[str], None]
LAYOUT = DevNetwork(
    first_port=0,
    brokers={"police": 1, "ccs": 1},
    readers={"ccs": ReadAccess()},
    mode=Mode.ATTRIBUTE,
)


def _silently(_: str) -> None:
    pass


@dataclass
class Outlived:
    """What came of it."""

    published: list[str] = field(default_factory=list)
    got: dict[str, list[str]] = field(default_factory=dict)
    refused: int = 0
    failed: str = ""
    """Why it could not be brought to its end."""
    takeovers_s: dict[str, float] = field(default_factory=dict)
    """By what happened: from then until the other process listened."""
    served_s: dict[str, float] = field(default_factory=dict)
    """Likewise until the next event was acknowledged."""

    def wrong(self) -> list[str]:
        """What should not be so."""
        if self.failed:
            return [self.failed]
        return [why for name, ids in self.got.items() if (why := self._wrong(name, ids))]

    def _wrong(self, name: str, ids: Sequence[str]) -> str:
        lost, twice = len(set(self.published) - set(ids)), len(ids) - len(set(ids))
        if lost or twice:
            return f"{name}: {lost:,} of {len(self.published):,} lost, {twice:,} twice"
        return "" if ids == self.published else f"{name}: out of order, or not what was acknowledged"

    def summary(self) -> str:
        lines = [f"{len(self.published):,} events acknowledged, {self.refused:,} refusals said again"]
        for name, ids in self.got.items():
            lost, twice = len(set(self.published) - set(ids)), len(ids) - len(set(ids))
            lines.append(f"{name}: {len(ids):,} received, {lost} lost, {twice} twice")
        for what, took_s in self.takeovers_s.items():
            lines.append(f"{what}: another process listened after {took_s:.2f} s")
        for what, took_s in self.served_s.items():
            lines.append(f"{what}: the next event was acknowledged after {took_s:.2f} s")
        return "\n".join(lines)


class Pair(LiveNetwork):
    """A network whose broker police-1 has its journal in PostgreSQL, and a second process elsewhere."""

    def __init__(self, folder: Path, *, disk_mb: int = 0, lease_s: float = LEASE_S) -> None:
        """`disk_mb`: the primary has a disk of its own, which can be filled."""
        super().__init__(folder, replace(LAYOUT, limits={"lease_s": lease_s}))
        homes = [new_home(), new_home()]
        self.disk: SmallDisk | None = None
        self.primary, self._standby_home = PostgresCluster(homes[0]), homes[1]
        if disk_mb:
            self.disk = _small(homes[0], disk_mb)
        self._homes = homes
        self.standby: PostgresCluster | None = None
        self.lines: dict[str, list[Line]] = {}
        self.processes: dict[str, BrokerProcess] = {}
        self.ended: dict[str, int] = {}

    @property
    def active(self) -> str:
        """The process that serves."""
        (name,) = [name for name, process in self.processes.items() if process.is_up and "listening" in process.said]
        return name

    @property
    def waiting(self) -> str:
        """The other one."""
        return next(name for name in self.processes if name != self.active)

    async def __aenter__(self) -> Pair:
        try:
            await asyncio.to_thread(self._start_database)
            await self._describe()
            await self.brokers["ccs-1"].start()
            await self.processes["a"].start()
            await self.processes["a"].until("joined")
            await self.brokers["ccs-1"].until("joined")
            await self.processes["b"].start()
            await self.processes["b"].until("standby")
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await super().__aexit__()
        for process in self.processes.values():
            if process.is_up:
                process.thaw()
                await process.kill()
        for line in (line for lines in self.lines.values() for line in lines):
            await line.close()
        for cluster in (self.primary, self.standby):
            if cluster is not None and cluster.data.exists():
                await asyncio.to_thread(cluster.stop)
        if self.disk is not None:
            self.disk.close()
        for home in self._homes:
            shutil.rmtree(home, ignore_errors=True)

    def _start_database(self) -> None:
        self.primary.make()
        self.primary.start()
        self.standby = self.primary.add_standby(self._standby_home)

    async def _describe(self) -> None:
        """The files of both processes, and of those that connect to them."""
        first = self.laid.brokers["police-1"]
        own = read_broker(first).listen
        # Nobody listens yet, so the ports of the layout count as free, too.
        taken = {read_broker(file).listen for file in self.laid.brokers.values()}
        port = next(each for each in free_ports(len(taken) + 1) if f"127.0.0.1:{each}" not in taken)
        second = first.parent.with_name("police-1-b")
        shutil.copytree(first.parent, second)
        listens = {"a": own, "b": f"127.0.0.1:{port}"}
        assert self.standby is not None
        for name, file in (("a", first), ("b", second / first.name)):
            self.lines[name] = [await Line(each.port).open() for each in (self.primary, self.standby)]
            (file.parent / "journal-password").write_text(PASSWORD)
            at = ",".join(f"127.0.0.1:{line.port}" for line in self.lines[name])
            added = f'journal = "postgresql://tester@{at}/postgres"\njournal_password = "file:journal-password"\n'
            text = file.read_text().replace(f'listen = "{own}"\n', f'listen = "{listens[name]}"\n{added}')
            file.write_text(text)
            self.processes[name] = BrokerProcess(f"police-1 ({name})", file)
        both = f'["{listens["a"]}", "{listens["b"]}"]'
        self._replace(self.laid.brokers["ccs-1"], f'address = "{own}"', f"address = {both}")
        for client in ("police/camera", "police/desk"):
            self._replace(self.laid.clients[client], f'broker = "{own}"', f"broker = {both}")
        del self.brokers["police-1"]

    @staticmethod
    def _replace(file: Path, before: str, after: str) -> None:
        text = file.read_text()
        assert before in text
        file.write_text(text.replace(before, after))


def _small(home: Path, disk_mb: int) -> SmallDisk:
    """A disk of its own for a server's home: made before anything is in it, and owned by the server's user."""
    owner = home.stat()
    home.rmdir()
    disk = SmallDisk(home, disk_mb, lambda: 0)
    os.chown(home, owner.st_uid, owner.st_gid)
    home.chmod(0o700)
    return disk


class Trials:
    """What happens, one after the other."""

    def __init__(self, pair: Pair, outlived: Outlived, say: Say) -> None:
        self.pair, self.outlived, self.say = pair, outlived, say
        self.acknowledged = 0
        """Raised with each acknowledgement."""
        self._came = asyncio.Event()
        self.all: dict[str, Callable[[], Awaitable[None]]] = {
            "kill": self.kill,
            "freeze": self.freeze,
            "cut": self.cut,
            "away": self.away,
            "full": self.full,
            "promote": self.promote,
        }

    def acknowledge(self) -> None:
        self.acknowledged += 1
        self._came.set()

    async def undergo(self, what: str) -> None:
        self.say(f"{what}, with {len(self.outlived.published):,} events acknowledged")
        async with asyncio.timeout(COMES_S_MAX):
            await self.all[what]()
            await self._served()

    async def kill(self) -> None:
        """kill -9 who serves: the other takes over, and the killed one comes back as the one that waits."""
        active, waiting = self.pair.active, self.pair.waiting
        begun = time.monotonic()
        await self.pair.processes[active].kill()
        await self._taken_over("kill", waiting, begun)
        await self._back(active)

    async def freeze(self) -> None:
        """Stop who serves, and let it go on after the other has taken over: it must end, and has written nothing."""
        active, waiting = self.pair.active, self.pair.waiting
        begun = time.monotonic()
        self.pair.processes[active].freeze()
        await self._taken_over("freeze", waiting, begun)
        self.pair.processes[active].thaw()
        await self._superseded(active)

    async def cut(self) -> None:
        """Cut who serves off from the database, so that nobody is told: the other takes over."""
        active, waiting = self.pair.active, self.pair.waiting
        begun = time.monotonic()
        for line in self.pair.lines[active]:
            line.cut(silently=True)
        await self._taken_over("cut", waiting, begun)
        for line in self.pair.lines[active]:
            line.heal()
        await self._superseded(active)

    async def away(self) -> None:
        """Cut both off: events are refused with the reason, until the database is back."""
        lines = [line for both in self.pair.lines.values() for line in both]
        for line in lines:
            line.cut(silently=False)
        refused = self.outlived.refused
        while self.outlived.refused == refused:
            await self.something()
        for line in lines:
            line.heal()

    async def full(self) -> None:
        """Fill the disk of the database: events are refused, until there is room. PostgreSQL may have to be started again."""
        disk = self.pair.disk
        if disk is None or not disk.is_real:
            self.say("no disk can be mounted here: it is not filled")
            return
        disk.fill()
        desk = await self.pair.client("police/desk")
        while not (await desk.ask("status"))[0]["stuck"]:
            await self.something()
        camera = await self.pair.client("police/camera")
        with pytest.raises(SetupError, match="^disk: this broker cannot write its journal"):
            await camera.publish("Numberplate", {"plate": "AB", "speed": 1.0})
        disk.empty()
        await asyncio.to_thread(self.pair.primary.revive)

    async def promote(self) -> None:
        """Kill the primary and remove its disk; what was acknowledged is at the standby, which takes its place."""
        begun = time.monotonic()
        self.pair.primary.kill()
        self.pair.primary.lose_disk()
        assert self.pair.standby is not None
        await asyncio.to_thread(self.pair.standby.promote)
        self.say(f"the standby was promoted after {time.monotonic() - begun:.2f} s")

    async def _taken_over(self, what: str, by: str, begun: float) -> None:
        await self.pair.processes[by].until("listening")
        self.outlived.takeovers_s[what] = time.monotonic() - begun
        await self._served()
        self.outlived.served_s[what] = time.monotonic() - begun

    async def _superseded(self, process: str) -> None:
        """It ends by itself, with 3 and the reason."""
        code = await self.pair.processes[process].ended()
        assert code == 3, f"it ended with {code}: {self.pair.processes[process].tail()}"
        assert "the lease of police-1's journal has passed to" in self.pair.processes[process].tail()
        await self._back(process)

    async def _back(self, process: str) -> None:
        await self.pair.processes[process].start()
        await self.pair.processes[process].until("standby")

    async def _served(self) -> None:
        """Until an event is acknowledged that was published from now on."""
        until = self.acknowledged + 2
        while self.acknowledged < until:
            await self.something()

    async def something(self) -> None:
        self._came.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._came.wait(), 0.5)


async def outlive(
    folder: Path,
    *,
    events: int,
    seconds: float,
    trials: Sequence[str],
    say: Say = _silently,
    lease_s: float = LEASE_S,
) -> Outlived:
    """Publishes so many events over so many seconds, longer where a trial takes longer; the trials at even distances."""
    outlived = Outlived()
    async with Pair(folder, disk_mb=DISK_MB if "full" in trials else 0, lease_s=lease_s) as pair:
        say("two processes of police-1, a primary and its synchronous standby are up")
        trouble = Trials(pair, outlived, say)
        kept = {name: await _placed(await pair.client(name)) for name in ("police/desk", "ccs/desk")}
        async with asyncio.TaskGroup() as beside:
            readers = [beside.create_task(_read(one, outlived.got.setdefault(name, []))) for name, one in kept.items()]
            camera = await pair.client("police/camera")
            is_over = asyncio.Event()
            publishing = beside.create_task(_publish(camera, trouble, events, seconds, is_over))
            for number, what in enumerate(trials):
                while len(outlived.published) < events * (number + 0.5) / len(trials):
                    await trouble.something()
                await trouble.undergo(what)
            is_over.set()
            await publishing
            say(f"all {len(outlived.published):,} events are acknowledged; waiting until they have come")
            async with asyncio.timeout(COMES_S_MAX):
                while any(len(ids) < len(outlived.published) for ids in outlived.got.values()):  # noqa: ASYNC110
                    await asyncio.sleep(AGAIN_S)
            await asyncio.sleep(1.0)  # What comes twice comes now.
            for reader in readers:
                reader.cancel()
    return outlived


async def _read(subscription: Subscription, got: list[str]) -> None:
    async for event in subscription:
        got.append(event.id)  # noqa: PERF401 - as it comes


async def _placed(desk: Client) -> Subscription:
    while True:
        try:
            return await desk.subscribe("Numberplate", durable="kept").ready()
        except (Denied, SetupError) as refused:
            if not str(refused).startswith(WHAT_ENDS):
                raise
            await asyncio.sleep(AGAIN_S)


async def _publish(camera: Client, trouble: Trials, events: int, seconds: float, is_over: asyncio.Event) -> None:
    """At least so many, and until the trials are over."""
    outlived, loop = trouble.outlived, asyncio.get_running_loop()
    pause_s, due, number = seconds * BATCH / events, loop.time(), 0
    while number < events or not is_over.is_set():
        names = [f"e{number + index}" for index in range(BATCH)]
        values = [{"plate": f"AB{number + index}", "speed": 30.0} for index in range(BATCH)]
        number += BATCH
        while True:
            try:
                outlived.published += await camera.publish_many("Numberplate", values, names=names)
                break
            except (Denied, SetupError, PeerError) as refused:
                if not str(refused).startswith(WHAT_ENDS):
                    raise
                outlived.refused += 1
                await asyncio.sleep(AGAIN_S)
        trouble.acknowledge()
        due = max(due + pause_s, loop.time() - 1.0)
        await asyncio.sleep(max(0.0, due - loop.time()))


TRIALS = ("kill", "freeze", "cut", "away", "full", "promote")


def judged(events: int, seconds: float, trials: Sequence[str], say: Say = _silently) -> Outlived:
    """One run in a folder that is removed if all is well."""
    folder = Path(tempfile.mkdtemp(prefix="tidings-outliving-"))
    try:
        outlived = asyncio.run(_until_terminated(folder, events, seconds, trials, say))
    except Exception as fault:  # noqa: BLE001 - whatever it is, it is a reason.
        whys = ", and ".join(map(described, leaves(fault) if isinstance(fault, ExceptionGroup) else [fault]))
        outlived = Outlived(failed=f"it could not be brought to its end: {whys}; logs are in {folder}")
    if not outlived.wrong():
        shutil.rmtree(folder)
    return outlived


async def _until_terminated(folder: Path, events: int, seconds: float, trials: Sequence[str], say: Say) -> Outlived:
    """`outlive`, which takes its processes and mounts with it when it is told to end."""
    this = asyncio.current_task()
    assert this is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this.cancel)
    return await outlive(folder, events=events, seconds=seconds, trials=trials, say=say)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.live.outliving", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=150.0, help="over which they are published, at least")
    parser.add_argument("--only", nargs="+", choices=TRIALS, default=TRIALS)
    asked = parser.parse_args()
    begun = time.monotonic()
    load_kernels()
    outlived = judged(
        asked.events,
        asked.seconds,
        asked.only,
        lambda what: print(f"[{time.monotonic() - begun:6.1f}] {what}", file=sys.stderr, flush=True),
    )
    print(outlived.summary())
    for why in outlived.wrong():
        print(f"WRONG: {why}")
    return 1 if outlived.wrong() else 0


if __name__ == "__main__":
    sys.exit(main())
