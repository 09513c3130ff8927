"""An experiment as data: what varies, what is fixed, how one point is measured, what a paper claims of it.

A *point* is one run: a value for each parameter, and a seed. Its measure is a function of
these two alone, so points can run anywhere, in any order, and need never run twice.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple, TypeAlias

from tidings import overlay, security, sim
from tidings.errors import InputError, did_you_mean
from tidings.lab.results import Finding, Results, Verdict

Scalar: TypeAlias = int | float | str
Parameters: TypeAlias = Mapping[str, Any]  # Of Scalar, by name.

BEYOND = "beyond the paper"  # How a claim that is ours begins.
POINTS_MAX = 100_000  # Of one experiment: a wrong parameter must not fill a disk with small files.


class Measured(NamedTuple):
    """One number for a figure: on which of its lines, and where."""

    series: str
    x: float
    y: float


@dataclass(frozen=True, slots=True)
class PlotAxis:
    """What an axis of a figure shows, with its unit."""

    label: str
    log: bool = False


@dataclass(frozen=True, slots=True)
class Claim:
    """What a paper claims, or we claim beyond it, and how to judge it by what was measured."""

    says: str
    expected: str
    judge: Callable[[Results], Finding]
    """Raises NotMeasured where the results lack what it needs."""

    @property
    def is_ours(self) -> bool:
        """Whether the target is ours and not the paper's."""
        return self.says.startswith(BEYOND)

    def find(self, results: Results) -> Finding:
        """What was measured, and the verdict; a target of our own is met or missed, never `better` than a paper."""
        found = self.judge(results)
        if not self.is_ours:
            return found
        missed = found.verdict in (Verdict.DIFFERS, Verdict.GOAL_MISSED)
        return found._replace(verdict=Verdict.GOAL_MISSED if missed else Verdict.GOAL_MET)


@dataclass(frozen=True, slots=True)
class Point:
    """One run of one experiment."""

    experiment: str
    parameters: Parameters
    seed: int
    version: str

    @property
    def key(self) -> str:
        """Identifies the point: the same parameters, seed and code give the same key."""
        identity = json.dumps([self.experiment, self.version, self.parameters, self.seed], sort_keys=True)
        return hashlib.blake2b(identity.encode(), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """What is run for one figure of one paper, and what is expected of it."""

    paper: str
    figure: str
    title: str
    measure: Callable[[Parameters, int], list[Measured]]
    """Of a point's parameters and seed, and of nothing else; at the top of its module, as it travels by name."""
    x: PlotAxis
    y: PlotAxis
    varies: Mapping[str, tuple[Scalar, ...]]
    stays: Parameters
    seeds: int
    quick_varies: Mapping[str, tuple[Scalar, ...]] = field(default_factory=dict)
    quick_seeds: int
    check: Callable[[Parameters], None]
    """Raises InputError for parameters that make no sense, before anything is run."""
    cost: Callable[[Parameters], float] = lambda parameters: 10.0
    """About how many seconds a point takes: points are distributed so that all cores finish at about the same time."""
    published: tuple[Measured, ...] = ()
    """The paper's own numbers."""
    claims: tuple[Claim, ...] = ()
    conditions: str = ""
    """Under which conditions it is measured, above all where they are not the paper's."""

    @property
    def name(self) -> str:
        return f"{self.paper}-{self.figure}"

    def quick(self) -> Experiment:
        """The same with fewer points, which takes a minute or so."""
        return replace(self, varies={**self.varies, **self.quick_varies}, seeds=self.quick_seeds)

    def given(self, settings: Mapping[str, str]) -> Experiment:
        """The same with other parameters, as text: several values, with commas, for what varies; one for what stays."""
        varies, stays, seeds = dict(self.varies), dict(self.stays), self.seeds
        for name, text in settings.items():
            if name == "seeds":
                seeds = int(_read(name, text, like=0))
            elif name in varies:
                varies[name] = tuple(_read(name, part, like=varies[name][0]) for part in text.split(","))
            elif name in stays:
                stays[name] = _read(name, text, like=stays[name])
            else:
                known = ["seeds", *varies, *stays]
                hint = did_you_mean(name, known) or f"there are {', '.join(known)}"
                raise InputError(f"{self.name} has no parameter {name!r}; {hint}")
        return replace(self, varies=varies, stays=stays, seeds=seeds)

    def points(self) -> list[Point]:
        """Every run there is to do. Raises InputError if any of them is impossible."""
        if self.seeds < 1:
            raise InputError(f"{self.name}: expected at least 1 seed, got {self.seeds}")
        choices = list(self._choices())
        count = len(choices) * self.seeds
        if count > POINTS_MAX:
            raise InputError(f"{self.name}: {count} points are more than {POINTS_MAX}")
        version = version_of(self.measure)
        return [Point(self.name, chosen, seed, version) for chosen in choices for seed in range(self.seeds)]

    def _choices(self) -> Iterator[Parameters]:
        for values in product(*self.varies.values()):
            chosen = {**self.stays, **dict(zip(self.varies, values, strict=True))}
            try:
                self.check(chosen)
            except InputError as wrong:
                raise InputError(f"{self.name}: {wrong}") from None
            yield chosen


def numbers(parameters: Parameters, name: str) -> list[float]:
    """A parameter that holds several numbers, with spaces between: points that share what is costly to build.

    >>> numbers({"groups": "1 2 5"}, "groups")
    [1.0, 2.0, 5.0]
    """
    try:
        return [float(text) for text in str(parameters[name]).split()]
    except ValueError:
        raise InputError(f"expected {name} to be numbers with spaces between, got {parameters[name]!r}") from None


def version_of(measure: Callable[..., object]) -> str:
    """A fingerprint of the code that a measure runs: its own, what it calls in the lab, protocols, security and simulator.

    Claims and labels are no part of it: rewording one leaves what was measured valid.
    """
    made = hashlib.blake2b(_sources_digest().encode(), digest_size=8)
    for part in _reached(measure, {}).values():
        made.update(part.encode())
    return made.hexdigest()


def measured_sources() -> list[Path]:
    """The files of the packages that measures depend on, sub-packages included: a change in one makes a new version."""
    folders = [Path(inspect.getfile(package)).parent for package in (overlay, security, sim)]
    return sorted(file for folder in folders for file in folder.rglob("*.py"))


@cache
def _sources_digest() -> str:
    return hashlib.blake2b(b"".join(file.read_bytes() for file in measured_sources())).hexdigest()


def _reached(function: Any, found: dict[str, str]) -> dict[str, str]:
    """The sources of a function and of the lab's functions, classes and constants that it names, in a fixed order."""
    if isinstance(function, FunctionType) and (key := f"{function.__module__}.{function.__qualname__}") not in found:
        found[key] = _source_of(function)
        for name in _names_in(function.__code__):
            _reach(name, function.__globals__.get(name), found)
    return found


def _source_of(function: FunctionType) -> str:
    try:
        return inspect.getsource(function)
    except OSError:  # Entered interactively, not read from a file.
        return function.__code__.co_code.hex()


def _reach(name: str, thing: Any, found: dict[str, str]) -> None:
    thing = _behind(thing)
    module = getattr(thing, "__module__", None) or ""
    if isinstance(thing, FunctionType) and module.startswith("tidings.lab"):
        _reached(thing, found)
    elif isinstance(thing, type) and module.startswith("tidings.lab"):
        _reach_class(thing, found)
    elif isinstance(thing, int | float | str | tuple | dict):
        found[name] = _ADDRESS.sub("", repr(thing))


def _reach_class(made: type, found: dict[str, str]) -> None:
    """What a class has: its methods, also where they are behind a property, and its values."""
    for base in made.__mro__:
        if base.__module__.startswith("tidings.lab"):
            for name, thing in vars(base).items():
                if isinstance(_behind(thing), FunctionType) or not name.startswith("__"):
                    _reach(f"{base.__qualname__}.{name}", thing, found)


def _behind(thing: Any) -> Any:
    """The function of a property or a method, of what keeps its results, or of what Numba compiled."""
    for holder in ("fget", "func", "__func__", "__wrapped__", "py_func"):
        thing = getattr(thing, holder, None) or thing
    return thing


_ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # Of a function in a table: another in every process.


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


def _read(name: str, text: str, *, like: Scalar) -> Scalar:
    """A parameter's value from text, of the same type as the one it has."""
    try:
        return type(like)(text.strip())
    except ValueError:
        raise InputError(f"expected {name} to be {_A_KIND[type(like)]}, got {text!r}") from None


_A_KIND: dict[type, str] = {int: "a whole number", float: "a number", str: "a word"}
