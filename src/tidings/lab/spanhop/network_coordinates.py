"""GNP for thousands of brokers at once: network coordinates from pings to a few landmarks.

A broker pings each landmark five times, and the quickest ping counts. The landmarks are
embedded so that distances fit the delays between them, and then every other broker, so that
the sum of squared relative errors is least. The protocol does the same for one broker with
Nelder and Mead's method; here a damped Gauss-Newton method fits thousands of brokers at a
time. Delays are no exact distances, because each link has a minimal delay and pings have
jitter, so fitted coordinates are a little off.
"""

from __future__ import annotations

import numpy as np

from tidings.lab.spanhop.split_tree import Array
from tidings.sim import Plane

PINGS = 5  # To each landmark.
STEPS = 30  # Iterations: enough to fit as well as a broker's own search, which a test checks.
_LEAST_S = 1e-6  # The least distance of two brokers, so that nothing is divided by zero.


def fitted(places: Array, plane: Plane, *, landmarks: int, jitter_s: float, rng: np.random.Generator) -> Array:
    """Coordinates, in seconds of round trip time, of brokers at these true places; landmarks are drawn among them."""
    chosen = rng.choice(len(places), landmarks, replace=False)
    rtts = _pinged(places, places[chosen], plane, jitter_s, rng)
    between = rtts[chosen]
    marks = placed_landmarks((between + between.T) / 2, places.shape[1])
    found = placed_hosts(marks, rtts)
    found[chosen] = marks
    return found


def _pinged(hosts: Array, marks: Array, plane: Plane, jitter_s: float, rng: np.random.Generator) -> Array:
    """The quickest of several pings of every host to every landmark."""
    way = np.linalg.norm(hosts[:, None] - marks, axis=2)
    wavering = rng.exponential(jitter_s, (PINGS, *way.shape)).min(axis=0) if jitter_s else 0.0
    rtts: Array = np.maximum(2 * (plane.floor_s + plane.across_s * way) + wavering, _LEAST_S)
    return rtts


def placed_landmarks(rtts: Array, axes: int) -> Array:
    """Coordinates that fit the delays between landmarks, starting from classical scaling."""
    from scipy.optimize import least_squares  # Takes a third of a second to import, which few experiments need.

    firsts, seconds = np.triu_indices(len(rtts), 1)
    wanted = rtts[firsts, seconds]

    def off(flat: Array) -> Array:
        at = flat.reshape(-1, axes)
        wrong: Array = 1 - np.linalg.norm(at[firsts] - at[seconds], axis=1) / wanted
        return wrong

    best: Array = least_squares(off, _classical(rtts, axes).ravel()).x.reshape(-1, axes)
    return best


def _classical(rtts: Array, axes: int) -> Array:
    squares = np.where(np.eye(len(rtts), dtype=bool), 0.0, rtts) ** 2
    centre = np.eye(len(squares)) - 1 / len(squares)
    values, vectors = np.linalg.eigh(-0.5 * centre @ squares @ centre)
    most: Array = vectors[:, -axes:] * np.sqrt(np.maximum(values[-axes:], _LEAST_S))
    return most


def placed_hosts(marks: Array, rtts: Array) -> Array:
    """Coordinates that fit each host's delays to the landmarks: the best of searches from their middle and four of them."""
    starts = np.concatenate([marks.mean(axis=0, keepdims=True), marks[:4]])
    ends = [_downhill(np.repeat(start[None], len(rtts), axis=0), marks, rtts) for start in starts + _LEAST_S]
    best = np.argmin([misfit(at, marks, rtts) for at in ends], axis=0)
    found: Array = np.stack(ends)[best, np.arange(len(rtts))]
    return found


def misfit(at: Array, marks: Array, rtts: Array) -> Array:
    """For each host the sum of squared relative errors."""
    total: Array = ((1 - np.linalg.norm(at[:, None] - marks, axis=2) / rtts) ** 2).sum(axis=1)
    return total


def _downhill(at: Array, marks: Array, rtts: Array) -> Array:
    damping, least = np.full(len(at), 1e-2), misfit(at, marks, rtts)
    for _ in range(STEPS):
        step = _step(at, marks, rtts, damping)
        there = misfit(at + step, marks, rtts)
        better = there < least
        at = np.where(better[:, None], at + step, at)
        least = np.where(better, there, least)
        damping = np.where(better, damping / 4, damping * 4)
    return at


def _step(at: Array, marks: Array, rtts: Array, damping: Array) -> Array:
    """One damped Gauss-Newton step."""
    apart = at[:, None] - marks
    way = np.maximum(np.linalg.norm(apart, axis=2), _LEAST_S)
    slopes, off = apart / (way * rtts)[:, :, None], 1 - way / rtts
    normal = np.einsum("hmi,hmj->hij", slopes, slopes)
    normal += np.einsum("h,hij->hij", damping, normal * np.eye(at.shape[1])) + np.eye(at.shape[1]) * _LEAST_S
    step: Array = np.linalg.solve(normal, np.einsum("hmi,hm->hi", slopes, off)[:, :, None])[:, :, 0]
    return step
