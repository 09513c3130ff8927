"""A broker's numbers for Prometheus, on a page of its own, in plain HTTP: for the inside of an organisation."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tidings.errors import TidingsError
from tidings.net.config import host_and_port
from tidings.net.gateway import http

if TYPE_CHECKING:
    from tidings.net.broker.broker import Broker


class BrokerNumbers(Collector):
    """Read from the broker when asked; nothing is counted twice."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def collect(self) -> Iterator[Metric]:
        b = self._broker
        counts = CounterMetricFamily("tidings_count", "What has happened, by what.", labels=["what"])
        for what, amount in sorted(b.counts.items()):
            counts.add_metric([what.replace(" ", "_")], amount)
        yield counts
        for name, help, value in (
            ("clients", "Connected clients.", len(b.connections.sessions)),
            ("links", "Links to other brokers.", len(b.links.open)),
            ("owed", "Events owed to other brokers and not confirmed.", b.promises.owed_count()),
            ("durables", "Durable subscriptions.", len(b.queues.all)),
            ("waiting", "Events that wait for durable subscribers.", b.queues.waiting()),
            ("lost_messages", "Overlay messages that found a full queue.", b.links.lost_messages),
            ("journal_groups", "Groups written to the journal.", b.journal.committed_groups),
            ("journal_stuck", "1 while the journal cannot be written.", int(b.journal.is_stuck)),
        ):
            yield GaugeMetricFamily(f"tidings_{name}", help, value=value)
        held = GaugeMetricFamily("tidings_holdings", "What is kept in memory, by what.", labels=["what"])
        for what, (amount, _) in sorted({**b.node.holdings(), **b.promises.dues.holdings()}.items()):
            held.add_metric([what.replace(" ", "_")], amount)
        yield held


class Metrics:
    """The page, while it is up."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._registry = CollectorRegistry()
        self._registry.register(BrokerNumbers(broker))
        self.address = ""

    async def __aenter__(self) -> Metrics:
        host, port = host_and_port(self._broker.config.metrics, "metrics: ")
        self._server = await asyncio.start_server(self._answer, host, port, limit=http.HEAD_BYTES_MAX)
        self.address = "{}:{}".format(*self._server.sockets[0].getsockname()[:2])
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = await http.read_request(reader)
            if request is not None and request.path == "/metrics" and request.method == "GET":
                writer.write(
                    http.response(200, generate_latest(self._registry), "text/plain; version=0.0.4", Connection="close")
                )
            elif request is not None:
                writer.write(http.as_json(404, {"why": "there is only /metrics here"}))
        except TidingsError as wrong:
            writer.write(http.refusal(wrong))
        except TimeoutError:
            pass
        finally:
            writer.close()
