"""A plan: a whole run as one piece of data, so that a failure can be handed to somebody else.

A run has five phases. The nodes *settle*; nodes subscribe; the *storm* brings faults and
events together; in the *calm* the network repairs itself; and more events follow, which a
protocol that keeps its guarantees delivers to every subscriber.

A plan that fails is *shrunk*: faults are left out, then nodes, events and subscriptions,
as long as it still fails. Found by trying parts of the list of faults, halves first. (Not
left to Hypothesis, because a soak run has no Hypothesis and shrinks all the same.)
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from random import Random
from typing import Any

import msgspec

from tidings.errors import InputError
from tidings.overlay import Guarantee, protocol
from tidings.sim.checks import check_nothing_lost, check_quiet, check_safe
from tidings.sim.faults import Crash, Fault, NetworkSplit, NodeJoin, NodeLeave, Restart, Slow, Storm
from tidings.sim.network import CALM, Weather
from tidings.sim.topologies import topology
from tidings.sim.trace import CheckFailed
from tidings.sim.workloads import Workload
from tidings.sim.world import World

SHRINK_RUNS_MAX = 200  # A failing plan that is not small after so many runs is small enough.


class SimulationPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Everything that a run depends on."""

    protocol: str
    seed: int = 0
    node_count: int = 24
    options: dict[str, Any] = {}
    topology: str = "barabasi-albert"
    topology_options: dict[str, Any] = {}
    weather: Weather = CALM
    workload: Workload = Workload()
    faults: tuple[Fault, ...] = ()
    settled: bool = True
    settle_s: float = 60.0
    storm_s: float = 30.0
    calm_s: float = 60.0

    @classmethod
    def read(cls, text: str) -> SimulationPlan:
        """From JSON; raises InputError that says where it is wrong."""
        try:
            return msgspec.json.decode(text, type=cls)
        except msgspec.MsgspecError as wrong:
            raise InputError(f"expected a plan as JSON: {wrong}") from None

    def written(self) -> str:
        """As JSON, on one line."""
        return msgspec.json.encode(self, order="deterministic").decode()

    def command(self) -> str:
        """The command that runs this plan again."""
        return f"python -m tidings.sim replay {shlex.quote(self.written())}"


def run(plan: SimulationPlan, *, recording: bool = True) -> World:
    """The world after the whole run; raises CheckFailed if it does not fall quiet."""
    world = _world(plan, recording)
    world.run_for(plan.settle_s)
    _subscribe_all(world, plan)
    world.run_for(plan.settle_s / 2)
    draw = plan.workload.drawing(Random(f"workload/{plan.seed}"))
    world.strike(plan.faults)
    world.publish_some(plan.workload.events // 2, over_s=plan.storm_s, draw=draw)
    world.run_for(plan.calm_s)
    world.publish_some(plan.workload.events - plan.workload.events // 2, draw=draw)
    world.run_until_quiet()
    return world


def judge(plan: SimulationPlan) -> World:
    """Run a plan and check the protocol's guarantees; raises CheckFailed if it breaks one."""
    world = run(plan)
    check_safe(world, crossings_max=crossings_allowed(plan))
    check_quiet(world)
    guarantees = protocol(plan.protocol).guarantees
    if Guarantee.REACHES_ALL in guarantees and _needed(plan) <= guarantees:
        calm_s = plan.calm_s if _breaks_nodes(plan) else None
        check_nothing_lost(world.trace, calm_s=calm_s, parts=world.parts() if world.protocol.on_graph else None)
    return world


def failure(plan: SimulationPlan) -> CheckFailed | None:
    """What is wrong with a run of this plan, or None."""
    try:
        judge(plan)
    except CheckFailed as failed:
        return failed
    return None


def shrunk(plan: SimulationPlan, fails: Callable[[SimulationPlan], bool] | None = None) -> SimulationPlan:
    """A smaller plan that fails too; the same plan if none was found."""
    trying = _Trying(fails or (lambda tried: failure(tried) is not None))
    plan = _fewer_faults(plan, trying)
    for name, least in (("node_count", 2), ("subscriptions", 1), ("events", 2)):
        plan = _smaller(plan, name, least, trying)
    return _fewer_faults(plan, trying)


def crossings_allowed(plan: SimulationPlan) -> int:
    """How often one event may cross one link: once, or as often as it may have been sent again."""
    return 1 if plan.weather.calm and not plan.faults else 16


def _world(plan: SimulationPlan, recording: bool) -> World:
    made = topology(plan.topology, plan.node_count, Random(f"topology/{plan.seed}"), **_fitting(plan))
    world = World(
        plan.protocol,
        topology=made,
        seed=plan.seed,
        options=plan.options,
        weather=plan.weather,
        settled=plan.settled,
        recording=recording,
    )
    world.trace.rerun = plan.command()
    return world


def _fitting(plan: SimulationPlan) -> dict[str, Any]:
    """The topology's options, within what so few nodes allow: shrinking must not make a plan impossible."""
    if plan.topology != "barabasi-albert":
        return plan.topology_options
    options = {"m0": 10, "m": 3, **plan.topology_options}
    return {**options, "m": min(options["m"], options["m0"], plan.node_count)}


def _subscribe_all(world: World, plan: SimulationPlan) -> None:
    rng = Random(f"subscribers/{plan.seed}")
    for wanted in plan.workload.wanted(rng):
        world.subscribe(rng.choice(world.up()), wanted)


_NEEDED: dict[type, Guarantee] = {
    Crash: Guarantee.SURVIVES_CRASHES,
    Restart: Guarantee.SURVIVES_CRASHES,
    NetworkSplit: Guarantee.SURVIVES_SPLIT,
    Storm: Guarantee.SURVIVES_LOSS,
    NodeLeave: Guarantee.LEAVES_CLEANLY,
}


def _needed(plan: SimulationPlan) -> set[Guarantee]:
    """The guarantees that a loss under this plan would break."""
    needed = {_NEEDED[type(fault)] for fault in plan.faults if type(fault) in _NEEDED}
    if any(isinstance(fault, NodeJoin) for fault in plan.faults):
        on_graph = protocol(plan.protocol).on_graph
        needed.add(Guarantee.JOINS_BY_LINKS if on_graph else Guarantee.JOINS_LIVE)
    return needed if plan.weather.calm else needed | {Guarantee.SURVIVES_LOSS}


def _breaks_nodes(plan: SimulationPlan) -> bool:
    """Whether events published meanwhile may be lost: not for a storm or a slow node alone."""
    return any(not isinstance(fault, Storm | Slow) for fault in plan.faults)


class _Trying:
    """Whether plans fail, asked at most SHRINK_RUNS_MAX times."""

    def __init__(self, fails: Callable[[SimulationPlan], bool]) -> None:
        self._fails, self._left = fails, SHRINK_RUNS_MAX

    def __call__(self, plan: SimulationPlan) -> bool:
        self._left -= 1
        return self._left >= 0 and self._fails(plan)


def _fewer_faults(plan: SimulationPlan, fails: _Trying) -> SimulationPlan:
    """Leave out pieces of the list of faults, halves first, then smaller ones."""
    size = len(plan.faults)
    while size >= 1:
        start = 0
        while start < len(plan.faults):
            fewer = msgspec.structs.replace(plan, faults=plan.faults[:start] + plan.faults[start + size :])
            if fails(fewer):
                plan = fewer
            else:
                start += size
        size //= 2
    return plan


def _smaller(plan: SimulationPlan, name: str, least: int, fails: _Trying) -> SimulationPlan:
    """Halve a number, then take one off, for as long as the plan fails."""
    for part in (2, 1):
        while (smaller := _number(plan, name) // part - (part == 1)) >= least:
            tried = _with_number(plan, name, smaller)
            if not fails(tried):
                break
            plan = tried
    return plan


def _number(plan: SimulationPlan, name: str) -> int:
    return int(getattr(plan if name == "node_count" else plan.workload, name))


def _with_number(plan: SimulationPlan, name: str, number: int) -> SimulationPlan:
    if name == "node_count":
        return msgspec.structs.replace(plan, node_count=number)
    return msgspec.structs.replace(plan, workload=msgspec.structs.replace(plan.workload, **{name: number}))
