"""Whether something holds at a moment, and how a refusal says when it would: in UTC, never in milliseconds."""

from __future__ import annotations

from tidings.events import INT_MAX, INT_MIN, Timestamp


def show_ms(ms: int) -> str:
    """A moment in ms since 1970, for people.

    >>> show_ms(1_794_952_214_537)
    '2026-11-17T21:50:14Z'
    """
    return Timestamp(max(INT_MIN, min(ms // 1000 * 1_000_000, INT_MAX))).iso()


def why_not_valid(not_before: int, not_after: int, now_ms: int) -> str | None:
    """Why what holds in this time does not hold now; None if it does.

    >>> why_not_valid(0, 1_000, now_ms=86_400_000)
    'expired at 1970-01-01T00:00:01Z, and it is 1970-01-02T00:00:00Z'
    """
    if now_ms < not_before:
        return f"is not valid before {show_ms(not_before)}, and it is {show_ms(now_ms)} by this clock"
    if now_ms >= not_after:
        return f"expired at {show_ms(not_after)}, and it is {show_ms(now_ms)}"
    return None
