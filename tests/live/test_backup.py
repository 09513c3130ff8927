"""A broker is backed up under load, killed, and restored elsewhere: nothing is lost or comes twice, the old copy ends."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import sqlite3
from collections import Counter
from pathlib import Path

import pytest

from tests.live.processes import BrokerProcess, LiveNetwork
from tests.live.test_crashes import ARRIVE_S_MAX, plates, take
from tidings.errors import InputError
from tidings.net import (
    Client,
    DevNetwork,
    Organisation,
    OrganisationSettings,
    Subscription,
    read_broker,
    restore_backup,
    write_backup,
)
from tidings.net.enrolment.participant import prepare
from tidings.security import Identity, Mode

pytestmark = pytest.mark.live

TWO = DevNetwork(first_port=0, brokers={"police": 2}, mode=Mode.ATTRIBUTE)


class Load:
    """A publisher that publishes batch after batch, and knows what was acknowledged."""

    def __init__(self, client: Client) -> None:
        self.client, self.acknowledged, self._more = client, list[str](), asyncio.Event()
        self._running = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            self.acknowledged += await self.client.publish_many("Numberplate", plates(len(self.acknowledged), 20))
            self._more.set()

    async def grows(self, by: int) -> None:
        """Waits until so many more events are acknowledged."""
        enough = len(self.acknowledged) + by
        while len(self.acknowledged) < enough:
            self._more.clear()
            await self._more.wait()

    async def stop(self) -> None:
        self._running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._running


async def until(subscription: Subscription, last: set[str]) -> list[str]:
    """The ids of all events up to and with these."""
    came: list[str] = []
    async with asyncio.timeout(ARRIVE_S_MAX):
        while last:
            came.append((await anext(subscription)).id)
            last = last - {came[-1]}
    return came


def test_a_broker_restored_from_a_backup_under_load_loses_nothing_and_repeats_nothing(tmp_path: Path) -> None:
    backup, elsewhere = tmp_path / "police-1.backup", tmp_path / "elsewhere"

    async def scenario() -> None:
        async with LiveNetwork(tmp_path, TWO) as network:
            here = await network.client("police/desk", "police-1")
            there = await network.client("police/desk", "police-2")
            read_here = await here.subscribe("Numberplate", durable="here").ready()
            read_there = await there.subscribe("Numberplate", durable="there").ready()
            first = Load(await network.client("police/camera", "police-1"))
            second = Load(await network.client("police/camera", "police-2"))
            await asyncio.gather(first.grows(100), second.grows(100))
            read = await take(read_here, 50)
            await read_here.close()

            before = list(first.acknowledged)
            await asyncio.to_thread(write_backup, network.laid.brokers["police-1"], backup)
            await asyncio.gather(first.grows(100), second.grows(100))
            await network.brokers["police-1"].kill()
            await first.stop()
            await second.grows(40)

            old = network.laid.brokers["police-1"]
            restored = restore_backup(backup, elsewhere)
            copy = network.brokers["police-1"] = BrokerProcess("restored", restored.config)
            await copy.start()
            await copy.until("joined")
            await second.grows(40)
            await second.stop()
            ends = set(
                await (await network.client("police/camera", "police-1")).publish_many("Numberplate", plates(7, 1))
            )
            ends |= set(await second.client.publish_many("Numberplate", plates(8, 1)))
            kept = {*before, *second.acknowledged, *ends}

            again = await network.client("police/desk", "police-1")
            read += await until(await again.subscribe("Numberplate", durable="here").ready(), ends)
            came = await until(read_there, ends)
            for got in (read, came):
                assert not kept.difference(got)
                assert [id for id, times in Counter(got).items() if times > 1] == []

            # The old copy comes back with all that it had: it is told, ends, and does not begin again.
            late = BrokerProcess("old copy", old, "--listen", "127.0.0.1:0")
            for _ in range(2):
                await late.start()
                async with asyncio.timeout(ARRIVE_S_MAX):
                    assert await late.ended() == 3
                assert "was restored from a backup" in late.tail()

    asyncio.run(scenario())


def test_a_backup_has_the_key_of_a_key_manager_that_moved_here(tmp_path: Path) -> None:
    org, _ = Organisation.create(tmp_path / "police", OrganisationSettings("police"))
    broker = org.folder / "police-1"
    org.install_here(org.approve(prepare(broker, "police", "police-1", "broker", "127.0.0.1:7401")))
    moved = broker / "managers" / "moved.pem"
    moved.parent.mkdir(exist_ok=True)
    moved.write_bytes(Identity.make(secrets.token_bytes).to_pem())
    (broker / "data").mkdir(exist_ok=True)
    with contextlib.closing(sqlite3.connect(broker / "data" / "journal.db")) as journal:
        journal.execute("CREATE TABLE meta (name, value)")
    written = write_backup(broker / "broker.toml", tmp_path / "backup")
    assert {"managers/moved.pem", "manager.pem"} <= written.manifest.files.keys()


def test_a_backup_that_is_damaged_or_none_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with LiveNetwork(tmp_path, DevNetwork(first_port=0, brokers={"police": 1})) as network:
            config = network.laid.brokers["police-1"]
            config.write_text(config.read_text().replace("[broker]\n", "[broker]\ntraces_ratio = 0.25\n", 1))
            (read_broker(config).data / "webhooks.json").write_text('{"fines": "https://hooks.example/in"}')
            written = write_backup(config, tmp_path / "good")
            with pytest.raises(InputError, match="is there already"):
                write_backup(config, tmp_path / "good")
        whole = written.file.read_bytes()
        (tmp_path / "short").write_bytes(whole[: len(whole) // 2])
        (tmp_path / "other").write_bytes(b"no backup")
        journal = whole.index(b"SQLite format 3")
        (tmp_path / "altered").write_bytes(whole[: journal + 5000] + b"!" + whole[journal + 5001 :])
        for name, why in (("short", "cut short"), ("other", "not a backup"), ("altered", "is damaged")):
            with pytest.raises(InputError, match=why):
                restore_backup(tmp_path / name, tmp_path / "new")
            assert not (tmp_path / "new").exists()
        with pytest.raises(InputError, match="not empty"):
            restore_backup(tmp_path / "good", config.parent)
        made = restore_backup(tmp_path / "good", tmp_path / "new", advertise="10.0.0.7:7401")
        again = read_broker(made.config)
        assert (again.advertise, again.traces_ratio) == ("10.0.0.7:7401", 0.25)
        assert "hooks.example" in (again.data / "webhooks.json").read_text()
        assert (tmp_path / "new" / "data" / "journal.db").stat().st_mode & 0o077 == 0
        with contextlib.closing(sqlite3.connect(tmp_path / "new" / "data" / "journal.db")) as disk:
            assert disk.execute("PRAGMA integrity_check").fetchall() == [("ok",)]

    asyncio.run(scenario())
