"""Worlds of up to a hundred thousand nodes, for the protocols whose every message is simulated.

A world is not cut: it runs whole, in one process of its own, so that its memory can be told from that of others. A sweep
on Spark runs several worlds side by side, each as one task, and a task needs the memory of its world.

All nodes have joined, nothing is sent on schedule, and nobody fails. Some nodes subscribe to boxes of one hundredth of
the space, and every event lies in at least one of them.
"""

from __future__ import annotations

import json
import math
import resource
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

from tidings.errors import SetupError
from tidings.lab.experiment import Claim, Experiment, Measured, Parameters, PlotAxis
from tidings.lab.parameter_checks import expect_at_least, expect_one_of
from tidings.lab.results import Finding, NotMeasured, Results, judged
from tidings.overlay import Ranges
from tidings.sim import World

MEMORY, ENTRIES = "memory of a node (KiB)", "entries that a node keeps"
EVENT, SUBSCRIPTION = "messages of an event", "messages of a subscription, for 1000 nodes"
KIB_MAX = 64.0  # For each node: 6.4 GB for a hundred thousand.
EXTENT = 1000  # Cells of each of two attributes.
ARRIVE_S = 60.0  # Virtual: longer than anything takes on its way.

STILL: Mapping[str, Mapping[str, Any]] = {
    "irbr": {"heartbeat_s": 0, "sync_s": 0, "obituaries": False},
    "hermes": {"heartbeat_s": 0, "refresh_s": 0, "repair": False},
    "spanhop": {
        "heartbeat_s": 0, "refresh_s": 0, "upkeep_s": 0, "layout": "balanced",
        "axes": {"x": (0, EXTENT), "y": (0, EXTENT)},
    },
    "cbdlo": {"period_s": 0},
}  # fmt: skip
"""Options of protocols that send nothing on schedule."""


def measure_scale(parameters: Parameters, seed: int) -> list[Measured]:
    """Memory, state and messages of one world, run in a process of its own."""
    code = f"from tidings.lab.scale import {write_world.__name__} as run; run()"
    ran = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps([dict(parameters), seed]),
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode:
        raise SetupError(f"a world of {parameters['nodes']} nodes ended with {ran.returncode}: {ran.stderr[-300:]}")
    shown: dict[str, float] = json.loads(ran.stdout)
    return [Measured(series, parameters["nodes"], y) for series, y in shown.items()]


def write_world() -> None:
    """In the process of its own: parameters and seed from stdin, what was measured to stdout."""
    parameters, seed = json.load(sys.stdin)
    sys.stdout.write(json.dumps(one_world(parameters, seed)))


def one_world(parameters: Parameters, seed: int) -> dict[str, float]:
    """Build a world, subscribe, publish; the memory is the process's, so it should have run nothing else."""
    name, nodes, rng = parameters["protocol"], int(parameters["nodes"]), Random(f"scale/{seed}")
    before = _resident_kib()
    world = World(name, node_count=nodes, seed=seed, options=dict(STILL[name]), recording=False)
    world.run_for(1.0)
    boxes, sent = [], world.trace.messages()
    for _ in range(parameters["subscriptions"]):
        low = rng.randrange(EXTENT * 9 // 10), rng.randrange(EXTENT * 9 // 10)
        boxes.append(low)
        world.subscribe(
            rng.randrange(nodes), Ranges.of(x=(low[0], low[0] + EXTENT // 10), y=(low[1], low[1] + EXTENT // 10))
        )
    world.run_for(ARRIVE_S)
    subscribing, sent = world.trace.messages() - sent, world.trace.messages()
    for _ in range(parameters["events"]):
        x, y = rng.choice(boxes)
        world.publish(
            rng.randrange(nodes), {"x": x + rng.randrange(EXTENT // 10), "y": y + rng.randrange(EXTENT // 10)}
        )
    world.run_for(ARRIVE_S)
    reached = {(notice.event, notice.subscription) for notice in world.trace.notices}
    wanted = {
        (event, id)
        for event, published in world.trace.publications.items()
        for id, subscribed in world.trace.subscriptions.items()
        if subscribed.interest.matches(published.packet)
    }
    assert reached == wanted, f"{len(wanted - reached)} of {len(wanted)} matches were missed"
    return {
        EVENT: (world.trace.messages() - sent) / parameters["events"],
        SUBSCRIPTION: 1000 * subscribing / parameters["subscriptions"] / nodes,
        ENTRIES: fmean(sum(count for count, _ in member.router.holdings().values()) for member in world.nodes),
        MEMORY: (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / nodes,
    }


def _resident_kib() -> float:
    """What this process has of memory now."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() / 1024


# ── Claims and experiments ─────────────────────────────────────────────────────


def _largest(results: Results) -> float:
    places = results.xs(MEMORY)
    if not places:
        raise NotMeasured(f"{MEMORY} was not measured")
    return max(places)


def _by_size(results: Results, series: str) -> str:
    return ", ".join(f"{nodes:,.0f}: {results.mean(series, nodes):,.1f}" for nodes in results.xs(series))


def fits(results: Results) -> Finding:
    """At the largest size."""
    shown = f"{_by_size(results, MEMORY)} KiB; {_by_size(results, ENTRIES)} entries"
    why = "Python objects of routers and of what is on its way; the peak of the process, less what it had before"
    return Finding(shown, judged(results.mean(MEMORY, _largest(results)), holds=lambda kib: kib <= KIB_MAX), why)


def grows_like_a_logarithm(results: Results) -> Finding:
    """From the smallest size to the largest, with a tenth to spare."""
    small, large = min(results.xs(EVENT), default=0.0), _largest(results)
    if small == large:
        raise NotMeasured("one size is not enough")
    grown = results.mean(EVENT, large) / results.mean(EVENT, small)
    allowed = 1.1 * math.log(large) / math.log(small)
    shown = f"{_by_size(results, EVENT)}; {grown:.2f} times as many, {allowed:.2f} allowed"
    return Finding(shown, judged(grown, holds=lambda times: times <= allowed), "as many subscriptions at every size")


def spreads_evenly(results: Results) -> Finding:
    """From the smallest size to the largest, in proportion to the nodes."""
    small, large = min(results.xs(SUBSCRIPTION), default=0.0), _largest(results)
    if small == large:
        raise NotMeasured("one size is not enough")
    grown = results.mean(SUBSCRIPTION, large) / results.mean(SUBSCRIPTION, small)
    shown = f"{_by_size(results, SUBSCRIPTION)} messages of a subscription for 1,000 nodes"
    why = "what one subscription costs the whole network, shared among its nodes"
    return Finding(shown, judged(grown, holds=lambda times: times <= 1.1), why)


def _check(parameters: Parameters) -> None:
    expect_one_of(STILL, parameters, "protocol")
    expect_at_least(16, parameters, "nodes")
    expect_at_least(1, parameters, "subscriptions", "events")


def scale_experiment(paper: str, sizes: tuple[int, ...], *, seconds: Callable[[float], float]) -> Experiment:
    """The experiment on the size of worlds for one protocol; `seconds` that a world of so many nodes takes."""
    return Experiment(
        paper=paper,
        figure="scale",
        title=f"{paper}: memory and messages by nodes, one world each",
        measure=measure_scale,
        x=PlotAxis("nodes", log=True),
        y=PlotAxis("KiB; entries; messages", log=True),
        varies={"nodes": sizes},
        stays={"protocol": paper, "subscriptions": 8, "events": 40},
        seeds=1,
        quick_varies={"nodes": sizes[:2]},
        quick_seeds=1,
        check=_check,
        cost=lambda parameters: seconds(parameters["nodes"]),
        conditions=(
            "the protocol itself, message by message, in one world that is not cut, in one process; all nodes have "
            "joined, nothing is sent on schedule, nobody fails; 8 subscriptions of a hundredth of the space, whatever the "
            "size, and 40 events that each match at least one; every match was delivered"
        ),
        claims=(
            Claim("beyond the paper: the largest world fits into memory", f"≤ {KIB_MAX:g} KiB a node", fits),
            Claim(
                "beyond the paper: messages of an event grow with the logarithm of the nodes",
                "at most 1.1 times as fast",
                grows_like_a_logarithm,
            ),
            Claim(
                "beyond the paper: a subscription costs each node no more in larger worlds",
                "at most 1.1 times as much",
                spreads_evenly,
            ),
        ),
    )
