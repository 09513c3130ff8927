"""Subscriptions that change while the pipeline runs: a folder of changes → a version for each batch.

Every new file in the folder is a set of changes, JSON lines:

    {"id": "s1", "subscriber": "police", "filter": "speed > 40"}      adds s1, or changes it
    {"id": "s1", "removed": true}                                     removes it

Files are taken in the order of their names as they are found, and each makes a version. It
is parsed by Spark, written to the checkpoint, and only then in force: after a restart the
versions are the same, whatever has become of the files. A change that cannot be used is
quarantined and changes nothing: what was in force under that id remains so.

The index of a version is a **base**, built seldom, and beside it a small index of what has
changed since; numbers of the base that were changed or removed are left out of its answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import StorageLevel
from pyspark.sql import functions as f

from tidings.errors import InputError
from tidings.events import Attribute, EventType
from tidings.pipeline.holding import Found, Numbers, Shipped, ship
from tidings.pipeline.ledger import write_whole
from tidings.pipeline.sources import ORIGINAL, REASON, ReadLines, spark_schema
from tidings.pipeline.wanted import UNNAMED, WANTED_SCHEMA, few_parts, parse_subscriptions, read_payload, write_payload

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Change = EventType("a subscription", id=str, subscriber=str, filter=str, type=str, removed=bool)

# A change more costs a small index the same again, a new base the whole of it: so the base is
# built anew only when as much has changed as makes it worth while.
CHANGED_MIN, CHANGED_SHARE = 4_096, 0.25

CHANGES_SCHEMA = (
    "payload binary, removed array<string>, "
    "rejected array<struct<id: string, subscriber: string, filter: string, reason: string, original: binary>>"
)
_REJECTED = pa.struct(
    [(name, pa.string()) for name in ("id", "subscriber", "filter", "reason")] + [("original", pa.binary())]
)
_CHANGES = pa.schema([("payload", pa.binary()), ("removed", pa.list_(pa.string())), ("rejected", pa.list_(_REJECTED))])

Quarantine = Callable[["DataFrame", int], None]


@dataclass(frozen=True, slots=True)
class InForce:
    """The subscriptions of one version, ready to travel: a base, what of it is gone, and what came instead."""

    version: int
    count: int
    base: Shipped
    gone: Numbers
    changed: Shipped | None

    def match_in_rounds(self, batch: pa.RecordBatch) -> Iterator[tuple[int, Found]]:
        """As `Holding.match_in_rounds`; an event's pairs may come in two rounds, but each pair once."""
        base = self.base.holding()
        is_gone = np.zeros(len(base.ids), bool)
        is_gone[self.gone] = True
        for start, found in base.match_in_rounds(batch):
            yield start, found.without(is_gone) if len(self.gone) else found
        if self.changed is not None:
            yield from self.changed.holding().match_in_rounds(batch)


class Changes:
    """The versions of a pipeline's subscriptions, kept in the checkpoint."""

    def __init__(self, spark: SparkSession, source: str, checkpoint: str, event_type: EventType) -> None:
        self.spark, self.source, self.named_type = spark, Path(source), event_type
        # Required or not does not matter to a condition, and what is checked twice costs twice.
        self.event_type = EventType.of(event_type.name, tuple(Attribute(a.name, a.type) for a in event_type))
        self.log = Path(checkpoint) / "subscriptions"
        self.log.mkdir(parents=True, exist_ok=True)
        self._base: tuple[int, Shipped] | None = None
        self._in_force: InForce | None = None
        self._taken = {entry.source for entry in self._entries()}

    @property
    def tip(self) -> int:
        """The latest version; 0 stands for no subscriptions at all."""
        return len(self._files())

    def scan(self, quarantine: Quarantine) -> int:
        """Makes a version of each new file in the source folder; returns the latest version."""
        if not self.source.is_dir():
            raise InputError(f"expected a folder of subscriptions, got {str(self.source)!r}")
        for file in sorted(self.source.iterdir()):
            if file.is_file() and not file.name.startswith((".", "_")) and file.name not in self._taken:
                self._take(file, self.tip + 1, quarantine)
        return self.tip

    def at(self, version: int) -> InForce:
        """What is in force at this version; builds only what has changed since the last one, where that is little."""
        if self._in_force is None or self._in_force.version != version:
            self._in_force = self._made(version)
        return self._in_force

    # ── A version in the making ──────────────────────────────────────────────

    def _take(self, file: Path, version: int, quarantine: Quarantine) -> None:
        parsed = _parsed(self.spark, file, self.named_type).persist(StorageLevel.DISK_ONLY)
        try:
            quarantine(parsed.select(f.inline("rejected")), version)
            rows = list(parsed.select("payload", "removed").toLocalIterator())
        finally:
            parsed.unpersist()
        added = pa.concat_tables([WANTED_SCHEMA.empty_table(), *(read_payload(row.payload) for row in rows)])
        removed = [id for row in rows for id in row.removed]
        write_whole(self._file(version), _Entry(file.name, write_payload(added), removed).encoded())
        self._taken.add(file.name)

    def _made(self, version: int) -> InForce:
        if self._base is None or self._base[0] > version:
            return self._rebased(version)
        since, base = self._base
        changed, ids = self._changed(since, version)
        held = base.holding()
        if len(ids) > max(CHANGED_MIN, CHANGED_SHARE * len(held.ids)):
            return self._rebased(version)
        gone = np.flatnonzero(pc.is_in(held.ids, value_set=ids).to_numpy(zero_copy_only=False))
        beside = ship(self.spark, [changed], self.event_type) if changed.num_rows else None
        return InForce(version, len(held.ids) - len(gone) + changed.num_rows, base, gone, beside)

    def _rebased(self, version: int) -> InForce:
        alive, _ = self._changed(0, version)
        shipped = ship(self.spark, [alive], self.event_type)
        if self._base is not None:
            self._base[1].shipment.recall()
        self._base = (version, shipped)
        return InForce(version, alive.num_rows, shipped, np.zeros(0, np.int64), None)

    def _changed(self, since: int, version: int) -> tuple[pa.Table, pa.Array]:
        """What the versions after `since` have put in force and not taken back, and every id that they mention."""
        alive: list[pa.Table] = [WANTED_SCHEMA.empty_table()]
        seen = pa.array([], pa.string())
        for number in range(version, since, -1):  # The latest word on an id counts.
            entry = self._entry(number)
            added = read_payload(entry.payload)
            alive.append(added.filter(pc.invert(pc.is_in(added.column("id"), value_set=seen))))
            mentioned = [seen, pa.array(entry.removed, pa.string()), *added.column("id").chunks]
            seen = pa.concat_arrays(mentioned).unique()
        return pa.concat_tables(alive), seen

    # ── On disk ──────────────────────────────────────────────────────────────

    def _files(self) -> list[Path]:
        return sorted(self.log.glob("*.changes"))

    def _file(self, version: int) -> Path:
        return self.log / f"{version:09}.changes"

    def _entry(self, version: int) -> _Entry:
        return msgspec.msgpack.decode(self._file(version).read_bytes(), type=_Entry)

    def _entries(self) -> Iterator[_Entry]:
        return (self._entry(version) for version in range(1, self.tip + 1))


class _Entry(msgspec.Struct, frozen=True):
    """One version: the file it came from, and what it adds and removes."""

    source: str
    payload: bytes
    removed: list[str]

    def encoded(self) -> bytes:
        return msgspec.msgpack.encode(self)


def _parsed(spark: SparkSession, file: Path, event_type: EventType) -> DataFrame:
    lines = spark.read.text(str(file)).where("length(trim(value)) > 0")
    schema = spark_schema(Change).add(REASON, "string").add(ORIGINAL, "binary")
    read = lines.select(f.col("value").cast("binary")).mapInArrow(ReadLines(Change, keep_original=True), schema)
    row = f.struct(*read.columns)
    numbered = read.select("id", row.alias("row"), f.monotonically_increasing_id().alias("line"))
    # A later line of a file takes the place of an earlier one; lines without an id all stay, to be quarantined.
    key = f.coalesce(f.concat(f.lit("i"), "id"), f.concat(f.lit("l"), f.col("line").cast("string")))
    latest = numbered.groupBy(key).agg(f.max_by("row", "line").alias("row")).select("row.*")
    if event_type.name != UNNAMED:
        latest = latest.where(f.col("type").isNull() | (f.col("type") == event_type.name))
    return few_parts(latest).mapInArrow(_ParseChanges(event_type), CHANGES_SCHEMA)


class _ParseChanges:
    """mapInArrow: read lines → good subscriptions as one payload, ids to remove, and what cannot be used."""

    def __init__(self, event_type: EventType) -> None:
        self.event_type = event_type

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.RecordBatch.from_pylist([self._parse(batch.to_pylist())], schema=_CHANGES)

    def _parse(self, rows: list[dict[str, object]]) -> dict[str, object]:
        whole = [row for row in rows if row[REASON] is None]
        kept = [row for row in whole if not row["removed"]]
        table, _, rejected = parse_subscriptions(
            ((row["id"], row["subscriber"], row["filter"], False) for row in kept),  # type: ignore[misc]
            self.event_type,
        )
        originals = {row["id"]: row[ORIGINAL] for row in kept}
        broken = [{"reason": row[REASON], "original": row[ORIGINAL]} for row in rows if row[REASON] is not None]
        unfit = [{**row, "reason": row["error"], "original": originals[row["id"]]} for row in rejected]
        return {
            "payload": write_payload(table),
            "removed": [row["id"] for row in whole if row["removed"] and row["id"]],
            "rejected": broken + unfit,
        }
