"""Laws of events: bytes, batches, files and CloudEvents all carry the same event."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Context, Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
from cloudevents.core.bindings import http
from cloudevents.core.formats.json import JSONFormat
from hypothesis import assume, given
from hypothesis import event as note
from hypothesis import strategies as st

from tests.given import Plate, a_sighting
from tests.strategies import (
    NARROW,
    VALUE_TYPES,
    WIDE,
    dated_timestamps,
    event_types,
    events,
    records,
    timestamps,
    typed_events,
    values,
)
from tidings.errors import EventError, TidingsError
from tidings.events import (
    ARROW_TYPES,
    Attribute,
    Event,
    EventType,
    Time,
    Timestamp,
    Value,
    ValueType,
    arrow_schema,
    cloudevents,
    conform,
    decode_value,
    encode_value,
    event_type_from,
    from_batch,
    from_declaration,
    nest,
    read_file,
    row_values,
    to_batch,
    to_declaration,
    type_of,
    write_file,
)


def _or_refusal(make: Callable[[], Any]) -> Any:
    """What `make` gives, or the error that it refuses with; any other exception is a failure."""
    try:
        return make()
    except TidingsError as refusal:
        return refusal


# ── Values ──


@given(timestamps)
def test_a_timestamp_is_read_back_from_its_text(moment: Timestamp) -> None:
    assert Timestamp(moment.iso()) == moment


@given(st.data(), st.sampled_from(VALUE_TYPES))
def test_a_value_of_a_type_is_taken_by_it_and_by_no_other_but_int_by_double(
    data: st.DataObject, value_type: ValueType
) -> None:
    value = data.draw(values(value_type))
    checked = value_type.check(value)
    assert type(checked) is value_type.python
    assert encode_value(checked) == encode_value(value)
    for other in ValueType.PLAIN:
        if other is value_type or (value_type is ValueType.INT and other is ValueType.DOUBLE):
            continue
        if value_type is ValueType.STRING and other in (ValueType.TIMESTAMP, ValueType.DATE, ValueType.TIME):
            continue  # A text may be a date.
        try:
            other.check(value)
        except EventError:
            continue
        raise AssertionError(f"{other} took {value!r}")


@given(st.data(), st.sampled_from([kind for kind in VALUE_TYPES if not kind.has_items]))
def test_keys_stand_in_the_order_of_the_values_and_lead_back_to_them(
    data: st.DataObject, value_type: ValueType
) -> None:
    a, b = data.draw(values(value_type)), data.draw(values(value_type))
    if a == a and b == b:  # NaN's place is a unit test's affair: Python knows no order for it.
        assert (value_type.key(a) < value_type.key(b)) == (a < b)  # type: ignore[operator]
        assert (value_type.key(a) == value_type.key(b)) == (a == b)
    assert encode_value(value_type.value_at(value_type.key(a))) == encode_value(a)


# ── Bytes ──


def _same(a: Value, b: Value) -> bool:
    """Equality as conditions have it, and of one type."""
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(x is y if x is None or y is None else _same(x, y) for x, y in zip(a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and _same(tuple(a.values()), tuple(b[key] for key in a))
    kind = type_of(a)
    return kind is type_of(b) and not kind.has_items and kind.key(a) == kind.key(b)


@given(values(), values())
def test_values_have_the_same_bytes_exactly_if_they_are_the_same(a: Value, b: Value) -> None:
    assert (encode_value(a) == encode_value(b)) == _same(a, b)
    assert _same(decode_value(encode_value(a)), a)


@given(
    st.binary(max_size=24)
    | st.builds(lambda kind, rest: bytes([kind]) + rest, st.integers(1, 11), st.binary(max_size=20))
)
def test_bytes_are_a_value_in_its_one_form_or_refused(raw: bytes) -> None:
    try:
        value = decode_value(raw)
    except EventError:
        return
    assert encode_value(value) == raw


@given(events())
def test_an_event_is_read_back_from_its_canonical_bytes(event: Event) -> None:
    """Hence no two events share their bytes: whoever can be read back is told apart."""
    again = Event.from_canonical(event.canonical())
    assert again == event
    assert (again.id, again.source, again.type, again.time) == (event.id, event.source, event.type, event.time)
    assert again.values.keys() == event.values.keys()
    assert all(_same(again.values[name], event.values[name]) for name in event.values)


@given(events(), st.data())
def test_canonical_bytes_that_were_tampered_with_are_another_event_or_none(event: Event, data: st.DataObject) -> None:
    raw = bytearray(event.canonical())
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= data.draw(st.integers(1, 255))
    try:
        read = Event.from_canonical(bytes(raw))
    except EventError:
        return
    assert read != event
    assert read.canonical() == raw


@given(events(), st.integers(0, 200))
def test_canonical_bytes_cut_short_are_no_event(event: Event, length: int) -> None:
    raw = event.canonical()
    assume(length < len(raw))
    try:
        Event.from_canonical(raw[:length])
    except EventError:
        return
    raise AssertionError("a part was read as the whole")


# ── Declarations ──


@given(event_types())
def test_python_files_and_arrow_declare_the_same_event_type(event_type: EventType) -> None:
    declaration = to_declaration(event_type)
    assert from_declaration(declaration) == event_type
    assert from_declaration(json.loads(json.dumps(declaration))) == event_type
    assert event_type_from(event_type.name, arrow_schema(event_type)) == event_type
    nested = event_type_from(event_type.name, arrow_schema(event_type, nested=True))
    assert sorted(map(str, nested)) == sorted(map(str, event_type))  # Groups are put together, so the order may differ.


@given(event_types(), st.sampled_from(["toml", "json"]))
def test_a_written_event_type_is_read_back(event_type: EventType, suffix: str) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"type.{suffix}"
        write_file(event_type, path)
        assert read_file(path) == event_type


class _Struct:
    """A Spark schema as `event_type_from_spark` sees one."""

    def __init__(self, event_type: EventType) -> None:
        self.event_type = event_type

    def jsonValue(self) -> dict[str, Any]:
        return {
            "type": "struct",
            "fields": [
                {"name": a.name, "type": self.type(a.type), "nullable": not a.required, "metadata": {}}
                for a in self.event_type
            ],
        }

    def type(self, kind: ValueType) -> Any:
        names = {ValueType.BOOL: "boolean", ValueType.INT: "long", ValueType.BYTES: "binary", ValueType.TIME: "time(6)"}
        if kind.element is None:
            return names.get(kind, kind.value)
        if kind.map_key is None:
            return {"type": "array", "elementType": self.type(kind.element), "containsNull": True}
        return {"type": "map", "keyType": self.type(kind.map_key), "valueType": self.type(kind.element)}


@given(event_types())
def test_spark_declares_the_same_event_type(event_type: EventType) -> None:
    assert EventType.from_spark(event_type.name, _Struct(event_type)) == event_type


# ── Arrow ──

_WIDE: dict[ValueType, list[pa.DataType]] = {
    ValueType.BOOL: [pa.bool_()],
    ValueType.INT: [pa.int8(), pa.uint16(), pa.int64(), pa.uint64(), pa.dictionary(pa.int8(), pa.int64())],
    ValueType.DOUBLE: [pa.float32(), pa.float64(), pa.int64(), pa.uint64()],
    ValueType.STRING: [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())],
    ValueType.TIMESTAMP: [pa.timestamp(u, z) for u in ("s", "ms", "us", "ns") for z in (None, "UTC", "Asia/Tokyo")],
    ValueType.BYTES: [pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(2)],
    ValueType.DATE: [pa.date32()],
    ValueType.TIME: [pa.time64("us"), pa.time64("ns")],
    NARROW: [pa.decimal128(9, 2), pa.decimal64(9, 2), pa.decimal256(40, 2), pa.int16(), pa.decimal128(12, 4)],
    WIDE: [pa.decimal128(38, 10), pa.decimal256(60, 10), pa.uint64()],
}
for _kind in VALUE_TYPES:
    if _kind.has_items:
        _WIDE[_kind] = [ARROW_TYPES[_kind]]
        if _kind.map_key is None:
            _WIDE[_kind] += [pa.large_list(ARROW_TYPES[_kind].value_type), pa.list_view(ARROW_TYPES[_kind].value_type)]
_MICROS_PER = {"s": 1_000_000, "ms": 1_000, "us": 1}


def _cells(kind: pa.DataType) -> st.SearchStrategy[Any]:
    """What a column of this type can hold, as Python has it; timestamps as counts of their unit."""
    if pa.types.is_dictionary(kind):
        return _cells(kind.value_type)
    if pa.types.is_integer(kind):
        low, high = (
            (0, 2**kind.bit_width - 1)
            if str(kind).startswith("u")
            else (-(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1)
        )
        return st.integers(low, high) | st.sampled_from([low, high, 0, min(high, 2**53 + 1), min(high, 2**60)])
    if pa.types.is_float32(kind):
        return st.floats(width=32)
    if pa.types.is_timestamp(kind):
        return st.integers(-(2**63), 2**63 - 1) | st.integers(-(2**50), 2**50).map(lambda n: n * 1000)
    if pa.types.is_decimal(kind):
        most = 10**kind.precision - 1
        digits = st.integers(-500, 500).map(lambda n: n * 100) | st.integers(-most, most)
        return digits.map(lambda n: Decimal(n).scaleb(-kind.scale, Context(prec=76)))
    if pa.types.is_time(kind):
        return st.integers(0, 86_399_999_999).map(lambda n: n * 1000 + 7 if kind.unit == "ns" else n)
    if pa.types.is_fixed_size_binary(kind):
        return st.binary(min_size=2, max_size=2)
    return values(next(t for t, kinds in _WIDE.items() if kind in kinds))


def _plain(cell: Any, kind: pa.DataType) -> Any:
    """One cell as a record would hold it: the definition that `conform` is held against."""
    if cell is not None and pa.types.is_time(kind):
        return Time(cell // 1000 if kind.unit == "ns" else cell)
    if cell is None or not pa.types.is_timestamp(kind):
        return cell
    if kind.unit == "ns":
        return Timestamp(cell // 1000)
    return Timestamp(cell * _MICROS_PER[kind.unit])


@st.composite
def _tables(draw: st.DrawFn) -> tuple[EventType, dict[str, pa.DataType], dict[str, list[Any]]]:
    event_type = draw(event_types(attributes_max=4))
    present = [a for a in event_type if a.required or draw(st.booleans())]
    kinds = {a.name: draw(st.sampled_from(_WIDE[a.type])) for a in present}
    rows = draw(st.integers(1, 4))
    cells = {n: draw(st.lists(st.none() | _cells(k), min_size=rows, max_size=rows)) for n, k in kinds.items()}
    return event_type, kinds, cells


def _arrow(cells: list[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(kind):
        return pa.array(cells, kind.value_type).dictionary_encode()
    return pa.array([list(cell.items()) if isinstance(cell, dict) else cell for cell in cells], kind)


def _plain_rows(
    event_type: EventType, kinds: dict[str, pa.DataType], cells: dict[str, list[Any]]
) -> list[dict[str, Value]]:
    count = len(next(iter(cells.values())))
    rows = ({n: _plain(cells[n][i], kinds[n]) for n in kinds} for i in range(count))
    return [event_type.check(row) for row in rows]


def _rows_of(table: pa.Table, event_type: EventType) -> list[dict[str, Value]]:
    return row_values(table, range(table.num_rows), event_type)


@given(_tables(), st.booleans(), st.integers(0, 4))
def test_conforming_a_table_is_checking_its_rows(table: Any, nested: bool, split: int) -> None:
    event_type, kinds, cells = table
    assume(kinds)
    made = pa.table({n: _arrow(cells[n], kinds[n]) for n in kinds})
    made = pa.concat_tables([made.slice(0, split), made.slice(split)])
    if nested and not any(pa.types.is_dictionary(k) for k in kinds.values()):
        made = nest(made)
    expected, flat = (
        _or_refusal(lambda: _plain_rows(event_type, kinds, cells)),
        _or_refusal(lambda: conform(made, event_type)),
    )
    note(f"{'refused' if isinstance(flat, TidingsError) else 'taken'}")
    if isinstance(flat, TidingsError) or isinstance(expected, TidingsError):
        assert type(flat) is type(expected), (flat, expected)
        return
    assert flat.schema.equals(arrow_schema(event_type))
    found = [Event("1", "s", "T", Timestamp(0), row) for row in _rows_of(flat, event_type)]
    assert found == [Event("1", "s", "T", Timestamp(0), row) for row in expected]  # By bytes, so NaN equals NaN.


@given(event_types().flatmap(lambda t: st.tuples(st.just(t), st.lists(records(t), max_size=4))), st.booleans())
def test_events_survive_a_batch_flat_or_nested(given_: tuple[EventType, list[dict[str, Any]]], nested: bool) -> None:
    event_type, found = given_
    made = [Event.of(event_type, r, id=f"{i}", source="s", time=i) for i, r in enumerate(found)]
    batch = to_batch(made, event_type)
    assert from_batch(nest(batch) if nested else batch, event_type) == made


# ── CloudEvents ──


@given(typed_events(times=dated_timestamps))
def test_an_event_survives_cloudevents_in_every_mode(typed: tuple[EventType, Event]) -> None:
    event_type, event = typed
    assert cloudevents.from_structured(cloudevents.to_structured(event), event_type) == event
    assert cloudevents.from_binary(*cloudevents.to_binary(event), event_type) == event
    assert cloudevents.from_batched(cloudevents.to_batched([event, event]), event_type) == [event, event]


@given(typed_events(times=dated_timestamps))
def test_the_cloudevents_sdk_reads_what_we_write_and_we_what_it_writes(typed: tuple[EventType, Event]) -> None:
    event_type, event = typed
    headers, body = cloudevents.to_binary(event)
    for read in (
        JSONFormat().read(None, cloudevents.to_structured(event)),
        http.from_http_event(http.HTTPMessage(headers, body)),
    ):
        assert (read.get_id(), read.get_source(), read.get_type()) == (event.id, event.source, event.type)
        time = read.get_time()
        assert time is not None
        assert Timestamp(time) == event.time
        assert cloudevents.from_structured(http.to_structured_event(read).body, event_type) == event
        message = http.to_binary_event(read)
        assert cloudevents.from_binary(message.headers, message.body, event_type) == event


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
_a_sighting: dict[str, Any] = json.loads(cloudevents.to_structured(a_sighting))
_READERS: list[Callable[[bytes], Event | list[Event]]] = [
    lambda body: cloudevents.from_structured(body, Plate),
    lambda body: cloudevents.from_batched(body, Plate),
    lambda body: cloudevents.from_batched(b"[" + body + b"]", Plate),
    lambda body: cloudevents.from_binary(cloudevents.to_binary(a_sighting)[0], body, Plate),
]


def _read_or_refused(body: bytes) -> None:
    for read in _READERS:
        found = _or_refusal(lambda: read(body))  # noqa: B023  Called at once.
        assert isinstance(found, Event | list) or str(found)


@given(st.binary(max_size=64) | _json.map(lambda found: json.dumps(found).encode()))
def test_whatever_comes_is_read_or_refused_with_a_reason(body: bytes) -> None:
    _read_or_refused(body)


@given(st.sampled_from(sorted(_a_sighting)), _json)
def test_a_cloudevent_with_any_part_replaced_is_read_or_refused(part: str, content: Any) -> None:
    _read_or_refused(json.dumps(_a_sighting | {part: content}).encode())


@given(st.sampled_from(sorted(_a_sighting["data"])), _json)
def test_a_cloudevent_with_any_value_replaced_is_read_or_refused(name: str, content: Any) -> None:
    _read_or_refused(json.dumps(_a_sighting | {"data": _a_sighting["data"] | {name: content}}).encode())


@given(st.data())
def test_a_cloudevent_with_bytes_cut_or_changed_is_read_or_refused(data: st.DataObject) -> None:
    body = bytearray(cloudevents.to_structured(a_sighting))
    at = data.draw(st.integers(0, len(body) - 1))
    body[at] = data.draw(st.integers(0, 255))
    _read_or_refused(bytes(body))
    _read_or_refused(bytes(body[:at]))


@given(
    st.dictionaries(
        st.sampled_from(["ce-id", "ce-time", "ce-type", "content-type", "ce-", "ce-x"]), st.text(max_size=12)
    )
)
def test_any_headers_are_read_or_refused(headers: dict[str, str]) -> None:
    sound, body = cloudevents.to_binary(a_sighting)
    found = _or_refusal(lambda: cloudevents.from_binary(sound | headers, body, Plate))
    assert isinstance(found, Event) or str(found)


# ── Records ──


@given(typed_events())
def test_a_record_means_the_same_nested_and_flat(typed: tuple[EventType, Event]) -> None:
    event_type, event = typed
    nested: dict[str, Any] = {}
    for name, value in event.values.items():
        *parents, last = name.split(".")
        inner = nested
        for parent in parents:
            inner = inner.setdefault(parent, {})
        inner[last] = value
    again = Event.of(event_type, nested, id=event.id, source=event.source, time=event.time)
    assert again == event


@given(event_types(), st.text(max_size=6))
def test_an_attribute_is_found_by_its_exact_name_first(event_type: EventType, other: str) -> None:
    for attribute in event_type:
        assert event_type.find(attribute.name) == attribute == event_type[attribute.name]
    found = event_type.find(other)
    assert found is None or (isinstance(found, Attribute) and found.name.casefold() == other.casefold())
