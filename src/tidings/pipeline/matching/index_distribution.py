"""A folder of files on every host, once: written by the driver, unpacked where it is missing, mapped by all workers.

Executors share no disk with the driver and no memory with each other. So the files travel
as a broadcast, which Spark sends to each executor once and a worker reads only if its host
does not have the folder yet. Folders are named by the hash of what they hold: a host has
one copy of each, however many executors and workers it runs, and the operating system keeps
one copy of its pages in memory.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tidings.errors import SetupError
from tidings.pipeline.session import is_local

if TYPE_CHECKING:
    from pyspark import Broadcast
    from pyspark.sql import SparkSession

KEPT_S_MAX = 24 * 3600  # A folder nobody opened for a day belongs to a job that has ended.
_CHUNK = 1 << 20


class Shipment:
    """A folder on its way to every host. Pickles small: the content is in the broadcast."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.digest = _digest(folder)
        self._origin = str(folder)
        # In local mode every worker sees the driver's own folder, and nothing needs to travel.
        content = (
            {} if is_local(spark) else {str(file.relative_to(folder)): file.read_bytes() for file in _files(folder)}
        )
        self.size = sum(file.stat().st_size for file in _files(folder))
        self._travels = bool(content)
        self._content: Broadcast[dict[str, bytes]] = spark.sparkContext.broadcast(content)

    def folder(self) -> Path:
        """Where the files are on this host; unpacks them if nobody did before."""
        if not self._travels:
            return Path(self._origin)
        folder = _host_folder() / self.digest
        if not folder.exists():
            _sweep(folder.parent)
            _unpack(self._content.value, folder)
        os.utime(folder)
        return folder

    def recall(self) -> None:
        """Frees what Spark keeps; workers that have the files open keep them."""
        self._content.unpersist()


def _files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.is_file())


def _digest(folder: Path) -> str:
    hasher = hashlib.blake2b(digest_size=16)
    for file in _files(folder):
        hasher.update(f"{file.relative_to(folder)}:{file.stat().st_size}:".encode())
        with file.open("rb") as content:
            while chunk := content.read(_CHUNK):
                hasher.update(chunk)
    return hasher.hexdigest()


def _host_folder() -> Path:
    """Ours alone: a folder that another user made in our place is not to be trusted."""
    folder = Path(tempfile.gettempdir()) / f"tidings-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid() or folder.is_symlink():
        raise SetupError(f"{folder} belongs to another user; remove it, or set TMPDIR to a folder of your own")
    return folder


def _unpack(content: dict[str, bytes], folder: Path) -> None:
    """All files or none: written aside, then renamed. Of two workers that do this at once, one wins; both are right."""
    aside = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    try:
        for name, data in content.items():
            (aside / name).parent.mkdir(exist_ok=True)
            (aside / name).write_bytes(data)
        aside.rename(folder)
    except OSError:
        shutil.rmtree(aside, ignore_errors=True)
        if not folder.exists():
            raise


def _sweep(parent: Path) -> None:
    for folder in parent.iterdir():
        try:
            if time.time() - folder.stat().st_mtime > KEPT_S_MAX:
                shutil.rmtree(folder, ignore_errors=True)
        except FileNotFoundError:  # Another worker sweeps, too.
            continue
