"""Parquet to Parquet by the workers themselves: the same pairs as through Spark, and whole results or none."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.pipeline.sightings import expected_pairs, sightings, subscriptions, table
from tidings.errors import InputError, SetupError
from tidings.pipeline import match_files
from tidings.pipeline.matching.direct_parquet import FileSlice, move_all, share_out, with_value
from tidings.pipeline.storage import LocalStorage, Location

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVENTS = sightings(900)
WANTED = subscriptions(60)
EXPECTED = expected_pairs(EVENTS, WANTED)


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str, str]:
    """Events in three files of several row groups, subscriptions, and a folder that is not there yet."""
    (tmp_path / "events").mkdir()
    for number in range(3):
        pq.write_table(
            table(EVENTS[number * 300 :][:300]), tmp_path / "events" / f"{number}.parquet", row_group_size=70
        )
    pq.write_table(pa.Table.from_pylist(WANTED), tmp_path / "wanted.parquet")
    return str(tmp_path / "events"), str(tmp_path / "wanted.parquet"), str(tmp_path / "out")


def test_rows_and_lists_are_those_of_the_definition(spark: SparkSession, files: tuple[str, str, str]) -> None:
    events, wanted, out = files
    outcome = match_files(spark, events, wanted, out)
    assert outcome.plan.endswith("read and written by the workers")
    assert sorted(tuple(row) for row in spark.read.parquet(out).collect()) == EXPECTED
    compact = match_files(spark, events, wanted, out, compact=True, overwrite=True)
    found = [(row.event_id, id) for row in spark.read.parquet(out).collect() for id in row.subscription_ids]
    assert sorted(found) == [(event, id) for event, id, _ in EXPECTED]
    assert outcome.deliveries == compact.deliveries == len(EXPECTED)
    assert {path.name[:5] for path in Path(out).iterdir()} == {"part-", "_SUCC"}


def test_columns_that_are_in_folder_names_only_go_through_spark(
    spark: SparkSession, files: tuple[str, str, str], tmp_path: Path
) -> None:
    _, _, out = files
    rows = spark.createDataFrame(table(EVENTS[:50]))
    rows.write.partitionBy("area").parquet(str(tmp_path / "by_area"))
    pq.write_table(
        pa.Table.from_pylist([{"id": "s", "subscriber": "x", "filter": "area = 'EC2'"}]), tmp_path / "one.parquet"
    )
    outcome = match_files(spark, str(tmp_path / "by_area"), str(tmp_path / "one.parquet"), out)
    assert outcome.plan.endswith("read and written by Spark")
    assert outcome.deliveries == sum(event["area"] == "EC2" for event in EVENTS[:50]) > 0


def test_a_damaged_file_among_good_ones_is_named_and_no_result_is_left(
    spark: SparkSession, files: tuple[str, str, str]
) -> None:
    events, wanted, out = files
    file = Path(events) / "1.parquet"
    content = bytearray(file.read_bytes())
    content[10:2_000] = bytes(1_990)  # The footer at its end stays: the file opens, and then cannot be read.
    file.write_bytes(content)
    with pytest.raises(InputError, match="1.parquet: the file is damaged"):
        match_files(spark, events, wanted, out)
    assert not list(Path(out).glob("*"))
    file.write_bytes(content[:-100])
    with pytest.raises(InputError, match="damaged"):
        match_files(spark, events, wanted, out)


def test_work_is_shared_out_in_runs_of_about_equal_size() -> None:
    slices = [FileSlice("a", (n,), 10) for n in range(10)] + [FileSlice("b", (0,), 100)]
    tasks = share_out(slices, 2)
    assert [file_slice for task in tasks for file_slice in task] == slices
    assert [sum(file_slice.size for file_slice in task) for task in tasks] == [50, 50, 100]
    assert share_out([], 2) == []


def test_a_store_that_refuses_one_file_has_none_of_the_result(tmp_path: Path) -> None:
    class Refusing(LocalStorage):
        def move(self, source: str, target: str) -> None:
            if source == "staged/2":
                raise SetupError("cannot write")
            super().move(source, target)

    storage = Refusing(Location(str(tmp_path)))
    for number in range(4):
        storage.put(f"staged/{number}", b"rows")
    with pytest.raises(SetupError, match="cannot write"):
        move_all(storage, [(f"staged/{number}", f"part-{number}") for number in range(4)])
    assert [file.name for file in storage.list() if not file.name.startswith("staged/")] == []


def test_rows_without_an_id_are_left_out_of_files_with_views() -> None:
    """Which `deltalake` writes when rows are deleted."""
    text = pa.string_view()
    columns = {
        "id": pa.array(["e0", None], text),
        "raw": pa.array([b"a", b"b"], pa.binary_view()),
        "tags": pa.array([["a"], ["b"]], pa.list_(text)),
        "at": pa.array([{"x": "a"}, None], pa.struct([("x", text)])),
        "by": pa.array([[("k", "v")], None], pa.map_(text, text)),
        "speed": pa.array([1, 2]),
    }
    expected = {"id": "e0", "raw": b"a", "tags": ["a"], "at": {"x": "a"}, "by": [("k", "v")], "speed": 1}
    assert with_value(pa.RecordBatch.from_pydict(columns), "id").to_pylist() == [expected]
