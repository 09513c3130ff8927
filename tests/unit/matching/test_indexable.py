"""Which residual conditions an index files, and that it has none left where a condition is made of intervals."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tidings.events import EventType
from tidings.filters import parse
from tidings.matching import Index, NaiveIndex, boxes_table
from tidings.matching.box_table import columns_of
from tidings.matching.residuals.indexable import read_like, text_names
from tidings.matching.segment import build

Plate = EventType("Plate", plate=str, area=str, speed=float, lanes=int)
PLATES = ["AB12", "XB12", "12", "2", "", None, "ß12", "12ß", "B1", "a'b", "a\\b", "12𝄞"]


def residuals_of(condition: str) -> tuple[tuple[str, ...], ...]:
    return build(columns_of([("c", parse(condition, Plate))], Plate), Plate).residuals


@pytest.mark.parametrize(
    "condition",
    [
        "area <> 'N1'",
        "area NOT IN ('N1', 'EC2')",
        "speed NOT BETWEEN 10 AND 20",
        "NOT (speed > 10 AND area = 'N1')",
        "NOT (speed BETWEEN 1 AND 2 OR area <> 'N1')",
        "area <> 'N1' OR area IS NULL",
        "NOT (area <> 'N1' OR area IS NULL)",
        "plate LIKE '%12'",
        "plate NOT LIKE '%12'",
        "NOT (plate LIKE '%12' OR area LIKE 'N%')",
        "plate LIKE '%''b' AND plate LIKE 'A%'",
        "plate LIKE '%12' OR plate LIKE '%ß'",
    ],
)
def test_what_is_intervals_leaves_no_residual(condition: str) -> None:
    assert residuals_of(condition) == ()


@pytest.mark.parametrize("pattern", ["A%2", "%_2", "%1%2", "%B%", "A_%"])
def test_what_is_more_than_an_interval_stays_a_residual(pattern: str) -> None:
    assert residuals_of(f"plate LIKE '{pattern}'") == ((f"plate LIKE '{pattern}'",),)


ENDS = ["12", "2", "ß", "ß12", "𝄞", "''b", "\\\\b", "B12", "AB12", "1"]


@pytest.mark.parametrize(
    "form", ["plate LIKE '%{}'", "plate NOT LIKE '%{}'", "plate LIKE '%1%{}'", "plate LIKE '%_{}'"]
)
def test_ends_of_texts_are_found_in_a_batch_one_by_one_and_after_compaction(form: str) -> None:
    conditions = [(end, form.format(end)) for end in ENDS]
    plain, fast = NaiveIndex(Plate), Index(Plate)
    plain.add_all(conditions)
    for half in (conditions[::2], conditions[1::2]):  # Two segments, which are then compacted.
        fast.add_all(boxes_table([(id, parse(text, Plate)) for id, text in half], Plate))
    events = pa.table({"plate": PLATES})
    expected = sorted(plain.match_batch(events))
    for _ in range(2):
        found = fast.match_batch(events)
        assert sorted(zip(*found.to_pydict().values(), strict=True)) == expected
        for row, text in enumerate(PLATES):
            values = {} if text is None else {"plate": text}
            assert sorted(fast.match(values)) == sorted(id for at, id in expected if at == row)
        fast.settle()


def test_only_a_plain_like_of_a_text_is_read() -> None:
    names = text_names(EventType("Thing", **{"odd name": str, "s": str, "n": int}))
    assert read_like("`odd name` LIKE '%a'", names) == (0, "%a", False)
    assert read_like("NOT s LIKE '%it''s \\\\\\\\'", names) == (1, "%it's \\\\", True)
    for other in ("UPPER(s) LIKE '%a'", "n = 1 OR s LIKE '%a'", "s LIKE '%a' OR s LIKE '%b'", "s = 'x LIKE ''y'"):
        assert read_like(other, names) is None


def test_conditions_are_filed_under_the_ends_of_texts() -> None:
    index = Index(Plate)
    index.add_all([(str(n), f"plate LIKE '%{n:04}'") for n in range(3000)])
    index.settle()
    (part,) = index.stats().parts
    assert {name for grid in part.grids for name in grid.attributes} == {"the end of plate"}
    events = pa.table({"plate": [f"X{n:04}" for n in range(0, 3000, 100)]})
    assert index.effort(events).candidates < 20 * events.num_rows
