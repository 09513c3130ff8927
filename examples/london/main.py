"""London: the cameras of one organisation see number plates; others say in SQL which sightings they want.

Transport for London publishes. The congestion-charge service wants every car in its zone by
day, a detective looks for one plate, the road-safety office wants speeders near schools. Some
cameras are broken and write nonsense. In the middle of it all the detective learns of a
second plate and subscribes to that as well, without anybody stopping.

Spark runs inside this program. It ends by itself, after about a minute.

    python examples/london/main.py
"""

from __future__ import annotations

import json
import random
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from tidings.pipeline import BatchDone, Counts, read_pipeline, run, start

HERE = Path(__file__).parent
OUT = Path("out/london")

SIGHTINGS, FILES = 100_000, 20
BROKEN = 25  # Sightings that a failing camera garbles.
ZONE = ("EC1", "EC2", "EC3", "EC4", "SE1", "SW1", "W1", "WC1", "WC2")
OUTSIDE = ("E14", "N1", "NW1", "NW3", "SE10", "SW11", "W2", "W8")
WANTED_PLATE, SECOND_PLATE = "LB07SEC", "KX21ZRN"

FIRST_SUBSCRIPTIONS = [
    {
        "id": "charge-zone",
        "subscriber": "Congestion Charge",
        "filter": f"area IN ({', '.join(repr(area) for area in ZONE)}) "
        "AND seen_at >= TIMESTAMP '2026-03-02T07:00:00Z' AND seen_at < TIMESTAMP '2026-03-02T18:00:00Z'",
    },
    {"id": "plate-1", "subscriber": "Detective", "filter": f"plate = '{WANTED_PLATE}'"},
    {
        "id": "speeding",
        "subscriber": "Road Safety",
        "filter": "speed > 40 AND area IN ('NW3', 'W8') OR speed > 70",
    },
    {"id": "radar", "subscriber": "Camera Repair", "filter": "speed IS NULL OR speed < 0"},
    {"id": "typo", "subscriber": "Camera Repair", "filter": "sped < 0"},
]
LATER_SUBSCRIPTION = {
    "id": "plate-2",
    "subscriber": "Detective",
    "filter": f"plate = '{SECOND_PLATE}' AND area LIKE 'SE%'",
}


def main() -> None:
    """Make the sightings, run the pipeline, and show who received what."""
    lay_out()
    spark = start("tidings: London", "local[2]")
    began = time.monotonic()
    counts = run(spark, read_pipeline(OUT / "pipeline.toml"), watch=at_each_batch)
    seconds = time.monotonic() - began
    show(spark, counts, seconds)
    spark.stop()


def lay_out() -> None:
    """Everything the pipeline needs, in a folder of its own."""
    shutil.rmtree(OUT, ignore_errors=True)
    for name in ("sightings", "subscriptions"):
        (OUT / name).mkdir(parents=True)
    for name in ("pipeline.toml", "sighting.toml"):
        shutil.copy(HERE / name, OUT / name)
    subscribe("0001-first.jsonl", FIRST_SUBSCRIPTIONS)
    lines = list(sightings(random.Random(2026)))
    per_file = -(-len(lines) // FILES)
    for number in range(FILES):
        text = "".join(lines[number * per_file : (number + 1) * per_file])
        (OUT / "sightings" / f"{number:03}.jsonl").write_text(text)


def subscribe(name: str, subscriptions: list[dict[str, str]]) -> None:
    """Put in place in one step: the pipeline never sees half a file."""
    aside = OUT / name
    aside.write_text("".join(json.dumps(subscription) + "\n" for subscription in subscriptions))
    aside.rename(OUT / "subscriptions" / name)


def sightings(chance: random.Random) -> Iterator[str]:
    """A day of sightings, one JSON line each, a few of them garbled."""
    broken = set(chance.sample(range(SIGHTINGS), BROKEN))
    for number in range(SIGHTINGS):
        line = json.dumps(sighting(number, chance)) + "\n"
        yield line[: len(line) // 2] + "\n" if number in broken else line


def sighting(number: int, chance: random.Random) -> dict[str, object]:
    minute = number * 24 * 60 // SIGHTINGS
    area = chance.choice(ZONE if chance.random() < 0.4 else OUTSIDE)
    return {
        "event_id": f"s{number:06}",
        "plate": plate(chance),
        "area": area,
        "speed": None if chance.random() < 0.01 else round(chance.gauss(27, 8), 1),
        "camera": chance.randint(1, 800),
        "seen_at": f"2026-03-02T{minute // 60:02}:{minute % 60:02}:{chance.randint(0, 59):02}Z",
    }


def plate(chance: random.Random) -> str:
    luck = chance.random()
    if luck < 0.0005:
        return WANTED_PLATE if luck < 0.0003 else SECOND_PLATE
    letters = "ABCDEFGHJKLMNPRSTVWXYZ"
    return "".join(chance.choices(letters, k=2)) + f"{chance.randint(2, 74):02}" + "".join(chance.choices(letters, k=3))


def at_each_batch(done: BatchDone) -> None:
    """Tells how it goes; after the first batch, the detective subscribes once more."""
    print(
        f"batch {done.batch}: {done.counts.events:,} sightings, {done.counts.deliveries:,} deliveries, "
        f"{done.counts.events / done.seconds:,.0f} sightings/s, subscriptions version {done.version}",
        file=sys.stderr,
        flush=True,
    )
    if done.batch == 0:
        subscribe("0002-detective.jsonl", [LATER_SUBSCRIPTION])


def show(spark: SparkSession, counts: Counts, seconds: float) -> None:
    deliveries = spark.read.parquet(str(OUT / "deliveries"))
    print(f"\n{counts.events:,} sightings in {seconds:.0f} s, {counts.events / seconds:,.0f}/s on 2 cores\n")
    print(f"  delivered to somebody {counts.delivered_from:>8,}")
    print(f"  wanted by nobody      {counts.unmatched:>8,}")
    print(f"  quarantined           {counts.quarantined:>8,}\n")
    show_received(deliveries)
    assert deliveries.select("delivery_id").distinct().count() == counts.deliveries, "a delivery stands twice"
    rejected = spark.read.parquet(str(OUT / "quarantine/subscriptions")).head()
    assert rejected is not None
    print(f"\nOne subscription could not be used. {rejected.id}: {rejected.reason}\n")
    print(f"Deliveries, by batch and subscriber: {OUT / 'deliveries'}")
    print(f"What was broken, with reasons:       {OUT / 'quarantine'}")


def show_received(deliveries: DataFrame) -> None:
    by_subscription = deliveries.groupBy("subscriber", "subscription_id").agg(
        f.count("*").alias("received"), f.min("subscriptions_version").alias("since")
    )
    print(f"{'subscriber':<18} {'subscription':<13} {'received':>8}  since version")
    for row in by_subscription.orderBy("subscriber", "subscription_id").collect():
        print(f"{row.subscriber:<18} {row.subscription_id:<13} {row.received:>8,}  {row.since}")


if __name__ == "__main__":
    main()
