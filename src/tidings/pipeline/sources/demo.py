"""Generated events, for trying out a pipeline: a pure function of a seed and a number, computed by Spark.

The n-th event of a seed is the same in every run, on every machine and after every restart. Texts are words, numbers
are between 0 and 100, and timestamps are one second apart. `[events.values]` in the pipeline's file gives
an attribute other values to choose from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from pyspark.sql import functions as f

from tidings.errors import InputError
from tidings.events import Attribute, EventType, ValueType

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

WORDS = ("amber", "brook", "cedar", "delta", "ember", "flint", "grove", "heath", "islet", "jetty")
FIRST_MOMENT_S = 1_767_225_600  # 2026-01-01T00:00:00Z
FIRST_DAY = "2026-01-01"
RANGE = 100
PARTITIONS_MAX = 8  # Of a batch; one task generates each.

Values: TypeAlias = Mapping[str, Sequence[str | int | float | bool]]


def demo_stream(
    spark: SparkSession, event_type: EventType, id: str, *, seed: int, per_batch: int, count: int, values: Values
) -> DataFrame:
    """Columns of the event type, `per_batch` rows at a time, `count` rows in all, or without end if that is 0."""
    unknown = [name for name in values if name not in event_type]
    if unknown:
        raise InputError(f"events.values: the event type has no attribute {unknown[0]!r}")
    reader = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", per_batch)
    numbers = (
        reader.option("numPartitions", min(PARTITIONS_MAX, per_batch)).load().select(f.col("value").alias("number"))
    )
    if count:
        numbers = numbers.where(f.col("number") < count)
    return numbers.select(*(_column(a, id, seed, values.get(a.name, ())).alias(a.name) for a in event_type))


def _column(attribute: Attribute, id: str, seed: int, choices: Sequence[str | int | float | bool]) -> Column:
    if attribute.name == id:
        return _id(attribute)
    draw = f.xxhash64(f.lit(seed), f.lit(attribute.name), f.col("number"))
    if choices:
        _check(attribute, choices)
        return f.element_at(f.array(*map(f.lit, choices)), (f.pmod(draw, f.lit(len(choices))) + 1).cast("int"))
    match attribute.type:
        case ValueType.STRING:
            return f.element_at(f.array(*map(f.lit, WORDS)), (f.pmod(draw, f.lit(len(WORDS))) + 1).cast("int"))
        case ValueType.INT:
            return f.pmod(draw, f.lit(RANGE))
        case ValueType.DOUBLE:
            return f.pmod(draw, f.lit(1_000 * RANGE)) / 1_000
        case ValueType.BOOL:
            return f.pmod(draw, f.lit(2)) == 0
        case ValueType.TIMESTAMP:
            return f.timestamp_seconds(f.col("number") + FIRST_MOMENT_S)
        case ValueType.BYTES:
            return f.unhex(f.hex(draw))
        case ValueType.DATE:
            return f.date_add(f.to_date(f.lit(FIRST_DAY)), f.pmod(draw, f.lit(RANGE)).cast("int"))
        case kind if kind.is_decimal:
            digits = f.pmod(draw, f.lit(10 ** min(kind.precision, 4))).cast(f"decimal({kind.precision},0)")
            return (digits / f.lit(10**kind.scale)).cast(str(kind))
    raise InputError(
        f"the demo makes no {attribute.type}, which {attribute.name!r} is; say what it may be in events.values"
    )


def _id(attribute: Attribute) -> Column:
    match attribute.type:
        case ValueType.STRING:
            return f.format_string("demo-%09d", f.col("number"))
        case ValueType.INT:
            return f.col("number")
    raise InputError(f"the demo makes ids that are texts or ints; {attribute.name!r} is {attribute.type.value}")


def _check(attribute: Attribute, choices: Sequence[str | int | float | bool]) -> None:
    allowed = _CHOICES.get(attribute.type)
    wrong = [choice for choice in choices if allowed is None or type(choice) not in allowed]
    if wrong:
        raise InputError(
            f"events.values.{attribute.name}: expected values of type {attribute.type.value}, got {wrong[0]!r}"
        )


_CHOICES: Mapping[ValueType, tuple[type, ...]] = {
    ValueType.STRING: (str,),
    ValueType.INT: (int,),
    ValueType.DOUBLE: (float, int),
    ValueType.BOOL: (bool,),
}
