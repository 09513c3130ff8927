"""Hostile batches: columns that lie about their size, type or content are refused before anything is made of them."""

from __future__ import annotations

import asyncio
import struct
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.live.together import Together
from tidings.errors import EventError, InputError
from tidings.events import (
    EventColumns,
    EventType,
    Timestamp,
    columns_of_rows,
    rows_of_columns,
    rows_of_records,
    values_of_columns,
)
from tidings.net import DevNetwork
from tidings.net.transport.frames import PublishBatch

PLATE = EventType("Plate", plate=str, speed=float, lane=int, seen=bool, at=Timestamp, photo=bytes)
RECORDS: list[dict[str, Any]] = [
    {"plate": "AB1", "speed": 1.5, "lane": 2, "seen": True, "at": Timestamp(7), "photo": b"\x00"},
    {"plate": "ÄÖ", "lane": -3},
    {"plate": "", "speed": float("inf"), "seen": False},
]


def sent() -> EventColumns:
    rows = rows_of_records(RECORDS, PLATE)
    assert rows is not None
    return columns_of_rows(rows)


def with_column(column: str, /, **changed: Any) -> EventColumns:
    columns = tuple(msgspec.structs.replace(c, **changed) if c.name == column else c for c in sent().columns)
    return EventColumns(3, columns)


def test_columns_come_back_as_the_records_they_were() -> None:
    assert values_of_columns(sent()) == RECORDS
    assert rows_of_columns(sent(), PLATE).equals(rows_of_records(RECORDS, PLATE))


LIES = {
    "more rows than there are": EventColumns(4, sent().columns),
    "fewer rows than there are": EventColumns(2, sent().columns),
    "no rows": EventColumns(0, ()),
    "a negative number of rows": EventColumns(-1, sent().columns),
    "a billion rows of nothing": EventColumns(1 << 30, ()),
    "a number of rows beyond 64 bits": EventColumns(1 << 63, ()),
    "a column twice": EventColumns(3, (*sent().columns, sent().columns[0])),
    "a column that the type does not have": with_column("plate", name="owner"),
    "an int as a time": with_column("lane", name="at"),
    "a text as bytes": with_column("plate", kind="bytes"),
    "a kind that is not flat": with_column("plate", kind="array<string>"),
    "a dictionary": with_column("plate", kind="dictionary<int,string>"),
    "marks of rows that are too long": with_column("lane", validity=b"\xff\xff"),
    "values that are too short": with_column("lane", values=bytes(8)),
    "values that are too long": with_column("lane", values=bytes(1000)),
    "bytes behind the last text": with_column("plate", values=b"AB1\xc3\x84\xc3\x96more"),
    "a text that begins before the column": with_column("plate", offsets=struct.pack("<4i", -1, 3, 7, 7)),
    "texts that overlap backwards": with_column("plate", offsets=struct.pack("<4i", 0, 7, 3, 7)),
    "a text that ends two gigabytes away": with_column("plate", offsets=struct.pack("<4i", 0, 3, 7, 2**31 - 1)),
    "an offset beyond the column in the middle": with_column("plate", offsets=struct.pack("<4i", 0, 2**30, 7, 7)),
    "offsets of numbers": with_column("lane", offsets=bytes(16)),
    "bytes that are no UTF-8": with_column("plate", values=b"AB1\xff\xfe\xfd\xfc"),
    "half a surrogate pair": with_column("plate", values=b"AB1\xed\xa0\x80x"),
    "too many bytes": with_column("plate", values=bytes(2 << 20)),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_about_columns_is_refused(lie: str) -> None:
    with pytest.raises(EventError):
        rows_of_columns(LIES[lie], PLATE)


def test_a_missing_attribute_is_refused_where_it_is_required() -> None:
    needed = EventType.from_arrow("Plate", pa.schema([pa.field("plate", pa.string(), nullable=False)]))
    with pytest.raises(EventError, match="required"):
        rows_of_columns(EventColumns(3, ()), needed)


def test_few_bytes_do_not_become_many_cells() -> None:
    wide = EventType("Wide", **{f"a{n}": int for n in range(4000)})
    with pytest.raises(EventError, match="rows"):
        rows_of_columns(EventColumns(4096, ()), wide)


@given(st.integers(0, 5), st.sampled_from(["validity", "offsets", "values"]), st.binary(max_size=64), st.integers(0, 9))
def test_any_bytes_are_refused_or_are_values_of_the_type(at: int, part: str, raw: bytes, rows: int) -> None:
    columns = [*sent().columns]
    columns[at] = msgspec.structs.replace(columns[at], **{part: raw})
    try:
        found = rows_of_columns(EventColumns(rows, tuple(columns)), PLATE)
    except EventError:
        return
    for values in values_of_columns(columns_of_rows(found)):
        assert PLATE.check(values) == values or "nan" in str(values)


def batch(name: str, columns: EventColumns, ticket: int) -> PublishBatch:
    return PublishBatch(ticket, "Numberplate", name, columns)


@pytest.mark.live
def test_a_broker_refuses_hostile_batches_and_serves_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Together(tmp_path, DevNetwork(first_port=0, brokers={"police": 1})) as network:
            camera = await network.client("police/camera")
            number = await camera.event_type("Numberplate")
            rows = rows_of_records([{"plate": f"AB{n}", "speed": 1.0} for n in range(20)], number)
            assert rows is not None
            good = columns_of_rows(rows)
            for lie in (
                EventColumns(21, good.columns),
                EventColumns(-5, good.columns),
                EventColumns(1 << 62, ()),
                EventColumns(20, (*good.columns, good.columns[0])),
                EventColumns(20, (msgspec.structs.replace(good.columns[0], kind="map<string,int>"),)),
            ):
                with pytest.raises(InputError):
                    await camera.request(partial(batch, "lie", lie))
            with pytest.raises(InputError, match="name"):
                await camera.request(partial(batch, "x" * 1_000_000, good))
            broker = network.brokers["police-1"]
            assert broker.counts["published"] == 0
            assert broker.journal.next_event == 1
            answer = await camera.request(partial(batch, "true", good))
            again = await camera.request(partial(batch, "true", good))
            assert (answer.numbers, answer.incarnations) == (again.numbers, again.incarnations)
            assert broker.counts["published"] == 20

    asyncio.run(scenario())
