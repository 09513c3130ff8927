"""`keep`: deliveries carry columns of their events, in both plans, both forms, on every path."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.pipeline.commands import tidings
from tests.pipeline.sightings import expected_pairs, sightings, subscriptions, table, write_lines
from tidings.errors import InputError
from tidings.pipeline import match
from tidings.pipeline.config import read_pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVENTS = sightings(300)
WANTED = subscriptions(40)
BY_ID = {event["event_id"]: event for event in EVENTS}
KEPT = ("position", "plate", "speed")


def check_pairs(rows: list[dict[str, Any]], kept: tuple[str, ...] = KEPT) -> None:
    """Every pair of the definition once, each with the columns of its own event."""
    assert list(rows[0]) == ["event_id", "subscription_id", "subscriber", *kept]
    found = sorted((row["event_id"], row["subscription_id"], row["subscriber"]) for row in rows)
    assert found == expected_pairs(EVENTS, WANTED)
    assert all(row[name] == BY_ID[row["event_id"]][name] for row in rows for name in kept)


@pytest.mark.parametrize("plan", ["index", "zones"])
def test_pairs_and_lists_have_columns_of_their_events_in_both_plans(spark: SparkSession, plan: str) -> None:
    events = spark.createDataFrame(table(EVENTS)).repartition(2)
    wanted = spark.createDataFrame(pa.Table.from_pylist(WANTED))
    check_pairs([row.asDict(recursive=True) for row in match(events, wanted, keep=KEPT, plan=plan).collect()])
    lists = match(events, wanted, keep="all", compact=True, plan=plan)
    assert lists.columns == ["event_id", "subscription_ids", "plate", "area", "speed", "lane", "position"]
    rows = [row.asDict(recursive=True) for row in lists.collect()]
    found = sorted((row["event_id"], id) for row in rows for id in row["subscription_ids"])
    assert found == [(event, id) for event, id, _ in expected_pairs(EVENTS, WANTED)]
    assert all(row["position"] == BY_ID[row["event_id"]]["position"] for row in rows)


def test_the_direct_path_keeps_the_same(spark: SparkSession, tmp_path: Path) -> None:
    pq.write_table(table(EVENTS), tmp_path / "events.parquet", row_group_size=64)
    write_lines(tmp_path / "wanted.jsonl", WANTED)
    asked = ("match", str(tmp_path / "events.parquet"), str(tmp_path / "wanted.jsonl"), "--out")
    ended = tidings(*asked, str(tmp_path / "pairs"), "--keep", ",".join(KEPT))
    assert ended.code == 0, ended.said
    assert "read and written by the workers" in ended.said
    check_pairs(pq.read_table(tmp_path / "pairs").to_pylist())
    ended = tidings(*asked, str(tmp_path / "lists"), "--keep", "all", "--compact")
    assert ended.code == 0, ended.said
    rows = pq.read_table(tmp_path / "lists").to_pylist()
    assert all(
        {**row, "subscription_ids": None} == {**BY_ID[row["event_id"]], "subscription_ids": None} for row in rows
    )


def test_columns_that_do_not_exist_or_clash_are_refused(spark: SparkSession) -> None:
    wanted = spark.createDataFrame(pa.Table.from_pylist(WANTED))
    events = spark.createDataFrame(table(EVENTS)).withColumnRenamed("plate", "Subscriber")
    with pytest.raises(InputError, match="no column 'sped'; did you mean 'speed'"):
        match(events, wanted, keep=["sped"])
    with pytest.raises(InputError, match="deliveries have a column 'Subscriber' of their own"):
        match(events, wanted, keep="all")
    with pytest.raises(InputError, match="deliveries have a column 'event_id' of their own"):
        match(events, wanted, keep=["event_id"])


def test_a_secured_pipeline_refuses_to_keep_columns(tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    file.write_text(
        'name = "p"\ncheckpoint = "state"\n[events]\nformat = "frames"\npath = "in"\n[subscriptions]\npath = "s"\n'
        '[deliveries]\npath = "out"\nkeep = ["speed"]\n[quarantine]\npath = "q"\n'
        '[secure]\nregistry = "r.db"\ntype = "Sighting"\nkeys = "k"\n'
    )
    with pytest.raises(InputError, match="deliveries.keep: not with \\[secure\\]"):
        read_pipeline(file)
