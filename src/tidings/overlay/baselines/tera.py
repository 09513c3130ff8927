"""TERA: random walks to a topic, then a flood among its subscribers (the topic-based baseline of CBDLO).

The lower layer is CBDLO's: one random graph, access points in everybody's table, walks.
But a topic has no tree. Its subscribers are a random graph of their own, and an event
that reaches one of them is passed on by every subscriber of the topic to all of its view.
Here an attribute is a topic, an event is published on the topics of all its attributes,
and subscribers drop what their condition does not match.

    publisher ⇢ walk ⇢ walk ⇢ access point → all subscribers of the topic, each by about as many as are in a view

Written from the design's common description (Baldoni and others, DEBS 2007); the walk
and the table's compensation for popularity are theirs, everything else is plain.
"""

from __future__ import annotations

from random import Random
from typing import ClassVar, TypeAlias

from tidings.errors import InputError
from tidings.overlay.dedup import SEEN_MAX, SeenIds
from tidings.overlay.interest import Interest
from tidings.overlay.messages import EventId, Message, NodeId, Packet, Peer, SubscriptionId
from tidings.overlay.random_graph.access_points import AccessPoint, TreeId
from tidings.overlay.random_graph.cyclon import VIEW_SIZE, PeerSampler, ViewEntry
from tidings.overlay.random_graph.graph import PERIOD_S, GraphMessage
from tidings.overlay.random_graph.partition import AttributeAxis, axes_of, indexed_axes
from tidings.overlay.random_graph.random_walk import HOPS_MAX, WalkPath, next_step
from tidings.overlay.random_graph.router import GraphRouter, on_a_random_graph
from tidings.overlay.router import Completed, Count, Deliver, Effect, Failed, Guarantee, Send

TABLE_SIZE = 50  # The paper's, for TERA.
TOPICS_MAX = 4096  # Topics that one node subscribes to.
OWN_MAX = 65_536


class TopicWalk(Message, frozen=True):
    """An event looking for somebody who subscribes to a topic, or knows one who does."""

    packet: Packet
    axis: AttributeAxis
    path: WalkPath


class TopicFlood(Message, frozen=True, tag="Spread"):
    """An event for all subscribers of a topic."""

    packet: Packet
    axis: AttributeAxis


class TopicHello(Message, frozen=True):
    """I subscribe to this topic too; whom do you know?"""

    axis: AttributeAxis
    me: Peer


class TopicView(Message, frozen=True):
    """Some subscribers of a topic, in answer to a newcomer or to an exchange."""

    axis: AttributeAxis
    view: tuple[ViewEntry, ...]


class TopicShuffle(Message, frozen=True):
    """An exchange of views among the subscribers of a topic."""

    chatter: ClassVar[bool] = True
    axis: AttributeAxis
    view: tuple[ViewEntry, ...]


TeraMessage: TypeAlias = TopicWalk | TopicFlood | TopicHello | TopicView | TopicShuffle | GraphMessage


class Tera(GraphRouter[TeraMessage]):
    """One node's part in TERA."""

    def __init__(
        self,
        me: Peer,
        rng: Random,
        *,
        view_size: int = VIEW_SIZE,
        table_size: int = TABLE_SIZE,
        hops_max: int = HOPS_MAX,
        period_s: float = PERIOD_S,
    ) -> None:
        """`period_s=0` does without routine talk, for worlds that stand still."""
        if hops_max < 1 or period_s < 0:
            raise InputError(f"expected hops_max ≥ 1 and period_s ≥ 0, got {hops_max}, {period_s}")
        super().__init__(me, rng, view_size=view_size, table_size=table_size, hops_max=hops_max, period_s=period_s)
        self.own: dict[SubscriptionId, tuple[Interest, list[AttributeAxis]]] = {}
        self.topics: dict[AttributeAxis, PeerSampler] = {}
        self._spread = SeenIds[tuple[EventId, AttributeAxis]](SEEN_MAX)
        self._delivered = SeenIds[EventId](SEEN_MAX)

    def subscribe(self, interest: Interest, now: float) -> list[Effect]:
        if len(self.own) >= OWN_MAX:
            return [Failed("subscribe", f"a node has at most {OWN_MAX} interests", interest.id)]
        axes = indexed_axes(interest, None)
        self.own[interest.id] = (interest, axes)
        new = [axis for axis in axes if axis not in self.topics and len(self.topics) < TOPICS_MAX]
        effects = [effect for axis in new for effect in self._join_topic(axis)]
        return [*effects, Completed("subscribe", interest.id)]

    def unsubscribe(self, id: SubscriptionId, now: float) -> list[Effect]:
        self.own.pop(id, None)
        wanted = {axis for _, axes in self.own.values() for axis in axes}
        self.topics = {axis: topic for axis, topic in self.topics.items() if axis in wanted}
        return [Completed("unsubscribe", id)]

    def publish(self, packet: Packet, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for axis in axes_of(packet):
            if axis.name or axis in self.topics or self.table.at(axis):
                effects += self._on_walk(self.me.id, TopicWalk(packet, axis, WalkPath(self.hops_max)))
        return effects

    def receive(self, sender: NodeId, message: TeraMessage, now: float) -> list[Effect]:
        match message:
            case TopicWalk():
                return self._on_walk(sender, message)
            case TopicFlood(packet, axis):
                return self._pass_on(packet, axis, sender)
            case TopicHello(axis, newcomer):
                return self._on_topic_hello(axis, newcomer)
            case TopicShuffle(axis, view) if axis in self.topics:
                return [Send(sender, TopicView(axis, self.topics[axis].answer(view)))]
            case TopicView(axis, view) if axis in self.topics:
                self.topics[axis].answered(sender, view)
                return []
        return self._receive_of_graph(sender, message, now)

    def peer_down(self, peer: NodeId, now: float) -> list[Effect]:
        for topic in self.topics.values():
            topic.drop(peer)
        return super().peer_down(peer, now)

    def holdings(self) -> dict[str, tuple[int, int]]:
        return {
            **self.sampler.holdings(),
            **self.table.holdings(),
            "own interests": (len(self.own), OWN_MAX),
            "topics": (len(self.topics), TOPICS_MAX),
            "seen": (len(self._delivered), SEEN_MAX),
        }

    # ── Private steps ────────────────────────────────────────────────────────

    def _beat(self, now: float) -> list[Effect]:
        return [*self._shuffle_topics(), *super()._beat(now)]

    def _adverts(self) -> list[AccessPoint]:
        return [AccessPoint(axis, self.me, _TOPIC) for axis in self.topics]

    def _heard(self, point: AccessPoint, now: float) -> list[Effect]:
        """Who subscribes to the same topic comes into view: so topics that were founded twice grow together."""
        self.table.hear(point)
        topic = self.topics.get(point.axis)
        if topic is None or point.peer.id in topic or len(topic) >= topic.size:
            return []
        topic.fill([point.peer])
        return [Send(point.peer.id, TopicHello(point.axis, self.me))]

    def _join_topic(self, axis: AttributeAxis) -> list[Effect]:
        self.topics[axis] = topic = PeerSampler(self.me, self._rng, size=self.sampler.size)
        known = self.table.at(axis)
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

    def _on_walk(self, sender: NodeId, said: TopicWalk) -> list[Effect]:
        if said.path.hops_max > self.hops_max:
            return []
        if not said.path.is_jump:
            if said.axis in self.topics:
                return [Count("hits"), *self._pass_on(said.packet, said.axis, sender)]
            known = self.table.at(said.axis)
            if known:
                return [Count("hits"), Send(known[0].peer.id, TopicFlood(said.packet, said.axis))]
        if said.path.is_over:
            return [Count("walks astray")]
        step = next_step(said.path, self.me, self.sampler.view(), self._rng)
        if step is None:
            return [Count("walks astray")]
        return [Send(step.to.id, TopicWalk(said.packet, said.axis, step.path))]

    def _pass_on(self, packet: Packet, axis: AttributeAxis, sender: NodeId) -> list[Effect]:
        topic = self.topics.get(axis)
        if topic is None or not self._spread.add((packet.header.id, axis)):
            return []
        wanted = any(interest.matches(packet) for interest, _ in self.own.values())
        here: list[Effect] = [Deliver(packet)] if wanted and self._delivered.add(packet.header.id) else []
        return [*here, *(Send(peer.id, TopicFlood(packet, axis)) for peer in topic.view() if peer.id != sender)]


_TOPIC = TreeId(Peer(""), 0)  # A topic is the same whoever speaks of it.


# Not REACHES_ALL: a walk may find nobody, and a flood may miss somebody.
PROTOCOL = on_a_random_graph("tera", Tera, TeraMessage, frozenset({Guarantee.JOINS_LIVE}))
