"""OpenTelemetry: the spans that arrive at a collector tell the same way of an event as `tidings trace`."""

from __future__ import annotations

import asyncio
import gzip
import http.server
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.live.test_gateway import AB, listen, post
from tests.live.test_tracing import LINE, WAY
from tests.live.together import Together
from tidings.errors import InputError, SetupError
from tidings.net import read_client
from tidings.net.gateway.server import Gateway
from tidings.net.observability.spans import OtlpSink, SpanRecorder, parse_traceparent, trace_id_of
from tidings.overlay import EventId, SubscriptionId

pytestmark = pytest.mark.live

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@contextmanager
def collector() -> Iterator[tuple[str, list[Span]]]:
    """A server that speaks OTLP over HTTP: its address, and the spans that it has been sent."""
    spans: list[Span] = []

    class Receiver(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers["Content-Length"]))
            sent = gzip.decompress(raw) if self.headers.get("Content-Encoding") == "gzip" else raw
            request = ExportTraceServiceRequest.FromString(sent)
            spans.extend(s for r in request.resource_spans for scope in r.scope_spans for s in scope.spans)
            self.send_response(200 if self.path == "/v1/traces" else 404)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", spans
    finally:
        server.shutdown()
        server.server_close()


def attributes(span: Span) -> dict[str, Any]:
    def plain(value: Any) -> Any:
        return (
            [each.string_value for each in value.array_value.values]
            if value.HasField("array_value")
            else value.string_value
        )

    return {each.key: plain(each.value) for each in span.attributes}


def test_the_spans_of_all_brokers_are_one_trace_and_agree_with_the_trace_command(tmp_path: Path) -> None:
    async def scenario(endpoint: str) -> tuple[dict[str, str], list[dict[str, Any]], dict[str, Any]]:
        network = Together(tmp_path, LINE)
        for file in network.laid.brokers.values():
            file.write_text(file.read_text().replace("[broker]\n", f'[broker]\ntraces = "{endpoint}"\n', 1))
        async with network:
            names = {
                broker.me.id: f"{broker.config.domain}/{broker.config.name}" for broker in network.brokers.values()
            }
            first, last = network.brokers["police-1"], network.brokers["yard-1"]
            anywhere = "127.0.0.1:0"
            async with (
                Gateway(replace(first.config, gateway=anywhere), first.services, first.clients) as near,
                Gateway(replace(last.config, gateway=anywhere), last.services, last.clients) as far,
            ):
                camera, desk = (read_client(network.laid.clients[name]) for name in ("police/camera", "yard/desk"))
                heard = listen(far.address, desk, "type=Numberplate&where=speed+%3E+20")
                await asyncio.to_thread(next, heard)
                event = {**AB, "traceparent": PARENT}
                await asyncio.to_thread(post, near.address, camera, event)
                _, delivered = await asyncio.to_thread(next, heard)
                traced = await (await network.client("yard/desk")).ask("trace", event=delivered["id"])
        return names, traced, delivered

    with collector() as (endpoint, spans):
        names, traced, delivered = asyncio.run(scenario(endpoint))
        by_name = defaultdict(list)
        for span in spans:
            by_name[span.name].append(span)
        (publish,), (deliver,) = by_name["publish Numberplate"], by_name["deliver Numberplate"]
        routes = {names[attributes(span)["tidings.broker"]]: span for span in by_name["route Numberplate"]}
        assert {span.trace_id for span in spans} == {publish.trace_id}
        assert {attributes(span)["messaging.message.id"] for span in spans} == {delivered["id"]}
        assert sorted(routes) == sorted(f"{hop['domain']}/{hop['broker']}" for hop in traced) == sorted(WAY)
        for hop in traced:
            route = routes[f"{hop['domain']}/{hop['broker']}"]
            said = attributes(route)
            assert names.get(said.get("tidings.came_from", ""), "") == hop["came_from"]
            assert [names[to] for to in said["tidings.sent_to"]] == [sent["to"] for sent in hop["sent"]]
            above = routes[hop["came_from"]] if hop["came_from"] else publish
            assert route.parent_span_id == above.span_id
        assert (publish.kind, deliver.kind) == (Span.SPAN_KIND_PRODUCER, Span.SPAN_KIND_CONSUMER)
        assert deliver.parent_span_id == routes[WAY[-1]].span_id
        assert [each["client"] for hop in traced for each in hop["told"]] == [
            attributes(deliver)["messaging.client.id"]
        ]
        assert [(link.trace_id.hex(), link.span_id.hex()) for link in publish.links] == [tuple(PARENT.split("-")[1:3])]
        assert delivered["traceparent"] == f"00-{publish.trace_id.hex()}-{routes[WAY[-1]].span_id.hex()}-01"


class Kept:
    """A sink that keeps what it is given."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def export(self, span: Any) -> None:
        self.names.append(span.name)

    def close(self) -> None: ...


def test_a_delivery_that_is_noted_twice_is_one_span() -> None:
    sink = Kept()
    recorder, event, wanted = SpanRecorder("b", sink, str), EventId("a", 1, 1), SubscriptionId("b", 1, 1)
    recorder.arrived(event, "T", "")
    for _ in range(2):
        recorder.delivered(event, "T", wanted, "desk")
    assert sink.names == ["deliver T"]


def test_a_share_of_traces_is_recorded_and_the_traceparent_says_which() -> None:
    sink = Kept()
    recorder = SpanRecorder("b", sink, str, ratio=0.25)
    events = [EventId("a", 1, number) for number in range(400)]
    for event in events:
        recorder.arrived(event, "T", "")
    recorder.flush()
    sampled = [event for event in events if recorder.traceparent(event).endswith("-01")]
    assert len(sink.names) == len(sampled)
    assert 50 < len(sampled) < 150
    assert all(parse_traceparent(recorder.traceparent(event)) is not None for event in events)
    assert len({trace_id_of(event) for event in events}) == 400


@pytest.mark.parametrize("text", ["", None, 5, "00-0-0-01", PARENT.upper(), "00-" + "0" * 32 + "-b7ad6b7169203331-01"])
def test_what_is_no_traceparent_is_ignored(text: object) -> None:
    assert parse_traceparent(text) is None


def test_a_wrong_address_or_share_is_refused_at_once() -> None:
    with pytest.raises((InputError, SetupError)):
        OtlpSink("collector:4318", {})
    with pytest.raises(InputError):
        SpanRecorder("b", Kept(), str, ratio=1.5)
