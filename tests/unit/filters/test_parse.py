"""Conditions as text: what is read, and what is said of what cannot be."""

from __future__ import annotations

import pytest

from tidings.errors import FilterError, FilterSyntaxError, FilterTooLarge, FilterTypeError
from tidings.events import EventType, Timestamp
from tidings.filters import LENGTH_MAX, NESTING_MAX, guess_type, parse, parse_tree

Plate = EventType(
    "Plate", plate=str, area=str, speed=float, lanes=int, paid=bool, seen=Timestamp, raw=bytes, position={"lat": float}
)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("speed>20", "speed > 20"),
        ("speed != 20 and PLATE like 'A%'", "speed <> 20 AND plate LIKE 'A%'"),
        ("not lanes in (1,2)", "NOT lanes IN (1, 2)"),
        ("lanes not in (1,2)", "NOT lanes IN (1, 2)"),
        ("speed between 1 and 2.50", "speed >= 1 AND speed <= 2.5"),
        ("exists plate", "plate IS NOT NULL"),
        ("not exists plate", "NOT plate IS NOT NULL"),
        ("paid xor speed > 1", "paid <> (speed > 1)"),
        ("position.lat > 51.5", "position.lat > 51.5"),
        ("`position`.lat > 51.5", "position.lat > 51.5"),
        ("lanes - 1 - 2 * 3 = 0", "lanes - 1 - 2 * 3 = 0"),
        ("lanes - (1 - 2) = 0", "lanes - (1 - 2) = 0"),
        ("--5 = lanes", "5 = lanes"),
        ("-(lanes) = - 5", "-lanes = -5"),
        ("lanes = -9223372036854775808", "lanes = -9223372036854775808"),
        ('plate = "it\'s"', "plate = 'it''s'"),
        (r"plate = 'it\'s'", "plate = 'it''s'"),
        ("plate = 'it''s'", "plate = 'it''s'"),
        (r"plate = 'a\b'", r"plate = 'a\\b'"),
        (r"plate = 'a\\'", r"plate = 'a\\'"),
        (r"plate LIKE '50!%!!%' ESCAPE '!'", r"plate LIKE '50\\%!%'"),
        (r"plate LIKE 'a\%'", r"plate LIKE 'a\\%'"),
        ("seen > timestamp '2026-01-31T12:00:00+01:00'", "seen > TIMESTAMP '2026-01-31T11:00:00Z'"),
        ("raw = x'00FF'", "raw = X'00ff'"),
        ("upper(plate) = 'A'", "UPPER(plate) = 'A'"),
        ("(paid and (paid and speed > 1)) or speed > 2 or paid", "paid AND paid AND speed > 1 OR speed > 2 OR paid"),
        ("not (paid or paid)", "NOT (paid OR paid)"),
        ("plate = NULL", "plate = NULL"),
    ],
)
def test_a_condition_has_one_canonical_text(text: str, canonical: str) -> None:
    assert str(parse(text, Plate)) == canonical
    assert parse(canonical, Plate).tree == parse(text, Plate).tree


def test_beside_a_decimal_all_constants_of_a_list_are_decimals_wherever_it_stands() -> None:
    order = EventType("Order", price="decimal(9,2)", weight=float)
    wanted = parse("3.0 IN (1.5, price, 9007199254740993.0, weight)", order)
    assert str(wanted) == "3.0BD IN (1.5BD, price, 9007199254740993.0BD, weight)"
    assert parse(str(wanted), order).tree == wanted.tree


@pytest.mark.parametrize(
    ("text", "error", "what", "column"),
    [
        ("", FilterSyntaxError, "expected a value before the end", 1),
        ("speed >", FilterSyntaxError, "expected a value before the end", 8),
        ("speed > > 2", FilterSyntaxError, "expected an attribute, a value or (", 9),
        ("speed 20", FilterSyntaxError, "expected AND, OR or the end", 7),
        ("(speed > 1", FilterSyntaxError, "expected )", 11),
        ("speed > 1)", FilterSyntaxError, "expected AND, OR or the end", 10),
        ("plate = 'abc", FilterSyntaxError, "this text is never closed", 9),
        ("speed > 1 > 2", FilterSyntaxError, "comparisons do not chain", 11),
        ("lanes IN 5", FilterSyntaxError, "expected ( after IN", 10),
        ("lanes IN ()", FilterSyntaxError, "expected an attribute, a value or (", 11),
        ("lanes IN (1 2)", FilterSyntaxError, "expected , or ) in the list", 13),
        ("speed BETWEEN 1 OR 2", FilterSyntaxError, "expected AND after the lower bound", 17),
        ("plate IS 5", FilterSyntaxError, "expected [NOT] NULL or [NOT] DISTINCT FROM after IS", 10),
        ("plate IS NOT 5", FilterSyntaxError, "expected NULL or DISTINCT FROM after IS NOT", 14),
        ("plate IS DISTINCT 5", FilterSyntaxError, "expected FROM after DISTINCT", 19),
        ("plate IS DISTINCT FROM 5", FilterTypeError, "cannot compare a string with an int", 24),
        ("plate NOT 5", FilterSyntaxError, "expected IN, LIKE or BETWEEN after NOT", 11),
        ("EXISTS 5", FilterSyntaxError, "expected an attribute after EXISTS", 8),
        ("plate LIKE 5", FilterSyntaxError, "expected a 'text' after LIKE", 12),
        ("plate LIKE 'a' ESCAPE 'ab'", FilterSyntaxError, "expected one character", 23),
        ("area = in", FilterSyntaxError, "expected an attribute or a value, not IN", 8),
        ("lanes = 99999999999999999999", FilterSyntaxError, "expected a whole number within 64 bits", 9),
        ("speed = 1e999", FilterSyntaxError, "within the range of doubles", 9),
        ("speed = 12abc", FilterSyntaxError, "'12abc' is not a number", 9),
        ("raw = X'0'", FilterSyntaxError, "expected pairs of hexadecimal digits", 7),
        ("seen > TIMESTAMP 'soon'", FilterSyntaxError, "expected an ISO 8601 timestamp", 18),
        ("nosuch(plate) = 'a'", FilterSyntaxError, "there is no function NOSUCH", 1),
        ("speed ; 2", FilterSyntaxError, "expected AND, OR or the end", 7),
        ("a.b.c = 1", FilterTypeError, "Plate has no attribute 'a.b.c'", 1),
        ("pirce > 1", FilterTypeError, "Plate has no attribute 'pirce'", 1),
        ("area > 5", FilterTypeError, "cannot compare a string with an int", 8),
        ("seen > '2026-01-01'", FilterTypeError, "cannot compare a timestamp with a string", 8),
        ("lanes IN (1, 'a')", FilterTypeError, "cannot compare an int with a string", 14),
        ("lanes + plate > 3", FilterTypeError, "expected a number after +, got a string", 9),
        ("paid AND lanes", FilterTypeError, "expected something true or false, got an int", 10),
        ("speed", FilterTypeError, "expected something true or false, got a double", 1),
        ("NOT lanes", FilterTypeError, "expected something true or false", 5),
        ("lanes LIKE 'a'", FilterTypeError, "expected a text before LIKE, got an int", 1),
        ("LEFT(plate) = 'a'", FilterTypeError, "LEFT takes 2 values, got 1", 1),
        ("LENGTH(lanes) = 1", FilterTypeError, "expected a string as value 1 of LENGTH, got an int", 8),
        ("-plate = 1", FilterTypeError, "expected a number after -, got a string", 2),
    ],
)
def test_an_error_says_what_was_expected_and_where(text: str, error: type[FilterError], what: str, column: int) -> None:
    with pytest.raises(error) as raised:
        parse(text, Plate)
    assert what in raised.value.what
    assert raised.value.column == column
    assert str(raised.value).splitlines()[2] == " " * (column + 1) + "^"


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("plat = 'x'", "did you mean 'plate'?"),
        ("lenght(plate) = 1", "did you mean 'LENGTH'?"),
        ("seen > '2026-01-01'", "write a moment as TIMESTAMP '2026-01-31T12:00:00Z'"),
        ("plate = 5", "there are no implicit casts; INT(), BOOL() and STRING() convert"),
        ("area = in", "an attribute of that name is written `in`"),
        ("(speed > 1", "to close the ( at column 1"),
    ],
)
def test_an_error_says_what_to_do(text: str, hint: str) -> None:
    with pytest.raises(FilterError) as raised:
        parse(text, Plate)
    assert str(raised.value).splitlines()[-1] == hint


@pytest.mark.parametrize(
    "text",
    [
        "(" * 10_000 + "paid" + ")" * 10_000,
        "NOT " * 10_000 + "paid",
        "-" * 10_000 + "lanes = 1",
        "1+" * 10_000 + "1 = 1",
        "paid XOR " * 10_000 + "paid",
        "LENGTH(" * 10_000,
        "lanes IN (" + "1," * LENGTH_MAX + "1)",
        "plate = '" + "x" * LENGTH_MAX + "'",
    ],
    ids=["parentheses", "not", "minus", "plus", "xor", "calls", "huge list", "huge text"],
)
def test_what_is_too_deep_or_too_long_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(FilterTooLarge) as raised:
        parse(text, Plate)
    assert len(str(raised.value)) < 400


def test_what_is_deep_but_allowed_works_in_every_meaning() -> None:
    deep = parse(
        "(" * NESTING_MAX + "paid" + ")" * NESTING_MAX + " AND " + "1+" * (NESTING_MAX - 1) + "lanes = 100", Plate
    )
    assert deep.matches({"paid": True, "lanes": 1}) is True
    assert deep.evaluate({"paid": True, "lanes": 1}) is True
    assert parse(str(deep), Plate) == deep
    assert len(deep.to_spark()) > 100


def test_a_list_of_fifty_thousand_values_is_one_box() -> None:
    wanted = parse("plate IN (" + ", ".join(f"'P{i:06}'" for i in range(50_000)) + ")", Plate)
    assert len(wanted.boxes) == 1
    assert wanted.matches({"plate": "P049999"})
    assert not wanted.matches({"plate": "P050000"})


def test_text_that_is_no_unicode_is_refused_at_its_spot() -> None:
    with pytest.raises(FilterSyntaxError) as raised:
        parse(b"plate = 'a\xffb'".decode("utf-8", "surrogateescape"), Plate)
    assert raised.value.column == 11
    assert str(raised.value).isprintable() or "\n" in str(raised.value)


def test_types_are_guessed_from_what_an_attribute_is_used_with() -> None:
    guessed = guess_type(
        "a = b AND b > 5 AND c LIKE 'x' AND d AND INT(e) > 2 AND f = TIMESTAMP '2026-01-01' AND g + 1 < h"
    )
    assert str(guessed) == "Event(a double, b double, c string, d bool, e string, f timestamp, g double, h double)"


def test_names_differ_by_case_only_where_two_attributes_do() -> None:
    event_type = EventType("Odd", a=int, A=int, Bee=int)
    assert str(parse_tree("A = 1", event_type)) != str(parse_tree("a = 1", event_type))
    assert str(parse("BEE = 1", event_type)) == "Bee = 1"
    with pytest.raises(FilterTypeError):
        parse("á = 1", event_type)


def test_an_error_survives_pickling_as_it_comes_back_from_a_worker() -> None:
    import pickle

    with pytest.raises(FilterError) as raised:
        parse("speed >", Plate)
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)


@pytest.mark.parametrize(
    ("first", "then", "error"),
    [
        ("lanes = 1", "lanes = 99999999999999999999", FilterSyntaxError),
        ("speed < 1.5", "speed < 1e999", FilterSyntaxError),
        ("speed < 1.5", "speed < 1.5x", FilterSyntaxError),
        ("plate = 'a'", "plate = 'a", FilterSyntaxError),
        ("lanes = 1", "lanes = 'a'", FilterTypeError),
    ],
)
def test_a_known_shape_does_not_let_a_mistake_slip_by(first: str, then: str, error: type[FilterError]) -> None:
    assert parse(first, Plate).boxes
    with pytest.raises(error):
        parse(then, Plate)


def test_a_known_shape_gives_each_condition_its_own_constants() -> None:
    one, two = (parse(f"plate LIKE '{start}%' AND lanes IN ({n}, 9)", Plate) for start, n in (("A", 1), ("B", 2)))
    assert [str(box) for box in one.boxes + two.boxes] == [
        "lanes ∈ {1} ∪ {9} and plate ∈ ['A', 'B')",
        "lanes ∈ {2} ∪ {9} and plate ∈ ['B', 'C')",
    ]
    assert str(two) == "plate LIKE 'B%' AND lanes IN (2, 9)"


@pytest.mark.parametrize(
    "text", ["`", "``", "`a` = 1 AND `", "`a", "`a.` = 1", "``.b = 1", "a" * 300 + " = 1", "a = 1 AND a.b = 2"]
)
def test_what_is_no_name_is_refused_at_its_spot_with_and_without_a_type(text: str) -> None:
    for event_type in (None, EventType("Event", a=int)):
        with pytest.raises(FilterError) as refused:
            parse(text, event_type)
        assert 1 <= refused.value.column <= len(text) + 1
