"""Rates: how many events one client, and an organisation, may publish in a second. Token buckets, no clock.

A bucket holds up to `burst` tokens and gains `rate` tokens a second. An event takes one. Who finds too few is refused
with the seconds after which it can come again; nothing is taken then. A batch that is larger than the bucket is let in
when the bucket is full, and leaves it in debt: otherwise it could never come.
"""

from __future__ import annotations

from collections import Counter, OrderedDict

from tidings.errors import RateLimited

REFUSED, SLOWED = "rate limited", "peers slowed down"  # As they are counted.
PAUSE_S_MAX = 2.0  # Shorter than the silence after which a connection counts as dead.
KEYS_MAX = 65_536  # Buckets of clients that are remembered; one that is pushed out was full again long ago.


class TokenBucket:
    """One bucket, full at first.

    >>> bucket = TokenBucket(rate=10.0, burst=20.0)
    >>> bucket.wait_s(20, now=0.0), bucket.take(20, now=0.0), bucket.wait_s(5, now=0.0)
    (0.0, None, 0.5)
    """

    __slots__ = ("_at", "_level", "burst", "rate")

    def __init__(self, rate: float, burst: float) -> None:
        self.rate, self.burst = rate, burst
        self._level, self._at = burst, 0.0

    def wait_s(self, count: int, now: float) -> float:
        """The seconds until so many tokens are there, or the bucket is full; 0 if they are."""
        self._fill(now)
        return max(0.0, (min(float(count), self.burst) - self._level) / self.rate)

    def take(self, count: int, now: float) -> None:
        """Takes tokens, whether they are there or not."""
        self._fill(now)
        self._level -= count

    def _fill(self, now: float) -> None:
        if now > self._at:
            self._level = min(self.burst, self._level + (now - self._at) * self.rate)
        self._at = max(self._at, now)


class PublishRates:
    """The rates of one broker's clients, each by its key, and of all of them: its organisation's."""

    def __init__(self, per_client: float, per_organisation: float, burst_s: float, counts: Counter[str]) -> None:
        """Events per second, 0 for no limit; a bucket holds what `burst_s` seconds bring. `counts` has what is refused."""
        self._per_client, self._burst_s, self._counts = per_client, burst_s, counts
        self._all = TokenBucket(per_organisation, per_organisation * burst_s) if per_organisation else None
        self._clients: OrderedDict[bytes, TokenBucket] = OrderedDict()

    def admit(self, client: bytes, count: int, now: float) -> None:
        """Counts events of a client; raises RateLimited, and has counted nothing, if they are too many now."""
        own = self._bucket(client) if self._per_client else None
        for bucket, whose in ((own, "this client"), (self._all, "this organisation")):
            if bucket is not None and (wait_s := bucket.wait_s(count, now)) > 0:
                self._counts[REFUSED] += count
                raise RateLimited(
                    f"rate: {whose} may publish {bucket.rate:g} events a second; try again in {wait_s:.3g} s",
                    retry_after_s=wait_s,
                )
        for bucket in (own, self._all):
            if bucket is not None:
                bucket.take(count, now)

    def _bucket(self, client: bytes) -> TokenBucket:
        bucket = self._clients.get(client)
        if bucket is None:
            bucket = self._clients[client] = TokenBucket(self._per_client, self._per_client * self._burst_s)
            if len(self._clients) > KEYS_MAX:
                self._clients.popitem(last=False)
        self._clients.move_to_end(client)
        return bucket


class PeerRates:
    """The rates at which the brokers of each other organisation may send: they are slowed down, and nothing is lost."""

    def __init__(self, per_organisation: float, burst_s: float, counts: Counter[str]) -> None:
        """Messages per second, 0 for no limit."""
        self._rate, self._burst_s, self._counts = per_organisation, burst_s, counts
        self._buckets: dict[str, TokenBucket] = {}

    def pause_s(self, organisation: str, count: int, now: float) -> float:
        """Counts messages that have come; for how long nothing more should be read from this organisation."""
        if not self._rate:
            return 0.0
        bucket = self._buckets.get(organisation)
        if bucket is None:
            bucket = self._buckets[organisation] = TokenBucket(self._rate, self._rate * self._burst_s)
        bucket.take(count, now)
        wait_s = min(bucket.wait_s(1, now), PAUSE_S_MAX)
        self._counts[SLOWED] += wait_s > 0
        return wait_s
