"""Simulated networks that a page watches and breaks: a world of `tidings.sim`, stepped by hand.

Each session has one world at most. Its size, the number of events and the processor time that it may take are bounded,
and it runs in a thread beside the server, in short slices of virtual time, so that the other pages go on. The same
choices and the same steps show the same world: it has a seed and no clock.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

from tidings.errors import InputError, did_you_mean
from tidings.net import BadRequest
from tidings.overlay import NAMES, EventId, SubscriptionId
from tidings.sim import CALM, Weather, Workload, World

NODES_MIN, NODES_MAX = 2, 120
SUBSCRIPTIONS_MAX = 200
EVENTS_MAX = 500
ADDED_MAX = 40  # Nodes that join later.
WORLDS_MAX = 8
STEP_S_MAX = 60.0  # Virtual, at once.
SLICE_S = 0.02
WORK_S_MAX = 2.0  # Real, for one request.
WORK_TOTAL_S_MAX = 120.0  # Real, for one world: then a new one has to be begun.
IN_FLIGHT_SHOWN = 300
TREES_SHOWN = 20
LINKS_SHOWN = 6  # Of one node; all links of a protocol whose nodes know most others would be a thicket.
EXTENT = 1000


class Simulation:
    """One world, and what it may still cost."""

    def __init__(self, asked: Mapping[str, Any]) -> None:
        """Raises InputError for choices that cannot be."""
        name = str(asked.get("protocol", "irbr"))
        if name not in NAMES:
            raise InputError(f"there is no protocol {name[:40]!r}; {did_you_mean(name, NAMES) or ', '.join(NAMES)}")
        nodes = _number(asked, "nodes", 24, NODES_MIN, NODES_MAX)
        subscriptions = _number(asked, "subscriptions", 12, 0, SUBSCRIPTIONS_MAX)
        self.seed = _number(asked, "seed", 7, 0, 1_000_000)
        self.work_s, self._is_split, self._is_cut_short = 0.0, False, False
        began = time.process_time()
        self.world = World(name, node_count=nodes, seed=self.seed, recording=False)
        load = Workload(axes=2, extent=EXTENT, width=EXTENT // 3, subscriptions=subscriptions)
        rng = Random(f"console/{self.seed}")
        self._draw = load.drawing(rng)
        self._rng = rng
        for wanted in load.wanted(rng):
            self.world.subscribe(rng.randrange(nodes), wanted)
        self._expected: dict[EventId, frozenset[SubscriptionId]] = {}
        self._noticed, self._twice = 0, 0
        self._notified: dict[EventId, set[SubscriptionId]] = {}
        self.work_s += time.process_time() - began

    # ── What a page can do ──

    def act(self, action: str, asked: Mapping[str, Any]) -> None:
        """Carries out one action; raises InputError for one that there is not, or whose bounds are exceeded."""
        known: dict[str, Callable[[Mapping[str, Any]], None]] = {
            "look": lambda _: None,
            "step": lambda asked: self._run_to(self.world.now + _seconds(asked)),
            "next": lambda _: self._run_next(),
            "publish": self._publish,
            "crash": lambda asked: self.world.crash(self._node(asked)),
            "restart": lambda asked: self.world.restart(self._node(asked)),
            "leave": lambda asked: self.world.leave(self._node(asked)),
            "join": lambda _: self._join(),
            "split": lambda _: self._split(),
            "heal": lambda _: self._heal(),
            "weather": self._weather,
        }
        if action not in known:
            raise InputError(f"expected one of {', '.join(known)}")
        if self.work_s > WORK_TOTAL_S_MAX:
            raise InputError(f"this network has taken {WORK_TOTAL_S_MAX:.0f} s of the processor; begin a new one")
        began, self._is_cut_short = time.thread_time(), False
        known[action](asked)
        self.work_s += time.thread_time() - began
        self._take_notices()

    def _run_to(self, until: float) -> None:
        """In slices, so that a world in uproar does not hold the thread for long."""
        ends = time.thread_time() + WORK_S_MAX
        while self.world.now < until:
            self.world.run_for(min(SLICE_S, until - self.world.now))
            if time.thread_time() > ends:
                self._is_cut_short = True
                return

    def _run_next(self) -> None:
        when = self.world.next_arrival()
        self._run_to(when if when is not None else self.world.now + 1.0)

    def _publish(self, asked: Mapping[str, Any]) -> None:
        if len(self._expected) >= EVENTS_MAX:
            raise InputError(f"at most {EVENTS_MAX} events in one simulated network; begin a new one")
        up = self.world.up()
        if not up:
            raise InputError("all nodes are down; restart one")
        node = self._node(asked) if asked.get("node") is not None else self._rng.choice(up)
        if node not in up:
            raise InputError(f"node {node} is down and cannot publish")
        id = self.world.publish(node, self._draw(self._rng))
        packet = self.world.trace.publications[id].packet
        self._expected[id] = frozenset(
            subscription
            for member in self.world.nodes
            if member.up
            for subscription, interest in member.subscriptions.items()
            if interest.matches(packet)
        )

    def _join(self) -> None:
        if self.world.node_count >= NODES_MAX + ADDED_MAX:
            raise InputError("this network has as many nodes as a page may have; begin a new one")
        if not self.world.up():
            raise InputError("all nodes are down; restart one")
        self.world.join()

    def _split(self) -> None:
        self.world.cut_off(range(self.world.node_count // 2))
        self._is_split = True

    def _heal(self) -> None:
        self.world.heal()
        self._is_split = False

    def _weather(self, asked: Mapping[str, Any]) -> None:
        loss = asked.get("loss")
        if not isinstance(loss, int | float) or not 0 <= loss <= 1:
            raise InputError("expected the share of messages to lose, from 0 to 1")
        self.world.set_weather(Weather(loss=float(loss)) if loss else CALM)

    def _node(self, asked: Mapping[str, Any]) -> int:
        node = asked.get("node")
        if not isinstance(node, int) or isinstance(node, bool) or not 0 <= node < self.world.node_count:
            raise InputError(f"expected a node from 0 to {self.world.node_count - 1}")
        return node

    def _take_notices(self) -> None:
        notices = self.world.trace.notices
        for notice in notices[self._noticed :]:
            known = self._notified.setdefault(notice.event, set())
            self._twice += notice.subscription in known
            known.add(notice.subscription)
        self._noticed = len(notices)

    # ── What a page shows ──

    def view(self) -> dict[str, Any]:
        """The network as its routers see it now, the messages on their way, and what has come of the events."""
        world = self.world
        last = next(reversed(self._expected), None)
        reached = {id.origin for id in self._notified.get(last, ())} if last is not None else set()
        wanting = {id.origin for id in self._expected[last]} if last is not None else set()
        nodes = [self._node_view(member, reached, wanting) for member in world.nodes]
        known = {each["id"] for each in nodes}
        edges = dict.fromkeys(
            (min(member.id, other), max(member.id, other))
            for member in world.nodes
            if member.up
            for other in self._ends(member)
            if other in known
        )
        return {
            "overlay": world.protocol.name,
            "now_s": round(world.now, 4),
            "next_s": world.next_arrival(),
            "brokers": nodes,
            "links": [{"a": a, "b": b, "up": True, "queued": 0, "owed": 0} for a, b in edges],
            "messages": [
                {
                    "from": each.sender,
                    "to": each.to,
                    "name": each.name,
                    "has_event": each.about is not None,
                    "way": round(1 - min(1.0, (each.arrives_at - world.now) / max(each.delay_s, 1e-9)), 3),
                }
                for each in world.in_flight(IN_FLIGHT_SHOWN)
            ],
            "sent": {name: count for name, (count, _) in sorted(world.trace.sent.items())},
            "bytes": world.trace.bytes(),
            "lost": world.trace.counted["lost"],
            "missed": world.trace.counted["missed"],
            "loss": world.weather.loss,
            "is_split": self._is_split,
            "is_cut_short": self._is_cut_short,
            "work_left": round(max(0.0, 1 - self.work_s / WORK_TOTAL_S_MAX), 3),
            "events": len(self._expected),
            "expected": sum(map(len, self._expected.values())),
            "notified": sum(len(self._notified.get(id, set()) & wanted) for id, wanted in self._expected.items()),
            "twice": self._twice,
            "last": {
                "values": dict(world.trace.publications[last].packet.view.values),
                "node": last.origin,
                "expected": len(self._expected[last]),
                "notified": len(self._notified.get(last, set()) & self._expected[last]),
            }
            if last is not None
            else None,
        }

    def _ends(self, member: Any) -> list[str]:
        """The links of a node that are drawn: of one that knows many peers, the first that it names."""
        ends = list(member.router.links()) or [self.world.nodes[k].id for k in member.links]
        return ends[:LINKS_SHOWN]

    def _node_view(self, member: Any, reached: set[str], wanting: set[str]) -> dict[str, Any]:
        entry = member.router.map_entry()
        return {
            "id": member.id,
            "number": member.index,
            "name": str(member.index),
            "domain": "cut off" if self._is_split and member.side else "network",
            "address": member.peer.address,
            "state": ("leaving" if member.leaving else "up") if member.up else "away",
            "subscriptions": len(member.subscriptions),
            "mark": "reached" if member.id in reached else "waiting" if member.id in wanting else "",
            "role": entry.role,
            "zones": entry.zones,
            "axes": entry.axes,
            "trees": [
                {
                    "type": tree.type,
                    "attribute": tree.attribute,
                    "is_root": tree.is_root,
                    "up": tree.up,
                    "down": tree.down,
                }
                for tree in entry.trees[:TREES_SHOWN]
            ],
        }


class Simulations:
    """The worlds of all sessions; the one that was not used for longest goes when there are too many."""

    def __init__(self) -> None:
        self._worlds: OrderedDict[str, Simulation] = OrderedDict()
        self._busy: set[str] = set()
        self._thread = ThreadPoolExecutor(1, "simulation")

    async def act(self, session: str, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Begins a world, or carries out an action in the one that the session has; returns what there is to see."""
        if session in self._busy:
            raise BadRequest(429, "the last step is not done yet")
        self._busy.add(session)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._act, session, dict(asked))
        finally:
            self._busy.discard(session)

    def _act(self, session: str, asked: Mapping[str, Any]) -> dict[str, Any]:
        action = str(asked.get("action", ""))
        if action == "begin":
            self._worlds[session] = Simulation(asked)
            self._worlds.move_to_end(session)
            while len(self._worlds) > WORLDS_MAX:
                self._worlds.popitem(last=False)
        elif session not in self._worlds:
            raise BadRequest(404, "there is no simulated network in this session; begin one")
        else:
            self._worlds.move_to_end(session)
            self._worlds[session].act(action, asked)
        return self._worlds[session].view()

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)


def _number(asked: Mapping[str, Any], name: str, usual: int, least: int, most: int) -> int:
    value = asked.get(name, usual)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise InputError(f"{name}: expected a whole number from {least} to {most}")
    return value


def _seconds(asked: Mapping[str, Any]) -> float:
    value = asked.get("seconds", 0.05)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= STEP_S_MAX:
        raise InputError(f"seconds: expected more than 0, up to {STEP_S_MAX:.0f}")
    return float(value)
