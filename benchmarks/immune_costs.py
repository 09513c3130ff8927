"""What the immune protocol costs as networks grow, and what it takes the brokers to find their roles by talking.

    python -m benchmarks.immune_costs [--runs N]

Loads are copies per broker that did not publish, on scale-free graphs with m0 = 20 and m = 3.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from random import Random
from statistics import mean
from typing import Any

from tidings.sim import World, topology

RESULT = Path(__file__).parent / "results" / "immune_costs.json"
SIZES = (50, 100, 200, 500, 1000)
STILL = {"heartbeat_s": 0.0, "acks": False}
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "flooding": ("flooding", {}),
    **{
        f"{forward} {check}": ("immune", {"forward": forward, "check": check, **STILL})
        for forward in ("core_flood", "core_elim", "core_tree")
        for check in ("global", "local")
    },
}


def network(name: str, size: int, seed: int, **how: Any) -> World:
    graph = topology("barabasi-albert", size, Random(f"ba/{seed}"), m0=20, m=3)
    return World(name, topology=graph, seed=seed, recording=False, **how)


def load(name: str, options: dict[str, Any], size: int, seed: int) -> float:
    world = network(name, size, seed, options=options)
    world.publish(world.rng.randrange(size), {"x": 1})
    world.run_until_quiet()
    assert len(world.trace.deliveries) == size, "somebody was left out"
    return world.trace.messages() / (size - 1)


def construction(runs: int) -> dict[str, float]:
    """Messages of each kind in the first 60 heartbeats of 100 brokers, and how large a core they come to."""
    said: Counter[str] = Counter()
    for seed in range(runs):
        world = network("immune", 100, seed, settled=False)
        world.run_for(60.0)
        said.update({kind: count for kind, (count, _) in world.trace.sent.items()})
        said["core"] += sum(len(member.router.links()) > 1 or not member.router.links() for member in world.nodes)
    return {kind: count / runs for kind, count in said.items()}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.immune_costs")
    parser.add_argument("--runs", type=int, default=10)
    runs = parser.parse_args().runs
    loads = {
        way: {size: round(mean(load(*how, size, seed) for seed in range(runs)), 3) for size in SIZES}
        for way, how in WAYS.items()
    }
    for way, by_size in loads.items():
        print(f"{way:18}", *(f"{size:>6}: {copies:.2f}" for size, copies in by_size.items()))
    costs = construction(runs)
    print("construction:", ", ".join(f"{kind} {count:,.1f}" for kind, count in costs.items()))
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps({"runs": runs, "loads": loads, "construction": costs}, indent=2) + "\n")


if __name__ == "__main__":
    main()
