"""Readers and writers at once: each answer is right for one moment."""

from __future__ import annotations

import threading

import pyarrow as pa

from tidings.events import EventType
from tidings.filters import parse
from tidings.matching import Index, IndexTuning

THING = EventType("Thing", n=int, m=int)
ROUNDS = 60


# Segments of sixteen, so that a few hundred changes make and compact many.
SMALL_SEGMENTS = IndexTuning(pending_max=16, scanned_max=4)


def test_readers_see_every_subscription_exactly_once_while_others_come_and_go() -> None:
    """The fixed ones are always there; of a pair that is swapped, each version has exactly one."""
    wanted = Index(THING, tuning=SMALL_SEGMENTS)
    fixed = [f"fixed{i}" for i in range(40)]
    wanted.add_all([(id, "n = 1") for id in fixed])
    wanted.add("swapped", "n = 1 AND m = 0")
    events = pa.table({"n": [1, 1], "m": [0, 1]})
    wrong: list[object] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            found = wanted.match_batch(events)["subscription"].to_pylist()
            one = wanted.match({"n": 1, "m": 0}) + wanted.match({"n": 2})
            if len(one) != len(set(one)):
                wrong.append(one)
            if found.count("swapped") != 1 or any(found.count(id) != 2 for id in fixed):
                wrong.append(found)
            if not set(fixed) <= set(one):
                wrong.append(one)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for turn in range(ROUNDS):
        wanted.add("swapped", f"n = 1 AND m = {turn % 2}")
        wanted.add_all([(f"extra{turn}-{i}", f"n = 3 AND m > {i}") for i in range(8)])
        if turn % 3 == 2:
            for i in range(8):
                wanted.remove(f"extra{turn}-{i}")
    wanted.settle()
    done.set()
    for reader in readers:
        reader.join()
    assert wrong == []
    assert len(wanted) == 41 + 8 * (ROUNDS - ROUNDS // 3)


def test_writers_do_not_lose_each_others_changes() -> None:
    wanted = Index(THING, tuning=SMALL_SEGMENTS)
    condition = parse("n = 1", THING)

    def write(name: str) -> None:
        for i in range(100):
            wanted.add(f"{name}{i}", condition)
            if i % 2:
                wanted.remove(f"{name}{i}")

    writers = [threading.Thread(target=write, args=(name,)) for name in "abc"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert sorted(wanted) == sorted(f"{name}{i}" for name in "abc" for i in range(0, 100, 2))
    wanted.settle()
    assert sorted(wanted.match({"n": 1})) == sorted(wanted)


def test_compaction_keeps_the_number_of_segments_small() -> None:
    wanted = Index(THING, tuning=SMALL_SEGMENTS)
    for i in range(2000):
        wanted.add(f"c{i}", parse(f"n = {i}", THING))
    wanted.settle()
    wanted.add("last", "n = 5")
    assert len(wanted.stats().parts) == 1
    assert wanted.match({"n": 5}) == ["c5", "last"]
