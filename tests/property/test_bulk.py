"""Texts in bulk mean what they mean one by one: the same boxes, the same errors, in the same order."""

from __future__ import annotations

from dataclasses import fields
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.strategies_filters import cases, random_comparison, random_type, random_values
from tidings.errors import FilterError, InputError
from tidings.events import Attribute, EventType, Timestamp, ValueType
from tidings.filters import Condition, parse, parse_tree
from tidings.matching import Index, IndexTuning, ParsedTexts, parse_texts
from tidings.matching.box_table import BoxColumns, columns_of

Thing = EventType(
    "Thing", {"i": int, "d": float, "s": str, "b": bool, "t": Timestamp, "y": bytes, "in.d": int, "s2": str}
)


def in_bulk(texts: list[Any], event_type: EventType = Thing) -> ParsedTexts:
    return parse_texts(pa.array([f"c{at}" for at in range(len(texts))]), texts, event_type)


def one_by_one(texts: list[str], event_type: EventType) -> tuple[list[tuple[str, Condition]], dict[int, str]]:
    good, wrong = [], {}
    for at, text in enumerate(texts):
        try:
            good.append((f"c{at}", Condition(text, event_type, parse_tree(text, event_type))))
        except FilterError as error:
            wrong[at] = f"{type(error).__name__} {error}"
    return good, wrong


def rows_of(columns: BoxColumns) -> dict[str, list[Any]]:
    return {field.name: getattr(columns, field.name).tolist() for field in fields(columns)}


def check(texts: list[str], event_type: EventType = Thing) -> ParsedTexts:
    parsed = in_bulk(texts, event_type)
    good, wrong = one_by_one(texts, event_type)
    assert rows_of(parsed.columns) == rows_of(columns_of(good, event_type))
    assert {at: f"{type(error).__name__} {error}" for at, error in parsed.wrong.items()} == wrong
    assert parsed.good.tolist() == [at for at in range(len(texts)) if at not in wrong]
    assert parsed.attributes <= {a.name for a in event_type}
    return parsed


@given(cases(conditions=3), st.randoms(use_true_random=False))
def test_any_mix_of_conditions_becomes_the_same_boxes(case: Any, rng: Random) -> None:
    event_type, conditions, _ = case
    plain = [" AND ".join(random_comparison(rng, event_type) for _ in range(rng.choice([1, 2, 3]))) for _ in range(6)]
    texts = [text for condition in conditions for text in (condition.text, str(condition))] + plain
    rng.shuffle(texts)
    check(texts, event_type)


_WORDS = [
    *("i", "d", "s", "b", "t", "y", "in.d", "s2", "I", "x", "ii", "timestamp", "TIMESTAMP", "é", "`i`", "i.", "X"),
    *("=", "<>", "!=", "<", "<=", ">", ">=", "(", ")", ",", "-", "+", "!", ".", ";", "--", "=="),
    *("AND", "and", "OR", "NOT", "IN", "LIKE", "BETWEEN", "IS", "NULL", "TRUE", "false", "ESCAPE", "XOR", "EXISTS"),
    *("0", "7", "007", "-1", "2.5", ".5", "5.", "1e3", "1e", "1E-2", "1e400", "0e999", "1.0e+2", "5AND", "1_0", "٣"),
    *("9007199254740993", "9223372036854775807", "9223372036854775808", "999999999999999999", "0.1", "1e22", "1e23"),
    *("123456789.123456789", "4.35", "0.30000000000000004", "1.7976931348623157e308", "5e-324"),
    *("'a'", "''", "'a''b'", "'a\\'b'", "'é'", "'a%'", "'%a'", "'a_%'", "'%'", "'%%'", "'é%'", "'\x7f%'", "'\0'", "'a"),
    *("'2026-01-02 03:04:05'", "'2026-01-02T03:04:05Z'", "'2026-02-29 00:00:00'", "'0001-01-01 00:00:00'", "'2026-01'"),
    *('"a"', "X'00'", "x'ff'", "\t", "\n", "\x1c", "\u2003"),
]


@given(st.lists(st.lists(st.sampled_from(_WORDS), max_size=12).map(" ".join), min_size=1, max_size=8))
def test_any_words_are_understood_or_refused_alike(texts: list[str]) -> None:
    check(texts)


@given(
    st.lists(st.lists(st.sampled_from(_WORDS), max_size=9).map("".join) | st.text(max_size=20), min_size=1, max_size=6)
)
@example(["s = 'a'AND i=1", "i=1AND b", "b", "i IN(1,2)AND b", "i>-5", "i > - 5", "i.d=1", "x'00'=y"])
def test_words_that_touch_are_told_apart_alike(texts: list[str]) -> None:
    check(texts)


_CONSTANTS = {
    "i": ["0", "1", "-1", "2.5", "-0.5", "3.0", "1e3", "999999999999999999", "-9007199254740993", "9e15", "1e19"],
    "d": ["0", "-0.0", "1", "2.5", "4.35", "1e22", "1e-22", "-7.25", "123456789012345678", "0.1", "1e300"],
    "s": ["''", "'a'", "'ab'", "'b'", "'é'", "'a%'", "'%a'", "'a_b'", "'%'", "'%%'", "'zz%z'", "'a~%'", "'\x7f%'"],
    "t": ["TIMESTAMP '2026-01-02 03:04:05'", "timestamp '1969-12-28T23:59:59Z'", "TIMESTAMP '2024-02-29'"],
    "b": ["TRUE", "false"],
    "in.d": ["1", "2", "3"],
    "s2": ["'x'", "'y%'", "'%y'"],
}


@st.composite
def _predicates(draw: st.DrawFn) -> str:
    name = draw(st.sampled_from(list(_CONSTANTS)))
    one, two, three = (draw(st.sampled_from(_CONSTANTS[name])) for _ in range(3))
    op = draw(st.sampled_from(["=", "<>", "!=", "<", "<=", ">", ">="]))
    forms = [f"{name} {op} {one}", f"{name} BETWEEN {one} AND {two}", f"{name} NOT BETWEEN {one} AND {two}"]
    forms += [f"{name} IN ({one}, {two}, {three})", f"{name} not in ({one},{two})", f"{name} LIKE {one}"]
    forms += [f"{name} NOT LIKE {one}", f"{name} IS NULL", f"{name} is not null", name]
    return draw(st.sampled_from(forms))


@given(st.lists(st.lists(_predicates(), min_size=1, max_size=5).map(" AND ".join), min_size=1, max_size=5))
def test_plain_conditions_become_the_same_boxes(texts: list[str]) -> None:
    check(texts)


def test_plain_conditions_never_see_the_parser() -> None:
    texts = ["i > 3 AND s IN ('b', 'a') AND d BETWEEN 1 AND 2.5", "s LIKE 'ab%' AND b", "s NOT LIKE '%x_' AND i <> 4"]
    texts += ["t >= TIMESTAMP '2026-01-02 03:04:05' AND in.d IS NOT NULL", "i NOT IN (1, 2, 7) AND i < 9"]
    assert check(texts).parsed_count == 0


def test_more_than_a_block_keeps_its_order() -> None:
    texts = [f"i = {at}" if at % 3 else f"i = {at} OR d > {at}" for at in range(40_000)]
    parsed = in_bulk(texts)
    assert parsed.columns.texts.to_pylist() == texts
    assert parsed.columns.number_low.take(pa.array([0])).to_pylist() == [0]
    assert parsed.parsed_count == 13_334


def test_texts_and_conditions_may_be_mixed_and_texts_need_not_be_unicode() -> None:
    broken = b"s = 'a\xff'".decode("utf-8", "surrogateescape")
    parsed = in_bulk(["i = 1", parse("d > 2", Thing), broken, "s = 'é'"])
    assert parsed.columns.texts.to_pylist() == ["i = 1", "d > 2", "s = 'é'"]
    assert list(parsed.wrong) == [2]


@pytest.mark.parametrize("text", ["i IN (" + ", ".join(map(str, range(500))) + ")", "s = '" + "x" * 10_000 + "'"])
def test_long_conditions_go_to_the_parser(text: str) -> None:
    assert check([text, "i = 1"]).parsed_count == 1


def test_names_that_could_mean_something_else_go_to_the_parser() -> None:
    odd = EventType.of(
        "Odd", tuple(Attribute(name, ValueType.INT) for name in ("timestamp", "a", "A", "größe", "two words"))
    )
    check(["timestamp = 1", "a = 1 AND A = 2", "größe > 1", "`two words` = 1", "Timestamp = 2", "`a` = 3"], odd)


def test_no_texts_are_no_rows() -> None:
    assert len(check([]).columns) == 0


@given(st.integers(0, 2**32))
def test_types_of_any_kind_are_known_by_their_names(seed: int) -> None:
    rng = Random(seed)
    event_type = random_type(rng)
    check([random_comparison(rng, event_type) for _ in range(20)], event_type)


def test_an_index_made_of_texts_answers_as_one_made_of_conditions() -> None:
    rng = Random(7)
    event_type = random_type(rng)
    texts = [" AND ".join(random_comparison(rng, event_type) for _ in range(2)) for _ in range(300)]
    by_pairs, by_table, plain = (Index(event_type, tuning=IndexTuning(pending_max=8)) for _ in range(3))
    by_pairs.add_all((f"c{at}", text) for at, text in enumerate(texts))
    by_table.add_all(pa.table({"id": [f"c{at}" for at in range(len(texts))], "condition": texts}))
    for at, text in enumerate(texts):
        plain.add(f"c{at}", parse(text, event_type))
    for _ in range(40):
        values = random_values(rng, event_type)
        assert by_pairs.match_values(values) == by_table.match_values(values) == plain.match_values(values)


def test_the_first_wrong_text_is_raised_and_nothing_added() -> None:
    index = Index(Thing, tuning=IndexTuning(pending_max=2))
    with pytest.raises(FilterError, match="no attribute 'nn'"):
        index.add_all([("a", "i = 1"), ("b", "nn = 1"), ("c", "i = = 1")])
    with pytest.raises(InputError, match="id"):
        index.add_all([("a", "i = 1"), (7, "i = 1"), ("c", "i = = 1")])
    with pytest.raises(FilterError, match="no attribute 'nn'"):
        index.add_all(pa.table({"id": ["a", "b"], "condition": ["i = 1", "nn = 1"]}))
    with pytest.raises(InputError, match="in every row"):
        index.add_all(pa.table({"id": ["a", None], "condition": ["i = 1", "i = 1"]}))
    assert len(index) == 0


def test_a_condition_means_the_same_whatever_was_parsed_before_it() -> None:
    wide = EventType("Wide", {"w": ValueType.decimal(30, 8), "i": int, "d": float})
    check(
        ["w >= 1e+308", "w >= 9.223372036854776e+18", "w >= 9007199254740993.00000000", "w >= 1.5", "w >= 2.25"], wide
    )
    check(
        ["-0.0 > w", "-9999999.99 > w", "i > -0", "i > -5", "d > -0.0", "d > -5.5", "w IN (1.5)", "w IN (1e300)"], wide
    )
