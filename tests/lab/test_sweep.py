"""The sweep on Spark: points stored as they finish, runs that go on where they stopped, errors that say what to do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from tests.lab.small import experiment
from tests.pipeline.commands import tidings
from tidings.errors import InputError
from tidings.lab import run
from tidings.lab.results import DRAFT, read
from tidings.lab.sweep import PROCESSOR_S, batches, processor_s, sweep

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_sweep_on_spark_measures_what_the_measure_does(spark: SparkSession, tmp_path: Path) -> None:
    chosen = experiment("immune-5", node_count="20", seeds="2")
    told: list[tuple[int, int]] = []
    made = run([chosen], tmp_path, progress=lambda done, total: told.append((done, total)))
    here = sorted(row for point in chosen.points() for row in chosen.measure(point.parameters, point.seed))
    table = read(made.results)
    assert sorted(zip(*(table[name].to_pylist() for name in ("series", "x", "y")), strict=True)) == here
    assert told[-1] == (len(chosen.points()), len(chosen.points()))


def test_a_second_run_measures_nothing_again(spark: SparkSession, tmp_path: Path) -> None:
    small, larger = (experiment("immune-5", node_count="20", seeds=seeds, protocol="flooding") for seeds in "13")
    sweep([small], tmp_path)
    (first,) = tmp_path.glob("*.parquet")
    stored_at = first.stat().st_mtime_ns
    assert sum(table.num_rows for table in sweep([larger], tmp_path)) == 3
    assert first.stat().st_mtime_ns == stored_at


def test_a_point_says_how_much_processor_time_it_took(spark: SparkSession, tmp_path: Path) -> None:
    alone = experiment("immune-5", node_count="20", seeds="1", protocol="flooding")
    few = {"node_count": "20", "interested": "5", "failure_sets": "1", "failed_percent": "10"}
    forked = experiment("irbr-4a", **few, seeds="1", protocol="Scribe")
    assert processor_s(alone, tmp_path) == 0
    sweep([alone, forked], tmp_path)
    assert processor_s(alone, tmp_path) > 0
    assert all(float(pq.read_schema(file).metadata[PROCESSOR_S]) > 0 for file in tmp_path.glob("*.parquet"))


def test_what_an_interrupted_run_left_half_written_is_cleared_away(spark: SparkSession, tmp_path: Path) -> None:
    left_over = tmp_path / f".point.parquet.1{DRAFT}"
    left_over.write_bytes(b"PAR1 half of")
    sweep([experiment("immune-5", node_count="20", seeds="1", protocol="flooding")], tmp_path)
    assert not left_over.exists()


def test_an_impossible_point_stops_the_sweep_before_any_is_run(spark: SparkSession, tmp_path: Path) -> None:
    fine, impossible = (experiment("immune-5", node_count=size, seeds="1") for size in ("20", "0"))
    with pytest.raises(InputError, match="node_count of at least 1"):
        run([fine, impossible], tmp_path)
    assert not list(tmp_path.rglob("*.parquet"))


def test_dear_points_are_spread_out_and_come_first() -> None:
    costs = [1.0] * 8 + [8.0, 4.0]
    shared = batches(costs, 3)
    assert sorted(item for batch in shared for item in batch) == list(range(10))
    weights = [sum(costs[item] for item in batch) for batch in shared]
    assert weights == sorted(weights, reverse=True)
    assert weights[0] == 8.0


@pytest.mark.slow
def test_a_run_stopped_with_ctrl_c_goes_on_where_it_stopped(spark: SparkSession, tmp_path: Path) -> None:
    command = ["lab", "run", "immune-5", "--quick", "--out", str(tmp_path), "--master", "local[1]"]
    command += ["--set", "node_count=50", "--set", "seeds=2"]
    running = subprocess.Popen(
        [sys.executable, "-m", "tidings", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("points/*.parquet")) and running.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)  # Another process's files: there is nothing to wait on but the disk.
    os.killpg(running.pid, signal.SIGINT)  # The whole group, as a terminal does.
    _, said = running.communicate(timeout=60)
    assert running.returncode == 130, said
    assert "the same command continues from there" in said
    assert "Traceback" not in said
    assert not (tmp_path / "results.parquet").exists()
    assert not list(tmp_path.glob(f"points/.*{DRAFT}"))
    kept = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("points/*.parquet")}
    assert kept
    again = tidings(*command, "-o", "json")
    assert again.code == 0, again.said
    assert {name: (tmp_path / "points" / name).stat().st_mtime_ns for name in kept} == kept
    assert read(tmp_path / "results.parquet").num_rows == len(
        experiment("immune-5", node_count="50", seeds="2").points()
    )
    assert {"verdict", "claim"} <= set(json.loads(again.out.splitlines()[0]))


def said_by(*arguments: str) -> tuple[int, str]:
    ended = tidings("lab", *arguments)
    return ended.code, ended.out + ended.said


def test_the_list_names_every_experiment() -> None:
    code, said = said_by("list", "-o", "json")
    assert code == 0
    assert {"irbr-4a", "irbr-4b", "immune-4", "immune-5", "hermes-8"} <= {
        json.loads(row)["name"] for row in said.splitlines()
    }


def test_wrong_usage_ends_with_code_2_and_says_what_to_do(tmp_path: Path) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.touch()
    for arguments, says in [
        (("run", "irbr-4c"), "did you mean 'irbr-4"),
        (("run", "immune-5", "--set", "node_count=0", "--out", str(tmp_path)), "node_count of at least 1"),
        (("run", "irbr-4a", "--set", "failed_percent=-1", "--out", str(tmp_path)), "failed_percent from 0"),
        (("run", "immune-5", "--set", "m", "--out", str(tmp_path)), "expected --set NAME=VALUE"),
        (("run", "immune-5", "--out", str(in_the_way / "below")), "cannot use"),
    ]:
        code, said = said_by(*arguments)
        assert (code, says in said) == (2, True), said
    assert list(tmp_path.iterdir()) == [in_the_way]
