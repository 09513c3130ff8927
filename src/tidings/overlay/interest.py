"""Interests: what a router knows of a subscription, as far as it can read it.

A router may be unable to read all of a condition. What it can read must never reject an
event that the whole condition matches; accepting too many costs messages only, for the
node matches exactly before it delivers.

    Ranges      a box of whole numbers, quick to match: the lab's and the tests' workloads
    Sql         a condition in SQL, as subscribers write them
    Everything  all events of the type; also what an interest is to a node that can read none of it

>>> quake = View({"magnitude": 7, "depth": 12})
>>> Ranges.of(magnitude=(6, 10)).matches(quake), Ranges.of(magnitude=(6, 10)).matches(View({}, hidden=("magnitude",)))
(True, True)
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from hashlib import blake2b
from typing import Any, NamedTuple, Protocol, TypeAlias

import msgspec

from tidings import filters
from tidings.errors import FilterTooLarge
from tidings.events import Attribute, EventType, Key, Value, ValueType, type_of
from tidings.filters import View
from tidings.overlay.messages import Packet, SubscriptionId, encoded

CONDITION_CHARS_MAX = 32_768  # Of one condition in the network: a list of some thousand number plates.
WEIGHT_MAX = 33  # Of one condition: a kilobyte of it weighs as much as a short one.
PARSED_MAX = 16_384  # Conditions kept parsed, some 10 kB each; one pushed out is parsed again when it is next asked.
LONG_CHARS = 1024  # Longer ones take up to half a megabyte, and some milliseconds to parse.
PARSED_LONG_MAX = 1024


class Span(NamedTuple):
    """Keys from `low` up to, not including, `high`, as the normal form of conditions has them; None is no bound.

    The key after a whole number n is n + 1; `tidings.filters.next_key` gives it for all types.
    """

    low: Key | None
    high: Key | None

    def holds(self, key: Key) -> bool:
        """Whether `key` lies in the span."""
        low, high = self
        return (low is None or low <= key) and (high is None or key < high)  # type: ignore[operator]

    def meets(self, other: Span) -> bool:
        """Whether some key may lie in both."""
        return _before(self.low, other.high) and _before(other.low, self.high)


class Extent(NamedTuple):
    """What a box allows on one axis: some spans, in order and apart, and perhaps that the attribute is absent."""

    spans: tuple[Span, ...]
    absent: bool = False


Box: TypeAlias = dict[str, Extent]  # One extent for each constrained attribute; the others are unbounded.


class InterestFilter(Protocol):
    """The readable part of an interest, in whatever form it comes."""

    @property
    def exact(self) -> bool:
        """Whether this is the whole condition. If not, the condition is narrower."""

    def matches(self, view: View) -> bool:
        """Whether the event may match, as far as the view tells. What is unknown counts as yes."""

    def covers(self, other: AnyWanted) -> bool:
        """Whether this matches every event that `other` matches. May be False for a pair that covers, never True wrongly."""

    def overlaps(self, other: AnyWanted) -> bool:
        """Whether some event may match both. May be True for a pair without one, never False wrongly."""

    def boxes(self) -> tuple[Box, ...]:
        """Boxes that together hold every matching event, and perhaps others."""


class Everything(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """All events of the type. Not `exact` where this node cannot read the condition."""

    exact: bool = True

    def matches(self, view: View) -> bool:
        return True

    def covers(self, other: AnyWanted) -> bool:
        return self.exact

    def overlaps(self, other: AnyWanted) -> bool:
        return True

    def boxes(self) -> tuple[Box, ...]:
        return ({},)


class Ranges(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Each named attribute is a whole number from a lowest to a highest, both included.

    An absent attribute is in no range, as NULL is in no comparison.
    """

    ranges: tuple[tuple[str, int, int], ...]
    exact: bool = True

    @classmethod
    def of(cls, **ranges: tuple[int, int]) -> Ranges:
        """`Ranges.of(price=(10, 20), size=(0, 5))`, the same whatever the order."""
        return cls(tuple((name, *ranges[name]) for name in sorted(ranges)))

    def matches(self, view: View) -> bool:
        values = view.values
        for name, low, high in self.ranges:
            value = values.get(name)
            if value is None:
                if not view.unknown(name):
                    return False
            elif value.__class__ is not int or not low <= value <= high:
                return False
        return True

    def covers(self, other: AnyWanted) -> bool:
        if not self.exact or not isinstance(other, Ranges):
            return self.exact and not self.ranges
        theirs = {name: (low, high) for name, low, high in other.ranges}
        return all(
            name in theirs and low <= theirs[name][0] and theirs[name][1] <= high for name, low, high in self.ranges
        )

    def overlaps(self, other: AnyWanted) -> bool:
        return _any_meet(self.boxes(), other.boxes())

    def boxes(self) -> tuple[Box, ...]:
        if any(low > high for _, low, high in self.ranges):
            return ()
        return ({name: Extent((Span(low, high + 1),)) for name, low, high in self.ranges},)


class Sql(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A condition as text, with the types of the attributes it names, so that any node can read it.

    >>> fast = Sql.of(filters.parse("speed > 20 AND plate LIKE 'AB%'"))
    >>> fast.matches(View({"speed": 31.0}, hidden=("plate",))), fast.matches(View({"speed": 9.0}, hidden=("plate",)))
    (True, False)
    """

    text: str
    types: tuple[tuple[str, str], ...]
    exact: bool = True

    def __post_init__(self) -> None:
        check_size(self.text)
        self.condition()  # Raises FilterError: what a peer sends is refused when it comes, not when it is used.

    @classmethod
    def of(cls, condition: filters.Condition, *, exact: bool = True) -> Sql:
        """The condition, ready to travel."""
        event_type = condition.event_type
        return cls(str(condition), tuple((name, event_type[name].type.value) for name in condition.attributes), exact)

    def condition(self) -> filters.Condition:
        """The parsed condition."""
        return (_parsed if len(self.text) <= LONG_CHARS else _parsed_long)(self.text, self.types)

    def matches(self, view: View) -> bool:
        condition = self.condition()
        for name, wanted_type in self.types:
            value = view.values.get(name)
            if value is not None and not ValueType(wanted_type).holds(value):
                return False  # An event that does not fit its type matches nothing.
        if not view.hidden and not view.opaque:
            return condition.matches(view.values)
        return filters.may_match(condition, view)

    def covers(self, other: AnyWanted) -> bool:
        return self.exact and isinstance(other, Sql) and filters.covers(self.condition(), other.condition())

    def overlaps(self, other: AnyWanted) -> bool:
        return _any_meet(self.boxes(), other.boxes())

    def boxes(self) -> tuple[Box, ...]:
        return (_boxes if len(self.text) <= LONG_CHARS else _boxes_long)(self.text, self.types)


AnyWanted: TypeAlias = Ranges | Sql | Everything


class InterestVersion(NamedTuple):
    """Names what an interest says."""

    id: SubscriptionId
    mark: int


class Interest(msgspec.Struct, frozen=True, array_like=True):
    """A subscription on its way. Routers read all but the envelope, which they pass on untouched.

    `wanted` is this node's own reading and changes from hop to hop; the rest does not.
    """

    id: SubscriptionId
    type: str
    wanted: AnyWanted
    envelope: bytes = b""

    def statement(self) -> tuple[Any, ...]:
        """What its origin signs: of a sealed condition the envelope, for each node reads another part of it."""
        return self.id, self.type, self.envelope, None if self.envelope else self.wanted

    @property
    def version(self) -> InterestVersion:
        """Its id with a digest of what it says: a node may have heard two under one id, and one of them from a liar."""
        return InterestVersion(self.id, int.from_bytes(blake2b(encoded(self.statement()), digest_size=7).digest()))

    def matches(self, packet: Packet) -> bool:
        """Whether the packet may match."""
        return self.type == packet.header.type and self.wanted.matches(packet.view)

    def covers(self, other: Interest) -> bool:
        """Whether a node that forwards for this interest need not know the other.

        Errs only to the safe side. Interests that this node cannot wholly read cover and
        are covered only by themselves, as their readable parts say too little.
        """
        if self.type != other.type:
            return False
        if self.wanted.exact and other.wanted.exact:
            return self.wanted.covers(other.wanted)
        return self == other

    @property
    def weight(self) -> int:
        """What it costs to compare an event with it, in terms of a short condition: from 1 to WEIGHT_MAX."""
        wanted = self.wanted
        return 1 + len(wanted.text) // LONG_CHARS if wanted.__class__ is Sql else 1

    def overlaps(self, other: Interest) -> bool:
        """Whether some event may match both."""
        return self.type == other.type and self.wanted.overlaps(other.wanted)


def check_size(condition: str) -> None:
    """Raises FilterTooLarge for a condition that is too long for the network, before anything of it is parsed."""
    if len(condition) > CONDITION_CHARS_MAX:
        why = f"in the network a condition may have {CONDITION_CHARS_MAX:,} characters, this one has {len(condition):,}"
        raise FilterTooLarge(why, condition, 1)


def key_of(value: Value) -> Key:
    """Where a value stands on its axis: what `Span.holds` is asked of."""
    return type_of(value).key(value)


def _parse(text: str, types: tuple[tuple[str, str], ...]) -> filters.Condition:
    attributes = tuple(Attribute(name, ValueType(value_type)) for name, value_type in types)
    return filters.parse(text, EventType.of("Interest", attributes))


_parsed = lru_cache(maxsize=PARSED_MAX)(_parse)
_parsed_long = lru_cache(maxsize=PARSED_LONG_MAX)(_parse)


def _boxes_of(text: str, types: tuple[tuple[str, str], ...]) -> tuple[Box, ...]:
    return tuple(
        {name: Extent(tuple(Span(*pair) for pair in side.pairs), side.null) for name, side in box.sides}
        for box in Sql(text, types).condition().boxes
    )


_boxes = lru_cache(maxsize=PARSED_MAX)(_boxes_of)
_boxes_long = lru_cache(maxsize=PARSED_LONG_MAX)(_boxes_of)


def _any_meet(some: tuple[Box, ...], others: tuple[Box, ...]) -> bool:
    return any(_meet(one, other) for one in some for other in others)


def _meet(one: Box, other: Mapping[str, Extent]) -> bool:
    return all(name not in other or _extents_meet(extent, other[name]) for name, extent in one.items())


def _extents_meet(one: Extent, other: Extent) -> bool:
    return (one.absent and other.absent) or any(a.meets(b) for a in one.spans for b in other.spans)


def _before(low: Any, high: Any) -> bool:
    """Whether `low` is below `high`. Keys of different types do not compare; they may be each other's match."""
    if low is None or high is None or isinstance(low, str) is not isinstance(high, str):
        return True
    return isinstance(low, bytes) is not isinstance(high, bytes) or bool(low < high)
