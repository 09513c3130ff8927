"""Batches that a stream stages for a client of Spark Connect: what goes there, and what an earlier client left."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.pipeline.test_run import lay_out
from tidings.errors import InputError
from tidings.pipeline import BatchLog, Counts, read_pipeline
from tidings.pipeline.config import DeliveriesTo, EventsFrom, SubscriptionsFrom
from tidings.pipeline.sources.staged_batches import check_staged


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
    assert later.same_input(1, later[1] or pytest.fail("batch 1 was begun")).version == 1
    later.close()
