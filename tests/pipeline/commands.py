"""`tidings …` within this process, on the Spark that is running: what a command does, without the price of a Java."""

from __future__ import annotations

import contextlib
import io
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from pyspark.sql import SparkSession

from tidings.cli import main


@dataclass(frozen=True)
class Ended:
    """How a command ended, and what it said where."""

    code: int
    out: str
    said: str


def tidings(*arguments: str) -> Ended:
    """Runs a command as a shell would, but for the process; the Spark session, which it would end, goes on."""
    out, said = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as here, _signals_as_they_were():
        here.setattr(sys, "argv", ["tidings", *arguments])
        here.setattr(SparkSession, "stop", lambda session: None)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(said), pytest.raises(SystemExit) as ended:
            main()
    return Ended(int(ended.value.code or 0), out.getvalue(), said.getvalue())


@contextlib.contextmanager
def _signals_as_they_were() -> Iterator[None]:
    kept = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handler in kept.items():
            signal.signal(each, handler)
