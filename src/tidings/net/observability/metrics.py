"""A broker's metrics for Prometheus, over plain HTTP: for the inside of an organisation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tidings.errors import TidingsError
from tidings.net.config import host_and_port
from tidings.net.gateway.http import HttpConnection


@dataclass(frozen=True, slots=True)
class BrokerNumbers:
    """The state of a broker at one moment, in numbers."""

    counts: Mapping[str, int]
    clients: int
    links: int
    pending: int
    durables: int
    waiting: int
    lost_messages: int
    journal_groups: int
    is_journal_stuck: bool
    holdings: Mapping[str, int]


class BrokerCollector(Collector):
    """Reads the broker's numbers when Prometheus asks."""

    def __init__(self, read: Callable[[], BrokerNumbers]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        b = self._read()
        counts = CounterMetricFamily("tidings_count", "What has happened, by what.", labels=["what"])
        for what, amount in sorted(b.counts.items()):
            counts.add_metric([what.replace(" ", "_")], amount)
        yield counts
        for name, help, value in (
            ("clients", "Connected clients.", b.clients),
            ("links", "Links to other brokers.", b.links),
            ("owed", "Events that other brokers have not acknowledged.", b.pending),
            ("durables", "Durable subscriptions.", b.durables),
            ("waiting", "Events that wait for durable subscribers.", b.waiting),
            ("lost_messages", "Overlay messages that found a full queue.", b.lost_messages),
            ("journal_groups", "Groups written to the journal.", b.journal_groups),
            ("journal_stuck", "1 while the journal cannot be written.", int(b.is_journal_stuck)),
        ):
            yield GaugeMetricFamily(f"tidings_{name}", help, value=value)
        held = GaugeMetricFamily("tidings_holdings", "What is kept in memory, by what.", labels=["what"])
        for what, amount in sorted(b.holdings.items()):
            held.add_metric([what.replace(" ", "_")], amount)
        yield held


class MetricsServer:
    """The metrics page, while it is up."""

    def __init__(self, listen: str, read: Callable[[], BrokerNumbers]) -> None:
        """`listen` is the address as `host:port`."""
        self._listen = listen
        self._registry = CollectorRegistry()
        self._registry.register(BrokerCollector(read))
        self.address = ""

    async def __aenter__(self) -> MetricsServer:
        host, port = host_and_port(self._listen, "metrics: ")
        self._server = await asyncio.start_server(self._answer, host, port)
        self.address = "{}:{}".format(*self._server.sockets[0].getsockname()[:2])
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = HttpConnection(reader, writer)
        try:
            request = await connection.request()
            if request is not None and request.path == "/metrics" and request.method == "GET":
                page = generate_latest(self._registry)
                connection.respond(200, page, "text/plain; version=0.0.4", Connection="close")
            elif request is not None:
                connection.respond_json(404, {"why": "there is only /metrics here"})
        except TidingsError as wrong:
            connection.refuse(wrong)
        except TimeoutError:
            pass
        finally:
            writer.close()
