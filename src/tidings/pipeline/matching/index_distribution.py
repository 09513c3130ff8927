"""Distribution of an index: a folder of files, copied once to every host.

Executors share no disk with the driver and no memory with one another. The driver therefore broadcasts the files.
Spark sends a broadcast to each executor once, and a worker unpacks it only if its host does not have the folder
yet. A folder's name is the hash of its content, so a host has one copy however many executors and workers it
runs, and the operating system keeps one copy of its pages in memory.
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

KEPT_S_MAX = 24 * 3600  # A folder that nobody opened for a day belongs to a job that has ended.
_CHUNK = 1 << 20


class FolderBroadcast:
    """A folder that every host can open. Small to pickle: the content is in the broadcast."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.digest = folder_digest(folder)
        self._origin = str(folder)
        # In local mode every worker sees the driver's own folder, so nothing is sent.
        content = (
            {} if is_local(spark) else {str(file.relative_to(folder)): file.read_bytes() for file in _files(folder)}
        )
        self.size = sum(file.stat().st_size for file in _files(folder))
        self._is_sent = bool(content)
        self._content: Broadcast[dict[str, bytes]] = spark.sparkContext.broadcast(content)

    def folder(self) -> Path:
        """Where the files are on this host; unpacks them if they are not there yet."""
        if not self._is_sent:
            return Path(self._origin)
        folder = _host_folder() / self.digest
        if not folder.exists():
            remove_stale(folder.parent)
            unpack(self._content.value, folder)
        os.utime(folder)
        return folder

    def unpersist(self) -> None:
        """Frees Spark's copies; workers that have the files open keep them."""
        self._content.unpersist()


def folder_digest(folder: Path) -> str:
    """Equal for folders of equal content, by names, sizes and bytes."""
    hasher = hashlib.blake2b(digest_size=16)
    for file in _files(folder):
        hasher.update(f"{file.relative_to(folder)}:{file.stat().st_size}:".encode())
        with file.open("rb") as content:
            while chunk := content.read(_CHUNK):
                hasher.update(chunk)
    return hasher.hexdigest()


def unpack(content: dict[str, bytes], folder: Path) -> None:
    """Writes all files or none: to a temporary folder first, which is then renamed.

    If two workers do this at once, one of them wins and both find the same content.
    """
    temporary = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    try:
        for name, data in content.items():
            (temporary / name).parent.mkdir(exist_ok=True)
            (temporary / name).write_bytes(data)
        temporary.rename(folder)
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)
        if not folder.exists():
            raise


def remove_stale(parent: Path) -> None:
    """Deletes folders that no worker has opened for KEPT_S_MAX."""
    for folder in parent.iterdir():
        try:
            if time.time() - folder.stat().st_mtime > KEPT_S_MAX:
                shutil.rmtree(folder, ignore_errors=True)
        except FileNotFoundError:  # Another worker deletes stale folders, too.
            continue


def _files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.is_file())


def _host_folder() -> Path:
    """A folder that this user owns: one that another user made in its place is not to be trusted."""
    folder = Path(tempfile.gettempdir()) / f"tidings-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid() or folder.is_symlink():
        raise SetupError(f"{folder} belongs to another user; remove it, or set TMPDIR to a folder of your own")
    return folder
