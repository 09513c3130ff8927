"""Run a function in a forked process, to try something on a copy of a simulated network.

A network of a thousand nodes takes a second to build and a publication a few milliseconds, but each set of failures
needs the network as it was. A forked process is the cheapest copy: the system copies only the pages that change.
"""

from __future__ import annotations

import gc
import json
import os
import warnings
from collections.abc import Callable
from typing import Any, NoReturn


def in_a_copy(run: Callable[[], Any]) -> Any:
    """The result of `run` (numbers, texts, lists of them). What it changes stays as it was.

    >>> things = [1]
    >>> in_a_copy(lambda: things.append(2) or len(things)), things
    (2, [1])
    """
    reader, writer = os.pipe()
    child = _fork()
    if child == 0:
        _answer(run, writer)
    os.close(writer)
    with open(reader, "rb") as answer:
        raw = answer.read()
    os.waitpid(child, 0)
    outcome = json.loads(raw) if raw else {"error": "the forked process ended without a result"}
    assert "error" not in outcome, outcome["error"]
    return outcome["result"]


def _fork() -> int:
    with warnings.catch_warnings():
        # Newer Pythons warn of threads. The child runs only the simulation, which has no threads and waits for none.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _answer(run: Callable[[], Any], writer: int) -> NoReturn:
    """In the child, which must not return: else everything above would run twice."""
    gc.disable()  # A collection would touch, and so copy, every page; the child lives only briefly.
    try:
        outcome = {"result": run()}
    except BaseException as error:  # noqa: BLE001  Whatever it is, the parent reports it.
        outcome = {"error": repr(error)}
    try:
        with open(writer, "wb") as answer:
            answer.write(json.dumps(outcome).encode())
    finally:
        os._exit(0)
