"""What a contender is: something that is built from subscriptions and then answers events.

The clock runs over `build` and over `match`, nothing else: `admit` puts the events into the
form the engine reads them from, `answers` turns what was found into something comparable.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import mixed
from benchmarks import workload as plain
from benchmarks.mixed import MIXED, Boxes
from benchmarks.workload import Subscriptions, matches_by_scan

Array = np.ndarray[Any, Any]

SIDES = ("ptr", "attr", "lo", "hi")
BEYOND = ("owner", "not_attr", "not_lo", "not_hi", "set_attr", "set_id", "set_ptr", "codes")


@dataclass(frozen=True, slots=True)
class Workload:
    """Subscriptions and events as flat arrays, written once and read by every contender's process.

    Of a mixed workload `wanted` has the sides of all boxes, `boxes` what else there is to them, and `texts` the conditions.
    """

    name: str
    wanted: Subscriptions
    events: Array  # by row and attribute; texts as their codes
    boxes: Boxes | None = None
    folder: Path | None = None

    @classmethod
    def make(cls, name: str, folder: Path) -> Workload:
        """Draws a workload and leaves it in a folder."""
        if name not in MIXED:
            made = cls(name, *plain.load(name), None, folder)
        else:
            texts, boxes = mixed.conditions(MIXED[name])
            pq.write_table(pa.table({"condition": texts}), folder / f"{name}.parquet")
            made = cls(name, boxes.wanted, mixed.events(), boxes, folder)
        made._save(folder)
        return made

    @property
    def conditions(self) -> int:
        return self.boxes.conditions if self.boxes else len(self.wanted)

    @property
    def names(self) -> list[str]:
        return mixed.NAMES if self.boxes else plain.NAMES

    def texts(self) -> list[str]:
        """The conditions of a mixed workload, as they are written."""
        assert self.folder is not None, "a workload that was made or opened has a folder"
        found: list[str] = pq.read_table(self.folder / f"{self.name}.parquet")["condition"].to_pylist()
        return found

    def event_table(self) -> pa.Table:
        """The events with texts as texts, and nulls."""
        return (mixed if self.boxes else plain).event_table(self.events)

    def matches_by_scan(self, event: Array) -> Array:
        return self.boxes.passing(event) if self.boxes else matches_by_scan(self.wanted, event)

    def _save(self, folder: Path) -> None:
        arrays = {part: getattr(self.wanted, part) for part in SIDES}
        arrays |= {part: getattr(self.boxes, part) for part in BEYOND} if self.boxes else {}
        np.savez(folder / f"{self.name}.npz", events=self.events, **arrays)

    @classmethod
    def open(cls, folder: Path, name: str, event_count: int) -> Workload:
        with np.load(folder / f"{name}.npz") as arrays:
            wanted = Subscriptions(*(arrays[part] for part in SIDES))
            boxes = Boxes(wanted, *(arrays[part] for part in BEYOND)) if name in MIXED else None
            return cls(name, wanted, arrays["events"][:event_count], boxes, folder)


@dataclass(frozen=True, slots=True)
class Answers:
    """For each of the first events: how many subscriptions it matched, and the sum of their numbers.

    Two engines that agree on both for every event have, short of a conspiracy, found the same pairs.
    """

    counts: Array
    sums: Array

    @classmethod
    def of_pairs(cls, events: Array, subscriptions: Array, event_count: int) -> Answers:
        counts = np.bincount(events, minlength=event_count)
        # Sums stay below 2^53, so the floats of bincount are exact.
        sums = np.bincount(events, weights=subscriptions, minlength=event_count)
        return cls(counts.astype(np.int64), sums.astype(np.int64))

    @classmethod
    def by_scan(cls, workload: Workload, event_count: int) -> Answers:
        found = [workload.matches_by_scan(event) for event in workload.events[:event_count]]
        return cls(np.array([len(hits) for hits in found]), np.array([int(hits.sum()) for hits in found]))

    def agree_with(self, other: Answers) -> bool:
        """Whether both say the same of every event that both were asked about."""
        shared = min(len(self.counts), len(other.counts))
        pairs = ((self.counts, other.counts), (self.sums, other.sums))
        return shared > 0 and all(np.array_equal(ours[:shared], theirs[:shared]) for ours, theirs in pairs)


class Engine(Protocol):
    """One contender, for one workload; the methods are called in the order they stand here.

    One that works in another process, or on several cores, has a method `clock` besides: the seconds it has taken.
    """

    def warm_up(self, workload: Workload) -> None:
        """Whatever is done once per machine or process, as compiling; not timed."""

    def build(self, workload: Workload) -> None:
        """Takes the subscriptions in. Timed."""

    def admit(self, workload: Workload) -> None:
        """Takes the events in, unanswered."""

    def match(self) -> int:
        """Finds every pair of an event and a subscription that it matches, and says how many. Timed."""

    def answers(self) -> Answers:
        """What the last `match` found."""

    def facts(self) -> dict[str, Any]:
        """What else is worth telling: bytes, candidates, latencies."""


class Skipped(Exception):
    """A contender that cannot run here, and why."""
