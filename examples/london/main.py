"""London: cameras see number plates, and not everybody may read everything.

Transport for London publishes sightings, each attribute sealed by itself. The congestion charge may
read plates but not where a car was, a detective may read everything about one plate, the
road-safety office reads speeds and places but no plates, and a relay that passes it all on
reads nothing. They say in SQL what they want. A pipeline on Spark verifies every frame, matches,
and seals for each subscriber what it may have.

Some frames are altered on the way, some come twice. In the middle of it all the detective asks for a
second plate, which its right does not cover, and road safety for more, which its right does.

Spark runs inside this program. It ends by itself, after about a minute.

    python examples/london/main.py              100,000 sightings
    python examples/london/main.py 10000        as many as you like
"""

from __future__ import annotations

import json
import random
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from people import MAY_READ, RELAY, WANTED_PLATE, London, Sighting, found_london, publisher
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from tidings.events import Timestamp, Value
from tidings.pipeline import BatchDone, Counts, KeyFile, admit, genuine, read_pipeline, run, start
from tidings.security import Sealer, SignedType

HERE = Path(__file__).parent
OUT = Path("out/london")

SIGHTINGS = int(sys.argv[1]) if sys.argv[1:] else 100_000
FILES = 20
ALTERED, TWICE = 25, 40  # Frames that somebody changes on the way, and frames that come a second time.
ZONE = ("EC1", "EC2", "EC3", "EC4", "SE1", "SW1", "W1", "WC1", "WC2")
OUTSIDE = ("E14", "N1", "NW1", "NW3", "SE10", "SW11", "W2", "W8")
SECOND_PLATE = "KX21ZRN"
DAY = Timestamp("2026-03-02T00:00:00Z")

FIRST_SUBSCRIPTIONS = [
    {
        "id": "charge-zone",
        "subscriber": "Congestion Charge",
        "filter": "in_zone = TRUE "
        "AND seen_at >= TIMESTAMP '2026-03-02T07:00:00Z' AND seen_at < TIMESTAMP '2026-03-02T18:00:00Z'",
    },
    {"id": "plate-1", "subscriber": "Detective", "filter": f"plate = '{WANTED_PLATE}'"},
    {
        "id": "speeding",
        "subscriber": "Road Safety",
        "filter": "speed > 40 AND area IN ('NW3', 'W8') OR speed > 70",
    },
    {"id": "radar", "subscriber": "Camera Repair", "filter": "speed IS NULL OR speed < 0"},
    {"id": "nosy", "subscriber": "Camera Repair", "filter": f"plate = '{WANTED_PLATE}'"},
    {"id": "typo", "subscriber": "Camera Repair", "filter": "sped < 0"},
]
LATER_SUBSCRIPTIONS = [
    {"id": "plate-2", "subscriber": "Detective", "filter": f"plate = '{SECOND_PLATE}'"},
    {"id": "southwark", "subscriber": "Road Safety", "filter": "speed > 45 AND area LIKE 'SE%'"},
]


def main() -> None:
    """Seal the sightings, run the pipeline, and show who can read what."""
    london = lay_out()
    pipeline = read_pipeline(OUT / "pipeline.toml")
    spark = start("tidings: London", "local[2]", pipeline.spark_settings())
    began = time.monotonic()
    counts = run(spark, pipeline, watch=at_each_batch)
    seconds = time.monotonic() - began
    show(spark, london.signed_type, counts, seconds)
    spark.stop()


def lay_out() -> London:
    """Everything the pipeline needs, in a folder of its own."""
    shutil.rmtree(OUT, ignore_errors=True)
    for name in ("frames", "subscriptions"):
        (OUT / name).mkdir(parents=True)
    shutil.copy(HERE / "pipeline.toml", OUT / "pipeline.toml")
    subscribe("0001-first.jsonl", FIRST_SUBSCRIPTIONS)
    london = found_london(OUT)
    frames = list(on_the_way(sealed_by_cameras(london), random.Random(2027)))
    per_file = -(-len(frames) // FILES)
    for number in range(FILES):
        column = pa.array(frames[number * per_file : (number + 1) * per_file], pa.binary())
        pq.write_table(pa.table({"frame": column}), OUT / "frames" / f"{number:03}.parquet")
    return london


def sealed_by_cameras(london: London) -> list[bytes]:
    """A day of sightings. Each of four control rooms joins with its own right and gets its own sender id."""
    rng = random.Random(2026)
    now_ms = time.time_ns() // 1_000_000
    rooms = []
    for _ in range(4):
        keyring, sender_id = london.join(*publisher(london, now_ms), MAY_READ["Detective"])
        rooms.append(Sealer(london.signed_type, keyring, sender_id))
    return [rooms[number % 4].seal(sighting(number, rng), now_ms) for number in range(SIGHTINGS)]


def on_the_way(frames: list[bytes], rng: random.Random) -> Iterator[bytes]:
    """What becomes of frames between the cameras and here: a bit changes, a relay sends one again."""
    altered = set(rng.sample(range(len(frames)), ALTERED))
    for number, frame in enumerate(frames):
        at = rng.randrange(54, len(frame))
        yield frame[:at] + bytes([frame[at] ^ 1]) + frame[at + 1 :] if number in altered else frame
    yield from (frames[number] for number in rng.sample(sorted(set(range(len(frames))) - altered), TWICE))


def subscribe(name: str, subscriptions: list[dict[str, str]]) -> None:
    """Put in place in one step: the pipeline never sees half a file."""
    aside = OUT / name
    aside.write_text("".join(json.dumps(subscription) + "\n" for subscription in subscriptions))
    aside.rename(OUT / "subscriptions" / name)


def sighting(number: int, rng: random.Random) -> dict[str, Value]:
    in_zone = rng.random() < 0.4
    seen: dict[str, Value] = {
        "plate": plate(rng),
        "in_zone": in_zone,
        "area": rng.choice(ZONE if in_zone else OUTSIDE),
        "camera": rng.randint(1, 800),
        "seen_at": Timestamp(DAY + number * 86_400_000_000 // SIGHTINGS),
    }
    return seen if rng.random() < 0.01 else {**seen, "speed": round(rng.gauss(27, 8), 1)}


def plate(rng: random.Random) -> str:
    luck = rng.random()
    if luck < 0.001:
        return WANTED_PLATE if luck < 0.0006 else SECOND_PLATE
    letters = "ABCDEFGHJKLMNPRSTVWXYZ"
    return "".join(rng.choices(letters, k=2)) + f"{rng.randint(2, 74):02}" + "".join(rng.choices(letters, k=3))


def at_each_batch(done: BatchDone) -> None:
    """Tells how it goes; after the first batch, there are new subscriptions."""
    print(
        f"batch {done.batch}: {done.counts.events:,} frames, {done.counts.deliveries:,} deliveries, "
        f"{done.counts.events / done.seconds:,.0f} frames/s, subscriptions version {done.version}",
        file=sys.stderr,
        flush=True,
    )
    if done.batch == 0:
        subscribe("0002-later.jsonl", LATER_SUBSCRIPTIONS)


# ── What came of it ──────────────────────────────────────────────────────────


def show(spark: SparkSession, signed_type: SignedType, counts: Counts, seconds: float) -> None:
    deliveries = spark.read.parquet(str(OUT / "deliveries")).cache()
    print(f"\n{counts.events:,} sealed sightings in {seconds:.0f} s, {counts.events / seconds:,.0f}/s on 2 cores\n")
    print(f"  delivered to somebody {counts.delivered_from:>8,}")
    print(f"  wanted by nobody      {counts.unmatched:>8,}")
    print(f"  altered, refused      {counts.quarantined:>8,}")
    print(f"  second copies dropped {SIGHTINGS + TWICE - counts.events:>8,}\n")
    show_received(deliveries)
    assert deliveries.select("delivery_id").distinct().count() == counts.deliveries, "a delivery stands twice"
    print("\nWhat each can read of its deliveries, with the keys it has:\n")
    show_readers(spark, signed_type, deliveries)
    print(
        "\nThe detective's second plate and Camera Repair's question about a plate brought nothing: no right to them."
    )
    print(f"Deliveries, by batch and subscriber: {OUT / 'deliveries'}")
    print(f"What was refused, with reasons:      {OUT / 'quarantine'}")


def show_received(deliveries: DataFrame) -> None:
    by_subscription = deliveries.groupBy("subscriber", "subscription_id").agg(f.count("*").alias("received"))
    received = {(row.subscriber, row.subscription_id): row.received for row in by_subscription.collect()}
    print(f"{'subscriber':<18} {'subscription':<13} {'received':>8}")
    for wanted in (*FIRST_SUBSCRIPTIONS, *LATER_SUBSCRIPTIONS):
        who = wanted["subscriber"], wanted["id"]
        print(f"{who[0]:<18} {who[1]:<13} {received.get(who, 0):>8,}")


def show_readers(spark: SparkSession, signed_type: SignedType, deliveries: DataFrame) -> None:
    """Every reader opens its own deliveries; the relay tries all frames that pass through its hands."""
    names = [attribute.name for attribute in Sighting]
    print(f"{'reader':<18} {'frames':>7} {'opened':>7} {'plates':>7}  " + "  ".join(names))
    for reader in (*MAY_READ, RELAY):
        passing = spark.read.parquet(str(OUT / "frames"))
        sealed = deliveries.where(f.col("subscriber") == reader).select("frame") if reader in MAY_READ else passing
        opened = genuine(admit(sealed, signed_type, KeyFile(str((OUT / f"{reader}.keys").absolute()))))
        seen = opened.agg(f.count("*"), f.countDistinct("plate"), *(f.count(name) for name in names)).collect()[0]
        marks = "  ".join(
            ("yes" if count else "-").ljust(len(name)) for name, count in zip(names, seen[2:], strict=True)
        )
        print(f"{reader:<18} {sealed.distinct().count():>7,} {seen[0]:>7,} {seen[1]:>7,}  {marks.rstrip()}")


if __name__ == "__main__":
    main()
