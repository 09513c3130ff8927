"""`tidings broker …`: run a broker, look at one, have one drained; and what all live commands share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar

import typer

from tidings.cli.frame import Output, OutputOption, refusing_what_is_broken, show, tell

if TYPE_CHECKING:
    from tidings.net import Client

_T = TypeVar("_T")

AsOption: TypeAlias = Annotated[
    Path,
    typer.Option("--as", metavar="client.toml", envvar="TIDINGS_CLIENT", help="Who you are and which broker is yours."),
]

app = typer.Typer(
    name="broker",
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Run a broker of the live network, look at it, drain it.",
)


@app.command()
def run(
    config: Annotated[
        Path, typer.Option("--config", metavar="broker.toml", help="The broker, as `tidings init` writes it.")
    ],
    level: Annotated[str, typer.Option("--log", metavar="LEVEL", help="debug, info, warning or error.")] = "info",
    capture: Annotated[
        Path | None, typer.Option("--capture", metavar="FOLDER", help="Write down what is sent to other brokers there.")
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Run a broker until Ctrl-C, SIGTERM or `tidings broker drain`.

    Stop it or kill it at any time: what it has acknowledged is on disk, and started again it goes on. It
    says on stdout when it listens and when it is part of the network; its log is on stderr, as JSON lines.

    It does not start, and exits with 3 and the reason, with a type that is not as its owner signed it, with
    a clock that has stepped back, or with a key manager's state that is older than one it had before.

    \b
    Example:
      tidings broker run --config police/police-1/broker.toml
    """
    from tidings.net import log_to_stderr, read_broker, serve

    log_to_stderr(level)
    described = read_broker(config)
    if capture is not None:
        described = replace(described, capture=capture)

    def say(row: dict[str, Any]) -> None:
        if output is Output.JSON:
            show([row], output)
        else:
            print(" ".join(str(value) for value in row.values()), flush=True)

    with refusing_what_is_broken():
        asyncio.run(serve(described, say))


@app.command()
def status(who: AsOption, output: OutputOption = Output.TABLE) -> None:
    """Show what a broker is doing: its links, clients, types, what it owes and what it holds.

    \b
    Examples:
      tidings broker status --as police/camera/client.toml
      tidings broker status --as police/camera/client.toml -o json | jq .holdings
    """
    (found,) = asked(who, "status")
    if output is Output.JSON:
        show([found], output)
    else:
        show([{"what": name, "is": _brief(value)} for name, value in found.items()], output)


@app.command()
def drain(who: AsOption, output: OutputOption = Output.TABLE) -> None:
    """Have a broker take no new events, hand over what it owes, leave the network and stop.

    \b
    Example:
      tidings broker drain --as police/camera/client.toml
    """
    asked(who, "drain")
    tell("the broker drains; it stops by itself when nothing is owed any more")


def asked(who: Path, what: str, **options: Any) -> list[dict[str, Any]]:
    """What a broker answers to one question."""

    async def ask(client: Client) -> list[dict[str, Any]]:
        return await client.ask(what, **options)

    return as_client(who, ask)


def as_client(who: Path, work: Callable[[Client], Coroutine[Any, Any, _T]]) -> _T:
    """Do something as a connected client, and hang up."""
    from tidings.net import Client

    async def connected() -> _T:
        async with await Client.connect(who) as client:
            return await work(client)

    return asyncio.run(connected())


def _brief(value: object) -> str:
    if isinstance(value, list | dict) and len(str(value)) > 100:
        return f"{len(value)}; -o json shows them"
    return str(value)
