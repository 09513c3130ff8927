"""The functions for SQL give what `match` gives, by the definition of conditions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

import tidings
from tests.pipeline.sightings import Sighting, expected_pairs, sightings, subscriptions, table
from tidings.errors import InputError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVENTS, WANTED = sightings(300), subscriptions(40)
PAIRS = [(event, subscription) for event, subscription, _ in expected_pairs(EVENTS, WANTED)]


@pytest.fixture(scope="module")
def sql(spark: SparkSession) -> SparkSession:
    index = tidings.Index(Sighting)
    index.add_all((row["id"], row["filter"]) for row in WANTED)
    tidings.register(spark, index)
    spark.createDataFrame(table(EVENTS)).repartition(2).createOrReplaceTempView("sql_events")
    spark.createDataFrame([(row["id"], row["filter"]) for row in WANTED], ["id", "condition"]).createOrReplaceTempView(
        "sql_rules"
    )
    return spark


def test_the_table_function_gives_every_pair_once(sql: SparkSession) -> None:
    found = sql.sql("SELECT * FROM tidings_match(TABLE(sql_events))")
    assert found.columns == ["event_id", "subscription_id"]
    assert sorted(map(tuple, found.collect())) == PAIRS


def test_the_array_function_gives_the_same_and_an_empty_array_where_nothing_matches(sql: SparkSession) -> None:
    rows = sql.sql("SELECT event_id, tidings_subscriptions(struct(*)) found FROM sql_events").collect()
    assert sorted((row.event_id, id) for row in rows for id in row.found) == PAIRS
    assert len(rows) == len(EVENTS)


def test_a_join_by_condition_gives_the_same(sql: SparkSession) -> None:
    events = "SELECT event_id, struct(*) AS event FROM sql_events"
    joined = f"SELECT event_id, id FROM ({events}) JOIN sql_rules ON tidings_matches(condition, event)"
    assert sorted(map(tuple, sql.sql(joined).collect())) == PAIRS


def test_conditions_that_cannot_be_used_are_null_and_say_why(sql: SparkSession) -> None:
    texts = "VALUES ('a > 1'), ('a > 9'), (NULL), ('a >'), ('c = 1'), ('s.x = 2 AND a IS NOT NULL'), ('raw = 1')"
    event = "struct(3 AS a, struct(2 AS x) AS s, array(struct(1 AS q)) AS raw)"
    found = sql.sql(
        f"SELECT tidings_matches(t, {event}) AS ok, tidings_condition_error(t, {event}) AS why FROM {texts} AS texts(t)"
    ).collect()
    assert [row[0] for row in found] == [True, False, None, None, None, True, None]
    assert [row[1] is None for row in found] == [True, True, True, False, False, True, False]
    assert "c" in found[4][1]


def test_a_table_without_an_id_and_a_bad_name_are_refused(sql: SparkSession) -> None:
    with pytest.raises(PySparkException, match="expected a column event_id or id among plate"):
        sql.sql("SELECT * FROM tidings_match(TABLE(SELECT plate FROM sql_events))").collect()
    with pytest.raises(InputError, match="expected a name"):
        tidings.register(sql, name="my rules")


def test_several_indexes_have_names_of_their_own_and_any_id(sql: SparkSession) -> None:
    index = tidings.Index(tidings.EventType("Reading", {"at.room": str, "value": float}))
    index.add("hot", "at.room = 'x' AND value > 30")
    tidings.register(sql, index, name="readings", id="number")
    rows = "SELECT id AS number, struct('x' AS room) AS at, id * 20D AS value FROM range(4)"
    found = sql.sql(f"SELECT * FROM readings_match(TABLE({rows}))").collect()
    assert sorted(map(tuple, found)) == [("2", "hot"), ("3", "hot")]
