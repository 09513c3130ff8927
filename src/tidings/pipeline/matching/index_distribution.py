"""Distribution of an index: a folder of files, copied once to every host.

Executors share no disk with the driver and no memory with one another. The driver therefore sends the files: as a
broadcast, or over Spark Connect, whose clients have none, as a file artifact of the session. Spark sends either to each
executor once. The first worker of a host unpacks it, under a lock that the others wait for, into the folder that Spark
was given for its local files. A folder's name is the hash of its content, so a host has one copy however many executors
and workers it runs, and the operating system keeps one copy of its pages in memory.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
import time
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark import SparkFiles

from tidings.errors import SetupError
from tidings.pipeline.session import is_connect, is_local

if TYPE_CHECKING:
    from pyspark import Broadcast
    from pyspark.sql import SparkSession

KEPT_S_MAX = 24 * 3600  # A folder that nobody opened for a day belongs to a job that has ended.
_CHUNK = 1 << 20


class FolderBroadcast:
    """A folder that every host can open. Small to pickle: the content is in the broadcast, or in the artifact."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.digest = folder_digest(folder)
        self.size = sum(file.stat().st_size for file in _files(folder))
        self._origin, self._artifact = str(folder), ""
        self._contents: list[Broadcast[dict[str, bytes]]] = []
        if is_connect(spark):
            self._artifact = _send_artifact(spark, folder, self.digest)
        elif not is_local(spark):  # In local mode every worker sees the driver's own folder.
            self._contents = [spark.sparkContext.broadcast(content) for content in _contents(folder)]

    def folder(self) -> Path:
        """Where the files are on this host; unpacks them if they are not there yet."""
        if not self._contents and not (self._artifact and SparkFiles._is_running_on_worker):
            return Path(self._origin)
        folder = host_folder() / self.digest
        if not folder.exists():
            with _locked(folder.with_name(f"{self.digest}.lock")):
                if not folder.exists():
                    remove_stale(folder.parent)
                    self._unpack(folder)
        os.utime(folder)
        return folder

    def _unpack(self, folder: Path) -> None:
        if self._contents:
            unpack((item for content in self._contents for item in content.value.items()), folder)
            return
        with zipfile.ZipFile(SparkFiles.get(self._artifact)) as archive:
            unpack(((name, archive.read(name)) for name in archive.namelist()), folder)

    def unpersist(self) -> None:
        """Frees Spark's copies; workers that have the files open keep them."""
        for content in self._contents:
            content.unpersist()


def _contents(folder: Path) -> Iterator[dict[str, bytes]]:
    """The files of each folder, one folder in memory at a time."""
    for part in sorted({file.parent for file in _files(folder)}):
        yield {str(file.relative_to(folder)): file.read_bytes() for file in part.iterdir() if file.is_file()}


def _send_artifact(spark: SparkSession, folder: Path, digest: str) -> str:
    """Sends the files as one archive. Returns its name on the executors."""
    name = f"tidings-index-{digest}.zip"
    sent: set[str] = spark.__dict__.setdefault("_tidings_artifacts", set())
    if name in sent:  # A session refuses a second artifact of the same name.
        return name
    with tempfile.TemporaryDirectory(prefix="tidings-index-") as aside:
        archive = Path(aside) / name
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as packed:
            for file in _files(folder):
                packed.write(file, file.relative_to(folder))
        spark.addArtifacts(str(archive), file=True)
    sent.add(name)
    return name


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Held by one process of this host at a time; the system frees it when that process ends, however it ends."""
    with file.open("w") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield


def folder_digest(folder: Path) -> str:
    """Equal for folders of equal content, by names, sizes and bytes."""
    hasher = hashlib.blake2b(digest_size=16)
    for file in _files(folder):
        hasher.update(f"{file.relative_to(folder)}:{file.stat().st_size}:".encode())
        with file.open("rb") as content:
            while chunk := content.read(_CHUNK):
                hasher.update(chunk)
    return hasher.hexdigest()


def unpack(content: Iterable[tuple[str, bytes]], folder: Path) -> None:
    """Writes all files or none: to a temporary folder first, which is then renamed.

    If two workers do this at once, as where no lock holds between containers, both find the same content.
    """
    temporary = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    try:
        for name, data in content:
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
                shutil.rmtree(folder, ignore_errors=True) if folder.is_dir() else folder.unlink()
        except FileNotFoundError:  # Another worker deletes stale folders, too.
            continue


def _files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.is_file())


def host_folder() -> Path:
    """A folder that this user owns: one that another user made in its place is not to be trusted."""
    folder = _local_root() / f"tidings-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid() or folder.is_symlink():
        raise SetupError(f"{folder} belongs to another user; remove it, or set TMPDIR to a folder of your own")
    return folder


def _local_root() -> Path:
    """Where Spark keeps its local files, above the folders that each executor makes for itself; else the system's."""
    given = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0]
    root = Path(given) if given else Path(tempfile.gettempdir())
    while root.name.startswith(_OF_ONE_EXECUTOR):
        root = root.parent
    return root if os.access(root, os.W_OK) else Path(tempfile.gettempdir())


_OF_ONE_EXECUTOR = ("blockmgr-", "executor-", "spark-")
