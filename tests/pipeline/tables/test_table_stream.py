"""A table as a stream: offsets that mean the same rows whenever they are asked for."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxFiles

from tests.pipeline.tables.given_tables import events
from tidings.errors import InputError
from tidings.pipeline.connectors.delta import DeltaReader
from tidings.pipeline.sources.table_stream import TableStreamReader


def reader(where: str, *, skip_changes: bool = False) -> TableStreamReader:
    return TableStreamReader(DeltaReader(where), 2, skip_changes)


def rows_between(stream: TableStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    in_worker = pickle.loads(pickle.dumps(stream))
    parts = stream.partitions(start, end)
    return [id for part in parts for batch in in_worker.read(part) for id in batch.column("event_id").to_pylist()]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> str:
    """At the start three files, later six appends of one row, with an OPTIMIZE among them."""
    where = str(tmp_path_factory.mktemp("stream") / "t")
    for start in range(3):
        write_deltalake(where, events(start, 1), mode="append")
    return where


@given(limits=st.lists(st.integers(1, 4), min_size=20, max_size=20), restarts=st.sets(st.integers(0, 19)))
@settings(max_examples=25)
def test_batches_of_any_size_with_restarts_at_any_offset_have_each_row_once(
    table: str, limits: list[int], restarts: set[int]
) -> None:
    stream = reader(table)
    offset, found = {**stream.initialOffset(), "version": 2}, list[int]()
    if DeltaTable(table).version() < 6:
        for start in range(3, 6):
            write_deltalake(table, events(start, 1), mode="append")
        DeltaTable(table).optimize.compact()
        write_deltalake(table, events(6, 1), mode="append")
    for number, limit in enumerate(limits):
        if number in restarts:
            stream = reader(table)
        following = stream.latestOffset(offset, ReadMaxFiles(limit))
        batch = rows_between(stream, offset, following)
        assert batch == rows_between(reader(table), offset, following)
        assert len(batch) <= limit
        offset, found = following, found + batch
    assert sorted(found) == list(range(7))


def test_available_now_ends_at_the_version_of_the_start(tmp_path: Path) -> None:
    where = str(tmp_path / "t")
    write_deltalake(where, events(0, 3))
    stream = reader(where)
    start = stream.initialOffset()
    stream.prepareForTriggerAvailableNow()
    write_deltalake(where, events(3, 3), mode="append")
    end = stream.latestOffset(start, ReadAllAvailable())
    assert rows_between(stream, start, end) == [0, 1, 2]
    assert stream.latestOffset(end, ReadAllAvailable()) == end
    later = reader(where)
    assert rows_between(later, end, later.latestOffset(end, ReadAllAvailable())) == [3, 4, 5]


def test_a_change_ends_the_stream_or_is_skipped(tmp_path: Path) -> None:
    where = str(tmp_path / "t")
    write_deltalake(where, events(0, 3))
    start = reader(where).initialOffset()
    DeltaTable(where).update({"area": "'X'"}, predicate="event_id = 1")
    write_deltalake(where, events(3, 1), mode="append")
    with pytest.raises(InputError, match="changed or removed rows"):
        reader(where).latestOffset(start, ReadAllAvailable())
    skipping = reader(where, skip_changes=True)
    assert rows_between(skipping, start, skipping.latestOffset(start, ReadAllAvailable())) == [0, 1, 2, 3]


def test_a_table_that_was_created_again_is_another_one(tmp_path: Path) -> None:
    where = str(tmp_path / "t")
    write_deltalake(where, events(0, 3))
    start = reader(where).initialOffset()
    (tmp_path / "t").rename(tmp_path / "old")
    write_deltalake(where, events(0, 3))
    with pytest.raises(InputError, match="deleted and created again"):
        reader(where).latestOffset(start, ReadAllAvailable())
