"""A simulated network of full nodes: each router runs inside the same `Node` that a live broker runs.

Messages are bytes here. A node makes a frame for the link that it goes over, at the moment of sending, and tests can
observe every frame (`watch`). Before two nodes exchange their first message they run the link handshake, as they would
over TLS; it takes no simulated time, because TLS is not what is simulated.

    world = NodeWorld("irbr", node_count=8, seed=3, federation=Federation(3))
    world.declare(plates); world.hold(5, right); world.host(0, manager)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from tidings.errors import Denied
from tidings.node import (
    Delivery,
    Direct,
    Ended,
    Joined,
    Keep,
    KeepKeys,
    LinkReady,
    LocalIdentity,
    Node,
    NodeEffect,
    NodePolicy,
    NotJoined,
    Rejected,
    node_id_of,
)
from tidings.overlay import (
    MESSAGE_NAMES,
    Effect,
    EventId,
    Header,
    Interest,
    Message,
    NodeId,
    Packet,
    Peer,
    Protocol,
    Router,
    Send,
    Sql,
    SubscriptionId,
    View,
)
from tidings.security import BiscuitCapability, Identity, KeyManager, NotYet, SignedType
from tidings.sim.federation import START_MS, Federation
from tidings.sim.trace import NotificationRecord, Publication, SubscriptionEntry
from tidings.sim.world import EncodedMessage, SimulatedNode, World

Watch = Callable[[NodeId, NodeId, bytes], None]
"""Observes every frame: its sender, its receiver, and its bytes."""

CarryOut = Callable[[Node, list[NodeEffect]], list[Effect]]
"""Turns a node's effects into those of a router, for the world to carry out."""


class NodeAdapter(Router[Any]):
    """A node with the interface of a router: it sends frames where a router sends messages."""

    def __init__(self, node: Node, carry_out: CarryOut) -> None:
        self.node, self._carry_out = node, carry_out

    def start(self, now: float, memory: bytes = b"") -> list[Effect]:
        return self._carry_out(self.node, self.node.start(now, memory))

    def join(self, via: Sequence[Peer], now: float) -> list[Effect]:
        return self._carry_out(self.node, self.node.join(via, now))

    def leave(self, now: float) -> list[Effect]:
        return self._carry_out(self.node, self.node.leave(now))

    def publish(self, packet: Packet, now: float) -> list[Effect]:
        raise AssertionError("a node publishes for its clients")

    def receive(self, sender: NodeId, message: EncodedMessage, now: float) -> list[Effect]:
        return self._carry_out(self.node, self.node.receive(sender, message.raw, now))

    def wake(self, token: Any, now: float) -> list[Effect]:
        return self._carry_out(self.node, self.node.wake(token, now))

    def unsent(self, to: NodeId, message: EncodedMessage, now: float) -> list[Effect]:
        return self._carry_out(self.node, self.node.unsent(to, message.message, now))

    def peer_down(self, peer: NodeId, now: float) -> list[Effect]:
        return self._carry_out(self.node, self.node.peer_down(peer, now))

    def peer_up(self, peer: Peer, now: float) -> list[Effect]:
        return self._carry_out(self.node, self.node.peer_up(peer, now))

    def unsubscribe(self, id: SubscriptionId, now: float) -> list[Effect]:
        return self._carry_out(self.node, self.node.unsubscribe(id, now))

    def links(self) -> tuple[NodeId, ...]:
        return self.node.router.links()

    def holdings(self) -> dict[str, tuple[int, int]]:
        return self.node.holdings()

    def memory(self) -> bytes:
        return self.node.memory()


class NodeWorld(World):
    """A world whose nodes check rights, open and seal. Clients are given by name; each node has its own.

    `deliveries` has every delivery to a client, with the values that it saw. `skew_ms` says how far a node's clock is
    ahead of the world's.
    """

    def __init__(
        self,
        protocol_name: str | Protocol,
        *,
        federation: Federation,
        organisation_of: Callable[[int], str] = lambda index: "all",
        policy: NodePolicy | None = None,
        skew_ms: Callable[[int], int] = lambda index: 0,
        **world: Any,
    ) -> None:
        self.federation, self.organisation_of, self.skew_ms = federation, organisation_of, skew_ms
        self.policy = policy or NodePolicy(network_key=federation.network.public_key)
        self.deliveries: list[Delivery] = []
        self.effects: list[tuple[NodeId, NodeEffect]] = []
        """The effects of nodes other than messages, timers, counts and deliveries."""
        self._watches: list[Watch] = []
        self._replayed: dict[int, list[Callable[[Node], list[NodeEffect]]]] = {}
        super().__init__(protocol_name, **world)

    # ── For tests and experiments ──────────────────────────────────────

    def node(self, index: int) -> Node:
        """The node itself."""
        adapter = self.nodes[index].router
        assert isinstance(adapter, NodeAdapter)
        return adapter.node

    def identity(self, index: int) -> Identity:
        return self.federation.identity(f"node {index}")

    def watch(self, watch: Watch) -> None:
        """Observe every frame, those of handshakes too."""
        self._watches.append(watch)

    def declare(self, declared: SignedType, *, at: Sequence[int] | None = None) -> None:
        """Declare a type to these nodes, or to all."""
        for index in range(len(self.nodes)) if at is None else at:
            self.give(index, lambda node: node.declare(declared, self.now))

    def hold(self, index: int, right: BiscuitCapability) -> None:
        """Give a node a right."""
        self.give(index, lambda node: node.hold(right.to_bytes(), self.now))

    def host(self, index: int, manager: KeyManager) -> None:
        """Have a node host a key manager."""
        self.give(index, lambda node: node.host(manager, self.now))

    def revoke(self, ids: Sequence[str], *, at: Sequence[int] | None = None) -> None:
        """Revoke links at these nodes, or at all."""
        for index in range(len(self.nodes)) if at is None else at:
            self.give(index, lambda node: node.revoke(ids, self.now))

    def attach(self, index: int, client: str, rights: Sequence[BiscuitCapability] = ()) -> None:
        """Attach a client to a node; the federation derives its key from its name."""
        key = self.federation.identity(client).public_key
        tokens = [right.to_bytes() for right in rights]
        self.give(index, lambda node: node.attach(client, key, tokens, self.now))

    def publish_as(self, index: int, client: str, type: str, values: Mapping[str, Any]) -> EventId:
        """Have a client publish; raises what the node raises."""
        member, node = self.nodes[index], self.node(index)
        id, effects = node.publish(client, type, values, self.now)
        hop = node.hop(id)
        name = hop.type if hop else type
        self.trace.publications[id] = Publication(self.now, member.id, Packet(Header(id, name), View(dict(values))))
        self.trace.note(self.now, "publish", member.id, about=id)
        self.carry_out(member, self.node_effects(node, effects))
        return id

    def subscribe_as(self, index: int, client: str, type: str, condition: str) -> SubscriptionId:
        """Have a client subscribe; raises what the node raises."""
        member, node = self.nodes[index], self.node(index)
        id, effects = node.subscribe(client, type, condition, self.now)
        one = next(one for one in node.subscriptions() if one.id == id)
        interest = Interest(id, one.type, Sql.of(one.condition))
        member.subscriptions[id] = interest
        self.trace.subscriptions[id] = SubscriptionEntry(interest, member.id, self.now)
        self.trace.note(self.now, "subscribe", member.id, about=id)
        self.carry_out(member, self.node_effects(node, effects))
        return id

    def give(self, index: int, do: Callable[[Node], list[NodeEffect]]) -> None:
        """Do something with a node that its driver does again after a restart: types, rights, clients."""
        self._replayed.setdefault(index, []).append(do)
        if self.nodes[index].up:
            self.act(index, do)

    def restart(self, node: int, *, memory: bool = True) -> None:
        """Restart a node that is down: its driver declares everything again, and, with memory, its clients
        subscribe again."""
        member = self.nodes[node]
        conditions = [(one.client, one.type, one.condition.text) for one in self.node(node).subscriptions()]
        was_down = not member.up
        member.subscriptions = {}
        super().restart(node, memory=memory)
        if was_down and member.up:
            for do in self._replayed.get(node, []):
                self.act(node, do)
            for condition in conditions if memory else []:
                self._subscribe_when_ready(node, *condition)

    def _subscribe_when_ready(self, index: int, client: str, type: str, condition: str) -> None:
        """A restarted node has no keys yet, so its clients try again until it has."""
        try:
            self.subscribe_as(index, client, type, condition)
        except NotYet:
            self.at(self.now + 1.0, lambda: self._subscribe_when_ready(index, client, type, condition))

    def act(self, index: int, do: Callable[[Node], list[NodeEffect]]) -> None:
        """Do something with a node, and carry out its effects."""
        self.carry_out(self.nodes[index], self.node_effects(self.node(index), do(self.node(index))))

    # ── Effects ────────────────────────────────────────────────────────────────

    def node_effects(self, node: Node, effects: list[NodeEffect]) -> list[Effect]:
        """A node's effects as the world carries them out; those that do not concern the network are recorded here."""
        done: list[Effect] = []
        for effect in effects:
            match effect:
                case Send(to, message):
                    carried = self._frame(node, to, message)
                    if carried is not None:
                        done.append(Send(to, carried))
                case Delivery():
                    self.deliveries.append(effect)
                    self.trace.notices.append(NotificationRecord(self.now, effect.event, effect.subscription))
                    self.trace.note(self.now, "notify", node.me.id, about=effect.event)
                case Direct():
                    pass  # In a simulated network nobody swallows messages about keys; the overlay is what is tested.
                case Ended() | Rejected() | Joined() | NotJoined() | LinkReady() | Keep() | KeepKeys():
                    self.effects.append((node.me.id, effect))
                    self.trace.note(self.now, type(effect).__name__, node.me.id)
                case _:
                    done.append(effect)
        return done

    def _frame(self, node: Node, to: NodeId, message: Message) -> EncodedMessage | None:
        target = self._by_id.get(to)
        packet = getattr(message, "packet", None)
        about = packet.header.id if packet is not None else None
        name = MESSAGE_NAMES[message.__class__]
        if target is None or not target.up:
            return EncodedMessage(b"", message, name, about)
        self._handshake(node, target)
        try:
            raw = node.frame_for(to, message, self.now)
        except Denied:
            self.trace.counted["not_introduced"] += 1
            return None
        for watch in self._watches:
            watch(node.me.id, to, raw)
        return EncodedMessage(raw, message, name, about)

    def _handshake(self, node: Node, target: SimulatedNode) -> None:
        """Run the handshake of a new TLS connection, at once."""
        adapter = target.router
        assert isinstance(adapter, NodeAdapter)
        other = adapter.node
        mine = self._by_id[node.me.id].peer
        if node.knows(other.me) and other.knows(node.me):
            return
        node.link_down(other.me.id, self.now)
        other.link_down(node.me.id, self.now)
        messages = [(node, e) for e in node.link_up(target.peer, self.now, my_cert=b"a", their_cert=b"b", dialled=True)]
        messages += [(other, e) for e in other.link_up(mine, self.now, my_cert=b"b", their_cert=b"a", dialled=False)]
        while messages:
            sender, effect = messages.pop(0)
            receiver = other if sender is node else node
            if isinstance(effect, Send):
                raw = sender.frame_for(effect.to, effect.message, self.now)
                for watch in self._watches:
                    watch(sender.me.id, effect.to, raw)
                messages += [(receiver, e) for e in receiver.receive(sender.me.id, raw, self.now)]
            else:
                self.node_effects(sender, [effect])

    # ── The nodes ──────────────────────────────────────────────────────────────

    def _name(self, index: int) -> NodeId:
        return node_id_of(self.identity(index).public_key)

    def _make_router(self, me: Peer, links: list[int]) -> Router[Any]:
        index = self._ids.index(me.id)
        identity = self.identity(index)
        neighbours = tuple(Peer(self._ids[k], f"sim:{k}") for k in links) if self.protocol.on_graph else ()
        node = Node(
            LocalIdentity(me, identity, self.organisation_of(index)),
            self.protocol,
            rng=Random(f"node/{self.seed}/{me.id}/{me.incarnation}"),
            random=Random(f"bytes/{self.seed}/{me.id}/{me.incarnation}").randbytes,
            neighbours=neighbours,
            options=self.options,
            policy=self.policy,
        )
        node.clock_is(START_MS + self.skew_ms(index), 0.0)
        node.hold(self.federation.membership(self.organisation_of(index), identity).to_bytes(), self.now)
        return NodeAdapter(node, self.node_effects)

    def _router_of(self, member: SimulatedNode) -> Router[Any]:
        assert isinstance(member.router, NodeAdapter)
        return member.router.node.router
