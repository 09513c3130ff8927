"""`tidings publish`: sends events to one's broker."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidings.cli.network.event_files import AT_ONCE, STDIN, Part, given, parts, source_size
from tidings.cli.network.session import AsOption, as_client, complete_type
from tidings.cli.terminal import EXIT_REJECTS, Output, OutputOption, progress_bar, show, tell
from tidings.cli.units import count, duration
from tidings.errors import InputError, RateLimited

if TYPE_CHECKING:
    from tidings.net import Client


def publish(
    type: Annotated[
        str,
        typer.Argument(metavar="TYPE", help="The event type, as the broker knows it.", autocompletion=complete_type),
    ],
    events: Annotated[
        list[str] | None, typer.Argument(metavar="JSON...", help="Each event's values as a JSON object; - reads stdin.")
    ] = None,
    who: AsOption = None,
    files: Annotated[
        list[str] | None,
        typer.Option(
            "--file",
            metavar="FILE",
            help="JSON lines, CSV or Parquet, by its ending; - reads JSON lines from stdin. May be repeated.",
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print no event ids.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Publish events; the command ends when the broker has all of them on disk.

    An event that does not fit its type is reported and skipped, and the exit code is then 1. From stdin, events
    are published as they arrive.

    \b
    Examples:
      tidings publish Numberplate '{"plate": "AB12CDE", "speed": 31.0}' --as police/camera/client.toml
      tidings publish Numberplate --file seen.jsonl --file more.parquet -q
      camera | tidings publish Numberplate -
    """
    texts = [text for text in events or [] if text != STDIN]
    sources = [*(files or []), *([STDIN] if STDIN in (events or []) else [])]
    if not texts and not sources:
        raise InputError("expected events as JSON, --file FILE, or - to read JSON lines from stdin")
    publishing = _Publishing(type, output, quiet)

    async def work(client: Client) -> None:
        await publishing.run(client, texts, sources)

    try:
        as_client(who, work)
    except KeyboardInterrupt:
        tell(f"stopped; {count(publishing.published, 'event')} were published")
        raise
    publishing.tell_summary()
    if publishing.rejected:
        raise typer.Exit(EXIT_REJECTS)


class _Publishing:
    """One run of the command: what it has published so far."""

    def __init__(self, type: str, output: Output, quiet: bool) -> None:
        self._type, self._output, self._quiet = type, output, quiet
        self.published = self.rejected = 0
        self._began = time.monotonic()
        self._is_header_due = True
        self._run, self._numbers, self._is_slowed = secrets.token_hex(8), itertools.count(), False

    async def run(self, client: Client, texts: list[str], sources: list[str]) -> None:
        event_type = await client.event_type(self._type)
        self._began = time.monotonic()
        if texts:
            await self._publish(client, given(texts, event_type))
        for source in sources:
            with self._progress(source) as advance:
                async for part in parts(source, event_type):
                    await self._publish(client, part)
                    advance(part.bytes_read)

    def _progress(self, source: str) -> AbstractContextManager[Callable[[int], None]]:
        return progress_bar("stdin" if source == STDIN else source, source_size(source))

    async def _publish(self, client: Client, part: Part) -> None:
        for where, why in part.wrong:
            tell(f"{where}: {why}")
        self.rejected += len(part.wrong)
        ids = await self._in_time(client, part.values)
        self.published += len(ids)
        if not self._quiet:
            self._show(ids)

    async def _in_time(self, client: Client, values: list[dict[str, Any]]) -> list[str]:
        """Publishes, and waits where the broker takes no more now; what it has taken already is not sent again."""
        names = [f"{self._run}.{next(self._numbers)}" for _ in values]
        ids: list[str] = []
        while len(ids) < len(values):
            end = len(ids) + AT_ONCE
            try:
                ids += await client.publish_many(self._type, values[len(ids) : end], names=names[len(ids) : end])
            except RateLimited as refused:
                self._tell_once(refused)
                await asyncio.sleep(refused.retry_after_s)
        return ids

    def _tell_once(self, refused: RateLimited) -> None:
        if not self._is_slowed:
            tell(f"{refused}; going on at that pace")
        self._is_slowed = True

    def _show(self, ids: list[str]) -> None:
        """In a table of one column, only the first part has a header."""
        if not ids:
            return
        if self._output is Output.JSON or self._is_header_due:
            show(({"id": id} for id in ids), self._output)
        else:
            print(*ids, sep="\n", flush=True)
        self._is_header_due = False

    def tell_summary(self) -> None:
        if self.published + self.rejected == 1:
            return
        rejected = f"; {count(self.rejected, 'record')} skipped" if self.rejected else ""
        took_s = time.monotonic() - self._began
        tell(
            f"published {count(self.published, 'event')} in {duration(took_s)} ({self.published / took_s:,.0f}/s){rejected}"
        )
