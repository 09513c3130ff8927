"""The first example: cameras report number plates, three organisations say in SQL which ones they want.

Every condition is checked against the event type when it is written, then answered twice:
by Spark, over the whole table at once, and by Tidings, one event at a time. The two agree
on every row; where they do not, this program stops.

    python examples/first/main.py
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Mapping

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import tidings
from tidings.errors import FilterError
from tidings.filters import Condition, parse

SIGHTINGS = 5_000
AREAS = ("EC2", "NW1", "SE1", "SW1", "WC1")

Sighting = tidings.EventType("Sighting", plate=tidings.Required(str), area=str, speed=float, lane=int)

WANTED = {
    "City Police": "speed > 40 AND area IN ('EC2', 'WC1')",
    "Congestion Charging": "area LIKE 'W%' OR area LIKE 'E%'",
    "Camera Maintenance": "speed IS NULL OR speed < 0",
}


def main() -> None:
    """Match every sighting against every condition, on Spark and in Python, and show who received what."""
    sightings = make_sightings(random.Random(7))
    spark = start_spark()
    table = spark.createDataFrame(pa.Table.from_pylist(sightings))
    print(f"\n{len(sightings):,} sightings of type {Sighting}\n")
    for organisation, text in WANTED.items():
        received = deliver(parse(text, Sighting), table, sightings)
        print(f"{organisation:<20} {text:<42} received {received:>5,}")
    spark.stop()
    show_a_mistake()


def make_sightings(rng: random.Random) -> list[dict[str, object]]:
    """Made-up sightings; a camera in fifty has lost its radar and reports no speed."""
    return [
        {
            "plate": f"{rng.choice('ABCDE')}{number:05}",
            "area": rng.choice(AREAS),
            "speed": None if rng.random() < 0.02 else round(rng.gauss(28, 9), 1),
            "lane": rng.randint(1, 3),
        }
        for number in range(SIGHTINGS)
    ]


def start_spark() -> SparkSession:
    """Spark inside this process, with its workers on this very Python."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master("local[2]").appName("tidings: first example")
    builder = builder.config("spark.ui.enabled", "false").config("spark.log.level", "ERROR")
    return builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()


def deliver(wanted: Condition, table: DataFrame, sightings: list[dict[str, object]]) -> int:
    """How many sightings match; asked of Spark and of Tidings, who have to agree row by row."""
    by_spark = {row.plate for row in table.where(wanted.to_spark()).select("plate").collect()}
    by_tidings = {sighting["plate"] for sighting in sightings if matches(wanted, sighting)}
    assert by_spark == by_tidings, f"Spark and Tidings differ on {by_spark ^ by_tidings}"
    return len(by_tidings)


def matches(wanted: Condition, record: Mapping[str, object]) -> bool:
    """Whether the condition is TRUE of the record; a NULL, as from a camera without radar, is no match."""
    return wanted.matches(Sighting.check(record))


def show_a_mistake() -> None:
    """A condition that cannot be meant is refused when it is written, not when an event comes."""
    try:
        parse("area = 'EC2' AND sped > 40", Sighting)
    except FilterError as error:
        print(f"\nA condition with a slip is refused at once:\n\n{type(error).__name__}: {error}\n")


if __name__ == "__main__":
    main()
