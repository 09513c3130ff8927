"""The live network against RabbitMQ, NATS, JetStream and Kafka: events a second, and how long one takes to arrive.

    python -m benchmarks.live               everything, about ten minutes; writes results/live.json and the documentation's table
    python -m benchmarks.live --quick       four networks, a second each
    python -m benchmarks.live --only tidings:1:1000 tidings:3:1,1000 sealed:1:1000 rabbit:10000 nats:1000
    python -m benchmarks.live --again --only NETWORK …       these once more; what was measured in the quieter moment is kept
    python -m benchmarks.live --page        nothing: the documentation's table from the last full run

What is compared and how: docs/benchmarks/live.md.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence

from benchmarks.live.contender import Contender
from benchmarks.live.kafka import Kafka
from benchmarks.live.measure import Cell, measured
from benchmarks.live.nats import JetStream, Nats
from benchmarks.live.ours import OnPostgres, Tidings
from benchmarks.live.rabbit import Rabbit
from benchmarks.live.rabbit_quorum import RabbitQuorum
from benchmarks.live.report import Report, show, write_page
from benchmarks.matching.machine import facts
from benchmarks.showing import RESULTS

FULL = (
    *("tidings:1:1,1000,10000,100000", "rabbit:1,1000,10000", "nats:1,1000,10000"),
    *("jetstream:1000", "jetstream-single:1000", "kafka:1000", "quorum:1000"),
    *("tidings:3:1,1000,100000", "tidings:5:1,1000,100000"),
    *("sealed:1:1,1000,100000", "sealed:3:1,1000,100000", "sealed:5:1,1000,100000"),
    *("unsigned:3:1000", "sealed-unsigned:3:1000"),
    *("postgres:1:1000", "postgres-standby:1:1000"),
)
QUICK = ("tidings:1:1000", "tidings:3:1000", "rabbit:1000", "nats:1000")
SECONDS, QUICK_SECONDS = 2.0, 1.0


def main() -> int:
    """Runs, saves and shows; fails if somebody was told the wrong events."""
    asked = _arguments()
    if asked.page:
        write_page(Report.open(RESULTS / "live.json"))
        return 0
    plan, seconds = (QUICK, QUICK_SECONDS) if asked.quick else (asked.only or FULL, SECONDS)
    report = measure(plan, asked.seconds or seconds, quick=asked.quick)
    if asked.again:
        report = Report.open(RESULTS / "live.json").with_again(report)
    show(report)
    if not asked.only or asked.again:
        print(f"\n{report.save()}")
        if not asked.quick:
            write_page(report)
    return 1 if any(cell.agrees is False for cell in report.cells) else 0


def measure(plan: Sequence[str], seconds: float, *, quick: bool) -> Report:
    """Every network of the plan, one after the other."""
    machine = facts()
    cells: list[Cell] = []
    for named in plan:
        contender, sizes = _read(named)
        cells += map(_told, asyncio.run(_made_and_measured(contender, sizes, seconds)))
    return Report(machine, quick, cells)


async def _made_and_measured(named: Sequence[str], sizes: Sequence[int], seconds: float) -> list[Cell]:
    return await measured(_contender(named), sizes, seconds)


def _read(named: str) -> tuple[list[str], list[int]]:
    """`tidings:3:1,1000` as which network and which numbers of conditions."""
    *contender, sizes = named.split(":")
    return contender, [int(size) for size in sizes.split(",")]


def _contender(named: Sequence[str]) -> Contender:
    match named:
        case ["tidings", brokers]:
            return Tidings(int(brokers), sealed=False)
        case ["sealed", brokers]:
            return Tidings(int(brokers), sealed=True)
        case ["unsigned", brokers]:
            return Tidings(int(brokers), sealed=False, signed=False)
        case ["sealed-unsigned", brokers]:
            return Tidings(int(brokers), sealed=True, signed=False)
        case ["postgres", brokers]:
            return OnPostgres(int(brokers), standby=False)
        case ["postgres-standby", brokers]:
            return OnPostgres(int(brokers), standby=True)
        case ["rabbit"]:
            return Rabbit()
        case ["nats"]:
            return Nats()
        case ["quorum"]:
            return RabbitQuorum()
        case ["jetstream"]:
            return JetStream(batched=True)
        case ["jetstream-single"]:
            return JetStream(batched=False)
        case ["kafka"]:
            return Kafka()
    sys.exit(
        "expected tidings, sealed, unsigned, sealed-unsigned, postgres or postgres-standby with :BROKERS, or "
        f"rabbit, quorum, nats, jetstream, jetstream-single or kafka, got {':'.join(named)}"
    )


def _told(cell: Cell) -> Cell:
    rate = f"{cell.events_per_s:,.0f} events/s, p99 {cell.p99_ms} ms" if cell.events_per_s else cell.why_not
    print(f"{cell.contender}, {cell.brokers}, {cell.subscriptions:,}: {rate}", file=sys.stderr, flush=True)
    return cell


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Publish to notify, through real brokers.")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--page", action="store_true")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--only", nargs="+", metavar="NETWORK")
    parser.add_argument("--seconds", type=float, help="of each measurement")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
