"""A running pipeline with rights: frames in, mail out, and nothing readable anywhere between.

    admit    each frame verified and opened                        ┐
    match    by the attributes that this pipeline may read         ├ one pass through a worker
    secure   each delivery sealed for its recipient, or withheld   ┘

What leaves the worker is sealed again, so that neither a cache on disk nor a checkpoint holds an
open event. Types, rights and sender ids come from the registry; it is asked at every batch, and a
right that was revoked or has ended is gone with the next one. A subscriber is the domain of that name.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as f

from tidings.errors import FilterError, InputError
from tidings.events import Attribute, EventType, ValueType
from tidings.filters import parse
from tidings.pipeline.config import Pipeline, SecureBy
from tidings.pipeline.matching.batch_step import DELIVERY
from tidings.pipeline.security.decrypt import FRAME, check_encrypted, sealed_once
from tidings.pipeline.security.encrypt import Sealing
from tidings.pipeline.security.keyfile import KeyFile, for_spark
from tidings.pipeline.security.nonce_leases import Leases, Senders
from tidings.pipeline.security.recipients import Recipient, Rest, recipients_of
from tidings.pipeline.security.step import AdmitMatchSecure, Withheld
from tidings.pipeline.sources.files import with_id
from tidings.pipeline.sources.streams import Source
from tidings.pipeline.state.subscription_versions import Changes, InForce
from tidings.pipeline.tables import delivery_id_column
from tidings.security import PublisherRights, Right, SignedType
from tidings.store import Registry

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EVENT_ID = "_event_id"

_log = logging.getLogger("tidings.pipeline")


class Secured:
    """What a pipeline needs to open and seal, from its registry and key file."""

    def __init__(self, spark: SparkSession, pipeline: Pipeline, by: SecureBy) -> None:
        check_encrypted(spark)
        self.pipeline, self.by, self.keys = pipeline, by, KeyFile(by.keys)
        with self._registry() as registry:
            self.type = for_spark(registry.types.find(by.type))
        self.keys.read(self.type)  # Raises SetupError now and not in a worker.
        self.source = self._source(spark)
        self._last: tuple[int, tuple[Recipient, ...], Withheld] | None = None
        # Copies are forgotten with the next batch that brings something; a batch of nothing is not needed for it.
        spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")

    def step(self, records: DataFrame, in_force: InForce, changes: Changes) -> AdmitMatchSecure:
        """What a worker does with the batch at hand, by the rights that hold now."""
        rest, rights = Rest(self.by.rest), self._rights()
        recipients = recipients_of(self.type, rights.to_subscribe, _now_ms(), rest)
        senders = self._senders(records, recipients) if rest is Rest.LEFT_OUT else Senders({})
        sealing = Sealing(self.type, self.keys, recipients, senders)
        withheld = self._withheld(changes, in_force.version, recipients)
        return AdmitMatchSecure(in_force, sealing, rest, withheld, rights.to_publish if self.by.signed else None)

    def _withheld(self, changes: Changes, version: int, recipients: tuple[Recipient, ...]) -> Withheld:
        """Found anew, and told, only when subscriptions or rights have changed."""
        if self._last is None or self._last[:2] != (version, recipients):
            self._last = version, recipients, withheld(changes.log.changed(0, version)[0], self.type, recipients)
        return self._last[2]

    def sealed_of(self, results: DataFrame, version: int) -> DataFrame:
        """The rows that a sink gets."""
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
        if "://" not in events.path and not Path(events.path).is_dir():
            raise InputError(f"events.path: expected a folder that files are put into, got {events.path!r}")
        reader = spark.readStream.option("maxFilesPerTrigger", events.files_per_batch).schema(f"{FRAME} binary")
        whole = with_id(self.type.event_type, Attribute(EVENT_ID, ValueType.STRING, True))
        return Source(sealed_once(reader.parquet(events.path)), whole, EVENT_ID, is_lines=False)

    def _rights(self) -> _InForce:
        """The rights that hold now. One that asks for an online test does not: nobody here can make it."""
        now_ms = _now_ms()
        with self._registry() as registry:
            names = registry.domains.names()
            given = registry.grants.all(type_id=self.type.type_id)
        rights = [each.right for each in given if each.refusal(now_ms) is None and not each.right.online]
        to_subscribe: dict[str, list[Right]] = {}
        for right in rights:
            if right.holder in names and "subscribe" in right.actions:
                to_subscribe.setdefault(names[right.holder], []).append(right)
        return _InForce(to_subscribe, PublisherRights.of(rights))

    def _senders(self, records: DataFrame, recipients: Iterable[Recipient]) -> Senders:
        """A sender id for each publisher of the batch and recipient, however often the batch is run."""
        number = f.conv(f.hex(f.substring(FRAME, 37, 4)), 16, 10)
        # As many rows as there are publishers in the batch, not events.
        sources = [row[0] for row in records.select(number).distinct().collect() if row[0] is not None]
        held = hashlib.sha256(b"".join(self._groups_held())).hexdigest()[:16]
        leases = Leases(
            Path(self.pipeline.checkpoint) / "senders.json", f"{self.type.type_id.hex()}/{held}", self._take
        )
        return leases.senders(sources, (recipient.sender for recipient in recipients))

    def _groups_held(self) -> list[bytes]:
        """With another key an event would be sealed with another attribute, and so needs another nonce."""
        ring = self.keys.read(self.type)
        return [gid for gid in sorted(self.type.group_ids) if ring.epochs(gid)]

    def _take(self, count: int) -> range:
        with self._registry() as registry:
            return registry.keys.new_sender_ids(
                self.type.type_id, count, by=f"pipeline {self.pipeline.name}", now_ms=_now_ms()
            )

    def _registry(self) -> Registry:
        return Registry.open(self.by.registry, now_ms=_now_ms(), create=False)


@dataclass(frozen=True, slots=True)
class _InForce:
    """Who may do what, by the registry."""

    to_subscribe: dict[str, list[Right]]
    to_publish: PublisherRights


def withheld(subscriptions: pa.Table, signed_type: SignedType, recipients: Iterable[Recipient]) -> Withheld:
    """Of each recipient, the subscriptions that ask about what it may not read: whether mail comes would tell it.

    Conditions are only parsed where something is left out.
    """
    ids, conditions, people = (subscriptions.column(name).to_pylist() for name in ("id", "condition", "subscriber"))
    known: dict[str, list[Recipient]] = {}
    for recipient in recipients:
        known.setdefault(recipient.name, []).append(recipient)
    found: dict[Recipient, set[str]] = {}
    for id, condition, person in zip(ids, conditions, people, strict=True):
        if person not in known:
            _log.warning("subscription %s: its subscriber has no right to read these events; nothing is delivered", id)
        for recipient in known.get(person, ()):
            if hidden := _hidden(condition, signed_type.event_type, recipient):
                _log.warning("subscription %s: it asks about %s, which its subscriber may not read; %s", id, *hidden)
                found.setdefault(recipient, set()).add(id)
    return {recipient: frozenset(asking) for recipient, asking in found.items()}


def _hidden(condition: str, event_type: EventType, recipient: Recipient) -> tuple[str, str] | None:
    """What a condition asks about that the recipient may not read, and of which events it gets nothing for it."""
    if len(recipient.readable) == len(event_type.attributes):
        return None
    outside = sorted(_asked(condition, event_type).difference(recipient.readable))
    nothing = "nothing is delivered for it" + (", unless another of its rights shows it" if recipient.unmet else "")
    return (", ".join(outside), nothing) if outside else None


def _asked(condition: str, event_type: EventType) -> frozenset[str]:
    try:
        return frozenset(parse(condition, event_type).attributes)
    except FilterError:  # It asks about the event's number, which is nobody's to ask for.
        return frozenset(attribute.name for attribute in event_type)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
