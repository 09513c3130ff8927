"""Ids already handled."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidings.overlay.dedup import SeenIds


@given(st.lists(st.integers(0, 20)), st.integers(1, 8))
def test_an_id_is_new_unless_it_is_among_the_last_different_ones(ids: list[int], at_most: int) -> None:
    seen, recent = SeenIds[int](at_most), list[int]()
    for id in ids:
        assert seen.add(id) == (id not in recent)
        recent = recent if id in recent else [*recent, id][-at_most:]
        assert len(seen) == len(recent) <= at_most
