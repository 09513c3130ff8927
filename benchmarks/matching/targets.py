"""What was promised, and whether it is kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.matching.contenders import (
    CONTENDERS,
    MIXED_CONTENDERS,
    MIXED_SIZES,
    OURS,
    OURS_TABLE,
    OURS_TWO_THREADS,
    PROTOTYPE,
)
from benchmarks.matching.runs import Run
from benchmarks.showing import Target

PEERS = tuple(dict.fromkeys(contender.name for contender in (*CONTENDERS, *MIXED_CONTENDERS) if contender.peer))
TIMES_BEST_PEER = {"base100k": 20.0, "base1m": 50.0} | dict.fromkeys(MIXED_SIZES, 10.0)
OF_PROTOTYPE_MIN = 0.7
OF_PLAIN_MIN = 0.3
BASE10K_PER_S_MIN = 1.2e6
BUILD_S_MAX, BYTES_PER_CONDITION_MAX = 3.0, 400.0
SINGLE_US_MAX, BATCH_OF_SINGLE_MAX = 10.0, 3.0
SPEED_UP_MIN = {"base10k": 1.8, "base100k": 1.7, "base1m": 1.7, "hard1m": 1.7}
IN_ORDER_MIN = 0.5
WARM_START_S_MAX = 1.0
CHANGES_PER_S_MIN, WAIT_MS_MAX = 100_000.0, 50.0
PARSED_PER_S_MIN, TEXT_MS_MAX = 100_000.0, 50.0
TIMES_DUCKDB_MIN = 1.0


def targets(runs: Sequence[Run], alone: dict[str, Any]) -> list[Target]:
    """Every promise that these runs say something about."""
    measured = {(run.contender, run.workload): run for run in runs if run.measured}
    found = [*_rates(measured), *_against_peers(measured), *_of_plain(measured), *_against_prototype(measured)]
    found += [*_two_threads(measured), *_of_one_index(measured), *_small_batches(measured)]
    return [*found, *_built_in_parallel(measured), *_while_it_changes(measured), *_of_programs(alone)]


def best_peer(measured: dict[tuple[str, str], Run], workload: str) -> Run | None:
    runs = [run for (name, size), run in measured.items() if name in PEERS and size == workload and run.agrees]
    return max(runs, key=_rate, default=None)


def _rates(measured: dict[tuple[str, str], Run]) -> Iterator[Target]:
    if run := measured.get((OURS, "base10k")):
        yield Target("base10k: events/s", BASE10K_PER_S_MIN, _rate(run))
    ours, ordered = measured.get((OURS, "base1m")), measured.get((OURS_TABLE, "base1m"))
    if ours and ordered:
        yield Target("base1m: ids in order, of the rate of numbers", IN_ORDER_MIN, _rate(ordered) / _rate(ours))


def _of_plain(measured: dict[tuple[str, str], Run]) -> Iterator[Target]:
    for workload in MIXED_SIZES:
        if run := measured.get((OURS, workload)):
            plain = _numbers(run)["facts"]["plain_events_per_s"]
            yield Target(f"{workload}: of the rate on plain conditions", OF_PLAIN_MIN, _rate(run) / plain)


def _small_batches(measured: dict[tuple[str, str], Run]) -> Iterator[Target]:
    if run := measured.get((OURS, "base100k")):
        facts = _numbers(run)["facts"]
        for size in ("1", "64"):
            rate = {str(rows): rate for rows, rate in facts["batches"].items()}[size]
            times = 1e6 / float(rate) / facts["single_us"]["median"]
            what = f"base100k: per event in batches of {size}, times one event by itself"
            yield Target(what, BATCH_OF_SINGLE_MAX, times, at_most=True)


def _of_programs(alone: dict[str, Any]) -> Iterator[Target]:
    if found := alone.get("flights"):
        times = found["duckdb_s"] / found["ours_s"] if found["agrees"] else 0.0
        yield Target("300 conditions on 336,776 flights: times DuckDB one by one", TIMES_DUCKDB_MIN, times)
    if found := alone.get("condition_texts"):
        yield Target("conditions/s from text, 1 core", PARSED_PER_S_MIN, found["bulk_per_s"])
        name, taken = max(found["text_ms"].items(), key=lambda text: text[1])
        yield Target(f"ms for the slowest text of 64 KB ({name})", TEXT_MS_MAX, taken, at_most=True)


def _rate(run: Run) -> float:
    return run.events_per_s or 0.0


def _against_peers(measured: dict[tuple[str, str], Run]) -> Iterator[Target]:
    for workload, times in TIMES_BEST_PEER.items():
        ours, peer = measured.get((OURS, workload)), best_peer(measured, workload)
        if ours and peer:
            yield Target(f"{workload}: times the best peer ({peer.contender})", times, _rate(ours) / _rate(peer))


def _against_prototype(measured: dict[tuple[str, str], Run]) -> Iterator[Target]:
    for (name, workload), run in measured.items():
        if name == PROTOTYPE and (OURS, workload) in measured:
            yield Target(
                f"{workload}: of the prototype's rate", OF_PROTOTYPE_MIN, _rate(measured[OURS, workload]) / _rate(run)
            )


def _two_threads(measured: dict[tuple[str, str], Run]) -> Iterator[Target]:
    for (name, workload), run in measured.items():
        if name == OURS_TWO_THREADS:
            yield Target(
                f"{workload}: speed-up on 2 threads", SPEED_UP_MIN[workload], _numbers(run)["facts"]["speed_up"]
            )


def _of_one_index(measured: dict[tuple[str, str], Run]) -> Iterator[Target]:
    if run := measured.get((OURS, "base1m")):
        yield Target("base1m: seconds to build, 1 core", BUILD_S_MAX, _numbers(run)["build_s"], at_most=True)
        yield Target(
            "base1m: bytes per condition", BYTES_PER_CONDITION_MAX, bytes_per_condition(run) or 0, at_most=True
        )
    if run := measured.get((OURS, "base100k")):
        facts = _numbers(run)["facts"]
        warm = sum(facts["warm_start"][part] for part in ("import_s", "open_s", "first_match_s"))
        yield Target("base100k: µs for one event", SINGLE_US_MAX, facts["single_us"]["median"], at_most=True)
        yield Target(
            "base100k: seconds from import to first match, fresh process", WARM_START_S_MAX, warm, at_most=True
        )


def _built_in_parallel(measured: dict[tuple[str, str], Run]) -> Iterator[Target]:
    for workload in ("base1m", "hard1m"):
        if run := measured.get((OURS_TWO_THREADS, workload)):
            yield Target(f"{workload}: seconds to build, 2 cores", BUILD_S_MAX, _numbers(run)["build_s"], at_most=True)


def _while_it_changes(measured: dict[tuple[str, str], Run]) -> Iterator[Target]:
    for workload in ("base100k", "base1m"):
        if run := measured.get((OURS_TWO_THREADS, workload)):
            changes = _numbers(run)["facts"]["changes_per_s"]
            yield Target(f"{workload}: changes/s, folding included, 2 cores", CHANGES_PER_S_MIN, changes)
    if run := measured.get((OURS_TWO_THREADS, "base1m")):
        wait = _numbers(run)["facts"]["longest_wait_ms"]
        yield Target("base1m: ms a reader waits at most while all is folded", WAIT_MS_MAX, wait, at_most=True)


def bytes_per_condition(run: Run) -> float | None:
    total = _numbers(run)["facts"].get("bytes")
    return total / run.subscriptions if total else None


def _numbers(run: Run) -> dict[str, Any]:
    assert run.measured is not None, "only measured runs come here"
    return run.measured
