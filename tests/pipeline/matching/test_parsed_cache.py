"""Subscriptions that were parsed before are read, not parsed; changed ones are parsed again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.pipeline.sightings import Record, Sighting, expected_pairs, sightings, subscriptions, table
from tidings import EventType
from tidings.errors import InputError
from tidings.pipeline import match
from tidings.pipeline.matching.parsed_cache import SETTING, digest_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EVENTS, WANTED = sightings(100), subscriptions(20)
FIELDS = "id string, subscriber string, filter string"


def rows_of(spark: SparkSession, wanted: list[Record]) -> DataFrame:
    return spark.createDataFrame([(row["id"], row["subscriber"], row["filter"]) for row in wanted], FIELDS)


def test_equal_subscriptions_are_parsed_once_and_changed_ones_again(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = spark.createDataFrame(table(EVENTS))

    def found(wanted: list[Record], plan: str = "index") -> list[tuple[str, ...]]:
        return sorted(map(tuple, match(events, rows_of(spark, wanted), event_type=Sighting, plan=plan).collect()))

    spark.conf.set(SETTING, str(tmp_path / "parsed"))
    try:
        assert found(WANTED) == expected_pairs(EVENTS, WANTED)
        assert len(list((tmp_path / "parsed").iterdir())) == 1
        with monkeypatch.context() as here:  # A second run parses nothing, in whatever order the rows come.
            here.setattr("tidings.pipeline.matching.parse_subscriptions._Parse", _Never)
            assert found(WANTED[::-1], "zones") == expected_pairs(EVENTS, WANTED)
        changed = [{**WANTED[0], "filter": "lane = 3"}, *WANTED[1:]]
        assert found(changed) == expected_pairs(EVENTS, changed)
        assert len(list((tmp_path / "parsed").iterdir())) == 2
    finally:
        spark.conf.unset(SETTING)


class _Never:
    """Parses nothing, and fails in a worker if it is asked to."""

    def __init__(self, event_type: EventType) -> None:
        pass

    def __call__(self, batches: object) -> object:
        raise AssertionError("parsed again")


def test_the_digest_knows_ids_subscribers_texts_nulls_and_the_type(spark: SparkSession) -> None:
    one = {"id": "a", "subscriber": "x", "filter": "lane = 1"}
    sets: list[list[Record]] = [[one], [one, one], [{**one, "filter": "lane = 2"}], [{**one, "subscriber": None}]]
    sets += [[{**one, "subscriber": ""}], [{**one, "id": "b"}], []]
    digests = [digest_of(rows_of(spark, rows), Sighting) for rows in sets]
    digests.append(digest_of(rows_of(spark, [one]), EventType("Sighting", lane=int)))
    assert len(set(digests)) == len(digests)
    assert digest_of(rows_of(spark, [one]), Sighting) == digests[0]


def test_a_limit_that_is_no_number_is_told(spark: SparkSession) -> None:
    spark.conf.set("spark.tidings.indexBoxesMax", "many")
    try:
        with pytest.raises(InputError, match="expected a number of boxes, got 'many'"):
            match(spark.createDataFrame(table(EVENTS)), rows_of(spark, WANTED))
    finally:
        spark.conf.unset("spark.tidings.indexBoxesMax")
