"""CESQL to the letter, beyond its conformance cases: precedence, limits, and what hostile texts get."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from tidings.errors import FilterError, FilterSyntaxError, FilterTooLarge
from tidings.filters import CesqlErrorKind, CesqlResult, parse_cesql

EVENT = {"a": True, "b": True, "c": False, "n": "7", "t": "abc", "big": 2**40}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a OR b AND c", False),
        ("NOT c = TRUE", True),
        ("2 + 3 * 4 = 14 AND 2 * 3 + 4 = 10", True),
        ("-7 / 2", -3),
        ("-7 % 2", -1),
        ("n LIKE '_' AND n IN (7, 8)", True),
        ("t NOT LIKE 'a\\%%'", True),
        ("big = '1099511627776'", True),
        ("T = 'abc' and exists T", True),
        ("CONCAT_WS('-', t, n, a)", "abc-7-true"),
    ],
)
def test_operators_bind_and_cast_as_the_specification_says(text: str, value: Any) -> None:
    assert parse_cesql(text).evaluate(EVENT) == CesqlResult(value)


@pytest.mark.parametrize(
    ("text", "value", "error"),
    [
        ("2147483647 + 1", 0, CesqlErrorKind.MATH),
        ("-(-2147483648)", 0, CesqlErrorKind.MATH),
        ("t < 5", False, CesqlErrorKind.CAST),
        ("gone = 1 OR TRUE", False, CesqlErrorKind.MISSING_ATTRIBUTE),
        ("n IN (gone, 7)", False, CesqlErrorKind.MISSING_ATTRIBUTE),
        ("NOPE(1) OR TRUE", False, CesqlErrorKind.MISSING_FUNCTION),
        ("INT('99999999999')", 0, CesqlErrorKind.CAST),
    ],
)
def test_an_error_has_a_value_and_never_passes(text: str, value: Any, error: CesqlErrorKind) -> None:
    result = parse_cesql(text).evaluate(EVENT)
    assert (result, result.passes) == (CesqlResult(value, error), False)


@pytest.mark.parametrize(
    ("text", "column"), [("a b", 3), ("'open", 1), ("x IN ()", 7), ("2147483648", 1), ("a LIKE b", 8), ("f(1,)", 5)]
)
def test_a_text_outside_the_language_is_refused_with_its_column(text: str, column: int) -> None:
    with pytest.raises(FilterSyntaxError) as refused:
        parse_cesql(text)
    assert refused.value.column == column


def test_depth_and_length_are_bounded_and_chains_are_not_deep() -> None:
    for text in ("(" * 60 + "a" + ")" * 60, "NOT " * 60 + "a", "a" + " LIKE 'x'" * 60, "a" * 70_000):
        with pytest.raises(FilterTooLarge):
            parse_cesql(text)
    deepest = "1"
    for _ in range(49):
        deepest = f"TRUE AND 1 = 1 + 1 * ({deepest})"
    assert parse_cesql(deepest).evaluate({}).error is None
    assert parse_cesql(" AND ".join(["TRUE"] * 7000)).evaluate({}) == CesqlResult(True)


def test_functions_that_cesql_lacks_are_named() -> None:
    assert parse_cesql("FOO(1) OR NOT BAR(LENGTH(t, t)) AND ABS(n) IN (FOO(2))").unknown_functions == (
        "FOO",
        "BAR",
        "LENGTH",
    )


def test_concat_makes_no_text_beyond_its_limit() -> None:
    long = {"x": "y" * 600_000}
    assert parse_cesql("LENGTH(CONCAT(x, x))").evaluate(long) == CesqlResult(0, CesqlErrorKind.FUNCTION_EVALUATION)


@given(
    some.text(alphabet="ab1(),'\"\\%_=<>+-*/ NOTANDRILKEXS", max_size=40),
    some.dictionaries(some.just("a"), some.text()),
)
def test_any_text_is_refused_or_has_a_value_for_any_event(text: str, event: dict[str, str]) -> None:
    with contextlib.suppress(FilterError):
        assert isinstance(parse_cesql(text).evaluate(event).value, bool | int | str)
