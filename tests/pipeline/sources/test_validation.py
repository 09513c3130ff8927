"""Broken records are found one by one, each with its reason, and cost the others nothing."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.pipeline.sightings import Sighting
from tidings.errors import EventError
from tidings.events import Date, EventType, Time, Timestamp, arrow_schema, read_record, row_values, typed
from tidings.pipeline.sources.validation import validate_lines, validate_rows

GOOD = b'{"event_id": "e1", "speed": 31, "position": {"lat": 51.5}, "more": [1, 2]}'


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"event_id": "e1", "speed": 3', "expected a JSON object"),
        (b'{"event_id": "e1" "speed": 3}', "Missing a comma"),
        (b"null", "expected a JSON object"),
        (b"[1]", "expected a JSON object"),
        (b"", "expected a JSON object"),
        (b"\xff\xfe\x00", "expected a JSON object"),
        (b'{"event_id": "e1"} {"event_id": "e2"}', "expected one JSON object, got 2"),
        (b'{"event_id": "e1"} null {"event_id": "e2"}', "expected one JSON object, got 3"),
        (b'{"event_id": "e1", "speed": "fast"}', "changed from number to string"),
        (b'{"event_id": "e1", "plate": 7}', "changed from string to number"),
        (b'{"event_id": "e1", "lane": 1.5}', "int64"),
        (b'{"event_id": "e1", "lane": 99999999999999999999}', "int64"),
        (b'{"event_id": "e1", "plate": "\xff"}', "'plate'"),
        (b'{"event_id": "e1", "plate": "\\ud800"}', "surrogate"),
        (b'{"event_id": "e1", "speed": 1, "speed": 2}', "twice"),
        (b'{"speed": 3}', "'event_id' is required and missing"),
    ],
)
def test_a_broken_line_is_set_aside_with_its_reason(line: bytes, reason: str) -> None:
    found = validate_lines(pa.array([GOOD, line, GOOD], pa.binary()), Sighting)
    assert found.kept.tolist() == [0, 2]
    assert found.good.column("speed").to_pylist() == [31.0, 31.0]
    [(row, said)] = found.broken
    assert row == 1
    assert reason in said


def test_many_broken_lines_are_all_found_in_order() -> None:
    lines = [GOOD if number % 7 else b"{broken}" for number in range(500)]
    found = validate_lines(pa.array(lines, pa.binary()), Sighting)
    assert [row for row, _ in found.broken] == list(range(0, 500, 7))
    assert found.kept.tolist() == [number for number in range(500) if number % 7]


def test_columns_come_out_as_the_event_type_has_them() -> None:
    found = validate_lines(pa.array([GOOD], pa.binary()), Sighting)
    assert found.good.schema == arrow_schema(Sighting)
    assert found.good.column("position.lat").to_pylist() == [51.5]


def test_moments_are_read_with_and_without_a_zone() -> None:
    Plate = EventType("Plate", seen_at=Timestamp)
    lines = [b'{"seen_at": "2026-01-01T08:00:00Z"}', b'{"seen_at": "2026-01-01T09:00:00.000001+01:00"}']
    moments = validate_lines(pa.array([*lines, b'{"seen_at": 3}'], pa.binary()), Plate)
    assert moments.good.column(0).cast(pa.int64()).to_pylist() == [1767254400000000, 1767254400000001]
    assert [row for row, _ in moments.broken] == [2]


def test_bytes_are_texts_in_base64() -> None:
    Plate = EventType("Plate", id=str, image={"small": bytes})
    lines = [b'{"id": "a", "image": {"small": "AAH/"}}', b'{"id": "b"}', b'{"id": "c", "image": {"small": "no!"}}']
    found = validate_lines(pa.array(lines, pa.binary()), Plate)
    assert found.good.schema == arrow_schema(Plate)
    assert found.good.column("image.small").to_pylist() == [b"\x00\x01\xff", None]
    assert found.broken == ((2, "attribute 'image.small': expected bytes in base64, got 'no!'"),)


ORDER = EventType(
    "Order",
    price="decimal(9,2)",
    day=Date,
    at=Time,
    tags=list[str],
    prices="array<decimal(9,2)>",
    days="map<string,date>",
)


@pytest.mark.parametrize("name", ["price", "day", "at", "tags", "prices", "days"])
@pytest.mark.parametrize(
    "text",
    [
        '"12.30"', "12.3", "12", "1e2", '"12.345"', '"99999999"', '""', "true", "null", "[]", "{}", '["a", null]', "[1]",
        '["1.5"]', '["1.555"]', '"2026-01-31"', '"2026-02-30"', '"20260131"', '"@3000000"', '"12:30:00.5"', '"12:30:00Z"',
        '"12:30:00.123456789"', '"24:00:00"', '{"a": "2026-01-31", "b": null}', '{"a": 5}',
    ],
)  # fmt: skip
def test_lines_are_read_as_single_records_are(name: str, text: str) -> None:
    event_type = EventType.of("Order", (ORDER[name],))
    line = f'{{"{name}": {text}}}'.encode()
    found = validate_lines(pa.array([line], pa.binary()), event_type)
    try:
        expected = [event_type.check(typed(read_record(line), event_type))]
    except EventError:
        expected = []
    assert row_values(found.good, range(len(found.kept)), event_type) == expected


def test_nothing_comes_of_nothing() -> None:
    found = validate_lines(pa.array([], pa.binary()), Sighting)
    assert (found.good.num_rows, found.kept.tolist(), found.broken) == (0, [], ())


def test_rows_of_a_table_are_held_to_the_type_one_by_one() -> None:
    rows = pa.record_batch({"event_id": ["e1", None, "e3"], "speed": [2**53 + 1, 4, 5]})
    found = validate_rows(rows, Sighting)
    assert found.kept.tolist() == [2]
    assert [row for row, _ in found.broken] == [0, 1]
    assert "no double holds this integer" in found.broken[0][1]
