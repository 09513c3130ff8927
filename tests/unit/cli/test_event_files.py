"""Events from files: JSON lines, CSV and Parquet give the same events, and what does not fit is named."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidings import EventType, Timestamp
from tidings.cli.network.event_files import CHUNK_BYTES, LINE_BYTES_MAX, Part, parts
from tidings.errors import InputError
from tidings.events import Required

PLATE = EventType("Plate", plate=Required(str), lane=int, speed=float, ok=bool, seen=Timestamp)
SEEN = "2026-11-18T04:00:00Z"
EVENTS: list[dict[str, Any]] = [
    {"plate": "A,1", "lane": 2, "speed": 31.5, "ok": True, "seen": Timestamp(SEEN)},
    {"plate": "B", "speed": 4.0},
]


def read(file: Path) -> list[Part]:
    async def all_parts() -> list[Part]:
        return [part async for part in parts(str(file), PLATE)]

    return asyncio.run(all_parts())


def test_all_formats_give_the_same_events(tmp_path: Path) -> None:
    lines = (
        f'{{"plate": "A,1", "lane": 2, "speed": 31.5, "ok": true, "seen": "{SEEN}"}}\n\n{{"plate": "B", "speed": 4}}'
    )
    (tmp_path / "e.jsonl").write_text(lines)
    (tmp_path / "e.csv").write_text(f'plate,lane,speed,ok,seen\n"A,1",2,31.5,true,{SEEN}\nB,,4,,\n')
    columns = {"plate": ["A,1", "B"], "lane": [2, None], "speed": [31.5, 4.0], "ok": [True, None], "other": [1, 2]}
    seen = pa.array([int(Timestamp(SEEN)), None], pa.timestamp("us", "UTC"))
    pq.write_table(pa.table({**columns, "seen": seen}), tmp_path / "e.parquet")
    for name in ("e.jsonl", "e.csv", "e.parquet"):
        found = [event for part in read(tmp_path / name) for event in part.values]
        assert found == EVENTS, name


def test_times_that_spark_wrote_as_int96_keep_their_year(tmp_path: Path) -> None:
    never = Timestamp("9999-12-31T00:00:00Z")
    rows = pa.table({"plate": ["A"], "seen": pa.array([int(never)], pa.timestamp("us"))})
    pq.write_table(rows, tmp_path / "e.parquet", use_deprecated_int96_timestamps=True)
    assert [part.values for part in read(tmp_path / "e.parquet")] == [[{"plate": "A", "seen": never}]]


def test_what_does_not_fit_is_named_by_its_line_and_the_rest_is_read(tmp_path: Path) -> None:
    (tmp_path / "e.jsonl").write_text('{"plate": "A"}\n{"plat": 1}\nnot json\n{"plate": "B"}\n')
    (part,) = read(tmp_path / "e.jsonl")
    assert [event["plate"] for event in part.values] == ["A", "B"]
    assert [where for where, _ in part.wrong] == [f"{tmp_path / 'e.jsonl'}: line {n}" for n in (2, 3)]
    (tmp_path / "e.csv").write_text("plate,speed\nA,fast\nB,1,2\nC,3\n")
    (part,) = read(tmp_path / "e.csv")
    assert [where.rpartition(" ")[2] for where, _ in part.wrong] == ["2", "3"]


def test_lines_are_whole_however_the_chunks_fall(tmp_path: Path) -> None:
    plates = [f"{'x' * (n % 977)}{n}" for n in range(2000)]
    text = "".join(f'{{"plate": "{plate}"}}\n' for plate in plates)
    assert len(text) > 2 * CHUNK_BYTES
    (tmp_path / "e.jsonl").write_text(text)
    found = read(tmp_path / "e.jsonl")
    assert [event["plate"] for part in found for event in part.values] == plates
    assert sum(part.bytes_read for part in found) == len(text)


def test_a_pipe_is_read_as_it_arrives(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = os.open(pipe, os.O_RDWR)

    async def first_and_rest() -> tuple[Part, list[Part]]:
        coming = parts(str(pipe), PLATE)
        os.write(writer, b'{"plate": "A"}\n{"pla')
        first = await anext(coming)
        os.write(writer, b'te": "B"}')
        os.close(writer)
        return first, [part async for part in coming]

    first, rest = asyncio.run(first_and_rest())
    assert [event["plate"] for event in first.values] == ["A"]
    assert [event["plate"] for part in rest for event in part.values] == ["B"]


def test_a_line_without_end_is_refused(tmp_path: Path) -> None:
    (tmp_path / "e.jsonl").write_bytes(b"x" * (LINE_BYTES_MAX + 2 * CHUNK_BYTES))
    with pytest.raises(InputError, match="a line is longer than 16,777,216 bytes"):
        read(tmp_path / "e.jsonl")
