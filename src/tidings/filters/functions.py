"""The functions a condition can call: CESQL's, each with its types, its meaning and its Spark form.

All are strict: a NULL argument gives NULL (IS_INT and IS_BOOL alone answer FALSE). What
CESQL calls a function error, such as a position outside the string, is NULL here, because
a condition either is TRUE of an event or does not match it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tidings.events import INT_MAX, INT_MIN, Value, ValueType

BOOL, INT, DOUBLE, STRING = ValueType.BOOL, ValueType.INT, ValueType.DOUBLE, ValueType.STRING

# The characters with the Unicode property White_Space; Python's strip() would take four more.
WHITESPACE: Final = (
    "\t\n\v\f\r \x85\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u2028\u2029\u202f\u205f\u3000"
)

_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]+", re.ASCII)
_SPARK_INT_MAX = 2**31 - 1
INT_LENGTH_MAX: Final = 4000  # Characters of a text that INT reads as a number: Python itself reads no more.


@dataclass(frozen=True, slots=True)
class Function:
    """What `NAME(args)` takes, gives and means."""

    takes: tuple[tuple[ValueType, ...], ...]  # Per argument, the types it may have; the last one repeats if `many`.
    gives: ValueType | None  # None: the type of its argument.
    call: Callable[..., Value | None]  # Never called with a NULL, unless `total`.
    spark: Callable[[Sequence[str], Sequence[ValueType]], str]
    optional: int = 0  # How many arguments at the end may be left out.
    many: bool = False
    total: bool = False  # Answers even for NULL.

    def arity(self) -> str:
        least = len(self.takes) - self.optional
        if self.many:
            return f"at least {least}"
        return str(least) if not self.optional else f"{least} or {len(self.takes)}"

    def accepts(self, count: int) -> bool:
        return count >= len(self.takes) - self.optional and (self.many or count <= len(self.takes))

    def types_at(self, index: int) -> tuple[ValueType, ...]:
        return self.takes[min(index, len(self.takes) - 1)]


def _left(text: str, count: int) -> str | None:
    return text[:count] if count >= 0 else None


def _right(text: str, count: int) -> str | None:
    return text[max(0, len(text) - count) :] if count >= 0 else None


def _substring(text: str, position: int, count: int = INT_MAX) -> str | None:
    """From 1, or back from the end if negative; position 0 is the empty string, outside is nothing."""
    if position == 0:
        return ""
    if not -len(text) <= position <= len(text) or count < 0:
        return None
    start = position - 1 if position > 0 else len(text) + position
    return text[start : start + count]


def _abs(number: float) -> float | None:
    return abs(number) if number != INT_MIN or not isinstance(number, int) else None


def _to_int(value: bool | int | float | str) -> int | None:
    if isinstance(value, str):
        number = int(value) if len(value) <= INT_LENGTH_MAX and _WHOLE_NUMBER.fullmatch(value) else None
    elif isinstance(value, float):
        number = int(value) if -(2.0**63) <= value < 2.0**63 else None
    else:
        number = int(value)
    return number if number is not None and INT_MIN <= number <= INT_MAX else None


def _to_bool(value: bool | int | str) -> bool | None:
    if isinstance(value, str):
        return {"true": True, "false": False}.get(value.lower())
    return bool(value)


def _to_string(value: bool | int | str) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _spark_call(name: str) -> Callable[[Sequence[str], Sequence[ValueType]], str]:
    return lambda args, types: f"{name}({', '.join(args)})"


def _spark_small(count: str) -> str:
    """Spark's string functions take 32-bit counts. (Its `least` would pass over a NULL.)"""
    return f"CAST(IF({count} > {_SPARK_INT_MAX}L, {_SPARK_INT_MAX}L, {count}) AS INT)"


def _spark_end(name: str) -> Callable[[Sequence[str], Sequence[ValueType]], str]:
    return lambda args, types: f"IF({args[1]} < 0L, NULL, {name}({args[0]}, {_spark_small(args[1])}))"


def _spark_substring(args: Sequence[str], types: Sequence[ValueType]) -> str:
    text, position, *rest = args
    count = rest[0] if rest else f"{_SPARK_INT_MAX}L"
    outside = f"{position} > length({text}) OR {position} < -length({text})" + (f" OR {count} < 0L" if rest else "")
    cut = f"substring({text}, CAST({position} AS INT), {_spark_small(count)})"
    empty = f"left({text}, CAST({count} * 0L AS INT))"  # NULL where the text or the count is.
    return f"CASE WHEN {position} = 0L THEN {empty} WHEN {outside} THEN NULL ELSE {cut} END"


def _spark_abs(args: Sequence[str], types: Sequence[ValueType]) -> str:
    return f"abs(nullif({args[0]}, {INT_MIN}L))" if types[0] is INT else f"abs({args[0]})"


def _spark_concat(args: Sequence[str], types: Sequence[ValueType]) -> str:
    return f"concat({', '.join(args)})" if args else "''"


def _spark_concat_ws(args: Sequence[str], types: Sequence[ValueType]) -> str:
    separator, *parts = args
    # Not Spark's concat_ws, which passes over a NULL; the empty cut makes a NULL separator count even when unused.
    spaced = [piece for part in parts for piece in (separator, part)][1:]
    return f"concat({', '.join([f'left({separator}, 0)', *spaced])})"


def _spark_to_int(args: Sequence[str], types: Sequence[ValueType]) -> str:
    (value,), (kind,) = args, types
    if kind is STRING:
        whole = f"'\\\\A(?=.{{1,{INT_LENGTH_MAX}}}\\\\z)[+-]?[0-9]+\\\\z'"
        return f"IF({value} RLIKE {whole}, TRY_CAST({value} AS BIGINT), NULL)"
    if kind is DOUBLE:
        return f"IF({value} >= -9.223372036854775808E18D AND {value} < 9.223372036854775808E18D, TRY_CAST({value} AS BIGINT), NULL)"
    return f"CAST({value} AS BIGINT)"


def _spark_to_bool(args: Sequence[str], types: Sequence[ValueType]) -> str:
    (value,), (kind,) = args, types
    if kind is STRING:
        return f"CASE lower({value}) WHEN 'true' THEN TRUE WHEN 'false' THEN FALSE END"
    return f"({value} <> 0L)" if kind is INT else f"CAST({value} AS BOOLEAN)"


def _spark_is(cast: Callable[[Sequence[str], Sequence[ValueType]], str]) -> Callable[..., str]:
    return lambda args, types: f"({cast(args, types)} IS NOT NULL)"


def _cardinality(items: tuple[Any, ...] | dict[Any, Any]) -> int:
    return len(items)


def _array_contains(items: tuple[Any, ...], wanted: Any) -> bool | None:
    """TRUE, or else NULL if an item is NULL, or else FALSE. NaN equals NaN; ints and decimals meet doubles as such."""
    if any(is_equal(item, wanted) for item in items if item is not None):
        return True
    return None if None in items else False


def is_equal(left: Any, right: Any) -> bool:
    """Spark's equality of two values of comparable types, neither of them NULL."""
    if isinstance(left, float) or isinstance(right, float):
        one, other = float(left), float(right)
        return one == other or (one != one and other != other)
    return bool(left == right)


def _spark_array_contains(args: Sequence[str], types: Sequence[ValueType]) -> str:
    array, wanted = args
    element = types[0].element
    if element is types[1] or ValueType.NULL in (element, types[1]):
        return f"array_contains({array}, {wanted})"
    # Compared one by one: Spark would bring array and value to one type first, and lose digits.
    found = f"exists({array}, _item -> {spark_comparison('=', '_item', element, wanted, types[1])})"  # type: ignore[arg-type]
    return f"IF({wanted} IS NULL, NULL, {found})"


def spark_comparison(op: str, left: str, left_type: ValueType, right: str, right_type: ValueType) -> str:
    """Two Spark expressions compared: beside a double all numbers become doubles, beside a decimal ints decimals."""
    return f"({_spark_beside(left, left_type, right_type)} {op} {_spark_beside(right, right_type, left_type)})"


def _spark_beside(text: str, kind: ValueType, other: ValueType) -> str:
    if other is DOUBLE and kind.is_number and kind is not DOUBLE:
        return f"CAST({text} AS DOUBLE)"
    return f"CAST({text} AS DECIMAL(20,0))" if kind is INT and other.is_decimal else text


class Kinds(tuple[ValueType, ...]):  # noqa: SLOT001  Three of them in all.
    """Types by a rule instead of one by one: the tuple has an example, which a guess goes by."""

    name: str
    rule: Callable[[ValueType], bool]

    @classmethod
    def of(cls, name: str, rule: Callable[[ValueType], bool], example: ValueType) -> Kinds:
        made = cls((example,))
        made.name, made.rule = name, rule
        return made

    def __contains__(self, kind: object) -> bool:
        return isinstance(kind, ValueType) and self.rule(kind)


NUMBERS: Final = Kinds.of("a number", lambda kind: kind.is_number, DOUBLE)
ARRAYS: Final = Kinds.of("an array", lambda kind: kind.kind == "array", ValueType.array(STRING))
COLLECTIONS: Final = Kinds.of("an array or a map", lambda kind: kind.has_items, ValueType.array(STRING))
SCALARS: Final = Kinds.of("a value", lambda kind: not kind.has_items, STRING)

_TEXT, _WHOLE, _PLAIN = (STRING,), (INT,), (BOOL, INT, STRING)

FUNCTIONS: Final[dict[str, Function]] = {
    "LENGTH": Function((_TEXT,), INT, len, lambda args, types: f"CAST(length({args[0]}) AS BIGINT)"),
    "CONCAT": Function((_TEXT,), STRING, lambda *texts: "".join(texts), _spark_concat, optional=1, many=True),
    "CONCAT_WS": Function(
        (_TEXT, _TEXT), STRING, lambda sep, *texts: sep.join(texts), _spark_concat_ws, optional=1, many=True
    ),
    "LOWER": Function((_TEXT,), STRING, str.lower, _spark_call("lower")),
    "UPPER": Function((_TEXT,), STRING, str.upper, _spark_call("upper")),
    "TRIM": Function(
        (_TEXT,),
        STRING,
        lambda text: text.strip(WHITESPACE),
        lambda args, types: f"trim(BOTH '{WHITESPACE}' FROM {args[0]})",
    ),
    "LEFT": Function((_TEXT, _WHOLE), STRING, _left, _spark_end("left")),
    "RIGHT": Function((_TEXT, _WHOLE), STRING, _right, _spark_end("right")),
    "SUBSTRING": Function((_TEXT, _WHOLE, _WHOLE), STRING, _substring, _spark_substring, optional=1),
    "ABS": Function((NUMBERS,), None, _abs, _spark_abs),
    "ARRAY_CONTAINS": Function((ARRAYS, SCALARS), BOOL, _array_contains, _spark_array_contains),
    "CARDINALITY": Function(
        (COLLECTIONS,),
        INT,
        _cardinality,
        lambda args, types: f"CAST(IF({args[0]} IS NULL, NULL, size({args[0]})) AS BIGINT)",
    ),
    "INT": Function(((BOOL, INT, DOUBLE, STRING),), INT, _to_int, _spark_to_int),
    "BOOL": Function((_PLAIN,), BOOL, _to_bool, _spark_to_bool),
    "STRING": Function((_PLAIN,), STRING, _to_string, lambda args, types: f"CAST({args[0]} AS STRING)"),
    "IS_INT": Function(
        ((BOOL, INT, DOUBLE, STRING),),
        BOOL,
        lambda v: v is not None and _to_int(v) is not None,
        _spark_is(_spark_to_int),
        total=True,
    ),
    "IS_BOOL": Function(
        (_PLAIN,), BOOL, lambda v: v is not None and _to_bool(v) is not None, _spark_is(_spark_to_bool), total=True
    ),
}


def call(name: str, args: Sequence[Any]) -> Value | None:
    """The value of a function for argument values, NULL being None."""
    function = FUNCTIONS[name]
    if not function.total and any(arg is None for arg in args):
        return None
    return function.call(*args)
