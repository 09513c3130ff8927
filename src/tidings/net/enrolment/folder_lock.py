"""One change at a time in an organisation's folder.

Commands, `tidings org serve` and a scheduled `tidings org renew` change the same files: each reads what is there, adds
to it and writes it back. Without a lock, one of two that run at the same time undoes the other.
"""

from __future__ import annotations

import fcntl
import functools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from tidings.errors import SetupError

LOCK = ".lock"
WAIT_S_MAX = 60.0  # The longest change renews all certificates, which takes seconds.
LOOK_S = 0.02

P = ParamSpec("P")
R = TypeVar("R")


class FolderLock:
    """Held by one process and thread at a time; whoever holds it may take it again."""

    def __init__(self, folder: Path, wait_s_max: float = WAIT_S_MAX) -> None:
        self._folder, self._wait_s_max = folder, wait_s_max
        self._depth = 0

    @contextmanager
    def held(self) -> Iterator[None]:
        """Raises SetupError if somebody else holds it for too long."""
        if self._depth:
            yield
            return
        file = os.open(self._folder / LOCK, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
        try:
            self._take(file)
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
        finally:
            os.close(file)  # Which also gives it back.

    def _take(self, file: int) -> None:
        ends = time.monotonic() + self._wait_s_max
        while True:
            try:
                return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= ends:
                    raise SetupError(
                        f"another command has been changing {self._folder} for {self._wait_s_max:g} s; "
                        f"`fuser {self._folder / LOCK}` names it; try again when it has ended"
                    ) from None
                time.sleep(LOOK_S)


class _Locked(Protocol):
    @property
    def lock(self) -> FolderLock: ...


S = TypeVar("S", bound=_Locked)


def one_at_a_time(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """For a method that changes the folder of its object."""

    @functools.wraps(method)
    def locked(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self.lock.held():
            return method(self, *args, **kwargs)

    return locked
