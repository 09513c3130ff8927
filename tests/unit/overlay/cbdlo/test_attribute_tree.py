"""The tree of partitions: cut at the bounds of interests, and routable from everywhere (CBDLO-INV-08)."""

from __future__ import annotations

from random import Random

import pytest

from tests.given_trees import SPACE_AXIS, a_tree, check_tree, registered, routes_between, wish
from tidings.overlay import Everything, Interest, Peer, SubscriptionId
from tidings.overlay.cbdlo.attribute_tree import AttributeTree, Registration
from tidings.overlay.random_graph.partition import BOTTOM, TOP, cut_at, intervals_of


def test_the_range_is_cut_at_the_bounds_of_interests() -> None:
    tree = a_tree([(3, 6), (5, 8)])
    assert [(each.low, each.high) for each in tree] == [
        (BOTTOM, cut_at(3)),
        (cut_at(3), cut_at(5)),
        (cut_at(5), cut_at(7)),
        (cut_at(7), cut_at(9)),
        (cut_at(9), TOP),
    ]
    assert registered(tree) == [[], [0], [0, 1], [1], []]
    check_tree(tree)


def test_a_partition_belongs_to_the_node_whose_interest_made_the_cut() -> None:
    tree = a_tree([(3, 6), (5, 8)])
    assert [each.owner.id for each in tree] == ["founder", "n0", "n1", "n0", "n1"]


def test_a_cut_is_removed_with_its_last_user_and_not_before() -> None:
    tree = a_tree([(3, 6), (3, 8)])
    tree.unregister(wish(0, 3, 6).id)
    assert [each.low for each in tree] == [BOTTOM, cut_at(3), cut_at(9)]
    tree.unregister(wish(1, 3, 8).id)
    assert [each.low for each in tree] == [BOTTOM]
    check_tree(tree)


def test_an_interest_of_the_same_id_is_replaced() -> None:
    tree = a_tree([(3, 6)])
    again = wish(0, 10, 20)
    tree.register(Registration(Peer("n0"), again), intervals_of(again, SPACE_AXIS))
    assert [each.low for each in tree] == [BOTTOM, cut_at(10), cut_at(21)]
    assert len(tree.registrations()) == 1


def test_an_interest_in_everything_makes_no_cut() -> None:
    tree = AttributeTree(Peer("founder"))
    everything = Interest(SubscriptionId("a", 0, 1), "Event", Everything())
    tree.register(Registration(Peer("a"), everything), intervals_of(everything, SPACE_AXIS))
    assert registered(tree) == [[1]]
    check_tree(tree)


def test_only_changed_partitions_are_listed() -> None:
    tree = a_tree([(10 * k, 10 * k + 5) for k in range(64)])
    tree.changed()
    late = wish(99, 322, 323)
    tree.register(Registration(Peer("n99"), late), intervals_of(late, SPACE_AXIS))
    changed = tree.changed()
    assert cut_at(322) in changed
    assert len(changed) <= 16, "a cut concerns its neighbours and what is rotated, not the whole tree"
    assert tree.changed() == []


@pytest.mark.parametrize("fingers", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_every_partition_is_reached_from_every_other(seed: int, fingers: bool) -> None:
    """CBDLO-INV-08: within twice the height, or within the height and one with fingers."""
    rng = Random(seed)
    tree = a_tree([(low, low + rng.randrange(30)) for low in rng.sample(range(200), 25)])
    height = tree.root.height
    for goal, steps in routes_between(tree, fingers=fingers):
        assert goal, "the partition was reached"
        assert steps <= (height + 1 if fingers else 2 * height)


@pytest.mark.parametrize("seed", range(3))
def test_no_owner_is_visited_twice_however_many_partitions_it_has(seed: int) -> None:
    rng = Random(seed)
    tree = a_tree([(low, low + rng.randrange(60)) for low in rng.sample(range(300), 40)], owners=7)
    for fingers in (False, True):
        for goal, steps in routes_between(tree, fingers=fingers):
            assert goal
            assert steps <= 7
