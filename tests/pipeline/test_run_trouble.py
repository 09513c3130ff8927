"""A full disk, a damaged file, a signal: each ends with a clear word, and the next run goes on as if nothing had been."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from tests.pipeline.sightings import expected_pairs, table
from tests.pipeline.test_run import EVENTS, WANTED, delivered, lay_out, put_events, start_run, wait_for
from tidings.errors import InputError, SetupError
from tidings.pipeline import read_pipeline, run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 256 KB, mounted where deliveries go."""
    folder = tmp_path / "deliveries"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    if os.getuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("only root can mount a disk that is small enough to be full")
    yield folder
    # Lazily: Spark may hold the folder open a little longer than the run.
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_full_disk_ends_the_run_and_with_room_the_next_one_goes_on(
    spark: SparkSession, small_disk: Path, tmp_path: Path
) -> None:
    pipeline = read_pipeline(lay_out(tmp_path))
    put_events(tmp_path, EVENTS[:400], 2)
    ballast = small_disk / "_ballast"
    ballast.write_bytes(bytes(200 * 1024))
    with pytest.raises(SetupError, match="the disk is full"):
        run(spark, pipeline)
    assert not list(small_disk.glob("batch=*")), "half a batch is no batch"
    ballast.unlink()
    subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
    counts = run(spark, pipeline)
    assert delivered(tmp_path) == expected_pairs(EVENTS[:400], WANTED)
    assert counts.events == 400


def test_a_damaged_file_of_events_is_named_and_without_it_the_run_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = read_pipeline(lay_out(tmp_path, "parquet"))
    pq.write_table(table(EVENTS[:100]), tmp_path / "events" / "1.parquet")
    damaged = tmp_path / "events" / "2.parquet"
    damaged.write_bytes((tmp_path / "events" / "1.parquet").read_bytes()[:-300] + bytes(300))
    with pytest.raises(InputError, match="damaged or not what its name says.*2.parquet"):
        run(spark, pipeline)
    pq.write_table(table(EVENTS[100:200]), damaged)
    assert run(spark, pipeline).events == 200
    assert delivered(tmp_path) == expected_pairs(EVENTS[:200], WANTED)


@pytest.mark.slow
@pytest.mark.spark
def test_sigterm_ends_cleanly_and_until_then_prometheus_may_ask(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    file = lay_out(tmp_path)
    forever = file.read_text().replace("until_empty = true", "every_s = 0.2")
    file.write_text(f"{forever}\n[metrics]\nport = {port}\n")
    put_events(tmp_path, EVENTS[:200], 1)
    process = start_run(file, "-o", "json")
    wait_for(tmp_path / "deliveries", process, "batch=*", 1)
    metrics = scraped(port, "tidings_deliveries_total", process)
    assert metrics["tidings_deliveries_total"] == len(expected_pairs(EVENTS[:200], WANTED))
    assert metrics["tidings_subscriptions"] == len(WANTED)
    outcomes = ("delivered_from", "unmatched", "quarantined")
    assert sum(metrics[f'tidings_events_total{{outcome="{outcome}"}}'] for outcome in outcomes) == 200
    process.send_signal(signal.SIGTERM)
    out, said = process.communicate(timeout=120)
    assert process.returncode == 130, said.decode()
    assert b"Traceback" not in said
    assert b'"events": 200' in out or b'"events":200' in out


def scraped(port: int, until: str, process: subprocess.Popen[bytes]) -> dict[str, float]:
    """What Prometheus reads, once this number is not 0."""
    found: dict[str, float] = {}
    while not found.get(until) and process.poll() is None:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            lines = [line for line in answer.read().decode().splitlines() if not line.startswith("#")]
        found = {name: float(number) for name, number in (line.rsplit(" ", 1) for line in lines)}
    return found
