"""An index that is built in parts finds what one that is built at once finds."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path

import pyarrow as pa
import pytest

from tests.pipeline.sightings import Sighting, expected_pairs, sightings, subscriptions, table
from tidings.events import conform
from tidings.pipeline.matching.index_replica import IndexReplica, build_index
from tidings.pipeline.matching.parse_subscriptions import SUBSCRIPTIONS_SCHEMA, parse_subscriptions

EVENTS, WANTED = sightings(300), subscriptions(60)


def parsed() -> pa.Table:
    rows = [(row["id"], row["subscriber"], row["filter"], False) for row in WANTED]
    return parse_subscriptions(rows, Sighting)[0]


def found(folder: Path) -> list[tuple[str, str, str]]:
    replica = IndexReplica.open(folder)
    events = table(EVENTS).combine_chunks().to_batches()[0]
    pairs = replica.match(conform(events, Sighting)).pairs(events.column("event_id"))
    return sorted(zip(*(pairs.column(at).to_pylist() for at in range(3))))


@pytest.mark.parametrize(("sizes", "part_rows"), [([60], 60), ([60], 7), ([1, 30, 29], 16), ([0, 20, 40], 20)])
def test_parts_of_any_size_find_every_pair_once(tmp_path: Path, sizes: list[int], part_rows: int) -> None:
    whole, ends = parsed(), list(accumulate(sizes))
    tables = [whole.slice(end - size, size) for end, size in zip(ends, sizes)]
    build_index(tables, Sighting, tmp_path, part_rows=part_rows)
    assert found(tmp_path) == expected_pairs(EVENTS, WANTED)
    parts = [path for path in tmp_path.iterdir() if path.is_dir()]
    assert len(parts) >= 60 / part_rows


def test_of_nothing_is_an_index_that_finds_nothing(tmp_path: Path) -> None:
    for at, tables in enumerate(([], [SUBSCRIPTIONS_SCHEMA.empty_table()])):
        (tmp_path / str(at)).mkdir()
        build_index(tables, Sighting, tmp_path / str(at))
        assert found(tmp_path / str(at)) == []


def test_lists_of_an_event_hold_the_subscriptions_of_all_parts(tmp_path: Path) -> None:
    build_index([parsed()], Sighting, tmp_path, part_rows=9)
    events = table(EVENTS).combine_chunks().to_batches()[0]
    lists = IndexReplica.open(tmp_path).match(conform(events, Sighting)).compact(events.column("event_id"))
    rows = [(id, each) for id, ids in zip(*(lists.column(at).to_pylist() for at in range(2))) for each in ids]
    assert len(set(lists.column(0).to_pylist())) == lists.num_rows
    assert sorted(rows) == [(event, subscription) for event, subscription, _ in expected_pairs(EVENTS, WANTED)]
