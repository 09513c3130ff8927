"""Subscriptions that change while the pipeline runs: changes → a version for each batch.

Wherever changes come from (`tidings.pipeline.sources.subscription_changes`), one reads

    {"id": "s1", "subscriber": "police", "filter": "speed > 40"}      adds s1, or changes it
    {"id": "s1", "removed": true}                                     removes it

Each set of changes that is found makes a version. It is parsed by Spark, written to the
checkpoint, and only then in force: after a restart the versions are the same, whatever has
become of the source. A change that cannot be used is quarantined and changes nothing: what was
in force under that id remains so.

The index of a version is a **base**, built seldom, and beside it a small index of what has
changed since; numbers of the base that were changed or removed are left out of its answers.
Whenever a base is built, the versions up to it become one file, so that the checkpoint grows
with the subscriptions and not with their history.
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

from tidings.events import Attribute, EventType
from tidings.pipeline.matching.grouping import Numbers
from tidings.pipeline.matching.index_replica import Found, Shipped, ship
from tidings.pipeline.matching.parse_subscriptions import (
    WANTED_SCHEMA,
    few_parts,
    of_type,
    parse_subscriptions,
    read_payload,
    write_payload,
)
from tidings.pipeline.sources.files import ORIGINAL, REASON
from tidings.pipeline.sources.subscription_changes import ChangeSource, News
from tidings.pipeline.state.batch_log import write_whole

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# A change more costs a small index the same again, a new base the whole of it: so the base is
# built anew only when as much has changed as makes it worth while.
CHANGED_MIN, CHANGED_SHARE = 4_096, 0.25
VERSIONS_MAX = 256  # Beside one base, and so files of changes in the checkpoint.

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

    def __init__(self, spark: SparkSession, source: ChangeSource, checkpoint: str, event_type: EventType) -> None:
        self.spark, self.source, self.named_type = spark, source, event_type
        # Required or not does not matter to a condition, and what is checked twice costs twice.
        self.event_type = EventType.of(event_type.name, tuple(Attribute(a.name, a.type) for a in event_type))
        self.log = VersionLog(Path(checkpoint) / "subscriptions")
        self._base: tuple[int, Shipped] | None = None
        self._in_force: InForce | None = None

    def scan(self, quarantine: Quarantine) -> int:
        """Makes a version of each set of changes that is new; returns the latest version."""
        for news in self.source.news(self.log.marks, self._alive):
            self._take(news, quarantine)
        return self.log.tip

    def at(self, version: int) -> InForce:
        """What is in force at this version; builds only what has changed since the last one, where that is little."""
        if self._in_force is None or self._in_force.version != version:
            self._in_force = self._made(version)
        return self._in_force

    def _alive(self) -> pa.Table:
        alive, _ = self.log.changed(0, self.log.tip)
        return alive.select(["id", "subscriber", "condition"])

    def _take(self, news: News, quarantine: Quarantine) -> None:
        rows = few_parts(of_type(news.rows, self.named_type))
        parsed = rows.mapInArrow(_ParseChanges(self.named_type), CHANGES_SCHEMA).persist(StorageLevel.DISK_ONLY)
        try:
            quarantine(parsed.select(f.inline("rejected")), self.log.tip + 1)
            # What has changed since the last version, packed; the driver keeps the log that it goes into.
            found = list(parsed.select("payload", "removed").toLocalIterator())
        finally:
            parsed.unpersist()
        added = pa.concat_tables([WANTED_SCHEMA.empty_table(), *(read_payload(row.payload) for row in found)])
        self.log.append(Version(news.mark, write_payload(added), [id for row in found for id in row.removed]))

    def _made(self, version: int) -> InForce:
        if self._base is None or version - self._base[0] > VERSIONS_MAX:
            return self._rebased(version)
        since, base = self._base
        changed, ids = self.log.changed(since, version)
        held = base.holding()
        if len(ids) > max(CHANGED_MIN, CHANGED_SHARE * len(held.ids)):
            return self._rebased(version)
        gone = np.flatnonzero(pc.is_in(held.ids, value_set=ids).to_numpy(zero_copy_only=False))
        beside = ship(self.spark, [changed], self.event_type) if changed.num_rows else None
        return InForce(version, len(held.ids) - len(gone) + changed.num_rows, base, gone, beside)

    def _rebased(self, version: int) -> InForce:
        alive, _ = self.log.changed(0, version)
        shipped = ship(self.spark, [alive], self.event_type)
        if self._base is not None:
            self._base[1].shipment.recall()
        self._base = (version, shipped)
        # No earlier version is asked for again: batches go by ever later ones, and one that is run again by its own.
        self.log.fold(version, alive, self.source.still_needed)
        return InForce(version, alive.num_rows, shipped, np.zeros(0, np.int64), None)


class Version(msgspec.Struct, frozen=True):
    """One version: the mark of the source it reaches to, and what it adds and removes."""

    mark: str
    payload: bytes
    removed: list[str]


class Folded(msgspec.Struct, frozen=True):
    """All versions up to one: the marks that are still needed, and what is in force."""

    marks: list[str]
    payload: bytes


class VersionLog:
    """Versions on disk: `N.folded` is the state after N versions, `N.changes` what a later one changes.

    Every file is written as a whole or not at all, and the fold before what it makes
    superfluous is deleted: a crash leaves files too many, never too few.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.folded_at = max((int(file.stem) for file in folder.glob("*.folded")), default=0)
        self._drop_superfluous()
        self.tip = max((int(file.stem) for file in folder.glob("*.changes")), default=self.folded_at)
        self.marks = [*self._folded().marks, *(self._version(n).mark for n in range(self.folded_at + 1, self.tip + 1))]

    def append(self, version: Version) -> None:
        write_whole(self._file(self.tip + 1), msgspec.msgpack.encode(version))
        self.tip += 1
        self.marks.append(version.mark)

    def changed(self, since: int, version: int) -> tuple[pa.Table, pa.Array]:
        """What the versions after `since` have put in force and not taken back, and every id that they mention."""
        assert since == 0 or since >= self.folded_at, "folded versions are only asked for as a whole"
        alive: list[pa.Table] = [WANTED_SCHEMA.empty_table()]
        seen = pa.array([], pa.string())
        for number in range(version, max(since, self.folded_at), -1):  # The latest word on an id counts.
            entry = self._version(number)
            added = read_payload(entry.payload)
            alive.append(_not_in(added, seen))
            seen = pa.concat_arrays([seen, pa.array(entry.removed, pa.string()), *added.column("id").chunks]).unique()
        if since < self.folded_at:
            alive.append(_not_in(read_payload(self._folded().payload), seen))
        return pa.concat_tables(alive), seen

    def fold(self, version: int, alive: pa.Table, still_needed: Callable[[list[str]], list[str]]) -> None:
        """Makes one file of everything up to this version."""
        if version == self.folded_at:
            return
        later = self.tip - version
        kept = still_needed(self.marks[: len(self.marks) - later])
        folded = Folded(kept, write_payload(alive))
        write_whole(self.folder / f"{version:09}.folded", msgspec.msgpack.encode(folded))
        self.marks = kept + self.marks[len(self.marks) - later :]
        self.folded_at = version
        self._drop_superfluous()

    def _drop_superfluous(self) -> None:
        for file in self.folder.glob("[0-9]*.*"):
            if int(file.stem) < self.folded_at or (int(file.stem) == self.folded_at and file.suffix == ".changes"):
                file.unlink()

    def _folded(self) -> Folded:
        if self.folded_at == 0:
            return Folded([], write_payload(WANTED_SCHEMA.empty_table()))
        file = self.folder / f"{self.folded_at:09}.folded"
        return msgspec.msgpack.decode(file.read_bytes(), type=Folded)

    def _version(self, number: int) -> Version:
        return msgspec.msgpack.decode(self._file(number).read_bytes(), type=Version)

    def _file(self, number: int) -> Path:
        return self.folder / f"{number:09}.changes"


def _not_in(rows: pa.Table, ids: pa.Array) -> pa.Table:
    return rows.filter(pc.invert(pc.is_in(rows.column("id"), value_set=ids)))


class _ParseChanges:
    """mapInArrow: changes → good subscriptions as one payload, ids to remove, and what cannot be used."""

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
