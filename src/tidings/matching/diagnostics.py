"""What users ask of an index besides matches: why an event matched, and what the index is made of.

explain   why an event matches a condition, or which predicate failed
stats     sizes, memory, and the grids under which conditions are filed
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tidings.events import EventType, Value
from tidings.filters import Condition
from tidings.matching.grid import bucket_count
from tidings.matching.kernels import match as match_kernels
from tidings.matching.live_segment import LiveSegment

ABSENT = "is absent"


@dataclass(frozen=True, slots=True)
class Explanation:
    """`outcome` is the condition's value for the event (True, False, or None for NULL); `parts` decided it.

    If it did not match, `first` is the first predicate that failed. `values` are the event's
    values that the deciding parts refer to.
    """

    id: str
    matched: bool
    outcome: bool | None
    parts: tuple[str, ...]
    values: Mapping[str, Value | None]

    @property
    def first(self) -> str | None:
        """The first predicate that failed; None if the event matched."""
        return None if self.matched or not self.parts else self.parts[0]

    def __str__(self) -> str:
        if self.matched:
            return f"{self.id} matched: {' AND '.join(self.parts)}"
        seen = ", ".join(
            f"{name} {ABSENT if value is None else f'is {value!r}'}" for name, value in self.values.items()
        )
        outcome = "NULL" if self.outcome is None else "FALSE"
        return f"{self.id} did not match: {self.first} is {outcome}{f', as {seen}' if seen else ''}"


def explain(id: str, condition: Condition, values: Mapping[str, Value]) -> Explanation:
    """The explanation for one event's checked values."""
    outcome = condition.evaluate(values)
    parts = condition.decided_by(values)
    names = dict.fromkeys(name for part in (parts if outcome else parts[:1]) for name in part.attributes)
    seen = {name: values.get(name) for name in names}
    return Explanation(id, outcome is True, outcome, tuple(map(str, parts)), seen)


# ── Statistics ─────────────────────────────────────────────────────────────────


EVERY_EVENT = "every event"  # What a grid without an axis covers.


@dataclass(frozen=True, slots=True)
class Grid:
    """Conditions filed under two attributes (or one, or none), in so many buckets each, as so many entries."""

    attributes: tuple[str, ...]
    buckets: tuple[int, ...]
    entries: int

    def __str__(self) -> str:
        shape = " × ".join(f"{name} in {count}" for name, count in zip(self.attributes, self.buckets)) or EVERY_EVENT
        return f"{shape}: {self.entries:,} entries"


@dataclass(frozen=True, slots=True)
class PartStats:
    """One segment: its subscriptions and how many of them were removed, boxes, bytes by use, and its grids."""

    subscriptions: int
    removed: int
    boxes: int
    entries: int
    bytes_by_use: dict[str, int]
    grids: tuple[Grid, ...]

    @property
    def bytes(self) -> int:
        return sum(self.bytes_by_use.values())


@dataclass(frozen=True, slots=True)
class Stats:
    """An index: subscriptions, how many of them are in the write buffer, and its segments, oldest first."""

    subscriptions: int
    pending: int
    parts: tuple[PartStats, ...]

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts)

    @property
    def bytes_per_subscription(self) -> float:
        return self.bytes / max(1, self.subscriptions)


class Effort(NamedTuple):
    """What a batch took: entries looked at, those of them whose two filed sides held, and the matches before removals."""

    candidates: int
    hits: int
    matches: int


def stats_of(parts: Sequence[LiveSegment], pending: int, size: int, event_type: EventType) -> Stats:
    """The statistics of these segments."""
    return Stats(size, pending, tuple(_part_stats(part, event_type) for part in parts))


def _part_stats(part: LiveSegment, event_type: EventType) -> PartStats:
    segment, layout = part.segment, part.segment.layout
    bytes_by_use = {
        "axes": segment.axes.nbytes,
        "boxes": sum(array.nbytes for array in (segment.boxes.owner, segment.boxes.residual, *segment.boxes.sides)),
        "grids": layout.grids.nbytes + layout.axis_grids.nbytes + layout.starts.nbytes,
        "entries": layout.words.nbytes + layout.entries.nbytes,
        "records": layout.records.nbytes + layout.extras.nbytes,
        "words": segment.words.nbytes,
        "names": part.names.nbytes,
        "texts": segment.texts.nbytes,
        "removals": part.removed.nbytes if part.removed_count else 0,
    }
    entries = len(layout.words) - match_kernels.UNROLLED
    grids = tuple(_grid(part, number, event_type) for number in range(len(layout.grids)))
    return PartStats(len(segment), part.removed_count, len(segment.boxes), entries, bytes_by_use, grids)


def _axis_name(code: int, event_type: EventType) -> str:
    name = event_type.attributes[code >> 1].name
    return f"the end of {name}" if code & 1 else name


def _grid(part: LiveSegment, number: int, event_type: EventType) -> Grid:
    axes, layout = part.segment.axes, part.segment.layout
    row = layout.grids[number]
    both = (
        (row[match_kernels.GRID_A], row[match_kernels.GRID_SHIFT_A]),
        (row[match_kernels.GRID_B], row[match_kernels.GRID_SHIFT_B]),
    )
    named = [(int(axis), int(shift)) for axis, shift in both if axis < len(axes)]
    names = tuple(_axis_name(axes.codes[axis], event_type) for axis, _ in named)
    buckets = tuple(int(bucket_count(axes.cell_counts[axis], shift)) for axis, shift in named)
    entries = int(layout.starts[row[match_kernels.GRID_END]] - layout.starts[row[match_kernels.GRID_START]])
    return Grid(names, buckets, entries)
