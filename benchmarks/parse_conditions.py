"""How fast conditions become boxes: text parsed, checked against its event type and normalised, on one core.

A million conditions of three predicates each: comparisons, ranges, IN lists, prefixes, null tests on
ints, doubles, texts, booleans and timestamps, joined by AND or, one in five, with an OR: one by one, and in
bulk, with and without those that have an OR. The compiled test of a condition is timed too.

    python -m benchmarks.parse_conditions [--count N]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa

from benchmarks.matching import machine
from benchmarks.matching.contest import pin
from tidings.events import EventType, Timestamp
from tidings.filters import parse
from tidings.matching import parse_texts

COUNT = 1_000_000
PER_S_MIN = 25_000.0
PLAIN_PER_S_MIN = 100_000.0  # ANDs only, in bulk.
TEST_US_MAX = 1.0
TESTED, TEST_ROUNDS = 500, 400
RESULT = Path(__file__).parent / "results" / "parse_conditions.json"

TRADE = EventType(
    "Trade",
    {
        "symbol": str,
        "venue": str,
        "account": str,
        "price": float,
        "size": int,
        "fee": float,
        "level": int,
        "urgent": bool,
        "traded_at": Timestamp,
    },
)
TRADED: dict[str, Any] = {"symbol": "AC", "venue": "LSE", "account": "x-17", "price": 50.0, "size": 5_000, "fee": 0.2}
TRADED |= {"level": 3, "urgent": True, "traded_at": Timestamp("2026-03-14T09:26:53Z")}


def conditions(seed: int = 1) -> Iterator[str]:
    """Endless, all different, the same for the same seed."""
    draw = Random(seed)
    predicates = list(_predicates())
    while True:
        one, two, three = (predicate(draw) for predicate in draw.sample(predicates, 3))
        yield f"{one} AND ({two} OR {three})" if draw.random() < 0.2 else f"{one} AND {two} AND {three}"


def _predicates() -> Iterator[Callable[[Random], str]]:
    """The ways a predicate is written, one per attribute and operator."""
    yield lambda draw: f"symbol = '{_word(draw)}'"
    yield lambda draw: f"symbol IN ('{_word(draw)}', '{_word(draw)}', '{_word(draw)}')"
    yield lambda draw: f"venue <> '{_word(draw)}'"
    yield lambda draw: f"account LIKE '{_word(draw)}%'"
    yield lambda draw: f"price > {draw.uniform(0, 500):.2f}"
    yield lambda draw: f"price BETWEEN {draw.uniform(0, 100):.2f} AND {draw.uniform(100, 500):.2f}"
    yield lambda draw: f"fee <= {draw.random():.4f}"
    yield lambda draw: f"size >= {draw.randrange(1_000_000)}"
    yield lambda draw: f"size < {draw.randrange(1_000_000)}"
    yield lambda draw: f"level IN ({draw.randrange(5)}, {draw.randrange(5, 10)})"
    yield lambda draw: f"urgent = {draw.choice(('TRUE', 'FALSE'))}"
    yield lambda draw: f"traded_at >= TIMESTAMP '2026-{draw.randrange(1, 13):02}-{draw.randrange(1, 29):02} 08:00:00'"
    yield lambda draw: "fee IS NOT NULL"


def _word(draw: Random) -> str:
    return "".join(draw.choices("ABCDEFGHIJKLMNOPQRSTUVWXYZ", k=draw.randrange(2, 6)))


def parsed_per_s(texts: Sequence[str]) -> float:
    start = time.perf_counter()
    for text in texts:
        parse(text, TRADE)
    return len(texts) / (time.perf_counter() - start)


def in_bulk_per_s(texts: Sequence[str]) -> float:
    ids, column = pa.array(map(str, range(len(texts))), pa.string()), pa.array(texts, pa.string())
    parse_texts(ids[:1], column[:1], TRADE)  # Compiles the kernel, or loads it.
    start = time.perf_counter()
    parse_texts(ids, column, TRADE)
    return len(texts) / (time.perf_counter() - start)


def test_us(texts: Sequence[str]) -> float:
    """Microseconds for one compiled test, averaged over conditions of which some match."""
    tests = [parse(text, TRADE).matches for text in texts]
    rounds = range(TEST_ROUNDS)
    start = time.perf_counter()
    for test in tests:
        for _ in rounds:
            test(TRADED)
    return (time.perf_counter() - start) / (len(tests) * TEST_ROUNDS) * 1e6


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.parse_conditions", description="text to boxes, on one core"
    )
    parser.add_argument("--count", type=int, default=COUNT, help="conditions to parse")
    count = parser.parse_args(arguments).count
    facts = machine.facts()
    pin(1)
    texts = list(islice(conditions(), count))
    plain = [text for text in texts if " OR " not in text]
    measured = {
        "conditions": count,
        "parsed_per_s": parsed_per_s(texts),
        "in_bulk_per_s": in_bulk_per_s(texts),
        "plain_in_bulk_per_s": in_bulk_per_s(plain),
        "test_us": test_us(texts[:TESTED]),
    }
    met = {
        "parsed_per_s": measured["parsed_per_s"] >= PER_S_MIN,
        "plain_in_bulk_per_s": measured["plain_in_bulk_per_s"] >= PLAIN_PER_S_MIN,
        "test_us": measured["test_us"] < TEST_US_MAX,
    }
    print(f"for example: {texts[0]}")
    print(f"{count:,} conditions parsed, checked and normalised: {measured['parsed_per_s']:,.0f} a second", end="")
    print(f" (wanted ≥ {PER_S_MIN:,.0f}: {_verdict(met['parsed_per_s'])})")
    print(f"in bulk: {measured['in_bulk_per_s']:,.0f}; without ORs: {measured['plain_in_bulk_per_s']:,.0f}", end="")
    print(f" (wanted ≥ {PLAIN_PER_S_MIN:,.0f}: {_verdict(met['plain_in_bulk_per_s'])})")
    print(
        f"compiled test of three predicates: {measured['test_us']:.2f} µs (wanted < {TEST_US_MAX:g}: {_verdict(met['test_us'])})"
    )
    if count == COUNT:
        RESULT.parent.mkdir(exist_ok=True)
        RESULT.write_text(json.dumps({"machine": facts, "measured": measured, "met": met}, indent=1) + "\n")
    return 0


def _verdict(met: bool) -> str:
    return "met" if met else "MISSED"


if __name__ == "__main__":
    sys.exit(main())
