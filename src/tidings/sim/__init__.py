"""The made-up world: many nodes of a protocol in one process, under one seed, with one outcome.

`World` runs them in virtual time over a made-up network; `faults` and `workloads` are
what happens to them, as data; the `Trace` is what came of it and the checks judge it. A
`Plan` is all of that in one piece that can be written down, replayed and shrunk. `NodeWorld` runs
whole nodes, with rights and keys, where `World` runs bare routers.
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
    Join,
    Leave,
    Restart,
    Slow,
    Split,
    Storm,
    comings_and_goings,
    crashes,
    in_order,
    loss_and_repeats,
    slow_nodes,
    split_and_heal,
)
from tidings.sim.federation import START_MS, Federation
from tidings.sim.network import CALM, Flat, Plane, Space, TransitStub, Weather
from tidings.sim.nodes import NodeAdapter, NodeWorld
from tidings.sim.plan import Plan, failure, judge, run, shrunk
from tidings.sim.topologies import TOPOLOGIES, Topology, topology
from tidings.sim.trace import CheckFailed, Row, Trace
from tidings.sim.workloads import Workload
from tidings.sim.world import World

__all__ = [
    "CALM",
    "START_MS",
    "TOPOLOGIES",
    "CheckFailed",
    "Crash",
    "Fault",
    "Federation",
    "Flat",
    "Join",
    "Leave",
    "NodeAdapter",
    "NodeWorld",
    "Plan",
    "Plane",
    "Restart",
    "Row",
    "Slow",
    "Space",
    "Split",
    "Storm",
    "Topology",
    "Trace",
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
]
