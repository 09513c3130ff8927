"""Nothing twice: which events of a sender have been seen, in bounded memory.

Of each sender the newest invocations are kept. What is newer than all of them is new, what is
among them is old, what is older than the oldest kept is treated as old. Events must be fresh
besides, so a sender silent for long enough can be forgotten altogether.
"""

from __future__ import annotations

from heapq import heappush, heappushpop

from tidings.errors import PeerError

WINDOW = 1024  # Events of one sender that may overtake one another on different paths.
SENDERS_MAX = 65_536  # Workers publishing one type within two minutes; about 100 MB at the very worst.


class _Seen:
    __slots__ = ("heap", "last_ms", "marks", "oldest")

    def __init__(self) -> None:
        self.heap: list[int] = []
        self.marks: set[int] = set()
        self.oldest = -1
        self.last_ms = 0

    def add(self, invocation: int) -> None:
        self.marks.add(invocation)
        if len(self.heap) < WINDOW:
            heappush(self.heap, invocation)
        else:
            self.oldest = heappushpop(self.heap, invocation)
            self.marks.discard(self.oldest)


class ReplayWindow:
    """What one reader has accepted. `check` first, `accept` after the event proved genuine.

    Apart, because a forger who knows an event's id could otherwise have the real one refused.
    """

    def __init__(self, *, grace_ms: int, delay_ms: int) -> None:
        self._fresh_ms = grace_ms + delay_ms
        self._senders: dict[tuple[bytes, int], _Seen] = {}

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
            self._make_room(now_ms)
            seen = self._senders[name] = _Seen()
        seen.add(ts_ms << 20 | seq)
        seen.last_ms = now_ms

    def _make_room(self, now_ms: int) -> None:
        if len(self._senders) >= SENDERS_MAX and not self.forget(now_ms):
            # Refusing newcomers keeps the promise; forgetting someone would let old events in again.
            raise PeerError(f"replay: more than {SENDERS_MAX} senders at once")

    def forget(self, now_ms: int) -> int:
        """Drops senders silent for twice the freshness; nothing of theirs can be fresh. How many."""
        gone = [name for name, seen in self._senders.items() if now_ms - seen.last_ms > 2 * self._fresh_ms]
        for name in gone:
            del self._senders[name]
        return len(gone)

    def __len__(self) -> int:
        return len(self._senders)
