"""Spark as commands use it: started so that Ctrl-C ends the program at once, and ended without a word of Java's."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from tidings.cli.terminal import EXIT_INTERRUPTED, tell

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POLL_S = 0.2  # How soon Ctrl-C is noticed while Spark starts.


@contextlib.contextmanager
def spark_session(
    name: str,
    master: str | None,
    settings: Mapping[str, str],
    is_stopped: Callable[[], bool] = lambda: False,
    *,
    is_brief: bool = False,
) -> Iterator[SparkSession]:
    """A session for one command, as `start` gives it. Raises SetupError; ends the program if Ctrl-C comes before the session is there."""
    spark = _started(name, master, settings, is_stopped, is_brief)
    try:
        yield spark
    except KeyboardInterrupt:
        # What was interrupted fails, by design, in Java as in Python.
        logging.getLogger("py4j").setLevel(logging.CRITICAL)
        with contextlib.suppress(Exception):
            spark.sparkContext.setLogLevel("OFF")
        raise
    finally:
        with contextlib.suppress(ConnectionError, EOFError):
            spark.stop()


def _started(
    name: str, master: str | None, settings: Mapping[str, str], is_stopped: Callable[[], bool], is_brief: bool
) -> SparkSession:
    """Starts Spark in another thread: a call into Java cannot be interrupted without dozens of lines about it."""
    from tidings.pipeline import start

    outcome: list[SparkSession | BaseException] = []

    def begin() -> None:
        try:
            outcome.append(start(name, master, settings, is_brief=is_brief))
        except BaseException as wrong:  # noqa: BLE001  Raised below, in the thread that waits for it.
            outcome.append(wrong)

    thread = threading.Thread(target=begin, daemon=True, name="start of Spark")
    thread.start()
    try:
        while thread.is_alive():
            thread.join(POLL_S)
            if is_stopped():
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        tell("stopped before anything was done")
        sys.stdout.flush()
        os._exit(EXIT_INTERRUPTED)  # Its Java ends when this process does.
    [session] = outcome
    if isinstance(session, BaseException):
        raise session
    return session
