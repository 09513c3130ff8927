"""Batches that a stream stages for a client of Spark Connect: what goes there, and what an earlier client left."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from tests.pipeline.sightings import expected_pairs
from tests.pipeline.test_run import EVENTS, WANTED, delivered, lay_out, put_events
from tidings.errors import InputError
from tidings.pipeline import BatchDone, BatchLog, Counts, read_pipeline, run
from tidings.pipeline.config import DeliveriesTo, EventsFrom, SubscriptionsFrom
from tidings.pipeline.sources.staged_batches import check_staged
from tidings.pipeline.stream_job import Watch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_what_does_not_go_over_spark_connect_is_refused_by_name(tmp_path: Path) -> None:
    pipeline = read_pipeline(lay_out(tmp_path))
    check_staged(pipeline)
    for part, given in (
        ("events", EventsFrom(format="demo")),
        ("events", EventsFrom(format="tidings")),
        ("events", EventsFrom(format="frames")),
        ("subscriptions", SubscriptionsFrom(format="kafka")),
        ("deliveries", DeliveriesTo(format="kafka")),
        ("deliveries", DeliveriesTo(format="tidings")),
    ):
        with pytest.raises(InputError, match=f"{part}.format: '{given.format}' does not go over Spark Connect"):
            check_staged(msgspec.structs.replace(pipeline, **{part: given}))


@pytest.mark.parametrize("staged", [True, False])
def test_spark_goes_back_to_the_last_batch_that_is_done_if_others_were_staged(tmp_path: Path, staged: bool) -> None:
    earlier = BatchLog(str(tmp_path))
    spark = Path(earlier.spark_checkpoint())
    for batch in range(4):
        earlier.storage.put(f"{spark.name}/offsets/{batch}", b"offsets")
        earlier.storage.put(f"{spark.name}/commits/{batch}", b"commit")
    if staged:
        earlier.storage.put("staged/000000001/part-0.parquet", b"records")
    for batch in (0, 1):
        earlier.begin(batch, 1)
    earlier.finish(0, Counts())
    assert earlier.last_done() == 0
    earlier.close()
    later = BatchLog(str(tmp_path))
    there = Path(later.spark_checkpoint())
    found = {part: sorted(file.name for file in (there / part).iterdir()) for part in ("offsets", "commits")}
    whole = ["0", "1", "2", "3"]
    assert found == ({"offsets": ["0", "1"], "commits": ["0"]} if staged else {"offsets": whole, "commits": whole})
    assert not (tmp_path / "staged").exists()
    assert later.same_input(1, later[1] or pytest.fail("batch 1 was begun")).version == 1
    later.close()


@pytest.mark.spark
def test_a_run_by_staged_batches_and_one_without_go_on_where_the_other_stopped(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The way over Spark Connect, here on a session of its own: nothing of it needs the server."""
    pipeline = read_pipeline(lay_out(tmp_path))
    put_events(tmp_path, EVENTS[:200], 4)

    def stop(done: BatchDone) -> None:
        raise InterruptedError(f"after batch {done.batch}")

    def run_staged(watch: Watch = lambda done: None) -> Counts:
        with monkeypatch.context() as here:
            here.setattr("tidings.pipeline.stream_job.is_connect", lambda session: True)
            return run(spark, pipeline, watch)

    with pytest.raises(InterruptedError, match="after batch 0"):
        run_staged(stop)
    assert len(list((tmp_path / "checkpoint" / "staged").rglob("*.parquet"))) > 1, "Spark was ahead"
    assert run(spark, pipeline).events == 200
    assert not (tmp_path / "checkpoint" / "staged").exists()
    assert delivered(tmp_path) == expected_pairs(EVENTS[:200], WANTED)
    put_events(tmp_path, EVENTS[200:300], 1)
    counts = run_staged()
    assert delivered(tmp_path) == expected_pairs(EVENTS[:300], WANTED)
    assert (counts.events, counts.add_up()) == (300, True)
    assert not list((tmp_path / "checkpoint" / "staged").rglob("*.parquet")), "files of batches that are done go"
