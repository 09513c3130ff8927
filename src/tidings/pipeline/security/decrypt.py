"""FRAMES → ADMITTED: sealed events, verified and decrypted as far as a keyring allows.

Each frame passes the same checks as on a live broker: header, order and number of attributes, manifest, epoch and
its time, authentication tags. A row is then in one of three states:

    ok         authentic; attributes without a key on the ring are null
    no_key     no key fits: the frame is for other readers, or of an epoch that this ring lacks
    auth_fail  altered, forged, truncated or no frame at all; only the header of these is kept

Duplicates are removed after verification: a forged frame with the number of a true one must not displace it. The
rows of a table are shuffled by number while still encrypted, so no plaintext is ever exchanged. A stream remembers
numbers and digests for a limited time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as f
from pyspark.sql.types import BinaryType

from tidings.errors import InputError, SetupError
from tidings.events import arrow_schema, nest
from tidings.pipeline.security.keyfile import KeyFile, for_spark
from tidings.pipeline.session import is_local
from tidings.pipeline.tables import listed, quoted
from tidings.security import DELAY_MS, OpenedBatch, PublisherRights, SignedType, State

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

FRAME, STATE, REASON, HEADER = "frame", "_state", "_reason", "_header"
EVENT_ID, SENDER_ID, TS_MS, SEQ = "_event_id", "_sender_id", "_ts_ms", "_seq"
OK: Final = "ok"
NO_KEY: Final = "no_key"
AUTH_FAIL: Final = "auth_fail"
HEADER_BYTES = 54
STREAM_MEMORY = "10 minutes"  # How long after an event's arrival a stream detects its duplicates.

_STATES = pa.array([OK, NO_KEY, AUTH_FAIL])
_NUMBER, _DIGEST, _ARRIVED, _NOW_MS = "_number", "_digest", "_arrived", "_now_ms"
_HEADER_FIELDS = [
    pa.field(STATE, pa.string()),
    pa.field(REASON, pa.string()),
    pa.field(EVENT_ID, pa.string()),
    pa.field(SENDER_ID, pa.int64()),
    pa.field(TS_MS, pa.int64()),
    pa.field(SEQ, pa.int64()),
    pa.field(HEADER, pa.binary()),
]
# On several hosts, what executors exchange and spill must be encrypted, too.
_ENCRYPTED = ("spark.io.encryption.enabled", "spark.network.crypto.enabled")


def admit(
    frames: DataFrame,
    signed_type: SignedType,
    keys: KeyFile,
    *,
    column: str = FRAME,
    is_live: bool = False,
    keep_duplicates: bool = False,
    publishers: PublisherRights | None = None,
) -> DataFrame:
    """The events in `frames`, a table or stream with a binary column of frames.

    Returns `_state`, `_reason`, `_event_id`, `_sender_id`, `_ts_ms`, `_seq`, `_header` and the type's attributes.
    With `is_live`, events older than grace and delay are refused, as a broker does; readers of history leave it off.
    With `publishers`, an event must be signed by one of them, or else it is `auth_fail` with the reason. Raises
    InputError for a type with a cipher that Spark lacks, SetupError on a cluster that does not encrypt its exchanges.
    """
    signed_type = for_spark(signed_type)
    check_encrypted(frames.sparkSession)
    if column not in frames.columns or not isinstance(frames.schema[column].dataType, BinaryType):
        raise InputError(f"expected a binary column {column!r} of frames; there are {listed(frames.columns)}")
    sealed = frames.select(f.col(quoted(column)).alias(FRAME), _now_ms().alias(_NOW_MS))
    if not keep_duplicates:
        sealed = sealed_once(sealed) if sealed.isStreaming else sealed.repartition(_number())
    fresh_ms = signed_type.grace_ms + DELAY_MS if is_live else None
    step = OpenFrames(signed_type, keys, fresh_ms, is_distinct=not keep_duplicates, publishers=publishers)
    return sealed.mapInArrow(step, admitted_schema(signed_type))


def genuine(admitted: DataFrame) -> DataFrame:
    """The authentic events, with their numbers and attributes."""
    return admitted.where(f.col(STATE) == OK).drop(STATE, REASON, HEADER)


def refused(admitted: DataFrame) -> DataFrame:
    """QUARANTINE: altered or forged frames, with the reason and the header only."""
    bad = admitted.where(f.col(STATE) == AUTH_FAIL)
    return bad.select(f.col(REASON).alias("reason"), f.col(HEADER).alias("original"))


def admitted_schema(signed_type: SignedType) -> StructType:
    from tidings.pipeline.arrow_types import from_arrow_schema

    return from_arrow_schema(pa.schema([*_HEADER_FIELDS, *_event_fields(signed_type)]))


def check_encrypted(spark: SparkSession) -> None:
    """Raises SetupError if executors on other hosts would exchange or spill plaintext."""
    if is_local(spark):
        return
    off = [name for name in _ENCRYPTED if str(spark.conf.get(name, "false")).lower() != "true"]
    if off:
        raise SetupError(f"decrypted events must not cross the network in the clear; set {' and '.join(off)} to true")


class OpenFrames:
    """mapInArrow: frames → states, numbers and attributes. Holds the path of the key file, never a key."""

    def __init__(
        self,
        signed_type: SignedType,
        keys: KeyFile,
        fresh_ms: int | None,
        *,
        is_distinct: bool,
        publishers: PublisherRights | None = None,
    ) -> None:
        self.type, self.keys, self.fresh_ms, self.is_distinct = signed_type, keys, fresh_ms, is_distinct
        self.publishers = publishers

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        seen: set[bytes] = set()
        opener = self.keys.opener(self.type, self.publishers)
        for batch in batches:
            frames = batch.column(FRAME)
            opened = opener.open_(frames)
            if self.fresh_ms is not None:
                refuse_late(opened, batch.column(_NOW_MS).to_numpy(), self.fresh_ms)
            rows = admitted_rows(frames, opened)
            yield rows.filter(pa.array(self._is_first(opened, seen))) if self.is_distinct else rows

    def _is_first(self, opened: OpenedBatch, seen: set[bytes]) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        first = np.ones(len(opened.states), bool)
        numbers = [number.tobytes() for number in opened.moments.nonces()]
        for row in np.flatnonzero(opened.states == State.OK).tolist():
            first[row] = numbers[row] not in seen
            seen.add(numbers[row])
        return first


def refuse_late(opened: OpenedBatch, now_ms: np.ndarray[tuple[int], np.dtype[np.int64]], fresh_ms: int) -> None:
    """Refuses authentic events that are too old, or too far in the future, for a live reader."""
    late = (opened.states == State.OK) & (np.abs(now_ms - opened.moments.ts_ms) > fresh_ms)
    opened.states[late] = State.AUTH_FAIL
    for row in np.flatnonzero(late).tolist():
        opened.reasons[row] = f"fresh: published more than {fresh_ms} ms from now"


def admitted_rows(frames: pa.Array, opened: OpenedBatch) -> pa.RecordBatch:
    """The rows of ADMITTED, with values only if the state is ok, and headers only if it is auth_fail."""
    is_bad = opened.states == State.AUTH_FAIL
    headers = [frames[row].as_py() or b"" for row in np.flatnonzero(is_bad).tolist()]
    bare = pa.array([header[:HEADER_BYTES] for header in headers], pa.binary())
    columns = [
        _STATES.take(pa.array(opened.states)),
        _reasons(opened),
        *header_columns(opened),
        _spread(bare, is_bad),
    ]
    events = opened.rows if (opened.states == State.OK).all() else _only_ok(opened)
    nested = nest(events)
    schema = pa.schema([*_HEADER_FIELDS, *nested.schema])
    return pa.RecordBatch.from_arrays([*columns, *nested.columns], schema=schema)


def _reasons(opened: OpenedBatch) -> pa.Array:
    if not opened.reasons:
        return pa.nulls(len(opened.states), pa.string())
    return pa.array([opened.reasons.get(row) for row in range(len(opened.states))], pa.string())


def header_columns(opened: OpenedBatch) -> list[pa.Array]:
    """Event id, sender id, millisecond and counter; null without a header."""
    moments, missing = opened.moments, ~opened.has_header
    numbers = [moments.sender_ids, moments.ts_ms, moments.seqs]
    shown = [pa.array(column, mask=missing) for column in numbers]
    return [event_ids(numbers, missing), *shown]


def event_ids(numbers: list[np.ndarray[tuple[int], np.dtype[np.int64]]], missing: object) -> pa.Array:
    """sender-millisecond-counter, unique within the event type."""
    texts = [pa.array(column).cast(pa.string()) for column in numbers]
    joined = pc.binary_join_element_wise(*texts, "-")
    return pc.if_else(pa.array(missing), pa.scalar(None, pa.string()), joined)


def _only_ok(opened: OpenedBatch) -> pa.RecordBatch:
    """The rows, without the values of those that were refused after decryption."""
    is_ok = pa.array(opened.states == State.OK)
    columns = [pc.if_else(is_ok, column, pa.scalar(None, column.type)) for column in opened.rows.columns]
    return pa.RecordBatch.from_arrays(columns, schema=opened.rows.schema)


def _spread(values: pa.Array, places: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> pa.Array:
    at = np.where(places, np.cumsum(places) - 1, -1)
    return values.take(pa.array(at, mask=~places))


def _event_fields(signed_type: SignedType) -> list[pa.Field]:
    flat = arrow_schema(signed_type.event_type)
    optional = pa.schema([field.with_nullable(True) for field in flat])
    return list(nest(optional.empty_table()).schema)


def sealed_once(frames: DataFrame) -> DataFrame:
    """A stream of frames without duplicates.

    The watermark goes by arrival and not by the time in the header: anybody could set that to next year, and all
    other frames would be late. The digest is part of the key, so a forged frame with a true one's number does not
    displace it.
    """
    keyed = frames.select("*", _number().alias(_NUMBER), f.sha2(FRAME, 256).alias(_DIGEST))
    known = keyed.withColumn(_ARRIVED, f.current_timestamp()).withWatermark(_ARRIVED, STREAM_MEMORY)
    return known.dropDuplicatesWithinWatermark([_NUMBER, _DIGEST]).select(*frames.columns)


def _number() -> Column:
    """Sender, millisecond and counter, as bytes of the header."""
    return f.substring(FRAME, 37, 16)


def _now_ms() -> Column:
    return f.unix_millis(f.current_timestamp())
