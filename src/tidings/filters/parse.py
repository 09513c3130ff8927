"""The parser: from text to a typed tree in one pass, with the exact position of an error.

A regular expression splits the text into words; precedence climbing turns them into nodes and
checks their types against the event type on the way. Words carry no positions: only an error
needs one, and then the text is split again up to the word in question.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final, NoReturn

from tidings.errors import (
    EventError,
    EventTypeError,
    FilterError,
    FilterSyntaxError,
    FilterTooLarge,
    FilterTypeError,
    did_you_mean,
)
from tidings.events import INT_MAX, INT_MIN, EventType, Timestamp, ValueType
from tidings.filters.functions import FUNCTIONS
from tidings.filters.syntax import (
    RESERVED,
    And,
    Arithmetic,
    AttributeRef,
    Call,
    Compare,
    In,
    IsNull,
    Like,
    Literal,
    Negate,
    Node,
    Not,
    Or,
    like_parts,
    like_pattern,
)

LENGTH_MAX: Final = 1 << 20  # Characters: an IN list of fifty thousand number plates.
NESTING_MAX: Final = 100  # Levels of parentheses, NOT and chained arithmetic; people write fewer than ten.

WORD = re.compile(
    r"""[xX]'[^']*' | '(?:[^'\\]|\\.|'')*' | "(?:[^"\\]|\\.|"")*"
      | (?:[^\W\d]\w*|`[^`]*`)(?:\.(?:[^\W\d]\w*|`[^`]*`))*
      | (?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?\w*
      | <=|>=|<>|!= | \S""",
    re.VERBOSE | re.DOTALL,
)
NUMBER = re.compile(r"(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_NAME_PART = re.compile(r"`([^`]*)`|([^.`]+)")
_ESCAPE = {"'": re.compile(r"''|\\(['\"\\])"), '"': re.compile(r"\"\"|\\(['\"\\])")}

_COMPARISONS = {"=": "=", "<>": "<>", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_OR, _XOR, _AND, _NOT, _COMPARE, _ADD, _MULTIPLY = range(1, 8)
_BINDS = {
    "OR": _OR,
    "XOR": _XOR,
    "AND": _AND,
    **dict.fromkeys([*_COMPARISONS, "IN", "LIKE", "BETWEEN", "IS", "NOT"], _COMPARE),
    "+": _ADD,
    "-": _ADD,
    **dict.fromkeys("*/%", _MULTIPLY),
    **dict.fromkeys(["", ")", ","], 0),
}

_NULL_TYPE, _BOOL, _INT, _DOUBLE, _STRING = (
    ValueType.NULL,
    ValueType.BOOL,
    ValueType.INT,
    ValueType.DOUBLE,
    ValueType.STRING,
)
_TRUE, _FALSE, _NULL = Literal(True, _BOOL), Literal(False, _BOOL), Literal(None, _NULL_TYPE)


def parse_tree(text: str, event_type: EventType | None = None) -> Node:
    """The tree of a condition over events of this type; without a type, over what the condition itself suggests.

    Raises FilterSyntaxError, FilterTypeError or FilterTooLarge, each with the column.
    """
    return _Parser(text, event_type or guess_type(text)).condition()


def parse_value(text: str, event_type: EventType) -> Node:
    """The tree of any expression: a condition or a value."""
    return _Parser(text, event_type).value()


def guess_type(text: str) -> EventType:
    """The event type a condition seems to be about: each attribute has the type of what it is used with.

    Numbers are taken for doubles, and an attribute whose use shows no type for a string.

    >>> print(guess_type("price > 10 AND city = 'Rome' AND paid"))
    Event(price double, city string, paid bool)
    """
    return _Guesser(text).guess()


class _Parser:
    """One text being read. `_at` is the index of the next word."""

    def __init__(self, text: str, event_type: EventType | None) -> None:
        if len(text) > LENGTH_MAX:
            raise FilterTooLarge(f"a condition may have {LENGTH_MAX:,} characters, this one has {len(text):,}", text, 1)
        self._text = text
        if not text.isascii():
            self._must_be_unicode()
        self._type = event_type
        self._names = _nodes_of(event_type) if event_type else {}
        self._words: list[str] = WORD.findall(text)
        self._words.append("")  # The end; no word is empty.
        self._at = 0
        self._depth = 0

    def condition(self) -> Node:
        node = self.value()
        self._must_be_truth(node, 0)
        return node

    def value(self) -> Node:
        node = self._expression(0)
        if self._words[self._at]:
            self._fail("expected AND, OR or the end")
        return node

    # Expressions, loosest binding first

    def _expression(self, floor: int) -> Node:
        """What can be read here with operators that bind tighter than `floor`."""
        words, start = self._words, self._at
        node = self._operand()
        chain = 0
        while True:
            word = words[self._at]
            binds = _BINDS.get(word)
            if binds is None:
                binds = _BINDS.get(word.upper(), 0)
            if binds <= floor:
                self._depth -= chain
                return node
            operator_at = self._at
            self._at = operator_at + 1
            if binds == _COMPARE:
                node = self._predicate(node, word, start, operator_at)
                if words[self._at] in _COMPARISONS:
                    self._fail("comparisons do not chain; use AND, or parentheses")
            elif binds >= _ADD:
                self._deepen()
                chain += 1
                node = self._arithmetic(word, node, self._expression(binds), start, operator_at)
            elif binds == _XOR:
                self._deepen()
                chain += 1
                node = self._xor(node, self._expression(binds), start, operator_at)
            else:
                node = self._chain(word.upper(), node, start)

    def _chain(self, word: str, first: Node, start: int) -> Node:
        """`a AND b AND c` as one node, and the same for OR."""
        kind: type[And] | type[Or] = And if word == "AND" else Or
        self._must_be_truth(first, start)
        args = list(first.args) if isinstance(first, kind) else [first]
        words, binds = self._words, _BINDS[word]
        while True:
            at = self._at
            arg = self._expression(binds)
            if arg.type is not _BOOL:
                self._must_be_truth(arg, at)
            args.extend(arg.args if isinstance(arg, kind) else (arg,))
            if words[self._at] != word and words[self._at].upper() != word:
                return kind(tuple(args))
            self._at += 1

    def _operand(self) -> Node:
        word = self._words[self._at]
        if (attribute := self._names.get(word)) and self._words[self._at + 1] != "(":
            self._at += 1
            return attribute  # What most operands are, and known without a further look.
        special = _SPECIAL.get(word) or _SPECIAL.get(word.upper())
        if special:
            self._at += 1
            return special(self)
        first = word[:1]
        if first == "'" or first == '"':
            return self._string(word)
        if first.isdigit() or (first == "." and len(word) > 1):
            self._at += 1
            return self._number(word, self._at - 1)
        if first.isalpha() or first == "_" or first == "`":
            return self._named(word)
        return self._fail("expected an attribute, a value or (" if word else "expected a value before the end")

    def _parenthesis(self) -> Node:
        open_at = self._at - 1
        self._deepen()
        node = self._expression(0)
        self._depth -= 1
        if self._words[self._at] != ")":
            self._fail("expected )", hint=f"to close the ( at column {self._column(open_at)}")
        self._at += 1
        return node

    def _not(self) -> Node:
        start = self._at
        self._deepen()
        node = self._expression(_NOT)
        self._depth -= 1
        self._must_be_truth(node, start)
        return Not(node)

    def _minus(self) -> Node:
        start = self._at
        word = self._words[start]
        if word[:1].isdigit() or (word[:1] == "." and len(word) > 1):
            self._at += 1
            return self._number("-" + word, start)
        self._deepen()
        node = self._operand()
        self._depth -= 1
        self._must_be(node, start, (_INT, _DOUBLE), "a number after -")
        # The smallest int has no opposite: that is left to be NULL.
        if isinstance(node, Literal) and node.value is not None and node.value != INT_MIN:
            return self._number(repr(-node.value), start)
        return Negate(node, node.type)

    def _exists(self) -> Node:
        start = self._at
        node = self._operand()
        if not isinstance(node, AttributeRef):
            self._fail("expected an attribute after EXISTS", at=start)
        return Not(IsNull(node))

    # Predicates

    def _predicate(self, left: Node, word: str, start: int, at: int) -> Node:
        op = _COMPARISONS.get(word)
        if op:
            right_at = self._at
            right = self._expression(_COMPARE)
            if left.type is not right.type:
                self._must_compare(left, right, start, right_at)
            return Compare(op, left, right)
        word = word.upper()
        if word == "IS":
            return self._is_null(left)
        if word == "NOT":
            word = self._words[self._at].upper()
            self._at += 1
            if word not in _NEGATABLE:
                self._fail("expected IN, LIKE or BETWEEN after NOT", at=self._at - 1)
            return Not(_NEGATABLE[word](self, left, start))
        return _NEGATABLE[word](self, left, start)

    def _in(self, left: Node, start: int) -> Node:
        self._expect("(", "( after IN")
        items = [self._item(left, start)]
        while self._words[self._at] == ",":
            self._at += 1
            items.append(self._item(left, start))
        self._expect(")", ", or ) in the list")
        return In(left, tuple(items))

    def _item(self, left: Node, start: int) -> Node:
        at = self._at
        item = self._expression(0)
        self._must_compare(left, item, start, at)
        return item

    def _like(self, left: Node, start: int) -> Node:
        self._must_be(left, start, (_STRING,), "a text before LIKE")
        pattern = self._pattern("LIKE")
        if self._words[self._at].upper() == "ESCAPE":
            self._at += 1
            at = self._at
            escape = self._pattern("ESCAPE")
            if len(escape) != 1 or escape in "%_":
                self._fail("expected one character other than % and _ after ESCAPE", at=at)
            pattern = _with_backslashes(pattern, escape)
        return Like(left, like_pattern(like_parts(pattern)))

    def _pattern(self, after: str) -> str:
        word = self._words[self._at]
        if word[:1] not in ("'", '"') or len(word) < 2:
            self._fail(f"expected a 'text' after {after}")
        self._at += 1
        return _unquote(word)

    def _between(self, left: Node, start: int) -> Node:
        low_at = self._at
        low = self._expression(_COMPARE)
        if self._words[self._at].upper() != "AND":
            self._fail("expected AND after the lower bound of BETWEEN")
        self._at += 1
        high_at = self._at
        high = self._expression(_COMPARE)
        self._must_compare(left, low, start, low_at)
        self._must_compare(left, high, start, high_at)
        return And((Compare(">=", left, low), Compare("<=", left, high)))

    def _is_null(self, left: Node) -> Node:
        negated = self._words[self._at].upper() == "NOT"
        self._at += negated
        self._expect("NULL", "NULL after IS NOT" if negated else "NULL or NOT NULL after IS")
        return Not(IsNull(left)) if negated else IsNull(left)

    # Values

    def _string(self, word: str) -> Node:
        if len(word) < 2:
            self._fail("this text is never closed", hint=f"put a {word} at its end")
        self._at += 1
        return Literal(_unquote(word), _STRING)

    def _number(self, word: str, at: int) -> Literal:
        bare = word[1:] if word[0] == "-" else word
        if bare.isdecimal() and bare.isascii():
            number = int(word) if len(word) <= 20 else INT_MAX + 1
            if not INT_MIN <= number <= INT_MAX:
                self._fail(
                    "expected a whole number within 64 bits",
                    at=at,
                    hint="write a double with a point or an exponent, such as 1e20",
                )
            return Literal(number, _INT)
        if not NUMBER.fullmatch(bare):
            self._fail(f"{bare!r} is not a number", at=at)
        if math.isinf(double := float(word)):
            self._fail("expected a number within the range of doubles", at=at)
        return Literal(double, _DOUBLE)

    def _named(self, word: str) -> Node:
        following = self._words[self._at + 1]
        if following == "(" and word[0] != "`":
            return self._call(word)
        if following[:1] == "'" and word.upper() == "TIMESTAMP":
            return self._timestamp()
        if word[1:2] == "'":
            return self._bytes(word)
        if word.upper() in RESERVED:
            self._fail(
                f"expected an attribute or a value, not {word.upper()}",
                hint=f"an attribute of that name is written `{word}`",
            )
        self._at += 1
        return self._attribute(word)

    def _attribute(self, word: str) -> Node:
        assert self._type is not None
        name = self._name(word)
        found = self._type.find(name)
        if found is None:
            known = [attribute.name for attribute in self._type]
            hint = did_you_mean(name, known) or f"it has {', '.join(known[:20]) or 'no attributes'}"
            self._fail(
                f"{self._type.name} has no attribute {name!r}", at=self._at - 1, hint=hint, error=FilterTypeError
            )
        return AttributeRef(found.name, found.type)

    def _name(self, word: str) -> str:
        if word == "`":
            self._fail("expected a name between backticks", at=self._at - 1)
        return _unquote_name(word) if "`" in word else word

    def _timestamp(self) -> Node:
        self._at += 1
        try:
            moment = Timestamp(_unquote(self._words[self._at]))
        except (EventError, ValueError, OverflowError) as wrong:
            self._fail(str(wrong))
        self._at += 1
        return Literal(moment, ValueType.TIMESTAMP)

    def _bytes(self, word: str) -> Node:
        try:
            raw = bytes.fromhex(word[2:-1])
        except ValueError:
            self._fail("expected pairs of hexadecimal digits, such as X'00ff'")
        self._at += 1
        return Literal(raw, ValueType.BYTES)

    def _call(self, word: str) -> Node:
        name, at = word.upper(), self._at
        if name not in FUNCTIONS:
            hint = did_you_mean(name, FUNCTIONS) or f"there are {', '.join(FUNCTIONS)}"
            self._fail(f"there is no function {name}", hint=hint)
        self._at += 2
        args = self._arguments()
        function = FUNCTIONS[name]
        if not function.accepts(len(args)):
            self._fail(f"{name} takes {function.arity()} values, got {len(args)}", at=at, error=FilterTypeError)
        for index, (arg, arg_at) in enumerate(args):
            wanted = function.types_at(index)
            self._must_be(arg, arg_at, wanted, f"{_or_list(wanted)} as value {index + 1} of {name}")
        nodes = tuple(arg for arg, _ in args)
        return Call(name, nodes, function.gives or nodes[0].type)

    def _arguments(self) -> list[tuple[Node, int]]:
        self._deepen()
        args: list[tuple[Node, int]] = []
        while self._words[self._at] != ")" or args:
            at = self._at
            args.append((self._expression(0), at))
            if self._words[self._at] != ",":
                break
            self._at += 1
        self._expect(")", ", or ) after the values")
        self._depth -= 1
        return args

    # Types

    def _arithmetic(self, op: str, left: Node, right: Node, start: int, at: int) -> Node:
        self._must_be(left, start, (_INT, _DOUBLE), f"a number before {op}")
        self._must_be(right, at + 1, (_INT, _DOUBLE), f"a number after {op}")
        whole = left.type is not _DOUBLE and right.type is not _DOUBLE
        return Arithmetic(op, left, right, _INT if whole else _DOUBLE)

    def _xor(self, left: Node, right: Node, start: int, at: int) -> Node:
        self._must_be_truth(left, start)
        self._must_be_truth(right, at + 1)
        return Compare("<>", left, right)

    def _must_be_truth(self, node: Node, at: int) -> None:
        if node.type is not _BOOL:
            self._must_be(node, at, (_BOOL,), "something true or false")

    def _must_be(self, node: Node, at: int, wanted: tuple[ValueType, ...], what: str) -> None:
        if node.type not in wanted and node.type is not _NULL_TYPE:
            self._fail(f"expected {what}, got {_a(node.type)}", at=at, error=FilterTypeError)

    def _must_compare(self, left: Node, right: Node, left_at: int, right_at: int) -> None:
        a, b = left.type, right.type
        if a is b or a is _NULL_TYPE or b is _NULL_TYPE or (a.is_number and b.is_number):
            return
        hint = ""
        if ValueType.TIMESTAMP in (a, b) and _STRING in (a, b):
            hint = "write a moment as TIMESTAMP '2026-01-31T12:00:00Z'"
        elif _STRING in (a, b):
            hint = "there are no implicit casts; INT(), BOOL() and STRING() convert"
        self._fail(f"cannot compare {_a(a)} with {_a(b)}", at=right_at, hint=hint, error=FilterTypeError)

    # Words

    def _expect(self, word: str, what: str) -> None:
        if self._words[self._at].upper() != word:
            self._fail(f"expected {what}")
        self._at += 1

    def _deepen(self) -> None:
        self._depth += 1
        if self._depth > NESTING_MAX:
            self._fail(f"nested more than {NESTING_MAX} levels deep", at=self._at - 1, error=FilterTooLarge)

    def _fail(
        self, what: str, *, at: int | None = None, hint: str = "", error: type[FilterError] = FilterSyntaxError
    ) -> NoReturn:
        at = self._at if at is None else at
        raise error(what, self._text, self._column(at), hint) from None

    def _must_be_unicode(self) -> None:
        try:
            self._text.encode()
        except UnicodeEncodeError as wrong:
            raise FilterSyntaxError("this is not Unicode text", self._text, wrong.start + 1) from None

    def _column(self, at: int) -> int:
        """The column of word number `at`, from 1; the end has the column after the last character."""
        for index, found in enumerate(WORD.finditer(self._text)):
            if index == at:
                return found.start() + 1
        return len(self._text.rstrip()) + 1


_NEGATABLE: Final[dict[str, Callable[[_Parser, Node, int], Node]]] = {
    "IN": _Parser._in,
    "LIKE": _Parser._like,
    "BETWEEN": _Parser._between,
}
_SPECIAL: Final[dict[str, Callable[[_Parser], Node]]] = {
    "(": _Parser._parenthesis,
    "-": _Parser._minus,
    "NOT": _Parser._not,
    "EXISTS": _Parser._exists,
    "TRUE": lambda _: _TRUE,
    "FALSE": lambda _: _FALSE,
    "NULL": lambda _: _NULL,
}


class _Guesser(_Parser):
    """Reads a condition without knowing types, and remembers what each attribute is used with.

    Attributes have the type NULL meanwhile, which goes with everything; the checks, which would
    complain, take notes instead.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text, None)
        self._seen: dict[str, ValueType | None] = {}
        self._same: list[tuple[str, str]] = []

    def guess(self) -> EventType:
        self.condition()
        for one, other in self._same * 2:  # Twice, so that what is learnt last also reaches what came first.
            known = self._seen[one] or self._seen[other]
            self._seen[one] = self._seen[other] = known
        return self._event_type({name: kind or _STRING for name, kind in self._seen.items()}, at=0)

    def _attribute(self, word: str) -> Node:
        name = self._name(word)
        if name not in self._seen:
            self._event_type({name: _STRING}, at=self._at - 1)
            self._seen[name] = None
        return AttributeRef(name, _NULL_TYPE)

    def _event_type(self, attributes: dict[str, ValueType], at: int) -> EventType:
        try:
            return EventType("Event", attributes)
        except EventTypeError as wrong:
            self._fail(str(wrong), at=at)

    def _predicate(self, left: Node, word: str, start: int, at: int) -> Node:
        node = super()._predicate(left, word, start, at)
        if isinstance(node, Compare):
            self._must_compare(node.left, node.right, start, at)
        return node

    def _must_be(self, node: Node, at: int, wanted: tuple[ValueType, ...], what: str) -> None:
        likely = next((kind for kind in (_STRING, _DOUBLE) if kind in wanted), wanted[0])
        self._learn(node, likely)
        super()._must_be(node, at, wanted, what)

    def _must_compare(self, left: Node, right: Node, left_at: int, right_at: int) -> None:
        self._learn(left, right.type)
        self._learn(right, left.type)
        if isinstance(left, AttributeRef) and isinstance(right, AttributeRef):
            self._same.append((left.name, right.name))
        super()._must_compare(left, right, left_at, right_at)

    def _learn(self, node: Node, kind: ValueType) -> None:
        if isinstance(node, AttributeRef) and kind is not _NULL_TYPE:
            self._seen[node.name] = self._seen[node.name] or (_DOUBLE if kind is _INT else kind)


@lru_cache(maxsize=256)  # More event types than one process is likely to mix; a miss costs only time.
def _nodes_of(event_type: EventType) -> dict[str, AttributeRef]:
    """One node for every mention of an attribute by its exact name, where that can mean nothing else."""
    other = RESERVED | {"TIMESTAMP"}
    return {a.name: AttributeRef(a.name, a.type) for a in event_type if a.name.upper() not in other}


def _unquote(word: str) -> str:
    body = word[1:-1]
    quote = word[0]
    if "\\" not in body and quote not in body:
        return body
    return _ESCAPE[quote].sub(lambda found: found[1] or quote, body)


def _unquote_name(word: str) -> str:
    return ".".join(found[2] or found[1] for found in _NAME_PART.finditer(word))


def _with_backslashes(pattern: str, escape: str) -> str:
    r"""A pattern whose escape character is another one, rewritten for \\."""
    escaped = re.compile(f"{re.escape(escape)}([%_{re.escape(escape)}])|(\\\\)", re.DOTALL)
    return escaped.sub(lambda found: "\\\\" if found[2] or found[1] == "\\" else _keep(found[1]), pattern)


def _keep(char: str) -> str:
    return "\\" + char if char in "%_" else char


def _a(kind: ValueType) -> str:
    return f"an {kind}" if kind is _INT else f"a {kind}" if kind is not _NULL_TYPE else "NULL"


def _or_list(kinds: tuple[ValueType, ...]) -> str:
    return " or ".join(_a(kind) for kind in kinds)
