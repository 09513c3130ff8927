"""Checks of parameters, made before anything is run. Each raises an InputError that says what was expected.

A parameter that an experiment does not have passes every check.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidings.errors import InputError
from tidings.lab.experiment import Parameters, numbers


def expect_at_least(least: float, parameters: Parameters, *names: str) -> None:
    """That none of these is below `least`.

    >>> expect_at_least(1, {"events": 5}, "events", "walks")
    """
    for name in names:
        if name in parameters and parameters[name] < least:
            raise InputError(f"expected {name} of at least {least}, got {parameters[name]}")


def expect_one_of(known: Iterable[str], parameters: Parameters, name: str) -> None:
    """That this is one of the known values."""
    known = list(known)
    if name in parameters and parameters[name] not in known:
        raise InputError(f"expected {name} to be one of {'; '.join(known)}, got {parameters[name]!r}")


def expect_rates(parameters: Parameters, name: str) -> None:
    """That these are percentages from 0 to below 100."""
    if name in parameters and not all(0 <= rate < 100 for rate in numbers(parameters, name)):
        raise InputError(f"expected {name} from 0 to below 100, got {parameters[name]}")
