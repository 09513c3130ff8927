"""What a contender is: something that is built from subscriptions and then answers events.

The clock runs over `build` and over `match`, nothing else: `admit` puts the events into the
form the engine reads them from, `answers` turns what was found into something comparable.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from benchmarks.workload import Subscriptions, matches_by_scan

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Workload:
    """Subscriptions and events as flat arrays, written once and read by every contender's process."""

    name: str
    wanted: Subscriptions
    events: Array  # by row and attribute; texts as their codes

    def save(self, folder: Path) -> None:
        wanted = self.wanted
        np.savez(
            folder / f"{self.name}.npz",
            ptr=wanted.ptr,
            attr=wanted.attr,
            lo=wanted.lo,
            hi=wanted.hi,
            events=self.events,
        )

    @classmethod
    def open(cls, folder: Path, name: str, event_count: int) -> Workload:
        with np.load(folder / f"{name}.npz") as arrays:
            wanted = Subscriptions(*(arrays[part] for part in ("ptr", "attr", "lo", "hi")))
            return cls(name, wanted, arrays["events"][:event_count])


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
        found = [matches_by_scan(workload.wanted, event) for event in workload.events[:event_count]]
        return cls(np.array([len(hits) for hits in found]), np.array([int(hits.sum()) for hits in found]))

    def agree_with(self, other: Answers) -> bool:
        """Whether both say the same of every event that both were asked about."""
        shared = min(len(self.counts), len(other.counts))
        pairs = ((self.counts, other.counts), (self.sums, other.sums))
        return shared > 0 and all(np.array_equal(ours[:shared], theirs[:shared]) for ours, theirs in pairs)


class Engine(Protocol):
    """One contender, for one workload; the methods are called in the order they stand here."""

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
