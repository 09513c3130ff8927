"""Deterministic simulation: many nodes of a protocol in one process, under one seed, with one outcome.

A `World` runs routers in virtual time over a simulated network, and a `NodeWorld` whole nodes, with rights and keys. A
`SimulationPlan` describes a run completely, so that a failure can be stored, replayed and shrunk.

Modules, in reading order:

    network, topologies   delays between nodes, loss and reordering; who has a link to whom
    workloads             subscriptions and events, drawn or recorded
    faults                crashes, splits, storms, joins and leaves, as data; fault injection
    world                 the discrete-event simulation
    trace                 what happened, with counts and a digest
    checks                what must hold for every run
    plan                  a run as one piece of data; judging and shrinking it
    federation, nodes     organisations with keys and rights; a world of whole nodes
"""

from tidings.sim.checks import (
    check_bounded,
    check_no_loops,
    check_nothing_invented,
    check_nothing_lost,
    check_nothing_twice,
    check_nothing_unwanted,
    check_quiet,
    check_safe,
)
from tidings.sim.faults import (
    Crash,
    Fault,
    NetworkSplit,
    NodeJoin,
    NodeLeave,
    Restart,
    Slow,
    Storm,
    comings_and_goings,
    crashes,
    in_order,
    loss_and_repeats,
    slow_nodes,
    split_and_heal,
)
from tidings.sim.federation import START_MS, Federation
from tidings.sim.network import CALM, DelaySpace, Flat, Plane, Roaming, TransitStub, Weather
from tidings.sim.nodes import NodeAdapter, NodeWorld
from tidings.sim.plan import SimulationPlan, failure, judge, run, shrunk
from tidings.sim.topologies import TOPOLOGIES, Topology, topology, within_reach
from tidings.sim.trace import CheckFailed, Row, SimulationTrace
from tidings.sim.workloads import Workload
from tidings.sim.world import MessageInFlight, World

__all__ = [
    "CALM",
    "START_MS",
    "TOPOLOGIES",
    "CheckFailed",
    "Crash",
    "DelaySpace",
    "Fault",
    "Federation",
    "Flat",
    "MessageInFlight",
    "NetworkSplit",
    "NodeAdapter",
    "NodeJoin",
    "NodeLeave",
    "NodeWorld",
    "Plane",
    "Restart",
    "Roaming",
    "Row",
    "SimulationPlan",
    "SimulationTrace",
    "Slow",
    "Storm",
    "Topology",
    "TransitStub",
    "Weather",
    "Workload",
    "World",
    "check_bounded",
    "check_no_loops",
    "check_nothing_invented",
    "check_nothing_lost",
    "check_nothing_twice",
    "check_nothing_unwanted",
    "check_quiet",
    "check_safe",
    "comings_and_goings",
    "crashes",
    "failure",
    "in_order",
    "judge",
    "loss_and_repeats",
    "run",
    "shrunk",
    "slow_nodes",
    "split_and_heal",
    "topology",
    "within_reach",
]
