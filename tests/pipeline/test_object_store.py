"""Everything on S3: events, subscriptions, checkpoint, deliveries and quarantine, against a real server of the protocol."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
import pytest

from tests.pipeline.commands import tidings
from tests.pipeline.s3_server import S3, serving, teach
from tests.pipeline.sightings import Sighting, expected_pairs, sightings, subscriptions, table, write_lines
from tests.pipeline.test_run import SMALL
from tidings.errors import InputError
from tidings.events import write_file
from tidings.pipeline import match_files, read_deliveries, read_pipeline, run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVENTS = sightings(400)
WANTED = subscriptions(40)
PIPELINE = """
name = "s3"
checkpoint = "{root}/checkpoint"
[events]
format = "json"
path = "{root}/events"
type = "sighting.toml"
files_per_batch = 1
[subscriptions]
path = "{root}/subscriptions"
[deliveries]
path = "{root}/deliveries"
[quarantine]
path = "{root}/quarantine"
[trigger]
until_empty = true
"""


@pytest.fixture(scope="module")
def s3(spark: SparkSession) -> Iterator[S3]:
    with serving() as server:
        teach(spark, server)
        yield server


def put_lines(s3: S3, key: str, rows: list[dict[str, object]]) -> None:
    s3.client().put_object(Bucket=s3.bucket, Key=key, Body="".join(json.dumps(row) + "\n" for row in rows).encode())


def lay_out(s3: S3, name: str, folder: Path, files: int = 2) -> Path:
    size = -(-len(EVENTS) // files)
    for number in range(files):
        put_lines(s3, f"{name}/events/{number}.jsonl", EVENTS[number * size :][:size])
    put_lines(s3, f"{name}/subscriptions/1.jsonl", WANTED)
    write_file(Sighting, folder / "sighting.toml")
    file = folder / "pipeline.toml"
    file.write_text(PIPELINE.format(root=s3.at(f"{name}")))
    return file


def pairs(rows: list[dict[str, str]]) -> list[tuple[str, str, str]]:
    return sorted((row["event_id"], row["subscription_id"], row["subscriber"]) for row in rows)


def delivered(spark: SparkSession, s3: S3, name: str) -> list[tuple[str, str, str]]:
    """By the commit records; another reader, who lists the bucket, finds the same."""
    rows = [row.asDict() for row in read_deliveries(spark, s3.at(f"{name}/deliveries")).collect()]
    listed = pq.read_table(f"{s3.bucket}/{name}/deliveries", filesystem=arrow_s3(s3), partitioning="hive").to_pylist()
    assert pairs(listed) == pairs(rows)
    return pairs(rows)


def arrow_s3(s3: S3) -> pa.fs.S3FileSystem:
    return pa.fs.S3FileSystem(
        access_key="access", secret_key="secret", endpoint_override=f"127.0.0.1:{s3.port}", scheme="http",
        region="us-east-1",
    )  # fmt: skip


def test_a_pipeline_with_all_its_state_in_s3_delivers_every_pair_once(
    spark: SparkSession, s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3.faults.clear()
    monkeypatch.chdir(tmp_path)
    pipeline = read_pipeline(lay_out(s3, "all", tmp_path))
    counts = run(spark, pipeline)
    assert (counts.events, counts.deliveries) == (400, len(expected_pairs(EVENTS, WANTED)))
    assert delivered(spark, s3, "all") == expected_pairs(EVENTS, WANTED)
    put_lines(s3, "all/events/more.jsonl", sightings(50, first=5_000))
    assert run(spark, pipeline).events == 450
    both = expected_pairs(EVENTS, WANTED) + expected_pairs(sightings(50, first=5_000), WANTED)
    assert delivered(spark, s3, "all") == sorted(both)
    assert {path.name for path in tmp_path.iterdir()} == {"pipeline.toml", "sighting.toml"}, "no ./s3a:/…"
    left = [key for key in s3.keys("all/deliveries/") if "_staging" in key or "_intents" in key]
    assert set(left) <= {"all/deliveries/_staging/", "all/deliveries/_intents/"}, "folders, as S3A marks them"


def test_a_match_into_s3_is_never_mixed_with_an_earlier_one(spark: SparkSession, s3: S3, tmp_path: Path) -> None:
    s3.faults.clear()
    put_lines(s3, "m/events.jsonl", EVENTS)
    put_lines(s3, "m/wanted.jsonl", [*WANTED, {"id": "bad", "subscriber": "x", "filter": "sped > 1"}])
    files = (s3.at("m/events.jsonl"), s3.at("m/wanted.jsonl"))
    ended = tidings("match", *files, "--out", s3.at("m/out"), *SMALL)
    assert ended.code == 1, ended.said
    assert s3.at("m/out-rejected") in ended.said
    with pytest.raises(InputError, match="is not empty"):
        match_files(spark, *files, s3.at("m/out"))
    ended = tidings("match", *files, "--out", s3.at("m/out/"), "--overwrite", *SMALL)
    assert ended.code == 1, ended.said
    found = pq.read_table(f"{s3.bucket}/m/out", filesystem=arrow_s3(s3)).to_pylist()
    assert pairs(found) == expected_pairs(EVENTS, WANTED)
    with pytest.raises(InputError, match="is in the folder for the result"):
        match_files(spark, *files, s3.at("m"), overwrite=True)


def test_workers_read_and_write_parquet_in_s3_themselves(spark: SparkSession, s3: S3, tmp_path: Path) -> None:
    s3.faults.clear()
    for number in range(2):
        rows = table(EVENTS[number * 200 :][:200])
        pq.write_table(rows, f"{s3.bucket}/d/events/{number}.parquet", filesystem=arrow_s3(s3), row_group_size=70)
    pq.write_table(pa.Table.from_pylist(WANTED), tmp_path / "wanted.parquet")
    events, out = s3.at("d/events"), s3.at("d/out")
    for compact in (False, True):
        outcome = match_files(spark, events, str(tmp_path / "wanted.parquet"), out, compact=compact, overwrite=True)
        assert outcome.plan.endswith("read and written by the workers")
        assert outcome.deliveries == len(expected_pairs(EVENTS, WANTED))
        found = pq.read_table(f"{s3.bucket}/d/out", filesystem=arrow_s3(s3)).to_pylist()
        if compact:
            assert sum(len(row["subscription_ids"]) for row in found) == outcome.deliveries
        else:
            assert pairs(found) == expected_pairs(EVENTS, WANTED)
        assert not [key for key in s3.keys("d/out/") if "_staging" in key]


def test_names_with_blanks_and_signs_and_nanoseconds_are_read_in_s3_too(
    spark: SparkSession, s3: S3, tmp_path: Path
) -> None:
    s3.faults.clear()
    wanted = str(write_lines(tmp_path / "w.jsonl", [{"id": "s", "subscriber": "x", "filter": "area = 'New York'"}]))
    at = pa.array([0, 1], pa.timestamp("ns"))
    rows = {"micros": pa.table({"id": ["a", "b"]}), "nanos": pa.table({"id": ["a", "b"], "at": at})}
    for name, written in rows.items():
        events = f"odd/{name} [1] é%20"
        pq.write_table(written, f"{s3.bucket}/{events}/area=New York/1 {{a}}.parquet", filesystem=arrow_s3(s3))
        flat = written.append_column("area", pa.array(["New York", "London"]))
        pq.write_table(flat, f"{s3.bucket}/{events}.parquet", filesystem=arrow_s3(s3))
        out = f"odd/out {name} [1]"
        assert match_files(spark, s3.at(events), wanted, s3.at(out)).deliveries == 2
        outcome = match_files(spark, s3.at(f"{events}.parquet"), wanted, s3.at(out), overwrite=True)
        assert outcome.deliveries == 1
        assert outcome.plan.endswith("read and written by the workers")
        assert pq.read_table(f"{s3.bucket}/{out}", filesystem=arrow_s3(s3))["event_id"].to_pylist() == ["a"]


@pytest.mark.slow
def test_killed_in_the_middle_of_a_commit_in_s3_and_started_again_every_pair_stands_once(
    spark: SparkSession, s3: S3, tmp_path: Path
) -> None:
    """The server kills the run when it has carried out half of a commit; `tests.soak` kills at other requests."""
    s3.faults.clear()
    file = lay_out(s3, "killed", tmp_path)
    assert killed_at(s3, file, "/deliveries/batch=") == -signal.SIGKILL
    assert s3.keys("killed/deliveries/_intents/"), "it was killed while it published"
    counts = run(spark, read_pipeline(file))
    assert counts.events == len(EVENTS)
    assert delivered(spark, s3, "killed") == expected_pairs(EVENTS, WANTED)


def killed_at(s3: S3, file: Path, path: str, count: int = 1) -> int:
    """Starts a run, and kills it before its `count`-th write to a path like this is carried out. Returns how it ended."""
    command = [sys.executable, "-m", "tidings", "run", str(file), *SMALL, *s3.options()]
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": "src"}, stderr=subprocess.PIPE)
    left, lock = count, threading.Lock()

    def kill(number: int, written: str) -> None:
        nonlocal left
        with lock:
            if path not in written:
                return
            if left == 0:
                s3.faults.stops_after = 0  # What its Spark still does, before it notices, reaches nobody.
            left = max(left - 1, 0)
            if left == 0:
                process.send_signal(signal.SIGKILL)

    s3.faults.on_write = kill
    _, said = process.communicate(timeout=300)
    s3.faults.clear()
    assert process.returncode in (0, -signal.SIGKILL), said.decode()[-2000:]
    return process.returncode
