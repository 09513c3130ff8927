"""What a running pipeline shows to Prometheus, if it is asked to."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from tidings.errors import SetupError
from tidings.pipeline.config import Metrics

if TYPE_CHECKING:
    from tidings.pipeline.stream_job import BatchDone

SECONDS_BUCKETS = (0.5, 1, 2, 5, 10, 30, 60, 300)


class Metered:
    """Called after each batch: counts it, and passes it on to `then`."""

    def __init__(self, asked: Metrics | None, then: Callable[[BatchDone], None]) -> None:
        self._then = then
        self.registry = CollectorRegistry()
        self._events = Counter("tidings_events", "Events by what became of them.", ["outcome"], registry=self.registry)
        self._deliveries = Counter("tidings_deliveries", "Deliveries put into the sink.", registry=self.registry)
        self._version = Gauge("tidings_subscriptions_version", "Version in force.", registry=self.registry)
        self._count = Gauge("tidings_subscriptions", "Subscriptions in force.", registry=self.registry)
        self._seconds = Histogram(
            "tidings_batch_seconds", "Time a batch took.", buckets=SECONDS_BUCKETS, registry=self.registry
        )
        if asked is not None:
            self._serve(asked)

    def __call__(self, done: BatchDone) -> None:
        for outcome in ("delivered_from", "unmatched", "quarantined"):
            self._events.labels(outcome).inc(getattr(done.counts, outcome))
        self._deliveries.inc(done.counts.deliveries)
        self._version.set(done.version)
        self._count.set(done.subscriptions)
        self._seconds.observe(done.seconds)
        self._then(done)

    def _serve(self, asked: Metrics) -> None:
        try:
            start_http_server(asked.port, asked.address, self.registry)
        except OSError as wrong:
            raise SetupError(f"cannot show metrics on {asked.address}:{asked.port}: {wrong.strerror}") from None
