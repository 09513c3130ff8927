"""Columns of every type of Spark's, carried into Delta and Iceberg tables, or refused by name."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as t

from tests.pipeline.tables.given_tables import all_rows, catalog_in
from tidings.errors import InputError
from tidings.pipeline.arrow_types import to_arrow_schema
from tidings.pipeline.connectors.delta import DeltaReader, DeltaWriter
from tidings.pipeline.connectors.iceberg import IcebergReader, IcebergWriter

AT = dt.datetime(2026, 3, 1, 12, 30, 0, 123456, dt.UTC)
WIDE = Decimal("12345678901234567890123456789012345.678")
KEPT: dict[str, tuple[t.DataType, Any]] = {
    "tiny": (t.ByteType(), -7),
    "small": (t.ShortType(), 300),
    "int": (t.IntegerType(), 1 << 30),
    "long": (t.LongType(), 1 << 60),
    "real": (t.FloatType(), 1.5),
    "double": (t.DoubleType(), 0.1),
    "decimal": (t.DecimalType(38, 3), WIDE),
    "date": (t.DateType(), AT.date()),
    "zoned": (t.TimestampType(), AT),
    "naive": (t.TimestampNTZType(), AT.replace(tzinfo=None)),
    "flag": (t.BooleanType(), True),
    "bytes": (t.BinaryType(), b"\xff\0"),
    "list": (t.ArrayType(t.ShortType()), [1, None, 3]),
    "map": (t.MapType(t.StringType(), t.DecimalType(5, 2)), [("k", Decimal("1.25"))]),
    "nested": (t.StructType([t.StructField("a", t.StructType([t.StructField("b", t.ByteType())]))]), {"a": {"b": 1}}),
}
TIME = t.TimeType(6)


def schema_of(kinds: dict[str, t.DataType]) -> t.StructType:
    return t.StructType([t.StructField(name, kind) for name, kind in {"event_id": t.LongType(), **kinds}.items()])


def put(writer: DeltaWriter | IcebergWriter, schema: t.StructType, row: dict[str, Any], batch: int) -> None:
    rows = pa.RecordBatch.from_pylist([{"event_id": batch, **row}], to_arrow_schema(schema))
    writer.commit(list(writer.open_for(schema)([rows])), batch=("p", batch))


@pytest.mark.parametrize("format", ["delta", "iceberg"])
def test_columns_of_every_type_are_kept_in_a_new_table_and_in_one_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    catalog_in(tmp_path, monkeypatch)
    schema, row = (
        schema_of({name: kind for name, (kind, _) in KEPT.items()}),
        {n: value for n, (_, value) in KEPT.items()},
    )
    if format == "iceberg":  # Delta has no times of day.
        schema, row = schema.add("time", TIME), row | {"time": AT.time()}
    for batch in range(2):
        put(
            DeltaWriter(str(tmp_path / "out")) if format == "delta" else IcebergWriter("lake.db.out"),
            schema,
            row,
            batch,
        )
    table = DeltaReader(str(tmp_path / "out")) if format == "delta" else IcebergReader("lake.db.out")
    assert all_rows(table) == [{"event_id": 0, **row}, {"event_id": 1, **row}]


REFUSED = [
    ("delta", TIME), ("delta", t.ArrayType(TIME)), ("delta", t.DayTimeIntervalType()),
    ("iceberg", t.DayTimeIntervalType()), ("iceberg", t.NullType()),
]  # fmt: skip


@pytest.mark.parametrize(("format", "kind"), REFUSED)
def test_a_type_that_a_format_does_not_have_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str, kind: t.DataType
) -> None:
    catalog_in(tmp_path, monkeypatch)
    writer = DeltaWriter(str(tmp_path / "out")) if format == "delta" else IcebergWriter("lake.db.out")
    with pytest.raises(InputError, match=r"column 'odd' has the type .*, and (Delta|Iceberg) has no type for it"):
        writer.open_for(schema_of({"odd": kind}))
    assert writer.is_empty()
