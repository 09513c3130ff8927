"""CBDLO: random walks below, a balanced tree for each attribute above (content-based, double-layer overlay).

The lower layer is a random graph (see `sampling`). An event goes through it once for each
of its attributes, by random walk (`crawl`), until it meets a node that is a member of the
attribute's topology or knows one (`access`). The upper layer is a tree of sub-spaces for
each attribute (`attribute_tree`, kept by a `stewardship`, seen from a node as
`topologies`): the event is handed to the one sub-space that holds its value, and from
there to all who are registered in it (`cdm`).

    publisher ⇢ walk ⇢ walk ⇢ access point → tree → tree → owner of the sub-space → subscribers

                        profile "paper"                     profile "robust", the default
    walks               one for each attribute, not         two, after a look into one's own table; acknowledged
                        acknowledged                        when everybody has the event, else tried again
    matching            each attribute by itself, counted   the whole interest, at the sub-space; an interest
                        by the subscriber                   is filed under its two narrowest attributes
    access points       as heard                            rare attributes as likely as popular ones
    way in the tree     parents and children                the nearest sub-space known
    a new topology      is found by gossip                  is also announced once to everybody
"""

from __future__ import annotations

from random import Random
from typing import Literal, TypeAlias

from tidings.errors import InputError
from tidings.overlay.cbdlo.conjunction_counter import PARTIAL_MAX, PARTIAL_S, Counters
from tidings.overlay.cbdlo.coordinator import Steward
from tidings.overlay.cbdlo.messages import (
    Astray,
    CbdloMessage,
    Done,
    Elsewhere,
    Found,
    Match,
    Ping,
    Pong,
    Probe,
    Reached,
    Ref,
    Refused,
    Registered,
    Stale,
    TreeStep,
    Walk,
)
from tidings.overlay.cbdlo.notification import JOBS_MAX, Teller
from tidings.overlay.cbdlo.owned_partitions import Holding
from tidings.overlay.cbdlo.publications import Errands
from tidings.overlay.cbdlo.upper_layer import Topologies
from tidings.overlay.dedup import SEEN_MAX, SeenIds
from tidings.overlay.interest import Interest
from tidings.overlay.messages import EventId, Message, NodeId, Packet, Peer, SubscriptionId
from tidings.overlay.random_graph.access_points import TABLE_SIZE, AccessPoint, Policy
from tidings.overlay.random_graph.cyclon import VIEW_SIZE
from tidings.overlay.random_graph.graph import PERIOD_S, Welcome
from tidings.overlay.random_graph.partition import INDEXED_MAX, Axis, axes_of, place_of
from tidings.overlay.random_graph.random_walk import HOPS_MAX, Path, onward
from tidings.overlay.random_graph.router import GraphRouter, on_a_random_graph
from tidings.overlay.retransmit import Pending
from tidings.overlay.router import (
    WHATEVER_HAPPENS,
    Completed,
    Count,
    Deliver,
    Effect,
    Guarantee,
    Send,
    Token,
    WakeAt,
)

TREE_STEPS_MAX = 128  # Four times the height of a tree of a million sub-spaces, and some.
LEAVE_S = 30.0
LEAVE_LOOK_S = 0.5

Profile: TypeAlias = Literal["robust", "paper"]
Mode: TypeAlias = Literal["full", "count"]


class Cbdlo(GraphRouter[CbdloMessage]):
    """One node's part in CBDLO."""

    def __init__(
        self,
        me: Peer,
        rng: Random,
        *,
        profile: Profile = "robust",
        mode: Mode | None = None,
        policy: Policy | None = None,
        walkers: int | None = None,
        retries: int | None = None,
        fingers: bool | None = None,
        indexed_max: int = INDEXED_MAX,
        view_size: int = VIEW_SIZE,
        table_size: int = TABLE_SIZE,
        hops_max: int = HOPS_MAX,
        trace_max: int = HOPS_MAX,
        period_s: float = PERIOD_S,
        partial_s: float = PARTIAL_S,
        partial_max: int = PARTIAL_MAX,
    ) -> None:
        """What is None is as the profile has it. `period_s=0` does without routine talk, for worlds that stand still."""
        _check_choices(profile, mode)
        _check_limits(hops_max, trace_max, period_s, indexed_max)
        robust = profile == "robust"
        super().__init__(
            me, rng, view_size=view_size, table_size=table_size, hops_max=hops_max, period_s=period_s,
            policy=policy or ("balanced" if robust else "naive"), announces=robust,
        )  # fmt: skip
        self.robust, self.trace_max = robust, trace_max
        self.mode: Mode = mode or ("full" if robust else "count")
        self.walkers = walkers if walkers is not None else (2 if robust else 1)
        self.retries = retries if retries is not None else 2
        self.topologies = self._upper(indexed_max, robust if fingers is None else fingers)
        self.teller = Teller(self.requests, robust=robust, whole=self.mode == "full")
        self.counters = Counters(partial_s=partial_s, at_most=partial_max)
        self.errands = Errands(self, walkers=self.walkers, retries=self.retries)
        self._routed = SeenIds[tuple[EventId, Axis, int]](SEEN_MAX)
        self._delivered = SeenIds[EventId](SEEN_MAX)

    def _upper(self, indexed_max: int, fingers: bool) -> Topologies:
        indexed = indexed_max if self.mode == "full" else None
        return Topologies(
            self.me, self, self.table, self.requests, self._rng, indexed_max=indexed, fingers=fingers
        )  # fmt: skip

    # ── Coming and going ─────────────────────────────────────────────────────

    def leave(self, now: float) -> list[Effect]:
        effects = self.topologies.leave(now)
        return self._here([*effects, WakeAt(now + LEAVE_LOOK_S, ("leaving", now + LEAVE_S))], now)

    # ── What is asked of it ──────────────────────────────────────────────────

    def subscribe(self, interest: Interest, now: float) -> list[Effect]:
        return self._here(self.topologies.subscribe(interest, now), now)

    def unsubscribe(self, id: SubscriptionId, now: float) -> list[Effect]:
        return self._here(self.topologies.unsubscribe(id, now), now)

    def publish(self, packet: Packet, now: float) -> list[Effect]:
        effects: list[Effect] = []
        if self.robust and self.mode == "full" and self.topologies.wants(packet):
            effects += self._deliver(packet)
        for axis in self._axes(packet):
            effects += self.errands.begin(packet, axis, now) if self.robust else self._walk_once(packet, axis, now)
        return self._here(effects, now)

    def receive(self, sender: NodeId, message: CbdloMessage, now: float) -> list[Effect]:
        return self._here(self._take(sender, message, now), now)

    def wake(self, token: Token, now: float) -> list[Effect]:
        match token:
            case ("beat",):
                return self._here(self._beat(now), now)
            case ("call", int(number), int(tries)):
                effects, lost = self.requests.overdue(number, tries, now)
                return self._here([*effects, *(self._lost(lost, now) if lost else ())], now)
            case ("event", EventId() as event, Axis() as axis, int(attempt)):
                return self._here(self.errands.overdue((event, axis), attempt, now), now)
            case ("leaving", float(until)):
                return self._look_whether_gone(until, now)
        return self._here(self.topologies.wake(token, now), now)

    def unsent(self, to: NodeId, message: CbdloMessage, now: float) -> list[Effect]:
        """A walk goes on elsewhere; who waits for an answer gets none."""
        self._forget(to)
        effects = [effect for call in self.requests.take_back(to) for effect in self._lost(call, now)]
        if isinstance(message, Walk):
            effects += self._step(message, self._stepped_back(message.path), now)
        elif isinstance(message, TreeStep) and message.steps == 0 and message.origin.id != self.me.id:
            effects += self._walk(message, self._stepped_back(message.path), now)
        return self._here(effects, now)

    def peer_down(self, peer: NodeId, now: float) -> list[Effect]:
        self._forget(peer)
        return self._here([effect for call in self.requests.take_back(peer) for effect in self._lost(call, now)], now)

    def holdings(self) -> dict[str, tuple[int, int]]:
        return {
            **self.sampler.holdings(),
            **self.table.holdings(),
            **self.topologies.holdings(),
            "calls": (len(self.requests), self.requests.at_most),
            **self.errands.holdings(),
            "events being told": (len(self.teller), JOBS_MAX),
            "partial matches": (len(self.counters), self.counters.at_most),
            "seen": (len(self._delivered), SEEN_MAX),
        }

    # ── What the upper layer asks ────────────────────────────────────────────

    def announce(self, point: AccessPoint) -> list[Effect]:
        return self.graph.announce(point)

    def search(self, axis: Axis) -> list[Effect]:
        return self.graph.search(axis)

    def is_ready(self) -> bool:
        return self.graph.stage == "ready"

    # ── Messages ─────────────────────────────────────────────────────────────

    def _here(self, effects: list[Effect], now: float) -> list[Effect]:
        """What a node has to tell itself it hears at once."""
        done: list[Effect] = []
        waiting = list(effects)
        while waiting:
            effect = waiting.pop(0)
            if isinstance(effect, Send) and effect.to == self.me.id:
                waiting = [*self._take(self.me.id, effect.message, now), *waiting]
            else:
                done.append(effect)
        return done

    def _take(self, sender: NodeId, message: Message, now: float) -> list[Effect]:
        match message:
            case Walk():
                return self._on_walk(sender, message, now)
            case TreeStep():
                return self.enter(sender, message, now)
            case Match():
                return self._on_match(sender, message, now)
            case Found() | Astray() | Reached():
                return self.errands.hear(message, now)
            case Done(call) | Refused(call) | Registered(call) | Elsewhere(call) | Welcome(call):
                answered = self.requests.answered(call, sender)
                return self._answered(answered, message, now) if answered else []
            case Ping():
                return [Send(sender, Pong(self.me.incarnation))]
            case Probe(call, incarnation):
                same = incarnation == self.me.incarnation
                return [Send(sender, Done(call) if same else Refused(call))]
            case Stale(axis):
                self.table.drop(axis, sender)
                return []
        handled = self.topologies.receive(sender, message, now)
        return handled if handled is not None else self.graph.receive(sender, message, now)

    def _answered(self, call: Pending[int], answer: Message, now: float) -> list[Effect]:
        match call.about:
            case ("match", EventId() as event, Axis() as axis):
                return self.teller.one_told((event, axis))
            case ("hello", _) if isinstance(answer, Welcome):
                return self.graph.welcomed(answer, now)
        return self.topologies.answered(call, answer, now)

    def _lost(self, call: Pending[int], now: float) -> list[Effect]:
        match call.about:
            case ("match", EventId() as event, Axis() as axis):
                return [*self.topologies.missing(axis, call.to), *self.teller.one_told((event, axis))]
            case ("hello", _):
                return self.graph.knock(now)
        return self.topologies.lost(call, now)

    # ── Lower layer ──────────────────────────────────────────────────────────

    def _beat(self, now: float) -> list[Effect]:
        self.counters.expire(now)
        return [*self.topologies.beat(now), *self.graph.beat(now)]

    def _adverts(self) -> list[AccessPoint]:
        return self.topologies.adverts()

    def _heard(self, point: AccessPoint, now: float) -> list[Effect]:
        if self.topologies.is_gone(point.axis, point.tree, now):
            return []
        self.table.hear(point)
        self.errands.expect(point.axis)
        return self.topologies.hear(point, now)

    def _forget(self, peer: NodeId) -> None:
        self.sampler.drop(peer)
        self.table.drop_peer(peer)
        self.topologies.estate.avoid(peer)

    def _look_whether_gone(self, until: float, now: float) -> list[Effect]:
        busy = len(self.errands) or len(self.teller) or len(self.requests) or not self.topologies.is_idle()
        if busy and now < until:
            return [WakeAt(now + LEAVE_LOOK_S, ("leaving", until))]
        return [Completed("leave")]

    # ── The walk of an event ─────────────────────────────────────────────────

    def _axes(self, packet: Packet) -> list[Axis]:
        """Where an event is looked for: by its attributes, and by its type alone only where that is known to be wanted."""
        return [axis for axis in axes_of(packet) if axis.name or self.topologies.is_member(axis) or self.table.at(axis)]

    def _walk_once(self, packet: Packet, axis: Axis, now: float) -> list[Effect]:
        """As published: one walk, and nobody asks what becomes of it."""
        said = Walk(packet, axis, self.me, 1, Path(self.hops_max))
        return self._step(said, said.path, now)

    def _on_walk(self, sender: NodeId, said: Walk, now: float) -> list[Effect]:
        if said.path.hops_max > self.hops_max or len(said.path.trace) > max(self.trace_max, HOPS_MAX):
            return []  # No walk of this protocol's.
        looked: list[Effect] = []
        if not said.path.is_jump:
            looked.append(Count("match_ops", len(self.table)))
            into = TreeStep(said.packet, said.axis, said.origin, said.attempt, said.path)
            if self.topologies.is_member(said.axis):
                return [*looked, Count("hits"), *self.enter(sender, into, now)]
            entries = dict.fromkeys(point.peer.id for point in self.table.at(said.axis))
            if entries:
                chosen = list(entries) if self.robust else [self._rng.choice(list(entries))]
                return [*looked, Count("hits"), *(Send(entry, into) for entry in chosen)]
        return [*looked, *self._walk(said, said.path, now)]

    def _walk(self, said: Walk | TreeStep, path: Path, now: float) -> list[Effect]:
        if path.is_over:
            return self._fail(said)
        return self._step(said, path, now)

    def _step(self, said: Walk | TreeStep, path: Path, now: float) -> list[Effect]:
        step = onward(path, self.me, self.sampler.view(), self._rng, self.trace_max)
        if step is None:
            return self._fail(said)
        blocked = [Count("walks blocked")] if step.path.is_jump else []
        return [*blocked, Send(step.to.id, Walk(said.packet, said.axis, said.origin, said.attempt, step.path))]

    def _stepped_back(self, path: Path) -> Path:
        """A step that came to nothing does not count."""
        return Path(path.hops_max, max(0, path.hop - 1), path.round, tuple(p for p in path.trace if p.id != self.me.id))

    def _fail(self, said: Walk | TreeStep) -> list[Effect]:
        failed: list[Effect] = [Count("walks astray")]
        if self.robust:
            failed.append(Send(said.origin.id, Astray(said.packet.header.id, said.axis, said.attempt)))
        return failed

    # ── The tree ─────────────────────────────────────────────────────────────

    def enter(self, sender: NodeId, said: TreeStep, now: float) -> list[Effect]:
        """Take an event that has come to a topology of which this node is a member, one step nearer to its sub-space."""
        event, axis = said.packet.header.id, said.axis
        if said.steps > TREE_STEPS_MAX or not self._routed.add((event, axis, said.attempt)):
            return []
        way = self.topologies.towards(axis, place_of(said.packet.view, axis), tries=said.attempt - 1)
        if way is None:
            return self._on_stale(sender, said, now)
        word: list[Effect] = []
        if said.steps == 0 and self.robust and said.origin.id != self.me.id:
            word.append(Send(said.origin.id, Found(event, axis)))
        match way:
            case Ref(_, owner):
                on = TreeStep(said.packet, axis, said.origin, said.attempt, said.path, said.steps + 1)
                return [*word, Count("match_ops"), Count("tree steps"), Send(owner.id, on)]
            case Holding(_, registered):
                return [*word, *self.teller.tell(said, registered, now)]
            case Steward():
                everybody = {each.interest.id: each for each in way.interested()}
                return [*word, *self.teller.tell(said, everybody, now)]

    def _on_stale(self, sender: NodeId, said: TreeStep, now: float) -> list[Effect]:
        """This node has left the topology: whoever thought otherwise is told, and the walk begins again from here."""
        effects: list[Effect] = [Count("stale access points")]
        if sender != self.me.id:
            effects.append(Send(sender, Stale(said.axis)))
        half = said.path.halved()
        if half.hops_max == 0 or said.steps > 0:
            return [*effects, *self._fail(said)]
        return [*effects, *self._step(said, half, now)]

    # ── The subscriber ───────────────────────────────────────────────────────

    def _on_match(self, sender: NodeId, said: Match, now: float) -> list[Effect]:
        answer: list[Effect] = [Send(sender, Done(said.call))] if said.call else []
        if self.mode == "full":
            met = self.topologies.wants(said.packet)
        else:
            event = said.packet.header.id
            met = sum(self._counted(event, id, said.axis, now) for id in said.ids) > 0  # All of them are counted.
        return [*answer, *(self._deliver(said.packet) if met else ())]

    def _counted(self, event: EventId, id: SubscriptionId, axis: Axis, now: float) -> bool:
        own = self.topologies.own.get(id)
        if own is None or axis not in own.axes or event in self._delivered:
            return False
        return self.counters.matched(event, id, axis.name, len(own.axes), now)

    def _deliver(self, packet: Packet) -> list[Effect]:
        return [Deliver(packet)] if self._delivered.add(packet.header.id) else []


def _check_choices(profile: str, mode: str | None) -> None:
    if profile not in ("robust", "paper") or mode not in ("full", "count", None):
        raise InputError(f"expected profile robust or paper and mode full or count, got {profile}, {mode}")


def _check_limits(hops_max: int, trace_max: int, period_s: float, indexed_max: int) -> None:
    if hops_max < 1 or trace_max < 0 or period_s < 0 or indexed_max < 1:
        raise InputError(
            "expected hops_max ≥ 1, trace_max ≥ 0, period_s ≥ 0 and indexed_max ≥ 1, "
            f"got {hops_max}, {trace_max}, {period_s}, {indexed_max}"
        )


GUARANTEES = WHATEVER_HAPPENS | {Guarantee.JOINS_LIVE, Guarantee.LEAVES_CLEANLY}
PROTOCOL = on_a_random_graph("cbdlo", Cbdlo, CbdloMessage, GUARANTEES)
