"""A sweep in miniature: an experiment run here and now, without Spark."""

from __future__ import annotations

from tidings.lab import Claim, Experiment, Finding, Results, find


def experiment(name: str, **settings: str) -> Experiment:
    """The quick form of an experiment, with these parameters."""
    (found,) = find([name])
    return found.quick().given(settings)


def measured(chosen: Experiment) -> Results:
    """What all its points give."""
    return Results(tuple(row for point in chosen.points() for row in chosen.measure(point.parameters, point.seed)))


def judged(chosen: Experiment, about: str, results: Results) -> Finding:
    """The finding on the one claim that speaks of `about`."""
    (claim,) = [claim for claim in chosen.claims if about in claim.says]
    assert isinstance(claim, Claim)
    return claim.find(results)
