"""Random conditions and events that meet each other: constants and values come from the same small pools.

Everything is drawn from a `random.Random`, so that a Hypothesis test and a batch of thousands
for Spark use the same generator. `conditions()` and `cases()` wrap it for Hypothesis.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random
from typing import Any

from hypothesis import strategies as st

from tidings.events import INT_MAX, INT_MIN, Attribute, EventType, Timestamp, ValueType
from tidings.filters import Condition, parse
from tidings.filters.functions import FUNCTIONS

BOOL, INT, DOUBLE, STRING = ValueType.BOOL, ValueType.INT, ValueType.DOUBLE, ValueType.STRING

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
ONLY_IN_EVENTS: dict[ValueType, list[Any]] = {DOUBLE: [math.nan, math.inf, -math.inf]}
PATTERNS = ["%", "a%", "%b", "a_%", "_", "", "a\\%b", "%a%b%", "ab", "\\\\", "𝄞%", "a\\_b%", "__"]
NAMES = ["b", "i", "d", "s", "t", "y", "i2", "d2", "s2", "in.d", "in.s", "odd name.x"]


def random_type(rng: Random) -> EventType:
    """An event type with one attribute of each type and some more."""
    kinds = [BOOL, INT, DOUBLE, STRING, ValueType.TIMESTAMP, ValueType.BYTES]
    more = [rng.choice(kinds) for _ in NAMES[len(kinds) :]]
    return EventType.of("Thing", tuple(map(Attribute, NAMES, kinds + more)))


def random_values(rng: Random, event_type: EventType) -> dict[str, Any]:
    """An event's values; a fifth of the attributes are absent."""
    return {
        attribute.name: rng.choice(POOLS[attribute.type] + ONLY_IN_EVENTS.get(attribute.type, []))
        for attribute in event_type
        if rng.random() > 0.2
    }


def random_condition(rng: Random, event_type: EventType) -> Condition:
    """A condition with any of the operators and functions, up to some levels deep."""
    return parse(_Writer(rng, event_type).truth(rng.choice([0, 1, 1, 2, 2, 3])), event_type)


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
        match rng.choice(["compare"] * 4 + ["in", "like", "between", "null", "exists", "bare", "literal"]):
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
            case "exists":
                return f"EXISTS {self.attribute(kind)}"
            case "bare":
                return self.attribute(BOOL)
            case _:
                return rng.choice(["TRUE", "FALSE", "NULL", "NULL = 1"])

    def comparable(self, kind: ValueType) -> ValueType:
        return self.rng.choice([INT, DOUBLE]) if kind.is_number else kind

    def value(self, kind: ValueType, depth: int) -> str:
        choice = self.rng.random()
        if depth > 0 and choice < 0.3:
            return self.computed(kind, depth)
        return self.attribute(kind) if choice < 0.75 else self.literal(kind)

    def attribute(self, kind: ValueType) -> str:
        name = self.rng.choice([a.name for a in self.event_type if a.type is kind])
        return ".".join(f"`{part}`" if " " in part or part == "in" else part for part in name.split("."))

    def literal(self, kind: ValueType) -> str:
        return write_literal(self.rng.choice(POOLS[kind]))

    def computed(self, kind: ValueType, depth: int) -> str:
        rng = self.rng
        names = [name for name, function in FUNCTIONS.items() if function.gives is kind]
        if kind.is_number and rng.random() < 0.6:
            other = self.comparable(kind) if kind is DOUBLE else INT
            op = rng.choice("+-*/%")
            return f"({self.value(kind, depth - 1)} {op} {self.value(other, depth - 1)})"
        if kind.is_number and rng.random() < 0.6:
            return rng.choice(["-({})", "ABS({})"]).format(self.value(kind, depth - 1))
        if kind is BOOL:
            return f"({self.truth(depth - 1)})"
        return self.call(rng.choice(names), depth) if names else self.attribute(kind)

    def call(self, name: str, depth: int) -> str:
        function = FUNCTIONS[name]
        count = len(function.takes) - self.rng.choice([0, function.optional])
        kinds = [self.rng.choice(function.types_at(index)) for index in range(count)]
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
        case Timestamp():
            return f"TIMESTAMP '{value}'"
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
