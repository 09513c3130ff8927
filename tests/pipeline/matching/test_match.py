"""Matching on Spark gives what the definition gives, in both plans, both forms, batch and streaming."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.pipeline.sightings import SCHEMA, Record, Sighting, expected_pairs, sightings, subscriptions, table
from tidings.errors import InputError
from tidings.events import EventType
from tidings.pipeline import Matching, match

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EVENTS = sightings(3_000)
WANTED = subscriptions(400)


@functools.cache
def expected() -> list[tuple[str, str, str]]:
    """A million answers by definition: not asked for where nobody runs these tests."""
    return expected_pairs(EVENTS, WANTED)


def pairs(deliveries: DataFrame) -> list[tuple[Any, ...]]:
    assert deliveries.columns == ["event_id", "subscription_id", "subscriber"]
    return sorted(tuple(row) for row in deliveries.collect())


def wanted_rows(spark: SparkSession, rows: list[Record]) -> DataFrame:
    return spark.createDataFrame(pa.Table.from_pylist(rows))


@pytest.mark.parametrize("plan", ["index", "zones"])
def test_both_plans_give_every_pair_of_the_definition_once(spark: SparkSession, plan: str) -> None:
    events = spark.createDataFrame(table(EVENTS)).repartition(3)
    assert pairs(match(events, wanted_rows(spark, WANTED), plan=plan)) == expected()


@pytest.mark.parametrize("plan", ["index", "zones"])
def test_the_compact_form_lists_the_same_subscriptions(spark: SparkSession, plan: str) -> None:
    compact = match(spark.createDataFrame(table(EVENTS)), wanted_rows(spark, WANTED), compact=True, plan=plan)
    found = [(row.event_id, id) for row in compact.collect() for id in row.subscription_ids]
    assert sorted(found) == [(event, id) for event, id, _ in expected()]


def test_a_stream_of_events_is_matched_the_same_way(spark: SparkSession, tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / "in").mkdir(exist_ok=True)
        pq.write_table(table(EVENTS[number * 1000 : (number + 1) * 1000]), tmp_path / "in" / f"{number}.parquet")
    schema = spark.createDataFrame(SCHEMA.empty_table()).schema
    stream = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "in"))
    sink = match(stream, wanted_rows(spark, WANTED)).writeStream.format("parquet").trigger(availableNow=True)
    sink.option("checkpointLocation", str(tmp_path / "cp")).start(str(tmp_path / "out")).awaitTermination()
    assert pairs(spark.read.parquet(str(tmp_path / "out"))) == expected()


def test_rejected_subscriptions_come_with_their_errors_and_stop_no_other(spark: SparkSession) -> None:
    bad: list[Record] = [
        {"id": "no-such", "subscriber": "x", "filter": "sped > 3"},
        {"id": "no-type", "subscriber": "x", "filter": "speed > 'fast'"},
        {"id": "no-sql", "subscriber": "x", "filter": "speed >"},
        {"id": "nothing", "subscriber": "x", "filter": None},
        {"id": None, "subscriber": "x", "filter": "speed > 3"},
        {"id": "twice", "subscriber": "x", "filter": "speed > 3"},
        {"id": "twice", "subscriber": "x", "filter": "speed > 4"},
    ]
    matching = Matching(spark.createDataFrame(table(EVENTS)), wanted_rows(spark, [*WANTED, WANTED[0], *bad]))
    errors = {row.id: row.error for row in matching.rejected.collect()}
    assert pairs(matching.deliveries()) == expected()
    assert set(errors) == {"no-such", "no-type", "no-sql", "nothing", "twice", None}
    assert "did you mean 'speed'?" in errors["no-such"]
    assert errors["no-sql"].startswith("FilterSyntaxError: ")
    assert "several subscriptions have the id 'twice'" in errors["twice"]


def test_nobody_wants_anything_and_nothing_happens_are_answers(spark: SparkSession) -> None:
    some, none = spark.createDataFrame(table(EVENTS[:10])), spark.createDataFrame(SCHEMA.empty_table())
    nobody = wanted_rows(spark, WANTED).limit(0)
    assert match(some, nobody).collect() == []
    assert match(none, wanted_rows(spark, WANTED)).collect() == []
    assert match(some, nobody, plan="zones").collect() == []
    assert match(none, wanted_rows(spark, WANTED), plan="zones").collect() == []


def test_a_subscriber_with_100_000_conditions_gets_an_event_that_matches_all_of_them(spark: SparkSession) -> None:
    conditions = [{"id": f"s{n}", "subscriber": "one", "filter": f"speed >= {-n}"} for n in range(100_000)]
    events = spark.createDataFrame(table([{"event_id": f"e{n}", "speed": 1.0} for n in range(3)]))
    found = match(events, wanted_rows(spark, conditions))
    assert found.groupBy("event_id", "subscription_id").count().groupBy("count").count().collect() == [(1, 300_000)]


@pytest.mark.parametrize("plan", ["index", "zones"])
def test_who_wants_everything_gets_everything(spark: SparkSession, plan: str) -> None:
    events = spark.createDataFrame(table(EVENTS[:50]))
    found = match(events, wanted_rows(spark, [{"id": "all", "subscriber": "x", "filter": "TRUE"}]), plan=plan)
    assert sorted(row.event_id for row in found.collect()) == [event["event_id"] for event in EVENTS[:50]]


def test_ids_keep_their_type_and_equal_ones_are_two_events(spark: SparkSession) -> None:
    events = spark.createDataFrame(pa.table({"number": [7, 7, 8], "speed": [30.0, 31.0, 1.0]}))
    wanted = wanted_rows(spark, [{"id": "fast", "subscriber": "x", "filter": "speed > 20"}])
    assert pairs(match(events, wanted, id="number")) == [(7, "fast", "x"), (7, "fast", "x")]


def test_subscriptions_for_other_event_types_are_not_looked_at(spark: SparkSession) -> None:
    rows: list[Record] = [
        {"id": "mine", "subscriber": "x", "filter": "lane = 1", "type": "Sighting"},
        {"id": "any", "subscriber": "x", "filter": "lane = 1", "type": None},
        {"id": "other", "subscriber": "x", "filter": "depth > 3", "type": "Quake"},
    ]
    matching = Matching(spark.createDataFrame(table(EVENTS)), wanted_rows(spark, rows), event_type=Sighting)
    assert {row.subscription_id for row in matching.deliveries().collect()} == {"mine", "any"}
    assert matching.rejected.count() == 0


def test_missing_columns_are_named(spark: SparkSession) -> None:
    events, wanted = spark.createDataFrame(table(EVENTS[:5])), wanted_rows(spark, WANTED[:5])
    with pytest.raises(InputError, match="'event_id' or 'id'.*they have plate, area"):
        match(events.drop("event_id"), wanted)
    with pytest.raises(InputError, match="a column 'evnt_id'.*did you mean 'event_id'"):
        match(events, wanted, id="evnt_id")
    with pytest.raises(InputError, match="filter missing, they have id, subscriber"):
        match(events, wanted.drop("filter"))


def test_a_column_of_another_type_than_declared_is_told_before_anything_runs(spark: SparkSession) -> None:
    slow = EventType("Sighting", event_id=str, speed=str)
    with pytest.raises(InputError, match="'speed': expected string, got double"):
        match(spark.createDataFrame(table(EVENTS[:5])), wanted_rows(spark, WANTED[:1]), event_type=slow)


def test_the_plan_says_why_and_follows_the_size(spark: SparkSession) -> None:
    events, wanted = spark.createDataFrame(table(EVENTS[:5])), wanted_rows(spark, WANTED)
    assert "index to events: " in Matching(events, wanted).explain()
    spark.conf.set("spark.tidings.indexBoxesMax", "10")
    try:
        assert "meet in zones: 5" in Matching(events, wanted).explain()
    finally:
        spark.conf.unset("spark.tidings.indexBoxesMax")
    with pytest.raises(InputError, match="'auto', 'index' or 'zones', got 'best'"):
        Matching(events, wanted, plan="best")
