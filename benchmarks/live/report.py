"""Results as a file, as tables on a terminal and in the documentation, and what was promised against what was measured."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.live.measure import Cell
from benchmarks.live.rabbit import Rabbit
from benchmarks.showing import (
    PAGES,
    Target,
    markdown_table,
    markdown_targets,
    print_table,
    print_targets,
    put_between,
    save,
)

PAGE = PAGES / "live.md"
OURS = "Tidings"
EQUAL = "TLS, disk"  # What a peer promises that is held against one broker of ours.
PER_S_WANTED, SEALED_PER_S_WANTED, THREE_PER_S_WANTED = 200_000.0, 80_000.0, 100_000.0
P50_MS_MAX, P99_MS_ONE_MAX, CPU_US_MAX, P99_MS_MAX = 1.5, 8.0, 250.0, 20.0
SHARE_WANTED, TIMES_RABBIT = 0.7, 10.0
HEAD = (
    *("through", "conditions", "events/s", "server CPU, µs/event", "p50 ms", "p99 ms", "CPU then, µs"),
    *("promises", "filter", "checked", "Tidings is", "others' cores"),
)


@dataclass(frozen=True, slots=True)
class Report:
    """One run of the benchmark."""

    machine: dict[str, Any]
    quick: bool
    cells: list[Cell]

    def save(self) -> Path:
        return save("live", asdict(self), self.targets())

    @classmethod
    def open(cls, path: Path) -> Report:
        found = json.loads(path.read_text())
        return cls(found["machine"], found["quick"], [Cell(**cell) for cell in found["cells"]])

    def with_again(self, again: Report) -> Report:
        """This run, with the cells that were measured again while others left more of the machine alone."""
        new = {_place(cell): cell for cell in again.cells}
        return Report(self.machine, self.quick, [_quieter(cell, new.get(_place(cell), cell)) for cell in self.cells])

    def cell(self, contender: str, subscriptions: int, brokers: int = 1) -> Cell | None:
        """What was measured there, if it was."""
        named = (cell for cell in self.cells if cell.contender == contender and cell.events_per_s)
        return next((each for each in named if (each.subscriptions, each.brokers) == (subscriptions, brokers)), None)

    def targets(self) -> list[Target]:
        """Every promise that these cells say something about."""
        return list(self._promises())

    def _promises(self) -> Iterator[Target]:
        if (one := self.cell(OURS, 1_000)) and one.events_per_s:
            yield Target("events/s through one broker, 1,000 conditions, plain", PER_S_WANTED, one.events_per_s)
            if (many := self.cell(OURS, 100_000)) and many.events_per_s:
                share = many.events_per_s / one.events_per_s
                yield Target("100,000 conditions: share of the rate with 1,000", SHARE_WANTED, share)
        if one and one.p50_ms is not None and one.p99_ms is not None and one.paced_cpu_us is not None:
            yield Target("p50 ms through one broker at 1,000 events/s", P50_MS_MAX, one.p50_ms, at_most=True)
            yield Target("p99 ms through one broker at 1,000 events/s", P99_MS_ONE_MAX, one.p99_ms, at_most=True)
            yield Target("CPU then, µs per event", CPU_US_MAX, one.paced_cpu_us, at_most=True)
        if (sealed := self.cell(f"{OURS}, sealed", 1_000)) and sealed.events_per_s:
            yield Target("events/s through one broker, sealed and signed", SEALED_PER_S_WANTED, sealed.events_per_s)
        if (three := self.cell(OURS, 1_000, 3)) and three.events_per_s:
            yield Target("events/s through 3 brokers, plain", THREE_PER_S_WANTED, three.events_per_s)
        if three and three.p99_ms is not None:
            yield Target("p99 ms through 3 brokers at 1,000 events/s, plain", P99_MS_MAX, three.p99_ms, at_most=True)
        if times := self.times(self.cell(Rabbit.name, 10_000)):
            yield Target("10,000 conditions: times RabbitMQ's headers exchange", TIMES_RABBIT, times)
        for cell in self.cells:
            if cell.promises == EQUAL and (times := self.times(cell)):
                yield Target(f"{cell.contender}, with TLS and disk, 1,000 conditions: times", 1.0, times)

    def times(self, peer: Cell | None) -> float | None:
        """How many times as many events a second one broker of ours takes, with as many conditions."""
        ours = self.cell(OURS, peer.subscriptions) if peer else None
        if peer is None or ours is None or not ours.events_per_s or not peer.events_per_s:
            return None
        return ours.events_per_s / peer.events_per_s


def _place(cell: Cell) -> tuple[str, int, int]:
    return cell.contender, cell.brokers, cell.subscriptions


def _quieter(one: Cell, other: Cell) -> Cell:
    """Which of two measurements counts, whatever came out: that of the quieter moment, or the later one."""
    if one.disturbed_cores is None or other.disturbed_cores is None:
        return one if other.disturbed_cores is None else other
    return other if other.disturbed_cores <= one.disturbed_cores else one


def rows(report: Report) -> list[tuple[str, ...]]:
    """The table, as text."""
    return [HEAD, *(_row(report, cell) for cell in report.cells)]


def _row(report: Report, cell: Cell) -> tuple[str, ...]:
    is_peer = not cell.contender.startswith(OURS)
    plural = "" if is_peer else f", {cell.brokers} broker{'s'[: cell.brokers - 1]}"
    name = f"{cell.contender}{plural}"
    if cell.events_per_s is None:
        return (f"{name}, {cell.subscriptions:,}", cell.why_not, *[""] * (len(HEAD) - 2))
    times = report.times(cell) if is_peer else None
    checked = "equal" if cell.agrees else "DIFFERS"
    ratio = f"{times:,.1f}×" if times else ""
    numbers = (f"{cell.subscriptions:,}", f"{cell.events_per_s:,.0f}", f"{cell.server_cpu_us:,.0f}")
    others = f"{cell.disturbed_cores:.2f}" if cell.disturbed_cores is not None else ""
    paced = "–" if cell.paced_cpu_us is None else f"{cell.paced_cpu_us:,.0f}"
    promised = (cell.promises, cell.filters)
    return (name, *numbers, _ms(cell.p50_ms), _ms(cell.p99_ms), paced, *promised, checked, ratio, others)


def _when(report: Report) -> str:
    moments = sorted(cell.measured_at for cell in report.cells if cell.measured_at)
    return f"{moments[0]} to {moments[-1]}" if moments else report.machine["measured_at"]


def _ms(found: float | None) -> str:
    return "–" if found is None else f"{found:.1f}"


def show(report: Report) -> None:
    """Tables for a terminal."""
    print()
    print_table(rows(report))
    print_targets(report.targets())


def write_page(report: Report) -> None:
    """Puts the numbers between the marks in the documentation's page; the words around them stay."""
    put_between(PAGE, "numbers", _markdown(report))


def _markdown(report: Report) -> str:
    machine = report.machine
    lines = [
        f"Measured {_when(report)} on {machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']} GB,",
        f"Python {machine['python']}.",
        "",
        *markdown_table(rows(report)),
    ]
    return "\n".join([*lines, *markdown_targets(report.targets())])
