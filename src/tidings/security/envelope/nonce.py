"""Nonces that never repeat: (millisecond, counter) pairs, here called moments, for one sender id.

A nonce used twice under one key breaks GCM. So a sender id belongs to one start of one worker,
the key manager never gives it out again, and every pair under it is new, even when the clock
does not advance or steps back. A worker needs no memory across a restart: it gets a new sender id.
"""

from __future__ import annotations

from typing import NoReturn

from tidings.errors import Denied, ErrorCode

SEQ_BITS = 20
SEQ_MAX = 2**SEQ_BITS - 1
TS_MS_MAX = 2**43 - 1  # Keeps (ts_ms << 20 | seq) positive in Spark's bigint; lasts until 2248.


class NotYet(Denied):
    """Refused for now: try again at `until_ms`."""

    def __init__(self, why: str, until_ms: int, *, code: ErrorCode | None = None) -> None:
        super().__init__(why, until_ms, code=code)
        self.why, self.until_ms = why, until_ms

    def __str__(self) -> str:
        return self.why


class NonceClock:
    """The moments of one sender id, each given once, in increasing order.

    With `per_ms=1` each millisecond is used once, as in the paper. Not thread-safe: a second worker
    takes a sender id of its own.

    >>> clock = NonceClock(grace_ms=5000)
    >>> clock.take(1000), clock.take(1000), clock.take(900), clock.take(1001)
    ((1000, 0), (1000, 1), (1000, 2), (1001, 0))
    """

    __slots__ = ("_ahead_ms_max", "_last_seq", "_last_ts", "_seq_end")

    def __init__(self, *, grace_ms: int, per_ms: int = SEQ_MAX + 1) -> None:
        assert 1 <= per_ms <= SEQ_MAX + 1
        self._ahead_ms_max = grace_ms // 2
        self._seq_end = per_ms
        self._last_ts, self._last_seq = -(2**63), 0

    def take(self, now_ms: int, run: int = 1) -> tuple[int, int]:
        """The first of `run` moments that share a millisecond and follow one another.

        Raises NotYet, and takes nothing, where that would run more than half the grace ahead of
        the clock: a publisher must not choose its keys by a time that has not come.
        """
        if now_ms > self._last_ts:
            ts, seq = now_ms, 0
        elif self._last_seq + run < self._seq_end:
            ts, seq = self._last_ts, self._last_seq + 1
        else:
            ts, seq = self._last_ts + 1, 0
        if not (ts - now_ms <= self._ahead_ms_max and 0 <= ts <= TS_MS_MAX and 1 <= run <= self._seq_end):
            self._refuse(ts, now_ms, run)
        self._last_ts, self._last_seq = ts, seq + run - 1
        return ts, seq

    def _refuse(self, ts: int, now_ms: int, run: int) -> NoReturn:
        if ts - now_ms > self._ahead_ms_max:
            why = f"clock: {ts - now_ms} ms behind the last event; at most {self._ahead_ms_max} ms are allowed"
            raise NotYet(why, until_ms=ts - self._ahead_ms_max)
        if not 1 <= run <= self._seq_end:
            raise Denied(f"clock: a millisecond does not hold {run} moments")
        raise Denied(f"clock: {ts} ms is outside 1970 to 2248")
