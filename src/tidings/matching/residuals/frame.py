"""The columns that expressions have over some events, each computed once.

    RowFrame        the rows of a batch; what depends on one text only is computed per different text
    DistinctFrame   the different texts of one attribute, and NULL behind them
    PairFrame       pairs of a row and a condition of one shape, whose constants are its parameters

An expression with parameters exists in a PairFrame only, and takes from the rows what has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tidings.events import EventType, Value, ValueType, row_values
from tidings.matching.box_table import Array, one_chunk
from tidings.matching.kernels.texts import PatternArrays
from tidings.matching.residuals import expression as ops
from tidings.matching.residuals import items, operators
from tidings.matching.residuals.column import TEXTS, Column, all_of, any_of, negation, text_buffers, truth
from tidings.matching.residuals.expression import Expression
from tidings.matching.residuals.functions import call
from tidings.matching.residuals.patterns import compile_patterns, like_each

TEXT_BYTES_MAX: Final = 64 << 20  # Of the texts that one expression makes at a time; CONCAT can make long ones.
ITEM_BYTES: Final = 64  # Of an item that is no text, its place, its parent and what it is compared with, roughly.


KEPT_BYTES_MAX: Final = 64 << 20  # Of the columns that a frame keeps; what is beyond is computed again when asked for.
TEXTS_FEW: Final = (
    4096  # Different texts that an expression is evaluated for even if few are asked for: others will be.
)
TEXTS_SHARE: Final = 4  # And more if a quarter of them is asked for.


class ColumnFrame:
    """Columns of the same length by expression, computed when they are first asked for, and kept up to some size."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._columns: dict[Expression, Column] = {}
        self._bytes = 0

    def column(self, expression: Expression) -> Column:
        """The expression's values, or a constant."""
        found = self._columns.get(expression)
        if found is None:
            found = self._compute(expression)
            if self._bytes + found.nbytes <= KEPT_BYTES_MAX:
                self._columns[expression] = found
                self._bytes += found.nbytes
        return found

    def holds(self, expression: Expression) -> bool:
        return expression in self._columns

    def attribute(self, name: str) -> Column:
        raise NotImplementedError

    def _compute(self, expression: Expression) -> Column:
        match expression.operator:
            case ops.ATTRIBUTE:
                return self.attribute(expression.detail)
            case ops.LITERAL:
                return Column.constants([expression.detail], expression.type)
            case ops.LIKE:
                return self._like(*expression.args)
            case ops.AND:
                return all_of(_as_truth(self.column(arg)) for arg in expression.args)
            case ops.OR:
                return any_of(_as_truth(self.column(arg)) for arg in expression.args)
            case ops.IN:
                value, *others = expression.args
                return any_of(operators.compare("=", self.column(value), self.column(other)) for other in others)
        return _operate(expression, [self.column(arg) for arg in expression.args])

    def _like(self, arg: Expression, pattern: Expression) -> Column:
        texts = self.column(arg)
        if texts.type is ValueType.NULL:
            return truth(np.zeros(len(texts), bool), np.zeros(len(texts), bool))
        numbers = np.arange(len(texts), dtype=np.int32)
        arrays, wanted = self._patterns(pattern)
        if len(wanted) > len(texts):
            numbers = np.zeros(len(wanted), np.int32)
        found = like_each(texts.values, numbers, np.broadcast_to(wanted, len(numbers)), arrays)
        return truth(found, texts.valid)

    def _patterns(self, pattern: Expression) -> tuple[PatternArrays, Array]:
        return compile_patterns([pattern.detail]), np.zeros(1, np.int32)


def _operate(expression: Expression, args: list[Column]) -> Column:
    match expression.operator:
        case ops.COMPARE:
            return operators.compare(expression.detail, *args)
        case ops.IS_NULL:
            return truth(args[0].is_null())
        case ops.NOT:
            return negation(args[0])
        case ops.ARITHMETIC:
            return operators.arithmetic(expression.detail, expression.type, *args)
        case ops.ITEM:
            return items.item(expression.type, *args)
        case ops.ANY_ITEM:
            return items.any_item(expression.detail, *args)
        case ops.NEGATE:
            return operators.negative(expression.type, args[0])
        case _:
            return call(expression.detail, expression.type, args)


def _as_truth(column: Column) -> Column:
    return column if column.type is ValueType.BOOL else truth(np.zeros(len(column), bool), column.valid)


class DistinctFrame(ColumnFrame):
    """The different texts of an attribute, each with a code: its place. NULL has the last one."""

    def __init__(self, name: str, column: pa.Array, kind: ValueType) -> None:
        coded = column.dictionary_encode()
        texts = coded.dictionary
        super().__init__(len(texts) + 1)
        self.name, self.type = name, kind
        self.codes: Array = coded.indices.fill_null(len(texts)).to_numpy(zero_copy_only=False)
        self._texts = pa.concat_arrays([texts, pa.nulls(1, texts.type)])

    def attribute(self, name: str) -> Column:
        assert name == self.name, "only an expression of this attribute is evaluated by its texts"
        return Column.of_arrow(self._texts, self.type)


class RowFrame(ColumnFrame):
    """Rows of a conformed table: all of them, or those with the numbers that are given."""

    def __init__(self, rows: pa.Table, event_type: EventType, picked: Array | None = None) -> None:
        super().__init__(rows.num_rows if picked is None else len(picked))
        self._rows, self._picked = rows, None if picked is None else pa.array(picked)
        self._event_type = event_type
        self._places = {a.name: (place, a.type) for place, a in enumerate(event_type)}
        self._attributes: dict[str, Column] = {}
        self._distinct: dict[str, DistinctFrame] = {}
        self._longest: dict[str, int] = {}

    def attribute(self, name: str) -> Column:
        if name not in self._attributes:
            self._attributes[name] = Column.of_arrow(self._array(name), self._places[name][1])
        return self._attributes[name]

    def distinct(self, name: str) -> DistinctFrame:
        if name not in self._distinct:
            self._distinct[name] = DistinctFrame(name, self._array(name), self._places[name][1])
        return self._distinct[name]

    def values_at(self, rows: Array, names: Sequence[str]) -> list[dict[str, Value]]:
        """The values of these attributes in these rows, as Python has them."""
        places = pa.array(rows) if self._picked is None else self._picked.take(pa.array(rows))
        return row_values(self._rows, places.to_pylist(), self._event_type, names)

    def _array(self, name: str) -> pa.Array:
        column = one_chunk(self._rows.column(self._places[name][0]))
        return column if self._picked is None else column.take(self._picked)

    def _compute(self, expression: Expression) -> Column:
        name = expression.sole_text
        if name is None or expression.operator == ops.ATTRIBUTE:
            return super()._compute(expression)
        texts = self.distinct(name)
        return texts.column(expression).take(texts.codes)

    def fitting(self, expression: Expression) -> int:
        """How many rows the expression may be evaluated for at once, so that the texts and items it takes stay bounded."""
        kinds = expression.attributes.items()
        longest = max([1, *(self.longest(name) for name, kind in kinds if kind in TEXTS or kind.has_items)])
        return max(1, TEXT_BYTES_MAX // (longest * max(expression.weight, 1)))

    def longest(self, name: str) -> int:
        """The bytes of an attribute's longest text, array or map, roughly."""
        if name not in self._longest:
            self._longest[name] = _longest(self._array(name), self._places[name][1])
        return self._longest[name]


def _longest(column: pa.Array, kind: ValueType) -> int:
    if kind in TEXTS:
        return int(np.diff(text_buffers(column)[0]).max(initial=1))
    offsets = column.offsets.to_numpy()
    sizes = np.diff(offsets).astype(np.int64) * ITEM_BYTES
    parts = [column.values] if kind.map_key is None else [column.keys, column.items]
    for part in parts:
        if pa.types.is_string(part.type) or pa.types.is_binary(part.type):
            sizes += np.diff(text_buffers(part)[0][offsets])
    return int(sizes.max(initial=1))


class PairFrame(ColumnFrame):
    """Some rows of a frame, in any order, each with its own constants."""

    def __init__(self, frame: RowFrame, rows: Array, constants: Sequence[Any] = ()) -> None:
        """`constants` holds per parameter a column, or patterns and the number of each pair's."""
        super().__init__(len(rows))
        self._frame, self._rows, self._constants = frame, rows, constants

    def attribute(self, name: str) -> Column:
        return self._frame.attribute(name).take(self._rows)

    def _compute(self, expression: Expression) -> Column:
        if expression.operator == ops.PARAMETER:
            return self._constants[expression.detail]  # type: ignore[no-any-return]
        if not expression.has_parameters and self._frame.holds(expression):
            return self._frame.column(expression).take(self._rows)
        name = expression.sole_text
        if name is not None and expression.operator != ops.ATTRIBUTE and self._pays(expression, name):
            texts = self._frame.distinct(name)
            return texts.column(expression).take(texts.codes[self._rows])
        return super()._compute(expression)

    def _pays(self, expression: Expression, name: str) -> bool:
        """Whether the expression is evaluated for all different texts: they are few, or it has been already."""
        texts = self._frame.distinct(name)
        few = texts.size <= max(TEXTS_FEW, TEXTS_SHARE * self.size)
        return texts.holds(expression) or (few and texts.size <= self._frame.fitting(expression))

    def _like(self, arg: Expression, pattern: Expression) -> Column:
        name = arg.sole_text
        if name is None or not (arg.operator == ops.ATTRIBUTE or self._pays(arg, name)):
            return super()._like(arg, pattern)
        texts = self._frame.distinct(name)
        codes, column = texts.codes[self._rows], texts.column(arg)
        arrays, wanted = self._patterns(pattern)
        found = like_each(column.values, codes, np.broadcast_to(wanted, len(codes)), arrays)
        return truth(found, None if column.valid is None else column.valid[codes])

    def _patterns(self, pattern: Expression) -> tuple[PatternArrays, Array]:
        if pattern.operator != ops.PATTERN_PARAMETER:
            return super()._patterns(pattern)
        return self._constants[pattern.detail]  # type: ignore[no-any-return]
