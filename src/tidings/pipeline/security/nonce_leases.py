"""Nonces for Spark jobs: the same row gets the same nonce however often it is encrypted, and no other row gets it.

A nonce consists of a sender id and a moment. A failed task is repeated, perhaps beside its first attempt, perhaps
after a restart with other partitions. It must produce the same bytes, and no other row may get its nonce. So a task
chooses nothing about a nonce: the sender id belongs to a *source* (a version of a file, a topic's partition, a
publisher) and a recipient, by a lease on disk, and the moment follows from the row's offset in its source, or
comes from its publisher.
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
from tidings.pipeline.storage import Location, Storage, storage_at

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SOURCE, TS_MS, SEQ = "_source", "_ts_ms", "_seq"
EVERYBODY = ""  # The recipient of frames that are the same for all recipients.
SEQ_BITS = 20

TakeSenderIds: TypeAlias = Callable[[int], Iterable[int]]
"""Allocates this many unused sender ids, from a registry or a key manager."""

Senders: TypeAlias = MappingProxyType[tuple[str, str], int]
"""The sender id of each (source, recipient)."""


class _LeaseFile(msgspec.Struct):
    """A run's leases, as the file stores them."""

    run: str
    started_ms: int
    senders: dict[str, dict[str, int]]
    keys: str = ""
    """The fingerprint of the keys that the ids are for."""


class NonceLeases:
    """The sender ids of one run, in a file of its own.

    The same run gets the same ids again, and with them the same bytes. If the input changes under the same source
    name, use another run. A lost file costs new ids, but never repeats a nonce.
    """

    def __init__(
        self,
        path: str | Path,
        run: str,
        take: TakeSenderIds,
        *,
        now_ms: int | None = None,
        storage: Storage | None = None,
    ) -> None:
        """`path` is a local file or, with a storage, a name in it."""
        where = Location.of(path)
        self._storage = storage or storage_at(where.text.rpartition("/")[0] or "/")
        self._name, self._take = (str(path) if storage else where.name), take
        self._leases = self._read(run) or _LeaseFile(run, time.time_ns() // 1_000_000 if now_ms is None else now_ms, {})

    @property
    def started_ms(self) -> int:
        """When the run first began: the publication time of its rows."""
        return self._leases.started_ms

    def senders(self, sources: Iterable[str], recipients: Iterable[str], *, keys: str = "") -> Senders:
        """An id for every pair. Writes new ones to disk before it returns.

        `keys` is the fingerprint of the keys that will encrypt: with others, other ids are leased.
        """
        if keys != self._leases.keys:
            self._leases.keys, self._leases.senders = keys, {}
        pairs = list(product(sorted(set(sources)), sorted(set(recipients))))
        held = self._leases.senders
        missing = [(source, recipient) for source, recipient in pairs if recipient not in held.get(source, {})]
        if missing:
            for (source, recipient), id in zip(missing, self._take(len(missing)), strict=True):
                held.setdefault(source, {})[recipient] = id
            self._write()
        return MappingProxyType({(source, recipient): held[source][recipient] for source, recipient in pairs})

    def _read(self, run: str) -> _LeaseFile | None:
        content = self._storage.read(self._name)
        try:
            leases = msgspec.json.decode(content, type=_LeaseFile) if content is not None else None
        except msgspec.DecodeError as wrong:
            raise SetupError(f"cannot read the leases {str(self._storage.root.below(self._name))!r}: {wrong}") from None
        return leases if leases is not None and leases.run == run else None

    def _write(self) -> None:
        self._storage.put(self._name, msgspec.json.encode(self._leases))


def stamp(rows: DataFrame, *, source: Column, offset: Column, started_ms: int) -> DataFrame:
    """Adds to each row its source and its moment, which is the run's start plus the row's offset in the source.

    (source, offset) must identify one row, the same one at each reading. A topic's partition and offset do;
    `row_number`, `rand` and `monotonically_increasing_id` do not.
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

    A file that was rewritten is another source: its size and modification time are part of the name.
    """
    about = f.col("_metadata")
    written = f.unix_micros(about["file_modification_time"]).cast("string")
    source = f.concat_ws("#", about["file_path"], about["file_size"].cast("string"), written)
    return stamp(rows, source=source, offset=about["row_index"], started_ms=started_ms)
