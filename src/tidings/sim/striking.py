"""Faults, carried out: what each does to a world when its time comes, and when it is over.

A fault that makes no sense by then, such as a crash of a node there is not, does nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from tidings.sim.faults import Crash, Fault, Join, Leave, Restart, Slow, Split, Storm
from tidings.sim.network import CALM

if TYPE_CHECKING:
    from tidings.sim.world import World


def begin(fault: Fault, world: World) -> None:
    """Let a fault happen to a world."""
    match fault:
        case Join(_, contacts):
            if world.up_count():
                world.join(contacts)
        case Split(_, _, side):
            world.cut_off([node for node in side if node < len(world.nodes)])
        case Storm(_, _, weather):
            world.set_weather(weather)
        case Crash(_, node) | Restart(_, node) | Slow(_, _, node) | Leave(_, node):
            if node < len(world.nodes):
                _strike_node(fault, node, world)
        case _:
            assert_never(fault)


def end(fault: Split | Slow | Storm, world: World) -> None:
    """Take back what lasts only for a while."""
    match fault:
        case Split():
            world.heal()
        case Slow(_, _, node):
            if node < len(world.nodes):
                world.nodes[node].each_s = 0.0
        case Storm():
            world.set_weather(CALM)
        case _:
            assert_never(fault)


def _strike_node(fault: Crash | Restart | Slow | Leave, node: int, world: World) -> None:
    match fault:
        case Crash():
            world.crash(node)
        case Restart(_, _, memory):
            world.restart(node, memory=memory)
        case Slow(_, _, _, each_s):
            world.nodes[node].each_s = each_s
        case Leave():
            world.leave(node)
        case _:
            assert_never(fault)
