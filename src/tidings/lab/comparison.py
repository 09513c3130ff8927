"""The same workload over every overlay: what each costs, how fast it is, what it loses, and which one to take.

No paper compares more than two of these protocols. Here all of them get the same brokers, subscriptions, events,
failures and delays in a simulated network, one after the other:

    subscribe    every subscription, one after the other        → messages for one
    rest         nothing happens                                → upkeep: messages a broker sends in a second
    publish      events, with or without churn                  → messages, hops, delay, loss, balance
    attack       the busiest brokers crash; more events at once → what is lost, and what it costs, before any repair

`recommend` computes from these numbers, and from how often the network is to publish and subscribe, how many messages a
broker will send in a second. Of the overlays that lose no more than is allowed, and are quick enough, the cheapest is
recommended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from random import Random
from statistics import fmean
from typing import Any, get_args

from tidings.errors import InputError, did_you_mean
from tidings.overlay import MESSAGE_NAMES, NAMES, EventId, Everything, NodeId, Ranges, SubscriptionId
from tidings.sim import DelaySpace, Flat, Plane, Topology, World, topology

EXTENT = 1000  # Values of an attribute.
ATTRIBUTES = ("x", "y")
BROKERS_MAX, SUBSCRIPTIONS_MAX, EVENTS_MAX = 1000, 10_000, 10_000  # Of one comparison, which runs in this process.
SETTLE_S, REST_S = 30.0, 20.0  # Virtual time before and after everyone subscribes, and at rest.
SUBSCRIPTION_S, EVENT_S = 0.2, 0.5  # Between two subscriptions, and between two events.
LAST_S = 60.0  # Until a late event has arrived.
PERIOD_S = 5.0  # Between two rounds of churn.


def _expect(is_right: bool, name: str, expected: str, got: object) -> None:
    if not is_right:
        raise InputError(f"expected {name} of {expected}, got {got}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedWorkload:
    """What is done to every overlay. Raises InputError for numbers that make no sense."""

    brokers: int = 64
    subscriptions: int = 64
    selectivity: float = 0.05
    """The share of events that a subscription matches."""
    unreadable: float = 0.0
    """The share of the two attributes that brokers must not read: 0, 0.5 or 1."""
    churn: float = 0.0
    """Percent of the brokers that crash, and are replaced by new ones, in a minute."""
    attacked: float = 5.0
    """Percent of the brokers, the busiest ones, that crash at once in the end."""
    delays: str = "plane"
    """`flat`: every link takes 10 ms; `plane`: brokers lie in a square that takes 100 ms to cross; `cities`: in eight
    clusters of one."""
    events: int = 60

    def __post_init__(self) -> None:
        _expect(2 <= self.brokers <= BROKERS_MAX, "brokers", f"2 to {BROKERS_MAX}", self.brokers)
        _expect(
            1 <= self.subscriptions <= SUBSCRIPTIONS_MAX,
            "subscriptions",
            f"1 to {SUBSCRIPTIONS_MAX}",
            self.subscriptions,
        )
        _expect(1 <= self.events <= EVENTS_MAX, "events", f"1 to {EVENTS_MAX}", self.events)
        _expect(0 < self.selectivity <= 1, "selectivity", "above 0 up to 1", self.selectivity)
        _expect(self.unreadable in (0.0, 0.5, 1.0), "unreadable", "0, 0.5 or 1", self.unreadable)
        _expect(0 <= self.churn <= 100, "churn", "0 to 100 percent a minute", self.churn)
        _expect(0 <= self.attacked <= 50, "attacked", "0 to 50 percent", self.attacked)
        _expect(self.delays in DELAYS, "delays", ", ".join(DELAYS), self.delays)

    @property
    def readable(self) -> tuple[str, ...]:
        """The attributes that brokers may read."""
        return ATTRIBUTES[: round(len(ATTRIBUTES) * (1 - self.unreadable))]


MAY_LOSE = ("gossip", "tera", "simple")  # Baselines: they lose an event now and then, if not in a short run.
DELAYS = ("flat", "plane", "cities")

SCENARIOS: dict[str, tuple[str, ComparedWorkload]] = {
    "few": ("16 brokers, a subscription each", ComparedWorkload(brokers=16, subscriptions=16)),
    "usual": ("64 brokers, a subscription each", ComparedWorkload()),
    "many": ("128 brokers, a subscription each", ComparedWorkload(brokers=128, subscriptions=128)),
    "busy": ("64 brokers, ten subscriptions each", ComparedWorkload(subscriptions=640)),
    "broad": ("every second event matches a subscription", ComparedWorkload(selectivity=0.5)),
    "rare": ("one event in 500 matches a subscription", ComparedWorkload(selectivity=0.002)),
    "restless": ("a fifth of the brokers replaced in a minute", ComparedWorkload(churn=20.0)),
    "secret": ("brokers may read neither attribute", ComparedWorkload(unreadable=1.0)),
    "half secret": ("brokers may read one attribute of two", ComparedWorkload(unreadable=0.5)),
    "far": ("brokers in eight cities, up to 100 ms apart", ComparedWorkload(delays="cities")),
}
"""The workloads of the guide, with a few words on each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlayCost:
    """What one overlay did with a workload: means over runs."""

    overlay: str
    messages: float
    """For one event: acknowledgements, and repairs where there is churn, included; what is sent on schedule is not."""
    hops: float
    """From the publisher to a subscriber's broker."""
    delay_ms: float
    lost: float
    """Percent of the matches that did not come about."""
    state: float
    """Entries that a broker keeps, of all kinds."""
    subscribing: float
    """Messages for one subscription."""
    upkeep: float
    """Messages that a broker sends in a second while nothing happens."""
    gini: float
    """How unevenly brokers share the messages of events: 0 all alike, near 1 if one does everything."""
    attack_lost: float
    """Percent of the matches lost of events published right after the busiest brokers have crashed."""
    attack_messages: float


@dataclass(frozen=True, slots=True)
class Recommendation:
    """An overlay, how many messages a broker sends in a second with it, and why not others."""

    overlay: str
    messages_per_s: float
    why: str
    ranking: tuple[tuple[str, float], ...]
    """Every overlay that qualifies, with its messages, cheapest first."""


def compare(workload: ComparedWorkload, overlays: Sequence[str] = NAMES, *, seeds: int = 2) -> list[OverlayCost]:
    """Run a workload over each overlay, in the order given. The same arguments give the same numbers."""
    for name in overlays:
        if name not in NAMES:
            hint = did_you_mean(name, NAMES) or f"there are {', '.join(NAMES)}"
            raise InputError(f"there is no overlay {name!r}; {hint}")
    _expect(1 <= seeds <= 100, "seeds", "1 to 100", seeds)
    return [_mean([_Run(name, workload, seed).measured() for seed in range(seeds)]) for name in overlays]


def recommend(
    costs: Sequence[OverlayCost],
    brokers: int,
    *,
    events_per_s: float = 10.0,
    subscriptions_per_s: float = 0.1,
    lost_max: float = 0.0,
    delay_ms_max: float = float("inf"),
) -> Recommendation | None:
    """The overlay that costs least of those that lose at most `lost_max` percent and are quick enough; None if none is."""
    sound = [each for each in costs if each.lost <= lost_max and (lost_max > 0 or each.overlay not in MAY_LOSE)]
    quick = [each for each in sound if each.delay_ms <= delay_ms_max]
    ranking = sorted(
        (_messages_per_s(each, brokers, events_per_s, subscriptions_per_s), each.overlay) for each in quick
    )
    if not ranking:
        return None
    lossy = [f"{each.overlay} ({each.lost:.1f} %)" for each in costs if each.lost > lost_max]
    slow = [f"{each.overlay} ({each.delay_ms:.0f} ms)" for each in sound if each not in quick]
    parts = [f"{ranking[0][0]:.1f} messages a second for each broker"]
    parts += [f"next is {ranking[1][1]} with {ranking[1][0]:.1f}"] if len(ranking) > 1 else []
    parts += [f"too lossy: {', '.join(lossy)}"] if lossy else []
    parts += [f"too slow: {', '.join(slow)}"] if slow else []
    return Recommendation(ranking[0][1], ranking[0][0], "; ".join(parts), tuple((name, cost) for cost, name in ranking))


def _messages_per_s(cost: OverlayCost, brokers: int, events_per_s: float, subscriptions_per_s: float) -> float:
    return (cost.messages * events_per_s + cost.subscribing * subscriptions_per_s) / brokers + cost.upkeep


def gini(counts: Sequence[float]) -> float:
    """How unevenly a total is shared.

    >>> gini([5, 5, 5]), round(gini([0, 0, 0, 8]), 2), gini([])
    (0.0, 0.75, 0.0)
    """
    total, count = sum(counts), len(counts)
    if not total:
        return 0.0
    weighted = sum(rank * value for rank, value in enumerate(sorted(counts), 1))
    return 2 * weighted / (count * total) - (count + 1) / count


class _Run:
    """One overlay, one workload, one seed."""

    def __init__(self, overlay: str, workload: ComparedWorkload, seed: int) -> None:
        self.overlay, self.load, self.rng = overlay, workload, Random(f"compare/{seed}")
        self.world = World(
            overlay, topology=_network(workload, seed), seed=seed, options=_options(overlay, workload), recording=False
        )
        self.wanted: dict[SubscriptionId, Ranges] = {}
        self.values: dict[EventId, dict[str, int]] = {}
        nodes = range(workload.brokers)
        changing = self.rng.sample(nodes, len(nodes) // 2) if workload.churn else []
        self.stable, self.changing = [node for node in nodes if node not in changing], changing
        self._due = self._idle_rate = self._messages = 0.0

    def measured(self) -> OverlayCost:
        world = self.world
        world.run_for(SETTLE_S)
        asked, took_s = self._subscribe_all()
        upkeep, self._idle_rate = self._rest()
        subscribing = max(0.0, asked - self._idle_rate * took_s) / self.load.subscriptions
        world.trace.recording = True
        first = self._publish_all(churn=True)
        calm = self._reading(first)
        sent = Counter(row.node for row in world.trace if row.kind == "send" and row.about in self.values)
        busiest = self._attack(sent)
        after = self._reading(self._publish_all(churn=False))
        handled = [sent[world.nodes[node].id] for node in self.stable]
        return OverlayCost(
            overlay=self.overlay, messages=calm.messages, hops=calm.hops, delay_ms=calm.delay_ms, lost=calm.lost,
            state=self._state(busiest), subscribing=subscribing, upkeep=upkeep, gini=gini(handled),
            attack_lost=after.lost, attack_messages=after.messages,
        )  # fmt: skip

    def _subscribe_all(self) -> tuple[int, float]:
        """Messages not sent on schedule while everyone subscribes, and how long that took."""
        world = self.world
        before, began = self._unscheduled(), world.now
        for number in range(self.load.subscriptions):
            id, wanted = self._subscribe(self.stable[number % len(self.stable)])
            self.wanted[id] = wanted
            world.run_for(SUBSCRIPTION_S)
        world.run_for(SETTLE_S)
        return self._unscheduled() - before, world.now - began

    def _unscheduled(self) -> int:
        # Of this protocol: others have messages of the same names.
        kinds = get_args(self.world.protocol.messages) or (self.world.protocol.messages,)
        on_schedule = {MESSAGE_NAMES[kind] for kind in kinds if kind.chatter}
        return sum(count for name, (count, _) in self.world.trace.sent.items() if name not in on_schedule)

    def _subscribe(self, node: int) -> tuple[SubscriptionId, Ranges]:
        """A random box of the selectivity; the router sees of it what brokers may read."""
        side = max(1, round(EXTENT * self.load.selectivity ** (1 / len(ATTRIBUTES))))
        lows = {name: self.rng.randrange(EXTENT - side + 1) for name in ATTRIBUTES}
        ranges = {name: (low, low + side - 1) for name, low in lows.items()}
        shown = {name: ranges[name] for name in self.load.readable}
        return self.world.subscribe(node, Ranges.of(**shown) if shown else Everything()), Ranges.of(**ranges)

    def _rest(self) -> tuple[float, float]:
        """While nothing happens: all messages of a broker in a second, and of all brokers those not on schedule."""
        before, other = self.world.trace.messages(), self._unscheduled()
        self.world.run_for(REST_S)
        sent, unscheduled = self.world.trace.messages() - before, self._unscheduled() - other
        return sent / REST_S / self.load.brokers, unscheduled / REST_S

    def _publish_all(self, *, churn: bool) -> list[EventId]:
        published: list[EventId] = []
        before, began = self._unscheduled(), self.world.now
        live = [node for node in self.stable if self.world.nodes[node].up]
        for number in range(self.load.events):
            if churn and self.load.churn and number % max(1, round(PERIOD_S / EVENT_S)) == 0:
                self._replace_some()
            values = {name: self.rng.randrange(EXTENT) for name in ATTRIBUTES}
            event = self.world.publish(self.rng.choice(live), {name: values[name] for name in self.load.readable})
            self.values[event] = values
            published.append(event)
            self.world.run_for(EVENT_S)
        self.world.run_for(LAST_S)
        sent = self._unscheduled() - before
        self._messages = max(0.0, sent - self._idle_rate * (self.world.now - began))
        return published

    def _replace_some(self) -> None:
        self._due += self.load.brokers * self.load.churn / 100 * PERIOD_S / 60
        while self._due >= 1 and self.changing:
            self._due -= 1
            self.world.crash(self.changing.pop(0))
            self.changing.append(self.world.join())

    def _attack(self, sent: Counter[NodeId]) -> set[NodeId]:
        """Crash the brokers that have sent most, all at once."""
        count = round(self.load.brokers * self.load.attacked / 100)
        by_id = {member.id: member.index for member in self.world.nodes if member.up}
        busiest = sorted((id for id in by_id if sent[id]), key=lambda each: (-sent[each], each))[:count]
        for id in busiest:
            self.world.crash(by_id[id])
        return set(busiest)

    def _reading(self, published: Sequence[EventId]) -> _Reading:
        """What became of some events: of every true match at a broker that is up."""
        trace = self.world.trace
        up = {member.id for member in self.world.nodes if member.up}
        at = {(notice.event, notice.subscription): notice.at for notice in trace.notices}
        depths = _depths(self.world, published)
        delays, hops, matches = [], [], 0
        for event in published:
            point = self.values[event]
            for id, wanted in self.wanted.items():
                if id.origin in up and all(low <= point[name] <= high for name, low, high in wanted.ranges):
                    matches += 1
                    arrived = at.get((event, id))
                    if arrived is not None:
                        delays.append(1000 * (arrived - trace.publications[event].at))
                        hops.append(depths.get((event, id.origin), 0))
        return _Reading(
            self._messages / len(published),
            fmean(hops) if hops else 0.0,
            fmean(delays) if delays else 0.0,
            100 * (1 - len(delays) / matches) if matches else 0.0,
        )

    def _state(self, dead: set[NodeId]) -> float:
        routers = [member.router for member in self.world.nodes if member.up and member.id not in dead]
        return fmean(sum(count for count, _ in router.holdings().values()) for router in routers)


@dataclass(frozen=True, slots=True)
class _Reading:
    messages: float
    hops: float
    delay_ms: float
    lost: float


def _depths(world: World, published: Iterable[EventId]) -> dict[tuple[EventId, NodeId], int]:
    """For each event and node, over how many links the event came first."""
    chosen, found = set(published), {}
    for event in chosen:
        found[event, event.origin] = 0
    for row in world.trace:
        if row.kind == "send" and row.about in chosen:
            key = (row.about, row.peer)
            if key not in found and (row.about, row.node) in found:
                found[key] = found[row.about, row.node] + 1
    return found


def _mean(runs: Sequence[OverlayCost]) -> OverlayCost:
    names = [name for name in OverlayCost.__slots__ if name != "overlay"]
    means: dict[str, Any] = {name: fmean(getattr(run, name) for run in runs) for name in names}
    return replace(runs[0], **means)


def _network(load: ComparedWorkload, seed: int) -> Topology:
    """A scale-free graph for overlays that need one; the others use only its delays."""
    m0 = min(load.brokers, 10)
    graph = topology("barabasi-albert", load.brokers, Random(f"topology/{seed}"), m0=m0, m=min(3, m0))
    space: DelaySpace = Flat() if load.delays == "flat" else Plane(seed, clusters=8 if load.delays == "cities" else 0)
    return Topology(load.brokers, graph.links, space)


def _options(overlay: str, load: ComparedWorkload) -> dict[str, object]:
    """The defaults; Spanhop is told its axes, as whoever runs it would."""
    if overlay != "spanhop":
        return {}
    return {"axes": dict.fromkeys(load.readable or ATTRIBUTES[:1], (0, EXTENT))}
