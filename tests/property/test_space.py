"""Zones tile the space: every point lies in exactly one, and a box meets a point only in zones it touches."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tidings.space import KdTree, Zone, balance

AXES_MAX = 3


@st.composite
def trees(draw: st.DrawFn) -> KdTree:
    counts = draw(st.lists(st.integers(1, 12), min_size=1, max_size=AXES_MAX))
    tree = KdTree.whole(counts)
    for _ in range(draw(st.integers(0, 10))):
        number = draw(st.integers(0, len(tree) - 1))
        axis = draw(st.integers(0, len(counts) - 1))
        zone = tree.zones()[number]
        if zone.high[axis] - zone.low[axis] > 1:
            tree = tree.split(number, axis, draw(st.integers(zone.low[axis] + 1, zone.high[axis] - 1)))
    return tree


def every_point(tree: KdTree) -> np.ndarray:
    return np.stack([axis.ravel() for axis in np.meshgrid(*map(np.arange, tree.cell_counts), indexing="ij")], 1)


@given(trees())
def test_zones_tile_the_space_and_locate_finds_the_one_of_each_point(tree: KdTree) -> None:
    zones, points = tree.zones(), every_point(tree)
    assert sum(zone.size for zone in zones) == len(points)
    for point, number in zip(points.tolist(), tree.locate(points)):
        assert [n for n, zone in enumerate(zones) if point in zone] == [number]


@given(trees(), st.data())
def test_a_box_touches_exactly_the_zones_it_shares_points_with(tree: KdTree, data: st.DataObject) -> None:
    low = [data.draw(st.integers(0, count - 1)) for count in tree.cell_counts]
    high = [data.draw(st.integers(start + 1, count)) for start, count in zip(low, tree.cell_counts)]
    box = Zone(tuple(low), tuple(high))
    inside = np.array([point for point in every_point(tree).tolist() if point in box])
    _, touched = tree.touch(np.array([low]), np.array([high]))
    assert touched.tolist() == np.unique(tree.locate(inside)).tolist()


@given(trees())
def test_merging_every_pair_leads_back_to_the_whole(tree: KdTree) -> None:
    while len(tree) > 1:
        before = len(tree)
        tree = tree.merge(_mergeable(tree))
        assert len(tree) == before - 1
    assert tree.zones() == [Zone.whole(tree.cell_counts)]


def _mergeable(tree: KdTree) -> int:
    deepest = int(np.flatnonzero(tree.axis != -1)[-1])  # The split made last has two leaves below it.
    return int(tree.left[tree.left[deepest]])


@given(st.integers(1, 20), st.integers(0, 60), st.integers(0, 2**32 - 1))
def test_a_balanced_tree_never_has_more_zones_than_asked_and_shares_add_up(most: int, size: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    points, low = rng.integers(0, 20, (size, 2)), rng.integers(0, 15, (size // 2, 2))
    balanced = balance([20, 20], points, low, low + 5, zones_max=most)
    assert len(balanced.tree) <= most
    assert len(balanced.share) == len(balanced.tree)
    assert np.isclose(balanced.share.sum(), 1.0 if size else 0.0)
