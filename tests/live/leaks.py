"""Whether a protected value has left: values with a mark in them, and a search for the marks in what was captured.

A mark is in every protected value, so a value cannot pass without it; and it is long enough that sealed
bytes do not show it by chance. The search is trusted because it finds the marks where they may be.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

CHUNK_BYTES = 1 << 24
AREA_MARK = b"Qz7-area-k4VwXp"
SPEED_MARK = b"\x5e\xc3\x1d\x97\xe2\x4b"  # The last six bytes of every speed.
PLATE_MARK = b"AB-plate-"  # Not protected from anybody with a right to plates.
MARKS = {"area": (AREA_MARK,), "speed": (SPEED_MARK, SPEED_MARK[::-1]), "plate": (PLATE_MARK,)}


def area(name: str) -> str:
    """An area's name that cannot be mistaken for anything else."""
    return f"{AREA_MARK.decode()}-{name}"


def speed(about: float) -> float:
    """A number near this one, with the mark in its last digits."""
    header = struct.pack(">d", about)[:2]
    return float(struct.unpack(">d", header + SPEED_MARK)[0])


def plate(number: int) -> str:
    return f"{PLATE_MARK.decode()}{number}"


def found_in(files: Iterable[Path], of: str) -> list[Path]:
    """The files in which a value of this attribute can be seen."""
    return [file for file in files if any(_holds(file, mark) for mark in MARKS[of])]


def _holds(file: Path, mark: bytes) -> bool:
    return any(mark in chunk for chunk in _overlapping(file, len(mark) - 1))


def _overlapping(file: Path, overlap: int) -> Iterator[bytes]:
    """A file in pieces, each beginning with the end of the one before."""
    tail = b""
    with file.open("rb") as stream:
        while chunk := stream.read(CHUNK_BYTES):
            yield tail + chunk
            tail = chunk[-overlap:]
