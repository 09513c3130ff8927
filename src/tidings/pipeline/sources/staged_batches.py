"""Batches of a stream as files, for a client of Spark Connect, whose server cannot call it with each batch.

Spark's own stream writes the records of each batch to Parquet files in the checkpoint, and a log of them. The client
takes the batches from there, in order, by the same numbers:

    staged/000000003/part-….parquet     records, by the epoch of the run that staged them
    staged/000000003/_spark_metadata/7  the files of batch 7, written by Spark when all of them are there

Only the client decides that a batch is done. A run that finds batches which an earlier one staged, and did not finish,
stages them anew: `BatchLog.spark_checkpoint` takes Spark's checkpoint back to the last batch that is done. So nobody
reads what a stream of an earlier run still writes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidings.errors import InputError
from tidings.pipeline.state.batch_log import STAGED
from tidings.pipeline.storage import Location, Storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from tidings.pipeline.config import Pipeline

AHEAD_MAX = 20  # Batches that wait as files; then the stream is stopped until they are done.
POLL_S = 0.5

_FORMATS = {
    "events": ("json", "csv", "parquet", "delta", "iceberg", "kafka"),
    "subscriptions": ("json", "table", "delta", "iceberg"),
    "deliveries": ("parquet", "json", "delta", "iceberg", "webhook"),
}
_LOG = "_spark_metadata"
_SETTINGS = {
    # A number of its own for each batch: the first one of an epoch has nothing before it to be merged with.
    "spark.sql.streaming.fileSink.log.compactInterval": str(2**31 - 1),
    # Spark forgets the offsets of older batches, but not those of batches that wait.
    "spark.sql.streaming.minBatchesToRetain": "10000",
}


def check_staged(pipeline: Pipeline) -> None:
    """Raises InputError for what needs the JVM of Spark's driver, or what nobody has tried over Spark Connect."""
    formats = {part: str(getattr(pipeline, part).format) for part in _FORMATS}
    for part, format in formats.items():
        if format not in _FORMATS[part]:
            raise InputError(
                f"{part}.format: {format!r} does not go over Spark Connect ({', '.join(_FORMATS[part])} do); "
                "start this pipeline by spark-submit, or with --master spark://…, yarn or k8s://…"
            )


class StagedBatches:
    """The batches of one stream, as this run stages and reads them."""

    def __init__(
        self, spark: SparkSession, stream: DataFrame, storage: Storage, epoch: int, checkpoint: str, name: str
    ) -> None:
        self.spark, self.stream, self.storage, self.name = spark, stream, storage, name
        self.checkpoint, self.folder = checkpoint, f"{STAGED}/{epoch:09}"

    def stage(self, poll: Callable[[], None], done: int) -> bool:
        """Stages what the source has now, up to about AHEAD_MAX batches after `done`. Returns whether that was all.

        Calls `poll` now and then, which may raise.
        """
        for key, value in _SETTINGS.items():
            self.spark.conf.set(key, value)
        writer = self.stream.writeStream.queryName(self.name).format("parquet").trigger(availableNow=True)
        writer = writer.option("checkpointLocation", self.checkpoint)
        query: StreamingQuery = writer.start(self.storage.root.below(self.folder).text)
        try:
            while not query.awaitTermination(POLL_S):  # type: ignore[arg-type]
                poll()
                if len(self.after(done)) >= AHEAD_MAX:
                    return False
            return True
        finally:
            query.stop()

    def after(self, done: int) -> list[int]:
        """The numbers of the batches after this one that are staged whole."""
        return sorted(number for number in self._numbers() if number > done)

    def records(self, number: int) -> DataFrame:
        """The records of a batch."""
        files = [entry for entry in self._entries(number) if entry["size"]]
        if not files:
            return self.spark.createDataFrame([], self.stream.schema)
        paths = [Location.of_uri(entry["path"]).literal for entry in files]
        return self.spark.read.schema(self.stream.schema).parquet(*paths)

    def drop(self, number: int) -> None:
        """Deletes the files of a batch that is done, and the log of the one before: Spark reads the last one's name."""
        for entry in self._entries(number):
            where = Location.of_uri(entry["path"]).text
            self.storage.delete(where.removeprefix(f"{self.storage.root.text}/"))
        for older in self._numbers():
            if older < number:
                self.storage.delete(f"{self.folder}/{_LOG}/{older}")

    def _entries(self, number: int) -> Iterator[dict[str, Any]]:
        content = self.storage.read(f"{self.folder}/{_LOG}/{number}") or b""
        return (json.loads(line) for line in content.decode().split("\n")[1:] if line)

    def _numbers(self) -> list[int]:
        names = (Path(file.name).name for file in self.storage.list(f"{self.folder}/{_LOG}"))
        return [int(name) for name in names if name.isdigit()]
