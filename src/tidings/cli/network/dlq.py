"""`tidings dlq …`: dead letters, the events that could not be delivered, with the reason."""

from __future__ import annotations

from typing import Annotated

import typer

from tidings.cli.network.session import AsOption, asked
from tidings.cli.terminal import Output, OutputOption, show
from tidings.events import Timestamp

app = typer.Typer(
    name="dlq",
    no_args_is_help=True,
    rich_markup_mode=None,
    help="List events that could not be delivered to your durable subscriptions, and try them again.",
)


@app.command("ls")
def list_letters(who: AsOption = None, output: OutputOption = Output.TABLE) -> None:
    """List your dead letters: which event, for which subscription, and why.

    \b
    Example:
      tidings dlq ls --as ccs/desk/client.toml
    """
    rows = [{**row, "at": Timestamp(row.pop("at_us")).iso()} for row in asked(who, "dlq")]
    show(rows, output, ("number", "subscription", "event", "type", "at", "why"))


@app.command()
def replay(
    who: AsOption = None,
    numbers: Annotated[
        list[int] | None, typer.Argument(metavar="NUMBER...", help="As ls shows them; without any, all.")
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Queue dead letters for delivery again.

    \b
    Example:
      tidings dlq replay 3 4 --as ccs/desk/client.toml
    """
    show(asked(who, "dlq replay", numbers=numbers or []), output)
