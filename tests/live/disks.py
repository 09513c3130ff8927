"""A disk that a test can fill: a small file system under a broker's folder, or, where none can be mounted, a limit.

Without the right to mount, the broker's process is forbidden to make files longer, which SQLite hears of in
the same place, under another number.
"""

from __future__ import annotations

import errno
import os
import resource
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

_FILLER = "filler"
_STEP = 1 << 16


class SmallDisk:
    """A folder on a disk of its own."""

    def __init__(self, folder: Path, size_mb: int, pid: Callable[[], int]) -> None:
        """Makes the folder; `pid` tells which process is to feel it."""
        self._folder, self._pid = folder, pid
        folder.mkdir(parents=True)
        mount = ["mount", "-t", "tmpfs", "-o", f"size={size_mb}m", "tmpfs", str(folder)]
        self.is_real = os.geteuid() == 0 and subprocess.run(mount, capture_output=True, check=False).returncode == 0

    def fill(self) -> None:
        """From now on there is no room for anything."""
        if not self.is_real:
            resource.prlimit(self._pid(), resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
            return
        with (self._folder / _FILLER).open("wb", buffering=0) as filler:
            _write_until_full(filler.fileno())

    def empty(self) -> None:
        """There is room again."""
        if not self.is_real:
            resource.prlimit(self._pid(), resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            return
        (self._folder / _FILLER).unlink(missing_ok=True)

    def close(self, *, keep: bool = False) -> None:
        """Takes the disk away; with `keep`, what is on it is copied beside it first."""
        if self.is_real and keep:
            kept = self._folder.with_name(f"{self._folder.name}-kept")
            shutil.copytree(self._folder, kept, ignore=shutil.ignore_patterns(_FILLER))
        if self.is_real:
            subprocess.run(["umount", "--lazy", str(self._folder)], capture_output=True, check=False)


def _write_until_full(fd: int) -> None:
    """In large pieces, then in small ones."""
    for size in (_STEP, 1 << 10, 1):
        try:
            while True:
                os.write(fd, b"\0" * size)
        except OSError as full:
            if full.errno != errno.ENOSPC:
                raise
