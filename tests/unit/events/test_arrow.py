"""Arrow: schemas taken over, tables brought into the form of an event type, events in and out."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tests.given import Plate, Quake, a_quake, a_sighting
from tidings.errors import EventError, EventTypeError
from tidings.events import (
    Event,
    EventType,
    HeaderColumns,
    Required,
    Timestamp,
    arrow_schema,
    conform,
    from_batch,
    nest,
    to_batch,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MICROS = pa.timestamp("us", "UTC")


def _one(column: pa.Array, declared: object) -> pa.Array:
    """The column brought into the form of the one attribute `x`."""
    return conform(pa.record_batch({"x": column}), EventType("T", x=declared)).column("x")


# ── Schemas ──


def test_an_arrow_schema_becomes_an_event_type_and_back() -> None:
    assert EventType.from_arrow("Numberplate", arrow_schema(Plate)) == Plate
    assert EventType.from_arrow("Numberplate", arrow_schema(Plate, nested=True)) == Plate
    assert arrow_schema(Plate, nested=True).field("position").type == pa.struct(
        {"lat": pa.float64(), "lon": pa.float64()}
    )


def test_a_field_is_required_only_if_its_parents_are() -> None:
    inner = pa.field("x", pa.int8(), nullable=False)
    loose, tight = pa.field("a", pa.struct([inner])), pa.field("b", pa.struct([inner]), nullable=False)
    assert [a.required for a in EventType.from_arrow("T", pa.schema([loose, tight]))] == [False, True]


@pytest.mark.parametrize(
    "other",
    [
        pa.decimal256(60, 2),
        pa.duration("s"),
        pa.month_day_nano_interval(),
        pa.list_(pa.list_(pa.string())),
        pa.list_(pa.struct({"x": pa.int8()})),
        pa.map_(pa.date32(), pa.int8()),
    ],
)
def test_a_column_no_value_type_holds_is_refused_or_left_out(other: pa.DataType) -> None:
    schema = pa.schema({"a": pa.struct({"odd": other, "even": pa.int8()})})
    with pytest.raises(EventTypeError, match=r"T: attribute 'a\.odd' is a .*; cast it, for example `"):
        EventType.from_arrow("T", schema)
    assert EventType.from_arrow("T", schema, leave_out_others=True) == EventType("T", {"a.even": int})


def test_what_is_no_schema_is_refused() -> None:
    with pytest.raises(EventTypeError, match="expected an Arrow schema, got dict"):
        EventType.from_arrow("T", {"a": int})
    with pytest.raises(EventTypeError, match="expected a Spark StructType, got dict"):
        EventType.from_spark("T", {"a": int})


def test_a_spark_schema_becomes_the_same_event_type(spark: SparkSession) -> None:
    ddl = """plate STRING NOT NULL, area STRING, speed FLOAT, lanes TINYINT, stolen BOOLEAN, seen_at TIMESTAMP,
             photo BINARY, position STRUCT<lat: DOUBLE, lon: DOUBLE NOT NULL>"""
    frame = spark.createDataFrame([], ddl)
    assert EventType.from_spark("Numberplate", frame.schema) == Plate


def test_spark_types_that_are_no_columns_of_their_own_are_taken_as_what_they_hold() -> None:
    from pyspark.sql.types import CharType, NullType, StructField, StructType, TimestampNTZType, VarcharType

    kinds = {"a": VarcharType(4), "b": CharType(2), "c": TimestampNTZType(), "d": NullType()}
    schema = StructType([StructField(name, kind) for name, kind in kinds.items()])
    assert str(EventType.from_spark("T", schema)) == "T(a string, b string, c timestamp, d null)"


def test_a_spark_column_no_value_type_holds_is_refused_or_left_out(spark: SparkSession) -> None:
    frame = spark.sql(
        "SELECT 1 AS a, parse_json('{}') AS b, INTERVAL '1' DAY AS c, array(array(1)) AS d, 'x' COLLATE UTF8_LCASE AS e"
    )
    assert EventType.from_spark("T", frame.schema, leave_out_others=True) == EventType("T", a=Required(int))
    for column, says in (
        ("b", "a variant; .*b:price"),
        ("c", "an interval day"),
        ("d", "an array"),
        ("e", "a string with"),
    ):
        with pytest.raises(EventTypeError, match=f"attribute '{column}' is {says}"):
            EventType.from_spark("T", frame.select(column).schema)


def test_spark_and_arrow_agree_on_decimals_dates_times_arrays_and_maps(spark: SparkSession) -> None:
    ddl = "a DECIMAL(12,2), b DATE, c TIME(6), d ARRAY<DECIMAL(38,10)>, e MAP<STRING, DOUBLE>, f ARRAY<DATE>"
    frame = spark.createDataFrame([], ddl)
    names = {"a": "decimal(12,2)", "b": "date", "c": "time", "d": "array<decimal(38,10)>", "e": "map<string,double>"}
    declared = EventType("T", {**names, "f": "array<date>"})
    assert EventType.from_spark("T", frame.schema) == declared
    assert EventType.from_arrow("T", arrow_schema(declared)) == declared


# ── Casts ──


@pytest.mark.parametrize(
    ("column", "declared", "values"),
    [
        (pa.array([-128, None], pa.int8()), int, [-128, None]),
        (pa.array([2**63 - 1], pa.uint64()), int, [2**63 - 1]),
        (pa.array([1.5], pa.float32()), float, [1.5]),
        (pa.array([1.5], pa.float16()), float, [1.5]),
        (pa.array([2**60, -(2**63), None], pa.int64()), float, [2.0**60, -(2.0**63), None]),
        (pa.array([2**63], pa.uint64()), float, [2.0**63]),
        (pa.array(["a", None], pa.large_string()), str, ["a", None]),
        (pa.array(["a\0𝄞"], pa.string_view()), str, ["a\0𝄞"]),
        (pa.array(["a", None, "a"]).dictionary_encode(), str, ["a", None, "a"]),
        (pa.array([7, 7]).dictionary_encode(), int, [7, 7]),
        (pa.array([b"a"], pa.large_binary()), bytes, [b"a"]),
        (pa.array([b"a"], pa.binary_view()), bytes, [b"a"]),
        (pa.array([b"ab"], pa.binary(2)), bytes, [b"ab"]),
        (pa.nulls(2), str, [None, None]),
        (pa.array([True]), bool, [True]),
    ],
)
def test_what_loses_nothing_is_cast(column: pa.Array, declared: object, values: list[object]) -> None:
    assert _one(column, declared).to_pylist() == values


@pytest.mark.parametrize(
    ("column", "micros"),
    [
        (pa.array([1], pa.timestamp("s")), 1_000_000),
        (pa.array([1], pa.timestamp("ms", "Asia/Tokyo")), 1_000),
        (pa.array([-3000], pa.timestamp("ns", "Europe/Paris")), -3),
        (pa.array([1999], pa.timestamp("ns")), 1),
        (pa.array([-1], pa.timestamp("ns", "UTC")), -1),
        (pa.array([2**63 - 1], pa.timestamp("us")), 2**63 - 1),
    ],
)
def test_a_timestamp_of_any_unit_and_zone_becomes_microseconds_utc(column: pa.Array, micros: int) -> None:
    cast = _one(column, Timestamp)
    assert cast.type == MICROS
    assert cast.cast(pa.int64()).to_pylist() == [micros]


@pytest.mark.parametrize(
    ("column", "declared", "says"),
    [
        (pa.array([0, 2**63], pa.uint64()), int, "expected int, got uint64 9223372036854775808 in row 1"),
        (pa.array([0, 2**53 + 1]), float, "expected double, got int64 9007199254740993 in row 1: no double holds"),
        (pa.array([2**63 - 1]), float, "no double holds"),
        (pa.array([2**64 - 1], pa.uint64()), float, "no double holds"),
        (pa.array([1.0]), int, "expected int, got double"),
        (pa.array([1]), str, "expected string, got int64"),
        (pa.array(["1"]), int, "expected int, got string"),
        (pa.array([b"a"]), str, "expected string, got binary"),
        (pa.array([1]), bool, "expected bool, got int64"),
        (pa.array([1]), Timestamp, "expected timestamp, got int64"),
        (pa.array([Decimal("1.5")]), float, "expected double, got decimal128"),
        (pa.array([0], pa.date32()), Timestamp, "expected timestamp, got date32"),
        (pa.array([0, 0, 2**62], pa.timestamp("s")), Timestamp, "in row 2: .* out of bounds"),
        (pa.array([{"y": 1}]), str, "expected string, got struct"),
    ],
)
def test_what_would_lose_something_is_refused_with_its_row(column: pa.Array, declared: object, says: str) -> None:
    with pytest.raises(EventError, match=f"T: attribute 'x': .*{says}"):
        _one(column, declared)


def _broken_texts(*raw: bytes) -> pa.Array:
    offsets, content = pa.array(raw, pa.binary()).buffers()[1:]
    return pa.Array.from_buffers(pa.string(), len(raw), [None, offsets, content])


def test_broken_utf8_is_refused_with_its_row_in_any_chunk() -> None:
    column = pa.chunked_array([pa.array(["ok"] * 5), _broken_texts(b"ok", b"\xff", b"\xed\xa0\x80")])
    with pytest.raises(EventError, match=r"attribute 'x': expected string, got string in row 6: .*UTF8"):
        conform(pa.table({"x": column}), EventType("T", x=str))


def test_a_damaged_column_is_refused_unread() -> None:
    sound = pa.record_batch({"x": ["abc", "def"]})
    wild = sound.serialize().to_pybytes()
    for lengths, says in (((3, 9**9), "the column is damaged"), ((9**9, 6), "got string in row 0: ")):
        offsets = b"".join(n.to_bytes(4, "little") for n in (0, *lengths))
        damaged = wild.replace(b"".join(n.to_bytes(4, "little") for n in (0, 3, 6)), offsets)
        batch = pa.ipc.read_record_batch(pa.py_buffer(damaged), sound.schema)
        with pytest.raises(EventError, match=f"attribute 'x': .*{says}"):
            conform(batch, EventType("T", x=str))


# ── Tables ──


def test_columns_come_out_flat_in_declared_order_and_others_are_ignored() -> None:
    table = pa.table(
        {
            "zzz": pa.array([[1], [2], [3]]),
            "position": pa.array([{"lon": 1.0, "lat": 2.0, "alt": "x"}, None, {"lat": 3.0}]),
            "plate": ["A", "B", "C"],
        }
    )
    flat = conform(table, Plate)
    assert flat.schema.equals(arrow_schema(Plate))
    assert flat.column("position.lat").to_pylist() == [2.0, None, 3.0]
    assert flat.column("plate").to_pylist() == ["A", "B", "C"]
    assert flat.column("speed").null_count == 3


def test_a_null_parent_makes_its_fields_null_also_in_a_slice() -> None:
    children = [pa.array([1, 2, 3])]
    parent = pa.StructArray.from_arrays(children, names=["b"], mask=pa.array([False, True, False]))
    batch = pa.record_batch({"a": parent}).slice(1)
    assert conform(batch, EventType("T", {"a.b": int})).column(0).to_pylist() == [None, 3]


@pytest.mark.parametrize("rows", [pa.table, pa.record_batch])
def test_a_missing_required_attribute_is_refused_with_its_row(rows: Any) -> None:
    with pytest.raises(EventError, match="Numberplate: attribute 'plate' is required and missing in row 2"):
        conform(rows({"plate": ["A", "B", None]}), Plate)
    with pytest.raises(EventError, match="Numberplate: attribute 'plate' is required and has no column"):
        conform(rows({"area": ["A"]}), Plate)


def test_an_attribute_in_two_columns_is_refused() -> None:
    twice = pa.table({"a.b": [1], "a": pa.array([{"b": 1}])})
    with pytest.raises(EventError, match=r"attribute 'a\.b': expected one column, got several"):
        conform(twice, EventType("T", {"a.b": int}))


def test_what_is_no_table_is_refused() -> None:
    with pytest.raises(EventError, match="expected an Arrow table or record batch, got list"):
        conform([{"plate": "A"}], Plate)


@pytest.mark.parametrize("rows", [pa.table, pa.record_batch])
def test_empty_tables_and_empty_types_keep_their_shape(rows: Any) -> None:
    assert conform(rows({"x": pa.array([], pa.int8())}), EventType("T", x=int)).num_rows == 0
    assert conform(rows({"x": [1, 2]}), EventType("T")).num_rows == 2
    empty = pa.schema({"a": pa.struct({"b": pa.int8()})}).empty_table()
    assert conform(empty, EventType("T", {"a.b": int})).num_rows == 0


def test_nesting_groups_interleaved_columns_and_refuses_a_column_that_is_also_a_parent() -> None:
    nested = nest(pa.table({"a.x": [1, None], "b": [3, 4], "a.y.z": ["s", None]}))
    assert nested.to_pylist() == [{"a": {"x": 1, "y": {"z": "s"}}, "b": 3}, {"a": None, "b": 4}]
    assert nest(pa.table({"a.x": [None], "a.y": [1]})).to_pylist() == [{"a": {"x": None, "y": 1}}]
    assert nest(pa.table({})).num_columns == nest(pa.record_batch({})).num_columns == 0
    with pytest.raises(EventError, match="both a column and the parent"):
        nest(pa.record_batch({"a": [1], "a.b": [2]}))


# ── Events ──


def test_events_become_a_batch_and_come_back() -> None:
    batch = to_batch([a_sighting, a_sighting], Plate)
    assert batch.schema.names[:4] == ["event_id", "event_source", "event_time", "plate"]
    assert from_batch(nest(batch), Plate) == [a_sighting, a_sighting]
    assert from_batch(pa.Table.from_batches([batch]), Plate) == [a_sighting, a_sighting]


def test_header_columns_may_have_other_names_and_must_where_an_attribute_has_theirs() -> None:
    own = EventType("Own", event_id=int)
    event = Event.of(own, {"event_id": 5}, id="1", source="s", time=0)
    with pytest.raises(EventError, match="choose other names for the header columns"):
        to_batch([event], own)
    header = HeaderColumns(id="key")
    assert from_batch(to_batch([event], own, header=header), own, header=header) == [event]


def test_an_event_of_another_type_or_value_is_refused() -> None:
    with pytest.raises(EventError, match="expected events of Numberplate, got one of Quake with id 'quake-1'"):
        to_batch([a_quake], Plate)
    forged = Event("1", "s", "Quake", Timestamp(0), {"magnitude": "big"})
    with pytest.raises(EventError, match="attribute 'magnitude': expected double"):
        to_batch([forged], Quake)


def test_a_row_without_id_or_source_is_no_event() -> None:
    rows = {"event_id": ["1", ""], "event_source": ["s", "s"], "event_time": pa.array([0, 0], MICROS)}
    with pytest.raises(EventError, match="'event_id': expected a text that is not empty, got '' in row 1"):
        from_batch(pa.table(rows | {"magnitude": [1.0, 2.0]}), Quake)
    with pytest.raises(EventError, match="attribute 'event_id' is required and missing in row 0"):
        from_batch(pa.table(rows | {"event_id": [None, "1"], "magnitude": [1.0, 2.0]}), Quake)
