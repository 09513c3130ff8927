"""What peers that route by topic have in common: every event goes to the subscriber, which uses `tidings.Index` itself.

The index is the best filter at hand: it matches what has arrived together at once, in columns.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

import msgspec
import pyarrow as pa

import tidings
from benchmarks.live.contender import Contender
from benchmarks.live.workload import MARK, condition

AT_ONCE_MIN = 16  # Fewer events than this are matched one by one, which is quicker then.
AT_ONCE_MAX = 4096
_DECODER = msgspec.msgpack.Decoder(list[dict[str, str | float]])


class ClientFilter(Contender):
    """A peer whose subscriber filters; how events travel is the peer's own."""

    filters = "in the client"

    def __init__(self) -> None:
        self._index = tidings.Index(tidings.EventType("Sighting", plate=str, area=str, speed=float))
        self._told: Counter[int] = Counter()
        self._came = asyncio.Event()
        self._marks = self._marks_taken = 0
        self._bodies: list[bytes] = []

    def _arrived(self, body: bytes) -> None:
        """An event, on the event loop's thread; those of one turn of the loop are matched together."""
        if not self._bodies:
            asyncio.get_running_loop().call_soon(self._match_arrived)
        self._bodies.append(body)

    def _match_arrived(self) -> None:
        bodies, self._bodies = self._bodies, []
        for start in range(0, len(bodies), AT_ONCE_MAX):
            self._take(bodies[start : start + AT_ONCE_MAX])

    def _take(self, bodies: Sequence[bytes]) -> None:
        if len(bodies) < AT_ONCE_MIN:
            numbers = [int(name) for body in bodies for name in self._index.match(msgspec.msgpack.decode(body))]
        else:
            array = b"\xdc" + len(bodies).to_bytes(2, "big")  # Of msgpack: decoded in one call.
            table = pa.Table.from_pylist(_DECODER.decode(array + b"".join(bodies)))
            numbers = [int(name) for name in self._index.match_batch(table)["subscription"].to_pylist()]
        for number in numbers:
            if number == MARK:
                self._marks += 1
            else:
                self._told[number] += 1
        self._came.set()

    async def want(self, first: int, end: int) -> None:
        self._index.add_all([(str(number), condition(number)) for number in range(first, end)])
        self._index.settle()

    async def heard(self, numbers: Sequence[int]) -> bool:
        while self._told.total() < len(numbers):
            self._came.clear()
            await self._came.wait()
        told, self._told = self._told, Counter()
        return told == Counter(numbers)

    async def hear_mark(self) -> None:
        while self._marks <= self._marks_taken:
            self._came.clear()
            await self._came.wait()
        self._marks_taken += 1
