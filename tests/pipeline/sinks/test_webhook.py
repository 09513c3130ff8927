"""Deliveries over HTTP: tried again where that helps, told where it does not, always with the same ids."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from tidings.errors import InputError, PeerError
from tidings.pipeline.sinks import webhook

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Receiver(ThreadingHTTPServer):
    """A subscriber's server: answers with the given codes first, then with 204, and keeps what it accepted."""

    def __init__(self, codes: list[int]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.codes, self.received = codes, list[dict[str, Any]]()
        self.url = f"http://127.0.0.1:{self.server_port}/"


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        code = self.server.codes.pop(0) if self.server.codes else 204
        if code == 204:
            assert self.headers["Content-Type"] == "application/cloudevents-batch+json"
            self.server.received += json.loads(body)
        self.send_response(code)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Says nothing."""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver([]) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_a_busy_receiver_is_tried_again(receiver: Receiver) -> None:
    receiver.codes += [503, 429]
    assert webhook.post(receiver.url, b'[{"id": "1"}]', first_pause_s=0.001) is None
    assert receiver.received == [{"id": "1"}]


def test_a_receiver_that_refuses_is_asked_once(receiver: Receiver) -> None:
    receiver.codes += [403, 403]
    assert webhook.post(receiver.url, b"[]") == "answered 403"
    assert receiver.codes == [403]


def test_a_receiver_that_stays_away_is_given_up() -> None:
    said = webhook.post("http://127.0.0.1:9/", b"[]", first_pause_s=0.001)
    assert said is not None
    assert said.endswith(", 5 times")


def test_only_http_is_a_url_to_post_to() -> None:
    with pytest.raises(InputError, match="expected http:// or https://, got 'file:"):
        webhook.WebhookSink({"*": "file:///etc/passwd"}, "x", "T")


def test_each_subscriber_gets_its_own_as_cloudevents(spark: SparkSession, receiver: Receiver) -> None:
    rows = [(f"d{n}", f"e{n}", "s1", "police" if n % 2 else "fire", 1, f'{{"n": {n}}}') for n in range(250)]
    columns = ["delivery_id", "event_id", "subscription_id", "subscriber", "subscriptions_version", "event"]
    deliveries = spark.createDataFrame(rows, columns)
    webhook.WebhookSink({"*": receiver.url}, "tidings", "Sighting").put(deliveries, 1)
    assert sorted(event["data"]["n"] for event in receiver.received) == list(range(250))
    assert {(event["specversion"], event["type"], event["subject"]) for event in receiver.received} == {
        ("1.0", "Sighting", "s1")
    }
    with pytest.raises(PeerError, match="no URL for subscriber 'fire'"):
        webhook.WebhookSink({"police": receiver.url}, "tidings", "Sighting").put(deliveries, 2)
