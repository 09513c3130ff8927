"""What was done, on disk: which subscriptions each batch goes by, and what came of it.

A batch's entry is written twice, each time as a whole or not at all. Before the work: the
version of the subscriptions, so that a batch which is run again after a crash goes by the
same ones. After it: the counts, which make the batch done.

The checkpoint belongs to one run at a time, by a lock that ends with its process, however
that ends.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tidings.errors import InputError, SetupError


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """Events that came in: each delivered to somebody, wanted by nobody, or quarantined. And deliveries."""

    events: int = 0
    delivered_from: int = 0
    unmatched: int = 0
    quarantined: int = 0
    deliveries: int = 0

    def __add__(self, other: Counts) -> Counts:
        mine, theirs = msgspec.structs.astuple(self), msgspec.structs.astuple(other)
        return Counts(**{name: a + b for name, a, b in zip(self.__struct_fields__, mine, theirs)})

    def add_up(self) -> bool:
        return self.events == self.delivered_from + self.unmatched + self.quarantined


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One batch: the version it goes by and, once it is done, its counts."""

    version: int
    counts: Counts | None = None


class Ledger:
    """The entries of one pipeline. Raises SetupError where the folder cannot be written, InputError where it is in use."""

    def __init__(self, checkpoint: str) -> None:
        self.folder = Path(checkpoint) / "batches"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = (Path(checkpoint) / "lock").open("w")
        except OSError as wrong:
            raise SetupError(f"cannot write the checkpoint {checkpoint!r}: {wrong.strerror}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InputError(f"the checkpoint {checkpoint!r} is in use by another run; stop that one first") from None

    def __getitem__(self, batch: int) -> Entry | None:
        file = self._file(batch)
        return msgspec.json.decode(file.read_bytes(), type=Entry) if file.exists() else None

    def __setitem__(self, batch: int, entry: Entry) -> None:
        write_whole(self._file(batch), msgspec.json.encode(entry))

    def __iter__(self) -> Iterator[Entry]:
        for file in sorted(self.folder.glob("*.json")):
            yield msgspec.json.decode(file.read_bytes(), type=Entry)

    def totals(self) -> Counts:
        """Over all batches that are done, in this run and earlier ones."""
        return sum((entry.counts for entry in self if entry.counts), Counts())

    def close(self) -> None:
        self._lock.close()

    def _file(self, batch: int) -> Path:
        return self.folder / f"{batch:09}.json"


def write_whole(file: Path, content: bytes) -> None:
    """The file has this content afterwards, or what it had before, even if the power fails in between."""
    aside = file.with_name(f".{file.name}")
    with aside.open("wb") as out:
        out.write(content)
        out.flush()
        os.fsync(out.fileno())
    aside.replace(file)
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
