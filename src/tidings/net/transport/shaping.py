"""The shape of a link's traffic, against whoever watches it: TLS hides what is said, not how much and when.

    as it comes    nothing is added (default)
    classes        each write is filled up to a power of two: an observer sees one of a few sizes
    cover          so many bytes every TICK_S, no more and no less: what waits goes first, the rest is filler

With cover, an observer cannot tell a busy hour from a quiet one. The price is the bandwidth, whether or not it is used,
a delay of up to TICK_S, and that nothing goes faster: more than that waits in the link's queue.
"""

from __future__ import annotations

from tidings.net.transport.frames import Padding, encoded

TICK_S = 0.05
CLASS_BYTES_MIN = 512
CLASS_BYTES_MAX = 1 << 16  # Above, multiples of it.
FRAME_BYTES = len(encoded(Padding(b"")))
_HEAD_BYTES_MAX = 4  # By how much the length of a longer filler takes more bytes than that of an empty one.


def class_of(size: int) -> int:
    """How many bytes an observer sees where so many are sent.

    >>> [class_of(size) for size in (1, 512, 513, 70_000)]
    [512, 512, 1024, 131072]
    """
    if size > CLASS_BYTES_MAX:
        return -(-size // CLASS_BYTES_MAX) * CLASS_BYTES_MAX
    return max(CLASS_BYTES_MIN, 1 << (size - 1).bit_length())


def filler(size: int) -> bytes:
    """Padding frames of exactly so many bytes; at least those of an empty one."""
    assert size >= FRAME_BYTES
    room = size - FRAME_BYTES
    for less in range(min(room, _HEAD_BYTES_MAX) + 1):
        if len(raw := encoded(Padding(bytes(room - less)))) == size:
            return raw
    return encoded(Padding(b"")) + filler(size - FRAME_BYTES)  # One of the few sizes that no single frame has.


def in_class(raw: bytes) -> bytes:
    """Frames, filled up to the size of their class."""
    size = class_of(len(raw))
    if 0 < size - len(raw) < FRAME_BYTES:
        size = class_of(size + 1)
    return raw + filler(size - len(raw)) if size > len(raw) else raw


class CoverTraffic:
    """What waits for its turn on a link with cover traffic."""

    def __init__(self, bytes_per_s: int) -> None:
        self.tick_bytes = max(1, round(bytes_per_s * TICK_S))
        self._waiting = bytearray()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, raw: bytes) -> None:
        """Frames to be sent when it is their turn."""
        self._waiting += raw

    def take(self) -> bytes:
        """The bytes of one tick: always as many. A filler may go on in the next one."""
        if len(self._waiting) < self.tick_bytes:
            self._waiting += filler(max(FRAME_BYTES, self.tick_bytes - len(self._waiting)))
        taken = bytes(self._waiting[: self.tick_bytes])
        del self._waiting[: self.tick_bytes]
        return taken

    def rest(self) -> bytes:
        """Everything that waits, for a link that is closed."""
        taken = bytes(self._waiting)
        self._waiting.clear()
        return taken
