"""Event types and events as Arrow: schemas and batches in and out, a column at a time.

`conform` turns any table into exactly the columns of an event type, flat and in declared
order. It casts only what loses nothing:

| attribute | columns taken |
| --- | --- |
| bool | bool |
| int | integers of any width; unsigned ones if they fit 64 bits |
| double | floats; integers that a double holds exactly |
| string | string, large_string, string_view; checked to be UTF-8 |
| timestamp | timestamps of any unit and zone, without a zone taken as UTC; digits below the microsecond are cut off |
| bytes | binary, large_binary, binary_view, fixed-size binary |
| decimal | decimals of any width, and integers, whose digits fit |
| date | date32, date64 |
| time | time32, time64; digits below the microsecond are cut off |
| array | lists of every kind, by the same rules for their items |
| map | maps, likewise |

A dictionary counts as what it holds. Anything else (an interval, a list of structs) is an error. A
struct `a` with a field `b` is the same as a column `a.b`. Columns that the event type
does not know are ignored, since files tend to have many; optional attributes without a
column are null. Rows are counted from 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from tidings.errors import EventError, EventTypeError
from tidings.events.event import Event
from tidings.events.schema import NESTING_MAX, Attribute, EventType, parents, unusable_name
from tidings.events.values import DAY_MICROS, Exact, Value, ValueType, describe

Column: TypeAlias = pa.Array | pa.ChunkedArray
Rows = TypeVar("Rows", pa.RecordBatch, pa.Table)


class _ArrowTypes(dict[ValueType, pa.DataType]):
    """By value type; those with parameters are made when asked for."""

    def __missing__(self, kind: ValueType) -> pa.DataType:
        if kind.is_decimal:
            return pa.decimal128(kind.precision, kind.scale)
        assert kind.element is not None
        item = self[kind.element]
        return pa.list_(item) if kind.map_key is None else pa.map_(self[kind.map_key], item)


ARROW_TYPES: Mapping[ValueType, pa.DataType] = _ArrowTypes(
    {
        ValueType.BOOL: pa.bool_(),
        ValueType.INT: pa.int64(),
        ValueType.DOUBLE: pa.float64(),
        ValueType.STRING: pa.string(),
        ValueType.TIMESTAMP: pa.timestamp("us", "UTC"),
        ValueType.DATE: pa.date32(),
        ValueType.TIME: pa.time64("us"),
        ValueType.BYTES: pa.binary(),
        ValueType.NULL: pa.null(),
    }
)


# ── Schemas ──────────────────────────────────────────────────────────────────


def event_type_from(name: str, schema: pa.Schema, *, leave_out_others: bool = False) -> EventType:
    """The event type of a table with this schema; fields that cannot be null are required.

    A column that no value type holds raises EventTypeError, or is left out if so asked.

    >>> print(event_type_from("Quake", pa.schema({"at": pa.struct({"lat": pa.float32()}), "depth": pa.int16()})))
    Quake(at.lat double, depth int)
    """
    if not isinstance(schema, pa.Schema):
        raise EventTypeError(f"{name}: expected an Arrow schema, got {describe(schema)}")
    leaves = (leaf for leaf in _leaves(schema) if not pa.types.is_struct(leaf.type))
    found = ((leaf.name, value_type_of(leaf.type), leaf.required, str(leaf.type)) for leaf in leaves)
    return _event_type(name, found, leave_out_others)


def event_type_from_spark(name: str, schema: Any, *, leave_out_others: bool = False) -> EventType:
    """The same of a Spark StructType, read by its `jsonValue`, so that Spark itself is not needed here."""
    try:
        fields = schema.jsonValue()["fields"]
    except (AttributeError, KeyError, TypeError):
        raise EventTypeError(f"{name}: expected a Spark StructType, got {describe(schema)}") from None
    return _event_type(name, _spark_leaves(fields, "", True), leave_out_others)


def arrow_schema(event_type: EventType, *, nested: bool = False) -> pa.Schema:
    """The schema of the event type's batches: one column per attribute, or structs for dotted names."""
    fields = [pa.field(a.name, ARROW_TYPES[a.type], nullable=not a.required) for a in event_type]
    return pa.schema(_nested_fields(fields) if nested else fields)


def value_type_of(arrow_type: pa.DataType) -> ValueType | None:
    """The value type that a column of this Arrow type is taken as, or None if none holds it."""
    if pa.types.is_dictionary(arrow_type) or pa.types.is_run_end_encoded(arrow_type):
        return value_type_of(arrow_type.value_type)
    if isinstance(arrow_type, pa.BaseExtensionType):
        return value_type_of(arrow_type.storage_type)
    if pa.types.is_decimal(arrow_type):
        return _decimal(arrow_type.precision, arrow_type.scale)
    if pa.types.is_map(arrow_type):
        key = value_type_of(arrow_type.key_type)
        return _items(value_type_of(arrow_type.item_type), key) if key else None
    if any(is_it(arrow_type) for is_it in _LISTS):
        return _items(value_type_of(arrow_type.value_type))
    for value_type, holds in _HOLDS.items():
        if any(is_it(arrow_type) for is_it in holds):
            return value_type
    return None


def _decimal(precision: int, scale: int) -> ValueType | None:
    try:
        return ValueType.decimal(precision, scale)
    except ValueError:
        return None


def _items(item: ValueType | None, key: ValueType | None = None) -> ValueType | None:
    """The array of these items or, with a key, the map."""
    try:
        return None if item is None else ValueType.array(item) if key is None else ValueType.map(key, item)
    except ValueError:  # Items with items of their own, or keys that are no strings or ints.
        return None


_LISTS = (
    pa.types.is_list,
    pa.types.is_large_list,
    pa.types.is_fixed_size_list,
    pa.types.is_list_view,
    pa.types.is_large_list_view,
)
_HOLDS: dict[ValueType, tuple[Callable[[pa.DataType], bool], ...]] = {
    ValueType.BOOL: (pa.types.is_boolean,),
    ValueType.INT: (pa.types.is_integer,),
    ValueType.DOUBLE: (pa.types.is_floating,),
    ValueType.STRING: (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
    ValueType.TIMESTAMP: (pa.types.is_timestamp,),
    ValueType.DATE: (pa.types.is_date,),
    ValueType.TIME: (pa.types.is_time,),
    ValueType.BYTES: (
        pa.types.is_binary,
        pa.types.is_large_binary,
        pa.types.is_binary_view,
        pa.types.is_fixed_size_binary,
    ),
    ValueType.NULL: (pa.types.is_null,),
}

_SPARK_TYPES = {
    "boolean": ValueType.BOOL,
    "byte": ValueType.INT,
    "short": ValueType.INT,
    "integer": ValueType.INT,
    "long": ValueType.INT,
    "float": ValueType.DOUBLE,
    "double": ValueType.DOUBLE,
    "string": ValueType.STRING,
    "varchar": ValueType.STRING,
    "char": ValueType.STRING,
    "timestamp": ValueType.TIMESTAMP,
    "timestamp_ntz": ValueType.TIMESTAMP,
    "date": ValueType.DATE,
    "time": ValueType.TIME,
    "binary": ValueType.BYTES,
    "void": ValueType.NULL,
}

_Found: TypeAlias = tuple[str, ValueType | None, bool, str]


def _event_type(name: str, found: Iterator[_Found], leave_out_others: bool) -> EventType:
    columns = list(found)
    attributes: list[Attribute] = []
    others: dict[str, str] = {}
    times = Counter(column for column, *_ in columns)
    for column, value_type, required, shown in columns:
        wrong = _unusable(column, shown) if value_type is None else ""
        if wrong and not leave_out_others:
            raise EventTypeError(f"{name}: attribute {column!r} is {wrong}")
        if leave_out_others:  # Else the event type itself refuses such names.
            wrong = wrong or unusable_name(column) or _taken(column, times)
        if wrong or value_type is None:
            others[column] = wrong
        else:
            attributes.append(Attribute(column, value_type, required))
    return EventType.of(name, tuple(attributes), others)


def _taken(column: str, times: Mapping[str, int]) -> str:
    """Why a column cannot be an attribute beside the others, such as `a.b` beside `a`; empty if it can."""
    if times[column] > 1 or any(parent in times for parent in parents(column)):
        return "a name that another column has, or a part of it; rename one of them in the query that makes the events"
    return ""


def _unusable(name: str, shown: str) -> str:
    """What a column is that cannot be an attribute, and the cast that helps."""
    kind = shown.split("<", maxsplit=1)[0]
    article = "an" if shown[:1] in "aeiou" else "a"
    cast = next((cast for sign, cast in _CASTS if sign in kind), "CAST({0} AS STRING)").format(name)
    return f"{article} {shown[:60]}; cast it, for example `{cast}`, in the query that makes the events"


# By a part of the type's name. An array or a map gets here only if its items have items or fields of their own.
_CASTS = (
    ("variant", "{0}:price::decimal(10,2)"),
    ("interval month", "extract(MONTH FROM {0})"),
    ("interval year", "extract(MONTH FROM {0})"),
    ("interval", "extract(DAY FROM {0})"),
    ("duration", "CAST({0} AS BIGINT)"),
    ("decimal", "CAST({0} AS DECIMAL(38,2))"),
    ("list", "transform({0}, item -> item.name)"),
    ("array", "transform({0}, item -> item.name)"),
    ("map", "transform_values({0}, (key, value) -> value.name)"),
    ("string", "{0} COLLATE UTF8_BINARY"),
)


def _spark_leaves(fields: Sequence[Mapping[str, Any]], prefix: str, required: bool) -> Iterator[_Found]:
    for field in fields:
        name, kind, must = prefix + field["name"], field["type"], required and not field["nullable"]
        if not isinstance(kind, str) and kind["type"] == "struct":
            yield from _spark_leaves(kind["fields"], name + ".", must)
        elif "__COLLATIONS" in field.get("metadata", {}):  # Which have another order than ours.
            yield name, None, must, f"{kind if isinstance(kind, str) else kind['type']} with a collation"
        else:
            yield name, _spark_type(kind), must, _spark_shown(kind)


def _spark_shown(kind: str | Mapping[str, Any]) -> str:
    if isinstance(kind, str):
        return kind
    item = kind.get("elementType") or kind.get("valueType")
    return f"{kind['type']} of {_spark_shown(item)}" if item else str(kind["type"])


def _spark_type(kind: str | Mapping[str, Any]) -> ValueType | None:
    """The value type for a type as Spark's JSON form of schemas has it."""
    if isinstance(kind, str):
        word, _, parameters = kind.partition("(")
        if word == "decimal":
            precision, _, scale = parameters.rstrip(")").partition(",")
            return _decimal(int(precision or 10), int(scale or 0))
        return _SPARK_TYPES.get(word)
    match kind["type"]:
        case "array":
            return _items(_spark_type(kind["elementType"]))
        case "map":
            key = _spark_type(kind["keyType"])
            return _items(_spark_type(kind["valueType"]), key) if key else None
        case "udt":
            return _spark_type(kind["sqlType"])
    return None


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A column or a field of a struct, by its dotted name and the way to it."""

    name: str
    path: tuple[int, ...]
    type: pa.DataType
    required: bool


def _leaves(schema: pa.Schema) -> Iterator[_Leaf]:
    """Every column and, after the struct itself, every field within a struct, down to NESTING_MAX."""
    for index, field in enumerate(schema):
        yield from _leaves_of(_Leaf(field.name, (index,), field.type, not field.nullable))


def _leaves_of(leaf: _Leaf) -> Iterator[_Leaf]:
    yield leaf
    if pa.types.is_struct(leaf.type) and len(leaf.path) <= NESTING_MAX:
        for index, field in enumerate(leaf.type):
            required = leaf.required and not field.nullable
            yield from _leaves_of(_Leaf(f"{leaf.name}.{field.name}", (*leaf.path, index), field.type, required))


def _nested_fields(fields: Sequence[pa.Field]) -> list[pa.Field]:
    return [
        members[0] if head == members[0].name else _struct_field(head, _nested_fields(_within(head, members)))
        for head, members in _grouped(fields, lambda field: str(field.name)).items()
    ]


def _struct_field(name: str, fields: Sequence[pa.Field]) -> pa.Field:
    return pa.field(name, pa.struct(fields), nullable=all(field.nullable for field in fields))


def _within(head: str, members: Sequence[pa.Field]) -> list[pa.Field]:
    return [field.with_name(field.name[len(head) + 1 :]) for field in members]


Item = TypeVar("Item")


def _grouped(items: Sequence[Item], name_of: Callable[[Item], str]) -> dict[str, list[Item]]:
    """Items by the first part of their dotted names, in the order of first appearance."""
    groups: dict[str, list[Item]] = {}
    for item in items:
        groups.setdefault(name_of(item).split(".")[0], []).append(item)
    for head, members in groups.items():
        if len(members) > 1 and any(name_of(member) == head for member in members):
            raise EventError(f"{head!r} cannot be both a column and the parent of others, nor occur twice")
    return groups


# ── Batches ──────────────────────────────────────────────────────────────────


def conform(rows: Rows, event_type: EventType) -> Rows:
    """`rows` as exactly the event type's columns: flat, in declared order, of `arrow_schema(event_type)`.

    Raises EventError naming the attribute, what was expected, what came and in which row.
    Every row that comes out is one that `EventType.check` would take.
    """
    if not isinstance(rows, pa.RecordBatch | pa.Table):
        raise EventError(f"{event_type.name}: expected an Arrow table or record batch, got {describe(rows)}")
    if not event_type.attributes:
        return rows.select([])  # Keeps the number of rows, which a table made of no columns would not.
    if _is_conformed(rows, event_type):
        return rows
    found = _found(rows.schema, event_type)
    columns = [_conformed(rows, found.get(a.name), a, event_type.name) for a in event_type]
    return type(rows).from_arrays(columns, schema=arrow_schema(event_type))


def _is_conformed(rows: Rows, event_type: EventType) -> bool:
    """Whether nothing remains to be done: seen at a glance, as small batches spend more time here than elsewhere."""
    if not rows.schema.equals(_flat_schema(event_type)):
        return False
    try:
        rows.validate(full=True)
    except pa.ArrowInvalid:
        return False  # Which attribute and row it is, the long way finds out.
    return not any(rows.column(at).null_count for at in _required(event_type))


@lru_cache(maxsize=256)  # More event types than one process is likely to mix; a miss costs only time.
def _flat_schema(event_type: EventType) -> pa.Schema:
    return arrow_schema(event_type)


@lru_cache(maxsize=256)  # As above.
def _required(event_type: EventType) -> tuple[int, ...]:
    return tuple(at for at, attribute in enumerate(event_type) if attribute.required)


def nest(rows: Rows) -> Rows:
    """Flat columns as structs: `a.b` becomes field `b` of `a`, null where all its fields are.

    `conform` undoes it.

    >>> nest(pa.record_batch({"at.lat": [51.5, None], "depth": [3, 4]})).to_pylist()
    [{'at': {'lat': 51.5}, 'depth': 3}, {'at': None, 'depth': 4}]
    """
    if isinstance(rows, pa.Table):
        schema = pa.schema(_nested_fields(list(rows.schema)))
        return pa.Table.from_batches([nest(batch) for batch in rows.to_batches()], schema)
    if not rows.num_columns:
        return rows
    columns = _nested_columns(list(zip(rows.schema, rows.columns)))
    return pa.RecordBatch.from_arrays([column for _, column in columns], schema=pa.schema([f for f, _ in columns]))


def _found(schema: pa.Schema, event_type: EventType) -> dict[str, _Leaf]:
    found: dict[str, _Leaf] = {}
    for leaf in _leaves(schema):
        if leaf.name in event_type:
            if leaf.name in found:
                raise EventError(f"{event_type.name}: attribute {leaf.name!r}: expected one column, got several")
            found[leaf.name] = leaf
    return found


def _conformed(rows: Rows, leaf: _Leaf | None, attribute: Attribute, owner: str) -> Column:
    try:
        if leaf is None:
            return _absent(rows, attribute)
        return _checked(_column(rows, leaf), attribute)
    except EventError as wrong:
        raise EventError(f"{owner}: attribute {attribute.name!r}{wrong}") from None


def _absent(rows: Rows, attribute: Attribute) -> Column:
    if attribute.required:
        raise EventError(" is required and has no column")
    nulls = pa.nulls(rows.num_rows, ARROW_TYPES[attribute.type])
    return pa.chunked_array([nulls]) if isinstance(rows, pa.Table) else nulls


def _column(rows: Rows, leaf: _Leaf) -> Column:
    column = rows.column(leaf.path[0])
    try:
        column.validate()  # Offsets within bounds, so that what reads them below cannot stray.
    except pa.ArrowInvalid as wrong:
        raise EventError(f": the column is damaged: {wrong}") from None
    return pc.struct_field(column, list(leaf.path[1:])) if len(leaf.path) > 1 else column


def _checked(column: Column, attribute: Attribute) -> Column:
    came = value_type_of(column.type)
    has_digits = attribute.type.is_decimal and pa.types.is_decimal(column.type)
    if not has_digits and (came is None or not _is_taken(attribute.type, came)):
        raise EventError(f": expected {attribute.type}, got {str(column.type)[:60]}")
    cast = _cast_all(column, attribute.type)
    if attribute.required and cast.null_count:
        raise EventError(f" is required and missing in row {pc.index(pc.is_null(cast), True).as_py()}")
    return cast


def _is_taken(wanted: ValueType, came: ValueType) -> bool:
    """Whether a column of this type may hold values of the wanted one."""
    if wanted is came or came is ValueType.NULL:
        return True
    if wanted.is_decimal:
        return came.is_decimal or came is ValueType.INT
    if wanted.element is None or came.element is None:
        return wanted is ValueType.DOUBLE and came is ValueType.INT
    if wanted.map_key is None or came.map_key is None:
        return wanted.map_key is came.map_key and _is_taken(wanted.element, came.element)
    return _is_taken(wanted.map_key, came.map_key) and _is_taken(wanted.element, came.element)


def _cast_all(column: Column, wanted: ValueType) -> Column:
    try:
        return _cast(column, wanted)
    except pa.ArrowInvalid as wrong:
        row = _first_failing_row(column, wanted)
        why = str(wrong).splitlines()[0][:200]
        raise EventError(f": expected {wanted}, got {_sample(column, row)} in row {row}: {why}") from None


def _cast(column: Column, wanted: ValueType) -> Column:
    """The column as `wanted`; raises ArrowInvalid for a value that would change."""
    column.validate(full=True)  # UTF-8, above all: Arrow itself takes a string column's word for it.
    if isinstance(column, pa.ChunkedArray):
        return pa.chunked_array([_cast_array(chunk, wanted) for chunk in column.chunks], ARROW_TYPES[wanted])
    return _cast_array(column, wanted)


def _cast_array(column: pa.Array, wanted: ValueType) -> pa.Array:
    if isinstance(column.type, pa.BaseExtensionType):
        column = column.storage
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_run_end_encoded(column.type):
        column = pc.run_end_decode(column)
    if wanted.has_items and not pa.types.is_null(column.type):
        return _cast_items(column, wanted)
    if wanted is ValueType.DOUBLE and pa.types.is_integer(column.type):
        return _whole_doubles(column)
    if wanted is ValueType.TIMESTAMP and pa.types.is_timestamp(column.type) and column.type.unit == "ns":
        # Cut off as of texts: towards the past, where a plain cast would cut towards 1970.
        column = pc.floor_temporal(column.cast(pa.timestamp("ns")), unit="microsecond")
    if wanted is ValueType.TIME and pa.types.is_time(column.type):
        return _times_of_day(column)
    if wanted.is_decimal and pa.types.is_integer(column.type):
        column = column.cast(pa.decimal256(76, wanted.scale))  # Wide enough for Arrow not to ask whether it is.
    return column.cast(ARROW_TYPES[wanted])


def _times_of_day(column: pa.Array) -> pa.Array:
    micros = column.cast(pa.time64("us"), safe=False)
    if len(micros) and (most := pc.max(micros.cast(pa.int64())).as_py()) is not None and most >= DAY_MICROS:
        raise pa.ArrowInvalid("a time of day ends before 24:00")
    return micros


def _cast_items(column: pa.Array, wanted: ValueType) -> pa.Array:
    """Lists or maps with their items cast, whatever is not an item left as it is."""
    assert wanted.element is not None
    if wanted.map_key is None:
        # Flattened instead of cast: Arrow's cast of list views loses their last list.
        items = _cast_array(column.flatten(), wanted.element)
        lengths = pc.fill_null(pc.list_value_length(column), 0).cast(pa.int32())
        offsets = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths)])
        return pa.ListArray.from_arrays(offsets, items, ARROW_TYPES[wanted], mask=column.is_null())
    keys, items = _cast_array(column.keys, wanted.map_key), _cast_array(column.items, wanted.element)
    return pa.MapArray.from_arrays(_offsets(column), keys, items, ARROW_TYPES[wanted], mask=column.is_null())


def _offsets(lists: pa.Array) -> pa.Array:
    """Where lists begin in their values, as an array without an offset of its own, which Arrow asks for beside a mask."""
    return pa.array(lists.offsets.to_numpy(zero_copy_only=False))


def _whole_doubles(column: Column) -> Column:
    """Integers as doubles. Arrow's own check stops at 2^53; many a larger one is a double, too."""
    doubles = column.cast(pa.float64(), safe=False)
    # Compared from below as well: 2^63 is a double, and processors disagree on it as an int64.
    fits = pc.less(doubles, float(2**64 if pa.types.is_uint64(column.type) else 2**63))
    back = pc.if_else(fits, doubles, 0.0).cast(column.type, safe=False)
    if not pc.all(pc.and_(fits, pc.equal(back, column)), min_count=0).as_py():
        raise pa.ArrowInvalid("no double holds this integer")
    return doubles


def _first_failing_row(column: Column, wanted: ValueType) -> int:
    """By halving: the first row whose value cannot be cast, given that some cannot."""
    start, length = 0, len(column)
    while length > 1:
        half = length // 2
        if _casts(column.slice(start, half), wanted):
            start, length = start + half, length - half
        else:
            length = half
    return start


def _casts(column: Column, wanted: ValueType) -> bool:
    try:
        _cast(column, wanted)
    except pa.ArrowInvalid:
        return False
    return True


def _sample(column: Column, row: int) -> str:
    try:
        column.slice(row, 1).validate(full=True)
        return f"{column.type} {str(column[row])[:60]}"
    except (ValueError, OverflowError):  # Damaged or broken UTF-8, not to be read; a date that Python cannot show.
        return str(column.type)


def _nested_columns(columns: list[tuple[pa.Field, pa.Array]]) -> list[tuple[pa.Field, pa.Array]]:
    return [
        members[0] if head == members[0][0].name else _struct_column(head, members)
        for head, members in _grouped(columns, lambda column: str(column[0].name)).items()
    ]


def _struct_column(head: str, members: list[tuple[pa.Field, pa.Array]]) -> tuple[pa.Field, pa.Array]:
    inner = _nested_columns(list(zip(_within(head, [f for f, _ in members]), [array for _, array in members])))
    field = _struct_field(head, [f for f, _ in inner])
    arrays = [array for _, array in inner]
    return field, pa.StructArray.from_arrays(arrays, fields=list(field.type), mask=_all_null(arrays))


def _all_null(arrays: Sequence[pa.Array]) -> pa.Array:
    mask = pc.is_null(arrays[0])
    for array in arrays[1:]:
        mask = pc.and_(mask, pc.is_null(array))
    return mask


# ── Events ───────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class HeaderColumns:
    """The columns that say of each row which event it is; other names where a table has its own."""

    id: str = "event_id"
    source: str = "event_source"
    time: str = "event_time"

    def event_type(self) -> EventType:
        """The three columns as required attributes."""
        texts = (Attribute(self.id, ValueType.STRING, True), Attribute(self.source, ValueType.STRING, True))
        return EventType.of("event", (*texts, Attribute(self.time, ValueType.TIMESTAMP, True)))


HEADER_COLUMNS = HeaderColumns()


def to_batch(
    events: Sequence[Event], event_type: EventType, *, header: HeaderColumns = HEADER_COLUMNS
) -> pa.RecordBatch:
    """Events of one type as a batch: the header columns, then the event type's, flat."""
    schema = _whole_type(event_type, header)
    for event in events:
        if event.type != event_type.name:
            raise EventError(f"expected events of {event_type.name}, got one of {event.type} with id {event.id!r}")
    headers: list[list[Any]] = [[e.id for e in events], [e.source for e in events], [e.time for e in events]]
    values = ([e.values.get(a.name) for e in events] for a in event_type)
    columns = [_array(content, a) for content, a in zip([*headers, *values], schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=arrow_schema(schema))


def from_batch(
    rows: pa.RecordBatch | pa.Table, event_type: EventType, *, header: HeaderColumns = HEADER_COLUMNS
) -> list[Event]:
    """One event per row; the rows are checked and cast as `conform` does."""
    flat = conform(rows, _whole_type(event_type, header))
    for name in (header.id, header.source):
        if (row := pc.index(flat.column(name), "").as_py()) >= 0:
            raise EventError(f"{event_type.name}: {name!r}: expected a text that is not empty, got '' in row {row}")
    columns = [python_values(flat.column(a.name), a.type) for a in _whole_type(event_type, header)]
    names = [a.name for a in event_type]
    return [_event(row, names, event_type.name) for row in zip(*columns)]


def row_values(
    rows: pa.Table, numbers: Sequence[int], event_type: EventType, names: Sequence[str] | None = None
) -> list[dict[str, Value]]:
    """The values of the rows with these numbers, of a conformed table; absent values are left out.

    With `names`, only the values of these attributes.
    """
    taken = pa.array(numbers, pa.int64())
    columns = [
        (a.name, python_values(rows.column(position).take(taken), a.type))
        for position, a in enumerate(event_type)
        if names is None or a.name in names
    ]
    return [
        {name: value for name, content in columns if (value := content[row]) is not None} for row in range(len(numbers))
    ]


def _whole_type(event_type: EventType, header: HeaderColumns) -> EventType:
    try:
        return EventType.of(event_type.name, (*header.event_type(), *event_type))
    except EventTypeError as wrong:
        raise EventError(f"choose other names for the header columns: {wrong}") from None


def _array(content: list[Any], attribute: Attribute) -> pa.Array:
    try:
        return arrow_values(content, attribute.type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, UnicodeEncodeError) as wrong:
        raise EventError(f"attribute {attribute.name!r}: expected {attribute.type}: {wrong}") from None


def arrow_values(content: Sequence[Any], kind: ValueType) -> pa.Array:
    """Checked values, or None, as a column."""
    if kind.map_key is not None:  # Which Arrow takes as lists of pairs.
        content = [None if entries is None else list(entries.items()) for entries in content]
    return pa.array(content, ARROW_TYPES[kind])


def python_values(column: Column, kind: ValueType) -> list[Any]:
    """The values of a conformed column in their Python forms."""
    if isinstance(column, pa.ChunkedArray):
        return [value for chunk in column.chunks for value in python_values(chunk, kind)]
    if kind.element is not None:
        return _python_items(column, kind, kind.element)
    if kind.is_decimal:
        return [None if number is None else Exact(number) for number in column.to_pylist()]
    if kind.kind not in ("timestamp", "date", "time"):
        return column.to_pylist()  # type: ignore[no-any-return]
    # As integers: Python's own dates end at the year 9999.
    numbers = column.cast(pa.int32()).to_pylist() if kind is ValueType.DATE else column.cast(pa.int64()).to_pylist()
    return [None if number is None else kind.python(number) for number in numbers]


def _python_items(column: pa.Array, kind: ValueType, element: ValueType) -> list[Any]:
    offsets, is_null = column.offsets.to_pylist(), column.is_null().to_pylist()
    if kind.map_key is None:
        items: list[Any] = python_values(column.values, element)
    else:
        items = list(zip(python_values(column.keys, kind.map_key), python_values(column.items, element)))
    spans = zip(offsets, offsets[1:], is_null)
    return [None if missing else kind.python(items[start:end]) for start, end, missing in spans]


def _event(row: tuple[Any, ...], names: Sequence[str], type_name: str) -> Event:
    id, source, time, *values = row
    present = {name: value for name, value in zip(names, values) if value is not None}
    return Event(id, source, type_name, time, MappingProxyType(present))
