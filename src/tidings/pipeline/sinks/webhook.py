"""Deliveries posted to their subscribers' URLs, as batches of CloudEvents.

HTTP cannot promise exactly once, so this promises at least once with the same id: a batch that
is run again after a crash posts the same CloudEvents, and a receiver that drops the ids it has
seen receives each once. A receiver that is busy or away is tried again, a few times and ever
more slowly; then the run stops with an error, and the next one begins with this batch.
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
FIRST_PAUSE_S = 0.2  # Doubled with each attempt: about six seconds in all.
ANSWER_S_MAX = 30
EVERYBODY = "*"

_POSTED = pa.schema([("posted", pa.int64()), ("error", pa.string())])


class WebhookSink:
    """Posts to `urls[subscriber]`, or to `urls["*"]` for everybody who has none."""

    def __init__(self, urls: Mapping[str, str], source: str, type: str) -> None:
        wrong = [url for url in urls.values() if not url.startswith(("http://", "https://"))]
        if wrong:
            raise InputError(f"deliveries.urls: expected http:// or https://, got {wrong[0]!r}")
        self.post = _Post(dict(urls), source, type)

    def get_ready(self) -> None:
        """Nothing to prepare: a receiver that is away is noticed when there is something for it."""

    def put(self, deliveries: DataFrame, batch: int) -> None:
        failed = deliveries.mapInArrow(self.post, "posted long, error string").where("error IS NOT NULL").head()
        if failed is not None:
            raise PeerError(f"batch {batch} could not be delivered: {failed.error}; the next run begins with it")


class _Post:
    """mapInArrow: deliveries → how many were posted, or why not."""

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


def post(url: str, body: bytes) -> str | None:
    """Posts a batch of CloudEvents; returns why that failed, or None."""
    error = ""
    for attempt in range(ATTEMPTS_MAX):
        if attempt:
            time.sleep(FIRST_PAUSE_S * 2 ** (attempt - 1))
        headers = {"Content-Type": "application/cloudevents-batch+json"}
        request = urllib.request.Request(url, body, headers)  # noqa: S310  Checked to be HTTP when the sink is made.
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_S_MAX):  # noqa: S310
                return None
        except urllib.error.HTTPError as wrong:
            error = f"answered {wrong.code}"
            if wrong.code < 500 and wrong.code != 429:  # It will not think better of it.
                return error
        except OSError as wrong:
            error = str(wrong)
    return f"{error}, {ATTEMPTS_MAX} times"
