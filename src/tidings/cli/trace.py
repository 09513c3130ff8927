"""`tidings trace`: where an event went, who could read what of it, and who was told."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tidings.cli.broker import AsOption, asked
from tidings.cli.frame import EXIT_REJECTS, Output, OutputOption, show, tell


def trace(
    event: Annotated[str, typer.Argument(metavar="EVENT_ID", help="As publish and subscribe print it with -o json.")],
    who: AsOption = Path("client.toml"),
    output: OutputOption = Output.TABLE,
) -> None:
    """Show what your broker, and the brokers linked with it, did with a recent event.

    Names of attributes are shown and never values. Which subscriptions were told, and why others were
    not, is shown for your own organisation's broker only.

    \b
    Example:
      tidings trace 565518d97b4372acbf8c7dde3955c0b8.0.1 --as police/camera/client.toml
    """
    rows = sorted(asked(who, "trace", event=event), key=lambda row: -row["ago_s"])
    if not rows:
        tell("no broker that was asked remembers this event")
        raise typer.Exit(EXIT_REJECTS)
    show(rows if output is Output.JSON else map(_brief, rows), output)


def _brief(row: dict[str, Any]) -> dict[str, Any]:
    sent = [f"{each['to']}{_in_clear(each['in_clear'])}" for each in row["sent"]]
    return {
        "broker": f"{row['domain']}/{row['broker']}",
        "ago": f"{row['ago_s']:.3f} s",
        "from": row["came_from"] or "published here",
        "can read": ", ".join(row["readable"]),
        "cannot": ", ".join(row["hidden"]),
        "sent to": ", ".join(sent),
        "told": ", ".join(each["client"] for each in row.get("told", ())),
        "not told": "; ".join(f"{each['client']}: {each['why']}" for each in row.get("not_told", ())) or row["refused"],
    }


def _in_clear(names: list[str]) -> str:
    return f" ({', '.join(names)} in clear)" if names else ""
