"""Where a running pipeline's events come from: records as a stream, whatever they are stored in.

A stream is one of two kinds. **Lines** are JSON documents, as bytes in a column `value`, which
the workers read and check. **Rows** are typed columns `_0`, `_1`, … by the attributes'
positions, with the whole record as JSON beside them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as f

from tidings.errors import InputError
from tidings.events import Attribute, EventType, ValueType
from tidings.pipeline.config import Pipeline
from tidings.pipeline.sources.demo import demo_stream
from tidings.pipeline.sources.files import CORRUPT, id_attribute, spark_schema, type_of_table, with_id
from tidings.pipeline.tables import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class Source:
    """A stream of records, what they should be, and which attribute is the id.

    `is_lines` tells JSON documents in one column `value` from typed columns `_0`, `_1`, …
    With `count`, the stream has nothing new to say after so many events.
    """

    stream: Any
    whole_type: EventType
    id: str
    is_lines: bool
    count: int = 0

    def __getstate__(self) -> tuple[Any, ...]:
        return self.whole_type, self.id, self.is_lines, self.count  # What workers need; a stream does not travel.

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        for name, value in zip(("whole_type", "id", "is_lines", "count"), state):
            object.__setattr__(self, name, value)


def open_source(spark: SparkSession, pipeline: Pipeline) -> Source:
    """The stream of events that a pipeline reads. Raises InputError."""
    declared = pipeline.event_type()
    match pipeline.events.format:
        case "json" | "kafka":
            assert declared is not None, "the configuration is checked"
            id = id_attribute(declared, pipeline.events.id)
            return Source(_lines(spark, pipeline), with_id(declared, id), id.name, True)
        case "frames":
            raise InputError("secure: needed with events of format 'frames'")
        case "demo":
            assert declared is not None, "the configuration is checked"
            return _demo(spark, pipeline, declared)
        case "csv":
            assert declared is not None, "the configuration is checked"
            return _csv(spark, pipeline, declared)
        case "parquet":
            return _parquet(spark, pipeline, declared)
        case "tidings":
            return _live(spark, pipeline)


def _demo(spark: SparkSession, pipeline: Pipeline, declared: EventType) -> Source:
    events, trigger = pipeline.events, pipeline.trigger
    id = id_attribute(declared, events.id)
    whole = with_id(declared, id)
    per_batch = events.records_per_batch if trigger.until_empty else max(1, round(events.rate * trigger.every_s))
    stream = demo_stream(
        spark, whole, id.name,
        seed=events.seed, per_batch=min(per_batch, events.records_per_batch, events.count or per_batch),
        count=events.count, values=events.values,
    )  # fmt: skip
    return Source(_by_position(stream, whole), whole, id.name, False, events.count)


def _csv(spark: SparkSession, pipeline: Pipeline, declared: EventType) -> Source:
    _check_folder(pipeline.events.path)
    id = id_attribute(declared, pipeline.events.id)
    whole = with_id(declared, id)
    reader = spark.readStream.option("maxFilesPerTrigger", pipeline.events.files_per_batch).option("header", True)
    schema = spark_schema(whole).add(CORRUPT, "string")
    stream = reader.schema(schema).option("columnNameOfCorruptRecord", CORRUPT).csv(pipeline.events.path)
    return Source(_by_position(stream, whole), whole, id.name, False)


def _parquet(spark: SparkSession, pipeline: Pipeline, declared: EventType | None) -> Source:
    path = pipeline.events.path
    _check_folder(path)
    still = spark.read.parquet(path)
    declared = declared or type_of_table(still, path)
    id = id_attribute(declared, pipeline.events.id)
    whole = with_id(declared, id)
    reader = spark.readStream.option("maxFilesPerTrigger", pipeline.events.files_per_batch)
    return Source(_by_position(reader.schema(still.schema).parquet(path), whole), whole, id.name, False)


def _live(spark: SparkSession, pipeline: Pipeline) -> Source:
    from tidings.pipeline.connectors.spark_datasource import ID, read_live, type_at

    events = pipeline.events
    id = Attribute(events.id or ID, ValueType.STRING, True)
    whole = with_id(type_at(events.client, events.type_name), id)
    return Source(_by_position(read_live(spark, events, id.name), whole), whole, id.name, False)


def _lines(spark: SparkSession, pipeline: Pipeline) -> DataFrame:
    events = pipeline.events
    if events.format == "kafka":
        from tidings.pipeline.connectors.kafka import read_topic

        return read_topic(spark, events.servers, events.topic, events.records_per_batch)
    _check_folder(events.path)
    lines = spark.readStream.option("maxFilesPerTrigger", events.files_per_batch).text(events.path)
    return lines.where("length(trim(value)) > 0").select(f.col("value").cast("binary"))


def _by_position(stream: DataFrame, whole: EventType) -> DataFrame:
    """Typed columns by the attributes' positions, what Spark could not read, and the whole record as JSON."""
    columns = [_column(stream, attribute.name).alias(f"_{at}") for at, attribute in enumerate(whole)]
    kept = [quoted(name) for name in stream.columns if name != CORRUPT]
    corrupt = f.col(CORRUPT) if CORRUPT in stream.columns else f.lit(None).cast("string")
    return stream.select(*columns, corrupt.alias("_corrupt"), f.to_json(f.struct(*kept)).alias("_record"))


def _column(stream: DataFrame, name: str) -> Any:
    if name in stream.columns:
        return f.col(quoted(name))
    top, _, _ = name.partition(".")
    if top not in stream.columns:
        return f.lit(None)
    return f.col(".".join(quoted(part) for part in name.split(".")))


def _check_folder(path: str) -> None:
    if "://" not in path and not Path(path).is_dir():
        raise InputError(f"events.path: expected a folder that files are put into, got {path!r}")
