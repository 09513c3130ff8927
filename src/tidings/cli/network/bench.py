"""`tidings bench …`: measures a live network by publishing real events to it.

    publish    as fast as the broker acknowledges: events per second, and how long an acknowledgement takes
    latency    at a steady rate: from the call of publish to the acknowledgement, and to the arrival at a subscriber

Both ends of a latency are measured in this process, by one clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import csv
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from tidings.cli.network.session import AsOption, as_client, chosen, complete_type, complete_who
from tidings.cli.terminal import EXIT_INTERRUPTED, EXIT_REJECTS, Output, OutputOption, show, tell
from tidings.cli.units import count as counted
from tidings.events import read_values

if TYPE_CHECKING:
    from tidings.net import Client, Subscription

ARRIVAL_S_MAX = 10.0  # How long the last events may take to arrive before they count as lost.
EVENTS_MAX = 10_000_000  # Their measurements are kept in memory until the end.

app = typer.Typer(
    name="bench",
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Measure a live network. The events are real: they are stored, routed and delivered like any others.",
)

TypeArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="TYPE", help="The event type to publish.", autocompletion=complete_type)
]
EventArgument: TypeAlias = Annotated[str, typer.Argument(metavar="JSON", help="The event that is published each time.")]
CountOption: TypeAlias = Annotated[
    int, typer.Option("--count", "-n", metavar="N", help="Stop after this many events.", min=1, max=EVENTS_MAX)
]
SecondsOption: TypeAlias = Annotated[
    float, typer.Option("--seconds", metavar="S", help="Stop after this long, even before --count.", min=0.1, max=86400)
]
CsvOption: TypeAlias = Annotated[
    Path | None, typer.Option("--csv", metavar="FILE", help="Also write every measurement to this file.")
]


@app.command()
def publish(
    type: TypeArgument,
    event: EventArgument,
    who: AsOption = None,
    count: CountOption = 10_000,
    seconds: SecondsOption = 30.0,
    batch: Annotated[int, typer.Option("--batch", metavar="N", help="Events in one request.", min=1, max=1000)] = 100,
    csv_file: CsvOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Publish as fast as the broker stores events, and print how fast that is.

    \b
    Examples:
      tidings bench publish Numberplate '{"plate": "BENCH", "speed": 1.0}'
      tidings bench publish Numberplate '{"plate": "BENCH"}' --count 100000 --batch 1000 --csv out.csv
    """
    run = _Run(count, seconds)

    async def work(client: Client) -> None:
        values = await _values(client, type, event)
        run.start()
        while some := min(batch, run.left()):
            sample = run.send(some)
            await client.publish_many(type, [values] * some)
            sample.acknowledged_s = run.now_s() - sample.began_s

    _measure(run, lambda: as_client(who, work))
    _report(run, csv_file, output)


@app.command()
def latency(
    type: TypeArgument,
    event: EventArgument,
    who: AsOption = None,
    subscriber: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="CLIENT",
            help="Who receives: a client.toml or a context, often of another organisation. [default: the publisher]",
            autocompletion=complete_who,
            show_default=False,
        ),
    ] = None,
    where: Annotated[
        str, typer.Option("--where", metavar="CONDITION", help="The subscriber's condition; the event must match.")
    ] = "TRUE",
    rate: Annotated[
        float, typer.Option("--rate", metavar="N", help="Events a second, whether or not they arrive.", min=0.1)
    ] = 100.0,
    count: CountOption = 1000,
    seconds: SecondsOption = 30.0,
    csv_file: CsvOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Publish at a steady rate to a subscriber, and print how long events take from one to the other.

    The exit code is 1 if an event did not arrive.

    \b
    Examples:
      tidings bench latency Numberplate '{"plate": "BENCH"}' --as police/camera --to ccs/desk
      tidings bench latency Numberplate '{"plate": "BENCH"}' --to desk --rate 1000 --seconds 10 -o json
    """
    run = _Run(count, seconds, awaits_arrival=True)
    receiver = chosen(subscriber or who).file

    async def work(client: Client) -> None:
        from tidings.net import Client as Receiver

        values = await _values(client, type, event)
        async with await Receiver.connect(receiver) as other:
            subscription = await other.subscribe(type, where).ready()
            arriving = asyncio.create_task(_note_arrivals(run, subscription))
            run.start()
            await _publish_steadily(run, rate, lambda: client.publish(type, values))
            await _wait_for_arrivals(run)
            arriving.cancel()

    _measure(run, lambda: as_client(who, work))
    _report(run, csv_file, output)
    if lost := run.lost():
        tell(f"{counted(lost, 'event')} did not arrive within {ARRIVAL_S_MAX:.0f} s; does the condition match them?")
        raise typer.Exit(EXIT_REJECTS)


# ── Measuring ──


@dataclass(slots=True)
class _Sample:
    """One request: when it was sent, how many events it had, and how long it took, in seconds."""

    began_s: float
    events: int
    acknowledged_s: float | None = None
    delivered_s: float | None = None


@dataclass(slots=True)
class _Run:
    """The limits of a measurement, and what was measured."""

    count_max: int
    seconds_max: float
    awaits_arrival: bool = False
    samples: list[_Sample] = field(default_factory=list)
    arrived_at_s: dict[str, float] = field(default_factory=dict)
    """By event id; an event may arrive before its publisher knows its id."""
    sample_of: dict[str, _Sample] = field(default_factory=dict)
    came: asyncio.Event = field(default_factory=asyncio.Event)
    sent: int = 0
    took_s: float = 0.0
    is_interrupted: bool = False
    _began: float = 0.0

    def start(self) -> None:
        self._began = time.perf_counter()

    def now_s(self) -> float:
        return time.perf_counter() - self._began

    def left(self) -> int:
        """How many events may still be published; 0 when the time is up."""
        return self.count_max - self.sent if self.now_s() < self.seconds_max else 0

    def send(self, events: int) -> _Sample:
        self.sent += events
        self.samples.append(_Sample(self.now_s(), events))
        return self.samples[-1]

    def acknowledged(self) -> list[_Sample]:
        return [each for each in self.samples if each.acknowledged_s is not None]

    def match_arrivals(self) -> None:
        for id, sample in self.sample_of.items():
            if id in self.arrived_at_s:
                sample.delivered_s = self.arrived_at_s[id] - sample.began_s

    def lost(self) -> int:
        return sum(each.delivered_s is None for each in self.acknowledged()) if self.awaits_arrival else 0


def _measure(run: _Run, work: Callable[[], None]) -> None:
    """Ctrl-C ends a measurement, and what was measured before still counts."""
    try:
        work()
    except KeyboardInterrupt:
        run.is_interrupted = True
    run.took_s = max((each.began_s + (each.acknowledged_s or 0.0) for each in run.samples), default=0.0)
    run.match_arrivals()


async def _values(client: Client, type: str, event: str) -> dict[str, Any]:
    return dict(read_values(event, await client.event_type(type)))


async def _publish_steadily(run: _Run, rate: float, publish: Callable[[], Awaitable[str]]) -> None:
    """Sends at the given rate whether or not answers come: a slow network must not slow the measurement down."""

    async def one() -> None:
        sample = run.send(1)
        id = await publish()
        sample.acknowledged_s = run.now_s() - sample.began_s
        run.sample_of[id] = sample

    pending: set[asyncio.Task[None]] = set()
    for number in range(run.count_max):
        await asyncio.sleep(max(0.0, number / rate - run.now_s()))
        if not run.left():
            break
        pending.add(task := asyncio.create_task(one()))
        task.add_done_callback(pending.discard)
    await asyncio.gather(*pending)


async def _note_arrivals(run: _Run, subscription: Subscription) -> None:
    async for event in subscription:
        run.arrived_at_s[event.id] = run.now_s()
        run.came.set()


async def _wait_for_arrivals(run: _Run) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(ARRIVAL_S_MAX):
            while not run.sample_of.keys() <= run.arrived_at_s.keys():
                run.came.clear()
                await run.came.wait()


# ── Reporting ──


def _report(run: _Run, csv_file: Path | None, output: Output) -> None:
    done = run.acknowledged()
    if csv_file is not None:
        _write_csv(csv_file, done)
    events = sum(each.events for each in done)
    whole = {"events": events, "seconds": round(run.took_s, 3), "events/s": round(events / max(run.took_s, 1e-9), 1)}
    steps = {"acknowledged": [each.acknowledged_s for each in done if each.acknowledged_s is not None]}
    if run.awaits_arrival:
        steps["delivered"] = [each.delivered_s for each in done if each.delivered_s is not None]
        whole["lost"] = run.lost()
    spreads = {f"{step}_ms": spread_ms(times) for step, times in steps.items()}
    if output is Output.JSON:
        show([{**whole, **spreads}], output)
    else:
        show([whole])
        print()
        show({"ms from publish to": step.removesuffix("_ms"), **spread} for step, spread in spreads.items())
    if run.is_interrupted:
        tell("stopped before the end; these are the results so far")
        raise typer.Exit(EXIT_INTERRUPTED)


def spread_ms(seconds: Sequence[float]) -> dict[str, float | None]:
    """Milliseconds. A percentile is the smallest measured value that so many do not exceed."""
    in_order = sorted(seconds)
    if not in_order:
        return dict.fromkeys(("min", "avg", "p50", "p99", "max"))
    at = {"p50": -(-len(in_order) * 50 // 100) - 1, "p99": -(-len(in_order) * 99 // 100) - 1}
    found = {"min": in_order[0], "avg": sum(in_order) / len(in_order)}
    found |= {name: in_order[place] for name, place in at.items()}
    return {name: round(1000 * value, 3) for name, value in {**found, "max": in_order[-1]}.items()}


def _write_csv(file: Path, samples: Sequence[_Sample]) -> None:
    with file.open("w", newline="", encoding="utf-8") as stream:
        lines = csv.writer(stream)
        lines.writerow(["sent_s", "events", "acknowledged_ms", "delivered_ms"])
        for each in samples:
            lines.writerow([f"{each.began_s:.6f}", each.events, _ms(each.acknowledged_s), _ms(each.delivered_s)])


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{1000 * seconds:.3f}"
