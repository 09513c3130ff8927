"""A broker as a process of its own: until it is told to stop, or has drained."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Callable
from typing import Any

from tidings.net.broker import Broker
from tidings.net.config import BrokerConfig
from tidings.net.gateway import Gateway
from tidings.net.metrics import Metrics

Tell = Callable[[dict[str, Any]], None]


async def serve(config: BrokerConfig, tell: Tell) -> None:
    """Run a broker until SIGTERM or SIGINT, or until somebody has it drained; `tell` hears when it listens and joins."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for way_to_stop in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(way_to_stop, stop.set)
    broker = await Broker.start(config)
    async with _beside(broker) as addresses:
        tell({"broker": config.name, "state": "listening", "address": broker.address, **addresses})
        joining = loop.create_task(_tell_joined(broker, tell))
        await _first(stop.wait(), broker.ended())
        joining.cancel()
    if not broker.is_draining:
        await broker.stop()
    await broker.ended()
    tell({"broker": config.name, "state": "stopped"})


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
