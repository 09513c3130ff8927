"""One cell of the table: how many events a second, what each costs the servers, and how long one takes to arrive."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from benchmarks.live.contender import Contender, Unavailable, everybody_cpu_s
from benchmarks.live.workload import events, wanted

PROBE = 100  # Events that tell how fast it goes; they are also what everybody warms up with.
EVENTS_MAX = 60_000  # Half of them are told, and a client holds 65,536 for a reader that is late.
CELL_S_MAX = 45.0  # For placing subscriptions and for each measurement; what takes longer is reported as not measured.
RATE_PER_S = 1_000  # At which latency is measured.
LATENCY_ROUNDS = 5
HEADROOM = 1.5  # A contender whose throughput is not well above that rate would only be queueing.


@dataclass(frozen=True, slots=True)
class Cell:
    """What was measured, or why not."""

    contender: str
    brokers: int
    sealed: bool
    subscriptions: int
    events: int = 0
    events_per_s: float | None = None
    server_cpu_us: float | None = None
    p50_ms: float | None = None
    p99_ms: float | None = None
    paced_cpu_us: float | None = None
    """What an event costs the servers at that pace, one at a time."""
    agrees: bool | None = None
    others_cores: float | None = None
    """How many cores were busy, while this was measured, with what has nothing to do with it."""
    measured_at: str = ""
    why_not: str = ""


async def measured(contender: Contender, sizes: Sequence[int], seconds: float) -> list[Cell]:
    """A contender with more and more subscriptions; the reason instead, where it cannot take part."""
    cells: list[Cell] = []
    try:
        await contender.start()
        for before, size in zip([0, *sizes], sizes):
            cells.append(await _cell(contender, before, size, seconds))
            if cells[-1].events_per_s is None:
                break
    except Unavailable as why:
        cells.append(_cell_of(contender, sizes[0], why_not=str(why)))
    finally:
        await contender.stop()
    return cells + [_cell_of(contender, size, why_not=cells[-1].why_not) for size in sizes[len(cells) :]]


async def _cell(contender: Contender, before: int, size: int, seconds: float) -> Cell:
    doing = f"placing {size:,} subscriptions"
    try:
        async with asyncio.timeout(CELL_S_MAX):
            await contender.want(before, size)
        doing = f"telling of events with {size:,} subscriptions"
        async with asyncio.timeout(CELL_S_MAX), _no_collections():
            return await _with_all_in_place(contender, size, seconds)
    except TimeoutError:
        return _cell_of(contender, size, why_not=f"{doing} took more than {CELL_S_MAX:.0f} s")


async def _with_all_in_place(contender: Contender, size: int, seconds: float) -> Cell:
    others = _others(contender)
    took, _, agrees = await _told(contender, PROBE, size)
    took, _, still = await _told(contender, PROBE, size)
    count = int(min(max(seconds * PROBE / took, PROBE), EVENTS_MAX // 4))
    runs = [await _told(contender, count, size)]
    if count * 4 <= EVENTS_MAX and runs[0][0] < seconds / 2:  # Faster than the probe has shown.
        count = min(int(count * seconds / runs[0][0]), EVENTS_MAX)
        runs = [await _told(contender, count, size)]
    took, cpu_s, equal = runs[0]
    per_s = count / took
    paced = await _latency(contender, seconds) if per_s > HEADROOM * RATE_PER_S else {}
    return _cell_of(
        contender,
        size,
        others_cores=others(),
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
        events=count,
        events_per_s=round(per_s, 1),
        server_cpu_us=round(1e6 * cpu_s / count, 1),
        **paced,
        agrees=agrees and still and equal,
        why_not="" if paced else f"under {RATE_PER_S * HEADROOM:,.0f} events/s: no latency at {RATE_PER_S:,}",
    )


async def _told(contender: Contender, count: int, size: int) -> tuple[float, float, bool]:
    """Seconds from the first publish to the last notice, processor seconds of the servers, and whether all was right."""
    said, numbers = events(count, size), wanted(count, size)
    cpu_s, begun = contender.cpu_s(), time.perf_counter()
    _, equal = await asyncio.gather(contender.say(said), contender.heard(numbers))
    return time.perf_counter() - begun, contender.cpu_s() - cpu_s, equal


async def _latency(contender: Contender, seconds: float) -> dict[str, float]:
    """What most rounds come to: twenty late events decide a round, and one pause of the machine makes as many late."""
    rounds = [await _paced(contender, seconds) for _ in range(LATENCY_ROUNDS)]
    return sorted(rounds, key=lambda each: each["p99_ms"])[LATENCY_ROUNDS // 2]


async def _paced(contender: Contender, seconds: float) -> dict[str, float]:
    """Milliseconds from a publish to its notice, at a fixed rate, one event at a time; and what that costs."""
    count = int(seconds * RATE_PER_S)
    said: list[float] = []
    took: list[float] = []

    async def hear() -> None:
        for number in range(count):
            await contender.hear_mark()
            took.append(time.perf_counter() - said[number])

    cpu_s = contender.cpu_s()
    hearing, begun = asyncio.create_task(hear()), time.perf_counter()
    for number in range(count):
        await asyncio.sleep(max(0.0, begun + number / RATE_PER_S - time.perf_counter()))
        said.append(time.perf_counter())
        contender.say_mark()
    await hearing
    took.sort()
    return {
        "p50_ms": round(1000 * took[count // 2], 2),
        "p99_ms": round(1000 * took[count * 99 // 100], 2),
        "paced_cpu_us": round(1e6 * (contender.cpu_s() - cpu_s) / count, 1),
    }


def _others(contender: Contender) -> Callable[[], float]:
    """Asked later, tells how many cores others have kept busy since now."""

    def used() -> tuple[float, float]:
        return everybody_cpu_s() - contender.cpu_s() - time.process_time(), time.perf_counter()

    before, begun = used()

    def since() -> float:
        after, ended = used()
        return round(max(0.0, (after - before) / (ended - begun)), 2)

    return since


class _no_collections:  # noqa: N801 - reads as a statement
    """Python's search for circles in this process would be measured as somebody's latency."""

    async def __aenter__(self) -> None:
        gc.collect()
        gc.freeze()
        gc.disable()

    async def __aexit__(self, *error: object) -> None:
        gc.enable()
        gc.unfreeze()


def _cell_of(contender: Contender, subscriptions: int, **found: object) -> Cell:
    return Cell(contender.name, contender.brokers, contender.sealed, subscriptions, **found)  # type: ignore[arg-type]
