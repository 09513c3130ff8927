"""Hostile conditions: what a text may cost, in steps of the interpreter instead of seconds."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from tidings.errors import FilterError, FilterTooLarge
from tidings.events import EventType, Value, ValueType
from tidings.filters import BOXES_MAX, Condition, covers, overlaps, parse
from tidings.filters.normal import boxes_of
from tidings.matching import boxes_table

Thing = EventType(
    "Thing",
    {"a": int, "b": int, "d": float, "e": ValueType.decimal(38, 10), "s": str, "p": bool}
    | {f"x{i}": int for i in range(100)},
)

LINES_PER_CHARACTER_MAX = 48
GROWTH_MAX = 2.4  # Of the steps, for twice the text: a logarithm more than twice as many.


def _filled(term: Callable[[int], str], between: str, length: int) -> str:
    terms: list[str] = []
    while length > 0:
        terms.append(term(len(terms)))
        length -= len(terms[-1]) + len(between)
    return between.join(terms)


def _nested(core: str) -> str:
    for level in range(45):
        core = f"(({core}) AND x{level} = {level}) OR x{level + 50} = {level}"
    return core


HOSTILE: dict[str, Callable[[int], str]] = {
    "an OR of equalities": lambda n: _filled(lambda i: f"a={2 * i}", " OR ", n),
    "an OR of truths": lambda n: _filled(lambda i: "p", " OR ", n),
    "NOT of an OR": lambda n: f"NOT ({_filled(lambda i: f'a={2 * i}', ' OR ', n)})",
    "an AND of inequalities": lambda n: _filled(lambda i: f"a<>{2 * i}", " AND ", n),
    "an AND of lists": lambda n: _filled(lambda i: f"a IN({i},{i + 9})", " AND ", n),
    "a list": lambda n: f"a IN({_filled(str, ',', n)})",
    "a list without a type in common": lambda n: f"d IN({_filled(lambda i: f'-{i}.5', ',', n)})",
    "a list of attributes": lambda n: f"a IN({_filled(lambda i: 'a', ',', n)})",
    "ranges": lambda n: _filled(lambda i: f"a BETWEEN {3 * i} AND {3 * i + 1}", " OR ", n),
    "NOT BETWEEN": lambda n: _filled(lambda i: f"a NOT BETWEEN {3 * i} AND {3 * i + 1}", " AND ", n),
    "suffixes, all of them": lambda n: _filled(lambda i: f"s LIKE '%{i}'", " AND ", n),
    "suffixes, any of them": lambda n: _filled(lambda i: f"s LIKE '%{i}'", " OR ", n),
    "a long pattern": lambda n: f"s LIKE '{'a%' * (n // 2)}'",
    "a long pattern of its own escapes": lambda n: f"s LIKE '{'!%' * (n // 2)}' ESCAPE '!'",
    "a constant like a long pattern": lambda n: f"'{'a' * (n // 2)}' LIKE '%{'a_' * (n // 5)}b%'",
    "a constant like many patterns": lambda n: f"'{'a' * (n // 2)}' LIKE '{'%a_a' * (n // 8)}'",
    "boxes": lambda n: _filled(lambda i: f"a={i} AND b={i}", " OR ", n),
    "an AND of ORs": lambda n: _filled(lambda i: f"(x{i % 100}=1 OR x{(i * 7 + 3) % 100}=2)", " AND ", n),
    "NOT of boxes": lambda n: f"NOT ({_filled(lambda i: f'a={i} AND b={i}', ' OR ', n)})",
    "nested boxes": lambda n: _nested(_filled(lambda i: f"a={i} AND b={i}", " OR ", n)),
    "nested sides": lambda n: _nested(_filled(lambda i: f"x{i % 100}={i}", " OR ", n)),
    "nested BETWEEN": lambda n: "(" * 90 + "p" + " BETWEEN FALSE AND TRUE)" * 90,
    "nested IS DISTINCT FROM": lambda n: "(" * 90 + "p" + " IS DISTINCT FROM p)" * 90,
    "IS DISTINCT FROM": lambda n: _filled(lambda i: f"a IS DISTINCT FROM b+{i}", " AND ", n),
    "a nested list": lambda n: _nested(f"a IN({_filled(str, ',', n)})"),
    "residuals, all of them": lambda n: _filled(lambda i: f"a<b+{i}", " AND ", n),
    "residuals, any of them": lambda n: _filled(lambda i: f"a<b+{i}", " OR ", n),
    "a list in a list in a list": lambda n: "p IN(" * (n // 6) + "p" + ")" * (n // 6),
    "EXISTS EXISTS": lambda n: "EXISTS " * (n // 7) + "p",
    "parentheses": lambda n: "(" * (n // 2) + "p" + ")" * (n // 2),
    "decimals": lambda n: _filled(lambda i: f"e={i}.25", " OR ", n),
    "a list of decimals": lambda n: f"e IN({_filled(lambda i: f'{i}.5', ',', n)})",
    "decimals beyond any decimal": lambda n: _filled(lambda i: f"e>{i % 9 + 1}e9{i % 10}", " OR ", n),
    "decimals below any decimal": lambda n: f"e IN({_filled(lambda i: f'{i % 9 + 1}e-9{i % 10}', ',', n)})",
    "decimals beside computed doubles": lambda n: _filled(lambda i: f"e<{i}.5/7", " OR ", n),
    "sums of decimals": lambda n: _filled(lambda i: f"e+.5>{i}", " OR ", n),
    "ints beside large doubles": lambda n: f"a IN({_filled(lambda i: f'{i % 9 + 1}.{i}e18', ',', n)})",
    "digits and a letter": lambda n: f"a={'1' * n}x",
    "digits": lambda n: f"d={'1' * n}.5",
    "escaped quotes": lambda n: "a = " + "\\'" * (n // 2),
    "an unclosed text": lambda n: "s = '" + "\\'" * (n // 2) + "\\",
    "a long name": lambda n: "q" * n,
    "a call with many values": lambda n: f"CONCAT({_filled(lambda i: 's', ',', n)})='a'",
}


def lines_run(work: Callable[[], Any]) -> int:
    """Lines of Python that this executes: the same on every machine."""
    count = 0

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal count
        count += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def _parsed(text: str) -> Condition | None:
    try:
        return parse(text, Thing)
    except FilterError:
        return None


@pytest.mark.parametrize("kind", HOSTILE)
def test_twice_the_text_takes_little_more_than_twice_the_steps(kind: str) -> None:
    short, long = HOSTILE[kind](4096), HOSTILE[kind](8192)
    steps = lines_run(lambda: _parsed(long))
    assert steps <= LINES_PER_CHARACTER_MAX * len(long)
    assert steps <= GROWTH_MAX * lines_run(lambda: _parsed(short)) + 1000


@pytest.mark.parametrize("kind", HOSTILE)
def test_any_text_of_64_kilobytes_is_compared_with_itself_within_bounds(kind: str) -> None:
    condition = _parsed(HOSTILE[kind](65_536 - 4_000))
    if condition is not None:
        assert len(condition.boxes) <= BOXES_MAX
        assert lines_run(lambda: (covers(condition, condition), overlaps(condition, condition))) < 1_000_000


@pytest.mark.parametrize("kind", ["an AND of ORs", "NOT of boxes", "nested boxes", "suffixes, any of them"])
def test_what_a_condition_takes_as_a_table_is_in_proportion_to_its_text(kind: str) -> None:
    condition = parse(HOSTILE[kind](16_384), Thing)
    assert boxes_table([("hostile", condition)], Thing).nbytes < 60 * len(condition.text)


def test_a_condition_with_more_boxes_than_allowed_still_means_what_it_says() -> None:
    many = parse(" OR ".join(f"a = {i} AND b = {i + 1}" for i in range(3000)), Thing)
    assert len(many.boxes) == BOXES_MAX
    for i in (0, 1, 1022, 1023, 1024, 2999, 3000):
        assert many.matches({"a": i, "b": i + 1}) is (i < 3000)
        assert not many.matches({"a": i, "b": i})
    sides = dict(many.boxes[-1].sides)
    assert 2000 in sides["a"]
    assert 1 not in sides["a"]


@pytest.mark.parametrize("between", [" AND ", " OR "])
@pytest.mark.parametrize("word", ["IS DISTINCT FROM", "IS NOT DISTINCT FROM"])
def test_terms_beyond_those_that_become_boxes_are_not_taken_apart(word: str, between: str) -> None:
    text = _filled(lambda i: f"a {word} b+{i}", between, 60_000)
    tree = parse(text, Thing).tree
    assert lines_run(lambda: boxes_of(tree)) < 14 * len(text)  # 18 to 34 if all were.


@pytest.mark.parametrize("between", [" AND ", " OR "])
def test_a_long_condition_means_what_it_says_whatever_is_taken_apart(between: str) -> None:
    wanted = parse(
        _filled(lambda i: f"(a = b + {i} OR d = {i}.5)" if i % 2 else f"a > {i % 7}", between, 60_000), Thing
    )
    same = parse(_filled(lambda i: f"a IS DISTINCT FROM b+{i}", between, 60_000), Thing)
    for a, b, d in ((None, 1, 2.5), (9, 2, 1.5), (3, 900, None), (None, None, 3.5), (2000, 7, 2.0), (5, 5, 5.5)):
        values: dict[str, Value] = {"a": a, "b": b, "d": d}  # type: ignore[dict-item]
        for condition in (wanted, same):
            assert condition.matches(values) is (condition.evaluate(values) is True)


def test_a_condition_joins_only_so_many_texts() -> None:
    few = ", ".join(["s"] * 63)
    parse(f"CONCAT({few}, UPPER(s)) = 'a'", Thing)
    for text in (f"CONCAT({few}, s, s)", f"CONCAT({few}, LOWER(CONCAT_WS('-', s)))"):
        with pytest.raises(FilterTooLarge, match="CONCAT may join 64 texts"):
            parse(f"{text} = 'a'", Thing)


def test_an_and_of_many_ors_is_not_multiplied_out() -> None:
    ors = " AND ".join(f"(a > {i} OR d > {i} OR s > '{i}')" for i in range(12))
    wanted = parse(ors, Thing)
    assert 1 < len(wanted.boxes) <= BOXES_MAX
    for a in range(8, 14):
        for d in (float(8), 11.5):
            values: dict[str, Value] = {"a": a, "d": d, "s": "0"}
            assert wanted.matches(values) is (wanted.evaluate(values) is True)


@pytest.mark.parametrize("text", ["EXISTS " * 500 + "p", "p IN (" * 500 + "p" + ")" * 500])
def test_nesting_of_any_kind_has_a_limit(text: str) -> None:
    with pytest.raises(FilterTooLarge, match="nested more than 100 levels deep"):
        parse(text, Thing)


@pytest.mark.parametrize("predicate", ["BETWEEN FALSE AND TRUE", "IS DISTINCT FROM TRUE", "IS NOT DISTINCT FROM p"])
def test_what_the_tree_repeats_may_not_double_with_every_level(predicate: str) -> None:
    assert parse(f"((p {predicate}) {predicate}) OR (p {predicate})", Thing).boxes
    with pytest.raises(FilterTooLarge, match="nested more than 2 levels deep"):
        parse(f"(((p {predicate}) {predicate}) AND p) {predicate}", Thing)
