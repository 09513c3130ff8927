"""Fitted network coordinates: the lab places thousands at once just as a broker places itself."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tidings.lab.spanhop.network_coordinates import fitted, misfit, placed_hosts, placed_landmarks
from tidings.overlay.spanhop.network_coordinates import embed, place
from tidings.sim import Plane


def noisy_rtts(seed: int, hosts: int, marks: int) -> tuple[np.ndarray, np.ndarray]:
    """Delays of hosts to landmarks, and between landmarks, that are no exact distances."""
    rng = np.random.default_rng(seed)
    truth = rng.random((hosts + marks, 2))
    rtts = np.linalg.norm(truth[:, None] - truth[-marks:], axis=2) * 0.2 + 0.004
    rtts *= rng.uniform(1, 1.1, rtts.shape)
    between = (rtts[-marks:] + rtts[-marks:].T) / 2
    return rtts[:hosts], between


@pytest.mark.parametrize("seed", range(3))
def test_a_host_is_placed_as_well_as_a_broker_places_itself(seed: int) -> None:
    rtts, between = noisy_rtts(seed, 40, 8)
    marks = placed_landmarks(between, 2)
    found = placed_hosts(marks, rtts)
    alone = np.array([place([tuple(mark) for mark in marks], row.tolist()) for row in rtts])
    assert (misfit(found, marks, rtts) <= misfit(alone, marks, rtts) + 1e-6).all()
    same = np.linalg.norm(found - alone, axis=1) < 1e-6
    assert same.mean() > 0.95, "where both come down into the same valley, they come to the same place"


@pytest.mark.parametrize("seed", range(3))
def test_landmarks_fit_as_well_as_the_first_landmark_places_them(seed: int) -> None:
    _, between = noisy_rtts(seed, 1, 8)
    pairs = np.triu_indices(8, 1)

    def off(at: np.ndarray) -> float:
        way = np.linalg.norm(at[:, None] - at, axis=2)[pairs]
        return float(((1 - way / between[pairs]) ** 2).sum())

    assert off(placed_landmarks(between, 2)) <= off(np.array(embed(between.tolist(), 2))) + 1e-6


def test_fitted_places_tell_delays_but_not_exactly() -> None:
    """Links have a least delay and pings waver: what is fitted is off by some per cent, and not by nothing."""
    plane = Plane(1)
    truth = np.array([plane.point(node) for node in range(200)])
    found = fitted(truth, plane, landmarks=8, jitter_s=0.002, rng=np.random.default_rng(1))
    off = [
        abs(math.dist(found[a], found[b]) / (2 * plane.delay_s(a, b)) - 1) for a in range(100) for b in range(100, 200)
    ]
    assert 0.005 < float(np.median(off)) < 0.1
