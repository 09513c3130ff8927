"""The streaming job: exactly once, whatever is killed; subscriptions that change; nothing lost silently."""

from __future__ import annotations

import contextlib
import datetime as dt
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from tests.pipeline.commands import tidings
from tests.pipeline.sightings import Record, Sighting, expected_pairs, sightings, subscriptions, table, write_lines
from tidings.cli.run import tell_of, tell_of_rejects
from tidings.errors import InputError, SetupError
from tidings.events import write_file
from tidings.pipeline import (
    BatchDone,
    Counts,
    Matching,
    Pipeline,
    delivery_id,
    read_deliveries,
    read_pipeline,
    run,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVENTS = sightings(1_200)
WANTED = subscriptions(60)
SMALL = ("--master", "local[2]", "--conf", "spark.sql.shuffle.partitions=2")

PIPELINE = """
name = "test"
checkpoint = "checkpoint"
[events]
format = "{events}"
path = "events"
type = "sighting.toml"
files_per_batch = 2
[subscriptions]
path = "subscriptions"
[deliveries]
format = "{deliveries}"
path = "deliveries"
[quarantine]
path = "quarantine"
[trigger]
until_empty = true
"""


def lay_out(folder: Path, events: str = "json", deliveries: str = "parquet") -> Path:
    (folder / "events").mkdir(parents=True)
    write_file(Sighting, folder / "sighting.toml")
    write_lines(folder / "subscriptions" / "1.jsonl", WANTED)
    file = folder / "pipeline.toml"
    file.write_text(PIPELINE.format(events=events, deliveries=deliveries))
    return file


def put_events(folder: Path, events: list[Record], files: int) -> None:
    """Events in so many files, a second apart: Spark takes the oldest first, and those of one moment in any order."""
    size = -(-len(events) // files)
    for number in range(files):
        path = folder / "events" / f"{events[0]['event_id']}-{number}.jsonl"
        write_lines(path, events[number * size :][:size])
        os.utime(path, (path.stat().st_mtime - files + number,) * 2)


def delivered(folder: Path) -> list[tuple[str, str, str]]:
    """What a reader finds in the sink, by its commit records and by listing it."""
    rows = read_deliveries(str(folder / "deliveries")).to_table().to_pylist()
    listed = pq.read_table(folder / "deliveries", partitioning="hive").to_pylist()
    assert sorted(row["delivery_id"] for row in rows) == sorted(row["delivery_id"] for row in listed)
    assert all(row["delivery_id"] == delivery_id(row["event_id"], row["subscription_id"]) for row in rows)
    return sorted((row["event_id"], row["subscription_id"], row["subscriber"]) for row in rows)


def test_every_pair_is_delivered_once_and_the_counts_add_up(spark: SparkSession, tmp_path: Path) -> None:
    tmp_path = tmp_path / "új 50%25"  # Taken as it is, and not as a URI.
    pipeline = read_pipeline(lay_out(tmp_path))
    put_events(tmp_path, EVENTS, 5)
    broken = tmp_path / "events" / "broken.jsonl"
    broken.write_bytes(b'{"event_id": "x1", "speed": "fast"}\n{"event_id": "x2"\n\xff\xfe\n{"speed": 3.0}\n')
    done: list[BatchDone] = []
    counts = run(spark, pipeline, done.append)
    expected = expected_pairs(EVENTS, WANTED)
    assert delivered(tmp_path) == expected
    wanted = len({event for event, _, _ in expected})
    assert counts == Counts(
        events=len(EVENTS) + 4,
        delivered_from=wanted,
        unmatched=len(EVENTS) - wanted,
        quarantined=4,
        deliveries=len(expected),
    )
    assert len(done) == 3
    kept = pq.read_table(tmp_path / "quarantine" / "events").to_pylist()
    assert sorted(row["original"] for row in kept) == sorted(broken.read_bytes().splitlines())
    assert all(row["reason"] for row in kept)
    assert run(spark, pipeline) == counts, "a run without new events changes nothing"
    put_events(tmp_path, sightings(100, first=5_000), 1)
    assert run(spark, pipeline).events == counts.events + 100
    assert delivered(tmp_path) == sorted(expected + expected_pairs(sightings(100, first=5_000), WANTED))


def test_files_whose_names_are_patterns_are_refused_and_renamed_they_are_read_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Of two such files in a batch, Spark reads each twice."""
    pipeline = read_pipeline(lay_out(tmp_path))
    for number in range(2):
        write_lines(tmp_path / "events" / f"{number} [a].jsonl", EVENTS[number * 50 :][:50])
    with pytest.raises(InputError, match="rename the file"):
        run(spark, pipeline)
    for number in range(2):
        (tmp_path / "events" / f"{number} [a].jsonl").rename(tmp_path / "events" / f"{number}.jsonl")
    assert run(spark, pipeline).events == 100
    assert delivered(tmp_path) == expected_pairs(EVENTS[:100], WANTED)


def test_subscriptions_change_from_one_batch_to_the_next(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = read_pipeline(lay_out(tmp_path))
    put_events(tmp_path, EVENTS, 6)
    changed = {**WANTED[0], "filter": "lane = 3"}
    added = {"id": "new", "subscriber": "late", "filter": "lane = 1"}
    changes = [changed, {"id": WANTED[1]["id"], "removed": True}, added, {"id": WANTED[2]["id"], "filter": "sped > 1"}]

    done: list[BatchDone] = []

    def change_after_the_first(batch: BatchDone) -> None:
        done.append(batch)
        if batch.batch == 0:
            write_lines(tmp_path / "subscriptions" / "2.jsonl", changes)

    totals = run(spark, pipeline, change_after_the_first)
    assert ([each.counts.rejected for each in done], totals.rejected) == ([0, 1, 0], 1)
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        tell_of(done[1])
        tell_of_rejects(totals, "quarantine")
    assert "1 subscription changes rejected" in said.getvalue()
    assert "they are in quarantine/subscriptions" in said.getvalue()
    first, later = EVENTS[:400], EVENTS[400:]
    after = [changed, *WANTED[2:], added]
    assert delivered(tmp_path) == sorted(expected_pairs(first, WANTED) + expected_pairs(later, after))
    rows = pq.read_table(tmp_path / "deliveries", partitioning="hive").to_pylist()
    assert {(row["event_id"] < "e000400", row["subscriptions_version"]) for row in rows} == {(True, 1), (False, 2)}
    [rejected] = pq.read_table(tmp_path / "quarantine" / "subscriptions").to_pylist()
    assert rejected["id"] == WANTED[2]["id"]
    assert "did you mean 'speed'" in rejected["reason"]
    assert b"sped > 1" in rejected["original"]


def test_parquet_in_and_json_lines_out(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = read_pipeline(lay_out(tmp_path, "parquet", "json"))
    pq.write_table(table(EVENTS[:300]), tmp_path / "events" / "1.parquet")
    assert run(spark, pipeline).events == 300
    rows = spark.read.json(str(tmp_path / "deliveries")).collect()
    expected = expected_pairs(EVENTS[:300], WANTED)
    assert sorted((row.event_id, row.subscription_id, row.subscriber) for row in rows) == expected
    assert {row.event for row in rows} <= {row.event for row in rows if '"event_id":"e' in row.event}


def test_times_keep_their_microseconds_and_their_zone(spark: SparkSession, tmp_path: Path) -> None:
    file = lay_out(tmp_path, "parquet", "json")
    lines = [line for line in file.read_text().splitlines() if not line.startswith("type =")]
    file.write_text("\n".join(lines).replace('"deliveries"\n', '"deliveries"\nkeep = "all"\n', 1) + "\n")
    kinds = {"id": pa.string(), "speed": pa.float64(), "zoned": pa.timestamp("us", "UTC"), "naive": pa.timestamp("us")}
    at = dt.datetime(2026, 1, 31, 12, 0, 0, 123456)  # noqa: DTZ001  One of the columns has no zone.
    rows = [{"id": id, "speed": 1.0, "zoned": at.replace(tzinfo=dt.UTC), "naive": at} for id in ("e1", None)]
    pq.write_table(pa.Table.from_pylist(rows, pa.schema(list(kinds.items()))), tmp_path / "events" / "1.parquet")
    write_lines(tmp_path / "subscriptions" / "1.jsonl", [{"id": "s", "subscriber": "x", "filter": "speed = 1"}])
    assert run(spark, read_pipeline(file)).deliveries == 1
    [row] = [json.loads(line) for each in (tmp_path / "deliveries").glob("batch=*/*.json") for line in each.open()]
    [broken] = read_deliveries(str(tmp_path / "quarantine" / "events")).to_table().to_pylist()
    for record in (row, json.loads(row["event"]), json.loads(broken["original"])):
        assert [record[name][11:26] for name in ("zoned", "naive")] == ["12:00:00.123456"] * 2, record
    wanted = spark.read.json(str(tmp_path / "subscriptions"))
    events = spark.read.parquet(str(tmp_path / "events"))
    [unnamed] = Matching(events, wanted).unnamed.collect()
    assert json.loads(unnamed.original)["naive"] == "2026-01-31T12:00:00.123456"
    paths = (str(tmp_path / name) for name in ("events", "subscriptions"))
    ended = tidings("match", *paths, "--out", str(tmp_path / "out"), "--plan", "zones", "--keep", "zoned", *SMALL)
    assert ended.code == 1, ended.said  # One event has no id.
    assert pq.read_table(tmp_path / "out").schema.field("zoned").type == kinds["zoned"]


def test_a_column_of_parquet_that_spark_cannot_read_is_named_with_what_helps(
    spark: SparkSession, tmp_path: Path
) -> None:
    file = lay_out(tmp_path, "parquet")
    rows = table(EVENTS[:5]).append_column("at", pa.array([1, 2, 3, 4, 5], pa.timestamp("ns", "UTC")))
    pq.write_table(rows, tmp_path / "events" / "1.parquet")
    ended = tidings("run", str(file), *SMALL)
    assert ended.code == 2, ended.said
    [said] = [line for line in ended.said.splitlines() if "Error" in line]
    assert "cannot read at (timestamp[ns, tz=UTC])" in said
    assert "microseconds" in said


def test_csv_in_with_rows_that_do_not_fit(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = read_pipeline(lay_out(tmp_path, "csv"))
    lines = ["event_id,plate,area,speed,lane,position.lat", "c1,A123,EC2,55.0,1,51.5", "c2,A123,EC2,fast,1,51.5"]
    (tmp_path / "events" / "1.csv").write_text("\n".join(lines) + "\n")
    counts = run(spark, pipeline)
    assert (counts.events, counts.quarantined) == (2, 1)
    good: Record = {
        "event_id": "c1",
        "plate": "A123",
        "area": "EC2",
        "speed": 55.0,
        "lane": 1,
        "position": {"lat": 51.5},
    }
    assert delivered(tmp_path) == expected_pairs([good], WANTED)


def test_what_is_not_there_is_told_before_anything_runs(spark: SparkSession, tmp_path: Path) -> None:
    file = lay_out(tmp_path)
    (tmp_path / "blocked").write_text("a file where a folder should be")
    for entry, error, said in (
        ('path = "events"', InputError, "expected a folder that files are put into"),
        ('path = "deliveries"', SetupError, "cannot write to"),
        ('checkpoint = "checkpoint"', SetupError, "cannot write the checkpoint"),
    ):
        key = entry.split(" = ")[0]
        text = PIPELINE.format(events="json", deliveries="parquet").replace(entry, f'{key} = "blocked/inside"')
        file.write_text(text)
        with pytest.raises(error, match=said):
            run(spark, read_pipeline(file))


def start_run(file: Path, *more: str) -> subprocess.Popen[bytes]:
    return _started("tidings", "run", str(file), *SMALL, *more)


def struck_run(strike: tuple[str, str, str, int], file: Path, *more: str) -> tuple[int, str]:
    """A run that kills or interrupts itself, as `struck_run` has it; how it ended, and what it said."""
    process = _started("tests.pipeline.struck_run", *map(str, strike), "run", str(file), *SMALL, *more)
    _, said = process.communicate(timeout=300)
    return process.returncode, said.decode()


def wait_for(something: Path, process: subprocess.Popen[bytes], pattern: str, count: int) -> None:
    while process.poll() is None and len(list(something.glob(pattern))) < count:
        time.sleep(0.02)  # Another process's files: there is nothing to wait on but the disk.


def _started(*command: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": "src:."}
    return subprocess.Popen(
        [sys.executable, "-m", *command], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


@pytest.mark.slow
@pytest.mark.spark
def test_interrupted_before_the_first_batch_a_run_says_one_line_and_no_traceback(tmp_path: Path) -> None:
    code, said = struck_run(("INT", "after", "java", 1), lay_out(tmp_path))
    assert (code, said.splitlines()) == (130, ["stopped before anything was done"])


def test_mistakes_in_a_pipeline_are_found_without_starting_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_start(*given: object) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr("tidings.pipeline.start", no_start, raising=False)
    file = lay_out(tmp_path)
    text = file.read_text()
    pq.write_table(table(EVENTS[:5]).drop_columns("event_id"), tmp_path / "events" / "1.parquet")
    for old, new, said in (
        ('type = "sighting.toml"', 'type = "none.toml"', "none.toml"),
        ('path = "events"', 'path = "events [1]"', "take * ? [ ] { } and \\ for a pattern"),
        ('path = "events"', 'path = "none"', "expected a folder that files are put into"),
        ('path = "subscriptions"', 'path = "none"', "expected a folder of subscriptions"),
        ('format = "json"', 'format = "parquet"', "the events need a column 'event_id' or 'id'"),
        ('checkpoint = "checkpoint"', 'checkpoint = "s3a:/lake/checkpoint"', "with two slashes"),
        ('checkpoint = "checkpoint"', 'checkpoint = "sighting.toml/checkpoint"', "cannot write to"),
        ("[deliveries]", '[deliveries]\nkeep = ["lame"]', "did you mean 'lane'"),
    ):
        file.write_text(text.replace(old, new))
        ended = tidings("run", str(file))
        assert (ended.code, said in ended.said) == (2, True), ended.said


@pytest.mark.slow
def test_killed_or_stopped_the_next_run_goes_on_and_every_pair_stands_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once killed, once stopped with Ctrl-C; `python -m tests.soak --world spark` kills more often, at other moments."""
    file = lay_out(tmp_path)
    at_work = file.read_text()
    put_events(tmp_path, EVENTS[:600], 4)
    code, said = struck_run(("KILL", "before", "_commits/", 2), file)
    assert code == -signal.SIGKILL, said
    assert max(Counter(delivered_so_far(tmp_path)).values(), default=1) == 1
    put_events(tmp_path, EVENTS[600:], 4)
    file.write_text(at_work.replace("until_empty = true", "every_s = 0.2"))
    with monkeypatch.context() as here:
        here.setattr("tidings.cli.run.tell_of", lambda done: os.kill(os.getpid(), signal.SIGINT))
        ended = tidings("run", str(file), "-o", "json", *SMALL)
    assert ended.code == 130, ended.said
    assert "Traceback" not in ended.said
    assert '"events"' in ended.out
    file.write_text(at_work)
    ended = tidings("run", str(file), *SMALL)
    assert ended.code == 0, ended.said
    assert f"{len(EVENTS)}" in ended.out
    assert delivered(tmp_path) == expected_pairs(EVENTS, WANTED)


def delivered_so_far(folder: Path) -> list[tuple[str, str]]:
    """What a listing finds: after a kill also a whole batch whose commit record is still to be written."""
    if not list((folder / "deliveries").glob("batch=*/*.parquet")):
        return []
    rows = pq.read_table(folder / "deliveries", partitioning="hive").to_pylist()
    return [(row["event_id"], row["subscription_id"]) for row in rows]


def test_a_pipeline_reads_as_it_was_written(tmp_path: Path) -> None:
    assert isinstance(read_pipeline(lay_out(tmp_path)), Pipeline)


class _Progress(StreamingQueryListener):
    """What each batch reports as observed."""

    def __init__(self) -> None:
        self.records: list[int] = []

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        observed = event.progress.observedMetrics.get("tidings")
        if observed is not None:
            self.records.append(observed["records"])

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        self.has_ended = True


def test_a_listener_sees_the_records_and_jobs_say_their_step(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = read_pipeline(lay_out(tmp_path))
    put_events(tmp_path, EVENTS[:300], 4)
    listener = _Progress()
    spark.streams.addListener(listener)
    described: set[str] = set()

    def look(done: BatchDone) -> None:
        status = spark.sparkContext._jsc.sc().statusStore()
        jobs = status.jobsList(None)
        said = [jobs.apply(at).description() for at in range(jobs.size())]
        described.update(one.get() for one in said if one.isDefined())

    try:
        run(spark, pipeline, look)
        spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    finally:
        spark.streams.removeListener(listener)
    assert sum(listener.records) == 300
    steps = {text.rpartition(": ")[2] for text in described}
    assert {
        "read changes of the subscriptions",
        "match with version 1 of the subscriptions",
        "write deliveries",
    } <= steps


def test_more_conditions_than_one_index_should_hold_meet_the_batch_in_zones(
    spark: SparkSession, tmp_path: Path
) -> None:
    file = lay_out(tmp_path)
    file.write_text(file.read_text().replace('path = "deliveries"', 'path = "deliveries"\nkeep = ["lane"]'))
    put_events(tmp_path, EVENTS[:400], 2)
    (tmp_path / "events" / "broken.jsonl").write_text('{"event_id": "x1", "speed": "fast"}\n')
    spark.conf.set("spark.tidings.indexBoxesMax", "10")
    try:
        counts = run(spark, read_pipeline(file))
        write_lines(tmp_path / "subscriptions" / "2.jsonl", [{**WANTED[0], "filter": "lane = 3"}])
        put_events(tmp_path, later := sightings(50, first=9_000), 1)
        assert run(spark, read_pipeline(file)).events == 451
    finally:
        spark.conf.unset("spark.tidings.indexBoxesMax")
    expected = expected_pairs(EVENTS[:400], WANTED)
    wanted = len({event for event, _, _ in expected})
    assert (counts.events, counts.delivered_from, counts.quarantined, counts.deliveries) == (
        401, wanted, 1, len(expected),
    )  # fmt: skip
    assert counts.add_up()
    changed = [{**WANTED[0], "filter": "lane = 3"}, *WANTED[1:]]
    assert delivered(tmp_path) == sorted(expected + expected_pairs(later, changed))
    lanes = {row["event_id"]: row["lane"] for row in EVENTS}
    rows = read_deliveries(str(tmp_path / "deliveries")).to_table().to_pylist()
    assert all(row["lane"] == lanes[row["event_id"]] for row in rows if row["event_id"] in lanes)
