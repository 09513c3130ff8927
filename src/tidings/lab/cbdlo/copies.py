"""Trying something out on a copy of a world.

A network of a thousand nodes takes a second to build and a publication a few
milliseconds, yet each set of failures wants the network as it was. A forked process is
the cheapest copy there is: only what changes is copied.
"""

from __future__ import annotations

import gc
import json
import os
import warnings
from collections.abc import Callable
from typing import Any, NoReturn


def in_a_copy(do: Callable[[], Any]) -> Any:
    """What `do` returns (numbers and texts, lists of them), while all that it changes stays as it was.

    >>> things = [1]
    >>> in_a_copy(lambda: things.append(2) or len(things)), things
    (2, [1])
    """
    reader, writer = os.pipe()
    child = _fork()
    if child == 0:
        _answer(do, writer)
    os.close(writer)
    with open(reader, "rb") as answer:
        said = answer.read()
    os.waitpid(child, 0)
    outcome = json.loads(said) if said else {"wrong": "the copy ended without a word"}
    assert "wrong" not in outcome, outcome["wrong"]
    return outcome["did"]


def _fork() -> int:
    with warnings.catch_warnings():
        # Newer Pythons warn of threads: the copy runs nothing but the world, which has none and waits for none.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _answer(do: Callable[[], Any], writer: int) -> NoReturn:
    """In the copy. It must not return: two of everything above would go on."""
    gc.disable()  # Looking through all the objects would copy every page they are on, and the copy is short-lived.
    try:
        outcome = {"did": do()}
    except BaseException as wrong:  # noqa: BLE001  Whatever it is, it is told, not lost with the copy.
        outcome = {"wrong": repr(wrong)}
    try:
        with open(writer, "wb") as answer:
            answer.write(json.dumps(outcome).encode())
    finally:
        os._exit(0)
