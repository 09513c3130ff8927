"""The world: a discrete-event simulation of many nodes with one clock, one seed and one outcome.

A *step* is something that happens at a moment: a message arrives, a node wakes, a fault
begins. Steps wait in a heap ordered by time and, within one moment, by when they were
pushed. Time passes only in the methods that say `run`. Nothing depends on the order of a
set, on the machine's clock or on its hash seed, so the same world run twice leaves the
same trace to the last bit.

    >>> from tidings.overlay import Ranges
    >>> world = World("flooding", node_count=24, seed=7)
    >>> subscription = world.subscribe(5, Ranges.of(x=(0, 9)))
    >>> event = world.publish(0, {"x": 3})
    >>> world.run_until_quiet()
    >>> [(notice.event, notice.subscription) == (event, subscription) for notice in world.trace.notices]
    [True]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from heapq import heappop, heappush, nsmallest
from random import Random
from typing import Any, NamedTuple, assert_never

import msgspec

from tidings.errors import InputError
from tidings.overlay import (
    MESSAGE_NAMES,
    AnyWanted,
    Completed,
    Count,
    Deliver,
    Effect,
    EventId,
    Failed,
    Header,
    Interest,
    Message,
    NodeId,
    Packet,
    Peer,
    Place,
    Protocol,
    Router,
    Send,
    SubscriptionId,
    View,
    WakeAt,
    protocol,
    size_of,
)
from tidings.sim.faults import Fault, NetworkSplit, Slow, Storm, begin, end
from tidings.sim.network import CALM, Weather
from tidings.sim.topologies import Link, Topology, barabasi_albert
from tidings.sim.trace import CheckFailed, NotificationRecord, Publication, SimulationTrace, SubscriptionEntry
from tidings.sim.workloads import Values

EVENT_TYPE = "Event"  # The one type that made-up events have unless they say otherwise.
LEAVE_WITHIN_S = 120.0  # A node that has not left by then is switched off.
QUIET_WITHIN_S = 3600.0  # Virtual. A world that still sends an hour after the last event has a loop in it.

# Kinds of steps. Chatter and idle wakes do not keep a world from being quiet.
MESSAGE, CHATTER, WAKE, IDLE, CALL, BOUNCE, TAKEN = range(7)
KEEPS_BUSY = (True, False, True, False, True, True, True)


class EncodedMessage(msgspec.Struct, frozen=True, gc=False):
    """A message as bytes, made for one link by a node that seals (see `nodes`). The plain message is for bounces."""

    raw: bytes
    message: Any
    name: str
    about: Any


class MessageInFlight(NamedTuple):
    """A message that has been sent and has not arrived."""

    sender: NodeId
    to: NodeId
    name: str
    about: EventId | None
    """The event in it, if there is one."""
    arrives_at: float
    delay_s: float
    """Between these two nodes, without what the weather adds."""


@dataclass(slots=True, eq=False)
class SimulatedNode:
    """One node of the world: its router, its own subscriptions, and whether it is up."""

    index: int
    peer: Peer
    router: Router[Any]
    links: list[int]
    up: bool = True
    leaving: bool = False
    side: int = 0  # Of a split.
    each_s: float = 0.0  # How long it takes over a message, where it is slow.
    busy_until: float = 0.0
    subscriptions: dict[SubscriptionId, Interest] = field(default_factory=dict)
    subscriptions_made: int = 0
    events_published: int = 0

    @property
    def id(self) -> NodeId:
        return self.peer.id


class World:
    """A protocol, run by many nodes at once. Time passes only in the methods that say `run`.

    Nodes are given by number. `settled` starts a protocol that can do so in the state in
    which everybody has joined; otherwise the nodes find each other by talking, which takes
    virtual time: `run_for` some before counting on it.
    """

    def __init__(
        self,
        protocol_name: str | Protocol,
        *,
        node_count: int = 0,
        topology: Topology | None = None,
        seed: int = 0,
        options: dict[str, Any] | None = None,
        weather: Weather = CALM,
        settled: bool = True,
        recording: bool = True,
    ) -> None:
        self.protocol = protocol(protocol_name) if isinstance(protocol_name, str) else protocol_name
        self.seed, self.options = seed, options or {}
        self.bounces = True
        """Whether a sender learns that a message came to a node that is down, as over TCP."""
        self.now, self.trace = 0.0, SimulationTrace(recording)
        self._heap: list[tuple[float, int, int, Any, Any, Any, Any]] = []
        self._order = self._pending = 0
        self.rng = Random(f"world/{seed}")
        self._luck = Random(f"network/{seed}")
        self._split = False
        self._linked: set[Link] | None = None  # All pairs that can hear each other, where links come and go.
        self._described: tuple[Any, str, Any, int, list[int], int] = (None, "", None, 0, [0, 0], MESSAGE)
        self._arrived: dict[tuple[int, int], float] = {}
        self.set_weather(weather)
        self.topology = topology or _usual_topology(self.protocol, node_count, seed)
        self._space = self.topology.space
        self.nodes: list[SimulatedNode] = []
        self._by_id: dict[NodeId, SimulatedNode] = {}
        self._found(settled)

    # ── Time ───────────────────────────────────────────────────────────────────

    def at(self, when: float, do: Callable[[], object]) -> None:
        """Do something at a later moment."""
        self._push(when, CALL, None, do, None, None)

    def run_for(self, seconds: float) -> None:
        """Let this much time pass."""
        until = self.now + seconds
        self._run(until, stop_when_quiet=False)
        self.now = until

    def run_until_quiet(self, within_s: float = QUIET_WITHIN_S) -> None:
        """Let time pass until only heartbeats are left; raises CheckFailed if that takes too long."""
        self._run(self.now + within_s, stop_when_quiet=True)
        if self._pending:
            raise CheckFailed(f"not quiet after {within_s} s: {self._pending} steps are still to come", self.trace)

    def is_quiet(self) -> bool:
        """Whether nothing is on its way but what is sent on schedule."""
        return self._pending == 0

    def next_arrival(self) -> float | None:
        """When the next message arrives that is more than a heartbeat; None if none is on its way."""
        return min((step[0] for step in self._heap if step[2] == MESSAGE), default=None)

    def in_flight(self, at_most: int) -> list[MessageInFlight]:
        """Messages on their way but for heartbeats and the like, the next to arrive first."""
        steps = nsmallest(at_most, (step for step in self._heap if step[2] == MESSAGE), key=lambda step: step[:2])
        return [self._in_flight(step) for step in steps]

    def _in_flight(self, step: tuple[float, int, int, Any, Any, Any, Any]) -> MessageInFlight:
        when, _, _, target, message, sender, _ = step
        sealed = isinstance(message, EncodedMessage)
        packet = getattr(message, "packet", None)
        about = message.about if sealed else packet.header.id if packet is not None else None
        name = message.name if sealed else MESSAGE_NAMES[message.__class__]
        delay_s = self._space.delay_s(self._by_id[sender].index, target.index)
        return MessageInFlight(sender, target.id, name, about, when, delay_s)

    def _run(self, until: float, *, stop_when_quiet: bool) -> None:
        # The inner loop. Messages are handled right here: a call more for each would cost a tenth of the speed.
        heap, carry_out = self._heap, self.carry_out
        while heap and heap[0][0] <= until and not (stop_when_quiet and not self._pending):
            now, _, kind, member, what, who, extra = heappop(heap)
            self.now = now
            if KEEPS_BUSY[kind]:
                self._pending -= 1
            if kind <= CHATTER and member.up and not member.each_s:
                carry_out(member, member.router.receive(who, what, now))
            else:
                self._step(kind, member, what, who, extra)

    def _push(self, when: float, kind: int, member: SimulatedNode | None, what: Any, who: Any, extra: Any) -> None:
        self._order += 1
        self._pending += KEEPS_BUSY[kind]
        heappush(self._heap, (when, self._order, kind, member, what, who, extra))

    # ── What a test or an experiment does ──────────────────────────────────────

    def subscribe(self, node: int, wanted: AnyWanted, event_type: str = EVENT_TYPE) -> SubscriptionId:
        """Subscribe at a node."""
        member = self.nodes[node]
        member.subscriptions_made += 1
        id = SubscriptionId(member.id, member.peer.incarnation, member.subscriptions_made)
        interest = Interest(id, event_type, wanted)
        member.subscriptions[id] = interest
        self.trace.subscriptions[id] = SubscriptionEntry(interest, member.id, self.now)
        self.trace.note(self.now, "subscribe", member.id, about=id)
        self.carry_out(member, member.router.subscribe(interest, self.now))
        return id

    def unsubscribe(self, id: SubscriptionId) -> None:
        """Withdraw a subscription; one of a node that is down, or was restarted, is gone already."""
        member = self._by_id[id.origin]
        if not member.up or member.subscriptions.pop(id, None) is None:
            return
        self.trace.subscriptions[id].dropped_at = self.now
        self.trace.note(self.now, "unsubscribe", member.id, about=id)
        self.carry_out(member, member.router.unsubscribe(id, self.now))

    def publish(self, node: int, values: Values, event_type: str = EVENT_TYPE, envelope: bytes = b"") -> EventId:
        """Publish an event at a node."""
        member = self.nodes[node]
        assert member.up, f"{member.id} is down and cannot publish"
        member.events_published += 1
        id = EventId(member.id, member.peer.incarnation, member.events_published)
        packet = Packet(Header(id, event_type), View(dict(values)), envelope)
        self.trace.publications[id] = Publication(self.now, member.id, packet)
        self.trace.note(self.now, "publish", member.id, about=id)
        self.carry_out(member, member.router.publish(packet, self.now))
        return id

    def publish_some(self, count: int, *, over_s: float = 10.0, draw: Callable[[Random], Values] | None = None) -> None:
        """Publish events at random live nodes within the next `over_s` seconds, and run for that long."""
        draw = draw or (lambda rng: {"x": rng.randrange(1000)})
        for _ in range(count):
            self.at(self.now + self.rng.uniform(0, over_s), lambda: self._publish_anywhere(draw))
        self.run_for(over_s)

    def crash(self, node: int) -> None:
        """Stop a node without notice."""
        member = self.nodes[node]
        if member.up:
            member.up = False
            self.trace.absences.setdefault(member.id, []).append([self.now, math.inf])
            self.trace.note(self.now, "crash", member.id)

    def restart(self, node: int, *, memory: bool = True) -> None:
        """Start a new incarnation of a node that is down. With memory it subscribes again, under new ids."""
        member = self.nodes[node]
        if member.up or member.leaving:
            return
        kept = member.router.memory() if memory else b""
        wanted = [interest.wanted for interest in member.subscriptions.values()] if memory else []
        member.peer = Peer(member.id, member.peer.address, member.peer.incarnation + 1)
        member.router = self._make_router(member.peer, member.links)
        member.subscriptions, member.up = {}, True
        self.trace.absences[member.id][-1][1] = self.now
        self.trace.note(self.now, "restart", member.id, what="with memory" if memory else "")
        if kept or self.protocol.on_graph:
            self.carry_out(member, member.router.start(self.now, kept))
        else:  # It remembers no peers, so it joins like a newcomer.
            self.carry_out(member, member.router.join(self._peers(3, but=node), self.now))
        for each in wanted:
            self.subscribe(node, each)

    def join(self, contacts: int = 3) -> int:
        """Add a node that knows some live nodes; returns its number."""
        index = len(self.nodes)
        known = self._contacts(contacts)
        member = self._add(index, [self.nodes[k].index for k in known] if self.protocol.on_graph else [])
        self.trace.note(self.now, "join", member.id)
        self.carry_out(member, member.router.join([self.nodes[k].peer for k in known], self.now))
        if self.protocol.on_graph:
            for k in known:
                self.nodes[k].links.append(index)
                if self._linked is not None:
                    self._linked.add((k, index))
                self.carry_out(self.nodes[k], self.nodes[k].router.peer_up(member.peer, self.now))
        return index

    def leave(self, node: int) -> None:
        """Have a node leave; it is stopped when its router is done."""
        member = self.nodes[node]
        if member.up and not member.leaving:
            member.leaving = True
            for id in list(member.subscriptions):
                self.unsubscribe(id)
            self.trace.note(self.now, "leave", member.id)
            self.at(self.now + LEAVE_WITHIN_S, lambda: self.crash(node))
            self.carry_out(member, member.router.leave(self.now))

    def slow_down(self, node: int, each_s: float) -> None:
        """From now on a node takes this long over every message; 0 for no time at all."""
        self.nodes[node].each_s = each_s

    @contextmanager
    def split(self, side: Sequence[int] | None = None) -> Iterator[None]:
        """While this lasts no message passes between `side`, by default half of the nodes, and the rest."""
        half = side if side is not None else self.rng.sample(range(len(self.nodes)), len(self.nodes) // 2)
        self.cut_off(half)
        yield
        self.heal()

    def strike(self, faults: Sequence[Fault]) -> None:
        """Schedule these faults, their times counted from now."""
        for fault in faults:
            self.at(self.now + fault.at, lambda fault=fault: begin(fault, self))  # type: ignore[misc]
            if isinstance(fault, NetworkSplit | Slow | Storm):
                self.at(self.now + fault.until, lambda fault=fault: end(fault, self))  # type: ignore[misc]
                self.trace.disturbances.append([self.now + fault.at, self.now + fault.until])
            else:
                self.trace.disturbances.append([self.now + fault.at, self.now + fault.at])

    # ── Nodes that are up ──────────────────────────────────────────────────────────

    def up(self) -> list[int]:
        """The nodes that are up and not leaving."""
        return [member.index for member in self.nodes if member.up and not member.leaving]

    @property
    def node_count(self) -> int:
        """How many nodes there ever were."""
        return len(self.nodes)

    def parts(self) -> dict[NodeId, int]:
        """For each node that is up, which part of the graph it is in: those in one part can reach each other."""
        parts: dict[NodeId, int] = {}
        for start in self.up():
            waiting = [] if self.nodes[start].id in parts else [start]
            while waiting:
                member = self.nodes[waiting.pop()]
                if parts.setdefault(member.id, start) == start:
                    near = (self.nodes[k] for k in member.links)
                    waiting += [other.index for other in near if other.up and other.id not in parts]
        return parts

    # ── Steps and effects ──────────────────────────────────────────────────────

    def _step(self, kind: int, member: SimulatedNode, what: Any, who: Any, extra: Any) -> None:
        """Any step but a message that arrives at a node that is up and quick."""
        if kind == CALL:
            what()
        elif not member.up:
            if kind <= CHATTER:
                self._miss(member, who, what)
        elif kind <= CHATTER:
            member.busy_until = max(member.busy_until, self.now) + member.each_s
            self._push(member.busy_until, TAKEN, member, what, who, None)
        elif kind == TAKEN:
            self.carry_out(member, member.router.receive(who, what, self.now))
        elif kind == BOUNCE:
            self.carry_out(member, member.router.unsent(who, what, self.now))
        elif extra == member.peer.incarnation:
            self.carry_out(member, member.router.wake(what, self.now))

    def carry_out(self, member: SimulatedNode, effects: list[Effect]) -> None:
        for effect in effects:
            if effect.__class__ is Send:
                self._send(member, effect.to, effect.message)
            else:
                self._carry_out_other(member, effect)

    def _carry_out_other(self, member: SimulatedNode, effect: Effect) -> None:
        match effect:
            case Deliver(packet):
                self._deliver(member, packet)
            case WakeAt(when, token, idle):
                self._push(max(when, self.now), IDLE if idle else WAKE, member, token, None, member.peer.incarnation)
            case Completed(asked, id):
                self._complete(member, asked, id)
            case Failed(asked, why, id):
                self.trace.note(self.now, "failed", member.id, what=f"{asked}: {why}", about=id)
            case Count(what, by):
                self.trace.counted[what] += by
            case Send(to, message):
                self._send(member, to, message)
            case _:
                assert_never(effect)

    def _send(self, member: SimulatedNode, to: NodeId, message: Message) -> None:
        known, name, about, size, tally, kind = self._described
        if message is not known:
            name, about, size, tally, kind = self.describe(message)
        now = self.now
        tally[0] += 1
        tally[1] += size
        if self.trace.recording:
            self.trace.rows.append((now, "send", member.peer.id, to, name, about, size))
        target = self._by_id.get(to)
        if (
            target is None
            or (self._split and target.side != member.side)
            or (self._linked is not None and not self._is_linked(member.index, target.index))
        ):
            self._lose(member, to, name, about)
            return
        arrival = now + self._space.delay_s(member.index, target.index)
        if not self._weather_calm:
            self._send_through_weather(member, target, message, arrival, kind)
            return
        self._order += 1
        if kind == MESSAGE:
            self._pending += 1
        heappush(self._heap, (arrival, self._order, kind, target, message, member.peer.id, None))

    def describe(self, message: Any) -> tuple[str, Any, int, list[int], int]:
        """How a trace describes a message; cached until the next one, for one message often goes to many nodes."""
        if message.__class__ is EncodedMessage:
            name, size, about, chatter = message.name, len(message.raw), message.about, message.message.chatter
        else:
            name, size, chatter = MESSAGE_NAMES[message.__class__], size_of(message), message.chatter
            packet = getattr(message, "packet", None)
            about = packet.header.id if packet is not None else None
        tally = self.trace.sent.setdefault(name, [0, 0])
        kind = CHATTER if chatter else MESSAGE
        self._described = (message, name, about, size, tally, kind)
        return name, about, size, tally, kind

    def _send_through_weather(
        self, member: SimulatedNode, target: SimulatedNode, message: Message, arrival: float, kind: int
    ) -> None:
        luck, weather = self._luck, self.weather
        _, name, about, *_ = self._described
        if luck.random() < weather.loss:
            self._lose(member, target.id, name, about)
            return
        copies = 2 if luck.random() < weather.repeat else 1
        for _ in range(copies):
            late = arrival + luck.uniform(0, weather.jitter_s)
            if not weather.reorder:
                link = (member.index, target.index)
                late = self._arrived[link] = max(late, self._arrived.get(link, 0.0))
            self._push(late, kind, target, message, member.peer.id, None)
        self.trace.counted["repeated"] += copies - 1

    def _lose(self, member: SimulatedNode, to: NodeId, name: str, about: Any) -> None:
        self.trace.counted["lost"] += 1
        if self.trace.recording:
            self.trace.note(self.now, "lose", member.id, to, name, about)

    def _miss(self, member: SimulatedNode, sender: NodeId, message: Message | EncodedMessage) -> None:
        """A message came to a node that is down. Over TCP its sender would get an error."""
        self.trace.counted["missed"] += 1
        name = message.name if isinstance(message, EncodedMessage) else MESSAGE_NAMES[message.__class__]
        self.trace.note(self.now, "miss", member.id, sender, name)
        back = self._by_id[sender]
        if self.bounces and not (self._split and back.side != member.side):
            delay_s = self._space.delay_s(member.index, back.index)
            self._push(self.now + delay_s, BOUNCE, back, message, member.id, None)

    def _deliver(self, member: SimulatedNode, packet: Packet) -> None:
        id = packet.header.id
        self.trace.deliveries[id, member.id] += 1
        self.trace.note(self.now, "deliver", member.id, about=id)
        for subscription, interest in member.subscriptions.items():
            if interest.matches(packet):
                self.trace.notices.append(NotificationRecord(self.now, id, subscription))
                self.trace.note(self.now, "notify", member.id, what=str(subscription.seq), about=id)

    def _complete(self, member: SimulatedNode, asked: str, id: EventId | SubscriptionId | None) -> None:
        self.trace.note(self.now, "completed", member.id, what=asked, about=id)
        subscription = self.trace.subscriptions.get(id) if isinstance(id, SubscriptionId) else None
        if asked == "leave" and member.leaving:
            self.crash(member.index)
        elif asked == "subscribe" and subscription and subscription.completed_at is None:
            subscription.completed_at = self.now
        elif asked == "unsubscribe" and subscription and subscription.gone_at is None:
            subscription.gone_at = self.now

    # ── The network as a whole ─────────────────────────────────────────────────

    def cut_off(self, side: Sequence[int]) -> None:
        """From now on no message passes between these nodes and the rest."""
        for node in side:
            self.nodes[node].side = 1
        self._split = True
        self.trace.note(self.now, "split", "", what=f"{len(side)} nodes cut off")

    def heal(self) -> None:
        """End the split."""
        for member in self.nodes:
            member.side = 0
        self._split = False
        self.trace.note(self.now, "heal", "")

    def relink(self, links: Iterable[Link]) -> None:
        """Change the graph that nodes are given, as when they move. Both ends of a new link are told that it is up; that
        one is gone they notice by silence: what is sent where there is no link is lost."""
        now_linked = dict.fromkeys((min(a, b), max(a, b)) for a, b in links)
        before = {(min(member.index, k), max(member.index, k)) for member in self.nodes for k in member.links}
        self._linked = set(now_linked)
        for member in self.nodes:
            member.links.clear()
        for a, b in now_linked:
            self.nodes[a].links.append(b)
            self.nodes[b].links.append(a)
        for a, b in now_linked:
            if (a, b) not in before:
                for here, there in ((self.nodes[a], self.nodes[b]), (self.nodes[b], self.nodes[a])):
                    if here.up and there.up:
                        self.carry_out(here, here.router.peer_up(there.peer, self.now))

    def _is_linked(self, a: int, b: int) -> bool:
        return self._linked is not None and (min(a, b), max(a, b)) in self._linked

    def set_weather(self, weather: Weather) -> None:
        """Change what the network does to messages."""
        weather.check()
        self.weather, self._weather_calm = weather, weather.calm

    # ── The nodes ──────────────────────────────────────────────────────────────

    def _found(self, settled: bool) -> None:
        """Create the first nodes, and start them."""
        self._ids = [self._name(index) for index in range(self.topology.node_count)]
        for index, links in enumerate(self.topology.neighbours()):
            self._add(index, links)
        if settled and self.protocol.settle:
            self.protocol.settle({member.id: self._router_of(member) for member in self.nodes}, self.now)
        for member in self.nodes:
            if settled or self.protocol.on_graph or member.index == 0:
                self.carry_out(member, member.router.start(self.now))
            else:
                via = self.nodes[self.rng.randrange(member.index)].peer
                self.carry_out(member, member.router.join([via], self.now))

    def _add(self, index: int, links: list[int]) -> SimulatedNode:
        if index == len(self._ids):
            self._ids.append(self._name(index))
        peer = Peer(self._ids[index], f"sim:{index}")
        member = SimulatedNode(index, peer, self._make_router(peer, links), links)
        self.nodes.append(member)
        self._by_id[member.id] = member
        return member

    def _make_router(self, me: Peer, links: list[int]) -> Router[Any]:
        neighbours = tuple(Peer(self._ids[k], f"sim:{k}") for k in links)
        rng = Random(f"node/{self.seed}/{me.id}/{me.incarnation}")
        return self.protocol.build(Place(me, neighbours if self.protocol.on_graph else (), rng), **self.options)

    def _router_of(self, member: SimulatedNode) -> Router[Any]:
        return member.router

    def _name(self, index: int) -> NodeId:
        name_node = self.protocol.name_node
        return name_node(index, Random(f"name/{self.seed}/{index}")) if name_node else f"n{index:04}"

    def _peers(self, count: int, *, but: int) -> list[Peer]:
        return [self.nodes[k].peer for k in self._contacts(count) if k != but]

    def _contacts(self, count: int) -> list[int]:
        """Some nodes that are up. On a graph, likelier those with many links, as a random walk would find them."""
        up = self.up()
        count = min(count, len(up))
        if not self.protocol.on_graph:
            return self.rng.sample(up, count)
        ends = [node for node in up for _ in range(max(1, len(self.nodes[node].links)))]
        drawn: dict[int, None] = {}
        while len(drawn) < count:
            drawn[self.rng.choice(ends)] = None
        return list(drawn)

    def _publish_anywhere(self, draw: Callable[[Random], Values]) -> None:
        up = self.up()
        if up:
            self.publish(self.rng.choice(up), draw(self.rng))


def _usual_topology(wanted: Protocol, node_count: int, seed: int) -> Topology:
    if node_count < 1:
        raise InputError(f"expected at least 1 node or a topology, got {node_count} nodes")
    m0 = min(node_count, 10)
    return barabasi_albert(node_count, Random(f"topology/{seed}"), m0=m0, m=min(3, m0))
