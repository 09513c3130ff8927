"""The residual conditions of a segment: compiled when they are first needed, and evaluated the cheapest way.

The boxes leave pairs of a row and a set of residual conditions, all of which must be TRUE. Conditions with
many pairs are evaluated one by one: on the different texts where they look at one text only, on all rows, or on their
rows. Those with few pairs are evaluated together with all others of their shape, pair by pair, their constants being
columns as well. So a batch takes a few calls of NumPy for each frequent condition, and a few for each shape.

| | once per | cost |
| --- | --- | --- |
| by texts | different text of the batch | texts + pairs |
| by rows | row, where at least a quarter are asked for | rows + pairs |
| by pairs | pair | pairs |

Conditions that round decimals have no columns: they are evaluated in Python, pair by pair. So are all conditions
while a batch has a few pairs only, since a call of NumPy costs more than a closure.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from tidings.events import EventType, Value
from tidings.filters import Condition, parse
from tidings.matching.box_table import Array
from tidings.matching.kernels import pairs as pair_kernels
from tidings.matching.kernels.texts import PatternArrays
from tidings.matching.residuals.column import Column
from tidings.matching.residuals.expression import PATTERN_PARAMETER, Expression, Expressions, has_columns
from tidings.matching.residuals.frame import ColumnFrame, PairFrame, RowFrame
from tidings.matching.residuals.patterns import compile_patterns

WIDE_PAIRS: Final = (
    1024  # Pairs of one condition from which on a few calls of NumPy for it alone cost less than its share of a shape.
)
PAIRS_FEW: Final = 64  # Pairs in all, up to which closures cost less than columns.
PAIRS_MAX: Final = 65_536  # Pairs that are evaluated together, which bounds their memory.
ROWS_SHARE: Final = 4  # A condition that is asked of a quarter of all rows is evaluated for all.
PICKED_SHARE: Final = 2  # Rows without any doubt are left out if they are half of all.
TESTS_MAX: Final = 65_536  # Sets that are kept as closures, for single events.
NOT_COMPILED: Final = -1
WITHOUT_COLUMNS: Final = -2

Test: TypeAlias = Callable[[Mapping[str, Value]], bool]


class Residuals:
    """Sets of residual conditions, by number. May be used by several threads at once."""

    def __init__(self, sets: Sequence[tuple[str, ...]], event_type: EventType) -> None:
        self.sets = sets
        self._event_type = event_type
        self._tests: dict[int, tuple[Test, frozenset[str]]] = {}
        self._program: _Program | None = None
        self._lock = threading.Lock()

    def test(self, number: int) -> Test:
        """A set as a closure over one event's values."""
        return self._test(number)[0]

    def _test(self, number: int) -> tuple[Test, frozenset[str]]:
        """The closure, and the attributes that it looks at."""
        test = self._tests.get(number)
        if test is None:
            conditions = [parse(text, self._event_type) for text in self.sets[number]]
            test = _all(conditions), frozenset(name for condition in conditions for name in condition.attributes)
            if len(self._tests) >= TESTS_MAX:
                self._tests = {}  # Not emptied: another thread may be reading it.
            self._tests[number] = test
        return test

    def holding(self, rows: pa.Table, events: Array, numbers: Array) -> Array:
        """Whether all conditions of the set numbers[i] are TRUE of row events[i] of a conformed table."""
        if len(events) <= PAIRS_FEW:
            return self._one_by_one(rows, events, numbers)
        with self._lock:
            if self._program is None:
                self._program = _Program(self.sets, self._event_type)
        program, frame, places = self._program, *_frame(rows, self._event_type, events)
        held, left, level = np.zeros(len(events), bool), np.arange(len(events)), 0
        while len(left):  # The sets' first conditions, then the second ones of those that are still there.
            conditions, more = program.conditions(numbers[left], level)
            program.compile(conditions)
            is_true = np.ones(len(left), bool)
            is_true[more] = _Evaluation(program, frame).truths(places[left[more]], conditions)
            held[left[is_true & ~more]] = True
            left, level = left[is_true & more], level + 1
        return held

    def _one_by_one(self, rows: pa.Table, events: Array, numbers: Array) -> Array:
        wanted = [self._test(number) for number in numbers.tolist()]
        names = sorted(frozenset[str]().union(*(names for _, names in wanted)))
        values = RowFrame(rows, self._event_type).values_at(events, names)
        return np.array([test(here) for (test, _), here in zip(wanted, values)], bool)


def _all(conditions: Sequence[Condition]) -> Test:
    tests = [condition.matches for condition in conditions]
    if len(tests) == 1:
        return tests[0]
    return lambda values: all(test(values) for test in tests)


def _frame(rows: pa.Table, event_type: EventType, events: Array) -> tuple[RowFrame, Array]:
    """The rows that are asked for, or all if those are most; and where each event's row is."""
    asked = np.zeros(rows.num_rows, bool)
    asked[events] = True
    picked = np.flatnonzero(asked)
    if len(picked) * PICKED_SHARE > rows.num_rows:
        return RowFrame(rows, event_type), events
    place = np.empty(rows.num_rows, np.int32)
    place[picked] = np.arange(len(picked), dtype=np.int32)
    return RowFrame(rows, event_type, picked), place[events]


# ── Compiling ────────────────────────────────────────────────────────────────


class _Shape:
    """Conditions that differ in their constants only: members, by number."""

    def __init__(self, expression: Expression, first: Sequence[Any]) -> None:
        self.expression = expression
        self._constants: list[Sequence[Any]] = []
        self._columns: list[Column | PatternArrays] = []
        self._built = 0
        self._leaves = _parameters(expression, len(first))

    def add(self, constants: Sequence[Any]) -> int:
        self._constants.append(constants)
        return len(self._constants) - 1

    def build(self) -> None:
        """Makes the constants of all members columns."""
        if self._built < len(self._constants):
            self._columns = [self._column(leaf, at) for at, leaf in enumerate(self._leaves)]
            self._built = len(self._constants)

    def constants_of(self, members: Array) -> list[Any]:
        """Per parameter the constants of these members, as a PairFrame takes them."""
        return [c.take(members) if isinstance(c, Column) else (c, members) for c in self._columns]

    def _column(self, leaf: Expression, at: int) -> Column | PatternArrays:
        values = [constants[at] for constants in self._constants]
        return compile_patterns(values) if leaf.operator == PATTERN_PARAMETER else Column.constants(values, leaf.type)


def _parameters(expression: Expression, count: int) -> list[Expression]:
    leaves: dict[int, Expression] = {}
    rest = [expression]
    while rest:
        here = rest.pop()
        if here.has_parameters and not here.args:
            leaves[here.detail] = here
        rest += here.args
    return [leaves[at] for at in range(count)]


class _Program:
    """Every different condition by number, and once it was needed, its shape and place in it."""

    def __init__(self, sets: Sequence[tuple[str, ...]], event_type: EventType) -> None:
        numbers: dict[str, int] = {}
        items = [numbers.setdefault(text, len(numbers)) for texts in sets for text in texts]
        self._texts = list(numbers)
        self._event_type = event_type
        self._items = np.array([*items, 0], np.int32)
        self._ptr = np.cumsum([0, *map(len, sets)])
        self._expressions = Expressions()
        self._trees: dict[int, Any] = {}
        self._bound: dict[int, Expression] = {}
        self.tests: dict[int, Condition] = {}
        """Conditions that have no columns."""
        self._shape_numbers: dict[Expression, int] = {}
        self._lock = threading.Lock()
        self._fresh: list[tuple[int, int]] = []
        self._next = 0  # Of the conditions that are compiled ahead of need.
        self.shapes: list[_Shape] = []
        self.shape_of = np.full(len(self._texts), NOT_COMPILED, np.int32)
        self.member_of = np.zeros(len(self._texts), np.int32)

    def conditions(self, sets: Array, level: int) -> tuple[Array, Array]:
        """The sets' conditions at `level`, and which sets have one."""
        at = self._ptr[sets] + level
        more = at < self._ptr[sets + 1]
        return self._items[at[more]], more

    def compile(self, conditions: Array) -> None:
        """Compiles what is not yet, and as many others as are: so constants become columns a few times in all."""
        missing = np.unique(conditions[self.shape_of[conditions] == NOT_COMPILED])
        if not len(missing):
            return
        with self._lock:
            for number in [*missing.tolist(), *self._ahead(len(self._trees) + len(missing))]:
                if number not in self._trees:
                    self._compile(number)
            for shape in self.shapes:
                shape.build()
            for number, at in self._fresh:  # Last, because other threads take these as compiled.
                self.shape_of[number] = at
            self._fresh.clear()

    def _ahead(self, count: int) -> range:
        """The next conditions to be compiled ahead of need."""
        start, self._next = self._next, min(self._next + count, len(self._texts))
        return range(start, self._next)

    def _compile(self, number: int) -> None:
        condition = parse(self._texts[number], self._event_type)
        tree = self._trees[number] = condition.tree
        if not has_columns(tree):
            self.tests[number] = condition
            self._fresh.append((number, WITHOUT_COLUMNS))
            return
        expression, constants = self._expressions.shape(tree)
        at = self._shape_numbers.setdefault(expression, len(self.shapes))
        if at == len(self.shapes):
            self.shapes.append(_Shape(expression, constants))
        self.member_of[number] = self.shapes[at].add(constants)
        self._fresh.append((number, at))

    def bound(self, number: int) -> Expression:
        """A condition with its constants."""
        with self._lock:
            if number not in self._bound:
                self._bound[number] = self._expressions.bound(self._trees[number])
            return self._bound[number]


# ── Evaluating ───────────────────────────────────────────────────────────────


class _Evaluation:
    """One batch: conditions that are asked of rows of a frame."""

    def __init__(self, program: _Program, frame: RowFrame) -> None:
        self._program, self._frame = program, frame

    def truths(self, rows: Array, conditions: Array) -> Array:
        """Whether conditions[i] is TRUE of row rows[i]."""
        found = np.zeros(len(rows), bool)
        if self._program.tests:
            alone = self._program.shape_of[conditions] == WITHOUT_COLUMNS
            if alone.any():
                found[alone] = self._one_by_one(rows[alone], conditions[alone])
                found[~alone] = self.truths(rows[~alone], conditions[~alone]) if not alone.all() else False
                return found
        present, groups, ptr, order = _grouped(conditions, len(self._program.shape_of))
        counts = np.diff(ptr)
        is_wide = counts >= WIDE_PAIRS
        for at in np.flatnonzero(is_wide).tolist():
            here = order[ptr[at] : ptr[at + 1]]
            found[here] = self._alone(self._program.bound(int(present[at])), rows[here])
        few = np.flatnonzero(~is_wide[groups]) if is_wide.any() else np.arange(len(rows))
        if len(few):
            found[few] = self._together(rows[few], conditions[few])
        return found

    def _one_by_one(self, rows: Array, conditions: Array) -> list[bool]:
        tests = [self._program.tests[number] for number in conditions.tolist()]
        names = {name for test in set(tests) for name in test.attributes}
        return [test.matches(values) for test, values in zip(tests, self._frame.values_at(rows, sorted(names)))]

    def _alone(self, expression: Expression, rows: Array) -> Array:
        frame, name = self._frame, expression.sole_text
        if name is not None and frame.distinct(name).size <= min(len(rows), frame.fitting(expression)):
            texts = frame.distinct(name)
            return _true_at(texts, expression, texts.codes[rows])
        wide = name is None and len(rows) * ROWS_SHARE >= frame.size
        if frame.holds(expression) or (wide and frame.size <= frame.fitting(expression)):
            return _true_at(frame, expression, rows)
        return self._by_pairs(expression, rows)

    def _together(self, rows: Array, conditions: Array) -> Array:
        found = np.zeros(len(rows), bool)
        present, _, ptr, order = _grouped(self._program.shape_of[conditions], len(self._program.shapes))
        for at, number in enumerate(present.tolist()):
            here, shape = order[ptr[at] : ptr[at + 1]], self._program.shapes[number]
            found[here] = self._by_pairs(shape.expression, rows[here], shape, self._program.member_of[conditions[here]])
        return found

    def _by_pairs(
        self, expression: Expression, rows: Array, shape: _Shape | None = None, members: Array | None = None
    ) -> Array:
        size = min(PAIRS_MAX, self._frame.fitting(expression))
        parts = []
        for start in range(0, len(rows), size):
            here = slice(start, start + size)
            constants = [] if shape is None or members is None else shape.constants_of(members[here])
            pairs = PairFrame(self._frame, rows[here], constants)
            parts.append(np.broadcast_to(pairs.column(expression).values.astype(bool), pairs.size))
        return np.concatenate(parts)


def _true_at(frame: ColumnFrame, expression: Expression, places: Array) -> Array:
    values = frame.column(expression).values
    return np.broadcast_to(values, len(places)) if len(values) == 1 else values[places]


def _grouped(numbers: Array, count: int) -> tuple[Array, Array, Array, Array]:
    """The numbers that occur, per item the place of its number among them, and the items by number: pointers, order."""
    if len(numbers) * 8 < count:
        present, groups = np.unique(numbers, return_inverse=True)
    else:
        occurs = np.bincount(numbers, minlength=count) > 0
        present, groups = np.flatnonzero(occurs), (np.cumsum(occurs) - 1)[numbers]
    ptr, order = np.empty(len(present) + 1, np.int64), np.empty(len(numbers), np.int32)
    pair_kernels.group(groups.astype(np.int32), ptr, order)
    return present, groups, ptr, order
