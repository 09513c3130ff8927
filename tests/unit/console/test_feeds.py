"""Events as pages get them, and the values that pages send back."""

from __future__ import annotations

import pytest

from tidings.console.feeds import EXACT_MAX, from_page, show
from tidings.errors import EventError
from tidings.events import EventType, Timestamp
from tidings.net import Received

ODOMETER = EventType("Odometer", metres=int, plate=str)


@pytest.mark.parametrize("metres", [0, -5, EXACT_MAX, EXACT_MAX + 2, -(1 << 62) - 1])
def test_a_whole_number_is_on_the_page_as_exactly_as_it_was_published(metres: int) -> None:
    event = Received("a.0.1", "Odometer", Timestamp(0), {"metres": metres, "plate": "1"})
    on_page = show(event)["values"]
    assert str(on_page["metres"]) == str(metres)
    assert isinstance(on_page["metres"], int) == (abs(metres) <= EXACT_MAX)
    assert from_page(on_page, ODOMETER) == {"metres": metres, "plate": "1"}


@pytest.mark.parametrize("metres", ["1.5", "", "x", "٣", "9" * 5000])
def test_a_text_that_is_no_whole_number_is_refused(metres: str) -> None:
    with pytest.raises(EventError):
        from_page({"metres": metres}, ODOMETER)
