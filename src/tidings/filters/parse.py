"""The parser: from text to a typed tree in one pass, with the exact position of an error.

A regular expression splits the text into words; precedence climbing turns them into nodes and
checks their types against the event type on the way. Words carry no positions: only an error
needs one, and then the text is split again up to the word in question.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from decimal import Decimal
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
from tidings.events import INT_MAX, INT_MIN, EventType, ValueType
from tidings.filters import decimals
from tidings.filters.functions import ARRAYS, COLLECTIONS, FUNCTIONS, NUMBERS, Kinds
from tidings.filters.syntax import (
    NULL,
    RESERVED,
    And,
    AnyItem,
    Arithmetic,
    AttributeRef,
    Call,
    Compare,
    In,
    IsNull,
    Item,
    Like,
    Literal,
    Negate,
    Node,
    Not,
    Or,
    distinct,
    like_parts,
    like_pattern,
)

LENGTH_MAX: Final = 1 << 20  # Characters: an IN list of fifty thousand number plates.
NESTING_MAX: Final = 100  # Levels of parentheses, NOT and chained arithmetic; people write fewer than ten.
CONCAT_TEXTS_MAX: Final = (
    64  # That one CONCAT joins: so a condition makes at most so many times an event's longest text.
)
REPEATS_MAX: Final = 2  # Levels of operands that the tree repeats; each may double the time to evaluate it.

WORD = re.compile(
    r"""[xX]'[^']*' | '(?:[^'\\]++|\\.?|'')*+(?:'|\Z) | "(?:[^"\\]++|\\.?|"")*+(?:"|\Z)
      | (?:[^\W\d]\w*|`[^`]*`)(?:\.(?:[^\W\d]\w*|`[^`]*`))*
      | (?:\d++(?:\.\d*+)?|\.\d++)(?:[eE][+-]?\d+)?\w*
      | <=|>=|<>|!= | \S""",
    re.VERBOSE | re.DOTALL,
)
NUMBER = re.compile(r"(?:\d++(?:\.\d*+)?|\.\d++)(?:[eE][+-]?\d++)?", re.ASCII)
_CLOSED = re.compile(r"""'(?:[^'\\]++|\\.|'')*+' | "(?:[^"\\]++|\\.|"")*+" | [^'"].*""", re.VERBOSE | re.DOTALL)
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

_ENDS_TERM: Final = {  # What may follow a term in a chain of either; a term of an OR may itself be an AND.
    "AND": frozenset(["AND", "OR", "and", "or", ")", ""]),
    "OR": frozenset(["OR", "or", ")", ""]),
}
_AFTER_ITEM: Final = frozenset([",", ")"])
_SAFE_DIGITS: Final = 18  # Whole numbers with so many digits are within 64 bits.

_NULL_TYPE, _BOOL, _INT, _DOUBLE, _STRING = (
    ValueType.NULL,
    ValueType.BOOL,
    ValueType.INT,
    ValueType.DOUBLE,
    ValueType.STRING,
)
_MOMENTS = {"TIMESTAMP": ValueType.TIMESTAMP, "DATE": ValueType.DATE, "TIME": ValueType.TIME}
_TRUE, _FALSE = Literal(True, _BOOL), Literal(False, _BOOL)


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
        self._names = plain_names(event_type) if event_type else {}
        self._words: list[str] = WORD.findall(text)
        if self._words and not _CLOSED.fullmatch(self._words[-1]):
            self._words[-1] = self._words[-1][0]  # A text without an end reaches to the end of the condition.
        self._words.append("")  # The end; no word is empty.
        self._at = 0
        self._depth = 0
        self._repeats: list[tuple[int, int]] = []  # Operands that the tree repeats: first word, levels of them.
        self._written: dict[int, tuple[Literal, str]] = {}  # Doubles by identity, and their digits.

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
        if words[self._at] == "[":
            node = self._subscript(node, start)
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
        words, binds, ends = self._words, _BINDS[word], _ENDS_TERM[word]
        while True:
            at = self._at
            arg = self._plain_term(words, at, ends) or self._expression(binds)
            if arg.type is not _BOOL:
                self._must_be_truth(arg, at)
            if type(arg) is kind:
                args += arg.args
            else:
                args.append(arg)
            if words[self._at] != word and words[self._at].upper() != word:
                return kind(tuple(args))
            self._at += 1

    def _plain_term(self, words: list[str], at: int, ends: frozenset[str]) -> Node | None:
        """An attribute, alone or compared with a plain constant, between AND or OR: what long chains are made of.

        None for anything else, even if it is only wrong: then the long way finds out.
        """
        attribute = self._names.get(words[at])
        if attribute is None:
            return None
        op, end = _COMPARISONS.get(words[at + 1]), at + 1
        node: Node = attribute
        if op:
            end, right = at + 3, _plain_literal(words[at + 2])
            if right is None or not _compares(attribute.type, right.type):
                return None
            node = Compare(op, attribute, right)
        if words[end] not in ends:
            return None
        self._at = end
        return node

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
        if self._words[self._at] == "[":
            node = self._subscript(node, start)
        self._depth -= 1
        self._must_be(node, start, NUMBERS, "a number after -")
        # The smallest int has no opposite: that is left to be NULL.
        if isinstance(node, Literal) and node.value is not None and node.value != INT_MIN:
            return self._negative(node, start)
        return Negate(node, node.type)

    def _negative(self, node: Literal, at: int) -> Literal:
        if node.type.is_decimal:
            return decimals.decimal_literal(-node.value)
        word = self._written[id(node)][1] if id(node) in self._written else repr(node.value)
        return self._number(word[1:] if word[0] == "-" else "-" + word, at)

    def _subscript(self, node: Node, start: int) -> Node:
        """`array[position]` or `map[key]`."""
        self._must_be(node, start, COLLECTIONS, "an array or a map before [")
        self._at += 1
        at = self._at
        self._deepen()
        place = self._expression(0)
        self._depth -= 1
        self._expect("]", "] after the position or key")
        wanted = node.type.map_key or _INT
        if place.type is not wanted and place.type is not _NULL_TYPE and node.type is not _NULL_TYPE:
            what = "the position of an item, counted from 0" if node.type.map_key is None else f"a key of type {wanted}"
            self._fail(f"expected {what}, got {_a(place.type)}", at=at, error=FilterTypeError)
        if self._words[self._at] == "[":
            self._fail("an item has no items of its own", error=FilterTypeError)
        return Item(node, place, node.type.element or _NULL_TYPE)

    def _exists(self) -> Node:
        start = self._at
        self._deepen()
        node = self._operand()
        self._depth -= 1
        if not isinstance(node, AttributeRef):
            self._fail("expected an attribute after EXISTS", at=start)
        return Not(IsNull(node))

    # Predicates

    def _predicate(self, left: Node, word: str, start: int, at: int) -> Node:
        op = _COMPARISONS.get(word)
        if op:
            right_at = self._at
            if self._words[right_at].upper() in ("ANY", "SOME") and self._words[right_at + 1] == "(":
                return self._any_item(op, left, start)
            return self._compared(op, left, self._expression(_COMPARE), start, right_at)
        word = word.upper()
        if word == "IS":
            return self._is(left, start)
        if word == "NOT":
            word = self._words[self._at].upper()
            self._at += 1
            if word not in _NEGATABLE:
                self._fail("expected IN, LIKE or BETWEEN after NOT", at=self._at - 1)
            return Not(_NEGATABLE[word](self, left, start))
        return _NEGATABLE[word](self, left, start)

    def _any_item(self, op: str, left: Node, start: int) -> Node:
        """`left op ANY(array)`."""
        self._at += 2
        at = self._at
        array = self._expression(0)
        self._expect(")", ") after the array")
        self._must_be(array, at, ARRAYS, "an array in ANY")
        left = self._beside(left, array.type.element or _NULL_TYPE)
        self._must_compare(_item_of(array), left, at, start)
        return AnyItem(op, left, array)

    def _beside(self, node: Node, other: ValueType) -> Node:
        """A constant with a point or an exponent counts as a decimal beside one, exactly as it is written."""
        if not other.is_decimal or id(node) not in self._written:
            return node
        double, word = self._written[id(node)]
        if "e" in repr(double.value):  # So far from 1 that no decimal may hold it.
            number = Decimal(word)
            if abs(number.adjusted()) > decimals.DIGITS_MAX:
                return double
            try:
                return decimals.decimal_literal(number)
            except EventError:
                return double
        return self._decimal(word, self._at - 1)

    def _in(self, left: Node, start: int) -> Node:
        self._expect("(", "( after IN")
        items = self._plain_items(left)
        if items is None:
            self._deepen()
            items = [self._item(left, start)]
            while self._words[self._at] == ",":
                self._at += 1
                items.append(self._item(left, start))
            self._depth -= 1
        self._expect(")", ", or ) in the list")
        if left.type is _DOUBLE and (exact := [item.type for item in items if item.type.is_decimal]):
            left = self._beside(left, exact[0])
            items = [self._beside(item, left.type) for item in items]  # As they would be if it had been one at once.
        return In(left, tuple(items))

    def _plain_items(self, left: Node) -> list[Node] | None:
        """The items of a list of plain constants, all of the type of the attribute; None for any other list."""
        words, at = self._words, self._at
        if words[at + 1] not in _AFTER_ITEM or _plain_literal(words[at]) is None:
            return None
        try:
            end = words.index(")", at)
        except ValueError:
            return None
        found = [_plain_literal(word) for word in words[at:end:2]]
        if None in found or words[at + 1 : end : 2].count(",") != len(found) - 1 or (end - at) % 2 == 0:
            return None
        if not all(_compares(left.type, kind) for kind in {item.type for item in found}):  # type: ignore[union-attr]
            return None
        self._at = end
        return found  # type: ignore[return-value]

    def _item(self, left: Node, start: int) -> Node:
        at = self._at
        item = self._beside(self._expression(0), left.type)
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
        return Like(left, like_pattern(like_parts(pattern)) if "\\" in pattern else pattern)

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
        self._repeat(start)
        terms = (">=", low, low_at), ("<=", high, high_at)
        return And(tuple(self._compared(op, left, bound, start, at) for op, bound, at in terms))

    def _compared(self, op: str, left: Node, right: Node, start: int, at: int) -> Compare:
        if left.type is not right.type or left.type.element is not None:
            left, right = self._beside(left, right.type), self._beside(right, left.type)
            self._must_compare(left, right, start, at)
        return Compare(op, left, right)

    def _is(self, left: Node, start: int) -> Node:
        """`left IS [NOT] NULL` or `left IS [NOT] DISTINCT FROM right`."""
        negated = self._words[self._at].upper() == "NOT"
        self._at += negated
        if self._words[self._at].upper() == "DISTINCT":
            self._at += 1
            self._expect("FROM", "FROM after DISTINCT")
            return self._distinct(left, start, not negated)
        self._expect(
            "NULL", "NULL or DISTINCT FROM after IS NOT" if negated else "[NOT] NULL or [NOT] DISTINCT FROM after IS"
        )
        return Not(IsNull(left)) if negated else IsNull(left)

    def _distinct(self, left: Node, start: int, wanted: bool) -> Node:
        """Whether two values differ, NULL being a value like any other."""
        right_at = self._at
        right = self._expression(_COMPARE)
        self._repeat(start)
        return distinct(self._compared("<>" if wanted else "=", left, right, start, right_at))

    def _repeat(self, start: int) -> None:
        """Notes that the tree has the operand from this word on more than once: more with every level of them."""
        level = 1
        while self._repeats and self._repeats[-1][0] >= start:
            level = max(level, self._repeats.pop()[1] + 1)
        if level > REPEATS_MAX:
            what = f"BETWEEN and IS DISTINCT FROM nested more than {REPEATS_MAX} levels deep"
            self._fail(what, at=start, error=FilterTooLarge)
        self._repeats.append((start, level))

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
                    hint="write a double with a point or an exponent, such as 1e20, or a decimal, such as 1000BD",
                )
            return Literal(number, _INT)
        if bare[-2:] in ("BD", "bd"):
            return self._decimal(word[:-2], at)
        if not NUMBER.fullmatch(bare):
            self._fail(f"{bare!r} is not a number", at=at)
        if math.isinf(double := float(word)):
            self._fail("expected a number within the range of doubles", at=at)
        node = Literal(double, _DOUBLE)
        self._written[id(node)] = (node, word)
        return node

    def _decimal(self, word: str, at: int) -> Literal:
        if not NUMBER.fullmatch(word[1:] if word[0] == "-" else word):
            self._fail(f"{word!r} is not a decimal number", at=at)
        try:
            return decimals.decimal_literal(Decimal(word))
        except EventError:
            self._fail(f"expected a decimal of at most {decimals.DIGITS_MAX} digits", at=at)

    def _named(self, word: str) -> Node:
        following = self._words[self._at + 1]
        if following == "(" and word[0] != "`":
            return self._call(word)
        if following[:1] == "'" and word.upper() in _MOMENTS:
            return self._moment(_MOMENTS[word.upper()])
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
            if name in self._type.others:
                what = f"attribute {name!r} is {self._type.others[name]}"
                self._fail(what, at=self._at - 1, error=FilterTypeError)
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

    def _moment(self, kind: ValueType) -> Node:
        self._at += 1
        try:
            moment = kind.python(_unquote(self._words[self._at]))
        except (EventError, ValueError, OverflowError) as wrong:
            self._fail(str(wrong))
        self._at += 1
        return Literal(moment, kind)

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
            if arg.type not in wanted:
                self._must_be(arg, arg_at, wanted, f"{_or_list(wanted)} as value {index + 1} of {name}")
        nodes = tuple(arg for arg, _ in args)
        if name == "ARRAY_CONTAINS":
            nodes = (nodes[0], self._beside(nodes[1], nodes[0].type.element or _NULL_TYPE))
            self._must_compare(_item_of(nodes[0]), nodes[1], args[0][1], args[1][1])
        if name in _JOINING and (count := sum(map(_texts_in, nodes))) > CONCAT_TEXTS_MAX:
            what = (
                f"{name} may join {CONCAT_TEXTS_MAX} texts, those of calls within it included, this one has {count:,}"
            )
            self._fail(what, at=at, error=FilterTooLarge)
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
        self._must_be(left, start, NUMBERS, f"a number before {op}")
        self._must_be(right, at + 1, NUMBERS, f"a number after {op}")
        left, right = self._beside(left, right.type), self._beside(right, left.type)
        if _DOUBLE in (left.type, right.type):
            return Arithmetic(op, left, right, _DOUBLE)
        if left.type.is_decimal or right.type.is_decimal:
            return self._decimal_arithmetic(op, left, right, at)
        return Arithmetic(op, left, right, _INT)

    def _decimal_arithmetic(self, op: str, left: Node, right: Node, at: int) -> Node:
        if op in "/%":
            hint = "multiply the other side instead, or compute it in the query that makes the events"
            self._fail(f"there is no {op} of decimals", at=at, hint=hint, error=FilterTypeError)
        kinds = [decimals.as_decimal(side) for side in (left, right)]
        if _NULL_TYPE in kinds:  # NULL whatever the other side is.
            kinds = [next(kind for kind in kinds if kind is not _NULL_TYPE)] * 2
        return Arithmetic(op, left, right, decimals.result_type(op, *kinds))

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
        if (a is b and a.element is None) or a is _NULL_TYPE or b is _NULL_TYPE:
            return
        if a.is_number and b.is_number:
            self._must_have_digits(left, right, right_at)
            return
        hint = ""
        if a.has_items or b.has_items:
            hint = "an array is asked by ARRAY_CONTAINS(tags, 'x') or 'x' = ANY(tags), a map by prices['x']"
        elif ValueType.TIMESTAMP in (a, b) and _STRING in (a, b):
            hint = "write a moment as TIMESTAMP '2026-01-31T12:00:00Z'"
        elif ValueType.DATE in (a, b) and _STRING in (a, b):
            hint = "write a day as DATE '2026-01-31'"
        elif ValueType.TIME in (a, b) and _STRING in (a, b):
            hint = "write a time of day as TIME '12:30:00'"
        elif _STRING in (a, b):
            hint = "there are no implicit casts; INT(), BOOL() and STRING() convert"
        self._fail(f"cannot compare {_a(a)} with {_a(b)}", at=right_at, hint=hint, error=FilterTypeError)

    def _must_have_digits(self, left: Node, right: Node, at: int) -> None:
        """Two decimals that no constant is among are compared in a type that holds both."""
        if _DOUBLE in (left.type, right.type) or not (left.type.is_decimal or right.type.is_decimal):
            return
        if isinstance(left, Literal) or (isinstance(right, Literal) and not isinstance(left, Item)):
            return
        kinds = decimals.as_decimal(left), decimals.as_decimal(right)
        if not decimals.have_common_type(*kinds):
            what = (
                f"cannot compare {kinds[0]} with {kinds[1]}: together they take more than {decimals.DIGITS_MAX} digits"
            )
            hint = "cast one of them in the query that makes the events"
            self._fail(what, at=at, hint=hint, error=FilterTypeError)

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


_JOINING: Final = ("CONCAT", "CONCAT_WS")


def _texts_in(node: Node) -> int:
    """How many texts are joined here; what is within another CONCAT was counted there, and is not too much."""
    if type(node) is not Call:
        return 1
    counts = map(_texts_in, node.args)
    return max(1, sum(counts)) if node.name in _JOINING else max(counts, default=1)


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
    "NULL": lambda _: NULL,
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

    def _compared(self, op: str, left: Node, right: Node, start: int, at: int) -> Compare:
        node = super()._compared(op, left, right, start, at)
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
        if kind is _INT:
            kind = _DOUBLE
        elif kind.is_decimal:  # What the constants show are only some of the digits.
            kind = ValueType.decimal(decimals.DIGITS_MAX, max(kind.scale, decimals.DIGITS_MAX // 2))
        if isinstance(node, Item) and isinstance(node.of, AttributeRef) and not kind.has_items:
            self._seen[node.of.name] = _collection(node.at.type, kind)
        elif isinstance(node, AttributeRef) and kind is not _NULL_TYPE:
            self._seen[node.name] = self._seen[node.name] or kind


def _collection(place: ValueType, item: ValueType) -> ValueType:
    """What is asked for an item at such a place: an array by a whole number, a map by anything else."""
    item = _STRING if item is _NULL_TYPE else item
    return ValueType.array(item) if place is _INT or place is _NULL_TYPE else ValueType.map(place, item)


@lru_cache(maxsize=256)  # More event types than one process is likely to mix; a miss costs only time.
def plain_names(event_type: EventType) -> dict[str, AttributeRef]:
    """By name one node for every mention of an attribute by its exact name, where that can mean nothing else."""
    other = RESERVED | _MOMENTS.keys()
    return {a.name: AttributeRef(a.name, a.type) for a in event_type if a.name.upper() not in other}


def _compares(left: ValueType, right: ValueType) -> bool:
    return left is right or (left.is_number and right.is_number)


def _plain_literal(word: str) -> Literal | None:
    """The constant that a word is, where nothing can be wrong with it; None where that takes a closer look."""
    if word[:1] == "'":
        text = word[1:-1]
        return Literal(text, _STRING) if len(word) > 1 and "\\" not in text and "'" not in text else None
    if word.isdecimal():
        return Literal(int(word), _INT) if len(word) <= _SAFE_DIGITS and word.isascii() else None
    return None


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
    if kind is _NULL_TYPE:
        return "NULL"
    return f"an {kind}" if kind is _INT or kind.kind == "array" else f"a {kind}"


def _item_of(array: Node) -> Node:
    """Any item of an array, where only its type counts."""
    return Item(array, Literal(0, _INT), array.type.element or _NULL_TYPE)


def _or_list(kinds: tuple[ValueType, ...]) -> str:
    if isinstance(kinds, Kinds):
        return kinds.name
    return " or ".join(_a(kind) for kind in kinds)
