"""Deliveries as row groups: what a reader finds is what matching found, however it was cut into rounds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pipeline.sightings import Sighting, expected_pairs, sightings, subscriptions, table
from tidings.events import conform
from tidings.pipeline.matching import index_replica
from tidings.pipeline.matching.index_replica import IndexReplica, MatchedPairs, RoundSizer, group_by_event
from tidings.pipeline.matching.parse_subscriptions import parse_subscriptions
from tidings.pipeline.parquet.row_groups import RowGroups, take_as_dictionary

EVENTS, WANTED = sightings(300), subscriptions(40)
pairs = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9)), min_size=1)


@pytest.fixture(scope="module")
def held() -> IndexReplica:
    rows = ((row["id"], row["subscriber"], row["filter"], False) for row in WANTED)
    return IndexReplica.of(parse_subscriptions(rows, Sighting)[0], Sighting, rows_max=64)


def written(path: Path, held: IndexReplica, *, compact: bool, pairs_max: int) -> pa.Table:
    batch = conform(table(EVENTS), Sighting).combine_chunks().to_batches()[0]
    ids = pa.array([event["event_id"] for event in EVENTS])
    with RowGroups(
        str(path), held, pa.schema([("event_id", pa.string())]), compact=compact, pairs_max=pairs_max
    ) as out:
        for start, found in held.match_in_rounds(batch):
            out.add(ids.slice(start), found)
    read = pq.read_table(path)
    assert out.pairs == len(expected_pairs(EVENTS, WANTED))
    return read


@given(pairs)
def test_grouping_keeps_every_pair_and_the_order_within_an_event(found: list[tuple[int, int]]) -> None:
    events, numbers = np.array(found, np.int32).T
    rows, counts, grouped = group_by_event(events, numbers)
    assert rows.tolist() == sorted({event for event, _ in found})
    together = list(zip(np.repeat(rows, counts).tolist(), grouped.tolist()))
    assert together == sorted(found, key=lambda pair: pair[0])


@given(pairs)
def test_a_dictionary_holds_what_occurs_and_nothing_else(found: list[tuple[int, int]]) -> None:
    texts, numbers = pa.array([f"s{at}" for at in range(10)]), np.array([number for _, number in found], np.int32)
    taken = take_as_dictionary(texts, numbers)
    assert taken.to_pylist() == [f"s{number}" for number in numbers]
    assert sorted(taken.dictionary.to_pylist()) == sorted({f"s{number}" for number in numbers})


@pytest.mark.parametrize("compact", [True, False])
@pytest.mark.parametrize("pairs_max", [100, 10**9])
def test_files_hold_the_pairs_of_the_definition(
    held: IndexReplica, tmp_path: Path, compact: bool, pairs_max: int
) -> None:
    rows = written(tmp_path / "out.parquet", held, compact=compact, pairs_max=pairs_max).to_pylist()
    assert (pq.read_metadata(tmp_path / "out.parquet").num_row_groups > 1) == (pairs_max == 100)
    if compact:
        found = [(row["event_id"], id) for row in rows for id in row["subscription_ids"]]
        assert sorted(found) == [pair[:2] for pair in expected_pairs(EVENTS, WANTED)]
        assert len({row["event_id"] for row in rows}) == len(rows)
    else:
        assert sorted(tuple(row.values()) for row in rows) == expected_pairs(EVENTS, WANTED)


def test_a_file_of_nothing_still_has_its_columns(held: IndexReplica, tmp_path: Path) -> None:
    nothing = MatchedPairs(np.zeros(0, np.int32), np.zeros(0, np.int32), held.ids, held.subscribers)
    with RowGroups(str(tmp_path / "out.parquet"), held, pa.schema([("event_id", pa.int64())]), compact=True) as out:
        out.add(pa.array([], pa.int64()), nothing)
    assert pq.read_table(tmp_path / "out.parquet").schema == pa.schema(
        [("event_id", pa.int64()), ("subscription_ids", pa.list_(pa.field("element", pa.string())))]
    )


def test_the_first_round_is_small_for_many_subscriptions_and_later_ones_follow_what_is_found() -> None:
    sizer = RoundSizer(1_000_000)
    assert sizer.rows <= 2, "all of them could match"
    for _ in range(10):
        sizer.learn(sizer.rows, pairs=sizer.rows)
    assert sizer.rows == index_replica.ROWS_MAX
    sizer.learn(sizer.rows, pairs=100 * sizer.rows)
    assert sizer.rows == index_replica.PAIRS_PER_ROUND // 100
