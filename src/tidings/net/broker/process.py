"""A broker as a process of its own, until a signal stops it or it has drained."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

from tidings.matching import load_kernels
from tidings.net.broker.broker import Broker
from tidings.net.config import BrokerConfig
from tidings.net.enrolment.live_files import renew_if_ended
from tidings.net.observability.metrics import MetricsServer, StandbyServer
from tidings.security import prepare_columns

COLLECT_AFTER = 10_000  # New objects that are still there; looking through them takes a few milliseconds.
COLLECT_ALL_S = 3600.0  # So long waits what goes in a circle later: some kilobytes of each closed connection.
# So long the journal's thread, back from the disk, waits for a busy event loop; not ten times that.
HAND_OVER_S = 0.0005

log = logging.getLogger("tidings.broker")

Report = Callable[[dict[str, Any]], None]


async def serve(config: BrokerConfig, report: Report) -> None:
    """Runs a broker until SIGTERM or SIGINT, or until it has drained; calls `report` when it listens, joins and stops."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for way_to_stop in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(way_to_stop, stop.set)
    prepare()  # Before anybody is served: later, all links would wait for it.
    if config.enrolment:
        await renew_if_ended(config.certificate, "broker")
    broker = await _started(config, report, stop)
    if broker is None:
        report({"broker": config.name, "state": "stopped"})
        return
    sys.setswitchinterval(HAND_OVER_S)
    collecting = loop.create_task(_collect_all_now_and_then())
    collect_in_small_parts()
    async with _extra_servers(broker) as addresses:
        report({"broker": config.name, "state": "listening", "address": broker.address, **addresses})
        joining = loop.create_task(_report_joined(broker, report))
        await _first(stop.wait(), broker.ended())
        joining.cancel()
    collecting.cancel()
    if not broker.is_draining:
        await broker.stop()
    await broker.ended()
    report({"broker": config.name, "state": "stopped"})
    if broker.superseded is not None:
        raise broker.superseded


async def _started(config: BrokerConfig, report: Report, stop: asyncio.Event) -> Broker | None:
    """The broker; None if it was stopped while it waited for the lease of its journal."""

    def waiting(why: str) -> None:
        log.warning("waits for its journal", extra={"why": why})
        report({"broker": config.name, "state": "standby", "why": why})

    starting, stopped = asyncio.ensure_future(Broker.start(config, waiting)), asyncio.ensure_future(stop.wait())
    async with _standby_page(config, starting):
        await asyncio.wait([starting, stopped], return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if not starting.done():
        starting.cancel()
        await asyncio.wait([starting])
        return None
    return starting.result()


@contextlib.asynccontextmanager
async def _standby_page(config: BrokerConfig, starting: asyncio.Future[Broker]) -> AsyncIterator[None]:
    """The metrics of a process that waits: a probe must find it alive, and not ready."""
    if not (config.metrics and config.journal):
        yield
        return
    async with StandbyServer(config.metrics) as standby:
        starting.add_done_callback(lambda _: standby.close())
        yield


def prepare() -> None:
    """Loads the kernels. Called before the event loop runs, it can be stopped with Ctrl-C while it compiles them."""
    load_kernels(_log_compilation)
    prepare_columns()


def _log_compilation() -> None:
    log.info("compiling the matching kernels: half a minute, once after an installation")


def collect_in_small_parts() -> None:
    """Look for circles among what is new, once, and never again at what is found to be in use.

    What a broker remembers of events is freed by its counts. Python would look through all of it again and again, and
    everything waits meanwhile: tens of milliseconds for what has come in some seconds, tenths of a second for all.
    """
    collect_all()
    gc.set_threshold(COLLECT_AFTER)
    gc.callbacks.append(_freeze_what_is_left)


def _freeze_what_is_left(phase: str, info: dict[str, int]) -> None:
    if phase == "stop":
        gc.freeze()


async def _collect_all_now_and_then() -> None:
    while True:
        await asyncio.sleep(COLLECT_ALL_S)
        collect_all()


def collect_all() -> None:
    gc.unfreeze()
    gc.collect()
    gc.freeze()


@contextlib.asynccontextmanager
async def _extra_servers(broker: Broker) -> AsyncIterator[dict[str, str]]:
    """The gateway and the metrics page, if configured, and their addresses."""
    config, addresses = broker.config, dict[str, str]()
    async with contextlib.AsyncExitStack() as stack:
        if config.gateway:
            from tidings.net.gateway.server import Gateway  # Here, so that only who has one loads what it needs.

            gateway = await stack.enter_async_context(Gateway(config, broker.services, broker.clients))
            addresses["gateway"] = gateway.address
        if config.metrics:
            metrics = await stack.enter_async_context(MetricsServer(config.metrics, broker.numbers))
            addresses["metrics"] = metrics.address
        yield addresses


async def _report_joined(broker: Broker, report: Report) -> None:
    await broker.is_joined.wait()
    report({"broker": broker.config.name, "state": "joined"})


async def _first(*waits: Any) -> None:
    tasks = [asyncio.ensure_future(each) for each in waits]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
