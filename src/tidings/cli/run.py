"""`tidings run`: runs a pipeline that a file describes, until it is stopped or its sources are empty."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidings.cli.match import ConfOption, MasterOption
from tidings.cli.terminal import EXIT_INTERRUPTED, EXIT_REJECTS, Output, OutputOption, show, tell

if TYPE_CHECKING:
    from tidings.pipeline import BatchDone


def run(
    pipeline: Annotated[Path, typer.Argument(metavar="PIPELINE.toml", help="What to read, match and deliver.")],
    master: MasterOption = None,
    conf: ConfOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Match a stream of events against changing subscriptions, and deliver each match exactly once.

    Runs until Ctrl-C, or until its sources are empty if it is configured so. You may stop or
    kill it at any time: the next run continues where it stopped, and every delivery is in
    the sink once. The exit code is 1 if something was quarantined.

    \b
    Examples:
      tidings run london.toml
      tidings run london.toml --master spark://host:7077 --conf spark.executor.memory=4g
    """
    from tidings.pipeline import BatchLog, BatchMetrics, parse_settings, read_pipeline, run, start

    described = read_pipeline(pipeline)
    spark = start(f"tidings {described.name}", master, {**described.spark_settings(), **parse_settings(conf or [])})
    asked_to_stop = threading.Event()
    for way_to_stop in (signal.SIGINT, signal.SIGTERM):  # After the start, since Spark installs a handler of its own.
        signal.signal(way_to_stop, lambda *_: asked_to_stop.set())
    metrics = BatchMetrics(described.metrics, tell_of)
    stopped = False
    try:
        counts = run(spark, described, metrics, asked_to_stop.is_set)
    except KeyboardInterrupt:
        stopped = True
        batch_log = BatchLog(described.checkpoint)
        counts = batch_log.totals()
        batch_log.close()
    finally:
        spark.stop()
    show([counts_row(counts)], output)
    if stopped:
        tell("stopped; the next run continues from here")
        raise typer.Exit(EXIT_INTERRUPTED)
    if counts.quarantined:
        folder = f"{described.quarantine.path}/events"
        tell(f"{counts.quarantined:,} events were quarantined; they are in {folder} with the reasons")
        raise typer.Exit(EXIT_REJECTS)


def tell_of(done: BatchDone) -> None:
    """Prints a line per batch on stderr."""
    counts, seconds = done.counts, max(done.seconds, 1e-3)
    parts = [
        f"batch {done.batch}",
        f"{counts.events:,} events ({counts.events / seconds:,.0f}/s)",
        f"{counts.deliveries:,} deliveries ({counts.deliveries / seconds:,.0f}/s)",
        f"{done.subscriptions:,} subscriptions (version {done.version})",
        *([f"{counts.quarantined:,} quarantined"] if counts.quarantined else []),
        *([done.behind] if done.behind else []),
    ]
    tell("  ".join(parts))


def counts_row(counts: Any) -> dict[str, object]:
    return {name: getattr(counts, name) for name in counts.__struct_fields__}
