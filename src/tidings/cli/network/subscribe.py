"""`tidings subscribe`: prints matching events as they arrive."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidings.cli.network.broker import AsOption, as_client
from tidings.cli.registry.registry import moment, now_ms
from tidings.cli.terminal import Output, OutputOption, Row, show, tell
from tidings.events import Timestamp, to_record

if TYPE_CHECKING:
    from tidings.net import Client, Received


def subscribe(
    type: Annotated[str, typer.Argument(metavar="TYPE", help="The event type, as the broker knows it.")],
    condition: Annotated[str, typer.Argument(metavar="CONDITION", help="In SQL; without one, all events.")] = "TRUE",
    who: AsOption = Path("client.toml"),
    count: Annotated[
        int, typer.Option("--count", metavar="N", help="End after this many events; 0: never.", min=0)
    ] = 0,
    durable: Annotated[
        str, typer.Option("--durable", metavar="NAME", help="Make the subscription durable, under this name.")
    ] = "",
    begins: Annotated[
        str | None,
        typer.Option("--from", metavar="TIME", help="Begin in the past: 2026-12-01T00:00:00Z; needs --durable."),
    ] = None,
    forget: Annotated[bool, typer.Option("--forget", help="Delete the durable subscription.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Print events for which the condition is TRUE, one on a line, until Ctrl-C or --count.

    With --durable, the broker stores events while you are not connected, and each is printed once: the next
    call with the same name continues where the last one ended.

    \b
    Examples:
      tidings subscribe Numberplate "speed > 20" --as ccs/desk/client.toml
      tidings subscribe Numberplate "speed > 20" --durable fines --count 100 -o json --as ccs/desk/client.toml
    """
    now = now_ms()
    since = None if begins is None else Timestamp(moment(begins, now, now) * 1000)

    async def work(client: Client) -> None:
        subscription = await client.subscribe(type, condition, durable=durable, since=since).ready()
        if forget:
            await subscription.close(forget=True)
            return
        tell("subscribed")
        left = count
        async for event in subscription:
            show_event(event, output)
            left -= 1
            if left == 0:
                break
        await subscription.close()

    as_client(who, work)


def show_event(event: Received, output: Output) -> None:
    """One event on one line."""
    row: Row = {
        "id": event.id,
        "type": event.type,
        "time": event.at.iso(),
        **({"position": event.position} if event.position else {}),
        "data": to_record(event.values),
    }
    if output is Output.JSON:
        show([row], output)
    else:
        print(event.at.iso(), event.type, row["data"], flush=True)
