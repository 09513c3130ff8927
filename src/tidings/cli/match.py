"""`tidings match`: matches events and subscriptions in files, on Spark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from tidings.cli.spark import spark_session
from tidings.cli.terminal import EXIT_REJECTS, Output, OutputOption, show, tell
from tidings.events import read_file

if TYPE_CHECKING:
    from tidings.pipeline import Outcome

MasterOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--master", metavar="URL", help="Where Spark runs. [default: local[*], inside this program]"),
]
ConfOption: TypeAlias = Annotated[
    list[str] | None, typer.Option("--conf", metavar="KEY=VALUE", help="A Spark setting; may be repeated.")
]


def match(
    events: Annotated[
        str, typer.Argument(metavar="EVENTS", help="Parquet, JSON lines or CSV: a file or a folder; or a table.")
    ],
    subscriptions: Annotated[
        str,
        typer.Argument(
            metavar="SUBSCRIPTIONS", help="JSON lines, Parquet or a table with id, subscriber, filter[, type]."
        ),
    ],
    out: Annotated[
        str,
        typer.Option(
            "--out", metavar="DIR", help="Where the result goes: a new or an empty folder, as path or URI; or a table."
        ),
    ],
    id: Annotated[
        str | None, typer.Option("--id", metavar="COLUMN", help="The events' id. [default: event_id, or id]")
    ] = None,
    type: Annotated[
        Path | None,
        typer.Option(
            "--type", metavar="FILE", help="The event type, in TOML or JSON. [default: the files' own schema]"
        ),
    ] = None,
    compact: Annotated[
        bool, typer.Option("--compact", help="One row per event, with a list of subscriptions.")
    ] = False,
    keep: Annotated[
        str,
        typer.Option("--keep", metavar="COLUMN,…|all", help="Columns of the events that the result has as well."),
    ] = "",
    plan: Annotated[str, typer.Option("--plan", metavar="auto|index|zones", help="The execution plan.")] = "auto",
    explain: Annotated[
        bool, typer.Option("--explain", help="Print the plan and the reason for it; match nothing.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what DIR holds.")] = False,
    master: MasterOption = None,
    conf: ConfOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Match events in files against subscriptions in files.

    Writes Parquet with event_id, subscription_id, subscriber to DIR. A subscription that
    does not parse or does not fit the event type does not stop the match: it goes to
    DIR-rejected with its error, broken events go to DIR-quarantine, and the exit code is 1.
    EVENTS, SUBSCRIPTIONS and DIR may be URIs of any file system that Spark knows.

    A table is delta:PATH or iceberg:CATALOG.NAMESPACE.TABLE. A folder that holds a Delta or
    Iceberg table is read as that table.

    \b
    Examples:
      tidings match sightings.jsonl wanted.jsonl --out matched
      tidings match events/ wanted.parquet --out matched --id sighting --type plate.toml
      tidings match delta:events wanted.jsonl --out delta:matched --keep area,speed
      tidings match s3a://lake/events wanted.jsonl --out s3a://lake/matched --conf spark.jars=hadoop-aws.jar,…
      tidings match events/ wanted.jsonl --out matched --master spark://host:7077 --conf spark.executor.memory=4g
    """
    from tidings.pipeline import check_files, is_small, match_files, parse_settings

    event_type = read_file(type) if type else None
    settings = parse_settings(conf or [])
    check_files(
        events, subscriptions, out,
        id=id, event_type=event_type, overwrite=overwrite or explain, keep=_columns(keep), plan=plan,
    )  # fmt: skip
    with spark_session("tidings match", master, settings, is_brief=is_small(events, subscriptions)) as spark:
        outcome = match_files(
            spark, events, subscriptions, out,
            id=id, event_type=event_type, compact=compact, keep=_columns(keep), plan=plan, explain_only=explain, overwrite=overwrite,
        )  # fmt: skip
    tell(outcome.plan)
    if not explain:
        show([outcome.row()], output)
        _tell_of_rejects(outcome)
    if outcome.rejected or outcome.broken:
        raise typer.Exit(EXIT_REJECTS)


def _columns(keep: str) -> str | list[str]:
    return keep if keep == "all" else [name.strip() for name in keep.split(",") if name.strip()]


def _tell_of_rejects(outcome: Outcome) -> None:
    if outcome.rejected:
        where = outcome.rejected_folder
        tell(f"{outcome.rejected:,} subscriptions cannot be used; the reasons are in {where}, for example:")
        tell("\n".join(f"  {line}" for line in outcome.example.splitlines()))
    if outcome.broken:
        tell(f"{outcome.broken:,} events are broken; they are in {outcome.quarantine_folder} with the reasons")
