"""Sender ids for table jobs, and moments for rows: the same row has the same nonce however often it is sealed.

A nonce is a sender id and a moment. A task that fails is run again, perhaps beside its first
attempt, perhaps after a restart with other partitions; it must come to the same bytes, and no
other row may come to its nonce. So nothing about a nonce is chosen by a task: the sender id
belongs to a *source* (a file as it was, a topic's partition, a publisher) and a recipient, by a
lease on disk, and the moment comes from the row's place in its source, or from its publisher.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

import msgspec
from pyspark.sql import functions as f

from tidings.errors import SetupError
from tidings.pipeline.state.batch_log import write_whole

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SOURCE, TS_MS, SEQ = "_source", "_ts_ms", "_seq"
EVERYBODY = ""  # The recipient of frames that are the same for all.
SEQ_BITS = 20

TakeSenderIds: TypeAlias = Callable[[int], Iterable[int]]
"""So many sender ids that were never given out before, from a registry or a key manager."""

Senders: TypeAlias = MappingProxyType[tuple[str, str], int]
"""The sender id of each (source, recipient)."""


class _Kept(msgspec.Struct):
    """A run's leases as the file has them."""

    run: str
    started_ms: int
    senders: dict[str, dict[str, int]]


class Leases:
    """The sender ids of one run, kept in a file of its own.

    The same run gets the same ids again, and with them the same bytes; whoever changes the input
    under an old source name must take another run. A lost file costs new ids, never a nonce twice.
    """

    def __init__(self, path: str | Path, run: str, take: TakeSenderIds, *, now_ms: int | None = None) -> None:
        self._path, self._take = Path(path), take
        self._kept = self._read(run) or _Kept(run, time.time_ns() // 1_000_000 if now_ms is None else now_ms, {})

    @property
    def started_ms(self) -> int:
        """When the run first began: the time that its rows are published at."""
        return self._kept.started_ms

    def senders(self, sources: Iterable[str], recipients: Iterable[str]) -> Senders:
        """An id for every pair; new ones are on disk before this returns."""
        pairs = list(product(sorted(set(sources)), sorted(set(recipients))))
        held = self._kept.senders
        missing = [(source, recipient) for source, recipient in pairs if recipient not in held.get(source, {})]
        if missing:
            for (source, recipient), id in zip(missing, self._take(len(missing)), strict=True):
                held.setdefault(source, {})[recipient] = id
            self._write()
        return MappingProxyType({(source, recipient): held[source][recipient] for source, recipient in pairs})

    def _read(self, run: str) -> _Kept | None:
        try:
            kept = msgspec.json.decode(self._path.read_bytes(), type=_Kept)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as wrong:
            raise SetupError(f"cannot read the leases {str(self._path)!r}: {wrong}") from None
        return kept if kept.run == run else None

    def _write(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self._path, msgspec.json.encode(self._kept))


def stamp(rows: DataFrame, *, source: Column, offset: Column, started_ms: int) -> DataFrame:
    """Each row with its source and its moment: its offset in the source, counted on from the run's start.

    The caller answers for (source, offset) naming one row, the same at each reading: a topic's
    partition and offset do. `row_number`, `rand` and `monotonically_increasing_id` do not.
    """
    number = offset.cast("long")
    return rows.select(
        "*",
        source.cast("string").alias(SOURCE),
        (f.lit(started_ms) + f.shiftright(number, SEQ_BITS)).alias(TS_MS),
        number.bitwiseAND(f.lit(2**SEQ_BITS - 1)).alias(SEQ),
    )


def stamp_files(rows: DataFrame, *, started_ms: int) -> DataFrame:
    """The same for rows read from Parquet files.

    A file that was written anew is another source: its size and time are part of the name.
    """
    about = f.col("_metadata")
    written = f.unix_micros(about["file_modification_time"]).cast("string")
    source = f.concat_ws("#", about["file_path"], about["file_size"].cast("string"), written)
    return stamp(rows, source=source, offset=about["row_index"], started_ms=started_ms)
