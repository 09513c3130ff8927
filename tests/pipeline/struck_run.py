"""`tidings …` that signals itself at one of its own steps: a kill or a Ctrl-C at a moment that a test names.

    python -m tests.pipeline.struck_run KILL before "batches/" 2 run pipeline.toml --master local[2]

Steps are `java`, when Spark's has started; `commit`, to a Delta table; and each write of state, as `put batches/…`.
Strikes before or after the so-manieth step whose name has the text in it.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from tidings.cli import main
from tidings.pipeline import session
from tidings.pipeline.storage import HadoopStorage, LocalStorage

WRITES = ("put", "put_if_absent", "move", "delete")


class Strike:
    """Counts the steps whose names have the text in them."""

    def __init__(self, kind: str, moment: str, where: str, count: int) -> None:
        self.signal, self.moment, self.where, self.left = signal.Signals[f"SIG{kind}"], moment, where, count

    def step(self, owner: Any, method: str, name: Callable[..., str]) -> None:
        """Makes each call of a method a step."""
        inner = getattr(owner, method)

        def struck(*given: Any, **named: Any) -> Any:
            is_it = self.where in name(*given) and self._count() == 0
            if is_it and self.moment == "before":
                os.kill(os.getpid(), self.signal)
            done = inner(*given, **named)
            if is_it:
                os.kill(os.getpid(), self.signal)
            return done

        setattr(owner, method, struck)

    def _count(self) -> int:
        self.left -= 1
        return self.left


def _name_of_write(method: str) -> Callable[..., str]:
    return lambda storage, name, *_: f"{method} {storage.root.text}/{name}"


if __name__ == "__main__":
    kind, moment, where, count, *arguments = sys.argv[1:]
    strike = Strike(kind, moment, where, int(count))
    strike.step(session, "_start_java", lambda *_: "java")
    for storage in (LocalStorage, HadoopStorage):
        for method in WRITES:
            strike.step(storage, method, _name_of_write(method))
    if where == "commit":
        from tidings.pipeline.connectors.delta import DeltaWriter

        strike.step(DeltaWriter, "commit", lambda *_: "commit")
    sys.argv = ["tidings", *arguments]
    main()
