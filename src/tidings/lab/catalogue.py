"""All experiments, by name."""

from __future__ import annotations

from collections.abc import Iterable

from tidings.errors import InputError, did_you_mean
from tidings.lab import cbdlo, hermes, immune, irbr, secure, spanhop
from tidings.lab.experiment import Experiment

ALL = "all"

EXPERIMENTS: tuple[Experiment, ...] = (
    *secure.EXPERIMENTS,
    *immune.EXPERIMENTS,
    *irbr.EXPERIMENTS,
    *hermes.EXPERIMENTS,
    *spanhop.EXPERIMENTS,
    *cbdlo.EXPERIMENTS,
)


def find(names: Iterable[str]) -> list[Experiment]:
    """The experiments of these names, each once. A paper's name stands for all of its figures, `all` for everything.

    >>> [experiment.name for experiment in find(["immune-5", "immune-5"])]
    ['immune-5']
    """
    chosen = {experiment.name: experiment for name in names for experiment in _named(name)}
    if not chosen:
        raise InputError(f"expected the name of an experiment: {ALL}, {', '.join(_known())}")
    return list(chosen.values())


def _named(name: str) -> list[Experiment]:
    found = [experiment for experiment in EXPERIMENTS if name in (ALL, experiment.paper, experiment.name)]
    if not found:
        hint = did_you_mean(name, [ALL, *_known()]) or "`tidings lab list` shows those there are"
        raise InputError(f"there is no experiment {name!r}; {hint}")
    return found


def _known() -> list[str]:
    papers = dict.fromkeys(experiment.paper for experiment in EXPERIMENTS)
    return [*papers, *(experiment.name for experiment in EXPERIMENTS)]
