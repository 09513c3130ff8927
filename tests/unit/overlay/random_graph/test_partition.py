"""Cuts, and the intervals that an interest covers on one attribute."""

from __future__ import annotations

from typing import Any

import pytest

from tidings import filters
from tidings.events import EventType
from tidings.overlay import Everything, Header, Interest, Packet, Ranges, Sql, SubscriptionId, View
from tidings.overlay.messages import EventId
from tidings.overlay.random_graph.partition import (
    BOTTOM,
    EVERYWHERE,
    SPANS_MAX,
    TOP,
    AttributeAxis,
    Cut,
    Interval,
    axes_of,
    cut_at,
    indexed_axes,
    intervals_of,
    position_of,
)

PLATE = EventType("Plate", plate=str, speed=float, area=str)
ID = SubscriptionId("a", 0, 1)
X = AttributeAxis("Event", "x")


def interest(wanted: Any, event_type: str = "Event") -> Interest:
    return Interest(ID, event_type, wanted)


def sql(text: str) -> Interest:
    return interest(Sql.of(filters.parse(text, PLATE)), "Plate")


def test_cuts_of_all_types_have_one_order() -> None:
    assert BOTTOM < cut_at(-5) < cut_at(7) < cut_at("") < cut_at("b") < cut_at(b"a") < TOP


@pytest.mark.parametrize("wrong", [(1, "a"), (2, 3), (1, True), (7, 0), (1, [1]), (1, float("nan"))])
def test_a_cut_that_does_not_compare_is_refused(wrong: tuple[int, Any]) -> None:
    with pytest.raises(ValueError, match="expected a cut"):
        Cut(*wrong)


def test_a_range_is_one_interval() -> None:
    assert intervals_of(interest(Ranges.of(x=(3, 7))), X) == [Interval(cut_at(3), cut_at(8))]


def test_an_interest_is_indexed_under_its_narrowest_attributes() -> None:
    wanted = interest(Ranges.of(a=(0, 90), b=(0, 9), c=(0, 30)))
    assert indexed_axes(wanted) == [AttributeAxis("Event", "b"), AttributeAxis("Event", "c")]
    assert len(indexed_axes(wanted, None)) == 3


def test_an_interest_that_restricts_no_single_attribute_is_indexed_under_its_type() -> None:
    of_type = [AttributeAxis("Event", "")]
    assert indexed_axes(interest(Everything())) == of_type
    assert indexed_axes(sql("speed > 3 OR area = 'EC2'")) == [AttributeAxis("Plate", "")]
    assert indexed_axes(sql("speed > 3 OR speed IS NULL")) == [AttributeAxis("Plate", "")]


def test_alternatives_on_one_attribute_are_joined_where_they_touch() -> None:
    wanted = sql("area = 'a' OR (area >= 'a' AND area < 'b') OR area = 'z'")
    (axis,) = indexed_axes(wanted)
    assert [interval.low for interval in intervals_of(wanted, axis)] == [cut_at("a"), cut_at("z")]


def test_an_open_end_reaches_the_end_of_the_range() -> None:
    wanted = sql("plate >= 'm'")
    assert intervals_of(wanted, AttributeAxis("Plate", "plate")) == [Interval(cut_at("m"), TOP)]


def test_an_unreadable_interest_covers_the_whole_axis() -> None:
    assert intervals_of(interest(Everything(exact=False)), X) == [EVERYWHERE]


def test_a_list_that_is_too_long_is_one_interval() -> None:
    words = ", ".join(f"'{index:03}'" for index in range(SPANS_MAX + 1))
    wanted = sql(f"plate IN ({words})")
    assert len(intervals_of(wanted, AttributeAxis("Plate", "plate"))) == 1


def test_an_event_has_a_position_where_its_value_can_be_read() -> None:
    view = View({"x": 3}, hidden=("y",))
    assert position_of(view, X) == cut_at(3)
    assert position_of(view, AttributeAxis("Event", "y")) is None
    assert position_of(view, AttributeAxis("Event", "")) == BOTTOM
    packet = Packet(Header(EventId("a", 0, 1), "Event"), view)
    assert [axis.name for axis in axes_of(packet)] == ["x", "y", ""]


def test_the_position_of_a_matching_event_lies_in_an_interval() -> None:
    for wanted in (sql("speed > 2.5 AND speed <= 7"), sql("plate LIKE 'AB%'"), sql("area IN ('EC2', 'WC1')")):
        for values in ({"speed": 2.5, "plate": "AB12", "area": "WC1"}, {"speed": 7.0, "plate": "AC", "area": "W"}):
            packet = Packet(Header(EventId("a", 0, 1), "Plate"), View(values))
            for axis in indexed_axes(wanted):
                position = position_of(packet.view, axis)
                assert position is not None
                inside = any(low <= position < high for low, high in intervals_of(wanted, axis))
                assert inside or not wanted.matches(packet)
