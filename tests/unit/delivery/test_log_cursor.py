"""A position in a log on disk: every number once and in order, from memory while the reader keeps up."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from tidings.delivery.log_cursor import LogCursor


class Disk:
    """A log on disk, and how often it was read."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, str]] = []
        self.reads = 0

    def add(self, cursor: LogCursor[str], number: int) -> None:
        self.rows.append((number, str(number)))
        cursor.append(number, str(number))

    def take(self, cursor: LogCursor[str], at_most: int) -> Sequence[tuple[int, str]]:
        if (taken := cursor.take(at_most)) or not cursor.has_more:
            return taken
        self.reads += 1
        read = cursor.next_read(at_most)
        return cursor.supply(read, [row for row in self.rows if row[0] > read.after][: read.at_most])


def test_a_reader_that_keeps_up_never_touches_the_disk() -> None:
    disk, cursor = Disk(), LogCursor[str](0, 0)
    for number in range(1, 100):
        disk.add(cursor, number)
        assert disk.take(cursor, 10) == [(number, str(number))]
    assert disk.reads == 0


@pytest.mark.parametrize("seed", range(10))
def test_however_far_a_reader_falls_behind_it_sees_every_number_once(seed: int) -> None:
    disk, rng, cursor = Disk(), Random(seed), LogCursor[str](0, 0, fresh_max=5)
    seen: list[int] = []
    for number in range(1, 200):
        disk.add(cursor, number)
        if rng.random() < 0.2:
            seen.extend(n for n, _ in disk.take(cursor, rng.randrange(1, 12)))
    while cursor.has_more:
        seen.extend(n for n, _ in disk.take(cursor, 7))
    assert seen == list(range(1, 200))


def test_a_reader_can_go_back() -> None:
    disk, cursor = Disk(), LogCursor[str](0, 0)
    for number in range(1, 4):
        disk.add(cursor, number)
    disk.take(cursor, 3)
    cursor.seek(1)
    assert [n for n, _ in disk.take(cursor, 9)] == [2, 3]


def test_what_was_read_before_the_reader_moved_is_not_taken() -> None:
    cursor = LogCursor[str](0, 9)
    read = cursor.next_read(5)
    cursor.seek(4)
    assert cursor.supply(read, [(1, "1")]) == []
    assert cursor.at == 4


def test_a_log_that_was_truncated_has_no_more() -> None:
    cursor = LogCursor[str](0, 9)
    assert cursor.supply(cursor.next_read(5), []) == []
    assert not cursor.has_more
