"""The end of a queue on disk: every number once and in order, from memory while the reader keeps up."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from tidings.net.broker.tail import Tail


class Disk:
    """A queue on disk, and how often it was read."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, str]] = []
        self.reads = 0

    async def fetch(self, after: int, at_most: int) -> list[tuple[int, str]]:
        self.reads += 1
        return [row for row in self.rows if row[0] > after][:at_most]

    def add(self, tail: Tail[str], number: int) -> None:
        self.rows.append((number, str(number)))
        tail.add(number, str(number))


def test_a_reader_that_keeps_up_never_touches_the_disk() -> None:
    disk = Disk()
    tail = Tail(0, 0, disk.fetch)

    async def follow() -> None:
        for number in range(1, 100):
            disk.add(tail, number)
            assert await tail.take(10) == [(number, str(number))]

    asyncio.run(follow())
    assert disk.reads == 0


@pytest.mark.parametrize("seed", range(10))
def test_however_far_a_reader_falls_behind_it_sees_every_number_once(seed: int) -> None:
    disk, rng = Disk(), Random(seed)
    tail = Tail(0, 0, disk.fetch, fresh_max=5)
    seen: list[int] = []

    async def follow() -> None:
        for number in range(1, 200):
            disk.add(tail, number)
            if rng.random() < 0.2:
                seen.extend(n for n, _ in await tail.take(rng.randrange(1, 12)))
        while tail.has_more:
            seen.extend(n for n, _ in await tail.take(7))

    asyncio.run(follow())
    assert seen == list(range(1, 200))


def test_a_reader_can_go_back() -> None:
    disk = Disk()
    tail = Tail(0, 0, disk.fetch)

    async def follow() -> None:
        for number in range(1, 4):
            disk.add(tail, number)
        await tail.take(3)
        tail.back_to(1)
        assert [n for n, _ in await tail.take(9)] == [2, 3]

    asyncio.run(follow())
