r"""Sets of values of one attribute, as intervals of keys, with NULL in or out.

An interval is half-open, `low <= key < high`. That is enough for every comparison, because
each key has a successor: n + 1 for ints, and for texts and bytes the same followed by a zero
character. So `> 'a'` begins at 'a\0', and a prefix runs to the first text that no
longer has it. `high` is None where texts and bytes have no end.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Collection, Sequence
from decimal import Decimal
from operator import itemgetter
from typing import Any, Final, TypeAlias

from msgspec import Struct

from tidings.events import INT_MAX, INT_MIN, Key, Value, ValueType, double_key

_STRING, _DOUBLE, _INT = ValueType.STRING, ValueType.DOUBLE, ValueType.INT

Pairs: TypeAlias = tuple[tuple[Any, Any], ...]

_DOUBLE_LOW: Any = ValueType.DOUBLE.key(-math.inf)
_DOUBLE_NAN: Any = ValueType.DOUBLE.key(math.nan)
_BEYOND: Final = 1e39  # No int or decimal is so large, nor any but 0 so small as its inverse.


class _Domains(dict[ValueType, tuple[Key, Key | None]]):
    """By type; those of types with parameters are worked out when asked for."""

    def __missing__(self, kind: ValueType) -> tuple[Key, Key | None]:
        if kind.is_decimal:
            self[kind] = 1 - 10**kind.precision, 10**kind.precision  # Of a few hundred types at most.
            return self[kind]
        if kind.has_items:
            return 0, 1  # All of them have one key: they are there, or NULL.
        raise KeyError(kind)


DOMAIN: Final[dict[ValueType, tuple[Key, Key | None]]] = _Domains(
    {
        ValueType.BOOL: (0, 2),
        ValueType.INT: (INT_MIN, INT_MAX + 1),
        ValueType.TIMESTAMP: (INT_MIN, INT_MAX + 1),
        ValueType.DOUBLE: (_DOUBLE_LOW, _DOUBLE_NAN + 1),
        ValueType.STRING: ("", None),
        ValueType.BYTES: (b"", None),
        ValueType.DATE: (-(2**31), 2**31),
        ValueType.TIME: (0, 86_400_000_000),
    }
)


class Intervals(Struct, frozen=True, gc=False):
    """Disjoint, not touching, in ascending order; `null` says whether NULL belongs to the set, too."""

    type: ValueType
    pairs: Pairs
    null: bool = False

    def __contains__(self, value: Value | None) -> bool:
        """Whether a value, or NULL as None, is in the set."""
        return self.null if value is None else self.has_key(self.type.key(value))

    def has_key(self, key: Key) -> bool:
        for low, high in self.pairs if len(self.pairs) < 8 else self._near(key):
            if low <= key and (high is None or key < high):
                return True
        return False

    def _near(self, key: Key) -> Pairs:
        index = bisect_right(self.pairs, key, key=lambda pair: pair[0])
        return self.pairs[index - 1 : index] if index else ()

    def __bool__(self) -> bool:
        return bool(self.pairs) or self.null

    def __and__(self, other: Intervals) -> Intervals:
        if len(self.pairs) == 1 == len(other.pairs):  # Nearly always: two bounds of one attribute.
            pairs = _meet_one(self.pairs[0], other.pairs[0])
        else:
            pairs = _meet(self.pairs, other.pairs)
        return Intervals(self.type, pairs, self.null and other.null)

    def __or__(self, other: Intervals) -> Intervals:
        return join_all([self, other])

    def __invert__(self) -> Intervals:
        """Everything else, NULL included exactly if it was not."""
        return Intervals(self.type, self._gaps(), not self.null)

    def __le__(self, other: Intervals) -> bool:
        """Whether every value here is also there."""
        if self.null and not other.null:
            return False
        return self.pairs == other.pairs or _meet(self.pairs, other.pairs) == self.pairs

    def others(self) -> Intervals:
        """The values, never NULL, that are not here: what the negated comparison is TRUE of."""
        return Intervals(self.type, self._gaps(), False)

    def _gaps(self) -> Pairs:
        low, end = DOMAIN[self.type]
        gaps: list[tuple[Any, Any]] = []
        for start, stop in self.pairs:
            if low < start:
                gaps.append((low, start))
            if stop is None or stop == end:
                return tuple(gaps)
            low = stop
        return (*gaps, (low, end))

    def __str__(self) -> str:
        return " ∪ ".join([*(self._show(*pair) for pair in self.pairs), *(["NULL"] if self.null else [])]) or "∅"

    def _show(self, low: Key, high: Key | None) -> str:
        start, end = DOMAIN[self.type]
        if (low, high) == (start, end):
            return "(-∞, ∞)"
        if next_key(low) == high:
            return "{" + self._show_key(low) + "}"
        text, is_before = ("-∞", True) if low == start else self.bound(low)
        left = ("(" if is_before else "[") + text
        if high == end:
            return f"{left}, ∞)"
        text, is_before = self.bound(high)
        return f"{left}, {text}{']' if is_before else ')'}"

    def bound(self, key: Any) -> tuple[str, bool]:
        """A bound as people write it: the key, or the one before it where that is shorter, and which of them it is."""
        before = _key_before(key)
        if before is not None and len(self._show_key(before)) < len(self._show_key(key)):
            return self._show_key(before), True
        return self._show_key(key), False

    def _show_key(self, key: Key) -> str:
        value = self.type.value_at(key)
        return repr(value) if type(value) in (bool, int, float, str, bytes) else str(value)


def anything(kind: ValueType) -> Intervals:
    """Every value, and not NULL."""
    return _ANYTHING.get(kind) or Intervals(kind, (DOMAIN[kind],))


def nothing_but_null(kind: ValueType) -> Intervals:
    return Intervals(kind, (), True)


def comparing(op: str, kind: ValueType, value: Value) -> Intervals:
    """The values of an attribute of type `kind` for which `attribute op value` is TRUE.

    >>> print(comparing(">", ValueType.INT, 2.5))
    [3, ∞)
    """
    low, high = _equal_to(kind, value)
    start, end = DOMAIN[kind]
    if op == "=":
        return Intervals(kind, _pair(low, high))
    if op == ">":
        return Intervals(kind, _pair(high, end))
    if op == "<":
        return Intervals(kind, _pair(start, low))
    if op == ">=":
        return Intervals(kind, _pair(low, end))
    if op == "<=":
        return Intervals(kind, _pair(start, high))
    return Intervals(kind, _pair(low, high)).others()


def any_of(kind: ValueType, values: Collection[Value]) -> Intervals:
    """The values that equal one of these."""
    listed = list(dict.fromkeys(values))
    # An int or a decimal can round to the same double as its neighbour, so that 1 and 1.0 are not the same there.
    if (kind is _INT or kind.is_decimal) and float in set(map(type, listed)):
        listed = list({(type(value), value): value for value in values}.values())
    return Intervals(kind, _join([pair for value in listed for pair in _pair(*_equal_to(kind, value))]))


def join_all(sides: Sequence[Intervals]) -> Intervals:
    """What is in any of these sets, of one type: all sorted once, however many there are."""
    if len(sides) == 1:
        return sides[0]
    pairs = _join([pair for side in sides for pair in side.pairs])
    return Intervals(sides[0].type, pairs, any(side.null for side in sides))


def meet_all(sides: Sequence[Intervals]) -> Intervals:
    """What is in all of these sets, of one type: bounds in one pass, and what has gaps by joining all the gaps."""
    if len(sides) <= 2:
        return sides[0] if len(sides) == 1 else sides[0] & sides[1]
    kind, null = sides[0].type, all(side.null for side in sides)
    bounds, rest = [side.pairs[0] for side in sides if len(side.pairs) == 1], [s for s in sides if len(s.pairs) != 1]
    within = Intervals(kind, _meet_bounds(bounds), null) if bounds else Intervals(kind, (DOMAIN[kind],), null)
    if rest:
        gaps = _join([gap for side in rest for gap in side._gaps()])
        within &= Intervals(kind, Intervals(kind, gaps)._gaps(), null)
    return within


def hull_of(sides: Sequence[Intervals]) -> Intervals:
    """One interval around all of these sets, of one type; in as many steps as there are sets."""
    full = [side.pairs for side in sides if side.pairs]
    null = any(side.null for side in sides)
    if not full:
        return Intervals(sides[0].type, (), null)
    low, highs = min([pairs[0][0] for pairs in full]), [pairs[-1][1] for pairs in full]
    return Intervals(sides[0].type, ((low, None if None in highs else max(highs)),), null)


def with_prefix(prefix: str) -> Intervals:
    """The texts that begin with `prefix`."""
    return Intervals(ValueType.STRING, ((prefix, _after_prefix(prefix)),))


def next_key(key: Any) -> Any:
    """The smallest key above this one."""
    if type(key) is int:
        return key + 1
    return key + ("\0" if type(key) is str else b"\0")


def _key_before(key: Any) -> Any:
    """The largest key below this one, where there is one."""
    if type(key) is int:
        return key - 1
    return key[:-1] if key and key[-1] in (0, "\0") else None


def _equal_to(kind: ValueType, value: Value) -> tuple[Any, Any]:
    """The keys of `kind` that compare equal to `value`, as an interval, empty where none does."""
    if kind is _STRING:
        return value, value + "\0"  # type: ignore[operator]
    if kind is _DOUBLE:
        number = double_key(float(value))  # type: ignore[arg-type]
        return number, number + 1
    if kind is _INT and type(value) is int:
        return value, value + 1
    if type(value) is float:
        above = math.nextafter(value, math.inf)
        return _first_key(kind, value), _first_key(kind, above if above != value else math.nan)
    if kind.is_decimal or isinstance(value, Decimal):
        return _equal_digits(kind, value)  # type: ignore[arg-type]
    return (key := kind.key(value)), next_key(key)


def _equal_digits(kind: ValueType, value: Decimal | int) -> tuple[int, int]:
    """The ints or decimals that equal an exact number."""
    numerator, denominator = value.as_integer_ratio()
    whole, rest = divmod(numerator * 10**kind.scale, denominator)
    low, high = _int_domain(kind)
    first, end = whole + (rest > 0), whole + 1
    return (first, end) if low <= first <= end <= high else (min(max(first, low), high), min(max(end, low), high))


def _first_key(kind: ValueType, bound: float) -> int:
    """The key of the smallest int or decimal that as a double is at least `bound`, or the end of all."""
    low, high = _int_domain(kind)
    if not -_BEYOND < bound < _BEYOND:
        return low if bound < 0 else high
    if -1 / _BEYOND < bound < 1 / _BEYOND:
        return int(bound > 0)
    if kind is _INT and -(2**52) < bound < 2**52:
        return math.ceil(bound)
    # Numbers from half way to the double below on become this double, half way itself if it is rounded up.
    (one, parts), (other, other_parts) = bound.as_integer_ratio(), math.nextafter(bound, -math.inf).as_integer_ratio()
    middle, denominator = one * other_parts + other * parts, 2 * parts * other_parts
    first: int = min(max(-(-middle * 10**kind.scale // denominator), low), high)
    below: float = float(kind.value_at(first))  # type: ignore[arg-type]
    return first + (first < high and below < bound)


def _int_domain(kind: ValueType) -> tuple[int, int]:
    return DOMAIN[kind]  # type: ignore[return-value]


def _after_prefix(prefix: str) -> str | None:
    """The first text above all texts with this prefix; None if there is none."""
    stem = prefix.rstrip("\U0010ffff")
    if not stem:
        return None
    following = ord(stem[-1]) + 1
    return stem[:-1] + chr(0xE000 if following == 0xD800 else following)  # No surrogates in texts.


def _pair(low: Any, high: Any) -> Pairs:
    return ((low, high),) if high is None or low < high else ()


def _meet_one(a: tuple[Any, Any], b: tuple[Any, Any]) -> Pairs:
    low = a[0] if a[0] >= b[0] else b[0]
    high = b[1] if a[1] is None else a[1] if b[1] is None or a[1] <= b[1] else b[1]
    return ((low, high),) if high is None or low < high else ()


def _meet_bounds(pairs: list[tuple[Any, Any]]) -> Pairs:
    highs = [high for _, high in pairs if high is not None]
    return _pair(max([low for low, _ in pairs]), min(highs) if highs else None)


def _meet(left: Pairs, right: Pairs) -> Pairs:
    met: list[tuple[Any, Any]] = []
    i = j = 0
    while i < len(left) and j < len(right):
        met.extend(_meet_one(left[i], right[j]))
        left_ends_first = left[i][1] is not None and (right[j][1] is None or left[i][1] < right[j][1])
        i, j = (i + 1, j) if left_ends_first else (i, j + 1)
    return tuple(met)


def _join(pairs: list[tuple[Any, Any]]) -> Pairs:
    if len(pairs) < 2:
        return tuple(pairs)
    joined: list[tuple[Any, Any]] = []
    pairs.sort(key=itemgetter(0))
    start, end = pairs[0]
    for low, high in pairs:
        if end is None:
            break
        if end < low:
            joined.append((start, end))
            start, end = low, high
        elif high is None or high > end:
            end = high
    joined.append((start, end))
    return tuple(joined)


_ANYTHING = {kind: Intervals(kind, (domain,)) for kind, domain in DOMAIN.items()}
