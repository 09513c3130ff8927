"""A broker as a process of its own: until it is told to stop, or has drained."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

from tidings.matching import load_kernels
from tidings.net.broker import Broker
from tidings.net.config import BrokerConfig
from tidings.net.gateway import Gateway
from tidings.net.metrics import Metrics

COLLECT_AFTER = (50_000, 20, 50)  # Objects, then collections: some dozen batches of events are made in between.

HAND_OVER_S = (
    0.0005  # So long the journal's thread, back from the disk, waits for a busy event loop; not ten times that.
)

Tell = Callable[[dict[str, Any]], None]


async def serve(config: BrokerConfig, tell: Tell) -> None:
    """Run a broker until SIGTERM or SIGINT, or until somebody has it drained; `tell` hears when it listens and joins."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for way_to_stop in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(way_to_stop, stop.set)
    load_kernels()  # Before anybody is served: later, all links would wait for it.
    broker = await Broker.start(config)
    sys.setswitchinterval(HAND_OVER_S)
    _collect_seldom()
    async with _beside(broker) as addresses:
        tell({"broker": config.name, "state": "listening", "address": broker.address, **addresses})
        joining = loop.create_task(_tell_joined(broker, tell))
        await _first(stop.wait(), broker.ended())
        joining.cancel()
    if not broker.is_draining:
        await broker.stop()
    await broker.ended()
    tell({"broker": config.name, "state": "stopped"})


def _collect_seldom() -> None:
    """What is loaded stays, and events are freed by their counts: looking for circles among them takes long and finds none.

    A collection of everything would stop the broker for a tenth of a second, again and again while it is busy.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)


@contextlib.asynccontextmanager
async def _beside(broker: Broker) -> AsyncIterator[dict[str, str]]:
    """What a broker offers beside its links, and where."""
    config, addresses = broker.config, dict[str, str]()
    async with contextlib.AsyncExitStack() as stack:
        if config.gateway:
            gateway = await stack.enter_async_context(Gateway(broker))
            addresses["gateway"] = gateway.address
        if config.metrics:
            metrics = await stack.enter_async_context(Metrics(broker))
            addresses["metrics"] = metrics.address
        yield addresses


async def _tell_joined(broker: Broker, tell: Tell) -> None:
    await broker.is_joined.wait()
    tell({"broker": broker.config.name, "state": "joined"})


async def _first(*waits: Any) -> None:
    tasks = [asyncio.ensure_future(each) for each in waits]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
