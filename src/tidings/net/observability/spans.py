"""OpenTelemetry spans of what a broker does with events, exported by OTLP. Off unless `traces` names a collector.

    publish TYPE   producer   from the request until the event is on disk; linked to what the publisher was doing
    route TYPE     internal   from the event's arrival until it was last sent on; child of `publish`, or of the `route`
                              of the broker it came from
    deliver TYPE   consumer   one for each subscription; child of this broker's `route`

All ids are hashes of the event's id, and a span's also of the broker. So the spans of all brokers form one trace without
a byte more between brokers, and a trace id tells another organisation no more than the event's id. The spans are made
from the same notes as `tidings trace`. They hold names and ids, never values.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from tidings import __version__
from tidings.errors import InputError, SetupError
from tidings.net.ids import show_event
from tidings.overlay import EventId, NodeId, SubscriptionId

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import SpanContext

QUIET_S: Final = 1.0  # How long a broker waits for further sends before it exports an event's spans.
PENDING_MAX: Final = 8192  # Events whose spans are not exported yet; the oldest go first.
SENT_MAX: Final = 64  # Brokers named in one span.
EXPORT_S_MAX: Final = 5.0  # For one export, and for the last one when a broker stops.
_TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")


def trace_id_of(event: EventId) -> int:
    """The trace of an event, the same at every broker; never 0."""
    return int.from_bytes(_hash("trace", event)[:16], "big") or 1


def span_id_of(event: EventId, what: str, *where: str) -> int:
    """The span of what happened to an event at a broker; never 0."""
    return int.from_bytes(_hash(what, event, *where)[:8], "big") or 1


def _hash(what: str, event: EventId, *where: str) -> bytes:
    return hashlib.sha256("\0".join(("tidings/trace/1", what, show_event(event), *where)).encode()).digest()


def parse_traceparent(text: object) -> tuple[int, int] | None:
    """The trace and the span that a `traceparent` names; None for anything else, which is ignored as W3C asks."""
    found = _TRACEPARENT.fullmatch(text) if isinstance(text, str) else None
    ids = (int(found[1], 16), int(found[2], 16)) if found else (0, 0)
    return ids if all(ids) else None


@dataclass(frozen=True, slots=True)
class EventSpan:
    """One span, before OpenTelemetry's library makes its own of it. Times are in nanoseconds since 1970."""

    name: str
    kind: str  # producer, internal or consumer.
    trace_id: int
    span_id: int
    parent_id: int  # 0 for none.
    begun_ns: int
    ended_ns: int
    attributes: dict[str, str | Sequence[str]]
    links: tuple[tuple[int, int], ...] = ()


class SpanSink(Protocol):
    """Where spans go."""

    def export(self, span: EventSpan) -> None:
        """Takes a span; drops it rather than wait."""

    def close(self) -> None:
        """Exports what it has, within `EXPORT_S_MAX`."""


@dataclass(slots=True)
class _Pending:
    type: str
    came_from: NodeId
    begun_ns: int
    ended_ns: int
    sent: list[str] = field(default_factory=list)
    published_ns: tuple[int, int] | None = None
    link: tuple[int, int] | None = None
    routed: bool = False
    delivered: set[SubscriptionId] = field(default_factory=set)  # Asked, never walked.


class SpanRecorder:
    """The spans of one broker. A `TraceObserver` of its node."""

    def __init__(
        self,
        broker: NodeId,
        sink: SpanSink,
        type_name: Callable[[str], str],
        *,
        ratio: float = 1.0,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """Of all traces a share of `ratio` is recorded, the same ones at every broker with that ratio."""
        if not 0.0 <= ratio <= 1.0:
            raise InputError(f"expected traces_ratio from 0 to 1, got {ratio}")
        self._broker, self._sink, self._type_name, self._now_ns = broker, sink, type_name, now_ns
        self._below = int(ratio * 2**64)
        self._pending: OrderedDict[EventId, _Pending] = OrderedDict()

    # ── What happens ──

    def arrived(self, event: EventId, type: str, came_from: NodeId) -> None:
        """An event has arrived from another broker, or from a client here (`came_from` is empty)."""
        if (pending := self._at(event, type)) is not None:
            pending.routed, pending.came_from = True, came_from

    def sent(self, event: EventId, to: NodeId) -> None:
        pending = self._pending.get(event)
        if pending is not None and len(pending.sent) < SENT_MAX:
            pending.sent.append(to)
            pending.ended_ns = self._now_ns()

    def delivered(self, event: EventId, type: str, subscription: SubscriptionId, client: str) -> None:
        pending = self._pending.get(event)
        if not self._is_sampled(event) or (pending is not None and subscription in pending.delivered):
            return  # A durable subscription matches an event once for its queue, and once in the overlay.
        if pending is not None:
            pending.delivered.add(subscription)
        now, shown = self._now_ns(), show_event(EventId(*subscription))
        attributes = {"messaging.client.id": client, "tidings.subscription": shown}
        span_id = span_id_of(event, "deliver", self._broker, shown)
        parent = span_id_of(event, "route", self._broker)
        self._export("deliver", "consumer", event, type, span_id, parent, (now, now), attributes)

    def published(self, events: Iterable[EventId], type: str, lasted_s: float) -> None:
        """Events of a client here are on disk, `lasted_s` after it asked."""
        now = self._now_ns()
        for event in events:
            if (pending := self._at(event, type)) is not None:
                pending.published_ns = (now - int(lasted_s * 1e9), now)

    def caused_by(self, event: EventId, traceparent: object) -> None:
        """What the publisher was doing when it published the event, as the event says."""
        pending = self._pending.get(event)
        if pending is not None:
            pending.link = parse_traceparent(traceparent)

    def traceparent(self, event: EventId) -> str:
        """For a CloudEvent that is delivered here: what its reader does belongs below this broker's `route`."""
        flags = "01" if self._is_sampled(event) else "00"
        return f"00-{trace_id_of(event):032x}-{span_id_of(event, 'route', self._broker):016x}-{flags}"

    def _is_sampled(self, event: EventId) -> bool:
        return trace_id_of(event) % 2**64 < self._below

    def _at(self, event: EventId, type: str) -> _Pending | None:
        pending = self._pending.get(event)
        if pending is None and self._is_sampled(event):
            if len(self._pending) >= PENDING_MAX:
                self._finish(*self._pending.popitem(last=False))
            now = self._now_ns()
            pending = self._pending[event] = _Pending(type, "", now, now)
        return pending

    # ── Export ──

    async def run(self) -> None:
        """Exports what has been quiet for a while, again and again."""
        while True:
            await asyncio.sleep(QUIET_S)
            self.flush(self._now_ns() - int(QUIET_S * 1e9))

    def flush(self, until_ns: int | None = None) -> None:
        """Exports the spans of events to which nothing has happened since then; of all without a time."""
        quiet = [event for event, each in self._pending.items() if until_ns is None or each.ended_ns <= until_ns]
        for event in quiet:
            self._finish(event, self._pending.pop(event))

    async def close(self) -> None:
        self.flush()
        await asyncio.to_thread(self._sink.close)

    def _finish(self, event: EventId, pending: _Pending) -> None:
        publish_id = span_id_of(event, "publish", event.origin)
        if pending.published_ns is not None:
            links = (pending.link,) if pending.link is not None else ()
            self._export("publish", "producer", event, pending.type, publish_id, 0, pending.published_ns, {}, links)
        if pending.routed:
            came_from = pending.came_from
            parent = span_id_of(event, "route", came_from) if came_from else publish_id
            attributes: dict[str, str | Sequence[str]] = {"tidings.sent_to": tuple(pending.sent)}
            if came_from:
                attributes["tidings.came_from"] = came_from
            span_id = span_id_of(event, "route", self._broker)
            times = (pending.begun_ns, pending.ended_ns)
            self._export("route", "internal", event, pending.type, span_id, parent, times, attributes)

    def _export(
        self,
        what: str,
        kind: str,
        event: EventId,
        type: str,
        span_id: int,
        parent_id: int,
        times: tuple[int, int],
        more: dict[str, Any],
        links: tuple[tuple[int, int], ...] = (),
    ) -> None:
        name = self._type_name(type)
        attributes = {
            "messaging.system": "tidings",
            "messaging.destination.name": name,
            "messaging.operation.name": what,
            "messaging.message.id": show_event(event),
            "tidings.broker": self._broker,
            **({"messaging.operation.type": _OPERATION_TYPES[what]} if what in _OPERATION_TYPES else {}),
            **more,
        }
        begun, ended = times
        self._sink.export(
            EventSpan(f"{what} {name}", kind, trace_id_of(event), span_id, parent_id, begun, ended, attributes, links)
        )


_OPERATION_TYPES = {"publish": "send", "deliver": "process"}  # The conventions know no word for routing.


class OtlpSink:
    """Sends spans to a collector, from a thread of OpenTelemetry's library; drops them where it does not keep up."""

    def __init__(self, endpoint: str, resource: dict[str, str]) -> None:
        """`endpoint` is the collector's address for traces by OTLP over HTTP. Raises SetupError without the library."""
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError:
            raise SetupError("traces need OpenTelemetry's library: pip install 'tidings[otel]'") from None
        if not endpoint.startswith(("http://", "https://")):
            raise InputError(f"traces: expected the address of a collector, http://host:4318, got {endpoint[:100]!r}")
        address = endpoint.rstrip("/") + ("" if endpoint.rstrip("/").endswith("/v1/traces") else "/v1/traces")
        self._resource = Resource.create({"service.name": "tidings", "service.version": __version__, **resource})
        self._processor = BatchSpanProcessor(OTLPSpanExporter(endpoint=address, timeout=EXPORT_S_MAX))

    def export(self, span: EventSpan) -> None:
        self._processor.on_end(self._readable(span))

    def close(self) -> None:
        self._processor.force_flush(int(EXPORT_S_MAX * 1000))
        self._processor.shutdown()  # type: ignore[no-untyped-call]

    def _readable(self, span: EventSpan) -> ReadableSpan:
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope
        from opentelemetry.trace import Link, SpanKind

        return ReadableSpan(
            span.name,
            context=_context(span.trace_id, span.span_id, is_remote=False),
            parent=_context(span.trace_id, span.parent_id, is_remote=True) if span.parent_id else None,
            resource=self._resource,
            attributes=dict(span.attributes),
            links=[Link(_context(trace, one, is_remote=True)) for trace, one in span.links],
            kind=SpanKind[span.kind.upper()],
            start_time=span.begun_ns,
            end_time=span.ended_ns,
            instrumentation_scope=InstrumentationScope("tidings", __version__),
        )


def _context(trace_id: int, span_id: int, *, is_remote: bool) -> SpanContext:
    from opentelemetry.trace import SpanContext, TraceFlags

    return SpanContext(trace_id, span_id, is_remote, TraceFlags(TraceFlags.SAMPLED))
