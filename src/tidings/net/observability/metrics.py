"""A broker's metrics for Prometheus, and its health, over plain HTTP: for the inside of an organisation.

/metrics   all numbers
/livez     200 as long as the event loop turns
/readyz    200 if clients can be served; else 503, and why not
"""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import NamedTuple, Self

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from tidings import __version__
from tidings.errors import TidingsError
from tidings.net.gateway.http import HttpConnection
from tidings.net.journal_storage.interface import LeaseStatus
from tidings.net.observability.latency import Meters
from tidings.net.transport.listen import address_of, listen

SUBSCRIPTIONS_MAX = 1000  # Durable subscriptions on the page, those with the most events waiting: each is two series.

# What a broker counts in words, by the metric that Prometheus gets; the rest are actions of the overlay.
_COUNTERS = {
    "published": ("events_published", "Events published here."),
    "notified": ("events_delivered", "Deliveries of events to subscriptions of this broker's clients."),
    "refused": ("peer_messages_refused", "Messages of other brokers that were refused."),
    "rate limited": ("events_rate_limited", "Events refused because a client or the organisation was too fast."),
    "peers slowed down": ("peer_pauses", "Pauses in reading from an organisation that was too fast."),
    "missed by the overlay": (
        "events_missed_by_overlay",
        "Events for live subscriptions that a spot check brought, and the overlay did not.",
    ),
    "connections refused": ("connections_refused", "Connections beyond the limit."),
    "handshakes failed": ("handshakes_failed", "Connections that were not authenticated."),
    "clients that broke the rules": ("client_protocol_errors", "Clients cut off for a frame they may not send."),
}


class SubscriptionLag(NamedTuple):
    """What waits for one durable subscription."""

    id: str
    name: str
    type: str
    events: int
    oldest_s: float


@dataclass(frozen=True, slots=True)
class BrokerNumbers:
    """The state of a broker at one moment, in numbers."""

    meters: Meters
    overlay: str
    is_joined: bool
    is_draining: bool
    clients: int
    links: int
    pending: int
    durables: int
    waiting: int
    lags: Sequence[SubscriptionLag]
    key_epochs: Mapping[tuple[str, str], int]
    """The newest epoch held, by type and key group."""
    certificate_ends_s: float
    disk: Mapping[str, int]
    """Empty where the system does not say."""
    lease: LeaseStatus | None
    """Of a journal in a database."""
    lost_messages: int
    journal_groups: int
    is_journal_stuck: bool
    holdings: Mapping[str, int]

    def not_ready(self) -> list[str]:
        """Why clients should not be sent here now; empty if they can be."""
        reasons = {
            "it has not joined the network": not self.is_joined,
            "it drains": self.is_draining,
            "its journal cannot be written": self.is_journal_stuck,
        }
        return [why for why, holds in reasons.items() if holds]


class BrokerCollector(Collector):
    """Reads the broker's numbers when Prometheus asks."""

    def __init__(self, read: Callable[[], BrokerNumbers]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        b = self._read()
        build = {"version": __version__, "python": platform.python_version(), "overlay": b.overlay}
        yield _labelled(GaugeMetricFamily, "build_info", "Always 1; its labels say what runs.", [(build, 1)])
        yield from _counters(b)
        for name, help, histogram in (
            ("publish_duration", "From a publish request until its events are on disk.", b.meters.publish),
            ("route_duration", "From overlay messages until what follows from them is queued.", b.meters.route),
            ("delivery_duration", "From a durable queue until the acknowledgement.", b.meters.delivery),
        ):
            yield HistogramMetricFamily(
                f"tidings_{name}_seconds", help, buckets=histogram.cumulative(), sum_value=histogram.sum_s
            )
        yield from _gauges(b)
        yield from _per_subscription(b)


def _counters(b: BrokerNumbers) -> Iterator[Metric]:
    counts = b.meters.counts
    for what, (name, help) in _COUNTERS.items():
        yield CounterMetricFamily(f"tidings_{name}", help, value=counts[what])
    yield CounterMetricFamily("tidings_overlay_messages_lost", "Messages that found a full queue.", b.lost_messages)
    yield CounterMetricFamily("tidings_journal_groups", "Groups written to the journal.", b.journal_groups)
    actions = [({"action": _word(what)}, n) for what, n in sorted(counts.items()) if what not in _COUNTERS]
    yield _labelled(CounterMetricFamily, "overlay_actions", "What the routing protocol did, by its words.", actions)


def _gauges(b: BrokerNumbers) -> Iterator[Metric]:
    for name, help, value in (
        ("ready", "1 if /readyz says so.", int(not b.not_ready())),
        ("joined", "1 once the broker has joined the network.", int(b.is_joined)),
        ("clients", "Connected clients.", b.clients),
        ("links", "Links to other brokers.", b.links),
        ("outbox_events", "Events that other brokers have not acknowledged.", b.pending),
        ("durable_subscriptions", "Durable subscriptions.", b.durables),
        ("queue_events", "Events that wait for durable subscribers.", b.waiting),
        ("journal_stuck", "1 while the journal cannot be written.", int(b.is_journal_stuck)),
        ("certificate_expiry_timestamp_seconds", "When the broker's certificate ends.", b.certificate_ends_s),
        *((name, "The journal and its disk.", value) for name, value in b.disk.items()),
        *(_of_lease(b.lease) if b.lease is not None else ()),
    ):
        yield GaugeMetricFamily(f"tidings_{name}", help, value=value)
    held = [({"kind": _word(what)}, n) for what, n in sorted(b.holdings.items())]
    yield _labelled(GaugeMetricFamily, "held_items", "What is kept in memory, by kind.", held)
    epochs = [({"type": type, "group": group}, n) for (type, group), n in sorted(b.key_epochs.items())]
    yield _labelled(GaugeMetricFamily, "key_epoch", "The newest epoch held of a key group.", epochs)


def _of_lease(lease: LeaseStatus) -> Iterator[tuple[str, str, float]]:
    yield "lease_held", "1 if this process holds its journal's lease, 0 while it waits for it.", 1
    yield "lease_epoch", "How often the lease was taken.", lease.epoch
    yield "lease_renewed_age_seconds", "Since the lease was renewed; it is lost after its time.", lease.renewed_s_ago
    yield "standby_processes", "Processes that wait for the lease.", len(lease.standbys)


def _per_subscription(b: BrokerNumbers) -> Iterator[Metric]:
    labels = [{"id": one.id, "subscription": one.name, "type": one.type} for one in b.lags]
    lags, ages = [one.events for one in b.lags], [one.oldest_s for one in b.lags]
    yield _labelled(GaugeMetricFamily, "subscription_lag_events", "Events that wait.", list(zip(labels, lags)))
    yield _labelled(
        GaugeMetricFamily, "subscription_oldest_age_seconds", "The age of the oldest.", list(zip(labels, ages))
    )


def _labelled(
    family: type[GaugeMetricFamily] | type[CounterMetricFamily],
    name: str,
    help: str,
    samples: Sequence[tuple[Mapping[str, str], float]],
) -> Metric:
    names = list(samples[0][0]) if samples else []
    metric = family(f"tidings_{name}", help, labels=names or ["none"])
    for labels, value in samples:
        metric.add_metric(list(labels.values()), value)
    return metric


def _word(what: str) -> str:
    return what.replace(" ", "_")


class _HealthPages:
    """A server of `/metrics`, `/livez` and `/readyz`, while it is up."""

    def __init__(self, listen: str, collector: Collector, not_ready: Callable[[], Sequence[str]]) -> None:
        """`listen` is the address as `host:port`; `not_ready` says why clients cannot be served, if they cannot."""
        self._listen, self._not_ready = listen, not_ready
        self._registry = CollectorRegistry()
        self._registry.register(collector)
        self.address = ""

    async def __aenter__(self) -> Self:
        self._server = await listen(self._answer, self._listen, "metrics")
        self.address = address_of(self._server)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Listens no more; pages of whoever comes next can have the address."""
        self._server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = HttpConnection(reader, writer)
        try:
            request = await connection.request()
            if request is None:
                return
            if request.method != "GET":
                connection.respond_json(405, {"why": "these pages can only be read"}, Allow="GET")
                return
            match request.path:
                case "/metrics":
                    page = generate_latest(self._registry)
                    connection.respond(200, page, "text/plain; version=0.0.4", Connection="close")
                case "/livez":
                    connection.respond_json(200, {"live": True})
                case "/readyz":
                    why = self._not_ready()
                    connection.respond_json(503 if why else 200, {"ready": not why, "why": why})
                case _:
                    connection.respond_json(404, {"why": "there are /metrics, /livez and /readyz here"})
        except TidingsError as wrong:
            connection.refuse(wrong)
        except TimeoutError:
            pass
        finally:
            writer.close()


class MetricsServer(_HealthPages):
    """The pages of a broker."""

    def __init__(self, listen: str, read: Callable[[], BrokerNumbers]) -> None:
        super().__init__(listen, BrokerCollector(read), lambda: read().not_ready())


class StandbyServer(_HealthPages):
    """The pages of a process that waits for the lease of its journal: alive, and not ready."""

    def __init__(self, listen: str) -> None:
        super().__init__(listen, _StandbyCollector(), lambda: ["it waits for the lease of its journal"])


class _StandbyCollector(Collector):
    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("tidings_ready", "1 if /readyz says so.", value=0)
        yield GaugeMetricFamily("tidings_lease_held", "0 while this process waits for its journal's lease.", value=0)
