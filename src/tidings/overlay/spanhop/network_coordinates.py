"""Network coordinates: points in a Euclidean space whose distances estimate the delays between hosts.

GNP: a few landmarks measure the delays between them and are embedded so that distances fit
best; a host then measures its delay to the landmarks only and computes its own coordinates.
The fit minimises the sum of squared relative errors by Nelder and Mead's method from fixed
starts, so that the same delays always give the same coordinates.

Vivaldi needs no landmarks: each measured delay moves a host a little towards or away from the
other, as a spring of that length would.

    >>> corners = ((0.0, 0.0), (3.0, 0.0), (0.0, 4.0))
    >>> [round(x, 3) for x in place(corners, (5.0, 4.0, 3.0))]
    [3.0, 4.0]
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any, TypeAlias

import numpy as np

from tidings.errors import InputError
from tidings.overlay.spanhop.next_hop import Point
from tidings.space import Zone

Coordinates: TypeAlias = tuple[float, ...]

STARTS_MAX = 5  # Searches; the best result counts.
STEPS_MAX = 400  # Of one search, for each unknown.
GOOD_FIT = 1e-9  # A misfit below which another start cannot improve visibly.
RTT_MIN = 1e-6  # Delays below a microsecond are rounding errors.
PRECISION_S = 0.005  # What a round trip between busy brokers is measured to: nearer ones are not told apart.
VIVALDI_STEP = 0.25  # Vivaldi's c_c: the share of the error that one measurement corrects.
VIVALDI_ERROR_WEIGHT = 0.25  # Vivaldi's c_e: the weight of one measurement in a host's error estimate.


def embed(rtts: Sequence[Sequence[float]], axes: int) -> tuple[Coordinates, ...]:
    """Coordinates of the landmarks, given the delay between each two; at least one more of them than axes."""
    count = len(rtts)
    if count < axes + 1:
        raise InputError(f"expected at least {axes + 1} landmarks for {axes} axes, got {count}")
    pairs = list(combinations(range(count), 2))
    firsts, seconds = np.array([a for a, _ in pairs]), np.array([b for _, b in pairs])
    wanted = np.array([max((rtts[a][b] + rtts[b][a]) / 2, RTT_MIN) for a, b in pairs])

    def misfit(flat: Any) -> float:
        at = flat.reshape(count, axes)
        return _misfit(np.linalg.norm(at[firsts] - at[seconds], axis=1), wanted)

    starts = _classical(rtts, axes), *_spread(count, axes, float(wanted.max()))
    best = _downhill(misfit, [start.ravel() for start in starts]).reshape(count, axes)
    return tuple(tuple(map(float, row)) for row in best)


def place(landmarks: Sequence[Coordinates], rtts: Sequence[float]) -> Coordinates:
    """A host's coordinates, given the landmarks' and its delay to each."""
    axes = len(landmarks[0])
    if len(landmarks) != len(rtts) or len(landmarks) < axes + 1:
        raise InputError(f"expected a delay to each of at least {axes + 1} landmarks, got {len(rtts)}")
    fixed, wanted = np.array(landmarks), np.maximum(np.array(rtts, float), RTT_MIN)

    def misfit(at: Any) -> float:
        return _misfit(np.linalg.norm(fixed - at, axis=1), wanted)

    return tuple(map(float, _downhill(misfit, _starts_among(fixed))))


def bounds(places: Sequence[Coordinates], margin: float = 0.5) -> tuple[Coordinates, Coordinates]:
    """The bounds within which all hosts are taken to lie: those of the landmarks, and half as much on each side."""
    low, high = np.min(places, axis=0), np.max(places, axis=0)
    more = np.maximum((high - low) * margin, RTT_MIN)
    return tuple(map(float, low - more)), tuple(map(float, high + more))


def scale(at: Coordinates, zone: Zone, low: Coordinates, high: Coordinates) -> Point:
    """The point of a zone to which network coordinates scale: keeps the order on each axis, stays inside (SPANHOP-P11).

    >>> scale((0.5, 9.0), Zone((0, 0), (10, 10)), (0.0, 0.0), (1.0, 1.0))
    (5, 9)
    """
    point = []
    for x, least, most, start, end in zip(at, low, high, zone.low, zone.high):
        share = (x - least) / (most - least) if most > least else 0.0
        point.append(start + min(max(int(share * (end - start)), 0), end - start - 1) if share == share else start)
    return tuple(point)


def distance(one: Coordinates, other: Coordinates) -> float:
    """The estimated delay between two hosts."""
    return math.dist(one, other)


@dataclass(frozen=True, slots=True)
class VivaldiEstimate:
    """A host's coordinates in Vivaldi, and its estimate of their relative error."""

    at: Coordinates
    error: float = 1.0

    def updated(self, other: VivaldiEstimate, rtt: float, direction: Coordinates) -> VivaldiEstimate:
        """The estimate after a measurement. `direction` is where to move if both hosts have the same coordinates."""
        rtt = max(rtt, RTT_MIN)
        apart = distance(self.at, other.at)
        weight = self.error / max(self.error + other.error, RTT_MIN)
        off = abs(apart - rtt) / max(rtt, PRECISION_S)
        trust = VIVALDI_ERROR_WEIGHT * weight
        error = min(1.0, off * trust + self.error * (1 - trust))
        away = [a - b for a, b in zip(self.at, other.at)] if apart > RTT_MIN else list(direction)
        length = math.hypot(*away) or 1.0
        move = VIVALDI_STEP * weight * (rtt - apart) / length
        return VivaldiEstimate(tuple(a + move * step for a, step in zip(self.at, away)), error)


def _misfit(found: Any, wanted: Any) -> float:
    return float((((wanted - found) / wanted) ** 2).sum())


def _downhill(misfit: Any, starts: Sequence[Any]) -> Any:
    """The best result of Nelder and Mead's simplex searches from each start."""
    from scipy.optimize import minimize  # Takes a third of a second to import; most brokers never need it.

    best = None
    for start in starts[:STARTS_MAX]:
        options = {"maxiter": STEPS_MAX * len(start), "xatol": 1e-7, "fatol": 1e-10, "adaptive": len(start) > 4}
        found = minimize(misfit, start, method="Nelder-Mead", options=options)
        if best is None or found.fun < best.fun:
            best = found
        if best.fun < GOOD_FIT:
            break
    assert best is not None
    return best.x


def _starts_among(fixed: Any) -> list[Any]:
    """The middle of the landmarks, and corners of the box around them."""
    low, high = fixed.min(axis=0), fixed.max(axis=0)
    corners = [np.where(np.array(side), high, low) for side in product((False, True), repeat=fixed.shape[1])]
    return [fixed.mean(axis=0), *corners[: STARTS_MAX - 1]]


def _classical(rtts: Sequence[Sequence[float]], axes: int) -> Any:
    """Classical multidimensional scaling: exact if delays are distances in so many axes, else a good start."""
    squares = np.array(rtts, float) ** 2
    squares = (squares + squares.T) / 2
    centre = np.eye(len(squares)) - 1.0 / len(squares)
    values, vectors = np.linalg.eigh(-0.5 * centre @ squares @ centre)
    order = np.argsort(values)[::-1][:axes]
    return vectors[:, order] * np.sqrt(np.maximum(values[order], RTT_MIN))


def _spread(count: int, axes: int, width: float) -> list[Any]:
    """Fixed starts, spread by the fractional parts of multiples of square roots: the same every time."""
    roots = np.sqrt(np.array([2.0, 3.0, 5.0, 7.0, 11.0, 13.0, 17.0, 19.0]))[: max(axes, 1)]
    numbers = np.arange(1, count + 1)[:, None]
    return [width * np.resize((numbers * roots * (turn + 1)) % 1.0, (count, axes)) for turn in range(STARTS_MAX - 1)]
