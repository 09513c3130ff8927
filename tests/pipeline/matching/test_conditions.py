"""Spark SQL is the oracle: thousands of (condition, event) pairs in a few queries, and no answer may differ."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tests.strategies_filters import columns_of, random_condition, random_type, random_values
from tidings.events import EventType
from tidings.filters import Condition, parse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CONDITIONS, EVENTS = 150, 40  # 6,000 pairs a seed; more expressions in one query only slow Spark's compiler down.


@pytest.mark.parametrize("seed", range(8))
def test_every_answer_is_the_one_spark_gives(spark: SparkSession, seed: int) -> None:
    rng = Random(seed)
    event_type = random_type(rng)
    conditions = [random_condition(rng, event_type) for _ in range(CONDITIONS)]
    events = [random_values(rng, event_type) for _ in range(EVENTS)]
    for condition, answers in zip(conditions, answers_of_spark(spark, event_type, conditions, events), strict=True):
        ours = [condition.evaluate(values) for values in events]
        wrong = next((i for i, (a, b) in enumerate(zip(ours, answers, strict=True)) if a is not b), None)
        assert wrong is None, (
            f"{condition}\n{condition.to_spark()}\n{events[wrong]}: {ours[wrong]}, Spark {answers[wrong]}"
        )


@pytest.mark.parametrize("ansi", ["true", "false"])
def test_the_answer_does_not_depend_on_ansi_mode(spark: SparkSession, ansi: str) -> None:
    errors = ["n / 0 = 1", "n + n > 0", "n % 0 = 0", "-n > 0", "ABS(n) > 0", "INT(s) = 1", "n * n = 1", "n / -1 > 0"]
    event_type = EventType("Thing", n=int, s=str)
    conditions = [parse(text, event_type) for text in errors]
    events: list[dict[str, Any]] = [
        {"n": n, "s": s} for n in (-(2**63), 2**63 - 1, 0, 1) for s in ("1", "x", "1\n", "")
    ]
    before = str(spark.conf.get("spark.sql.ansi.enabled"))
    spark.conf.set("spark.sql.ansi.enabled", ansi)
    try:
        found = answers_of_spark(spark, event_type, conditions, events)
    finally:
        spark.conf.set("spark.sql.ansi.enabled", before)
    assert found == [[condition.evaluate(values) for values in events] for condition in conditions]


def test_functions_agree_with_spark_on_every_corner(spark: SparkSession) -> None:
    texts = ["", "a", "abc", " a\u2003", "𝄞x", "ß", "İ", "ΑΣ", "TRUE", "-12", "+7", "9223372036854775808", "1.5"]
    texts += ["0" * 4000, "-" + "0" * 3999, "+" + "0" * 4000]
    event_type = EventType("Thing", s=str, n=int, d=float)
    conditions = [
        parse(text, event_type)
        for position in (-4, -1, 0, 1, 2, 2**31, -(2**63))
        for text in (
            f"SUBSTRING(s, {position}) = 'a'",
            f"SUBSTRING(s, n, {position}) = ''",
            f"LEFT(s, {position}) = s",
            f"RIGHT(s, {position}) = s",
        )
    ] + [
        parse(text, event_type)
        for text in (
            "LOWER(s) = s", "UPPER(s) = s", "UPPER(s) = 'SS'", "TRIM(s) = 'a'", "LENGTH(s) = 2", "INT(s) = -12",
            "BOOL(s)", "IS_INT(s)", "IS_BOOL(s)", "STRING(n) = s", "INT(d) = 1", "IS_INT(d)", "BOOL(n)",
            "CONCAT(s, s) = s", "CONCAT_WS('-', s, s) = '-'", "CONCAT_WS(s) = ''", "CONCAT() = s", "INT(s) = n",
        )
    ]  # fmt: skip
    doubles = [None, 1.9, -1.9, 9.3e18, 9.223372036854775807e18, float("nan"), -9.223372036854775808e18]
    events: list[dict[str, Any]] = [
        {k: v for k, v in {"s": s, "n": n, "d": d}.items() if v is not None}
        for i, s in enumerate([None, *texts])
        for n, d in zip([None, 0, 1, 2, -1, -(2**63), 2**63 - 1], doubles[i % 7 :] + doubles[: i % 7], strict=True)
    ]
    for condition, answers in zip(conditions, answers_of_spark(spark, event_type, conditions, events), strict=True):
        assert answers == [condition.evaluate(values) for values in events], condition.to_spark()


def test_no_pattern_makes_spark_try_every_way_to_share_a_text(spark: SparkSession) -> None:
    event_type = EventType("Thing", s=str)
    special = "[a^]{2}*$|(b)?+.-&\\d"
    texts = ["a" * 20_000, "a" * 20_000 + "b", special, f"x{special}\n{special}𝄞y", "", "ab", "a\0b", "\nab\n", "𝄞𝄞"]
    quoted = special.replace("\\", "\\\\\\\\")
    patterns = [
        "%a%a%a%a%a%b",
        "a%a%a%a%a_b%",
        f"%{quoted}%{quoted}%",
        f"_%{quoted}%_",
        "%_%_%_%_c",
        "%\0%",
        "%𝄞%𝄞",
        "%%_%%",
    ]
    conditions = [parse(f"s LIKE '{pattern}'", event_type) for pattern in patterns]
    events: list[dict[str, Any]] = [{"s": text} for text in texts]
    for condition, answers in zip(conditions, answers_of_spark(spark, event_type, conditions, events), strict=True):
        assert answers == [condition.evaluate(values) for values in events], condition.to_spark()


def answers_of_spark(
    spark: SparkSession, event_type: EventType, conditions: list[Condition], events: list[dict[str, Any]]
) -> list[list[bool | None]]:
    """One query: a row per event, a column per condition."""
    table = frame_of(spark, event_type, events)
    rows = (
        table.selectExpr(*[f"{c.to_spark()} AS c{i}" for i, c in enumerate(conditions)], "`row`")
        .orderBy("row")
        .collect()
    )
    return [[row[i] for row in rows] for i in range(len(conditions))]


def frame_of(spark: SparkSession, event_type: EventType, events: list[dict[str, Any]]) -> DataFrame:
    """Events as rows; the nested attributes `a.b` as a struct column a."""
    table = columns_of(events, event_type)
    table = table.rename_columns([f"c{i}" for i in range(table.num_columns)])
    flat = spark.createDataFrame(table.append_column("row", pa.array(range(len(events)), pa.int32())))
    nested: dict[str, list[str]] = {}
    for i, attribute in enumerate(event_type):
        root, *leaf = attribute.name.split(".", 1)
        nested.setdefault(root, []).append(f"c{i} AS `{leaf[0]}`" if leaf else f"c{i}")
    columns = [f"struct({', '.join(fields)}) AS `{root}`" if " AS " in fields[0] else f"{fields[0]} AS `{root}`"
               for root, fields in nested.items()]  # fmt: skip
    return flat.selectExpr("`row`", *columns)
