"""How the value range of an attribute is cut, and which part of it an interest covers.

A cut lies just below a key. Keys of different types do not compare, so a cut also has the rank of its type. `BOTTOM`
is below all keys and `TOP` above them. A partition of the range goes from one cut up to, but not including, the next.

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

SPANS_MAX = 64  # Of one interest on one attribute; a longer list counts as one span from the first to the last.
INDEXED_MAX = 2  # Attributes that an interest is indexed under where each partition checks the whole interest.
_KEY_MAX = 2**63  # One above the largest whole number that an event may have.
_CLASSES: tuple[type, ...] = (int, int, str, bytes, int)  # By rank: bottom, numbers, texts, bytes, top.


class Cut(msgspec.Struct, frozen=True, order=True, array_like=True):
    """A position between two keys. Ordered by rank, then by key."""

    rank: int
    key: Any = 0  # Of Key: msgspec cannot decode a union of text and bytes, so the class is checked below.

    def __post_init__(self) -> None:
        if not 0 <= self.rank < len(_CLASSES) or self.key.__class__ is not _CLASSES[self.rank]:
            raise ValueError(f"expected a cut, got rank {self.rank} with {type(self.key).__name__}")


BOTTOM, TOP = Cut(0), Cut(4)


class AttributeAxis(NamedTuple):
    """One attribute of one event type. The empty name is the type's own axis: every event of the type lies on it.

    An attribute with several topologies has an axis for each. They differ in nothing but their number: which interests
    are registered in which is for the protocol to say.
    """

    type: str
    name: str
    number: int = 0


class Interval(NamedTuple):
    """Everything from `low` up to, but not including, `high`."""

    low: Cut
    high: Cut


EVERYWHERE = Interval(BOTTOM, TOP)


def cut_at(key: Key) -> Cut:
    """The cut just below a key, which is also the position of an event with this key."""
    if isinstance(key, str):
        return Cut(2, key)
    if isinstance(key, bytes):
        return Cut(3, key)
    return Cut(1, max(-_KEY_MAX, min(int(key), _KEY_MAX)))


def position_of(view: View, axis: AttributeAxis) -> Cut | None:
    """The position of an event on an axis; None if this node cannot read the attribute or the event lacks it.

    >>> axis, type_axis = AttributeAxis("Quake", "x"), AttributeAxis("Quake", "")
    >>> position_of(View({"x": 3}), axis) == cut_at(3), position_of(View({"x": 3}), type_axis) == BOTTOM
    (True, True)
    """
    if not axis.name:
        return BOTTOM
    value = view.get(axis.name)
    return None if value is None else cut_at(key_of(value))


def axes_of(packet: Packet) -> list[AttributeAxis]:
    """The axes that an event is routed by: its attributes, readable or not, and the axis of its type."""
    names = [*sorted(packet.view.values), *packet.view.hidden, ""]
    return [AttributeAxis(packet.header.type, name) for name in names]


def indexed_axes(interest: Interest, at_most: int | None = INDEXED_MAX) -> list[AttributeAxis]:
    """The axes that an interest is indexed under: each event it matches has a position in its intervals on all of them.

    The narrowest come first, and there are at most `at_most`. An interest that does not restrict any single attribute
    is indexed under the axis of its type.
    """
    boxes = interest.wanted.boxes()
    names = [name for name in boxes[0] if all(_bounded(box, name) for box in boxes)] if boxes else []
    names.sort(key=lambda name: (_width(boxes, name), name))
    return [AttributeAxis(interest.type, name) for name in names[:at_most]] or [AttributeAxis(interest.type, "")]


def intervals_of(interest: Interest, axis: AttributeAxis) -> list[Interval]:
    """The intervals that an interest covers on one axis, in order and disjoint; the whole axis if it is unreadable."""
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
    """How much of an axis an interest covers. Open intervals and texts count as wider than any range of numbers."""
    ends = [(low, high) for box in boxes for low, high in box[name].spans]
    if not all(isinstance(low, int) and isinstance(high, int) for low, high in ends):
        return float(2 * _KEY_MAX + len(ends))
    return float(sum(high - low for low, high in ends))  # type: ignore[operator, misc]
