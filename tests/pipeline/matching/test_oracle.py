"""The index against Spark SQL: the same events match the same conditions."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest

from tests.pipeline.matching.test_conditions import answers_of_spark
from tests.strategies_filters import columns_of, random_condition, random_type, random_values
from tidings.matching import Index

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONDITIONS, EVENTS = 120, 60


@pytest.mark.parametrize("seed", range(100, 104))
def test_the_index_finds_what_spark_sql_finds(spark: SparkSession, seed: int) -> None:
    rng = Random(seed)
    event_type = random_type(rng)
    conditions = [random_condition(rng, event_type) for _ in range(CONDITIONS)]
    events = [random_values(rng, event_type) for _ in range(EVENTS)]
    index = Index(event_type)
    index.add_all((f"{i:03}", condition) for i, condition in enumerate(conditions))
    index.settle()
    found = index.match_batch(columns_of(events, event_type)).to_pydict()
    answers = answers_of_spark(spark, event_type, conditions, events)
    expected = [(e, f"{c:03}") for e in range(EVENTS) for c in range(CONDITIONS) if answers[c][e] is True]
    assert list(zip(found["event"], found["subscription"], strict=True)) == expected
