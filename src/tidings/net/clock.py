"""The wall clock, read in one place."""

from __future__ import annotations

import time


def now_us() -> int:
    """The time in µs since 1970."""
    return time.time_ns() // 1000


def now_ms() -> int:
    """The time in ms since 1970."""
    return time.time_ns() // 1_000_000
