"""The check of each second goes on, whatever it finds: a broker that stopped looking would serve who was revoked."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tidings.errors import SetupError
from tidings.net.broker import periodic
from tidings.net.broker.periodic import BackgroundTasks, Maintenance


class Registry:
    """A registry with one revocation and one type, each returned until it is used; it fails once."""

    def __init__(self) -> None:
        self.failures: list[Exception] = [SetupError("the registry is busy")]
        self.seen = {"revocations": False, "types": False}

    def _new(self, what: str) -> list[Any]:
        first, self.seen[what] = not self.seen[what], True
        return [SimpleNamespace(revocation_id=b"r", record=None)] if first else []

    def revocations(self) -> list[Any]:
        return self._new("revocations")

    def new_types(self) -> list[Any]:
        if self.failures:
            raise self.failures.pop()
        return self._new("types")

    def look_again(self) -> None:
        self.seen = dict.fromkeys(self.seen, False)


def test_a_check_that_fails_is_repeated_and_a_revocation_counts_before_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(periodic, "CHECK_EVERY_S", 0.0)
    log: list[str] = []
    missing: list[Exception] = [FileNotFoundError("manager.pem"), FileNotFoundError("manager.pem")]

    async def scenario() -> None:
        done = asyncio.Event()

        def declare(types: Any) -> None:
            if missing:
                log.append("no manager.pem")
                raise missing.pop()
            log.append("declared")
            done.set()

        def revoke(ids: list[bytes], now: float) -> list[Any]:
            log.append("revoked")
            return []

        node = SimpleNamespace(now_ms=lambda now: 0, clock_is=lambda *_: None, revoke=revoke)
        work = Maintenance(
            cast("Any", node), lambda effects: None, cast("Any", Registry()), (), declare, (), lambda records: None
        ).run()
        tasks = BackgroundTasks()
        tasks.start(work)
        async with asyncio.timeout(60):
            await done.wait()
        await tasks.cancel()

    with caplog.at_level(logging.ERROR):
        asyncio.run(scenario())
    # The registry is busy, the file is missing, it is still missing, all is well.
    assert log == ["revoked", "revoked", "no manager.pem", "revoked", "no manager.pem", "revoked", "declared"]
    assert [record.why for record in caplog.records] == ["the registry is busy", "manager.pem"]  # type: ignore[attr-defined]
    assert [record.exc_info for record in caplog.records] == [None, None]


def test_a_revocation_counts_while_other_steps_of_the_check_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(periodic, "CHECK_EVERY_S", 0.0)
    registry = Registry()
    registry.failures.clear()

    def reload() -> None:
        raise PermissionError("tokens")

    async def scenario() -> None:
        revoked = asyncio.Event()

        def revoke(ids: list[bytes], now: float) -> list[Any]:
            revoked.set()
            return []

        node = SimpleNamespace(now_ms=lambda now: 0, clock_is=lambda *_: None, revoke=revoke)
        work = Maintenance(
            cast("Any", node), lambda _: None, cast("Any", registry), (), lambda _: None, (reload,), lambda _: None
        ).run()
        tasks = BackgroundTasks()
        tasks.start(work)
        async with asyncio.timeout(60):
            await revoked.wait()
        await tasks.cancel()

    asyncio.run(scenario())
