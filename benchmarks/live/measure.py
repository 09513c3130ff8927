"""One cell of the table: how many events a second, what each costs the servers, and how long one takes to arrive."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from benchmarks.live.contender import Contender, Unavailable
from benchmarks.live.quiet import when_quiet
from benchmarks.live.workload import events, wanted

PROBE = 100  # Events that tell how fast it goes; they are also what everybody warms up with.
EVENTS_MAX = 60_000  # Half of them are told, and a client holds 65,536 for a reader that is late.
PLACING_S_MAX = 45.0  # What takes longer is reported as not measured.
MEASURING_S_MAX = 120.0
RATE_PER_S = 1_000  # At which latency is measured.
THROUGHPUT_TRIES = 5
LATENCY_ROUNDS, LATENCY_TRIES = 5, 20
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
    """How many cores others had, while events a second were measured: other programs, or other machines of the host."""
    paced_others_cores: float | None = None
    """The same, while latency was."""
    measured_at: str = ""
    why_not: str = ""
    promises: str = ""
    """TLS, on disk before it is acknowledged, rights."""
    filters: str = ""
    """Where conditions are evaluated."""

    @property
    def disturbed_cores(self) -> float | None:
        """What others had of the machine, in the worse of the two measurements."""
        return max((each for each in (self.others_cores, self.paced_others_cores) if each is not None), default=None)


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
    doing, seconds_max = f"placing {size:,} subscriptions", PLACING_S_MAX
    try:
        async with asyncio.timeout(seconds_max):
            await contender.want(before, size)
        doing, seconds_max = f"telling of events with {size:,} subscriptions", MEASURING_S_MAX
        async with asyncio.timeout(seconds_max), _no_collections():
            return await _with_all_in_place(contender, size, seconds)
    except TimeoutError:
        return _cell_of(contender, size, why_not=f"{doing} took more than {seconds_max:.0f} s")


async def _with_all_in_place(contender: Contender, size: int, seconds: float) -> Cell:
    count, agrees = await _how_many(contender, size, seconds)
    ((took, cpu_s, equal),), others_cores = await when_quiet(
        contender, lambda: _told(contender, count, size), at_most=THROUGHPUT_TRIES
    )
    per_s = count / took
    paced = await _latency(contender, seconds) if per_s > HEADROOM * RATE_PER_S else {}
    return _cell_of(
        contender,
        size,
        others_cores=others_cores,
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
        events=count,
        events_per_s=round(per_s, 1),
        server_cpu_us=round(1e6 * cpu_s / count, 1),
        **paced,
        agrees=agrees and equal,
        why_not="" if paced else f"under {RATE_PER_S * HEADROOM:,.0f} events/s: no latency at {RATE_PER_S:,}",
    )


async def _how_many(contender: Contender, size: int, seconds: float) -> tuple[int, bool]:
    """How many events keep a contender busy for these seconds, found in three rounds that also warm it up."""
    agrees, count = True, PROBE
    for _ in range(3):
        took, _, equal = await _told(contender, count, size)
        agrees = agrees and equal
        count = int(min(max(seconds * count / took, PROBE), EVENTS_MAX, 10 * count))
    return count, agrees


async def _told(contender: Contender, count: int, size: int) -> tuple[float, float, bool]:
    """Seconds from the first publish to the last notice, processor seconds of the servers, and whether all was right."""
    said, numbers = events(count, size), wanted(count, size)
    cpu_s, begun = contender.cpu_s(), time.perf_counter()
    _, equal = await asyncio.gather(contender.say(said), contender.heard(numbers))
    return time.perf_counter() - begun, contender.cpu_s() - cpu_s, equal


async def _latency(contender: Contender, seconds: float) -> dict[str, float]:
    """What most quiet rounds come to: twenty late events decide a round, and one pause of the machine makes as many late."""
    rounds, others_cores = await when_quiet(
        contender, lambda: _paced(contender, seconds), wanted=LATENCY_ROUNDS, at_most=LATENCY_TRIES
    )
    middle = sorted(rounds, key=lambda each: each["p99_ms"])[len(rounds) // 2]
    return {**middle, "paced_others_cores": others_cores}


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
    promised = {"promises": contender.promises(), "filters": contender.filters}
    return Cell(contender.name, contender.brokers, contender.sealed, subscriptions, **promised, **found)  # type: ignore[arg-type]
