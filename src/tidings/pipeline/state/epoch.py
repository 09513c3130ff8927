"""Epochs: which run owns a checkpoint. There is no lock; a later run fences the earlier ones.

A run claims the next epoch by a file that it creates only if it is absent, `epochs/000000007.json`. From then on every
earlier run is **stale**: before it writes anything it looks for a newer epoch, and stops with an error if there is one.
A run may be paused between the look and the write, so two more things hold whatever the timing:

    records are put if absent   of two runs that begin, change or commit the same batch one wins, and the other sees it
    each epoch has a Spark      the new run copies Spark's checkpoint to a folder of its own, so what a stale
    checkpoint of its own       run's Spark still writes reaches nobody

Where the last owner is a living process of this host, a new run is refused instead: two runs were started by mistake.
A host that died or lost its network cannot be asked, and its checkpoint is taken over.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from tidings.errors import InputError, SetupError
from tidings.pipeline.session import is_connect
from tidings.pipeline.storage import Storage, copy_folder, decoded, storage_at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FOLDER, SPARK_FOLDER = "epochs", "spark"
CLAIMS_MAX = 100  # Runs that start at one moment; each claim is lost to another run.
SPARK_ENDS_S_MAX = 30.0  # A Spark whose driver program was killed notices at once, and takes a moment to stop.
SPARK_ENDS_POLL_S = 0.1


class StaleRun(InputError):
    """A later run owns the checkpoint; this one must write nothing more."""


class EpochRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An epoch and its owner. `pipeline` is the same for all epochs of a checkpoint, `token` for no two."""

    number: int
    pipeline: str
    token: str
    host: str
    process: str
    spark: str = ""
    started: str = ""

    def owner(self) -> str:
        return f"process {self.process.partition(':')[0]} on {self.host}, started {self.started}"


class Epoch:
    """The epoch that this run owns."""

    def __init__(self, storage: Storage, record: EpochRecord) -> None:
        self.storage, self.record = storage, record
        _open.add(record.token)

    @property
    def number(self) -> int:
        return self.record.number

    @property
    def pipeline(self) -> str:
        return self.record.pipeline

    @classmethod
    def claim(cls, checkpoint: str, spark: SparkSession | None = None) -> Epoch:
        """Takes over the checkpoint. Raises InputError if its owner is a living process of this host, or SetupError."""
        storage = storage_at(checkpoint, spark)
        try:
            storage.make_folder(FOLDER)
            _check_exclusive(storage)
        except SetupError as wrong:
            raise SetupError(f"cannot write the checkpoint: {wrong}") from None
        for _ in range(CLAIMS_MAX):
            last = _latest(storage)
            if last is not None:
                _check_ended(last, checkpoint)
            record = EpochRecord(
                number=last.number + 1 if last else 1,
                pipeline=last.pipeline if last else uuid.uuid4().hex,
                token=uuid.uuid4().hex,
                host=_host(),
                process=_process(os.getpid()),
                spark=_process(_spark_process(spark)) if spark and not is_connect(spark) else "",
                started=time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
            )
            if storage.put_if_absent(_name(record.number), msgspec.json.encode(record)):
                return cls(storage, record)
        raise InputError(f"the checkpoint {checkpoint!r} is claimed by many runs at once; stop all but one")

    def check(self) -> None:
        """Raises StaleRun if a later run has claimed the checkpoint."""
        newer = _read(self.storage, self.number + 1) or _latest(self.storage)
        if newer is not None and newer.number > self.number:
            raise StaleRun(
                f"another run has taken over the checkpoint {self.storage.root.text!r} ({newer.owner()}); this one stops"
            )

    def own_spark_checkpoint(self) -> str:
        """The folder of this epoch's Spark checkpoint, with a copy of the one before. Deletes those of older epochs."""
        mine, storage = self._spark_folder(self.number), self.storage
        ready = sorted(number for number in _numbers(storage, ".ready") if number < self.number)
        before = self._spark_folder(ready[-1]) if ready else SPARK_FOLDER  # 0.1 had only one.
        copy_folder(storage, before, mine)
        self.check()
        storage.put(f"{FOLDER}/{self.number:09}.ready", b"")
        self._delete_older(ready[-1] if ready else 0)
        return storage.root.below(mine).text

    def _delete_older(self, before: int) -> None:
        """The one before stays: a listing that lags may not show the new one yet."""
        numbers = {*_numbers(self.storage, ".json"), *_numbers(self.storage, ".ready")}
        for number in sorted(number for number in numbers if number not in (before, self.number, self.number - 1)):
            for name in (self._spark_folder(number), f"{FOLDER}/{number:09}.ready", _name(number)):
                self.storage.delete(name)

    def close(self) -> None:
        """The next run of this process may claim the checkpoint."""
        _open.discard(self.record.token)

    def _spark_folder(self, number: int) -> str:
        return f"{SPARK_FOLDER}-{number:09}"


_open: set[str] = set()  # Tokens of epochs that this process owns and has not closed.


def _check_exclusive(storage: Storage) -> None:
    """Raises SetupError on a store that does not refuse to create a file twice, as some that resemble S3 do not."""
    probe = f"{FOLDER}/probe-{uuid.uuid4().hex}"
    storage.put_if_absent(probe, b"first")
    refuses = not storage.put_if_absent(probe, b"second")
    storage.delete(probe)
    if not refuses:
        raise SetupError(
            f"{storage.root}: this store overwrites where it should refuse (If-None-Match); "
            "choose another store for the checkpoint"
        )


def _check_ended(last: EpochRecord, checkpoint: str) -> None:
    """Raises InputError if the last owner still runs here; waits for a Spark that outlived its driver program."""
    if last.host != _host():
        return
    if last.process == _process(os.getpid()):
        if last.token in _open:
            raise InputError(f"the checkpoint {checkpoint!r} is in use by another run in this process; stop it first")
        return
    if _runs(last.process):
        raise InputError(f"the checkpoint {checkpoint!r} is in use by another run ({last.owner()}); stop it first")
    deadline = time.monotonic() + SPARK_ENDS_S_MAX
    while _runs(last.spark):
        if time.monotonic() > deadline:
            number = last.spark.partition(":")[0]
            raise InputError(f"the Spark of an earlier run still uses {checkpoint!r} (process {number}); end it first")
        time.sleep(SPARK_ENDS_POLL_S)


def _latest(storage: Storage) -> EpochRecord | None:
    number = max(_numbers(storage, ".json"), default=0)
    found = _read(storage, number) if number else None
    while (newer := _read(storage, number + 1)) is not None:  # A listing may lag; numbers are consecutive.
        number, found = number + 1, newer
    return found


def _numbers(storage: Storage, ending: str) -> list[int]:
    names = (file.name.rpartition("/")[2] for file in storage.list(FOLDER))
    return [int(stem) for name in names if name.endswith(ending) and (stem := name.removesuffix(ending)).isdigit()]


def _read(storage: Storage, number: int) -> EpochRecord | None:
    content = storage.read(_name(number))
    return decoded(storage, _name(number), content, EpochRecord) if content is not None else None


def _name(number: int) -> str:
    return f"{FOLDER}/{number:09}.json"


def _host() -> str:
    return socket.gethostname()


def _process(number: int) -> str:
    """The number of a process with the moment of its start: numbers are reused, in containers even at once."""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        about = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
        return f"{number}:{about[19]}:{boot}" if about[0] != "Z" else ""
    return ""


def _runs(process: str) -> bool:
    number = process.partition(":")[0]
    return bool(number) and _process(int(number)) == process


def _spark_process(spark: SparkSession) -> int:
    jvm: Any = spark.sparkContext._jvm
    return int(jvm.java.lang.ProcessHandle.current().pid())
