"""Fault injection: what goes wrong, and when, as data that can be stored, replayed and shrunk.

Nodes are given by number, in the order they joined, and times in seconds from when the
faults begin. A fault that makes no sense when its time comes (a crash of a node that is
down) does nothing, so any part of a plan is a plan. `begin` and `end` carry faults out.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Protocol, TypeAlias, assert_never

import msgspec

from tidings.sim.network import CALM, Weather


class _Fault(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    at: float


class Crash(_Fault, frozen=True):
    """A node stops, without a word. What it was told is gone unless it is restarted with memory."""

    node: int


class Restart(_Fault, frozen=True):
    """A node that is down comes back in a new life, knowing what it knew of its subscribers or nothing."""

    node: int
    memory: bool = True


class NetworkSplit(_Fault, frozen=True, tag="Split"):
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


class NodeJoin(_Fault, frozen=True, tag="Join"):
    """A new node comes, knowing some that are there."""

    contacts: int = 3


class NodeLeave(_Fault, frozen=True, tag="Leave"):
    """A node says goodbye and goes when it may."""

    node: int


Fault: TypeAlias = Crash | Restart | NetworkSplit | Slow | Storm | NodeJoin | NodeLeave


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
    return (NetworkSplit(rng.uniform(0, over_s / 3), until=over_s, side=tuple(sorted(side))),)


def comings_and_goings(
    seed: int, node_count: int, *, joins: int = 5, leaves: int = 3, over_s: float = 30.0
) -> tuple[Fault, ...]:
    """A storm of joins and leaves, all within a short time if `over_s` is short."""
    rng = Random(f"faults/{seed}")
    leavers = rng.sample(range(node_count), min(leaves, node_count - 1))
    faults: list[Fault] = [NodeJoin(rng.uniform(0, over_s)) for _ in range(joins)]
    return in_order([*faults, *(NodeLeave(rng.uniform(0, over_s), node) for node in leavers)])


def slow_nodes(seed: int, node_count: int, *, over_s: float = 30.0) -> tuple[Fault, ...]:
    """A few nodes take their time."""
    rng = Random(f"faults/{seed}")
    slow = rng.sample(range(node_count), max(1, node_count // 10))
    return tuple(Slow(0.0, until=over_s, node=node, each_s=rng.uniform(0.01, 0.1)) for node in slow)


def in_order(faults: list[Fault]) -> tuple[Fault, ...]:
    """By time; those at the same time stay as they were."""
    return tuple(sorted(faults, key=lambda fault: fault.at))


class FaultTarget(Protocol):
    """What a fault does to a world."""

    @property
    def node_count(self) -> int: ...
    def up(self) -> list[int]: ...
    def join(self, contacts: int) -> int: ...
    def leave(self, node: int) -> None: ...
    def crash(self, node: int) -> None: ...
    def restart(self, node: int, *, memory: bool) -> None: ...
    def slow_down(self, node: int, each_s: float) -> None: ...
    def cut_off(self, side: Sequence[int]) -> None: ...
    def heal(self) -> None: ...
    def set_weather(self, weather: Weather) -> None: ...


def begin(fault: Fault, world: FaultTarget) -> None:
    """Carry out a fault."""
    match fault:
        case NodeJoin(_, contacts):
            if world.up():
                world.join(contacts)
        case NetworkSplit(_, _, side):
            world.cut_off([node for node in side if node < world.node_count])
        case Storm(_, _, weather):
            world.set_weather(weather)
        case Crash(_, node) | Restart(_, node) | Slow(_, _, node) | NodeLeave(_, node):
            if node < world.node_count:
                _strike_node(fault, node, world)
        case _:
            assert_never(fault)


def end(fault: NetworkSplit | Slow | Storm, world: FaultTarget) -> None:
    """End a fault that lasts only for a while."""
    match fault:
        case NetworkSplit():
            world.heal()
        case Slow(_, _, node):
            if node < world.node_count:
                world.slow_down(node, 0.0)
        case Storm():
            world.set_weather(CALM)
        case _:
            assert_never(fault)


def _strike_node(fault: Crash | Restart | Slow | NodeLeave, node: int, world: FaultTarget) -> None:
    match fault:
        case Crash():
            world.crash(node)
        case Restart(_, _, memory):
            world.restart(node, memory=memory)
        case Slow(_, _, _, each_s):
            world.slow_down(node, each_s)
        case NodeLeave():
            world.leave(node)
        case _:
            assert_never(fault)
