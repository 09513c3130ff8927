"""Laws of the attribute tree, whatever is registered and withdrawn.

CBDLO-INV-07, CBDLO-INV-S1 to CBDLO-INV-S5, CBDLO-INV-09.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.given_trees import SPACE_AXIS, check_tree, wish
from tidings.overlay import Peer
from tidings.overlay.cbdlo.attribute_tree import AttributeTree, Registration
from tidings.overlay.random_graph.partition import cut_at, intervals_of

ranges = st.tuples(st.integers(0, 60), st.integers(0, 25)).map(lambda pair: (pair[0], pair[0] + pair[1]))
changes = st.lists(st.tuples(st.integers(0, 20), st.none() | ranges), max_size=120)


@given(changes)
@settings(max_examples=60)
def test_the_tree_is_complete_and_balanced_after_any_changes(done: list[tuple[int, tuple[int, int] | None]]) -> None:
    tree = AttributeTree(Peer("founder"))
    for number, wanted in done:
        if wanted is None:
            tree.unregister(wish(number, 0, 0).id)
        else:
            interest = wish(number, *wanted)
            tree.register(Registration(Peer(f"n{number}"), interest), intervals_of(interest, SPACE_AXIS))
    check_tree(tree)


@given(st.lists(ranges, max_size=40), st.lists(st.integers(-5, 95), min_size=1, max_size=20))
@settings(max_examples=60)
def test_the_interests_registered_where_a_value_lies_are_those_that_match_it(
    wanted: list[tuple[int, int]], values: list[int]
) -> None:
    """CBDLO-INV-01 and CBDLO-INV-03, within one attribute."""
    tree = AttributeTree(Peer("founder"))
    for number, (low, high) in enumerate(wanted):
        interest = wish(number, low, high)
        tree.register(Registration(Peer(f"n{number}"), interest), intervals_of(interest, SPACE_AXIS))
    for value in values:
        found = {id.seq for id in tree.locate(cut_at(value)).registered}
        assert found == {number for number, (low, high) in enumerate(wanted) if low <= value <= high}


@given(st.lists(ranges, max_size=40))
@settings(max_examples=40)
def test_a_tree_without_interests_is_one_partition(wanted: list[tuple[int, int]]) -> None:
    tree = AttributeTree(Peer("founder"))
    for number, (low, high) in enumerate(wanted):
        interest = wish(number, low, high)
        tree.register(Registration(Peer(f"n{number}"), interest), intervals_of(interest, SPACE_AXIS))
    for number, (low, high) in enumerate(wanted):
        tree.unregister(wish(number, low, high).id)
        check_tree(tree)
    assert len(tree) == 1
