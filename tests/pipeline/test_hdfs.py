"""Everything in HDFS: events, subscriptions, checkpoint, deliveries and quarantine, on a real name node."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.pipeline.hdfs_cluster import hdfs
from tests.pipeline.sightings import Sighting, expected_pairs, sightings, subscriptions
from tests.pipeline.test_object_store import PIPELINE
from tidings.errors import InputError
from tidings.events import write_file
from tidings.pipeline import compact_deliveries, list_deliveries, match_files, read_deliveries, read_pipeline, run
from tidings.pipeline.storage import storage_at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVENTS, WANTED = sightings(200), subscriptions(20)


def lines(rows: list[dict[str, object]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


@pytest.mark.slow
def test_a_pipeline_and_a_match_with_all_their_files_in_hdfs(spark: SparkSession, tmp_path: Path) -> None:
    """One test, since a cluster takes its time to start. Names have blanks and signs in them."""
    (tmp_path / "hdfs").mkdir()
    with hdfs(tmp_path / "hdfs") as address:
        root = f"{address}/új 50%25"
        storage = storage_at(root, spark)
        with ThreadPoolExecutor(8) as pool:
            won = list(pool.map(lambda n: storage.put_if_absent("epoch", f"run {n}".encode()), range(8)))
        assert won.count(True) == 1
        storage.put("events/1 é%20.jsonl", lines(EVENTS[:100]))
        storage.put("events/2.jsonl", lines(EVENTS[100:]))
        storage.put("subscriptions/1.jsonl", lines(WANTED))
        write_file(Sighting, tmp_path / "sighting.toml")
        file = tmp_path / "pipeline.toml"
        file.write_text(PIPELINE.format(root=root))
        expected = expected_pairs(EVENTS, WANTED)
        for _ in range(2):
            assert run(spark, read_pipeline(file)).deliveries == len(expected)
        assert compact_deliveries(spark, f"{root}/deliveries").after == len(
            list_deliveries(f"{root}/deliveries", spark)
        )
        rows = read_deliveries(spark, f"{root}/deliveries").collect()
        assert sorted((row.event_id, row.subscription_id, row.subscriber) for row in rows) == expected
        files = (f"{root}/events", f"{root}/subscriptions")
        assert match_files(spark, *files, f"{root}/out").deliveries == len(expected)
        with pytest.raises(InputError, match="is not empty"):
            match_files(spark, *files, f"{root}/out")
        assert match_files(spark, *files, f"{root}/out", overwrite=True).deliveries == len(expected)
