"""Conditions as tables of boxes, and back."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tidings.errors import EventError, InputError
from tidings.events import EventType, Timestamp
from tidings.filters import parse
from tidings.matching import BOXES_SCHEMA, Index, boxes_table

THING = EventType("Thing", n=int, d=float, s=str, y=bytes, b=bool, t=Timestamp)


def table_of(*texts: str, block_conditions: int = 1000) -> pa.Table:
    conditions = [(f"c{i}", parse(text, THING)) for i, text in enumerate(texts)]
    return boxes_table(conditions, THING, block_conditions=block_conditions)


def test_a_row_has_the_id_the_text_and_the_boxes() -> None:
    (row,) = table_of("n > 3 AND s LIKE '%x'").to_pylist()
    assert row["id"] == "c0"
    assert row["condition"] == "n > 3 AND s LIKE '%x'"
    (box,) = row["boxes"]
    assert [side["attribute"] for side in box["sides"]] == ["n", "s"]
    assert box["sides"][0]["numbers"] == [{"low": 4, "high": None}]
    assert box["residuals"] == ["s LIKE '%x'"]


def test_a_condition_that_nothing_matches_has_no_boxes() -> None:
    assert table_of("n > 3 AND n < 2").to_pylist()[0]["boxes"] == []


def test_several_boxes_are_one_row() -> None:
    assert len(table_of("n > 3 OR d < 2").to_pylist()[0]["boxes"]) == 2


def test_the_largest_int_needs_no_bound() -> None:
    (row,) = table_of(f"n >= {2**63 - 1}").to_pylist()
    assert row["boxes"][0]["sides"][0]["numbers"] == [{"low": 2**63 - 1, "high": None}]
    index = Index.from_boxes(table_of(f"n >= {2**63 - 1}"), THING)
    assert index.match({"n": 2**63 - 1}) == ["c0"]
    assert index.match({"n": 2**63 - 2}) == []


def test_an_index_made_of_several_tables_has_them_all() -> None:
    index = Index.from_boxes(pa.concat_tables([table_of("n = 1"), table_of("n = 2").slice(0, 1)]), THING)
    assert len(index) == 1  # Both are called c0, and the later one counts.
    assert index.match({"n": 2}) == ["c0"]
    assert index.match({"n": 1}) == []


def test_a_slice_of_a_table_is_only_that_slice() -> None:
    texts = [f"n = {i} OR s = 'v{i}' OR d > {i}" for i in range(40)]
    index = Index.from_boxes(table_of(*texts).slice(10, 5), THING)
    assert list(index) == ["c10", "c11", "c12", "c13", "c14"]
    assert index.match({"n": 12}) == ["c12"]
    assert index.match({"s": "v13"}) == ["c13"]


def test_a_table_without_rows_is_an_empty_index() -> None:
    index = Index.from_boxes(BOXES_SCHEMA.empty_table(), THING)
    assert len(index) == 0
    assert index.match({"n": 1}) == []


def test_other_tables_are_refused() -> None:
    with pytest.raises(InputError, match="BOXES_SCHEMA"):
        Index.from_boxes(pa.table({"id": ["a"]}), THING)


def test_an_unknown_attribute_is_named() -> None:
    table = boxes_table([("a", parse("other = 1"))], EventType("Other", other=float))
    with pytest.raises(EventError, match="other"):
        Index.from_boxes(table, THING)


@pytest.mark.parametrize(
    "numbers",
    [
        [{"low": 5, "high": 3}],
        [{"low": 5, "high": 5}],
        [{"low": 5, "high": 9}, {"low": 7, "high": 12}],
        [{"low": 5, "high": 9}, {"low": 1, "high": 3}],
    ],
)
def test_intervals_that_do_not_ascend_are_refused(numbers: list[dict[str, int]]) -> None:
    side = {"attribute": "n", "null": False, "numbers": numbers, "texts": []}
    row = {"id": "a", "condition": "TRUE", "boxes": [{"sides": [side], "residuals": []}]}
    with pytest.raises(InputError, match="row 1"):
        Index.from_boxes(pa.concat_tables([table_of("n = 1"), pa.Table.from_pylist([row], BOXES_SCHEMA)]), THING)


def test_numbers_for_a_text_are_refused() -> None:
    side = {"attribute": "s", "null": False, "numbers": [{"low": 1, "high": 2}], "texts": []}
    row = {"id": "a", "condition": "TRUE", "boxes": [{"sides": [side], "residuals": []}]}
    with pytest.raises(InputError, match="numbers for a text"):
        Index.from_boxes(pa.Table.from_pylist([row], BOXES_SCHEMA), THING)


def test_columns_made_in_blocks_are_those_made_at_once() -> None:
    texts = ["n > 3 OR d < 2", "s LIKE '%x' AND s > 'a'", "y = X'00'", "n > 3 AND n < 2", "b IS NULL", "n IN (1, 5)"]
    at_once = table_of(*texts)
    assert table_of(*texts, block_conditions=2).equals(at_once)
    assert table_of().num_rows == 0
