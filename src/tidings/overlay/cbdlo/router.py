"""One node of CBDLO: the random graph below, the topologies of attributes above, and the events between them.

The package's docstring has the theory of operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from tidings.overlay.cbdlo.conjunction_counter import ConjunctionCounter
from tidings.overlay.cbdlo.coordinator import Coordinator
from tidings.overlay.cbdlo.messages import (
    CbdloMessage,
    Match,
    NotCoordinator,
    OperationDone,
    OperationRefused,
    PartitionRef,
    PartitionState,
    Ping,
    Pong,
    Probe,
    Registered,
    StaleAccessPoint,
    SubscribersNotified,
    TopologyFound,
    TreeStep,
    Walk,
    WalkFailed,
)
from tidings.overlay.cbdlo.notification import NOTIFYING_MAX, MatchNotifier
from tidings.overlay.cbdlo.options import CbdloOptions
from tidings.overlay.cbdlo.owned_partitions import OwnedPartition
from tidings.overlay.cbdlo.publications import OpenPublications
from tidings.overlay.cbdlo.upper_layer import UpperLayer
from tidings.overlay.dedup import SEEN_MAX, SeenIds
from tidings.overlay.interest import Interest
from tidings.overlay.messages import EventId, Message, NodeId, Packet, Peer, SubscriptionId
from tidings.overlay.random_graph.access_points import AccessPoint
from tidings.overlay.random_graph.graph import HelloReply, RandomGraph
from tidings.overlay.random_graph.partition import AttributeAxis, axes_of, position_of
from tidings.overlay.random_graph.random_walk import HOPS_MAX, WalkPath, next_step
from tidings.overlay.random_graph.router import GraphRouter, graph_protocol
from tidings.overlay.retransmit import Pending, Requests
from tidings.overlay.router import (
    MAP_ENTRIES_MAX,
    TREE_ENDS_MAX,
    WHATEVER_HAPPENS,
    Completed,
    Count,
    Deliver,
    Effect,
    Guarantee,
    MapEntry,
    Send,
    Token,
    TreeEntry,
    WakeAt,
)

TREE_STEPS_MAX = 128  # More than four times the height of a tree of a million partitions.
LEAVE_S = 30.0  # How long a leaving node waits at most until no other node depends on it.
LEAVE_CHECK_S = 0.5


class Cbdlo(GraphRouter[CbdloMessage]):
    """One node of CBDLO."""

    def __init__(self, me: Peer, rng: Random, options: CbdloOptions) -> None:
        self.me, self.options, self._rng = me, options, rng
        self._requests = Requests()
        super().__init__(
            RandomGraph(
                me, rng, self._requests, options.graph,
                adverts=self._adverts, on_access_point=self._on_access_point,
            )
        )  # fmt: skip
        self._sampler, self._table = self.graph.sampler, self.graph.table
        self.upper = UpperLayer(me, self.graph, self._requests, rng, options)
        self._notifier = MatchNotifier(self._requests, reliable=options.reliable, whole=options.mode == "full")
        self.counter = ConjunctionCounter(partial_s=options.partial_s, at_most=options.partial_max)
        self._publications = OpenPublications(me, self._table, self.graph.first_steps, self._enter_as_member, options)
        self._routed = SeenIds[tuple[EventId, AttributeAxis, int]](SEEN_MAX)
        self._delivered = SeenIds[EventId](SEEN_MAX)

    # ── The router's life ────────────────────────────────────────────────────

    def leave(self, now: float) -> list[Effect]:
        effects = self.upper.leave(now)
        return self._looped([*effects, WakeAt(now + LEAVE_CHECK_S, ("leaving", now + LEAVE_S))], now)

    def subscribe(self, interest: Interest, now: float) -> list[Effect]:
        return self._looped(self.upper.subscribe(interest, now), now)

    def unsubscribe(self, id: SubscriptionId, now: float) -> list[Effect]:
        return self._looped(self.upper.unsubscribe(id, now), now)

    def publish(self, packet: Packet, now: float) -> list[Effect]:
        effects: list[Effect] = []
        reliable = self.options.reliable
        if reliable and self.options.mode == "full" and self.upper.matches(packet):
            effects += self._deliver(packet)
        for axis in self._routed_by(packet):
            effects += self._publications.begin(packet, axis, now) if reliable else self._walk_once(packet, axis, now)
        return self._looped(effects, now)

    def receive(self, sender: NodeId, message: CbdloMessage, now: float) -> list[Effect]:
        return self._looped(self._receive(sender, message, now), now)

    def wake(self, token: Token, now: float) -> list[Effect]:
        match token:
            case ("beat",):
                return self._looped(self._run_period(now), now)
            case ("call", int(number), int(tries)):
                effects, unanswered = self._requests.overdue(number, tries, now)
                return self._looped([*effects, *(self._unanswered(unanswered, now) if unanswered else ())], now)
            case ("event", EventId() as event, AttributeAxis() as axis, int(attempt)):
                return self._looped(self._publications.overdue((event, axis), attempt, now), now)
            case ("leaving", float(until)):
                return self._check_left(until, now)
        return self._looped(self.upper.wake(token, now), now)

    def unsent(self, to: NodeId, message: CbdloMessage, now: float) -> list[Effect]:
        """A walk takes another way; requests to this peer are given up."""
        effects = self._drop(to, now)
        if isinstance(message, Walk):
            effects += self._step(message, self._without_last_hop(message.path), now)
        elif isinstance(message, TreeStep) and message.steps == 0 and message.origin.id != self.me.id:
            effects += self._walk(message, self._without_last_hop(message.path), now)
        return self._looped(effects, now)

    def peer_down(self, peer: NodeId, now: float) -> list[Effect]:
        return self._looped(self._drop(peer, now), now)

    def map_entry(self) -> MapEntry:
        """The attribute trees. Cuts are values of conditions, so only the owners of partitions are shown."""
        places = self.upper.owned.places()
        shown = tuple(_tree_entry(axis, owned) for axis, owned in places[:MAP_ENTRIES_MAX])
        coordinates = any(True for _ in self.upper.coordinators.by_axis)
        return MapEntry("coordinator" if coordinates else "", trees=shown, left_out=len(places) - len(shown))

    def holdings(self) -> dict[str, tuple[int, int]]:
        return {
            **self._sampler.holdings(),
            **self._table.holdings(),
            **self.upper.holdings(),
            "calls": (len(self._requests), self._requests.at_most),
            **self._publications.holdings(),
            "events being told": (len(self._notifier), NOTIFYING_MAX),
            "partial matches": (len(self.counter), self.counter.at_most),
            "seen": (len(self._delivered), SEEN_MAX),
        }

    # ── Messages ─────────────────────────────────────────────────────────────

    def _looped(self, effects: list[Effect], now: float) -> list[Effect]:
        """Carry out at once what a node sends to itself."""
        done: list[Effect] = []
        waiting = list(effects)
        while waiting:
            effect = waiting.pop(0)
            if isinstance(effect, Send) and effect.to == self.me.id:
                waiting = [*self._receive(self.me.id, effect.message, now), *waiting]
            else:
                done.append(effect)
        return done

    def _receive(self, sender: NodeId, message: Message, now: float) -> list[Effect]:
        match message:
            case Walk():
                return self._on_walk(sender, message, now)
            case TreeStep():
                return self._enter(sender, message, now)
            case Match():
                return self._on_match(sender, message, now)
            case TopologyFound() | WalkFailed() | SubscribersNotified():
                return self._publications.receive(message, now)
            case (
                OperationDone(number)
                | OperationRefused(number)
                | Registered(number)
                | NotCoordinator(number)
                | HelloReply(number)
            ):
                request = self._requests.answered(number, sender)
                return self._answered(request, message, now) if request else []
            case Ping():
                return [Send(sender, Pong(self.me.incarnation))]
            case Probe(number, incarnation):
                same = incarnation == self.me.incarnation
                return [Send(sender, OperationDone(number) if same else OperationRefused(number))]
            case StaleAccessPoint(axis):
                self._table.drop(axis, sender)
                return []
        handled = self.upper.receive(sender, message, now)
        return handled if handled is not None else self.graph.receive(sender, message, now)

    def _answered(self, request: Pending[int], answer: Message, now: float) -> list[Effect]:
        match request.about:
            case ("match", EventId() as event, AttributeAxis() as axis):
                return self._notifier.answered((event, axis))
            case ("hello", _) if isinstance(answer, HelloReply):
                return self.graph.joined(answer, now)
        return self.upper.answered(request, answer, now)

    def _unanswered(self, request: Pending[int], now: float) -> list[Effect]:
        match request.about:
            case ("match", EventId() as event, AttributeAxis() as axis):
                return [*self.upper.report_suspect(axis, request.to), *self._notifier.answered((event, axis))]
            case ("hello", _):
                return self.graph.try_next_contact(now)
        return self.upper.unanswered(request, now)

    # ── Lower layer ──────────────────────────────────────────────────────────

    def _run_period(self, now: float) -> list[Effect]:
        self.counter.expire(now)
        return [*self.upper.run_period(now), *self.graph.exchange(now)]

    def _adverts(self) -> list[AccessPoint]:
        return self.upper.adverts()

    def _on_access_point(self, point: AccessPoint, now: float) -> list[Effect]:
        if self.upper.is_retired(point.axis, point.tree, now):
            return []
        self._table.add(point)
        self._publications.topology_exists(point.axis)
        return self.upper.on_access_point(point, now)

    def _drop(self, peer: NodeId, now: float) -> list[Effect]:
        """Forget a peer that does not answer, and give up all requests to it."""
        self.graph.drop(peer)
        self.upper.drop_fingers(peer)
        return [effect for request in self._requests.take_back(peer) for effect in self._unanswered(request, now)]

    def _check_left(self, until: float, now: float) -> list[Effect]:
        """Complete the leave once no other node depends on this one, or time is up."""
        busy = len(self._publications) or len(self._notifier) or len(self._requests) or not self.upper.is_idle()
        if busy and now < until:
            return [WakeAt(now + LEAVE_CHECK_S, ("leaving", until))]
        return [Completed("leave")]

    # ── Random walks of events ───────────────────────────────────────────────

    def _routed_by(self, packet: Packet) -> list[AttributeAxis]:
        """The axes that an event is routed by: its attributes, and its type if that is known to have a topology."""
        axes = [axis._replace(number=number) for axis in axes_of(packet) for number in range(self.options.coordinators)]
        return [axis for axis in axes if axis.name or self.upper.is_member(axis) or self._table.at(axis)]

    def _walk_once(self, packet: Packet, axis: AttributeAxis, now: float) -> list[Effect]:
        """As published: one walk, without acknowledgement."""
        walk = Walk(packet, axis, self.me, 1, WalkPath(self.options.graph.hops_max))
        return self._step(walk, walk.path, now)

    def _on_walk(self, sender: NodeId, walk: Walk, now: float) -> list[Effect]:
        options = self.options
        too_long = len(walk.path.trace) > max(options.trace_max, HOPS_MAX)
        if walk.path.hops_max > options.graph.hops_max or too_long:
            return []  # No correct node sends such a walk.
        counts: list[Effect] = []
        if not walk.path.is_jump:
            counts.append(Count("match_ops", len(self._table)))
            step = TreeStep(walk.packet, walk.axis, walk.origin, walk.attempt, walk.path)
            if self.upper.is_member(walk.axis):
                return [*counts, Count("hits"), *self._enter(sender, step, now)]
            entries = dict.fromkeys(point.peer.id for point in self._table.at(walk.axis))
            if entries:
                chosen = list(entries) if options.reliable else [self._rng.choice(list(entries))]
                return [*counts, Count("hits"), *(Send(entry, step) for entry in chosen)]
        return [*counts, *self._walk(walk, walk.path, now)]

    def _walk(self, message: Walk | TreeStep, path: WalkPath, now: float) -> list[Effect]:
        if path.is_over:
            return self._fail(message)
        return self._step(message, path, now)

    def _step(self, message: Walk | TreeStep, path: WalkPath, now: float) -> list[Effect]:
        guide = self.graph.guide(message.axis, message.attempt)
        step = next_step(path, self.me, self._sampler.view(), self._rng, self.options.trace_max, guide)
        if step is None:
            return self._fail(message)
        blocked = [Count("walks blocked")] if step.path.is_jump else []
        walk = Walk(message.packet, message.axis, message.origin, message.attempt, step.path)
        return [*blocked, Send(step.to.id, walk)]

    def _without_last_hop(self, path: WalkPath) -> WalkPath:
        """A hop to a peer that does not answer does not count."""
        trace = tuple(peer for peer in path.trace if peer.id != self.me.id)
        return WalkPath(path.hops_max, max(0, path.hop - 1), path.round, trace)

    def _fail(self, message: Walk | TreeStep) -> list[Effect]:
        effects: list[Effect] = [Count("walks astray")]
        if self.options.reliable:
            failed = WalkFailed(message.packet.header.id, message.axis, message.attempt)
            effects.append(Send(message.origin.id, failed))
        return effects

    # ── Routing in the tree ──────────────────────────────────────────────────

    def _enter_as_member(self, step: TreeStep, now: float) -> list[Effect] | None:
        """Route an event of this node in the tree; None if this node is no member of the topology."""
        return self._enter(self.me.id, step, now) if self.upper.is_member(step.axis) else None

    def _enter(self, sender: NodeId, step: TreeStep, now: float) -> list[Effect]:
        """Route an event one step closer to its partition, or notify the partition's subscribers."""
        event, axis = step.packet.header.id, step.axis
        if step.steps > TREE_STEPS_MAX or not self._routed.add((event, axis, step.attempt)):
            return []
        target = self.upper.route(axis, position_of(step.packet.view, axis), tries=step.attempt - 1)
        if target is None:
            return self._on_stale(sender, step, now)
        found: list[Effect] = []
        if step.steps == 0 and self.options.reliable and step.origin.id != self.me.id:
            found.append(Send(step.origin.id, TopologyFound(event, axis)))
        match target:
            case PartitionRef(_, owner):
                forwarded = TreeStep(step.packet, axis, step.origin, step.attempt, step.path, step.steps + 1)
                return [*found, Count("match_ops"), Count("tree steps"), Send(owner.id, forwarded)]
            case OwnedPartition(_, registered):
                return [*found, *self._notifier.notify(step, registered, now)]
            case Coordinator():
                registered = {each.interest.id: each for each in target.registrations()}
                return [*found, *self._notifier.notify(step, registered, now)]

    def _on_stale(self, sender: NodeId, step: TreeStep, now: float) -> list[Effect]:
        """This node has left the topology: tell the sender, and restart the walk from here with half the hops."""
        effects: list[Effect] = [Count("stale access points")]
        if sender != self.me.id:
            effects.append(Send(sender, StaleAccessPoint(step.axis)))
        half = step.path.halved()
        if half.hops_max == 0 or step.steps > 0:
            return [*effects, *self._fail(step)]
        return [*effects, *self._step(step, half, now)]

    # ── Matching at the subscriber ───────────────────────────────────────────

    def _on_match(self, sender: NodeId, message: Match, now: float) -> list[Effect]:
        answer: list[Effect] = [Send(sender, OperationDone(message.request))] if message.request else []
        if self.options.mode == "full":
            matches = self.upper.matches(message.packet)
        else:
            event = message.packet.header.id  # The sum counts for every interest; any() would stop at the first.
            matches = sum(self._count(event, id, message.axis, now) for id in message.ids) > 0
        return [*answer, *(self._deliver(message.packet) if matches else ())]

    def _count(self, event: EventId, id: SubscriptionId, axis: AttributeAxis, now: float) -> bool:
        axes = self.upper.axes_of(id)
        if axis not in axes or event in self._delivered:
            return False
        return self.counter.matched(event, id, axis.name, len(axes), now)

    def _deliver(self, packet: Packet) -> list[Effect]:
        return [Deliver(packet)] if self._delivered.add(packet.header.id) else []


def _tree_entry(axis: AttributeAxis, owned: Sequence[PartitionState]) -> TreeEntry:
    """One node's place in an attribute's tree, by the owners of the partitions above and below its own."""
    up = dict.fromkeys(each.parent.owner.id for each in owned if each.parent is not None)
    down = dict.fromkeys(ref.owner.id for each in owned for ref in (each.left, each.right) if ref is not None)
    is_root = any(each.parent is None for each in owned)
    return TreeEntry(axis.type, axis.name, is_root, tuple(up)[:TREE_ENDS_MAX], tuple(down)[:TREE_ENDS_MAX])


GUARANTEES = WHATEVER_HAPPENS | {Guarantee.JOINS_LIVE, Guarantee.LEAVES_CLEANLY}
PROTOCOL = graph_protocol("cbdlo", Cbdlo, CbdloOptions.of, CbdloMessage, GUARANTEES)
