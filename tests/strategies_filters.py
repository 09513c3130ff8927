"""Random conditions and events that meet each other: constants and values come from the same small pools.

Everything is drawn from a `random.Random`, so that a Hypothesis test and a batch of thousands
for Spark use the same generator. `conditions()` and `cases()` wrap it for Hypothesis.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from tidings.errors import FilterTooLarge, FilterTypeError
from tidings.events import ARROW_TYPES, INT_MAX, INT_MIN, Attribute, Date, EventType, Exact, Time, Timestamp, ValueType
from tidings.filters import Condition, parse
from tidings.filters.functions import FUNCTIONS

BOOL, INT, DOUBLE, STRING = ValueType.BOOL, ValueType.INT, ValueType.DOUBLE, ValueType.STRING
NARROW, WIDE = ValueType.decimal(9, 2), ValueType.decimal(30, 8)

# Neighbours, extremes and troublemakers. NaN and the infinities have no literal, but events have them.
POOLS: dict[ValueType, list[Any]] = {
    BOOL: [True, False],
    INT: [0, 1, -1, 2, 3, 7, 2**53, 2**53 + 1, -(2**53) - 1, INT_MAX, INT_MIN, INT_MAX - 511],
    DOUBLE: [0.0, -0.0, 1.0, -1.0, 2.5, 3.0, float(2**53), 9.223372036854775807e18, 1e308, 5e-324, -7.25],
    STRING: [
        "",
        "a",
        "ab",
        "abc",
        "b",
        "A",
        "a%b",
        "a_b",
        "\\",
        "'",
        "ß",
        "\uffff",
        "𝄞",
        "a\0",
        " a ",
        "12",
        "true",
        "\ud7ff",
    ],
    ValueType.TIMESTAMP: [Timestamp(t) for t in (0, 1, -1, 10**15, 1_767_225_600_000_000)],
    ValueType.BYTES: [b"", b"\0", b"a", b"a\0", b"\xff", b"\xff\xff"],
}
POOLS[ValueType.DATE] = [Date(d) for d in (0, 1, -1, 20_484, "0001-01-01", "9999-12-31")]
POOLS[ValueType.TIME] = [Time(t) for t in (0, 1, "12:30:00", "23:59:59.999999")]
POOLS[NARROW] = [Exact(d) for d in ("0.00", "0.01", "-0.01", "1.00", "2.50", "9999999.99", "-7.25", "-9999999.99")]
POOLS[WIDE] = [Exact(Decimal(d).quantize(Decimal("0.00000001"))) for d in (
    "0", "1", "2.5", "-7.25", "9007199254740993", "9223372036854775807.5", "-9223372036854775808.00000001",
)]  # fmt: skip
# Constants beside decimals that no decimal of theirs equals: finer, larger, or as doubles are written.
ODD_DECIMALS = ["2.505", "1e3", "1e300", "0.000000001", "12345678901234567890123456789012345678BD", "2.5BD", "-1e-50"]
# Arrays and maps, which are asked by item.
COLLECTIONS: dict[ValueType, list[Any]] = {
    ValueType.array(STRING): [(), ("a",), ("a", "ab", None), (None,), ("b", "b")],
    ValueType.array(INT): [(), (1,), (1, 2, 3), (None, 2**53 + 1), (INT_MAX, 7)],
    ValueType.array(DOUBLE): [(), (1.0, math.nan), (2.5, None), (-0.0,)],
    ValueType.array(NARROW): [(), (Exact("2.50"), None), (Exact("1.00"), Exact("-7.25"))],
    ValueType.array(ValueType.DATE): [(), (Date(0), Date(20_484)), (None,)],
    ValueType.map(STRING, DOUBLE): [{}, {"a": 2.5, "b": None}, {"": math.nan, "a": 1.0}],
    ValueType.map(INT, STRING): [{}, {1: "a", 2: None}, {0: "ab"}],
    ValueType.map(STRING, WIDE): [{}, {"a": POOLS[WIDE][2]}],
}
ONLY_IN_EVENTS: dict[ValueType, list[Any]] = {DOUBLE: [math.nan, math.inf, -math.inf]}
PATTERNS = [
    "%",
    "a%",
    "%b",
    "a_%",
    "_",
    "",
    "a\\%b",
    "%a%b%",
    "ab",
    "\\\\",
    "𝄞%",
    "a\\_b%",
    "__",
    "%ab",
    "%_b",
    "%ß",
    "a%b",
    "%b%",
    "%a_c%",
    "%𝄞",
]
NAMES = ["b", "i", "d", "s", "t", "y", "da", "ti", "n", "w", "i2", "d2", "s2", "in.d", "in.s", "odd name.x"]


def random_type(rng: Random) -> EventType:
    """An event type with one attribute of each type and some more."""
    kinds = list(POOLS)
    more = [rng.choice(kinds) for _ in NAMES[len(kinds) :]]
    collections = [Attribute(f"c{n}", kind) for n, kind in enumerate(rng.sample(list(COLLECTIONS), 3))]
    return EventType.of("Thing", (*map(Attribute, NAMES, kinds + more), *collections))


def random_values(rng: Random, event_type: EventType) -> dict[str, Any]:
    """An event's values; a fifth of the attributes are absent."""
    return {
        attribute.name: rng.choice(
            COLLECTIONS.get(attribute.type) or POOLS[attribute.type] + ONLY_IN_EVENTS.get(attribute.type, [])
        )
        for attribute in event_type
        if rng.random() > 0.2
    }


def random_condition(rng: Random, event_type: EventType) -> Condition:
    """A condition with any of the operators and functions, up to some levels deep."""
    while True:
        text = _Writer(rng, event_type).truth(rng.choice([0, 1, 1, 2, 2, 3]))
        try:
            return parse(text, event_type)
        except FilterTypeError as wrong:  # Digits add up; the rest of the types is right.
            if "more than 38 digits" not in str(wrong):
                raise
        except FilterTooLarge as wrong:
            if "IS DISTINCT FROM nested" not in str(wrong):
                raise


def random_residual(rng: Random, event_type: EventType) -> Condition:
    """A condition most of which is no interval."""
    writer = _Writer(rng, event_type)
    kind = rng.choice(list(POOLS))
    text, number, other = writer.attribute(STRING), writer.attribute(INT), writer.attribute(DOUBLE)
    forms = [
        f"{text} LIKE {_quote(rng.choice(PATTERNS))}",
        f"UPPER({text}) LIKE {_quote(rng.choice(PATTERNS))}",
        f"{text} NOT LIKE {_quote(rng.choice(PATTERNS))}",
        f"LENGTH({text}) > {rng.randrange(4)}",
        f"{writer.attribute(kind)} <= {writer.attribute(kind)}",
        f"{number} + {rng.randrange(3)} > {other}",
        f"{number} % 3 = {rng.randrange(3)}",
        f"CONCAT({text}, {writer.attribute(STRING)}) <> {writer.literal(STRING)}",
    ]
    chosen = rng.sample(forms, rng.choice([1, 2, 3]))
    return parse(rng.choice([" AND ", " OR "]).join([*chosen, random_comparison(rng, event_type)]), event_type)


def random_comparison(rng: Random, event_type: EventType) -> str:
    """An attribute against constants: what an index lives on."""
    writer = _Writer(rng, event_type)
    kind = rng.choice(list(POOLS))
    name, one, other = (
        writer.attribute(kind),
        writer.literal(writer.comparable(kind)),
        writer.literal(writer.comparable(kind)),
    )
    forms = [
        f"{name} = {one}",
        f"{name} >= {one}",
        f"{one} > {name}",
        f"{name} IN ({one}, {other})",
        f"{name} BETWEEN {one} AND {other}",
    ]
    return rng.choice([*forms, f"{writer.attribute(STRING)} LIKE {_quote(rng.choice(PATTERNS))}"])


@dataclass
class _Writer:
    """Writes condition texts; `depth` is how many levels may still go below."""

    rng: Random
    event_type: EventType

    def truth(self, depth: int) -> str:
        if depth == 0:
            return self.predicate(0)
        kind = self.rng.choice(["AND", "AND", "OR", "OR", "NOT", "XOR", "predicate", "predicate"])
        if kind == "predicate":
            return self.predicate(depth)
        if kind == "NOT":
            return f"NOT ({self.truth(depth - 1)})"
        count = 2 if kind == "XOR" else self.rng.choice([2, 2, 3])
        return f" {kind} ".join(f"({self.truth(depth - 1)})" for _ in range(count))

    def predicate(self, depth: int) -> str:
        rng = self.rng
        kind = rng.choice(list(POOLS))
        negation = rng.choice(["", "", "NOT "])
        match rng.choice(
            ["compare"] * 4 + ["in", "like", "between", "null", "distinct", "exists", "bare", "literal", "item", "item"]
        ):
            case "item":
                return self.item()
            case "compare":
                op = rng.choice(["=", "<>", "!=", "<", "<=", ">", ">="])
                return f"{self.value(kind, depth)} {op} {self.value(self.comparable(kind), depth)}"
            case "in":
                items = ", ".join(self.value(self.comparable(kind), 0) for _ in range(rng.choice([1, 2, 5])))
                return f"{self.value(kind, depth)} {negation}IN ({items})"
            case "like":
                return f"{self.value(STRING, depth)} {negation}LIKE {_quote(rng.choice(PATTERNS))}"
            case "between":
                low, high = self.value(self.comparable(kind), 0), self.value(self.comparable(kind), 0)
                return f"{self.value(kind, depth)} {negation}BETWEEN {low} AND {high}"
            case "null":
                return f"{self.value(kind, depth)} IS {negation}NULL"
            case "distinct":
                other = self.value(self.comparable(kind), depth) if rng.random() < 0.9 else "NULL"
                return f"{self.value(kind, depth)} IS {negation}DISTINCT FROM {other}"
            case "exists":
                return f"EXISTS {self.attribute(kind)}"
            case "bare":
                return self.attribute(BOOL)
            case _:
                return rng.choice(["TRUE", "FALSE", "NULL", "NULL = 1"])

    def item(self) -> str:
        """Something asked of an array or a map."""
        rng = self.rng
        collection = rng.choice([a.type for a in self.event_type if a.type.has_items])
        name, op = self.attribute(collection), rng.choice(["=", "<>", "<", ">="])
        assert collection.element is not None
        one = self.value(self.comparable(collection.element), 0)
        if rng.random() < 0.2:
            return rng.choice([f"CARDINALITY({name}) {op} 2", f"{name} IS NULL", f"EXISTS {name}"])
        if collection.map_key is not None:
            return f"{name}[{self.value(collection.map_key, 0)}] {op} {one}"
        place = rng.choice(["0", "1", "-1", "i"])
        return rng.choice([f"ARRAY_CONTAINS({name}, {one})", f"{one} {op} ANY({name})", f"{name}[{place}] {op} {one}"])

    def comparable(self, kind: ValueType) -> ValueType:
        return self.rng.choice([INT, DOUBLE, NARROW, WIDE]) if kind.is_number else kind

    def value(self, kind: ValueType, depth: int) -> str:
        choice = self.rng.random()
        if depth > 0 and choice < 0.3:
            return self.computed(kind, depth)
        return self.attribute(kind) if choice < 0.75 else self.literal(kind)

    def attribute(self, kind: ValueType) -> str:
        name = self.rng.choice([a.name for a in self.event_type if a.type is kind])
        return ".".join(f"`{part}`" if " " in part or part == "in" else part for part in name.split("."))

    def literal(self, kind: ValueType) -> str:
        if kind.is_decimal and self.rng.random() < 0.3:
            return self.rng.choice(ODD_DECIMALS)
        return write_literal(self.rng.choice(POOLS[kind]))

    def computed(self, kind: ValueType, depth: int) -> str:
        rng = self.rng
        names = [name for name, function in FUNCTIONS.items() if function.gives is kind]
        if kind.is_number and rng.random() < 0.6:
            other = self.comparable(kind) if kind is DOUBLE else INT
            if kind.is_decimal:
                return f"({self.value(kind, depth - 1)} {rng.choice('+-*')} {self.value(rng.choice([INT, NARROW]), 0)})"
            if other.is_decimal:  # Beside which a constant double would be a decimal, too.
                return f"({self.attribute(kind)} {rng.choice('+-*')} {self.value(other, depth - 1)})"
            return f"({self.value(kind, depth - 1)} {rng.choice('+-*/%')} {self.value(other, depth - 1)})"
        if kind.is_number and rng.random() < 0.6:
            return rng.choice(["-({})", "ABS({})"]).format(self.value(kind, depth - 1))
        if kind is BOOL:
            return f"({self.truth(depth - 1)})"
        return self.call(rng.choice(names), depth) if names else self.attribute(kind)

    def call(self, name: str, depth: int) -> str:
        function = FUNCTIONS[name]
        count = len(function.takes) - self.rng.choice([0, function.optional])
        kinds = [self.rng.choice(function.types_at(index)) for index in range(count)]
        if name in ("ARRAY_CONTAINS", "CARDINALITY"):  # Whose arguments are no matter of types alone.
            return (
                f"CARDINALITY({self.attribute(self.rng.choice([a.type for a in self.event_type if a.type.has_items]))})"
            )
        return f"{name}({', '.join(self.small(kind, depth - 1) for kind in kinds)})"

    def small(self, kind: ValueType, depth: int) -> str:
        """A value for a function; positions and lengths are mostly such that something is there."""
        if kind is INT and self.rng.random() < 0.6:
            return str(self.rng.choice([-3, -2, -1, 0, 1, 2, 3]))
        return self.value(kind, depth)


def write_literal(value: Any) -> str:
    match value:
        case bool():
            return str(value).upper()
        case Timestamp() | Date() | Time():
            return f"{type(value).__name__.upper()} '{value}'"
        case Decimal():
            return f"{value:f}"
        case str():
            return _quote(value)
        case bytes():
            return f"X'{value.hex()}'"
        case _:
            return repr(value)


def _quote(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


@st.composite
def cases(
    draw: st.DrawFn, conditions: int = 1, events: int = 8
) -> tuple[EventType, list[Condition], list[dict[str, Any]]]:
    """An event type, conditions over it, and events of it."""
    rng = draw(st.randoms(use_true_random=False))
    event_type = random_type(rng)
    return (
        event_type,
        [random_condition(rng, event_type) for _ in range(conditions)],
        [random_values(rng, event_type) for _ in range(events)],
    )


def columns_of(events: list[dict[str, Any]], event_type: EventType) -> pa.Table:
    """Events as a table, a column for each attribute."""
    schema = [(a, [values.get(a.name) for values in events]) for a in event_type]
    return pa.table({
        a.name: pa.array([list(v.items()) if isinstance(v, dict) else v for v in column], ARROW_TYPES[a.type])
        for a, column in schema
    })  # fmt: skip
