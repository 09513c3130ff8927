"""A broker's process: how it deals with garbage."""

from __future__ import annotations

import subprocess
import sys

COLLECTING = """
import gc, weakref
from tidings.net.broker import process

class Ring:
    def __init__(self):
        self.me = self

process.collect_in_small_parts()
before, dropped = gc.get_freeze_count(), [weakref.ref(Ring()) for _ in range(5 * process.COLLECT_AFTER)]
kept = [[number] for number in range(5 * process.COLLECT_AFTER)]
print(gc.get_freeze_count() - before > 4 * process.COLLECT_AFTER)
print(sum(ring() is not None for ring in dropped) < 100)  # Some were in use when they were looked at.
process.collect_all()
print(sum(ring() is not None for ring in dropped))
"""


def test_what_is_in_use_is_looked_at_once_and_what_goes_in_circles_is_freed_at_last() -> None:
    done = subprocess.run([sys.executable, "-c", COLLECTING], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True", "0"]
