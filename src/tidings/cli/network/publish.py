"""`tidings publish`: sends events to one's broker."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidings.cli.network.broker import AsOption, as_client
from tidings.cli.terminal import EXIT_REJECTS, Output, OutputOption, show, tell
from tidings.errors import InputError
from tidings.events import read_values

if TYPE_CHECKING:
    from tidings.events import EventType
    from tidings.net import Client

AT_ONCE = 1000
STDIN = "-"


def publish(
    type: Annotated[str, typer.Argument(metavar="TYPE", help="The event type, as the broker knows it.")],
    events: Annotated[
        list[str] | None, typer.Argument(metavar="JSON...", help="Each event's values as a JSON object.")
    ] = None,
    who: AsOption = Path("client.toml"),
    file: Annotated[str | None, typer.Option("--file", metavar="FILE", help="JSON lines; - reads stdin.")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Publish events; the command ends when the broker has all of them on disk.

    An event that does not fit its type is reported and skipped, and the exit code is then 1.

    \b
    Examples:
      tidings publish Numberplate '{"plate": "AB12CDE", "speed": 31.0}' --as police/camera/client.toml
      tidings publish Numberplate --file seen.jsonl --as police/camera/client.toml -o json
    """
    if not events and file is None:
        raise InputError("expected events as JSON, or --file with JSON lines")

    async def work(client: Client) -> int:
        event_type = await client.event_type(type)
        rejected = 0
        for part in _parts(_texts(events or [], file)):
            values, wrong = _read(part, event_type)
            rejected += len(wrong)
            ids = await client.publish_many(type, values)
            show(({"id": id} for id in ids), output)
            for where, why in wrong:
                tell(f"{where}: {why}")
        return rejected

    if as_client(who, work):
        raise typer.Exit(EXIT_REJECTS)


def _texts(events: list[str], file: str | None) -> Iterator[tuple[str, str]]:
    yield from ((f"event {number}", text) for number, text in enumerate(events, 1))
    if file == STDIN:
        yield from _lines(sys.stdin)
    elif file is not None:
        with open(file, encoding="utf-8") as stream:
            yield from _lines(stream)


def _lines(stream: Iterable[str]) -> Iterator[tuple[str, str]]:
    return ((f"line {number}", line) for number, line in enumerate(stream, 1) if line.strip())


def _parts(texts: Iterator[tuple[str, str]]) -> Iterator[list[tuple[str, str]]]:
    while part := list(islice(texts, AT_ONCE)):
        yield part


def _read(part: list[tuple[str, str]], event_type: EventType) -> tuple[list[dict[str, Any]], list[tuple[str, str]]]:
    values: list[dict[str, Any]] = []
    wrong: list[tuple[str, str]] = []
    for where, text in part:
        try:
            values.append(dict(read_values(text, event_type)))
        except InputError as error:
            wrong.append((where, str(error)))
    return values, wrong
