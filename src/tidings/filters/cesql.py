r"""CESQL itself, as version 1.0 of its specification says: implicit casts, and a value even after an error.

The conditions of Tidings are a typed profile of this language (docs/reference/cesql.md says how they differ). This
module is the whole language for those who bring expressions from other systems. It shares nothing with the profile
but LIKE and the limits: CESQL has three types, 32-bit integers, other precedences (NOT binds tightest; AND, OR and XOR
bind alike, from left to right), and no NULL.

    value              boolean, integer of 32 bits, string
    implicit cast      an operand becomes what its operator takes; of `=` the right side's type, of IN the left side's
    error              ends the operator it happens in: that one's value is the zero of its type, and so on upwards
    filter             passes an event if the value is TRUE and there was no error

Where text and conformance cases of the specification differ, the cases hold: names of attributes may be written in
capitals, and NOT takes no integer (`BOOL(x)` does), and is then TRUE with an error.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from tidings.errors import FilterSyntaxError, FilterTooLarge
from tidings.filters.functions import WHITESPACE
from tidings.filters.like import like

CESQL_LENGTH_MAX: Final = 1 << 16  # Characters of an expression; each may cost a visit for each event.
CESQL_NESTING_MAX: Final = 50  # Levels of parentheses, NOT and `-`: each takes up to nine of Python's thousand frames.
TEXT_MAX: Final = 1 << 20  # Characters that CONCAT and CONCAT_WS make; more is an error, so nesting them stays cheap.

CesqlValue: TypeAlias = bool | int | str
_Kind: TypeAlias = type[bool] | type[int] | type[str]


class CesqlErrorKind(enum.StrEnum):
    """What went wrong while an expression was evaluated, by CESQL's names."""

    CAST = "cast"
    MATH = "math"
    MISSING_ATTRIBUTE = "missingAttribute"
    MISSING_FUNCTION = "missingFunction"
    FUNCTION_EVALUATION = "functionEvaluation"


@dataclass(frozen=True, slots=True)
class CesqlResult:
    """The value of an expression for one event, and the first error on the way to it."""

    value: CesqlValue
    error: CesqlErrorKind | None = None

    @property
    def passes(self) -> bool:
        """Whether a filter lets the event through: only for TRUE without an error."""
        return self.value is True and self.error is None


@dataclass(frozen=True, slots=True)
class CesqlExpression:
    """A parsed expression.

    >>> parse_cesql("sequence = 5").evaluate({"sequence": "5"})
    CesqlResult(value=True, error=None)
    >>> parse_cesql("missing * 5").evaluate({})
    CesqlResult(value=0, error=<CesqlErrorKind.MISSING_ATTRIBUTE: 'missingAttribute'>)
    """

    text: str
    _root: _Node

    def evaluate(self, event: Mapping[str, object]) -> CesqlResult:
        """Its value for a CloudEvent's context attributes. Values of other types than CESQL's count as their texts."""
        return _evaluate(self._root, {name.lower(): _cesql_value(v) for name, v in event.items() if v is not None})

    @property
    def unknown_functions(self) -> tuple[str, ...]:
        """What it calls and CESQL does not define, each once: reason enough to refuse it as a filter."""
        return tuple(dict.fromkeys(_unknown_functions(self._root)))


def parse_cesql(text: str) -> CesqlExpression:
    """Raises FilterSyntaxError (CESQL's parse error) or FilterTooLarge, each with the column."""
    if len(text) > CESQL_LENGTH_MAX:
        what = f"a CESQL expression may have {CESQL_LENGTH_MAX:,} characters, this one has {len(text):,}"
        raise FilterTooLarge(what, text, 1)
    return CesqlExpression(text, _Parser(text).whole())


# ── The tree ──


@dataclass(frozen=True, slots=True)
class _Constant:
    value: CesqlValue


@dataclass(frozen=True, slots=True)
class _Name:
    name: str


@dataclass(frozen=True, slots=True)
class _Exists:
    name: str


@dataclass(frozen=True, slots=True)
class _Unary:
    op: str
    arg: _Node


@dataclass(frozen=True, slots=True)
class _Chain:
    """`first op arg op arg …`, operators that bind alike, from left to right. Flat, so that long ones are not deep."""

    first: _Node
    rest: tuple[tuple[str, _Node], ...]


@dataclass(frozen=True, slots=True)
class _Like:
    arg: _Node
    pattern: str  # As `like` reads it.
    negated: bool


@dataclass(frozen=True, slots=True)
class _In:
    arg: _Node
    items: tuple[_Node, ...]
    negated: bool


@dataclass(frozen=True, slots=True)
class _Invocation:
    name: str  # In capitals.
    args: tuple[_Node, ...]


_Node: TypeAlias = _Constant | _Name | _Exists | _Unary | _Chain | _Like | _In | _Invocation


# ── From text ──

_WORD = re.compile(
    r"""(?P<string>'(?:[^'\\]++|\\.)*+'|"(?:[^"\\]++|\\.)*+") | (?P<word>[A-Za-z0-9_]+) | <=|>=|<>|!= | [^ \t\r\n]""",
    re.VERBOSE | re.DOTALL,
)
_ATTRIBUTE = re.compile(r"[A-Za-z0-9]+")
_FUNCTION = re.compile(r"[A-Za-z][A-Za-z_]*")
_KEYWORDS = frozenset(["AND", "OR", "XOR", "NOT", "LIKE", "IN", "EXISTS", "TRUE", "FALSE"])
_LEVELS: tuple[frozenset[str], ...] = (  # Binary operators, the loosest first.
    frozenset(["AND", "OR", "XOR"]),
    frozenset(["=", "!=", "<>", ">=", "<=", ">", "<"]),
    frozenset("+-"),
    frozenset("*/%"),
)
_LEVEL_OF = {op: level for level, ops in enumerate(_LEVELS) for op in ops}
_INT_MIN, _INT_MAX = -(2**31), 2**31 - 1


class _Parser:
    """One text being read. `_at` is the index of the next word; the last word is empty."""

    def __init__(self, text: str) -> None:
        self._text = text
        found = [(match.group(), match.start() + 1) for match in _WORD.finditer(text)]
        self._words = [*found, ("", len(text) + 1)]
        self._at = self._depth = 0

    def whole(self) -> _Node:
        root = self._binary()
        if self._peek():
            raise self._wrong("expected an operator or the end")
        return root

    def _binary(self, loosest: int = 0) -> _Node:
        node = self._tested()
        while (level := _LEVEL_OF.get(self._peek().upper(), -1)) >= loosest:
            rest = []
            while (op := self._peek().upper()) in _LEVELS[level]:
                self._at += 1
                rest.append((op, self._binary(level + 1)))
            node = _Chain(node, tuple(rest))
        return node

    def _tested(self) -> _Node:
        """An operand with what may follow it: `[NOT] LIKE` and `[NOT] IN`."""
        node, tests = self._unary(), 0
        while True:
            negated = self._peek().upper() == "NOT" and self._words[self._at + 1][0].upper() in ("LIKE", "IN")
            self._at += negated
            match self._peek().upper():
                case "LIKE":
                    node = _Like(node, self._pattern(), negated)
                case "IN":
                    node = _In(node, self._set(), negated)
                case _:
                    return node
            tests += 1
            self._must_be_shallow(self._depth + tests)

    def _unary(self) -> _Node:
        word = self._peek()
        if word.upper() == "NOT":
            return _Unary("NOT", self._operand_after(word))
        if word in ("-", "+") and self._words[self._at + 1][0].isdigit():
            self._at += 1
            return self._integer(sign=word)
        if word == "-":
            return _Unary("-", self._operand_after(word))
        return self._atom(word)

    def _operand_after(self, word: str) -> _Node:
        self._at += 1
        self._depth += 1
        self._must_be_shallow(self._depth)
        arg = self._unary()
        self._depth -= 1
        return arg

    def _atom(self, word: str) -> _Node:
        following = self._words[self._at + 1][0] if word else ""
        if word == "(":
            (inner,) = self._in_parentheses(one=True)
            return inner
        if word.isdigit():
            return self._integer(sign="")
        if word[:1] in ("'", '"') and len(word) > 1:
            self._at += 1
            return _Constant(_unquoted(word))
        if word.upper() in _KEYWORDS:
            return self._keyword(word)
        if following == "(" and _FUNCTION.fullmatch(word):
            self._at += 1
            return _Invocation(word.upper(), self._in_parentheses(empty=True))
        return _Name(self._attribute())

    def _keyword(self, word: str) -> _Node:
        if word.upper() == "EXISTS":
            self._at += 1
            return _Exists(self._attribute())
        if word.upper() not in ("TRUE", "FALSE"):
            raise self._wrong("expected a value")
        self._at += 1
        return _Constant(word.upper() == "TRUE")

    def _attribute(self) -> str:
        name = self._peek()
        if not _ATTRIBUTE.fullmatch(name) or name.upper() in _KEYWORDS:
            raise self._wrong("expected a text that ends" if name in ("'", '"') else "expected a value")
        self._at += 1
        return name.lower()

    def _integer(self, sign: str) -> _Constant:
        digits = self._peek()
        number = int(sign + digits) if digits.isascii() and len(digits) <= 10 else _INT_MAX + 1
        if not _INT_MIN <= number <= _INT_MAX:
            raise self._wrong(f"expected an integer from {_INT_MIN} to {_INT_MAX}")
        self._at += 1
        return _Constant(number)

    def _pattern(self) -> str:
        self._at += 1
        word = self._peek()
        if word[:1] not in ("'", '"') or len(word) == 1:
            raise self._wrong("expected a text in quotes, the pattern of LIKE")
        self._at += 1
        return re.sub(r"\\(?![%_])", r"\\\\", _unquoted(word))  # Before anything but a wildcard, \ is a character.

    def _set(self) -> tuple[_Node, ...]:
        self._at += 1
        if self._peek() != "(":
            raise self._wrong("expected ( and the values of IN")
        return self._in_parentheses()

    def _in_parentheses(self, *, one: bool = False, empty: bool = False) -> tuple[_Node, ...]:
        self._at += 1
        self._depth += 1
        self._must_be_shallow(self._depth)
        nodes: list[_Node] = []
        if not (empty and self._peek() == ")"):
            nodes.append(self._binary())
            while self._peek() == "," and not one:
                self._at += 1
                nodes.append(self._binary())
        if self._peek() != ")":
            raise self._wrong("expected )")
        self._at += 1
        self._depth -= 1
        return tuple(nodes)

    def _peek(self) -> str:
        return self._words[self._at][0]

    def _wrong(self, what: str) -> FilterSyntaxError:
        word, column = self._words[self._at]
        return FilterSyntaxError(f"{what}, got {word[:40]!r}" if word else what, self._text, column)

    def _must_be_shallow(self, depth: int) -> None:
        if depth > CESQL_NESTING_MAX:
            raise FilterTooLarge(f"at most {CESQL_NESTING_MAX} levels of nesting", self._text, self._words[self._at][1])


def _unquoted(word: str) -> str:
    quote = word[0]
    return word[1:-1].replace("\\" + quote, quote)


# ── Values ──

_REQUIRED = frozenset(["specversion", "id", "source", "type"])  # Every CloudEvent has them.


def _evaluate(node: _Node, event: Mapping[str, CesqlValue]) -> CesqlResult:
    match node:
        case _Constant(value):
            return CesqlResult(value)
        case _Name(name):
            found = event.get(name)
            return CesqlResult(found) if found is not None else CesqlResult(False, CesqlErrorKind.MISSING_ATTRIBUTE)
        case _Exists(name):
            return CesqlResult(name in event or name in _REQUIRED)
        case _Unary("NOT", arg):
            return _negation(_evaluate(arg, event))
        case _Unary(_, arg):
            return _arithmetic("-", CesqlResult(0), _evaluate(arg, event))
        case _Chain(first, rest):
            return _chained(first, rest, event)
        case _Like(arg, pattern, negated):
            text = _cast(_evaluate(arg, event), str)
            return CesqlResult(like(pattern, str(text.value)) is not negated) if not text.error else _zero(bool, text)
        case _In(arg, items, negated):
            return _membership(_evaluate(arg, event), items, negated, event)
        case _Invocation(name, args):
            return _called(name, args, event)


def _chained(first: _Node, rest: Sequence[tuple[str, _Node]], event: Mapping[str, CesqlValue]) -> CesqlResult:
    left = _evaluate(first, event)
    for op, arg in rest:
        if op in _LEVELS[0]:
            left = _logical(op, left, arg, event)
        elif op in _LEVELS[1]:
            left = _compared(op, left, _evaluate(arg, event))
        else:
            left = _arithmetic(op, left, _evaluate(arg, event))
    return left


def _negation(arg: CesqlResult) -> CesqlResult:
    if arg.error:
        return _zero(bool, arg)
    if type(arg.value) is int:  # As the conformance cases have it; a failed cast counts as FALSE, so this is TRUE.
        return CesqlResult(True, CesqlErrorKind.CAST)
    truth = _cast(arg, bool)
    return CesqlResult(not truth.value, truth.error)


def _logical(op: str, left: CesqlResult, right: _Node, event: Mapping[str, CesqlValue]) -> CesqlResult:
    """AND and OR do not look at the right side where the left one decides."""
    left = _cast(left, bool)
    if left.error:
        return _zero(bool, left)
    if op != "XOR" and left.value is (op == "OR"):
        return left
    other = _cast(_evaluate(right, event), bool)
    if other.error:
        return _zero(bool, other)
    return CesqlResult(left.value is not other.value) if op == "XOR" else other


def _compared(op: str, left: CesqlResult, right: CesqlResult) -> CesqlResult:
    ordered = op not in ("=", "!=", "<>")
    target: _Kind = int if ordered else type(right.value)
    left, right = (_cast(left, target), _cast(right, target)) if not left.error else (left, right)
    if left.error or right.error:
        return _zero(bool, left if left.error else right)
    return CesqlResult(_COMPARISONS[op](left.value, right.value))


_COMPARISONS: dict[str, Callable[[CesqlValue, CesqlValue], bool]] = {
    "=": lambda x, y: x == y,
    "!=": lambda x, y: x != y,
    "<>": lambda x, y: x != y,
    "<": lambda x, y: int(x) < int(y),
    "<=": lambda x, y: int(x) <= int(y),
    ">": lambda x, y: int(x) > int(y),
    ">=": lambda x, y: int(x) >= int(y),
}


def _arithmetic(op: str, left: CesqlResult, right: CesqlResult) -> CesqlResult:
    left, right = _cast(left, int), _cast(right, int)
    if left.error or right.error:
        return _zero(int, left if left.error else right)
    x, y = int(left.value), int(right.value)
    if op in "/%" and y == 0:
        return CesqlResult(0, CesqlErrorKind.MATH)
    quotient = abs(x) // abs(y or 1) * (1 if (x < 0) == (y < 0) else -1)  # Towards 0.
    outcome = {"+": x + y, "-": x - y, "*": x * y, "/": quotient, "%": x - quotient * y}[op]
    return CesqlResult(outcome) if _INT_MIN <= outcome <= _INT_MAX else CesqlResult(0, CesqlErrorKind.MATH)


def _membership(
    arg: CesqlResult, items: Sequence[_Node], negated: bool, event: Mapping[str, CesqlValue]
) -> CesqlResult:
    if arg.error:
        return _zero(bool, arg)
    for item in items:
        other = _cast(_evaluate(item, event), type(arg.value))
        if other.error:
            return _zero(bool, other)
        if other.value == arg.value:
            return CesqlResult(not negated)
    return CesqlResult(negated)


# ── Casts ──

_ZERO: dict[_Kind, CesqlValue] = {bool: False, int: 0, str: ""}
_WHOLE = re.compile(r"[+-]?[0-9]{1,4000}", re.ASCII)
_TRUTHS = {"true": True, "false": False}


def _cast(result: CesqlResult, target: _Kind) -> CesqlResult:
    """The same value as another type; what has an error keeps it."""
    value = result.value
    if result.error or type(value) is target:
        return result
    if target is str:
        return CesqlResult(str(value).lower())  # Of a boolean, or of digits.
    if not isinstance(value, str):
        return CesqlResult(target(value))
    if target is bool:
        truth = _TRUTHS.get(value.lower())
        return CesqlResult(truth) if truth is not None else CesqlResult(False, CesqlErrorKind.CAST)
    number = int(value) if _WHOLE.fullmatch(value) else _INT_MAX + 1
    return CesqlResult(number) if _INT_MIN <= number <= _INT_MAX else CesqlResult(0, CesqlErrorKind.CAST)


def _zero(kind: _Kind, failed: CesqlResult) -> CesqlResult:
    """What an operator gives whose operand has failed."""
    return CesqlResult(_ZERO[kind], failed.error)


def _cesql_value(value: object) -> CesqlValue:
    if isinstance(value, bool | str):
        return value
    if isinstance(value, int) and _INT_MIN <= value <= _INT_MAX:
        return int(value)
    return str(value)


# ── Functions ──


@dataclass(frozen=True, slots=True)
class _Definition:
    takes: tuple[_Kind, ...]
    gives: _Kind
    call: Callable[..., CesqlResult]
    optional: int = 0
    many: bool = False  # The last type repeats, from no time on.

    def accepts(self, count: int) -> bool:
        least = len(self.takes) - self.optional - self.many
        return count >= least and (self.many or count <= len(self.takes))


def _called(name: str, args: Sequence[_Node], event: Mapping[str, CesqlValue]) -> CesqlResult:
    if name in _CASTS and len(args) == 1:
        found = _evaluate(args[0], event)
        return _zero(_CASTS[name], found) if found.error else _cast(found, _CASTS[name])
    function = _FUNCTIONS.get(name)
    if function is None or not function.accepts(len(args)):
        return CesqlResult(False, CesqlErrorKind.MISSING_FUNCTION)
    values: list[CesqlValue] = []
    for index, arg in enumerate(args):
        value = _cast(_evaluate(arg, event), function.takes[min(index, len(function.takes) - 1)])
        if value.error:
            return _zero(function.gives, value)
        values.append(value.value)
    return function.call(*values)


def _unknown_functions(node: _Node) -> list[str]:
    match node:
        case _Invocation(name, args):
            defined = len(args) == 1 if name in _CASTS else name in _FUNCTIONS and _FUNCTIONS[name].accepts(len(args))
            return [*([] if defined else [name]), *(found for arg in args for found in _unknown_functions(arg))]
        case _Unary(_, arg) | _Like(arg, _, _):
            return _unknown_functions(arg)
        case _In(arg, items, _):
            return [found for each in (arg, *items) for found in _unknown_functions(each)]
        case _Chain(first, rest):
            return [found for each in (first, *(arg for _, arg in rest)) for found in _unknown_functions(each)]
        case _:
            return []


def _abs(x: int) -> CesqlResult:
    return CesqlResult(abs(x)) if x != _INT_MIN else CesqlResult(_INT_MAX, CesqlErrorKind.MATH)


def _concat(*parts: str) -> CesqlResult:
    return _joined("", *parts)


def _joined(delimiter: str, *parts: str) -> CesqlResult:
    if sum(map(len, parts)) + len(delimiter) * max(0, len(parts) - 1) > TEXT_MAX:
        return CesqlResult("", CesqlErrorKind.FUNCTION_EVALUATION)
    return CesqlResult(delimiter.join(parts))


def _left(x: str, y: int) -> CesqlResult:
    return CesqlResult(x[:y]) if y >= 0 else CesqlResult(x, CesqlErrorKind.FUNCTION_EVALUATION)


def _right(x: str, y: int) -> CesqlResult:
    return CesqlResult(x[max(0, len(x) - y) :]) if y >= 0 else CesqlResult(x, CesqlErrorKind.FUNCTION_EVALUATION)


def _substring(x: str, at: int, length: int = _INT_MAX) -> CesqlResult:
    if not -len(x) <= at <= len(x) or length < 0:
        return CesqlResult("", CesqlErrorKind.FUNCTION_EVALUATION)
    if at == 0:
        return CesqlResult("")
    start = at - 1 if at > 0 else len(x) + at
    return CesqlResult(x[start : start + length])


_CASTS: dict[str, _Kind] = {"INT": int, "BOOL": bool, "STRING": str}
_FUNCTIONS: dict[str, _Definition] = {
    "LENGTH": _Definition((str,), int, lambda x: CesqlResult(len(x))),
    "CONCAT": _Definition((str,), str, _concat, many=True),
    "CONCAT_WS": _Definition((str, str), str, _joined, many=True),
    "LOWER": _Definition((str,), str, lambda x: CesqlResult(x.lower())),
    "UPPER": _Definition((str,), str, lambda x: CesqlResult(x.upper())),
    "TRIM": _Definition((str,), str, lambda x: CesqlResult(x.strip(WHITESPACE))),
    "LEFT": _Definition((str, int), str, _left),
    "RIGHT": _Definition((str, int), str, _right),
    "SUBSTRING": _Definition((str, int, int), str, _substring, optional=1),
    "ABS": _Definition((int,), int, _abs),
}
