"""Events generated from a seed, subscriptions from a table, and checkpoints that do not grow with their history."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.pipeline.sightings import Record, Sighting, expected_pairs, sightings, subscriptions, write_lines
from tests.pipeline.test_run import EVENTS, WANTED, delivered, lay_out, put_events
from tidings.errors import InputError
from tidings.pipeline import BatchDone, BatchLog, Counts, Pipeline, read_pipeline, run
from tidings.pipeline.matching.parse_subscriptions import SUBSCRIPTIONS_SCHEMA, read_payload, write_payload
from tidings.pipeline.sources.subscription_changes import ChangeTable
from tidings.pipeline.state.batch_log import BatchEntry
from tidings.pipeline.state.subscription_versions import Version, VersionLog, one_row_per_task
from tidings.pipeline.storage import storage_at
from tidings.pipeline.stream_job import StreamJob

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# ── Generated events ───────────────────────────────────────────────────────────


def demo(folder: Path, more: str = "") -> Pipeline:
    """A thousand generated sightings in batches of 600."""
    file = lay_out(folder)
    events = f'format = "demo"\nseed = 7\ncount = 1000\nrecords_per_batch = 600\n{more}'
    file.write_text(
        file.read_text().replace('format = "json"\npath = "events"', events).replace("files_per", "#files_per")
    )
    return read_pipeline(file)


def test_the_demo_makes_the_same_events_from_the_same_seed(spark: SparkSession, tmp_path: Path) -> None:
    texts = []
    for name in ("a", "b"):
        counts = run(spark, demo(tmp_path / name, 'values.area = ["EC2", "NW1"]'))
        assert (counts.events, counts.quarantined) == (1_000, 0)
        rows = pq.read_table(tmp_path / name / "deliveries", partitioning="hive").to_pylist()
        assert len({row["delivery_id"] for row in rows}) == len(rows) == counts.deliveries > 0
        texts.append(sorted(row["event"] for row in rows))
    assert texts[0] == texts[1]
    assert {'"EC2"' in text or '"NW1"' in text for text in texts[0]} == {True}
    assert run(spark, read_pipeline(tmp_path / "a" / "pipeline.toml")).events == 1_000, "there are no more"


def test_values_that_do_not_fit_their_attribute_are_told(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="events.values.lane: expected values of type int, got 'left'"):
        run(spark, demo(tmp_path / "a", 'values.lane = ["left"]'))
    with pytest.raises(InputError, match="no attribute 'lain'"):
        run(spark, demo(tmp_path / "b", "values.lain = [1]"))


# ── Subscriptions from a table ───────────────────────────────────────────────


def use_table(folder: Path, entry: str) -> Pipeline:
    file = lay_out(folder)
    file.write_text(file.read_text().replace('path = "subscriptions"', f'format = "table"\n{entry}'))
    return read_pipeline(file)


def put_table(path: Path, rows: list[Record]) -> None:
    path.mkdir(exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path / "part-0.parquet")


def test_a_table_of_subscriptions_is_followed_as_it_changes(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = use_table(tmp_path, 'path = "table"')
    put_events(tmp_path, EVENTS, 6)
    put_table(tmp_path / "table", [*WANTED, {"id": "bad", "subscriber": "x", "filter": "sped > 1"}])
    after = [
        {**WANTED[0], "filter": "lane = 3"},
        *WANTED[2:],
        {"id": "new", "subscriber": "late", "filter": "lane = 1"},
    ]
    seen: list[BatchDone] = []

    def change_after_the_first(done: BatchDone) -> None:
        seen.append(done)
        if done.batch == 0:
            put_table(tmp_path / "table", after)

    run(spark, pipeline, change_after_the_first)
    expected = expected_pairs(EVENTS[:400], WANTED) + expected_pairs(EVENTS[400:], after)
    assert delivered(tmp_path) == sorted(expected)
    assert [(done.version, done.subscriptions) for done in seen] == [(1, 60), (2, 60), (2, 60)]
    [rejected] = pq.read_table(tmp_path / "quarantine" / "subscriptions").to_pylist()
    assert rejected["id"] == "bad"


def test_a_table_may_be_one_that_spark_knows_by_name(spark: SparkSession, tmp_path: Path) -> None:
    spark.sql("DROP TABLE IF EXISTS wanted_sightings")
    spark.createDataFrame(pa.Table.from_pylist(WANTED)).write.saveAsTable("wanted_sightings")
    try:
        put = sightings(200)
        pipeline = use_table(tmp_path, 'table = "wanted_sightings"')
        put_events(tmp_path, put, 1)
        run(spark, pipeline)
        assert delivered(tmp_path) == expected_pairs(put, WANTED)
    finally:
        spark.sql("DROP TABLE wanted_sightings")


def test_a_table_that_is_not_there_is_told(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = use_table(tmp_path, 'path = "none"')
    put_events(tmp_path, EVENTS[:10], 1)
    with pytest.raises(InputError, match="cannot read the subscriptions: .*none"):
        run(spark, pipeline)


def test_many_changes_wait_on_disk_and_come_to_the_driver_in_parts(spark: SparkSession, tmp_path: Path) -> None:
    """A million of them, in memory and as one result of a task, were more than the memory of Spark's driver."""
    put_table(tmp_path / "table", WANTED)
    source = ChangeTable(spark, str(tmp_path / "table"), "", Sighting)
    levels = [changes.rows.storageLevel for changes in source.poll([], SUBSCRIPTIONS_SCHEMA.empty_table)]
    assert [(level.useDisk, level.useMemory) for level in levels] == [(True, False)]
    parts = one_row_per_task(spark.range(0, 8, 1, 1).toDF("row"))
    assert parts.rdd.glom().map(len).collect() == [1] * 8


# ── Checkpoints stay small ───────────────────────────────────────────────────


def version(mark: str, added: list[str], removed: list[str]) -> Version:
    rows = [{"id": id, "condition": "TRUE", "boxes": [], "subscriber": mark} for id in added]
    return Version(mark, write_payload(pa.Table.from_pylist(rows, schema=SUBSCRIPTIONS_SCHEMA)), removed)


def alive(log: VersionLog) -> list[tuple[str, str]]:
    rows, _ = log.changed(0, log.tip)
    return sorted((row["id"], row["subscriber"]) for row in rows.to_pylist())


def test_folded_versions_say_the_same_in_one_file(tmp_path: Path) -> None:
    storage = storage_at(str(tmp_path))
    log = VersionLog(storage)
    for step in (version("1", ["a", "b"], []), version("2", ["b", "c"], ["a"]), version("3", ["d"], ["c"])):
        assert log.append(step)
    before = alive(log)
    assert before == [("b", "2"), ("d", "3")]
    state, _ = log.changed(0, 2)
    log.fold(2, state, lambda marks: marks[-1:])
    for opened in (log, VersionLog(storage)):
        assert alive(opened) == before
        assert (opened.tip, opened.marks) == (3, ["2", "3"])
    assert read_payload(VersionLog(storage).snapshot().payload).num_rows == 2
    log.fold(3, log.changed(0, 3)[0], lambda marks: marks[-1:])
    # What the snapshot before the last one needs stays, for a listing that does not show the last one yet.
    names = sorted(file.name for file in (tmp_path / "subscriptions").iterdir())
    assert names == ["000000002.folded", "000000003.changes", "000000003.folded"]
    (tmp_path / "subscriptions" / "000000003.folded").unlink()
    assert alive(VersionLog(storage)) == before


def test_a_fold_cut_short_by_a_crash_leaves_nothing_wrong(tmp_path: Path) -> None:
    log = VersionLog(storage_at(str(tmp_path)))
    for step in (version("1", ["a"], []), version("2", ["b"], ["a"]), version("3", ["c"], [])):
        log.append(step)
    log.fold(2, log.changed(0, 2)[0], lambda marks: marks)
    old = (tmp_path / "subscriptions" / "000000001.changes").read_bytes()
    log.fold(3, log.changed(0, 3)[0], lambda marks: marks)
    (tmp_path / "subscriptions" / "000000001.changes").write_bytes(old)  # As if the crash had come before.
    again = VersionLog(storage_at(str(tmp_path)))
    assert (alive(again), again.tip, again.marks) == ([("b", "2"), ("c", "3")], 3, ["1", "2", "3"])
    assert not (tmp_path / "subscriptions" / "000000001.changes").exists()


def test_of_two_runs_that_append_the_same_version_one_does(tmp_path: Path) -> None:
    first, second = (VersionLog(storage_at(str(tmp_path))) for _ in range(2))
    assert first.append(version("1", ["a"], []))
    assert not second.append(version("2", ["b"], []))
    assert alive(VersionLog(second.storage)) == [("a", "1")]


def test_many_versions_leave_few_files(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = read_pipeline(lay_out(tmp_path))
    put_events(tmp_path, EVENTS[:800], 8)  # Four batches.
    more = subscriptions(5, seed=9)

    def add_one(done: BatchDone) -> None:
        write_lines(
            tmp_path / "subscriptions" / f"{done.batch + 2}.jsonl", [{**more[done.batch], "id": f"n{done.batch}"}]
        )

    batch_log = BatchLog(pipeline.checkpoint)
    StreamJob(spark, pipeline, batch_log, add_one, versions_max=1).run()
    batch_log.close()
    expected: list[tuple[str, str, str]] = []
    for batch in range(4):
        wanted = [*WANTED, *({**more[n], "id": f"n{n}"} for n in range(batch))]
        expected += expected_pairs(EVENTS[batch * 200 :][:200], wanted)
    assert delivered(tmp_path) == sorted(expected)
    assert len(list((tmp_path / "checkpoint" / "subscriptions").iterdir())) <= 5


def test_a_log_of_many_batches_is_a_few_files(tmp_path: Path) -> None:
    log = BatchLog(str(tmp_path), entries_max=10)
    for batch in range(100):
        log.begin(batch, batch // 10)
        log.finish(batch, Counts(events=2, unmatched=2))
    log.begin(100, 10)
    log.close()
    again = BatchLog(str(tmp_path))
    assert again.totals() == Counts(events=200, unmatched=200)
    assert len(again.storage.list("batches")) <= 24
    assert again[3] == BatchEntry(8, Counts()), "long done, whatever it was"
    assert (again[100], again[101]) == (BatchEntry(10, epoch=1), None)
    again.close()
