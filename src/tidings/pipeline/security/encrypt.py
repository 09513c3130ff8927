"""DELIVERIES → SEALED: each recipient's output as encrypted frames, of which it can read only what it may.

Attributes that a recipient may not read are `left out` of its frames, or stay `sealed` in them under keys that it
does not have. Either way a delivery is one frame, byte for byte as a live publisher would write it with the same
sender id and moment. Deliveries to a subscriber without a right, and those that the right's own conditions exclude,
are dropped.

    left out   one frame per event and recipient, with a sender id for each recipient; attributes that
               the type requires stay in it, encrypted
    sealed     one frame per event, the same bytes for every recipient

Two different frames of one event must not share a nonce, even for equal values: two tags under one nonce reveal
GCM's authentication key. Hence a sender id for each recipient.
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
from tidings.pipeline.security.nonce_leases import SEQ, SOURCE, TS_MS, NonceLeases, Senders
from tidings.pipeline.security.recipients import Recipient, Rest, Rights, recipients_of
from tidings.pipeline.tables import PAIR_NAMES, attribute_column_or_null, listed
from tidings.security import BatchMoments, SignedType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

RIGHTS_KEPT = 256  # Indexes of rights' conditions that a worker caches.

Numbers = np.ndarray[Any, np.dtype[Any]]


def secure(
    deliveries: DataFrame,
    signed_type: SignedType,
    rights: Rights,
    keys: KeyFile,
    leases: NonceLeases,
    *,
    now_ms: int,
    rest: Rest = Rest.LEFT_OUT,
    sources: Iterable[str] | None = None,
) -> DataFrame:
    """event_id, subscription_id, subscriber and frame: one row for each delivery that a right allows.

    `deliveries` have the type's attributes as columns, a subscriber, and a source and moment from `stamp`. `rights`
    say what each subscriber may read; several rights of one subscriber add up. Without `sources`, the deliveries are
    read once more to find them. Raises at once, not when rows are read: Denied for a right that is not
    valid now, InputError for a type with a cipher that Spark lacks.
    """
    signed_type = for_spark(signed_type)
    check_encrypted(deliveries.sparkSession)
    _check_columns(deliveries)
    recipients = recipients_of(signed_type, rights, now_ms, rest)
    keys = keys.pinned(signed_type)
    wanted = (recipient.sender for recipient in recipients)
    senders = leases.senders(sources or sources_of(deliveries), wanted, keys=keys.fingerprint)
    sealer = RecipientSealer(signed_type, keys, recipients, senders)
    event_type = signed_type.event_type
    columns = [attribute_column_or_null(deliveries, a.name).alias(f"_{at}") for at, a in enumerate(event_type)]
    kept = [f.col(name) for name in (*_ids(deliveries), SOURCE, TS_MS, SEQ)]
    return deliveries.select(*kept, *columns).mapInArrow(SealRows(sealer, _ids(deliveries)), sealed_schema(deliveries))


def sources_of(rows: DataFrame) -> list[str]:
    """The sources of stamped rows. Raises InputError for a stream, whose sources are not known beforehand."""
    if rows.isStreaming:
        raise InputError("expected the sources of a stream to be named")
    # The driver collects one row per publisher; each needs its own sender id.
    return sorted(row[0] for row in rows.select(SOURCE).distinct().collect() if row[0] is not None)


class RecipientSealer:
    """Encrypts rows for recipients. Part of a Spark plan, so it holds no key, only the key file's path."""

    def __init__(
        self, signed_type: SignedType, keys: KeyFile, recipients: tuple[Recipient, ...], senders: Senders
    ) -> None:
        self.type, self.keys, self.recipients = signed_type, keys, recipients
        self.senders = dict(senders)

    def seal(
        self, rows: pa.RecordBatch, subscribers: pa.Array, sources: pa.Array, ts_ms: Numbers, seqs: Numbers
    ) -> tuple[Numbers, pa.BinaryArray]:
        """The rows that a recipient may have, and their frames. Expects rows in the form that `conform` returns."""
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
        """The frames of these events for this recipient."""
        moments = BatchMoments(self._sender_ids(recipient, sources), ts_ms, seqs)
        return self.keys.sealer(self.type).seal(events, moments, recipient.shown)

    def readable(self, recipient: Recipient, rows: pa.RecordBatch, subscribers: pa.Array) -> Numbers:
        """The rows for this recipient, by its name and by the conditions of its rights."""
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
            raise SetupError(f"no sender id is leased for the source and recipient {missing}") from None
        by_row: Numbers = np.array(ids, np.int64)[named_.indices.to_numpy()]
        return by_row


@lru_cache(RIGHTS_KEPT)
def _constraints(event_type: EventType, constraints: tuple[str, ...]) -> Index:
    """An index of a right's conditions, all of which an event must match."""
    index = Index(event_type)
    index.add_all((str(number), condition) for number, condition in enumerate(constraints))
    return index


class SealRows:
    """mapInArrow: deliveries with their events → ids and frames."""

    def __init__(self, sealer: RecipientSealer, ids: list[str]) -> None:
        self.sealer, self.ids = sealer, ids

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        event_type = self.sealer.type.event_type
        for batch in batches:
            events = conform(named(batch, event_type), event_type)
            sources, ts_ms, seqs = (batch.column(name) for name in (SOURCE, TS_MS, SEQ))
            if sources.null_count or ts_ms.null_count or seqs.null_count:
                raise InputError("a delivery has no source or moment; give each one with `stamp`")
            kept, frames = self.sealer.seal(
                events, batch.column("subscriber"), sources, ts_ms.to_numpy(), seqs.to_numpy()
            )
            rows = pa.array(kept)
            columns = [batch.column(name).take(rows) for name in self.ids]
            yield pa.RecordBatch.from_arrays([*columns, frames], [*self.ids, "frame"])


def sealed_schema(deliveries: DataFrame) -> StructType:
    ids = [StructField(name, deliveries.schema[name].dataType) for name in _ids(deliveries)]
    return StructType([*ids, StructField("frame", BinaryType())])


def _ids(deliveries: DataFrame) -> list[str]:
    return [name for name in PAIR_NAMES if name in deliveries.columns]


def _check_columns(deliveries: DataFrame) -> None:
    missing = [name for name in ("subscriber", SOURCE, TS_MS, SEQ) if name not in deliveries.columns]
    if missing:
        raise InputError(
            f"the deliveries need {', '.join(missing)} (sources and moments come from `stamp`); "
            f"they have {listed(deliveries.columns)}"
        )
    if not isinstance(deliveries.schema["subscriber"].dataType, StringType):
        raise InputError("the deliveries need subscribers as text")
