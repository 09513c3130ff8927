"""Deliveries posted to their subscribers' URLs, as batches of CloudEvents.

HTTP cannot guarantee exactly once, so the sink guarantees at least once with a stable id: a repeated batch posts the
same CloudEvents, and a receiver that drops the ids it has seen gets each event once. If a receiver is busy or does
not answer, the sink retries with exponential backoff. Then the run stops with an error, and the next run begins
with this batch.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidings.errors import InputError, PeerError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

EVENTS_PER_POST = 100
ATTEMPTS_MAX = 5
FIRST_PAUSE_S = 0.2  # Doubles with each attempt: three seconds in all.
ANSWER_S_MAX = 30
EVERYBODY = "*"

_POSTED = pa.schema([("posted", pa.int64()), ("error", pa.string())])


class WebhookSink:
    """Posts to `urls[subscriber]`, or to `urls["*"]` for subscribers without a URL of their own."""

    def __init__(self, urls: Mapping[str, str], source: str, type: str) -> None:
        wrong = [url for url in urls.values() if not url.startswith(("http://", "https://"))]
        if wrong:
            raise InputError(f"deliveries.urls: expected http:// or https://, got {wrong[0]!r}")
        self.post = _Post(dict(urls), source, type)

    def prepare(self) -> None:
        """Does nothing: a receiver need not answer before there is something to post."""

    def put(self, deliveries: DataFrame, batch: int) -> None:
        failed = deliveries.mapInArrow(self.post, "posted long, error string").where("error IS NOT NULL").head()
        if failed is not None:
            raise PeerError(f"cannot deliver batch {batch}: {failed.error}; the next run begins with it")


class _Post:
    """mapInArrow: deliveries → the number posted, or the reason for a failure."""

    def __init__(self, urls: dict[str, str], source: str, type: str) -> None:
        self.urls, self.source, self.type = urls, source, type

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            by_subscriber: dict[str, list[dict[str, Any]]] = {}
            for row in batch.to_pylist():
                by_subscriber.setdefault(row["subscriber"], []).append(self._cloudevent(row))
            rows = [self._post_all(subscriber, events) for subscriber, events in by_subscriber.items()]
            yield pa.RecordBatch.from_pylist(rows, schema=_POSTED)

    def _cloudevent(self, row: Mapping[str, Any]) -> dict[str, Any]:
        head = {"specversion": "1.0", "id": row["delivery_id"], "source": self.source, "type": self.type}
        what = {"subject": row["subscription_id"], "datacontenttype": "application/json"}
        return {**head, **what, "data": json.loads(row["event"]) if row.get("event") else {"event_id": row["event_id"]}}

    def _post_all(self, subscriber: str, events: list[dict[str, Any]]) -> dict[str, Any]:
        url = self.urls.get(subscriber, self.urls.get(EVERYBODY))
        if url is None:
            return {"posted": 0, "error": f"no URL for subscriber {subscriber!r}"}
        for start in range(0, len(events), EVENTS_PER_POST):
            error = post(url, json.dumps(events[start : start + EVENTS_PER_POST]).encode())
            if error:
                return {"posted": start, "error": f"{url}: {error}"}
        return {"posted": len(events), "error": None}


def post(url: str, body: bytes, *, first_pause_s: float = FIRST_PAUSE_S) -> str | None:
    """Posts a batch of CloudEvents; returns the reason for a failure, or None."""
    error = ""
    for attempt in range(ATTEMPTS_MAX):
        if attempt:
            time.sleep(first_pause_s * 2 ** (attempt - 1))
        headers = {"Content-Type": "application/cloudevents-batch+json"}
        request = urllib.request.Request(url, body, headers)  # noqa: S310  Checked to be HTTP when the sink is made.
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_S_MAX):  # noqa: S310
                return None
        except urllib.error.HTTPError as wrong:
            error = f"answered {wrong.code}"
            if wrong.code < 500 and wrong.code != 429:  # Another attempt would get the same answer.
                return error
        except OSError as wrong:
            error = str(wrong)
    return f"{error}, {ATTEMPTS_MAX} times"
