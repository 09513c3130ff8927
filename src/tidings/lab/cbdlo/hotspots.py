"""The busiest node of a popular attribute, and where walks meet: what several coordinators and hashed tables change.

All subscriptions name the same attribute, so its one coordinator holds all registrations. With several coordinators
each holds the share that the hash of the subscribers' ids gives it, and an event visits all of them.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

from tidings.lab.experiment import Measured, Parameters
from tidings.lab.results import Finding, Results, judged
from tidings.overlay import EventId, Everything, NodeId, Ranges
from tidings.sim import World

READABLE, UNREADABLE = "readable", "unreadable"
REGISTERED, REGISTERING = "registrations at the busiest node (%)", "messages of subscriptions by the busiest node (%)"
HANDLED, MESSAGES = "messages of events by the busiest node (%)", "messages of an event"
SUCCEEDED, HOPS = "walks that succeed (%)", "messages of a walk"
FINE = 1_000_000  # Values of the attribute.
TABLE = 8  # Entries of a node's table where walks must find their topology.


def measure_hotspots(parameters: Parameters, seed: int) -> list[Measured]:
    """How much of the work for one popular attribute its busiest node has, by the number of coordinators."""
    run = _Popular(parameters, seed)
    registering = run.subscribe()
    handled, messages = run.publish()
    shown = {REGISTERED: run.registered(), REGISTERING: registering, HANDLED: handled, MESSAGES: messages}
    return [Measured(f"{name}, {parameters['values']}", parameters["coordinators"], y) for name, y in shown.items()]


class _Popular:
    """A network in which everyone subscribes to one attribute, or to a type of whose attributes nobody can read any."""

    def __init__(self, parameters: Parameters, seed: int) -> None:
        self.given, self.rng = parameters, Random(f"hotspots/{seed}")
        options = {"coordinators": parameters["coordinators"]}
        self.world = World("cbdlo", node_count=parameters["nodes"], seed=seed, options=options)
        self.world.run_for(20.0)

    def subscribe(self) -> float:
        """Everyone subscribes; returns the busiest node's share of the messages sent or received, in percent."""
        before = len(self.world.trace.rows)
        for number in range(self.given["subscriptions"]):
            low = self.rng.randrange(FINE)
            wanted = Ranges.of(x=(low, low + FINE // 50)) if self.given["values"] == READABLE else Everything()
            self.world.subscribe(number % self.given["nodes"], wanted)
            self.world.run_for(0.1)
        self.world.run_for(40.0)
        return self._busiest({"Register", "Registered", "Replicate", "AssignPartition", "RenewLease"}, before)

    def registered(self) -> float:
        """The share of all registrations that the busiest node has as coordinator, in percent."""
        held: Counter[NodeId] = Counter()
        for member in self.world.nodes:
            for kind, (count, _) in member.router.holdings().items():
                held[member.id] += count if kind.startswith("registrations of ") else 0
        return 100 * max(held.values()) / held.total()

    def publish(self) -> tuple[float, float]:
        """The busiest node's share of the messages that carry events, in percent, and how many there are for each."""
        before = len(self.world.trace.rows)
        events: set[EventId] = set()
        for _ in range(self.given["events"]):
            values = {"x": self.rng.randrange(FINE)} if self.given["values"] == READABLE else {}
            events.add(self.world.publish(self.rng.randrange(self.given["nodes"]), values))
            self.world.run_for(0.3)
        self.world.run_for(20.0)
        sent = [row for row in list(self.world.trace)[before:] if row.kind == "send" and row.about in events]
        handled = Counter(node for row in sent for node in (row.node, row.peer))
        return 100 * max(handled.values()) / len(sent), len(sent) / len(events)

    def _busiest(self, kinds: set[str], before: int) -> float:
        sent = [row for row in list(self.world.trace)[before:] if row.kind == "send" and row.what in kinds]
        handled = Counter(node for row in sent for node in (row.node, row.peer))
        return 100 * max(handled.values()) / len(sent)


def measure_rendezvous(parameters: Parameters, seed: int) -> list[Measured]:
    """Success and length of walks of the protocol, by what a full table keeps."""
    nodes, attributes, rng = parameters["nodes"], parameters["attributes"], Random(f"rendezvous/{seed}")
    options: dict[str, Any] = {"profile": "paper", "policy": parameters["policy"], "table_size": parameters["table"]}
    world = World("cbdlo", node_count=nodes, seed=seed, options=options, recording=False)
    world.run_for(20.0)
    for number in range(attributes):
        world.subscribe(rng.randrange(nodes), Ranges.of(**{f"a{number}": (0, 9)}))
    world.run_for(parameters["warm_s"])
    sent, hits, walks = world.trace.messages("Walk"), world.trace.counted["hits"], parameters["walks"]
    for _ in range(walks):
        world.publish(rng.randrange(nodes), {f"a{rng.randrange(attributes)}": 5})
        world.run_for(0.2)
    found = (world.trace.counted["hits"] - hits) / walks
    messages = (world.trace.messages("Walk") - sent) / walks
    series = parameters["policy"]
    return [
        Measured(f"{SUCCEEDED}, {series}", attributes, 100 * found),
        Measured(f"{HOPS}, {series}", attributes, messages),
    ]


# ── Claims ─────────────────────────────────────────────────────────────────────


def shares_registrations(results: Results) -> Finding:
    """With c coordinators, at most 2 / c of all registrations at one node."""
    shown, worst = [], 0.0
    for values in (READABLE, UNREADABLE):
        series = f"{REGISTERED}, {values}"
        for count in results.xs(series):
            shown.append(f"{values}, {count:g}: {results.mean(series, count):.0f} %")
            worst = max(worst, max(results.ys(series, count)) * count / 100)
    why = (
        "the hash of a node's id says which coordinator it registers with; a hash does not share evenly among few nodes"
    )
    return Finding(", ".join(shown), judged(worst, holds=lambda times: times <= 2), why)


def shares_events(values: str, why: str) -> Any:
    """With eight coordinators, the busiest node handles at most half the share that it has with one."""

    def judge(results: Results) -> Finding:
        series = f"{HANDLED}, {values}"
        one, eight = results.mean(series, 1), results.mean(series, 8)
        shown = ", ".join(f"{count:g}: {results.mean(series, count):.0f} %" for count in results.xs(series))
        return Finding(shown, judged(eight / one, holds=lambda share: share <= 0.5), why)

    return judge


def costs_little(results: Results) -> Finding:
    """With four coordinators, at most twice the messages of an event."""
    series = f"{MESSAGES}, {READABLE}"
    shown = ", ".join(f"{count:g}: {results.mean(series, count):.1f}" for count in results.xs(series))
    why = "an event visits every topology of its attribute: each has a way in and a tree of its own"
    return Finding(
        shown, judged(results.mean(series, 4) / results.mean(series, 1), holds=lambda ratio: ratio <= 2), why
    )


def meets(results: Results) -> Finding:
    """With twenty attributes for each entry of a table, guided walks succeed nine times in ten."""
    count = 20.0 * TABLE
    shown = ", ".join(
        f"{policy} {results.mean(f'{SUCCEEDED}, {policy}', count):.1f} % with {results.mean(f'{HOPS}, {policy}', count):.1f} messages"
        for policy in ("naive", "balanced", "hashed")
    )
    why = "a walk goes to the neighbour whose table keeps the attribute by hash, if it has heard of it"
    reached = results.mean(f"{SUCCEEDED}, hashed", count)
    return Finding(f"{count:g} attributes: {shown}", judged(reached, holds=lambda share: share >= 90), why)
