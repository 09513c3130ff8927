"""The plan with zones without Spark: who meets where, and the payloads that pass from worker to worker."""

from __future__ import annotations

from random import Random

import numpy as np
import pyarrow as pa
import pytest

from tests.strategies_filters import columns_of, random_condition, random_type, random_values
from tidings.events import Attribute, EventType, conform
from tidings.pipeline.matching.parse_subscriptions import (
    one_row_per_id,
    parse_subscriptions,
    read_payload,
    write_payload,
)
from tidings.pipeline.matching.partitioned import (
    BucketPlan,
    DivideEvents,
    DivideSubscriptions,
    assign_buckets,
    boxes_in_cells,
    cells_of,
    make_axes,
)
from tidings.space import balance

CONDITIONS, EVENTS, ZONES, PARTITIONS = 60, 40, 24, 5


def plan_for(rows: pa.Table, subscriptions: pa.Table, event_type: EventType) -> BucketPlan:
    axes = make_axes(rows, subscriptions, event_type)
    _, low, high = boxes_in_cells(subscriptions, axes)
    counts = [axis.cell_count for axis in axes]
    return assign_buckets(axes, balance(counts, cells_of(rows, axes), low, high, zones_max=ZONES), PARTITIONS)


@pytest.mark.parametrize("seed", range(12))
def test_an_event_and_a_condition_that_it_matches_meet_in_exactly_one_bucket(seed: int) -> None:
    rng = Random(seed)
    declared = random_type(rng)
    event_type = EventType.of(declared.name, tuple(Attribute(a.name, a.type) for a in declared))
    conditions = [random_condition(rng, event_type) for _ in range(CONDITIONS)]
    events = [random_values(rng, event_type) for _ in range(EVENTS)]
    rows = conform(columns_of(events, event_type), event_type)
    wanted, _, rejected = parse_subscriptions(
        ((str(at), None, condition.text, False) for at, condition in enumerate(conditions)), event_type
    )
    assert not rejected
    plan = plan_for(rows, wanted, event_type)
    bucket_of_event = plan.of_events(rows)
    row, bucket = plan.of_subscriptions(wanted)
    assert np.all(np.diff(bucket) >= 0)
    sent = set(zip(row.tolist(), bucket.tolist()))
    assert len(sent) == len(row), "nothing is sent twice"
    for at, condition in enumerate(conditions):
        for number, values in enumerate(events):
            if condition.matches(values):
                assert (at, int(bucket_of_event[number])) in sent, (condition.text, values)


def test_payloads_hold_every_event_once_and_every_condition_once_in_each_of_its_buckets() -> None:
    rng = np.random.default_rng(1)
    event_type = EventType("Event", n=int, s=str)
    events = pa.table({"n": rng.integers(0, 100, 500), "s": [f"v{at % 7}" for at in range(500)]})
    texts = [f"n >= {at} AND n < {at + 20} AND s = 'v{at % 7}'" for at in range(80)]
    wanted, _, _ = parse_subscriptions(((f"c{at}", "x", text, False) for at, text in enumerate(texts)), event_type)
    plan = plan_for(conform(events, event_type), wanted, event_type)
    ids = pa.array([f"e{at}" for at in range(500)])
    batch = pa.RecordBatch.from_arrays(
        [ids, *(column.combine_chunks() for column in events.columns)], ["_tidings_event_id", "_0", "_1"]
    )
    divided = list(DivideEvents(plan)([batch.slice(0, 200), batch.slice(200)]))
    found = [id for part in divided for id in read_payload(part.column(3)[0].as_py()).column(0).to_pylist()]
    assert sorted(found) == sorted(ids.to_pylist())
    given = pa.RecordBatch.from_pydict(
        {"payload": [write_payload(wanted.slice(0, 30)), write_payload(wanted.slice(30))]}
    )
    copies = [
        (id, part.column(1)[0].as_py())
        for part in DivideSubscriptions(plan)([given])
        for id in read_payload(part.column(3)[0].as_py()).column("id").to_pylist()
    ]
    row, bucket = plan.of_subscriptions(wanted)
    assert sorted(copies) == sorted((f"c{at}", where) for at, where in zip(row.tolist(), bucket.tolist()))
    assert {part.column(0)[0].as_py() for part in divided} <= set(range(PARTITIONS))


def test_equal_subscriptions_are_one_and_different_ones_of_the_same_id_a_conflict() -> None:
    rows = pa.table({
        "id": ["a", "b", "a", "c", "c", None, None, "d", "d", "e", "e"],
        "subscriber": ["x", "x", "x", "x", "y", "x", "y", None, None, None, "x"],
        "filter": ["n = 1", "n = 2", "n = 1", "n = 3", "n = 3", "n = 4", "n = 4", None, None, "n = 5", "n = 5"],
    })  # fmt: skip
    found = sorted(one_row_per_id(rows).to_pylist(), key=lambda row: str(row["id"]))
    assert [(row["id"], row["subscriber"], row["filter"], row["conflict"]) for row in found] == [
        (None, "x", "n = 4", True),
        ("a", "x", "n = 1", False),
        ("b", "x", "n = 2", False),
        ("c", "x", "n = 3", True),
        ("d", None, None, False),
        ("e", "x", "n = 5", True),
    ]
    assert one_row_per_id(rows.slice(0, 2)).column("conflict").to_pylist() == [False, False]
