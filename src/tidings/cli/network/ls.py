"""`tidings ls …`: what your broker knows: types, brokers, and your subscriptions."""

from __future__ import annotations

from typing import Any

import typer

from tidings.cli.network.session import AsOption, asked
from tidings.cli.terminal import Output, OutputOption, show

app = typer.Typer(
    name="ls",
    no_args_is_help=True,
    rich_markup_mode=None,
    help="List the types and brokers that your broker knows, or your subscriptions.",
)


@app.command()
def types(who: AsOption = None, output: OutputOption = Output.TABLE) -> None:
    """List the event types that your broker knows, with their attributes.

    \b
    Examples:
      tidings ls types
      tidings ls types -o json | jq .attributes
    """
    rows = asked(who, "types")
    show(rows if output is Output.JSON else map(_type, rows), output, ("type", "version", "mode", "attributes"))


@app.command()
def brokers(who: AsOption = None, output: OutputOption = Output.TABLE) -> None:
    """List your broker, those it is linked with, and those it cannot reach.

    \b
    Example:
      tidings ls brokers
    """
    (status,) = asked(who, "status")
    show(_brokers(status), output)


@app.command()
def subscriptions(who: AsOption = None, output: OutputOption = Output.TABLE) -> None:
    """List your subscriptions: durable ones with the events that wait, and those of programs that are connected now.

    \b
    Example:
      tidings ls subscriptions --as ccs/desk/client.toml
    """
    rows = asked(who, "subscriptions")
    show(rows, output, ("name", "durable", "type", "condition", "waiting"))


def _type(row: dict[str, Any]) -> dict[str, Any]:
    attributes = ", ".join(f"{name} {kind}" for name, kind in row["attributes"].items())
    return {"type": row["name"], "version": row["version"], "mode": row["mode"], "attributes": attributes}


def _brokers(status: dict[str, Any]) -> list[dict[str, Any]]:
    mine = {"broker": f"{status['domain']}/{status['broker']}", "state": "yours", "address": status["address"]}
    linked = [
        {"broker": str(each["name"]).removeprefix("broker "), "state": "linked", "address": each["address"]}
        for each in status["linked"]
    ]
    away = [
        {"broker": f"{each['id'][:8]}…", "state": f"not linked: {each['why']}", "address": each["address"]}
        for each in status["unlinked"]
    ]
    return [mine, *linked, *away]
