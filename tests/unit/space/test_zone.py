from __future__ import annotations

import pytest

from tidings.space import Zone


def test_the_whole_space_holds_its_first_and_its_last_point() -> None:
    whole = Zone.whole([4, 3])
    assert (0, 0) in whole
    assert (3, 2) in whole
    assert (4, 2) not in whole


def test_a_split_gives_two_zones_that_do_not_touch_and_lose_no_point() -> None:
    whole = Zone.whole([4, 3])
    below, above = whole.split(1, 2)
    assert not below.touches(above)
    assert below.size + above.size == whole.size


def test_zones_that_only_share_an_edge_do_not_touch() -> None:
    assert not Zone((0, 0), (2, 2)).touches(Zone((2, 0), (4, 2)))
    assert Zone((0, 0), (3, 2)).touches(Zone((2, 1), (4, 2)))


def test_a_split_at_the_edge_is_our_own_mistake() -> None:
    with pytest.raises(AssertionError, match="cannot split"):
        Zone.whole([4]).split(0, 4)
