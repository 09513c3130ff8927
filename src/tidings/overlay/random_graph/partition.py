"""Cuts: where the value range of an attribute is divided, and what an interest asks of one attribute.

A cut lies just below a key. Keys of different types do not compare, so a cut carries the
rank of its type; `BOTTOM` is below all keys and `TOP` above. A sub-space is what lies
from one cut up to, and without, the next.

>>> cut_at(5) < cut_at(7) < cut_at("a") < TOP
True
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from tidings.events import Key
from tidings.filters import View
from tidings.overlay.interest import Box, Extent, Interest, Span, key_of
from tidings.overlay.messages import Packet

SPANS_MAX = 64  # Of one interest on one attribute; a list of more is taken as one span from first to last.
INDEXED_MAX = 2  # Attributes under which an interest is filed where each sub-space checks all of it.
_KEY_MAX = 2**63  # One above the largest whole number that an event may have.
_CLASSES: tuple[type, ...] = (int, int, str, bytes, int)  # By rank: bottom, numbers, texts, bytes, top.


class Cut(msgspec.Struct, frozen=True, order=True, array_like=True):
    """A place between two keys. Ordered by rank, then by key."""

    rank: int
    key: Any = 0  # Of Key: a union of text and bytes is more than msgspec can decode, so it is checked below.

    def __post_init__(self) -> None:
        if not 0 <= self.rank < len(_CLASSES) or self.key.__class__ is not _CLASSES[self.rank]:
            raise ValueError(f"expected a cut, got rank {self.rank} with {type(self.key).__name__}")


BOTTOM, TOP = Cut(0), Cut(4)


class AttributeAxis(NamedTuple):
    """One attribute of one event type; the empty name stands for events of the type whatever their attributes."""

    type: str
    name: str


class Interval(NamedTuple):
    """Everything from `low` up to, and without, `high`."""

    low: Cut
    high: Cut


EVERYWHERE = Interval(BOTTOM, TOP)


def cut_at(key: Key) -> Cut:
    """The cut just below a key: also where an event with this key stands."""
    if isinstance(key, str):
        return Cut(2, key)
    if isinstance(key, bytes):
        return Cut(3, key)
    return Cut(1, max(-_KEY_MAX, min(int(key), _KEY_MAX)))


def position_of(view: View, axis: AttributeAxis) -> Cut | None:
    """Where an event stands on an axis; None where this node cannot tell, or it has no such attribute.

    >>> place_of(View({"x": 3}), Axis("Quake", "x")) == cut_at(3), place_of(View({"x": 3}), Axis("Quake", ""))
    (True, Cut(rank=0, key=0))
    """
    if not axis.name:
        return BOTTOM
    value = view.get(axis.name)
    return None if value is None else cut_at(key_of(value))


def axes_of(packet: Packet) -> list[AttributeAxis]:
    """The axes on which an event may be wanted: its attributes, readable or not, and the nameless one."""
    names = [*sorted(packet.view.values), *packet.view.hidden, ""]
    return [AttributeAxis(packet.header.type, name) for name in names]


def indexed_axes(interest: Interest, at_most: int | None = INDEXED_MAX) -> list[AttributeAxis]:
    """The axes under which an interest is filed: each event it wants has a place, within its stretches, on all of them.

    The narrowest first, and no more than `at_most`. One that says nothing certain of any
    single attribute is filed under the nameless axis.
    """
    boxes = interest.wanted.boxes()
    names = [name for name in boxes[0] if all(_bounded(box, name) for box in boxes)] if boxes else []
    names.sort(key=lambda name: (_width(boxes, name), name))
    return [AttributeAxis(interest.type, name) for name in names[:at_most]] or [AttributeAxis(interest.type, "")]


def intervals_of(interest: Interest, axis: AttributeAxis) -> list[Interval]:
    """What an interest wants of one axis, in order and apart. Everything, where this node cannot read it."""
    boxes = interest.wanted.boxes()
    if not axis.name or not all(_bounded(box, axis.name) for box in boxes):
        return [EVERYWHERE]
    joined: list[Interval] = []
    for low, high in sorted(_interval(span) for box in boxes for span in box[axis.name].spans):
        if joined and low <= joined[-1].high:
            joined[-1] = Interval(joined[-1].low, max(high, joined[-1].high))
        elif low < high:
            joined.append(Interval(low, high))
    return joined if len(joined) <= SPANS_MAX else [Interval(joined[0].low, joined[-1].high)]


def _interval(span: Span) -> Interval:
    low, high = span
    return Interval(BOTTOM if low is None else cut_at(low), TOP if high is None else cut_at(high))


def _bounded(box: Box, name: str) -> bool:
    extent: Extent | None = box.get(name)
    return extent is not None and not extent.absent


def _width(boxes: tuple[Box, ...], name: str) -> float:
    """How much of an axis is wanted; without a bound, or of texts, more than any range of numbers."""
    ends = [(low, high) for box in boxes for low, high in box[name].spans]
    if not all(isinstance(low, int) and isinstance(high, int) for low, high in ends):
        return float(2 * _KEY_MAX + len(ends))
    return float(sum(high - low for low, high in ends))  # type: ignore[operator, misc]
