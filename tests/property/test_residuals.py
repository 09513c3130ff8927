"""Residual conditions in bulk have the values that the plain evaluator gives, one event at a time."""

from __future__ import annotations

from decimal import Context, Decimal
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.property.test_matching import RANDOM, table_of
from tests.strategies_filters import random_condition, random_type, random_values
from tidings.events import ARROW_TYPES, EventType, Exact, ValueType, conform
from tidings.filters import Condition, parse
from tidings.filters.like import like
from tidings.matching.residuals import frame as frames
from tidings.matching.residuals import residuals as bulk
from tidings.matching.residuals.column import TEXTS, Column
from tidings.matching.residuals.expression import Expressions, has_columns
from tidings.matching.residuals.frame import PairFrame, RowFrame
from tidings.matching.residuals.functions import call
from tidings.matching.residuals.patterns import compile_patterns, like_each
from tidings.matching.residuals.residuals import Residuals


def values_of(condition: Condition, frame: frames.ColumnFrame) -> list[Any]:
    column = frame.column(Expressions().bound(condition.tree))
    values = column.values.to_pylist() if column.type in TEXTS else column.values.tolist()
    held = [None if null else value for value, null in zip(values, column.is_null().tolist(), strict=True)]
    return held * (frame.size if len(held) == 1 else 1)


@settings(max_examples=80)
@given(RANDOM)
def test_a_column_holds_what_the_evaluator_gives_row_by_row(rng: Random) -> None:
    event_type = random_type(rng)
    events = [random_values(rng, event_type) for _ in range(rng.choice([1, 2, 20]))]
    rows = conform(table_of(event_type, events), event_type)
    for _ in range(5):
        condition = random_condition(rng, event_type)
        if not has_columns(condition.tree):
            continue
        expected = [condition.evaluate(values) for values in events]
        assert values_of(condition, RowFrame(rows, event_type)) == expected, str(condition)
        order = np.array([rng.randrange(len(events)) for _ in range(7)], np.int32)
        pairs = PairFrame(RowFrame(rows, event_type), order)
        assert values_of(condition, pairs) == [expected[at] for at in order], str(condition)


@pytest.mark.parametrize("seed", range(20))
def test_every_way_to_evaluate_a_residual_gives_the_same_answer(seed: int) -> None:
    rng = Random(seed)
    event_type = random_type(rng)
    conditions = [random_condition(rng, event_type) for _ in range(30)]
    events = [random_values(rng, event_type) for _ in range(25)]
    rows = conform(table_of(event_type, events), event_type)
    sets = [tuple(str(c) for c in rng.sample(conditions, rng.choice([1, 1, 2, 3]))) for _ in range(20)]
    pairs = [(rng.randrange(25), rng.randrange(20)) for _ in range(300)]
    asked, numbers = (np.array(list(side), np.int32) for side in zip(*pairs, strict=True))
    expected = [
        all(parse(text, event_type).evaluate(events[row]) is True for text in sets[number]) for row, number in pairs
    ]
    with pytest.MonkeyPatch.context() as limits:
        for wide, together, few in ((1, 1 << 16, 4096), (1 << 30, 7, 0), (12, 64, 0), (1, 3, 0)):
            limits.setattr(bulk, "WIDE_PAIRS", wide)
            limits.setattr(bulk, "PAIRS_MAX", together)
            limits.setattr(frames, "TEXTS_FEW", few)
            assert Residuals(sets, event_type).holding(rows, asked, numbers).tolist() == expected


LETTERS = st.text(st.sampled_from("ab%_\\ß𝄞"), max_size=9)


@settings(max_examples=300)
@given(st.lists(LETTERS, min_size=1, max_size=6), st.lists(LETTERS, min_size=1, max_size=6))
def test_the_kernel_of_like_agrees_with_the_definition(patterns: list[str], texts: list[str]) -> None:
    pairs = [(text, pattern) for text in range(len(texts)) for pattern in range(len(patterns))]
    numbers, wanted = (np.array(list(side), np.int32) for side in zip(*pairs, strict=True))
    found = like_each(pa.array(texts), numbers, wanted, compile_patterns(patterns))
    assert found.tolist() == [like(patterns[pattern], texts[text]) for text, pattern in pairs]


def test_a_segment_longer_than_a_word_is_found_with_its_gaps() -> None:
    pattern = "%" + "a_" * 70 + "b" + "%"
    texts = ["xx" + "ay" * 70 + "b", "ay" * 69 + "b", "a" * 500, "a" * 200 + "b", "ß" + "aß" * 70 + "b𝄞"]
    found = like_each(pa.array(texts), np.arange(5), np.zeros(5), compile_patterns([pattern]))
    assert found.tolist() == [like(pattern, text) for text in texts] == [True, False, False, True, True]


def test_conditions_that_differ_in_constants_share_a_shape_and_others_share_sub_expressions() -> None:
    event_type = EventType("Thing", s=ValueType.STRING, i=ValueType.INT)
    expressions = Expressions()
    one, constants = expressions.shape(parse("UPPER(s) LIKE '%a%' AND LENGTH(s) > 3", event_type).tree)
    other, others = expressions.shape(parse("UPPER(s) LIKE 'b_%' AND LENGTH(s) > 9", event_type).tree)
    assert one is other
    assert (constants, others) == (["%a%", 3], ["b_%", 9])
    known = len(expressions)
    third, _ = expressions.shape(parse("UPPER(s) LIKE 'b%c'", event_type).tree)
    assert third is one.args[0]
    assert len(expressions) == known


def test_the_texts_that_conditions_make_are_bounded_at_any_time(monkeypatch: pytest.MonkeyPatch) -> None:
    event_type, made = EventType("Thing", s=str, t=str), list[int]()

    def recording(name: str, kind: ValueType, args: Any) -> Column:
        column = call(name, kind, args)
        made.append(column.values.nbytes)
        return column

    monkeypatch.setattr(frames, "TEXT_BYTES_MAX", 1 << 18)
    monkeypatch.setattr(frames, "call", recording)
    rows = conform(pa.table({"s": [f"{n:04}" * 256 for n in range(300)], "t": ["b"] * 300}), event_type)
    long = ", ".join(["s"] * 30)
    texts = [f"CONCAT({long}) LIKE '%0007%'", f"CONCAT({long}, t) LIKE '%0007%b'", f"CONCAT({long}, t) > '02'"]
    asked, numbers = np.tile(np.arange(300, dtype=np.int32), 3), np.repeat(np.arange(3, dtype=np.int32), 300)
    found = Residuals([(text,) for text in texts], event_type).holding(rows, asked, numbers)
    assert np.flatnonzero(found[:600]).tolist() == [7, 70, 307, 370]
    assert found[600:].sum() == 100
    assert max(made) <= 1 << 18
    assert sum(made) > 10 << 18


ITEMS = EventType(
    "Thing", s=str, tags="array<string>", limits="map<string,int>", n="decimal(9,2)", w="decimal(38,6)", d=float, i=int
)


def held(text: str, rows: pa.Table) -> list[Any]:
    condition = parse(text, ITEMS)
    assert has_columns(condition.tree)
    return values_of(condition, RowFrame(conform(rows, ITEMS), ITEMS))


def test_a_long_text_is_compared_with_many_items_without_a_copy_for_each() -> None:
    long = "x" * 1_000_000
    rows = pa.table({"s": [long, "b", None], "tags": [["a"] * 3000 + [long], ["a"] * 3000, ["b"]]})
    assert held("s = ANY(tags)", rows) == [True, False, None]
    assert held("s < ANY(tags)", rows) == [False, False, None]
    assert held("s > ANY(tags)", rows) == [True, True, None]


def test_the_items_that_are_evaluated_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = conform(pa.table({"tags": [["ab"] * 1000, ["c"]], "s": ["ab", "c"]}), ITEMS)
    frame = RowFrame(rows, ITEMS)
    monkeypatch.setattr(frames, "TEXT_BYTES_MAX", 1 << 20)
    assert frame.fitting(Expressions().bound(parse("s = ANY(tags)", ITEMS).tree)) == (1 << 20) // 66_000
    asked = np.tile(np.arange(2, dtype=np.int32), 50)
    assert Residuals([("s = ANY(tags)",)], ITEMS).holding(rows, asked, np.zeros(100, np.int32)).all()


def test_items_are_found_in_a_slice_and_behind_a_null_that_has_some() -> None:
    tags = pa.ListArray.from_arrays(
        pa.array([0, 1, 3, 5]), pa.array(["a", "b", "c", "d", None]), mask=pa.array([False, True, False])
    )
    limits = pa.array([[("z", 9)], [("a", 1)], [("a", 1), ("b", None), ("a", 2)]], pa.map_(pa.string(), pa.int64()))
    rows = pa.table({"tags": tags, "limits": limits}).slice(1)
    assert held("tags[0] = 'd'", rows) == [None, True]
    assert held("ARRAY_CONTAINS(tags, 'b')", rows) == [None, None]
    assert held("CARDINALITY(tags) = 2", rows) == [None, True]
    # Of two entries with one key, the last counts, as in the dict that an event has.
    assert held("limits['a'] = 2", rows) == [False, True]
    assert held("limits['b'] IS NULL", rows) == [True, True]


DIGITS = st.integers(-(10**38) + 1, 10**38 - 1)


@settings(max_examples=150)
@given(st.lists(DIGITS | st.integers(-(10**12), 10**12), min_size=1, max_size=5), st.data())
def test_decimals_of_any_digits_agree_with_the_evaluator(digits: list[int], data: st.DataObject) -> None:
    wide = [Decimal(number).scaleb(-6, Context(prec=38)) for number in digits]
    events: list[dict[str, Any]] = [
        {
            "w": Exact(number),
            "d": data.draw(st.sampled_from([float(number), np.nextafter(float(number), 0.0).item()])),
            "n": Exact(f"{at % 10**9 / 100:.2f}"),
            "i": at % 2**63,
        }
        for at, number in zip(digits, wide, strict=True)
    ]
    rows = pa.table(
        {name: pa.array([event[name] for event in events], ARROW_TYPES[ITEMS[name].type]) for name in "wdni"}
    )
    for text in (
        "w = d",
        "w < d",
        "w <= n",
        "n >= d",
        "i > w",
        "-w + w = 0",
        "w + w > d",
        "w - n < i",
        "ABS(w) >= w",
        "n * n > i",
        "n * i > w",
    ):
        assert held(text, rows) == [parse(text, ITEMS).evaluate(event) for event in events], text
