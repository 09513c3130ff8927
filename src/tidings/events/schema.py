"""Event types: which attributes an event may have, of which type, and which it must have.

Declared in Python (`EventType("Quake", magnitude=float)`), in a TOML or JSON file
(`EventType.from_file`), or taken over from a table (`EventType.from_arrow`, `from_spark`).

Attributes are flat. A nested record `{"position": {"lat": 51.5}}` has the attribute
`position.lat`, whichever way it was declared. An attribute is optional unless marked
`required`, because a condition over a missing one has a meaning: NULL.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, get_args, get_origin

from tidings.errors import EventError, EventTypeError, did_you_mean
from tidings.events.values import INT_MAX, INT_MIN, Date, Time, Timestamp, Value, ValueType, describe, type_of

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

ATTRIBUTES_MAX = 4096  # Twenty times the widest event we know of; bounds what one file can make us hold.
NAME_LENGTH_MAX = 255
NESTING_MAX = 16  # Dots in an attribute's name; records nested deeper are documents, not events.
LISTED_MAX = 12  # Attributes an error message lists; the rest is a count.


@dataclass(frozen=True, slots=True)
class Attribute:
    """One attribute of an event type."""

    name: str
    type: ValueType
    required: bool = False

    def __str__(self) -> str:
        return f"{self.name} {self.type}{' required' if self.required else ''}"


@dataclass(frozen=True, slots=True)
class Required:
    """Marks an attribute as one that every event must have: `plate=Required(str)`."""

    declared: object


class EventType:
    """A name and typed attributes; frozen, compared by value.

    >>> Plate = EventType("Plate", plate=Required(str), speed=float, position={"lat": float})
    >>> print(Plate)
    Plate(plate string required, speed double, position.lat double)
    """

    __slots__ = ("_by_name", "_classes", "_folded", "_required", "attributes", "name", "others")

    name: str
    attributes: tuple[Attribute, ...]
    others: Mapping[str, str]  # Columns of the table it was taken from that cannot be attributes, by name their types.
    _by_name: dict[str, Attribute]
    _classes: dict[str, type]
    _folded: dict[str, Attribute | None]
    _required: tuple[str, ...]

    def __init__(self, name: str, declared: Mapping[str, object] | None = None, /, **more: object) -> None:
        self._freeze(name, (*_declare(declared or {}), *_declare(more)))

    @classmethod
    def of(cls, name: str, attributes: tuple[Attribute, ...], others: Mapping[str, str] | None = None) -> EventType:
        """From attributes that already are ones."""
        made = cls.__new__(cls)
        made._freeze(name, attributes, others)
        return made

    def _freeze(self, name: str, attributes: tuple[Attribute, ...], others: Mapping[str, str] | None = None) -> None:
        _check_type(name, attributes)
        folded: dict[str, Attribute | None] = {}
        for a in attributes:  # A folded name that two attributes share names neither.
            folded[a.name.casefold()] = None if a.name.casefold() in folded else a
        for slot, content in (
            ("name", name),
            ("attributes", attributes),
            ("_by_name", {a.name: a for a in attributes}),
            ("_classes", {a.name: a.type.python for a in attributes if a.type in _GLANCED}),
            ("others", MappingProxyType(dict(others or {}))),
            ("_folded", folded),
            ("_required", tuple(a.name for a in attributes if a.required)),
        ):
            object.__setattr__(self, slot, content)

    def __setattr__(self, slot: str, content: object) -> None:
        raise AttributeError(f"an EventType is frozen: {slot} cannot be set")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EventType) and (self.name, self.attributes) == (other.name, other.attributes)

    def __hash__(self) -> int:
        return hash(self.name)  # Cheap, since caches are keyed by type; equality compares the rest.

    def __reduce__(self) -> tuple[Any, ...]:
        return EventType.of, (self.name, self.attributes, dict(self.others))

    def __repr__(self) -> str:
        return f"EventType.of({self.name!r}, {self.attributes!r})"

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(str, self.attributes))})"

    def __iter__(self) -> Iterator[Attribute]:
        return iter(self.attributes)

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def __getitem__(self, name: str) -> Attribute:
        """The attribute of exactly this name; raises EventError with the nearest name if there is none."""
        try:
            return self._by_name[name]
        except KeyError:
            raise EventError(self._unknown(name)) from None

    def find(self, name: str) -> Attribute | None:
        """The attribute a condition means by `name`: exactly it, or the only one that differs just in case."""
        return self._by_name.get(name) or self._folded.get(name.casefold())

    def check(self, record: Mapping[str, Any]) -> dict[str, Value]:
        """A record, nested or flat, as checked values by attribute name; absent and null ones left out.

        >>> EventType("Plate", speed=float, position={"lat": float}).check({"speed": 31, "position": {"lat": 51.5}})
        {'speed': 31.0, 'position.lat': 51.5}
        """
        values: dict[str, Value] = {}
        if type(record) is dict and self._plainly_fits(record):
            values = record.copy()
        else:
            self._check_into(values, _as_record(record), "", 0)
        for name in self._required:
            if name not in values:
                raise EventError(f"{self.name}: attribute {name!r} is required and missing")
        return values

    def _plainly_fits(self, record: dict[str, Any]) -> bool:
        """Whether every value has its attribute's type already: true of most records, and quick to check."""
        classes = self._classes
        for name, value in record.items():
            kind = type(value)
            if classes.get(name) is not kind or (
                not value.isascii() if kind is str else kind is int and not INT_MIN <= value <= INT_MAX
            ):
                return False
        return True

    def _check_into(self, values: dict[str, Value], record: Mapping[str, Any], prefix: str, depth: int) -> None:
        for key, value in record.items():
            if value is None:
                continue
            name = prefix + key if type(key) is str else prefix + _as_key(key)
            attribute = self._by_name.get(name)
            if attribute is None:
                self._check_nested(values, name, value, depth)
            elif name in values:
                raise EventError(f"{self.name}: attribute {name!r} is given twice, nested and as a dotted name")
            else:
                values[name] = self._check_one(attribute, value)

    def _check_nested(self, values: dict[str, Value], name: str, value: object, depth: int) -> None:
        if not isinstance(value, Mapping):
            raise EventError(self._unknown(name))
        if depth == NESTING_MAX:
            raise EventError(_too_deep(name))
        self._check_into(values, value, name + ".", depth + 1)

    def _check_one(self, attribute: Attribute, value: object) -> Value:
        try:
            return attribute.type.check(value)
        except EventError as wrong:
            raise EventError(f"{self.name}: attribute {attribute.name!r}: {wrong}") from None

    def _unknown(self, name: str) -> str:
        shown = name[:NAME_LENGTH_MAX]
        hint = did_you_mean(shown, self._by_name) or f"it has {_listed(tuple(self._by_name))}"
        return f"{self.name} has no attribute {shown!r}; {hint}"

    @classmethod
    def infer(cls, record: Mapping[str, Any], name: str = "Event") -> EventType:
        """The type that one record shows, every attribute optional. A null shows no type, so its attribute gets NULL."""
        return cls.of(name, tuple(Attribute(key, _inferred(key, value)) for key, value in _flatten(_as_record(record))))

    @classmethod
    def from_file(cls, path: str | Path) -> EventType:
        """From a TOML or JSON file; see `tidings.events.declaration` for its form."""
        from tidings.events.declaration import read_file

        return read_file(path)

    @classmethod
    def from_arrow(cls, name: str, schema: pa.Schema, *, leave_out_others: bool = False) -> EventType:
        """From an Arrow schema; struct fields become `a.b`, non-nullable fields required.

        A column that no value type holds (an interval, a list of structs) is an error, or with
        `leave_out_others` no part of the event type, which knows it by name in `others`.
        """
        from tidings.events.arrow import event_type_from

        return event_type_from(name, schema, leave_out_others=leave_out_others)

    @classmethod
    def from_spark(cls, name: str, schema: Any, *, leave_out_others: bool = False) -> EventType:
        """From a Spark StructType, taken over the same way."""
        from tidings.events.arrow import event_type_from_spark

        return event_type_from_spark(name, schema, leave_out_others=leave_out_others)


_GLANCED = frozenset(ValueType.PLAIN)  # Types whose values a look at their class tells.

_DECLARED: dict[object, ValueType] = {
    bool: ValueType.BOOL,
    int: ValueType.INT,
    float: ValueType.DOUBLE,
    str: ValueType.STRING,
    Timestamp: ValueType.TIMESTAMP,
    datetime: ValueType.TIMESTAMP,
    Date: ValueType.DATE,
    date: ValueType.DATE,
    Time: ValueType.TIME,
    time: ValueType.TIME,
    bytes: ValueType.BYTES,
    Decimal: ValueType.decimal(38, 18),  # As Spark takes Python's decimals.
    **{t.value: t for t in ValueType.PLAIN},
    "int64": ValueType.INT,
}
_TYPE_WORDS = [what for what in _DECLARED if isinstance(what, str)]
_WITH_PARAMETERS = ("decimal(12,2)", "array<string>", "map<string,double>")


def _declare(declared: Mapping[str, object], prefix: str = "", required: bool = False) -> Iterator[Attribute]:
    if prefix.count(".") > NESTING_MAX:
        raise EventTypeError(_too_deep(prefix))
    for key, what in declared.items():
        name = prefix + _as_key(key, EventTypeError)
        must, what = (True, what.declared) if isinstance(what, Required) else (required, what)
        if isinstance(what, Mapping):
            yield from _declare(what, name + ".", must)
        else:
            yield Attribute(name, declared_type(name, what), must)


def declared_type(name: str, what: object) -> ValueType:
    """The type that a declaration means by `what`: a Python class, a ValueType or its name."""
    try:
        return _declared(what)
    except (KeyError, TypeError, ValueError):
        raise EventTypeError(f"attribute {name!r}: {_no_type(what)}") from None


def _declared(what: object) -> ValueType:
    if isinstance(what, ValueType):
        if what is ValueType.NULL:
            raise KeyError(what)
        return what
    origin, items = get_origin(what), get_args(what)
    if origin is list or (origin is tuple and items[1:] == (...,)):
        return ValueType.array(_declared(items[0]))
    if origin is dict:
        return ValueType.map(_declared(items[0]), _declared(items[1]))
    return _DECLARED.get(what) or ValueType(what)  # type: ignore[arg-type]


def _no_type(what: object) -> str:
    if isinstance(what, str):
        hint = did_you_mean(what, _TYPE_WORDS)
        known = f"{', '.join(_TYPE_WORDS[:-1])}, or such as {', '.join(_WITH_PARAMETERS)}"
        return f"expected a type ({known}), got {describe(what)}{hint and '; ' + hint}"
    got = what.__name__ if isinstance(what, type) else describe(what)
    known = "bool, int, float, Decimal, str, Timestamp, date, time, bytes, list[…], dict[…, …]"
    return f"expected {known} or a mapping of these, got {got}"


def _check_type(name: str, attributes: tuple[Attribute, ...]) -> None:
    if not isinstance(name, str) or not 1 <= len(name) <= NAME_LENGTH_MAX or not name.isprintable():
        expected = f"expected an event type name of 1 to {NAME_LENGTH_MAX} printable characters"
        raise EventTypeError(f"{expected}, got {describe(name)}")
    if len(attributes) > ATTRIBUTES_MAX:
        raise EventTypeError(f"{name} has {len(attributes)} attributes; at most {ATTRIBUTES_MAX} are allowed")
    seen: set[str] = set()
    for attribute in attributes:
        _check_name(name, attribute.name, seen)
        seen.add(attribute.name)
    for attribute in attributes:
        for parent in parents(attribute.name):
            if parent in seen:
                raise EventTypeError(
                    f"{name}: {parent!r} cannot be both an attribute and the parent of {attribute.name!r}"
                )


def _check_name(owner: str, name: str, seen: set[str]) -> None:
    if name in seen:
        raise EventTypeError(f"{owner}: attribute {name!r} is declared twice")
    wrong = unusable_name(name)
    if wrong:
        raise EventTypeError(f"{owner}: {name[:60]!r} is {wrong}")


def unusable_name(name: str) -> str:
    """Why a column of this name cannot be an attribute, as in "it is …"; empty if it can.

    >>> unusable_name("position.lat")
    ''
    """
    parts = name.split(".")
    if len(parts) - 1 > NESTING_MAX:
        return f"nested more than {NESTING_MAX} levels deep"
    if len(name) > NAME_LENGTH_MAX or not all(part and part.isprintable() and "`" not in part for part in parts):
        return (
            f"no attribute name; expected 1 to {NAME_LENGTH_MAX} printable characters without backticks, "
            "with dots only between parts"
        )
    return ""


def parents(name: str) -> Iterator[str]:
    parts = name.split(".")
    return (".".join(parts[:depth]) for depth in range(1, len(parts)))


def _flatten(record: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    if prefix.count(".") > NESTING_MAX:
        raise EventError(_too_deep(prefix))
    for key, value in record.items():
        name = prefix + _as_key(key)
        if isinstance(value, Mapping):
            yield from _flatten(value, name + ".")
        else:
            yield name, value


def _inferred(name: str, value: object) -> ValueType:
    try:
        return type_of(value)
    except EventError as wrong:
        raise EventError(f"attribute {name!r}: {wrong}") from None


def _as_record(record: object) -> Mapping[str, Any]:
    if isinstance(record, Mapping):
        return record
    raise EventError(f"expected a record (a mapping of attribute names to values), got {describe(record)}")


def _as_key(key: object, blame: type[EventError | EventTypeError] = EventError) -> str:
    if isinstance(key, str):
        return key
    raise blame(f"expected attribute names to be texts, got {describe(key)}")


def _too_deep(name: str) -> str:
    return f"{name[:60]!r} is nested more than {NESTING_MAX} levels deep"


def _listed(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:LISTED_MAX]) or "none"
    return f"{shown} and {len(names) - LISTED_MAX} more" if len(names) > LISTED_MAX else shown
