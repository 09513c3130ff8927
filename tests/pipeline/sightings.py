"""Number-plate sightings and subscriptions to them, from a seed, and the answer by definition."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

import tidings
from tidings.filters import parse

Sighting = tidings.EventType(
    "Sighting", event_id=tidings.Required(str), plate=str, area=str, speed=float, lane=int, position={"lat": float}
)
AREAS = ("EC2", "NW1", "SE1", "SW1", "WC1")
SCHEMA = pa.schema(
    [
        ("event_id", pa.string()),
        ("plate", pa.string()),
        ("area", pa.string()),
        ("speed", pa.float64()),
        ("lane", pa.int64()),
        ("position", pa.struct([("lat", pa.float64())])),
    ]
)

Record = dict[str, Any]


def sightings(count: int, seed: int = 1, first: int = 0) -> list[Record]:
    """Made-up ones; some know neither speed nor place."""
    rng = random.Random(f"{seed} {first}")
    return [
        {
            "event_id": f"e{number:06}",
            "plate": f"{rng.choice('ABCDE')}{rng.randint(0, 999):03}",
            "area": rng.choice(AREAS),
            "speed": None if rng.random() < 0.05 else round(rng.gauss(28, 9), 1),
            "lane": rng.randint(1, 3),
            "position": None if rng.random() < 0.1 else {"lat": 51 + rng.random()},
        }
        for number in range(first, first + count)
    ]


def subscriptions(count: int, seed: int = 2) -> list[Record]:
    """Intervals, sets, prefixes, alternatives, suffixes (which are residuals) and conditions on NULL."""
    rng = random.Random(seed)
    return [
        {"id": f"s{number:05}", "subscriber": f"org{number % 7}", "filter": _condition(rng)} for number in range(count)
    ]


def _condition(rng: random.Random) -> str:
    low = rng.randint(0, 55)
    return rng.choice(
        [
            f"speed > {low} AND speed <= {low + 5}",
            f"area = '{rng.choice(AREAS)}' AND speed > {low}.5",
            f"area IN ('{rng.choice(AREAS)}', '{rng.choice(AREAS)}') AND lane = {rng.randint(1, 3)}",
            f"plate LIKE '{rng.choice('ABCDE')}{rng.randint(0, 9)}%'",
            f"plate LIKE '%{rng.randint(0, 99):02}' AND area <> '{rng.choice(AREAS)}'",
            f"position.lat BETWEEN 51.{rng.randint(0, 4)} AND 51.{rng.randint(5, 9)} OR speed IS NULL",
            f"(speed > {low} AND lane = 1) OR (area = '{rng.choice(AREAS)}' AND lane = 2)",
        ]
    )


def expected_pairs(events: Iterable[Record], wanted: Iterable[Record]) -> list[tuple[str, str, str]]:
    """The answer by definition: every condition asked about every event, one by one."""
    values = [(event["event_id"], Sighting.check(event)) for event in events]
    tests = [(row["id"], row["subscriber"], parse(row["filter"], Sighting).matches) for row in wanted]
    return sorted((event, id, by) for event, record in values for id, by, matches in tests if matches(record))


def table(events: list[Record]) -> pa.Table:
    return pa.Table.from_pylist(events, schema=SCHEMA)


def write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    """JSON lines, put in place at once, so that who watches the folder never sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}")
    aside.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return aside.rename(path)
