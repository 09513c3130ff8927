"""The replay window: which events of a sender have been seen, in bounded memory.

The window keeps the newest invocations of each sender. An event newer than all of them is new,
one among them is a replay, and one older than the oldest kept counts as a replay. Events must be
fresh besides, so a sender that has been silent for long enough can be forgotten.

The newest moment of each sender is kept on disk. After a restart the window begins there: what is older was either
delivered or published before anybody could subscribe again.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heappush, heappushpop

from tidings.errors import PeerError
from tidings.security.envelope.nonce import SEQ_MAX

WINDOW = 1024  # Events of one sender that may overtake one another on different paths.
SENDERS_MAX = 65_536  # Workers publishing one type within two minutes; about 100 MB at the very worst.


class _Seen:
    __slots__ = ("heap", "last_ms", "marks", "newest", "oldest")

    def __init__(self, oldest: int = -1) -> None:
        self.heap: list[int] = []
        self.marks: set[int] = set()
        self.oldest = self.newest = oldest
        self.last_ms = 0

    def add(self, invocation: int) -> None:
        self.marks.add(invocation)
        if len(self.heap) < WINDOW:
            heappush(self.heap, invocation)
        else:
            self.oldest = heappushpop(self.heap, invocation)
            self.marks.discard(self.oldest)


class ReplayWindow:
    """The events that one reader has accepted. Call `check` first, and `accept` once the event proved genuine.

    They are two steps because a forger who knows an event's id could otherwise have the real event refused.
    """

    def __init__(self, *, grace_ms: int, delay_ms: int, senders_max: int = SENDERS_MAX) -> None:
        self._fresh_ms, self._senders_max = grace_ms + delay_ms, senders_max
        self._senders: dict[tuple[bytes, int], _Seen] = {}
        self._changed: dict[int, _Seen] = {}

    def check(self, type_id: bytes, sender_id: int, ts_ms: int, seq: int, now_ms: int) -> None:
        """Returns if the event is fresh and new; raises PeerError otherwise."""
        if abs(now_ms - ts_ms) > self._fresh_ms:
            raise PeerError(f"fresh: published {now_ms - ts_ms} ms ago; at most {self._fresh_ms} ms are allowed")
        seen = self._senders.get((type_id, sender_id))
        if seen is not None:
            invocation = ts_ms << 20 | seq
            if invocation <= seen.oldest or invocation in seen.marks:
                raise PeerError(f"replay: event {sender_id}/{ts_ms}/{seq} was seen before")

    def accept(self, type_id: bytes, sender_id: int, ts_ms: int, seq: int, now_ms: int) -> None:
        """Remembers an event that `check` let through."""
        name = (type_id, sender_id)
        seen = self._senders.get(name)
        if seen is None:
            self._admit_sender(now_ms)
            seen = self._senders[name] = _Seen()
        seen.add(invocation := ts_ms << 20 | seq)
        seen.last_ms = now_ms
        if invocation > seen.newest:
            seen.newest = invocation
            self._changed[sender_id] = seen

    def accept_run(self, type_id: bytes, sender_id: int, first: int, count: int, now_ms: int) -> None:
        """Remembers events that follow one another, new ones of the caller's own; `first` is a moment and its counter."""
        for invocation in range(first, first + count):
            self.accept(type_id, sender_id, invocation >> 20, invocation & SEQ_MAX, now_ms)

    def take_newest(self) -> list[tuple[int, int]]:
        """The senders with something new since the last call, and their newest moment."""
        changed, self._changed = self._changed, {}
        return [(sender, seen.newest) for sender, seen in changed.items()]

    def restore(self, type_id: bytes, newest: Mapping[int, int], now_ms: int) -> None:
        """Begins after the newest moments of an earlier life."""
        for sender, moment in newest.items():
            if (moment >> 20) + 2 * self._fresh_ms >= now_ms and len(self._senders) < self._senders_max:
                seen = self._senders.setdefault((type_id, sender), _Seen(moment))
                seen.last_ms = max(seen.last_ms, now_ms)

    def _admit_sender(self, now_ms: int) -> None:
        if len(self._senders) >= self._senders_max and not self.forget(now_ms):
            # Refusing a new sender is safe; forgetting a known one would let its old events in again.
            raise PeerError(f"replay: more than {self._senders_max} senders at once")

    def forget(self, now_ms: int) -> int:
        """Drops senders silent for twice the freshness, of which nothing can be fresh; returns how many."""
        gone = [name for name, seen in self._senders.items() if now_ms - seen.last_ms > 2 * self._fresh_ms]
        for name in gone:
            del self._senders[name]
        return len(gone)

    def __len__(self) -> int:
        return len(self._senders)
