"""What goes wrong, and when, as data: written down, replayed, and shrunk to what matters.

Nodes are given by number, as they came into the world, and times in seconds from when
the faults begin. A fault that makes no sense when its time comes (a crash of a node that
is down) does nothing, so any part of a plan is a plan.
"""

from __future__ import annotations

from random import Random
from typing import TypeAlias

import msgspec

from tidings.sim.network import Weather


class _Fault(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    at: float


class Crash(_Fault, frozen=True):
    """A node stops, without a word. What it was told is gone unless it is restarted with memory."""

    node: int


class Restart(_Fault, frozen=True):
    """A node that is down comes back in a new life, knowing what it knew of its subscribers or nothing."""

    node: int
    memory: bool = True


class Split(_Fault, frozen=True):
    """For a while no message passes between `side` and the rest."""

    until: float
    side: tuple[int, ...]


class Slow(_Fault, frozen=True):
    """For a while a node takes this long over every message."""

    until: float
    node: int
    each_s: float


class Storm(_Fault, frozen=True):
    """For a while the network treats messages badly."""

    until: float
    weather: Weather


class Join(_Fault, frozen=True):
    """A new node comes, knowing some that are there."""

    contacts: int = 3


class Leave(_Fault, frozen=True):
    """A node says goodbye and goes when it may."""

    node: int


Fault: TypeAlias = Crash | Restart | Split | Slow | Storm | Join | Leave


def loss_and_repeats(seed: int, *, over_s: float = 30.0) -> tuple[Fault, ...]:
    """A storm: up to a fifth of the messages lost, up to a fifth repeated, and all of them out of order."""
    rng = Random(f"faults/{seed}")
    weather = Weather(rng.uniform(0, 0.2), rng.uniform(0, 0.2), jitter_s=rng.uniform(0, 0.1), reorder=True)
    return (Storm(0.0, until=over_s, weather=weather),)


def crashes(seed: int, node_count: int, *, share: float = 0.15, over_s: float = 30.0) -> tuple[Fault, ...]:
    """Some nodes crash; about half of those come back, with or without memory."""
    rng = Random(f"faults/{seed}")
    faults: list[Fault] = []
    for node in rng.sample(range(node_count), max(1, int(node_count * share))):
        at = rng.uniform(0, over_s / 2)
        faults.append(Crash(at, node))
        if rng.random() < 0.5:
            faults.append(Restart(rng.uniform(at + 0.1, over_s), node, memory=rng.random() < 0.5))
    return in_order(faults)


def split_and_heal(seed: int, node_count: int, *, over_s: float = 30.0) -> tuple[Fault, ...]:
    """The network falls into two parts and heals."""
    rng = Random(f"faults/{seed}")
    side = rng.sample(range(node_count), rng.randint(1, max(1, node_count // 2)))
    return (Split(rng.uniform(0, over_s / 3), until=over_s, side=tuple(sorted(side))),)


def comings_and_goings(
    seed: int, node_count: int, *, joins: int = 5, leaves: int = 3, over_s: float = 30.0
) -> tuple[Fault, ...]:
    """A storm of joins and leaves, all within a short time if `over_s` is short."""
    rng = Random(f"faults/{seed}")
    leavers = rng.sample(range(node_count), min(leaves, node_count - 1))
    faults: list[Fault] = [Join(rng.uniform(0, over_s)) for _ in range(joins)]
    return in_order([*faults, *(Leave(rng.uniform(0, over_s), node) for node in leavers)])


def slow_nodes(seed: int, node_count: int, *, over_s: float = 30.0) -> tuple[Fault, ...]:
    """A few nodes take their time."""
    rng = Random(f"faults/{seed}")
    slow = rng.sample(range(node_count), max(1, node_count // 10))
    return tuple(Slow(0.0, until=over_s, node=node, each_s=rng.uniform(0.01, 0.1)) for node in slow)


def in_order(faults: list[Fault]) -> tuple[Fault, ...]:
    """By time; those at the same time stay as they were."""
    return tuple(sorted(faults, key=lambda fault: fault.at))
