"""DELIVERIES → SEALED: each recipient's mail as frames that hold only what it may read.

What a recipient may not read is `left out` of its frames, or stays `sealed` in them under keys it
has not got. Either way a delivery is one frame, byte for byte as a live publisher would write it
with the same sender id and moment. Deliveries to somebody without a right, and those that the
right's own conditions exclude, are not made at all.

    left out   a frame per event and recipient, with a sender id for each recipient; attributes that
               the type requires stay in it, sealed
    sealed     one frame per event, the same bytes for whoever gets it

Two frames of one event that differ must not share a nonce, not even for equal values: from two
tags under one nonce GCM's key can be worked out. Hence the sender ids by recipient.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as f
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from tidings.errors import InputError, SetupError
from tidings.events import EventType, conform
from tidings.matching import Index
from tidings.pipeline.matching.match import named
from tidings.pipeline.security.decrypt import check_encrypted
from tidings.pipeline.security.keyfile import KeyFile, for_spark
from tidings.pipeline.security.nonce_leases import SEQ, SOURCE, TS_MS, Leases, Senders
from tidings.pipeline.security.recipients import Recipient, Rest, Rights, recipients_of
from tidings.pipeline.tables import listed, quoted
from tidings.security import BatchMoments, SignedType

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

IDS = ("event_id", "subscription_id", "subscriber")
RIGHTS_KEPT = 256  # Conditions of rights that a worker keeps ready; more recipients than this take turns.

Numbers = np.ndarray[Any, np.dtype[Any]]


def secure(
    deliveries: DataFrame,
    signed_type: SignedType,
    rights: Rights,
    keys: KeyFile,
    leases: Leases,
    *,
    now_ms: int,
    rest: Rest = Rest.LEFT_OUT,
    sources: Iterable[str] | None = None,
) -> DataFrame:
    """event_id, subscription_id, subscriber and frame, a row for each delivery that a right allows.

    `deliveries` have the type's attributes as columns, a subscriber, and a source and moment from
    `stamp`; `rights` say what each subscriber may read, one right or several, which add up. Where the `sources` are not named, the
    deliveries are read once more to learn them. Raises Denied for a right that does not hold now,
    InputError for a type whose cipher Spark lacks, at once and not when rows are read.
    """
    signed_type = for_spark(signed_type)
    check_encrypted(deliveries.sparkSession)
    _check_columns(deliveries)
    recipients = recipients_of(signed_type, rights, now_ms, rest)
    senders = leases.senders(sources or sources_of(deliveries), (recipient.sender for recipient in recipients))
    sealing = Sealing(signed_type, keys, recipients, senders)
    event_type = signed_type.event_type
    columns = [_column(deliveries, a.name).alias(f"_{at}") for at, a in enumerate(event_type)]
    kept = [f.col(name) for name in (*_ids(deliveries), SOURCE, TS_MS, SEQ)]
    return deliveries.select(*kept, *columns).mapInArrow(SealRows(sealing, _ids(deliveries)), sealed_schema(deliveries))


def sources_of(rows: DataFrame) -> list[str]:
    """The sources that stamped rows are from. Raises InputError for a stream, which cannot be asked beforehand."""
    if rows.isStreaming:
        raise InputError("expected the sources of a stream to be named")
    # As many rows as there are publishers, each of which needs a sender id of its own.
    return sorted(row[0] for row in rows.select(SOURCE).distinct().collect() if row[0] is not None)


class Sealing:
    """How rows become mail; travels with a plan and holds no key."""

    def __init__(
        self, signed_type: SignedType, keys: KeyFile, recipients: tuple[Recipient, ...], senders: Senders
    ) -> None:
        self.type, self.keys, self.recipients = signed_type, keys, recipients
        self.senders = dict(senders)

    def seal(
        self, rows: pa.RecordBatch, subscribers: pa.Array, sources: pa.Array, ts_ms: Numbers, seqs: Numbers
    ) -> tuple[Numbers, pa.BinaryArray]:
        """Which rows become mail, and their frames. Rows are as `conform` makes them."""
        kept, frames = [np.zeros(0, np.int64)], [pa.array([], pa.binary())]
        for recipient in self.recipients:
            mine = self.readable(recipient, rows, subscribers)
            if len(mine):
                events = rows if len(mine) == rows.num_rows else rows.take(pa.array(mine))
                frames.append(self.seal_for(recipient, events, sources.take(pa.array(mine)), ts_ms[mine], seqs[mine]))
                kept.append(mine)
        return np.concatenate(kept), frames[1] if len(frames) == 2 else pa.concat_arrays(frames)

    def seal_for(
        self, recipient: Recipient, events: pa.RecordBatch, sources: pa.Array, ts_ms: Numbers, seqs: Numbers
    ) -> pa.BinaryArray:
        """Frames of events that this recipient gets."""
        moments = BatchMoments(self._sender_ids(recipient, sources), ts_ms, seqs)
        return self.keys.sealer(self.type).seal(events, moments, recipient.shown)

    def readable(self, recipient: Recipient, rows: pa.RecordBatch, subscribers: pa.Array) -> Numbers:
        """The rows that are for this recipient, by its name and by what its rights say of each event."""
        mine: Numbers = np.flatnonzero(pc.equal(subscribers, recipient.name).to_numpy(zero_copy_only=False))
        if not (recipient.met or recipient.unmet) or not len(mine):
            return mine
        events, is_for = rows.take(pa.array(mine)), np.ones(len(mine), bool)
        if recipient.met:
            is_for &= self._meets(events, recipient.met)
        for conditions in recipient.unmet:
            is_for &= ~self._meets(events, conditions)
        return mine[is_for]

    def _meets(self, events: pa.RecordBatch, conditions: tuple[str, ...]) -> Numbers:
        """Which events meet all of the conditions."""
        found = _constraints(self.type.event_type, conditions).match_numbers(events)
        held: Numbers = np.bincount(np.asarray(found.events), minlength=events.num_rows) == len(conditions)
        return held

    def _sender_ids(self, recipient: Recipient, sources: pa.Array) -> Numbers:
        named_ = pc.dictionary_encode(sources)
        try:
            ids = [self.senders[source, recipient.sender] for source in named_.dictionary.to_pylist()]
        except KeyError as missing:
            raise SetupError(f"no sender id was leased for the source and recipient {missing}") from None
        by_row: Numbers = np.array(ids, np.int64)[named_.indices.to_numpy()]
        return by_row


@lru_cache(RIGHTS_KEPT)
def _constraints(event_type: EventType, constraints: tuple[str, ...]) -> Index:
    """An index of a right's conditions; an event must match every one of them."""
    index = Index(event_type)
    index.add_all((str(number), condition) for number, condition in enumerate(constraints))
    return index


class SealRows:
    """mapInArrow: deliveries with their events → ids and frames."""

    def __init__(self, sealing: Sealing, ids: list[str]) -> None:
        self.sealing, self.ids = sealing, ids

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        event_type = self.sealing.type.event_type
        for batch in batches:
            events = conform(named(batch, event_type), event_type)
            sources, ts_ms, seqs = (batch.column(name) for name in (SOURCE, TS_MS, SEQ))
            if sources.null_count or ts_ms.null_count or seqs.null_count:
                raise InputError("a delivery has no source or moment; give each one with `stamp`")
            kept, frames = self.sealing.seal(
                events, batch.column("subscriber"), sources, ts_ms.to_numpy(), seqs.to_numpy()
            )
            rows = pa.array(kept)
            columns = [batch.column(name).take(rows) for name in self.ids]
            yield pa.RecordBatch.from_arrays([*columns, frames], [*self.ids, "frame"])


def sealed_schema(deliveries: DataFrame) -> StructType:
    ids = [StructField(name, deliveries.schema[name].dataType) for name in _ids(deliveries)]
    return StructType([*ids, StructField("frame", BinaryType())])


def _ids(deliveries: DataFrame) -> list[str]:
    return [name for name in IDS if name in deliveries.columns]


def _check_columns(deliveries: DataFrame) -> None:
    missing = [name for name in ("subscriber", SOURCE, TS_MS, SEQ) if name not in deliveries.columns]
    if missing:
        raise InputError(
            f"the deliveries need {', '.join(missing)} (sources and moments come from `stamp`); "
            f"they have {listed(deliveries.columns)}"
        )
    if not isinstance(deliveries.schema["subscriber"].dataType, StringType):
        raise InputError("the deliveries need subscribers as text")


def _column(deliveries: DataFrame, name: str) -> Column:
    """An attribute's column, or a field of a struct, or nothing where the table has none."""
    if name in deliveries.columns:
        return f.col(quoted(name))
    parts = name.split(".")
    return f.col(".".join(map(quoted, parts))) if parts[0] in deliveries.columns else f.lit(None)
