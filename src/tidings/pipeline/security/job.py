"""A pipeline with access rights: frames in, frames for each recipient out, and no plaintext in between.

    admit    verifies and decrypts each frame                              ┐
    match    matches by the attributes that this pipeline may read         ├ one pass of a worker
    secure   encrypts each delivery for its recipient, or withholds it     ┘

What leaves a worker is encrypted again, so neither a cache on disk nor a checkpoint holds a decrypted event. Types,
rights and sender ids come from the registry. The job asks it at every batch, so a revoked or expired right has no
effect from the next batch on. A subscriber is the domain of that name.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as f

from tidings.errors import FilterError
from tidings.events import Attribute, EventType, ValueType
from tidings.filters import parse
from tidings.pipeline.config import Pipeline, SecureBy
from tidings.pipeline.matching.batch_step import DELIVERY
from tidings.pipeline.security.decrypt import FRAME, check_encrypted, sealed_once
from tidings.pipeline.security.encrypt import RecipientSealer
from tidings.pipeline.security.keyfile import KeyFile, for_spark
from tidings.pipeline.security.nonce_leases import NonceLeases, Senders
from tidings.pipeline.security.recipients import Recipient, Rest, recipients_of
from tidings.pipeline.security.step import AdmitMatchSecure, Withheld
from tidings.pipeline.sources.files import with_id
from tidings.pipeline.sources.streams import Source, check_folder
from tidings.pipeline.state.epoch import Epoch
from tidings.pipeline.state.subscription_versions import VersionIndex
from tidings.pipeline.tables import delivery_id_column
from tidings.security import PublisherRights, Right, SignedType
from tidings.store import Registry

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EVENT_ID = "_event_id"

_log = logging.getLogger("tidings.pipeline")


class SecureStage:
    """The driver's side of a secure pipeline: source, rights and sender ids, by the registry and the key file."""

    def __init__(self, spark: SparkSession, pipeline: Pipeline, by: SecureBy, epoch: Epoch) -> None:
        check_encrypted(spark)
        self.pipeline, self.by, self.keys, self.epoch = pipeline, by, KeyFile(by.keys), epoch
        with self._registry() as registry:
            self.type = for_spark(registry.types.find(by.type))
        self.keys.read(self.type)  # Raises SetupError now and not in a worker.
        self.source = self._source(spark)
        self._last: tuple[int, tuple[Recipient, ...], Withheld] | None = None
        # Expired state for deduplication is dropped with the next batch that has data; no empty batch is needed.
        spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")

    def step(
        self, records: DataFrame, index: VersionIndex, subscriptions_at: Callable[[int], pa.Table]
    ) -> AdmitMatchSecure:
        """The worker's step for this batch, by the rights that are valid now.

        `subscriptions_at` returns the subscriptions of a version.
        """
        rest, rights, keys = Rest(self.by.rest), self._rights(), self.keys.pinned(self.type)
        recipients = recipients_of(self.type, rights.to_subscribe, _now_ms(), rest)
        senders = self._senders(records, recipients, keys.fingerprint) if rest is Rest.LEFT_OUT else Senders({})
        sealer = RecipientSealer(self.type, keys, recipients, senders)
        withheld = self._withheld(subscriptions_at, index.version, recipients)
        return AdmitMatchSecure(index, sealer, rest, withheld, rights.to_publish if self.by.signed else None)

    def _withheld(
        self, subscriptions_at: Callable[[int], pa.Table], version: int, recipients: tuple[Recipient, ...]
    ) -> Withheld:
        """Computed, and logged, only when subscriptions or rights have changed."""
        if self._last is None or self._last[:2] != (version, recipients):
            self._last = version, recipients, withheld(subscriptions_at(version), self.type, recipients)
        return self._last[2]

    def sealed_of(self, results: DataFrame, version: int) -> DataFrame:
        """The rows for the sink."""
        event_id, subscription_id = f.col("event_id"), f.col("subscription_id")
        return results.where(f.col("kind") == DELIVERY).select(
            delivery_id_column(event_id, subscription_id).alias("delivery_id"),
            event_id,
            subscription_id,
            f.col("subscriber"),
            f.lit(version).cast("long").alias("subscriptions_version"),
            f.col("original").alias(FRAME),
        )

    def _source(self, spark: SparkSession) -> Source:
        events = self.pipeline.events
        check_folder(events.path)
        reader = spark.readStream.option("maxFilesPerTrigger", events.files_per_batch).schema(f"{FRAME} binary")
        whole = with_id(self.type.event_type, Attribute(EVENT_ID, ValueType.STRING, True))
        return Source(sealed_once(reader.parquet(events.path)), whole, EVENT_ID, is_lines=False)

    def _rights(self) -> _CurrentRights:
        """The rights that are valid now, without those that need an online test, which a pipeline cannot make."""
        now_ms = _now_ms()
        with self._registry() as registry:
            names = registry.domains.names()
            given = registry.grants.all(type_id=self.type.type_id)
        rights = [each.right for each in given if each.refusal(now_ms) is None and not each.right.online]
        to_subscribe: dict[str, list[Right]] = {}
        for right in rights:
            if right.holder in names and "subscribe" in right.actions:
                to_subscribe.setdefault(names[right.holder], []).append(right)
        return _CurrentRights(to_subscribe, PublisherRights.of(rights))

    def _senders(self, records: DataFrame, recipients: Iterable[Recipient], keys: str) -> Senders:
        """A sender id for each publisher of the batch and recipient, the same if the batch is repeated."""
        number = f.conv(f.hex(f.substring(FRAME, 37, 4)), 16, 10)
        # The driver collects one row per publisher in the batch, not per event.
        sources = [row[0] for row in records.select(number).distinct().collect() if row[0] is not None]
        self.epoch.check()
        leases = NonceLeases("senders.json", self.type.type_id.hex(), self._take, storage=self.epoch.storage)
        return leases.senders(sources, (recipient.sender for recipient in recipients), keys=keys)

    def _take(self, count: int) -> range:
        with self._registry() as registry:
            return registry.keys.new_sender_ids(
                self.type.type_id, count, by=f"pipeline {self.pipeline.name}", now_ms=_now_ms()
            )

    def _registry(self) -> Registry:
        return Registry.open(self.by.registry, now_ms=_now_ms(), create=False)


@dataclass(frozen=True, slots=True)
class _CurrentRights:
    """The valid rights in the registry."""

    to_subscribe: dict[str, list[Right]]
    to_publish: PublisherRights


def withheld(subscriptions: pa.Table, signed_type: SignedType, recipients: Iterable[Recipient]) -> Withheld:
    """For each recipient, its subscriptions that mention attributes it may not read.

    They are withheld because deliveries would reveal the values. Conditions are parsed only for recipients that may
    not read everything.
    """
    ids, conditions, people = (subscriptions.column(name).to_pylist() for name in ("id", "condition", "subscriber"))
    known: dict[str, list[Recipient]] = {}
    for recipient in recipients:
        known.setdefault(recipient.name, []).append(recipient)
    found: dict[Recipient, set[str]] = {}
    for id, condition, person in zip(ids, conditions, people, strict=True):
        if person not in known:
            _log.warning("subscription %s: its subscriber has no right to read these events; withheld", id)
        for recipient in known.get(person, ()):
            if hidden := _hidden(condition, signed_type.event_type, recipient):
                _log.warning("subscription %s mentions %s, which its subscriber may not read; %s", id, *hidden)
                found.setdefault(recipient, set()).add(id)
    return {recipient: frozenset(asking) for recipient, asking in found.items()}


def _hidden(condition: str, event_type: EventType, recipient: Recipient) -> tuple[str, str] | None:
    """The attributes of a condition that the recipient may not read, and what follows for its deliveries."""
    if len(recipient.readable) == len(event_type.attributes):
        return None
    outside = sorted(_mentioned(condition, event_type).difference(recipient.readable))
    effect = "withheld" + (", unless another of its rights permits it" if recipient.unmet else "")
    return (", ".join(outside), effect) if outside else None


def _mentioned(condition: str, event_type: EventType) -> frozenset[str]:
    try:
        return frozenset(parse(condition, event_type).attributes)
    except FilterError:  # It mentions the event's number, which no right covers.
        return frozenset(attribute.name for attribute in event_type)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
