"""`tidings trace`: the route of an event, what each broker could read of it, and who received it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tidings.cli.network.session import AsOption, asked
from tidings.cli.terminal import EXIT_REJECTS, Output, OutputOption, show, tell


def trace(
    event: Annotated[str, typer.Argument(metavar="EVENT_ID", help="As publish and subscribe print it with -o json.")],
    who: AsOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show the route of a recent event: each broker that had it, when, what it could read, and to whom it delivered.

    Your broker asks its neighbours on the event's route, and they ask theirs. Each broker reports for itself. The
    trace shows names of attributes, never values. Which subscriptions received the event, and why others did not,
    is shown only for brokers of your own organisation.

    \b
    Example:
      tidings trace 565518d97b4372acbf8c7dde3955c0b8.0.1 --as police/camera/client.toml
    """
    hops = asked(who, "trace", event=event)
    if not hops:
        tell("no broker on the route remembers this event")
        raise typer.Exit(EXIT_REJECTS)
    rows = [{**hop, "after_ms": round(1000 * (hops[0]["ago_s"] - hop["ago_s"]), 3)} for hop in hops]
    show(rows if output is Output.JSON else map(_brief, rows), output)


def _brief(row: dict[str, Any]) -> dict[str, Any]:
    sent = [f"{each['to']}{_in_clear(each['in_clear'])}" for each in row["sent"]]
    return {
        "broker": f"{row['domain']}/{row['broker']}",
        "after": f"{row['after_ms']:.1f} ms",
        "from": row["came_from"] or "published here",
        "can read": ", ".join(sorted(row["readable"])),
        "cannot read": ", ".join(sorted(row["hidden"])),
        "sent to": ", ".join(sent),
        "delivered to": ", ".join(each["client"] for each in row["told"]),
        "not delivered": "; ".join(f"{each['client']}: {each['why']}" for each in row["missed"]) or row["refused"],
    }


def _in_clear(names: list[str]) -> str:
    return f" ({', '.join(names)} in plaintext)" if names else ""
