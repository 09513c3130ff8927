"""`tidings`, with a clock on the wall that a test can set: `python tests/live/shifted.py FILE broker run …`.

FILE says by how many seconds the clock is wrong; SIGUSR1 has it read again. Only this process is fooled, and
only by Python's own clock on the wall: timers go on, and so does what OpenSSL thinks of certificates.
"""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

_time_ns, _time = time.time_ns, time.time


def shift_by(file: Path) -> None:
    """From now on this process lives in another time, whenever it is told to look at the file."""
    wrong_by_s = 0.0

    def look(*_: object) -> None:
        nonlocal wrong_by_s
        wrong_by_s = float(file.read_text()) if file.exists() else 0.0

    signal.signal(signal.SIGUSR1, look)
    look()
    time.time_ns = lambda: _time_ns() + int(wrong_by_s * 1e9)
    time.time = lambda: _time() + wrong_by_s


if __name__ == "__main__":
    shift_by(Path(sys.argv.pop(1)))
    sys.path.pop(0)  # This folder: its modules are not for the program.
    from tidings.cli import main

    main()
