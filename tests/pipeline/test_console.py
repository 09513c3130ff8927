"""What the console shows of a pipeline, after a real run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.pipeline.sightings import sightings
from tests.pipeline.test_run import lay_out, put_events
from tidings.console.pipelines import ROWS_SHOWN, delivered, details, overview
from tidings.pipeline import read_deliveries, read_pipeline, run

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


def test_a_pipelines_batches_quarantine_and_deliveries_are_shown(spark: SparkSession, tmp_path: Path) -> None:
    file = lay_out(tmp_path)
    assert overview([file])[0]["counts"]["events"] == 0  # Before it has run.
    put_events(tmp_path, sightings(200), 2)
    (tmp_path / "events" / "broken.jsonl").write_text('{"event_id": "e9", "speed": "<b>fast</b>"}\n')
    run(spark, read_pipeline(file))

    one = details([file], 0)
    assert one["counts"]["events"] == 201
    assert [row["original"] for row in one["events"]] == ['{"event_id": "e9", "speed": "<b>fast</b>"}']
    assert "speed" in one["events"][0]["reason"]
    assert {row["batch"] for row in one["batches"]} == {0, 1}
    assert all(row["done_ms"] for row in one["batches"])
    deliveries = read_deliveries(str(tmp_path / "deliveries")).to_table().num_rows
    assert sum(row["deliveries"] for row in one["subscribers"]) == deliveries == one["counts"]["deliveries"] > 0
    first = one["subscribers"][0]
    rows = delivered([file], 0, first["subscriber"])
    assert len(rows) == min(first["deliveries"], ROWS_SHOWN)
    assert {row["subscriber"] for row in rows} == {first["subscriber"]}
    assert delivered([file], 0, "nobody") == []


def test_a_pipeline_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    assert "cannot read" in overview([tmp_path / "none.toml"])[0]["problem"]
