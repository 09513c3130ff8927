"""From text to boxes: how many conditions a second in bulk, and how long the worst text of 64 KB takes.

python -m benchmarks.matching.condition_texts       prints one line of JSON
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from itertools import cycle

import pyarrow as pa

from benchmarks.matching.contest import pin
from benchmarks.workload import READING as PLAIN
from benchmarks.workload import SCALES, condition_texts, ids, subscriptions
from tidings.errors import TidingsError
from tidings.events import EventType
from tidings.filters import parse
from tidings.matching import parse_texts

COUNT = 100_000
TEXT_BYTES, ROUNDS = 64 * 1024, 3
TYPE = EventType("Text", {"a": int, "b": int, "c": int, "x": float, "s": str, "t": str})


def bulk_per_s(count: int = COUNT) -> float:
    """Conditions a second from text to columns of boxes, as `Index.add_all` and Spark parse them; one core."""
    texts = [_as_written(n, text) for n, text in enumerate(condition_texts(subscriptions(count, SCALES["base"])))]
    names, column = pa.array(ids(count)), pa.array(texts)
    parse_texts(names.slice(0, 5_000), column.slice(0, 5_000), PLAIN)
    taken = []
    for _ in range(ROUNDS):
        start = time.process_time()
        parse_texts(names, column, PLAIN)
        taken.append(time.process_time() - start)
    return count / min(taken)


def _as_written(number: int, text: str) -> str:
    """The plain workload's ANDs of comparisons, one in three with an IN, a BETWEEN or a prefix more."""
    more = {0: " AND s1 IN ('v1', 'v2', 'v3')", 1: f" AND n5 BETWEEN {number} AND 900000", 2: " AND s4 LIKE 'v1%'"}
    return text + (more[number % 3] if number % 9 < 3 else "")


def catalogue() -> dict[str, str]:
    """Texts of 64 KB that cost as much as the writer could think of; what is refused must be refused as soon."""
    return {
        "OR of equalities": _joined(" OR ", (f"a = {n * 7_919 % 1_000_003}" for n in range(10**6))),
        "OR of intervals, descending": _joined(
            " OR ", (f"a BETWEEN {10**6 - 9 * n} AND {10**6 - 9 * n + 3}" for n in range(10**6))
        ),
        "OR over two attributes": _joined(" OR ", (f"{'ab'[n % 2]} = {n}" for n in range(10**6))),
        "OR of pairs": _joined(" OR ", (f"(a = {n} AND b = {n})" for n in range(10**6))),
        "AND of <>": _joined(" AND ", (f"a <> {n * 7_919 % 1_000_003}" for n in range(10**6))),
        "AND of ORs": _joined(" AND ", (f"(a = {n} OR b = {n})" for n in range(10**6))),
        "AND of NOT IN": _joined(" AND ", (f"s NOT IN ('{n}', '{n}x')" for n in range(10**6))),
        "NOT of ANDs": f"NOT ({_joined(' AND ', (f'a <> {n}' for n in range(10**6)), 20)})",
        "XOR": _joined(" XOR ", (f"a = {n}" for n in range(10**6))),
        "IN list": f"a IN ({_joined(', ', (str(n * 7_919 % 1_000_003) for n in range(10**6)), 20)})",
        "IN list of texts": f"s IN ({_joined(', ', (repr(str(n)) for n in range(10**6)), 20)})",
        "IN list with NULLs": f"a IN ({_joined(', ', cycle(['1', 'NULL']), 20)})",
        "LIKE '%a%a…b'": f"s LIKE '{'%a' * 32_000}%b'",
        "LIKE '_%_%…'": f"s LIKE '{'_%' * 32_000}'",
        "LIKE of constants": f"'{'a' * 32_000}' LIKE '%{'a_' * 15_000}b%'",
        "LIKE of constants, many gaps": f"'{'a' * 32_000}' LIKE '{'%a_a' * 8_000}'",
        "LIKE of constants, no character twice": f"'{_distinct(20_000, '')}' LIKE '%{_distinct(20_000, '_')}%'",
        "ORs of LIKE": _joined(" OR ", (f"s LIKE '%{n}%'" for n in range(10**6))),
        "long literal": f"s = '{'x' * 65_000}'",
        "sums": f"{_joined(' + ', cycle(['a', 'b']), 20)} > 3",
        "CONCAT": f"CONCAT({_joined(', ', cycle(['s', 't']), 20)}) = 'x'",
        "parentheses": "(" * 32_000 + "a = 1" + ")" * 32_000,
        "NOT NOT": "NOT " * 16_000 + "a = 1",
        "minus signs": "a = " + "- " * 32_000 + "1",
        "spaces": "a = 1" + " " * 65_000,
        "digits": "x = 0." + "1" * 65_000,
        "one wide name": f"{'a' * 65_000} = 1",
        "no end to a text": f"s = '{'x' * 65_000}",
        "two attributes": _joined(" AND ", (f"a < b + {n}" for n in range(10**6))),
        "AND of IS DISTINCT FROM": _joined(" AND ", (f"a IS DISTINCT FROM b+{n}" for n in range(10**6))),
        "OR of IS DISTINCT FROM": _joined(" OR ", (f"a IS DISTINCT FROM b+{n}" for n in range(10**6))),
        "OR of IS NOT DISTINCT FROM": _joined(" OR ", (f"a IS NOT DISTINCT FROM b+{n}" for n in range(10**6))),
        "UPPER": _joined(" OR ", (f"UPPER(s) = 'X{n}'" for n in range(10**6))),
        "doubles": _joined(" OR ", (f"x BETWEEN {n}.5 AND {n}.75" for n in range(10**6))),
        "CASE-like nesting": _joined(
            " AND ", (f"(a = {n} OR (b = {n} AND (c > {n} OR s = '{n}')))" for n in range(10**6))
        ),
    }


def _distinct(count: int, between: str) -> str:
    return between.join(chr(0x4E00 + n) for n in range(count))


def _joined(between: str, parts: Iterator[str] | cycle[str], spare: int = 0) -> str:
    """As many parts as 64 KB hold."""
    found, size = list[str](), spare
    for part in parts:
        size += len(part) + len(between)
        if size > TEXT_BYTES:
            break
        found.append(part)
    return between.join(found)


def worst() -> dict[str, float]:
    """Milliseconds for each text, parsed and normalised or refused, in the best of some rounds."""
    parse("a = 1 OR s LIKE '%x%'", TYPE)
    return {name: min(_parsed_ms(text) for _ in range(ROUNDS)) for name, text in catalogue().items()}


def _parsed_ms(text: str) -> float:
    start = time.process_time()
    try:
        _ = parse(text, TYPE).boxes
    except TidingsError:
        pass
    return (time.process_time() - start) * 1e3


if __name__ == "__main__":
    pin(1)
    assert all(len(text) <= TEXT_BYTES for text in catalogue().values()), "64 KB each"
    print(json.dumps({"bulk_per_s": bulk_per_s(), "text_ms": worst()}))
    sys.exit(0)
