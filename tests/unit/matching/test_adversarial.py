"""Conditions and events that are not what anybody hopes for: right answers, in bounded memory.

The bound is on bytes per interval, since a condition with a hundred thousand values is allowed
to take more than one with two.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

from tests.unit.filters.test_bounds import lines_run
from tidings.events import EventType, Value
from tidings.filters import Condition, parse
from tidings.matching import Index, IndexTuning, NaiveIndex

BYTES_PER_CONDITION_MAX = 700
BYTES_PER_INTERVAL_MAX = 250
WIDE = EventType("Wide", {f"a{i}": int for i in range(200)})
THING = EventType("Thing", n=int, m=int, s=str, d=float)


def check(
    kind: EventType, conditions: list[tuple[str, Condition]], events: pa.Table, tuning: IndexTuning | None = None
) -> Index:
    """Builds the index, compares it with the definition, and with the bound on memory."""
    index, plain = Index(kind, tuning=tuning or IndexTuning()), NaiveIndex(kind)
    index.add_all(conditions)
    index.settle()
    plain.add_all(conditions)
    found = index.match_batch(events)
    assert list(zip(*found.to_pydict().values(), strict=True)) == plain.match_batch(events)
    record = {name: value for name, value in events.slice(0, 1).to_pylist()[0].items() if value is not None}
    assert index.match(record) == plain.match(record)
    stats = index.stats()
    intervals = sum(len(s.pairs) + s.null for _, c in conditions for box in c.boxes for _, s in box.sides)
    assert stats.bytes < 200_000 + BYTES_PER_CONDITION_MAX * len(conditions) + BYTES_PER_INTERVAL_MAX * intervals
    return index


def parsed(kind: EventType, texts: list[str]) -> list[tuple[str, Condition]]:
    return [(f"c{i}", parse(text, kind)) for i, text in enumerate(texts)]


def numbers(**columns: Iterator[int] | list[int] | range) -> pa.Table:
    return pa.table({name: pa.array(list(values), pa.int64()) for name, values in columns.items()})


def test_one_value_in_half_of_all_events() -> None:
    texts = [f"n = {i % 40} AND m > {i}" for i in range(800)]
    check(THING, parsed(THING, texts), numbers(n=[0] * 100 + list(range(100)), m=range(0, 1600, 8)))


def test_two_hundred_attributes_of_which_few_are_there() -> None:
    rng = np.random.default_rng(1)
    pairs = [rng.choice(200, 3, replace=False) for _ in range(1500)]
    texts = [f"a{a} = {a % 7} AND a{b} < {b} AND a{c} >= 3" for a, b, c in pairs]
    columns = {f"a{i}": pa.array(rng.integers(0, 8, 60), pa.int64(), mask=rng.random(60) < 0.8) for i in range(200)}
    check(WIDE, parsed(WIDE, texts), pa.table(columns))


def test_one_attribute_alone() -> None:
    kind = EventType("One", n=int)
    check(kind, parsed(kind, [f"n >= {i} AND n < {i + 5}" for i in range(2000)]), numbers(n=range(0, 2100, 30)))


def test_all_on_one_attribute_and_all_different() -> None:
    check(THING, parsed(THING, [f"n = {i * 7}" for i in range(3000)]), numbers(n=range(0, 21000, 100)))


def test_all_identical() -> None:
    check(
        THING,
        parsed(THING, ["n > 5 AND m < 3 AND s = 'x'"] * 2000),
        pa.table({"n": [6, 5], "m": [1, 1], "s": ["x", "x"]}),
    )


def test_all_nested() -> None:
    texts = [f"n >= {i} AND n < {10_000 - i} AND m >= {i} AND m < {10_000 - i}" for i in range(2000)]
    check(THING, parsed(THING, texts), numbers(n=range(0, 10_000, 500), m=range(0, 10_000, 500)))


def test_all_open_to_one_side() -> None:
    texts = [f"n > {i} AND m < {i}" for i in range(3000)]
    check(THING, parsed(THING, texts), numbers(n=range(0, 3000, 300), m=range(3000, 0, -300)))


def test_lists_of_a_hundred_thousand_values() -> None:
    values = range(0, 200_000, 2)
    texts = [f"n IN ({', '.join(map(str, values))})", "n <> 4 AND n <> 5", "n = 4"]
    check(THING, parsed(THING, texts), numbers(n=[0, 1, 4, 5, 199_998, 199_999, 200_000]))


def test_many_lists_that_overlap() -> None:
    texts = [
        f"s IN ({', '.join(repr(f'v{(i * 7 + j * 13) % 500}') for j in range(30))}) AND n > {i}" for i in range(300)
    ]
    check(
        THING, parsed(THING, texts), pa.table({"s": [f"v{i}" for i in range(0, 500, 9)], "n": list(range(0, 560, 10))})
    )


def test_everything_and_nothing_thousands_of_times() -> None:
    texts = ["TRUE", "n > 1 AND n < 1", "n IS NULL OR n IS NOT NULL"] * 700
    check(THING, parsed(THING, texts), numbers(n=[1, 2]))


def test_thousands_of_residuals_alone() -> None:
    texts = [f"n + m = {i % 50}" if i % 2 else f"s LIKE '%{i % 10}'" for i in range(3000)]
    check(THING, parsed(THING, texts), pa.table({"n": [1, 2, 3], "m": [4, 5, None], "s": ["a7", "b8", "c"]}))


def test_thousands_of_boxes_of_few_conditions() -> None:
    texts = [" OR ".join(f"(n = {i * j} AND m = {j})" for j in range(200)) for i in range(20)]
    check(THING, parsed(THING, texts), numbers(n=range(0, 400, 7), m=[i % 30 for i in range(58)]))


def test_events_far_from_all_conditions() -> None:
    texts = [f"n >= {i} AND n < {i + 3} AND m = {i % 5}" for i in range(1000)]
    extremes = [-(2**63), 2**63 - 1, 0, 999, 1003, -1]
    check(THING, parsed(THING, texts), numbers(n=extremes, m=[4] * 6))


def test_bounds_at_the_ends_of_the_domain_among_close_ones() -> None:
    ends = [f"n > {-(2**63)}", f"n >= {2**63 - 1}", f"n < {-(2**63) + 1}", f"n <= {2**63 - 1}"]
    texts = ends + [f"n = {i}" for i in range(1000)]
    check(THING, parsed(THING, texts), numbers(n=[-(2**63), 2**63 - 1, 0, 500, -(2**63) + 1]))


def test_a_batch_larger_than_one_goes_through_in_pieces() -> None:
    texts = [f"n >= {i} AND n < {i + 40}" for i in range(200)]
    check(THING, parsed(THING, texts), numbers(n=[i % 250 for i in range(1000)]), IndexTuning(batch_rows=64))


def test_large_segments_and_batches_take_the_ordered_way() -> None:
    texts = [f"n >= {i} AND n < {i + 9} AND m <> {i % 9} AND d > {i % 3}" for i in range(600)] + ["TRUE"]
    events = numbers(n=[i % 700 for i in range(600)], m=[i % 11 for i in range(600)])
    events = events.append_column("d", pa.array([None if i % 5 == 0 else i % 4 + 0.5 for i in range(600)]))
    check(THING, parsed(THING, texts), events, IndexTuning(cached_bytes_max=0))


STEPS_MAX = 3000  # Lines of Python for one event that a single look at each of the conditions would exceed.


@pytest.mark.parametrize(
    ("form", "record"),
    [
        ("n < m + {}", {"n": 1, "m": -1990}),  # In doubt, every one.
        ("UPPER(s) = 'AN ERROR {}'", {"s": "an error 1999"}),
        ("s LIKE '%error%' AND d > {}.5", {"s": "an error", "d": 20.0}),  # All of them under the same word.
        ("s LIKE '%rr_r {}%'", {"s": "an error 1999 here"}),
    ],
)
def test_one_event_looks_at_thousands_of_residuals_together(form: str, record: dict[str, Value]) -> None:
    conditions = parsed(THING, [form.format(number) for number in range(2000)])
    index = check(THING, conditions, pa.table({name: [value] for name, value in record.items()}))
    expected = [id for id, condition in conditions if condition.evaluate(record) is True]
    assert 0 < len(expected) < 100
    assert lines_run(lambda: index.match(record)) < STEPS_MAX
    assert index.match(record) == expected
