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
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as f

from tidings.errors import FilterError, InputError
from tidings.events import Attribute, EventType, ValueType
from tidings.filters import parse
from tidings.pipeline.admit import FRAME, HEADER_BYTES, check_encrypted, head_columns, sealed_once
from tidings.pipeline.changes import Changes, InForce
from tidings.pipeline.config import Pipeline, SecureBy
from tidings.pipeline.holding import Found
from tidings.pipeline.keyfile import KeyFile, for_spark
from tidings.pipeline.leases import Leases, Senders
from tidings.pipeline.results import BROKEN, COUNT, DELIVERY, results_of
from tidings.pipeline.secure import Recipient, Rest, Sealing, recipients_of
from tidings.pipeline.sources import with_id
from tidings.pipeline.streams import Source
from tidings.pipeline.tables import delivery_id_column
from tidings.security import BatchMoments, OpenedBatch, Right, SignedType, State, split, uncached
from tidings.store import Registry

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EVENT_ID = "_event_id"

Numbers = np.ndarray[Any, np.dtype[Any]]
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
        self._last: tuple[int, dict[str, Right], frozenset[str]] | None = None
        # Copies are forgotten with the next batch that brings something; a batch of nothing is not needed for it.
        spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")

    def step(self, records: DataFrame, in_force: InForce, changes: Changes) -> AdmitMatchSecure:
        """What a worker does with the batch at hand, by the rights that hold now."""
        rights = self._rights()
        rest = Rest(self.by.rest)
        recipients = recipients_of(self.type, rights, _now_ms(), rest)
        senders = self._senders(records, recipients) if rest is Rest.LEFT_OUT else Senders({})
        asks_too_much = self._withheld(changes, in_force.version, rights)
        return AdmitMatchSecure(in_force, Sealing(self.type, self.keys, recipients, senders), rest, asks_too_much)

    def _withheld(self, changes: Changes, version: int, rights: dict[str, Right]) -> frozenset[str]:
        """Found anew, and told, only when subscriptions or rights have changed."""
        if self._last is None or self._last[:2] != (version, rights):
            self._last = version, rights, withheld(changes.log.changed(0, version)[0], self.type, rights)
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

    def _rights(self) -> dict[str, Right]:
        """Each domain's right to subscribe that holds now; of several, the one given last."""
        now_ms = _now_ms()
        with self._registry() as registry:
            names = registry.domains.names()
            given = sorted(registry.grants.all(type_id=self.type.type_id), key=lambda grant: grant.added_ms)
        return {
            names[grant.right.holder]: grant.right
            for grant in given
            if grant.right.holder in names and "subscribe" in grant.right.actions and grant.refusal(now_ms) is None
        }

    def _senders(self, records: DataFrame, recipients: Iterable[Recipient]) -> Senders:
        """A sender id for each publisher of the batch and recipient, however often the batch is run."""
        number = f.conv(f.hex(f.substring(FRAME, 37, 4)), 16, 10)
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


def withheld(subscriptions: pa.Table, signed_type: SignedType, rights: dict[str, Right]) -> frozenset[str]:
    """Ids of subscriptions that ask about what their subscriber may not read: whether mail comes would tell it.

    Conditions are only parsed where a right leaves something out.
    """
    ids, conditions, people = (subscriptions.column(name).to_pylist() for name in ("id", "condition", "subscriber"))
    found = set()
    for id, condition, person in zip(ids, conditions, people, strict=True):
        hidden = _hidden(condition, signed_type, rights.get(person))
        if hidden:
            _log.warning("subscription %s: %s; nothing is delivered for it", id, hidden)
            found.add(id)
    return frozenset(found)


def _hidden(condition: str, signed_type: SignedType, right: Right | None) -> str:
    if right is None:
        return "its subscriber has no right to read these events"
    if right.attributes is None:
        return ""
    asked = _asked(condition, signed_type.event_type)
    outside = sorted(name for name in asked if not right.covers((signed_type.attr_id(name),)))
    return f"it asks about {', '.join(outside)}, which its subscriber may not read" if outside else ""


def _asked(condition: str, event_type: EventType) -> frozenset[str]:
    try:
        return frozenset(parse(condition, event_type).attributes)
    except FilterError:  # It asks about the event's number, which is nobody's to ask for.
        return frozenset(attribute.name for attribute in event_type)


@dataclass(frozen=True, slots=True)
class _Open:
    """Genuine events of a batch, with what it takes to seal them again."""

    rows: pa.RecordBatch
    ids: pa.Array
    frames: pa.Array
    moments: BatchMoments


class AdmitMatchSecure:
    """mapInArrow: frames → mail, refused frames and counts, told apart by `kind`."""

    def __init__(self, in_force: InForce, sealing: Sealing, rest: Rest, asks_too_much: frozenset[str]) -> None:
        self.in_force, self.sealing, self.rest = in_force, sealing, rest
        self.asks_too_much = pa.array(sorted(asks_too_much), pa.string())

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        opener = self.sealing.keys.opener(self.sealing.type)
        for batch in batches:
            frames = batch.column(FRAME)
            opened = opener.open_(frames)
            refused = np.flatnonzero(opened.states != State.OK)
            if len(refused):
                yield _refusals(frames, opened, refused)
            yield from self._match(_genuine(frames, opened), len(refused))

    def _match(self, events: _Open, refused: int) -> Iterator[pa.RecordBatch]:
        is_wanted, pairs = np.zeros(events.rows.num_rows, bool), 0
        for start, found in self.in_force.match_in_rounds(events.rows):
            mail, rows = self._mail(events, start, found)
            is_wanted[rows] = True
            pairs += mail.num_rows
            if mail.num_rows:
                yield mail
        counts = [len(is_wanted) + refused, int(is_wanted.sum()), refused, pairs]
        yield results_of(COUNT, 1, counts=pa.array([counts], pa.list_(pa.int64())))

    def _mail(self, events: _Open, start: int, found: Found) -> tuple[pa.RecordBatch, Numbers]:
        """Of the pairs that match, those that a right allows, sealed; and which rows they are of."""
        pairs = found.pairs(events.ids.slice(start))
        allowed = pc.invert(pc.is_in(pairs.column("subscription_id"), value_set=self.asks_too_much))
        pairs = pairs.filter(allowed)
        rows = (start + found.events)[allowed.to_numpy(zero_copy_only=False)]
        kept, frames = self._sealed(events, rows, pairs.column("subscriber"))
        mailed = pairs.take(pa.array(kept))
        columns = {name: mailed.column(name) for name in ("event_id", "subscription_id", "subscriber")}
        return results_of(DELIVERY, len(kept), original=frames, **columns), rows[kept]

    def _sealed(self, events: _Open, rows: Numbers, subscribers: pa.Array) -> tuple[Numbers, pa.Array]:
        taken = events.rows.select(_names(self.sealing.type)).take(pa.array(rows))
        if self.rest is Rest.SEALED:  # As it came: what is sealed already is not sealed again.
            readable = [self.sealing.readable(one, taken, subscribers) for one in self.sealing.recipients]
            kept = np.concatenate([np.zeros(0, np.int64), *readable])
            return kept, events.frames.take(pa.array(rows[kept]))
        moments = events.moments.take(rows)
        sources = pa.array(moments.sender_ids).cast(pa.string())
        return self.sealing.seal(taken, subscribers, sources, moments.ts_ms, moments.seqs)


def _names(signed_type: SignedType) -> list[str]:
    return [attribute.name for attribute in signed_type.event_type]


def _genuine(frames: pa.Array, opened: OpenedBatch) -> _Open:
    good = np.flatnonzero(opened.states == State.OK)
    rows = pa.array(good)
    ids = head_columns(opened)[0].take(rows)
    return _Open(opened.rows.take(rows), ids, _bare(frames.take(rows)), opened.moments.take(good))


def _bare(frames: pa.Array) -> pa.Array:
    """Frames without the plaintext that a relay may have sent along: that must not be kept."""
    flags = pc.binary_slice(frames, HEADER_BYTES - 2, HEADER_BYTES)
    if pc.all(pc.equal(flags, pa.scalar(b"\0\0")), min_count=0).as_py():
        return frames
    return pa.array([uncached(split(frame)) for frame in frames.to_pylist()], pa.binary())


def _refusals(frames: pa.Array, opened: OpenedBatch, refused: Numbers) -> pa.RecordBatch:
    reasons = pa.array([opened.reasons[row] for row in refused.tolist()], pa.string())
    originals = [_kept(frames[row].as_py() or b"", State(opened.states[row])) for row in refused.tolist()]
    return results_of(BROKEN, len(refused), reason=reasons, original=pa.array(originals, pa.binary()))


def _kept(frame: bytes, state: State) -> bytes:
    """Of what was altered only the header; what lacks a key is kept, still sealed, to be read when the key is there."""
    return uncached(split(frame)) if state is State.NO_KEY else frame[:HEADER_BYTES]


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
