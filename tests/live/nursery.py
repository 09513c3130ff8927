"""Broker processes that come from a warm one: it has imported all that a broker needs, and forks.

A broker so started is a process of its own to everybody, with its own pid, clock, files and end, but begins where
`tidings broker run` has come to after a second of work. Tests start a hundred.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from tests.adversary.hostile_broker import turn_hostile
from tests.live.next_version import speak_the_next_version
from tests.live.shifted import shift_by

_NURSERY = multiprocessing.get_context("forkserver")
_NURSERY.set_forkserver_preload(["tests.live.warm"])


class Child:
    """`tidings` with some arguments, by a clock that may be wrong; its stderr goes to a file."""

    def __init__(self, arguments: Sequence[str], *, clock: Path, log: Path) -> None:
        self._stdout, theirs = _NURSERY.Pipe(duplex=False)
        with theirs:
            surroundings = (dict(os.environ), Path.cwd())
            self._process = _NURSERY.Process(
                target=_live, args=(arguments, clock, log, theirs, surroundings), daemon=True
            )
            self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """How it ended, or minus the signal that ended it; None as long as it is up."""
        return self._process.exitcode

    async def wait(self) -> int:
        """Waits for its end."""
        await asyncio.to_thread(self._process.join)
        assert self.returncode is not None
        return self.returncode

    async def stdout(self) -> asyncio.StreamReader:
        """What it prints; to be asked for once."""
        reader = asyncio.StreamReader()
        pipe = os.fdopen(os.dup(self._stdout.fileno()), "rb")
        self._stdout.close()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
        return reader


def _live(
    arguments: Sequence[str], clock: Path, log: Path, stdout: Connection, surroundings: tuple[dict[str, str], Path]
) -> None:
    os.environ.clear()
    os.environ.update(surroundings[0])
    os.chdir(surroundings[1])
    with stdout, log.open("ab") as file:
        os.dup2(stdout.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.argv = ["tidings", *arguments]
    shift_by(clock)
    turn_hostile(clock.with_name("hostile"))
    speak_the_next_version(clock.with_name("next-version"))
    from tidings.cli import main

    main()
