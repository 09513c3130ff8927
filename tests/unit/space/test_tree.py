from __future__ import annotations

import numpy as np
import pytest

from tidings.space import KdTree, Zone, balance


def four_zones() -> KdTree:
    return KdTree.whole([10, 10]).split(0, 0, 5).split(0, 1, 3).split(1, 1, 7)


def test_a_point_lies_in_the_zone_it_is_located_in() -> None:
    tree, points = four_zones(), np.array([[0, 0], [4, 3], [5, 6], [9, 9]])
    zones = tree.zones()
    assert all(tuple(point) in zones[zone] for point, zone in zip(points.tolist(), tree.locate(points)))


def test_a_box_touches_the_zones_that_share_a_point_with_it_and_each_once() -> None:
    tree = four_zones()
    low, high = np.array([[0, 0], [4, 2], [5, 0]]), np.array([[10, 10], [6, 4], [6, 1]])
    expected = [
        (box, number)
        for box in range(3)
        for number, zone in enumerate(tree.zones())
        if zone.touches(Zone(tuple(low[box]), tuple(high[box])))
    ]
    assert list(zip(*(column.tolist() for column in tree.touch(low, high)))) == expected


def test_a_split_keeps_the_lower_parts_number_and_gives_the_upper_one_the_next() -> None:
    assert KdTree.whole([10]).split(0, 0, 4).zones() == [Zone((0,), (4,)), Zone((4,), (10,))]


def test_a_merge_undoes_a_split() -> None:
    tree = four_zones()
    merged = tree.merge(tree.locate(np.array([[0, 9]]))[0])
    assert len(merged) == 3
    assert sorted(merged.zones(), key=lambda zone: zone.low) == [
        Zone((0, 0), (5, 10)),
        Zone((5, 0), (10, 7)),
        Zone((5, 7), (10, 10)),
    ]


def test_the_whole_space_cannot_be_merged() -> None:
    with pytest.raises(AssertionError, match="no neighbour"):
        KdTree.whole([3]).merge(0)


def test_evenly_spread_points_get_zones_of_nearly_equal_load() -> None:
    rng = np.random.default_rng(1)
    points = rng.integers(0, 100, (4_000, 2))
    low = rng.integers(0, 90, (500, 2))
    balanced = balance([100, 100], points, low, low + 10, zones_max=16)
    assert len(balanced.tree) == 16
    assert balanced.share.max() < 2.5 / 16


def test_a_crowded_corner_is_split_more_often_than_the_rest() -> None:
    rng = np.random.default_rng(2)
    points = np.concatenate([rng.integers(0, 10, (3_000, 2)), rng.integers(0, 100, (300, 2))])
    tree = balance([100, 100], points, np.zeros((1, 2), int), np.full((1, 2), 100), zones_max=16).tree
    crowded = sum(zone.high[0] <= 12 or zone.high[1] <= 12 for zone in tree.zones())
    assert crowded > 8


def test_points_that_all_lie_in_one_cell_stay_in_one_zone() -> None:
    points = np.full((50, 2), 3)
    assert len(balance([10, 10], points, points[:5], points[:5] + 1, zones_max=8).tree) == 1


def test_an_empty_sample_gives_one_zone_that_bears_nothing() -> None:
    nothing = np.zeros((0, 2), int)
    balanced = balance([10, 10], nothing, nothing, nothing, zones_max=8)
    assert (len(balanced.tree), balanced.share.tolist()) == (1, [0.0])
