"""`tidings subscribe`: prints matching events as they arrive."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Annotated

import typer

from tidings.cli.network.session import AsOption, as_client, complete_durable, complete_type
from tidings.cli.registry.registry import moment, now_ms
from tidings.cli.terminal import EXIT_REJECTS, Output, OutputOption, Row, printable, show, tell
from tidings.cli.units import count as counted
from tidings.cli.units import duration
from tidings.errors import InputError

if TYPE_CHECKING:
    from tidings.net import Client, Received, Subscription


def subscribe(
    type: Annotated[
        str,
        typer.Argument(metavar="TYPE", help="The event type, as the broker knows it.", autocompletion=complete_type),
    ],
    condition: Annotated[str, typer.Argument(metavar="CONDITION", help="In SQL; without one, all events.")] = "TRUE",
    who: AsOption = None,
    count: Annotated[
        int, typer.Option("--count", "-n", metavar="N", help="End after this many events; 0: never.", min=0)
    ] = 0,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", help="End after this long; 0: never.", min=0.0)
    ] = 0.0,
    durable: Annotated[
        str,
        typer.Option(
            "--durable",
            metavar="NAME",
            help="Make the subscription durable, under this name.",
            autocompletion=complete_durable,
        ),
    ] = "",
    begins: Annotated[
        str | None,
        typer.Option("--from", metavar="TIME", help="Begin in the past: 2026-12-01T00:00:00Z; needs --durable."),
    ] = None,
    forget: Annotated[
        bool, typer.Option("--forget", help="Delete the durable subscription and its queue, whatever its condition is.")
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Print events for which the condition is TRUE, one on a line, until Ctrl-C, --count or --timeout.

    With --durable, the broker stores events while you are not connected, and each is printed once: the next
    call with the same name continues where the last one ended. The exit code is 1 if --timeout ends the command
    before --count events have come.

    \b
    Examples:
      tidings subscribe Numberplate "speed > 20" --as ccs/desk/client.toml
      tidings subscribe Numberplate "speed > 20" --durable fines --count 100 -o json
      tidings subscribe Numberplate --count 1 --timeout 10 && echo "it works"
      tidings subscribe Numberplate --durable fines --forget
    """
    from tidings.events import Timestamp

    if forget and not durable:
        raise InputError("--forget deletes a durable subscription: name it with --durable (`tidings ls subscriptions`)")
    now = now_ms()
    since = None if begins is None else Timestamp(moment(begins, now, now) * 1000)

    async def work(client: Client) -> int:
        if forget:
            if not await _forget(client, type, durable):
                tell(f"note: there is no durable subscription {durable!r}")
            return count
        subscription = await client.subscribe(type, condition, durable=durable, since=since).ready()
        tell("subscribed")
        came = await _print_events(subscription, count, timeout, output)
        if subscription.missed:
            tell(
                f"{counted(subscription.missed, 'event')} were lost because this command was too slow; --durable loses none"
            )
        await subscription.close()
        return came

    came = as_client(who, work)
    if came < count:
        tell(f"{came:,} of {counted(count, 'event')} came in {duration(timeout)}")
        raise typer.Exit(EXIT_REJECTS)


async def _forget(client: Client, type: str, name: str) -> bool:
    """Deletes a durable subscription; False if there is none of that name."""
    try:
        (done,) = await client.ask("forget", durable=name, type=type)
    except InputError:  # A broker of 0.1 does so only for who subscribes with the same condition.
        known = {row["name"]: row for row in await client.ask("durables")}
        if name not in known:
            return False
        subscription = await client.subscribe(type, known[name]["condition"], durable=name).ready()
        await subscription.close(forget=True)
        return True
    if "type" in done:
        raise InputError(f"the durable subscription {name!r} is for {done['type']}, not {type}; nothing was deleted")
    return bool(done["forgotten"])


async def _print_events(subscription: Subscription, count: int, within_s: float, output: Output) -> int:
    """Until there are enough or the time is up; returns how many there were."""
    import asyncio

    came = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within_s or None):
            async for event in subscription:
                show_event(event, output)
                came += 1
                if came == count:
                    break
    return came


def show_event(event: Received, output: Output) -> None:
    """One event on one line."""
    from tidings.events import to_record

    row: Row = {
        "id": event.id,
        "type": event.type,
        "time": event.at.iso(),
        **({"position": event.position} if event.position else {}),
        "data": dict(sorted(to_record(event.values).items())),
    }
    if output is Output.JSON:
        show([row], output)
    else:
        data = printable(json.dumps(row["data"], ensure_ascii=False, default=str))
        print(event.at.iso(), printable(event.type), data, flush=True)
