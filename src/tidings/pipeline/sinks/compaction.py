"""Merges small files of committed deliveries into larger ones (`tidings compact`), while a pipeline may be running.

    FOLDER/_compaction/000000003/part-….parquet   the merged files, until they move to their places
    FOLDER/_compaction/000000003.json             the intent: which files stand for which from now on
    FOLDER/_commits/r000000003.json               the commit of this, as `CommitLog.replace` has them

The steps are those of a batch (`tidings.pipeline.sinks.committed_folder`): write, intent, publish, commit, delete the
old files, clean up. Killed before the intent, nothing has happened. Killed after it, the next compaction first
finishes this one. An intent is put if absent, so of two compactions one waits for nobody: it helps the other and then
plans anew.

Readers by the commit records have every delivery once at every moment. Whoever lists the folder instead sees rows of
merged files twice from publishing until the old files are deleted. Rows of several batches are in one file after
that, in the folder of the last of these batches.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.sql import functions as f

from tidings.errors import InputError, SetupError
from tidings.pipeline.connectors.table_format import Compacted
from tidings.pipeline.sinks.committed_folder import Commit, CommitLog, DataFile, read_commit
from tidings.pipeline.sinks.files import committed_files, folder_of
from tidings.pipeline.storage import Location, Storage, storage_at

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FOLDER = "_compaction"
FILE_BYTES = 128 << 20  # What engines like to read in one task.
ROUNDS_MAX = 20  # Compactions by others that are finished first.


def compact_deliveries(spark: SparkSession, path: str, *, file_bytes: int = FILE_BYTES) -> Compacted:
    """Merges files that are smaller than half of `file_bytes`. Raises InputError if the folder has no commit records."""
    check_deliveries(path, spark)
    folder = Compaction(spark, storage_at(path, spark), file_bytes)
    before = len(folder.log.files())
    folder.run()
    return Compacted(before, len(folder.log.files()))


def check_deliveries(path: str, spark: SparkSession | None = None) -> None:
    """Raises InputError for a folder without commit records. Without Spark, only local ones are looked at."""
    if spark is not None or Location.of(path).is_local:
        committed_files(path, spark)


class Compaction:
    """A compaction of one folder, step by step."""

    def __init__(self, spark: SparkSession, storage: Storage, file_bytes: int = FILE_BYTES) -> None:
        self.spark, self.storage, self.log = spark, storage, CommitLog(storage)
        self._file_bytes = file_bytes

    def run(self) -> None:
        for _ in range(ROUNDS_MAX):
            self.finish_others()
            files = self._small_files()
            if len(files) < 2:
                return
            intent = self.write(files)
            if self.storage.put_if_absent(_intent(intent.number), msgspec.json.encode(intent)):
                self.finish(intent)
                return
        raise SetupError(f"{self.storage.root}: other processes are compacting it again and again; try again later")

    def finish_others(self) -> None:
        """Finishes what was begun and not finished, by a process that was killed or is still at it."""
        for file in self.storage.list(FOLDER):
            if file.name.endswith(".json") and file.name.count("/") == 1:
                intent = read_commit(self.storage, file.name)
                if intent is not None and not intent.attempt.startswith(f"{FOLDER}/"):  # It is deleted at the end.
                    raise InputError(f"{self.storage.root.below(file.name)} has no attempt of a compaction")
                if intent is not None:
                    self.finish(intent)

    def write(self, files: Sequence[DataFile]) -> Commit:
        """Writes the rows of these files to as few as will do. Nobody sees the new files yet."""
        number = 1 + max((commit.number for commit in self.log.commits() if commit.removed), default=0)
        attempt = f"{FOLDER}/{number:09}-{uuid.uuid4().hex}"
        rows = self._rows(files)
        self._arranged(rows, files).save(self.storage.root.below(attempt).text)
        written = [file for file in self.storage.list(attempt) if not file.name.rpartition("/")[2].startswith("_")]
        names = [self.storage.root.below(file.name).text for file in written]
        if self._read(names).count() != rows.count():
            raise SetupError(f"{self.storage.root} does not show all files that were written to it; try again later")
        last = max(file.name.partition("/")[0] for file in files)  # batch=000000012
        ending = ".json" if _is_json(files[0].name) else ".parquet"  # Spark has its own for lines of text.
        inner = [f"{Path(file.name.removeprefix(f'{attempt}/')).with_suffix('')}{ending}" for file in written]
        moved = [DataFile(f"{last}/{name}", file.size) for name, file in zip(inner, written)]
        return Commit(number=number, attempt=attempt, files=moved, removed=sorted(file.name for file in files))

    def finish(self, intent: Commit) -> None:
        """From an intent to the end; each step may have been done before, or be done by another process right now."""
        committed = self.log.replacement(intent.number)
        if committed is None:
            self._publish(intent)
            committed = self.log.add_replacement(intent)
        if committed.attempt == intent.attempt:  # Else the intent came too late, and has done nothing.
            for name in committed.removed:
                self.storage.delete(name)
        self.storage.delete(_intent(intent.number))
        self.storage.delete(intent.attempt)

    def _publish(self, intent: Commit) -> None:
        for file in intent.files:
            inner = file.name.partition("/")[2]
            source = f"{inner.removesuffix('.json')}.txt" if _is_json(inner) else inner
            try:
                self.storage.move(f"{intent.attempt}/{source}", file.name)
            except SetupError:
                if self.log.replacement(intent.number) is None and not self._is_there(file):
                    raise

    def _is_there(self, file: DataFile) -> bool:
        return file in [DataFile(each.name, each.size) for each in self.storage.list(file.name.rpartition("/")[0])]

    def _small_files(self) -> list[DataFile]:
        return [file for file in self.log.files() if file.bytes < self._file_bytes // 2]

    def _rows(self, files: Sequence[DataFile]) -> DataFrame:
        return self._read([self.storage.root.below(file.name).text for file in files])

    def _read(self, names: list[str]) -> DataFrame:
        """By name and not by folder, so that Spark takes no column from a folder's name."""
        paths = [Location(name).literal for name in names]
        if names[0].endswith((".json", ".txt")):
            return self.spark.read.option("recursiveFileLookup", True).text(paths)
        return self.spark.read.option("mergeSchema", True).option("recursiveFileLookup", True).parquet(*paths)

    def _arranged(self, rows: DataFrame, files: Sequence[DataFile]) -> Any:
        """Sorted by subscriber, in files of the right size, and in folders by subscriber if they were in such."""
        count = -(-sum(file.bytes for file in files) // self._file_bytes)
        is_foldered = any("/to=" in file.name for file in files)
        if _is_json(files[0].name):
            lines = rows.coalesce(count).withColumn("to", folder_of(f.get_json_object("value", "$.subscriber")))
            return (
                lines.write.partitionBy("to").format("text") if is_foldered else lines.drop("to").write.format("text")
            )
        spread = rows.coalesce(1) if count == 1 else rows.repartitionByRange(count, "subscriber", "delivery_id")
        arranged = spread.sortWithinPartitions("subscriber")
        if is_foldered:
            return arranged.withColumn("to", folder_of(f.col("subscriber"))).write.partitionBy("to").format("parquet")
        return arranged.write.format("parquet")


def _is_json(name: str) -> bool:
    return name.endswith(".json")


def _intent(number: int) -> str:
    return f"{FOLDER}/{number:09}.json"
