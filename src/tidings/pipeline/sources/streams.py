"""The event source of a running pipeline: a stream of records, whatever they are stored in.

There are two kinds of streams. **Lines** are JSON documents, as bytes in a column `value`, which the workers parse and
validate. **Rows** have typed columns `_0`, `_1`, … by the attributes' positions, with the whole record as
JSON beside them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.errors import AnalysisException
from pyspark.sql import functions as f

from tidings.errors import InputError
from tidings.events import Attribute, EventType, ValueType
from tidings.pipeline.config import Pipeline, plain_options
from tidings.pipeline.connectors.table_format import check_not_a_table, open_table, store_options
from tidings.pipeline.sources.arrow_files import beyond_spark
from tidings.pipeline.sources.demo import demo_stream
from tidings.pipeline.sources.files import (
    CORRUPT,
    UNREADABLE,
    data_files,
    id_attribute,
    spark_schema,
    type_of_table,
    with_id,
)
from tidings.pipeline.storage import Location
from tidings.pipeline.tables import JSON_TIMES, attribute_column_or_null, quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidings.pipeline.config import EventsFrom
    from tidings.pipeline.connectors.schema_registry import MessageDecoder


@dataclass(frozen=True, slots=True)
class Source:
    """A stream of records, the event type that they should have, and the attribute that is the id.

    `is_lines` says whether records are JSON documents in one column `value`, or typed columns `_0`, `_1`, …
    With `count`, the stream ends after so many events. `decode` turns messages of a topic into JSON documents.
    """

    stream: Any
    whole_type: EventType
    id: str
    is_lines: bool
    count: int = 0
    decode: MessageDecoder | None = None

    def __getstate__(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in _SENT)  # What workers need: a stream cannot be pickled.

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        for name, value in zip(_SENT, state):
            object.__setattr__(self, name, value)


_SENT = ("whole_type", "id", "is_lines", "count", "decode")


def open_source(spark: SparkSession, pipeline: Pipeline) -> Source:
    """The stream of events that a pipeline reads. Raises InputError."""
    declared = pipeline.event_type()
    match pipeline.events.format:
        case "json" | "kafka":
            assert declared is not None, "the configuration is checked"
            id = id_attribute(declared, pipeline.events.id)
            return Source(
                _lines(spark, pipeline), with_id(declared, id), id.name, True, decode=_decoder(pipeline.events)
            )
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
        case "delta" | "iceberg":
            return _table(spark, pipeline, declared)


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
    check_folder(pipeline.events.path)
    id = id_attribute(declared, pipeline.events.id)
    whole = with_id(declared, id)
    reader = spark.readStream.option("maxFilesPerTrigger", pipeline.events.files_per_batch).option("header", True)
    schema = spark_schema(whole).add(CORRUPT, "string")
    stream = reader.schema(schema).option("columnNameOfCorruptRecord", CORRUPT).csv(pipeline.events.path)
    return Source(_by_position(stream, whole), whole, id.name, False)


def _parquet(spark: SparkSession, pipeline: Pipeline, declared: EventType | None) -> Source:
    path = pipeline.events.path
    check_folder(path)
    check_not_a_table(path, "events.path", spark)
    try:
        table = spark.read.parquet(path)
    except AnalysisException as wrong:
        if not any(sign in str(wrong) for sign in UNREADABLE):
            raise
        where = Location.of(path)
        raise beyond_spark(path, f"{where}/{next(iter(data_files(path)))}" if where.is_local else None) from None
    declared = declared or type_of_table(table, path)
    id = id_attribute(declared, pipeline.events.id)
    whole = with_id(declared, id)
    reader = spark.readStream.option("maxFilesPerTrigger", pipeline.events.files_per_batch)
    return Source(_by_position(reader.schema(table.schema).parquet(path), whole), whole, id.name, False)


def _table(spark: SparkSession, pipeline: Pipeline, declared: EventType | None) -> Source:
    from tidings.pipeline.sources.table_stream import read_stream

    events = pipeline.events
    name = events.table_name()
    table = open_table(name, store_options(spark, name))
    declared = declared or type_of_table(spark.createDataFrame([], table.schema()), str(name))
    id = id_attribute(declared, events.id)
    whole = with_id(declared, id)
    stream = read_stream(
        spark, str(name), table.options, files_per_batch=events.files_per_batch, on_change=events.on_change
    )
    return Source(_by_position(stream, whole), whole, id.name, False)


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

        options = _options(events)
        return read_topic(spark, events.servers, events.topic, events.records_per_batch, options)
    check_folder(events.path)
    lines = spark.readStream.option("maxFilesPerTrigger", events.files_per_batch).text(events.path)
    return lines.where("length(trim(value)) > 0").select(f.col("value").cast("binary"))


def _options(events: EventsFrom) -> dict[str, str]:
    from tidings.pipeline.connectors.kafka import resolved

    return resolved(plain_options(events.options), "events.options")


def _decoder(events: EventsFrom) -> MessageDecoder | None:
    if events.format != "kafka":
        return None
    from tidings.pipeline.connectors.schema_registry import decoder_of

    decoder = decoder_of(events.value, _options(events))
    if decoder is not None:
        decoder.check()
    return decoder


def _by_position(stream: DataFrame, whole: EventType) -> DataFrame:
    """Typed columns by the attributes' positions, what Spark could not read, and the whole record as JSON."""
    columns = [attribute_column_or_null(stream, attribute.name).alias(f"_{at}") for at, attribute in enumerate(whole)]
    kept = [quoted(name) for name in stream.columns if name != CORRUPT]
    corrupt = f.col(CORRUPT) if CORRUPT in stream.columns else f.lit(None).cast("string")
    record = f.to_json(f.struct(*kept), JSON_TIMES).alias("_record")
    return stream.select(*columns, corrupt.alias("_corrupt"), record)


def check_folder(path: str) -> None:
    """Raises InputError for a local path that is no folder, and for one that Spark's streams take for a pattern.

    Escaped, a pattern reads files of a batch twice.
    """
    where = Location.of(path)
    if where.literal != where.text:
        raise InputError(f"events.path: Spark's streams take * ? [ ] {{ }} and \\ for a pattern; rename {path!r}")
    if where.is_local and not Path(where.text).is_dir():
        raise InputError(f"events.path: expected a folder that files are put into, got {path!r}")


def check_names(path: str, spark: SparkSession) -> None:
    """Raises InputError for a file whose name is a pattern: of several in a batch, Spark reads each several times."""
    for name in data_files(path, spark):
        if Location(name).literal != name:
            raise InputError(f"{path}/{name}: Spark's streams take * ? [ ] {{ }} and \\ for a pattern; rename the file")
