"""Events from files and stdin, for `tidings publish`: JSON lines, CSV and Parquet.

Each source is read in parts, as `Part`s of checked values and of records that do not fit. Stdin is read as it arrives:
a program that writes an event a minute has each published within that minute.
"""

from __future__ import annotations

import asyncio
import csv
import os
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from tidings.errors import EventError, InputError
from tidings.events import EventType, ValueType, read_values, typed

AT_ONCE = 1000
CHUNK_BYTES = 1 << 18
LINE_BYTES_MAX = 16 << 20  # Four of the largest frames: no event is longer.
STDIN = "-"

Record: TypeAlias = tuple[str, Any]  # Where it is, and what it is.
Reader: TypeAlias = Callable[[Any], dict[str, Any]]  # From a record to checked values; raises InputError.


class Part(NamedTuple):
    """Some events of a source, the records that are none, and how many bytes of the source are behind them."""

    values: list[dict[str, Any]]
    wrong: list[tuple[str, str]]
    bytes_read: int = 0


def given(events: list[str], event_type: EventType) -> Part:
    """Events that were typed as arguments."""
    return _checked(((f"event {n}", text) for n, text in enumerate(events, 1)), _json_reader(event_type))


def source_size(file: str) -> int | None:
    """How many bytes a source has; None if that is not known before it ends."""
    return Path(file).stat().st_size if file != STDIN and Path(file).is_file() else None


def parts(file: str, event_type: EventType) -> AsyncIterator[Part]:
    """The events of a file, by its ending, or of stdin."""
    match Path(file).suffix.lower():
        case ".csv":
            return _each(_of_csv(Path(file), event_type))
        case ".parquet":
            return _each(_of_parquet(Path(file), event_type))
    return _of_lines(file, event_type)


async def _each(some: Iterator[Part]) -> AsyncIterator[Part]:
    for part in some:
        yield part


async def _of_lines(file: str, event_type: EventType) -> AsyncIterator[Part]:
    read, number = _json_reader(event_type), 0
    descriptor = 0 if file == STDIN else os.open(file, os.O_RDONLY)
    prefix = "" if file == STDIN else f"{file}: "
    try:
        async for lines in _arriving(descriptor, prefix):
            numbered = [(f"{prefix}line {n}", line) for n, line in enumerate(lines, number + 1) if line.strip()]
            number += len(lines)
            yield _checked(numbered, read, sum(map(len, lines)) + len(lines))
    finally:
        if descriptor:
            os.close(descriptor)


async def _arriving(descriptor: int, prefix: str) -> AsyncIterator[list[bytes]]:
    """Whole lines, as many as are there; the last one need not have an end."""
    rest = b""
    while True:
        await _readable(descriptor)
        chunk = os.read(descriptor, CHUNK_BYTES)
        *lines, rest = (rest + chunk).split(b"\n")
        if not chunk and rest:
            lines, rest = [rest], b""
        if lines:
            yield lines
        if not chunk:
            return
        if len(rest) > LINE_BYTES_MAX:
            raise InputError(f"{prefix}a line is longer than {LINE_BYTES_MAX:,} bytes; expected one event on each line")


async def _readable(descriptor: int) -> None:
    """Waits until there is something to read, or the end; a file always has one or the other."""
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    try:
        loop.add_reader(descriptor, ready.set)
    except PermissionError:
        return
    try:
        await ready.wait()
    finally:
        loop.remove_reader(descriptor)


def _of_csv(file: Path, event_type: EventType) -> Iterator[Part]:
    def read(record: dict[str, Any]) -> dict[str, Any]:
        if None in record:
            raise EventError("expected as many values as the first line has names")
        return event_type.check(typed(_from_texts(record, event_type), event_type))

    lengths: list[int] = []

    def counted(lines: Iterable[str]) -> Iterator[str]:
        for line in lines:
            lengths.append(len(line))
            yield line

    with file.open(encoding="utf-8", newline="") as stream:
        try:
            rows = csv.DictReader(counted(stream))
            numbered = ((f"{file}: line {rows.line_num}", row) for row in rows)
            while some := list(islice(numbered, AT_ONCE)):
                yield _checked(some, read, sum(lengths))
                lengths.clear()
        except (csv.Error, UnicodeDecodeError) as wrong:
            raise InputError(f"{file}: not CSV in UTF-8: {wrong}") from None


def _from_texts(record: dict[str, str | None], event_type: EventType) -> dict[str, Any]:
    """A line of CSV with numbers and truth values as such; an empty field is an absent value."""
    return {
        name: _PARSERS.get(event_type[name].type, str)(text) if name in event_type else text
        for name, text in record.items()
        if text
    }


def _number(text: str, parse: Callable[[str], Any]) -> Any:
    try:
        return parse(text)
    except ValueError:
        return text  # The check says what was expected.


_PARSERS: dict[ValueType, Callable[[str], Any]] = {
    ValueType.INT: lambda text: _number(text, int),
    ValueType.DOUBLE: lambda text: _number(text, float),
    ValueType.BOOL: lambda text: {"true": True, "false": False}.get(text.lower(), text),
}


def _of_parquet(file: Path, event_type: EventType) -> Iterator[Part]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from tidings.events import conform, row_values

    with file.open("rb") as stream:
        try:
            # Nanoseconds, Arrow's default for INT96 of Spark, end in 2262, and the year 9999 would be another one.
            opened = pq.ParquetFile(stream, coerce_int96_timestamp_unit="us")
            per_row = file.stat().st_size // max(1, opened.metadata.num_rows)
            for batch in opened.iter_batches(AT_ONCE):
                table = conform(pa.Table.from_batches([batch]), event_type)
                values = row_values(table, range(len(table)), event_type)
                yield Part([dict(row) for row in values], [], per_row * len(table))
        except (pa.ArrowException, EventError) as wrong:
            raise InputError(f"{file}: {wrong}") from None


def _json_reader(event_type: EventType) -> Reader:
    return lambda text: dict(read_values(text, event_type))


def _checked(records: Iterable[Record], read: Reader, bytes_read: int = 0) -> Part:
    values: list[dict[str, Any]] = []
    wrong: list[tuple[str, str]] = []
    for where, record in records:
        try:
            values.append(read(record))
        except InputError as error:
            wrong.append((where, str(error)))
    return Part(values, wrong, bytes_read)
