"""TERA: random walks to a topic, then a flood among its subscribers (the topic-based baseline of the CBDLO paper).

The lower layer is CBDLO's: one random graph, tables of access points, random walks. But a topic has no tree. Its
subscribers form a random graph of their own, and a subscriber that gets an event of the topic forwards it to all peers
of its view of the topic. Here each attribute is a topic, an event is published on the topics of all its attributes, and
subscribers drop the events that do not match their condition.

    publisher ⇢ walk ⇢ walk ⇢ access point → all subscribers of the topic, each of which sends to its whole view

Written from the common description of the design (Baldoni and others, DEBS 2007). The walk and the table's
compensation for popularity are theirs, the rest is the plainest thing that works.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import ClassVar, TypeAlias

from tidings.overlay.dedup import SEEN_MAX, SeenIds
from tidings.overlay.interest import Interest
from tidings.overlay.messages import EventId, Message, NodeId, Packet, Peer, SubscriptionId
from tidings.overlay.random_graph.access_points import AccessPoint, TreeId
from tidings.overlay.random_graph.cyclon import VIEW_SIZE, PeerSampler, ViewEntry
from tidings.overlay.random_graph.graph import PERIOD_S, GraphMessage, GraphOptions, RandomGraph
from tidings.overlay.random_graph.partition import AttributeAxis, axes_of, indexed_axes
from tidings.overlay.random_graph.random_walk import HOPS_MAX, WalkPath, next_step
from tidings.overlay.random_graph.router import GraphRouter, graph_protocol
from tidings.overlay.retransmit import Requests
from tidings.overlay.router import Completed, Count, Deliver, Effect, Failed, Guarantee, Send, Token

TABLE_SIZE = 50  # As in the paper, for TERA.
TOPICS_MAX = 4096  # Topics that one node subscribes to.
INTERESTS_MAX = 65_536  # Of one node.


class TopicWalk(Message, frozen=True):
    """An event on a random walk to a subscriber of a topic."""

    packet: Packet
    axis: AttributeAxis
    path: WalkPath


class TopicFlood(Message, frozen=True, tag="Spread"):
    """An event for all subscribers of a topic."""

    packet: Packet
    axis: AttributeAxis


class TopicHello(Message, frozen=True):
    """A new subscriber of a topic asks another for part of its view."""

    axis: AttributeAxis
    me: Peer


class TopicView(Message, frozen=True):
    """Some subscribers of a topic, in answer to a TopicHello or a TopicShuffle."""

    axis: AttributeAxis
    view: tuple[ViewEntry, ...]


class TopicShuffle(Message, frozen=True):
    """An exchange of views among the subscribers of a topic."""

    chatter: ClassVar[bool] = True
    axis: AttributeAxis
    view: tuple[ViewEntry, ...]


TeraMessage: TypeAlias = TopicWalk | TopicFlood | TopicHello | TopicView | TopicShuffle | GraphMessage


@dataclass(frozen=True, slots=True)
class TeraOptions:
    """Options of TERA. The defaults are the paper's."""

    view_size: int = VIEW_SIZE
    table_size: int = TABLE_SIZE
    hops_max: int = HOPS_MAX
    period_s: float = PERIOD_S

    @classmethod
    def paper(cls) -> TeraOptions:
        """The defaults."""
        return cls()

    @classmethod
    def robust(cls) -> TeraOptions:
        """The defaults: TERA is a baseline, measured as published."""
        return cls()

    def graph(self) -> GraphOptions:
        """The options of the random graph below."""
        return GraphOptions(self.view_size, self.table_size, self.hops_max, self.period_s, "balanced", announces=False)


class Tera(GraphRouter[TeraMessage]):
    """One node of TERA."""

    def __init__(self, me: Peer, rng: Random, options: TeraOptions) -> None:
        super().__init__(
            RandomGraph(
                me, rng, Requests(), options.graph(), adverts=self._adverts, on_access_point=self._on_access_point
            )
        )
        self.me, self.options, self._rng = me, options, rng
        self._interests: dict[SubscriptionId, tuple[Interest, list[AttributeAxis]]] = {}
        self.topics: dict[AttributeAxis, PeerSampler] = {}
        """This node's view of each topic it subscribes to."""
        self._flooded = SeenIds[tuple[EventId, AttributeAxis]](SEEN_MAX)
        self._delivered = SeenIds[EventId](SEEN_MAX)

    def subscribe(self, interest: Interest, now: float) -> list[Effect]:
        if len(self._interests) >= INTERESTS_MAX:
            return [Failed("subscribe", f"a node has at most {INTERESTS_MAX} interests", interest.id)]
        axes = indexed_axes(interest, None)
        self._interests[interest.id] = (interest, axes)
        new = [axis for axis in axes if axis not in self.topics and len(self.topics) < TOPICS_MAX]
        effects = [effect for axis in new for effect in self._join_topic(axis)]
        return [*effects, Completed("subscribe", interest.id)]

    def unsubscribe(self, id: SubscriptionId, now: float) -> list[Effect]:
        self._interests.pop(id, None)
        wanted = {axis for _, axes in self._interests.values() for axis in axes}
        self.topics = {axis: topic for axis, topic in self.topics.items() if axis in wanted}
        return [Completed("unsubscribe", id)]

    def publish(self, packet: Packet, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for axis in axes_of(packet):
            if axis.name or axis in self.topics or self.graph.table.at(axis):
                effects += self._on_walk(self.me.id, TopicWalk(packet, axis, WalkPath(self.options.hops_max)))
        return effects

    def receive(self, sender: NodeId, message: TeraMessage, now: float) -> list[Effect]:
        match message:
            case TopicWalk():
                return self._on_walk(sender, message)
            case TopicFlood(packet, axis):
                return self._flood(packet, axis, sender)
            case TopicHello(axis, newcomer):
                return self._on_topic_hello(axis, newcomer)
            case TopicShuffle(axis, view) if axis in self.topics:
                return [Send(sender, TopicView(axis, self.topics[axis].answer(view)))]
            case TopicView(axis, view) if axis in self.topics:
                self.topics[axis].answered(sender, view)
                return []
        return self.graph.receive(sender, message, now)

    def wake(self, token: Token, now: float) -> list[Effect]:
        shuffles = self._shuffle_topics() if token == ("beat",) else []
        return [*shuffles, *self.graph.wake(token, now)]

    def peer_down(self, peer: NodeId, now: float) -> list[Effect]:
        for topic in self.topics.values():
            topic.drop(peer)
        return self.graph.peer_down(peer, now)

    def holdings(self) -> dict[str, tuple[int, int]]:
        return {
            **self.graph.sampler.holdings(),
            **self.graph.table.holdings(),
            "own interests": (len(self._interests), INTERESTS_MAX),
            "topics": (len(self.topics), TOPICS_MAX),
            "seen": (len(self._delivered), SEEN_MAX),
        }

    # ── Private steps ────────────────────────────────────────────────────────

    def _adverts(self) -> list[AccessPoint]:
        return [AccessPoint(axis, self.me, _TOPIC) for axis in self.topics]

    def _on_access_point(self, point: AccessPoint, now: float) -> list[Effect]:
        """Another subscriber of a topic of this node enters the view, so that two overlays of one topic merge."""
        self.graph.table.add(point)
        topic = self.topics.get(point.axis)
        if topic is None or point.peer.id in topic or len(topic) >= topic.size:
            return []
        topic.fill([point.peer])
        return [Send(point.peer.id, TopicHello(point.axis, self.me))]

    def _join_topic(self, axis: AttributeAxis) -> list[Effect]:
        self.topics[axis] = topic = PeerSampler(self.me, self._rng, size=self.graph.sampler.size)
        known = self.graph.table.at(axis)
        topic.fill(point.peer for point in known)
        hellos: list[Effect] = [Send(point.peer.id, TopicHello(axis, self.me)) for point in known]
        return hellos or self.graph.search(axis)

    def _on_topic_hello(self, axis: AttributeAxis, newcomer: Peer) -> list[Effect]:
        topic = self.topics.get(axis)
        if topic is None:
            return []
        view = tuple(ViewEntry(peer) for peer in topic.sample(topic.shuffle_size))
        topic.swap(newcomer)
        return [Send(newcomer.id, TopicView(axis, view))]

    def _shuffle_topics(self) -> list[Effect]:
        effects: list[Effect] = []
        for axis, topic in self.topics.items():
            proposed = topic.propose()
            if proposed is not None:
                effects.append(Send(proposed[0].id, TopicShuffle(axis, proposed[1])))
        return effects

    def _on_walk(self, sender: NodeId, walk: TopicWalk) -> list[Effect]:
        if walk.path.hops_max > self.options.hops_max:
            return []
        if not walk.path.is_jump:
            if walk.axis in self.topics:
                return [Count("hits"), *self._flood(walk.packet, walk.axis, sender)]
            known = self.graph.table.at(walk.axis)
            if known:
                return [Count("hits"), Send(known[0].peer.id, TopicFlood(walk.packet, walk.axis))]
        if walk.path.is_over:
            return [Count("walks astray")]
        step = next_step(walk.path, self.me, self.graph.sampler.view(), self._rng)
        if step is None:
            return [Count("walks astray")]
        return [Send(step.to.id, TopicWalk(walk.packet, walk.axis, step.path))]

    def _flood(self, packet: Packet, axis: AttributeAxis, sender: NodeId) -> list[Effect]:
        topic = self.topics.get(axis)
        if topic is None or not self._flooded.add((packet.header.id, axis)):
            return []
        matches = any(interest.matches(packet) for interest, _ in self._interests.values())
        here: list[Effect] = [Deliver(packet)] if matches and self._delivered.add(packet.header.id) else []
        return [*here, *(Send(peer.id, TopicFlood(packet, axis)) for peer in topic.view() if peer.id != sender)]


_TOPIC = TreeId(Peer(""), 0)  # A topic has no coordinator, and all its overlays are the same topic.


# Not REACHES_ALL: a walk may find no subscriber, and a flood may miss some.
PROTOCOL = graph_protocol("tera", Tera, TeraOptions, TeraMessage, frozenset({Guarantee.JOINS_LIVE}))
