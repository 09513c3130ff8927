"""`tidings run`: runs a pipeline that a file describes, until it is stopped or its sources are empty."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidings.cli.match import ConfOption, MasterOption
from tidings.cli.spark import spark_session
from tidings.cli.terminal import EXIT_INTERRUPTED, EXIT_REJECTS, Output, OutputOption, show, tell

if TYPE_CHECKING:
    from tidings.pipeline import BatchDone, Counts


def run(
    pipeline: Annotated[Path, typer.Argument(metavar="PIPELINE.toml", help="What to read, match and deliver.")],
    master: MasterOption = None,
    conf: ConfOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Match a stream of events against changing subscriptions, and deliver each match exactly once.

    Runs until Ctrl-C, or until its sources are empty if it is configured so. You may stop or
    kill it at any time: the next run continues where it stopped, and every delivery is in
    the sink once. The exit code is 1 if events were quarantined or
    changes of subscriptions rejected.

    \b
    Examples:
      tidings run london.toml
      tidings run london.toml --master spark://host:7077 --conf spark.executor.memory=4g
    """
    from tidings.pipeline import BatchMetrics, check_pipeline, parse_settings, read_pipeline, run, totals

    described = read_pipeline(pipeline)
    settings = {**described.spark_settings(), **parse_settings(conf or [])}
    check_pipeline(described)
    asked_to_stop = threading.Event()
    for way_to_stop in (signal.SIGINT, signal.SIGTERM):
        signal.signal(way_to_stop, lambda *_: asked_to_stop.set())
    metrics = BatchMetrics(described.metrics, tell_of)
    stopped = False
    with spark_session(f"tidings {described.name}", master, settings, asked_to_stop.is_set) as spark:
        try:
            counts = run(spark, described, metrics, asked_to_stop.is_set)
        except KeyboardInterrupt:
            stopped = True
            counts = totals(described, spark)
    show([counts_row(counts)], output)
    if stopped:
        tell("stopped; the next run continues from here")
        raise typer.Exit(EXIT_INTERRUPTED)
    tell_of_rejects(counts, described.quarantine.path)
    if counts.quarantined or counts.rejected:
        raise typer.Exit(EXIT_REJECTS)


def tell_of_rejects(counts: Counts, folder: str) -> None:
    """Says where quarantined events and rejected changes of subscriptions are, if there are any."""
    if counts.quarantined:
        tell(f"{counts.quarantined:,} events were quarantined; they are in {folder}/events with the reasons")
    if counts.rejected:
        tell(
            f"{counts.rejected:,} changes of subscriptions were rejected; they are in {folder}/subscriptions with the reasons"
        )


def tell_of(done: BatchDone) -> None:
    """Prints a line per batch on stderr."""
    counts, seconds = done.counts, max(done.seconds, 1e-3)
    parts = [
        f"batch {done.batch}",
        f"{counts.events:,} events ({counts.events / seconds:,.0f}/s)",
        f"{counts.deliveries:,} deliveries ({counts.deliveries / seconds:,.0f}/s)",
        f"{done.subscriptions:,} subscriptions (version {done.version})",
        *([f"{counts.quarantined:,} quarantined"] if counts.quarantined else []),
        *([f"{counts.rejected:,} subscription changes rejected"] if counts.rejected else []),
        *([done.behind] if done.behind else []),
    ]
    tell("  ".join(parts))


def counts_row(counts: Any) -> dict[str, object]:
    return {name: getattr(counts, name) for name in counts.__struct_fields__}
