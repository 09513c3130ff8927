"""A broker: one `Node`, run on real links, a real clock and a real disk.

    a client publishes   node → [Keep, Send, Notify, …]   kept and owed on disk first, then sent, then acknowledged
    bytes come           node → [Send, Notify, …]         sent at once; durable subscribers' notices wait for their number
    a timer rings        node → […]

All of it happens on one event loop. The node itself never waits, reads a clock or touches a socket;
this file carries out what it asks for. What clients do is in `connections`, `publishing` and
`subscribing`, what is done now and then in `upkeep`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import secrets
from collections import Counter
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, assert_never

from tidings.errors import Denied, InputError, SetupError
from tidings.net.broker.acceptor import Connections
from tidings.net.broker.admin import Queries
from tidings.net.broker.bootstrap import Entrance
from tidings.net.broker.capture import Capture
from tidings.net.broker.durable_queues import AtRest, DurableQueues
from tidings.net.broker.journal import Journal
from tidings.net.broker.key_managers import Managers
from tidings.net.broker.owed import Bundle
from tidings.net.broker.periodic import Upkeep
from tidings.net.broker.promises import Promises
from tidings.net.broker.publish import Publishing
from tidings.net.broker.subscriptions import Subscribing
from tidings.net.config import BrokerConfig
from tidings.net.gateway.sse import Listener
from tidings.net.ids import now_ms, now_us, read_identity
from tidings.net.transport.connection import Link
from tidings.net.transport.frames import Said, Standing, Told, Trace, Traced, encode_told
from tidings.net.transport.handshake import Participant
from tidings.net.transport.peer_links import Links
from tidings.net.transport.tls import client_context, der, key_and_domain
from tidings.net.type_files import TypeDefinition, read_type
from tidings.node import (
    INTERESTS_MAX,
    Delivery,
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
    decode_stored,
    node_id_of,
)
from tidings.overlay import (
    Completed,
    Count,
    EventId,
    Failed,
    NodeId,
    Peer,
    Send,
    SubscriptionId,
    WakeAt,
    protocol,
)
from tidings.security import from_fingerprint

REJOIN_S = 2.0  # After a join that failed.
DRAIN_S_MAX = 60.0

log = logging.getLogger("tidings.broker")


class Broker:
    """One running broker. Made by `Broker.start`, ended by `stop` or, leaving nothing owed, by `drain`."""

    def __init__(self, config: BrokerConfig) -> None:
        self.config = config
        self.identity = read_identity(config.key)
        self.journal = Journal(config.data / "journal.db")
        self.certificate_der = der(config.certificate.read_bytes())
        self._check_certificate()
        self.protocol = protocol(config.overlay)
        address = config.advertise or config.listen
        self.me = Peer(node_id_of(self.identity.public_key), address, self.journal.incarnation)
        participant = Participant(
            self.identity, self.certificate_der, config.domain, config.name, "broker", (), self.me, config.overlay
        )
        self.participant = participant
        context = client_context(config.certificate, config.key, config.trusted)
        capture = Capture(config.capture) if config.capture is not None else None
        self.links = Links(participant, context, config.limits, self, capture)
        self.node = self._make_node()
        self.types = self.node.types
        self.counts: Counter[str] = Counter()
        at_rest, queue_max = AtRest(self.identity), config.limits.queue_events_max
        self.queues = DurableQueues(self.journal, at_rest, queue_max, now_us, self.deliver)
        self.queries = Queries(self)
        self.managers = Managers(config)
        self.listeners: dict[str, Listener] = {}
        self.promises: Promises
        self.is_joined = asyncio.Event()
        self.is_draining = False
        self._gone, self._stopped = asyncio.Event(), asyncio.Event()
        self._draining: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self.entrance = Entrance(self)
        self.connections, self.publishing, self.subscribing = Connections(self), Publishing(self), Subscribing(self)
        self._upkeep = Upkeep(self)
        self._told: tuple[Any, EventId | None, bytes] = (None, None, b"")
        self._tasks: set[asyncio.Task[Any]] = set()

    # ── Life ──

    @classmethod
    async def start(cls, config: BrokerConfig) -> Broker:
        """A broker that listens, has taken up its durable subscriptions, and is on its way into the network."""
        broker = cls(config)
        await broker._start()
        return broker

    async def _start(self) -> None:
        now = self._loop.time()
        self.node.clock_is(now_ms(), now)
        self._declare_types(now)
        self.links.learn(peer.peer for peer in self.config.peers)
        self.promises = Promises(self)
        await self.connections.listen()
        self.entrance.enter()
        self.subscribing.resting = dict(self.queues.all)
        self.subscribing.take_up_resting()
        if self.queues.all:
            self.promises.tell(list(self.queues.all.values()))
        for peer in self.config.peers:
            self.links.keep(peer.peer.id)
        self._upkeep.begin()
        log.info(
            "listening", extra={"broker": self.config.name, "address": self.address, "overlay": self.protocol.name}
        )

    @property
    def address(self) -> str:
        """Where it listens, with the port it was given where it asked for any."""
        return self.connections.address

    # ── Going ──

    async def drain(self) -> None:
        """Take no new events, see that all that is owed is confirmed, leave the overlay, and stop."""
        self.is_draining = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_S_MAX):
                await self.promises.nothing_owed()
                self.carry_out(self.node.leave(self._loop.time()))
                await self._gone.wait()
        await self.stop()

    def drain_soon(self) -> None:
        """Begin to drain; whoever waits with `ended` sees when it is done."""
        if not self.is_draining:
            self.is_draining = True
            self._draining = self._loop.create_task(self.drain())

    async def ended(self) -> None:
        """Waits until the broker has stopped."""
        await self._stopped.wait()

    async def stop(self) -> None:
        """Hang up and close the journal. What is on disk is taken up by the next start."""
        self.connections.close()
        self.promises.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.links.close()
        await self.connections.closed()
        self.journal.note_meta("router memory", self.node.memory())
        await self.journal.committed()
        self.journal.close()
        self.managers.close()
        self._stopped.set()

    # ── Making ──

    def _make_node(self) -> Node:
        config = self.config
        rng = random.Random(secrets.randbits(64))
        neighbours = tuple(peer.peer for peer in config.peers) if self.protocol.on_graph else ()
        options = {**self.protocol.live_options, **config.overlay_options}
        policy = NodePolicy(
            network_key=from_fingerprint(config.network_key) if config.network_key else None,
            interests_max=INTERESTS_MAX,
        )
        return Node(
            LocalIdentity(self.me, self.identity, config.domain),
            self.protocol,
            rng=rng,
            random=secrets.token_bytes,
            neighbours=neighbours,
            options=options,
            policy=policy,
        )

    def _check_certificate(self) -> None:
        key, domain = key_and_domain(self.certificate_der)
        if key != self.identity.public_key or domain != self.config.domain:
            raise InputError(f"{self.config.certificate} is not the certificate of this key in {self.config.domain}")

    def _declare_types(self, now: float) -> None:
        for known in [*map(read_type, self.config.types), *self.managers.types()]:
            self.declare(known, now)
        self.carry_out(self.node.revoke(self.managers.revocations(), now))
        for manager in self.managers.hosted([known.signed for known in self.types.all() if known.signed]):
            self.carry_out(self.node.host(manager, now))
        self._upkeep.hold_tokens(now)

    def declare(self, known: TypeDefinition, now: float | None = None) -> None:
        """Make a type known to this broker and its clients."""
        self.carry_out(self.node.declare(known.signed or known.event_type, self._loop.time() if now is None else now))

    # ── Links (see `links.Owner`) ──

    def link_is_up(self, link: Link, peer: Peer, *, dialled: bool) -> None:
        theirs = link.certificate_der
        self.carry_out(
            self.node.link_up(peer, self._loop.time(), my_cert=self.certificate_der, their_cert=theirs, dialled=dialled)
        )

    def link_is_down(self, peer: NodeId) -> None:
        now = self._loop.time()
        self.entrance.forget(peer)
        self.carry_out(self.node.link_down(peer, now))
        self.carry_out(self.node.peer_down(peer, now))

    def did_not_get_through(self, to: NodeId, messages: Iterable[Any]) -> None:
        for message in messages:
            self.carry_out(self.node.unsent(to, message, self._loop.time()))

    def as_sent_to(self, to: NodeId, message: Any) -> bytes | None:
        try:
            return self.node.frame_for(to, message, self._loop.time())
        except Denied:
            return None

    async def serve_link(self, link: Link) -> None:
        peer = link.proven.id
        async for frame in link.frames("broker"):
            if self.links.open.get(peer) is not link:
                return  # Replaced by another connection, whose handshake this one must not disturb.
            if isinstance(frame, Said):
                if self.connections.filling:
                    await self.connections.room_for_local()
                now = self._loop.time()
                self.carry_out(self.node.receive_many([(peer, raw) for raw in frame.messages], now))
                self.links.learn(self.node.introduced())
            elif not self.links.is_ready(peer):
                continue
            elif isinstance(frame, Standing):
                self.entrance.stands(peer, frame.is_joined)
            elif isinstance(frame, Trace | Traced):
                self.queries.tracing.receive(link, frame)
            else:
                await self.promises.receive(link, frame)

    def _link_ready(self, neighbour: NodeId) -> None:
        link = self.links.open.get(neighbour)
        if link is None or link.proven.peer is None:
            return
        self.links.make_ready(neighbour)
        link.send(Standing(self.is_joined.is_set()))
        if any(each.peer.id == neighbour for each in self.config.peers):
            self.carry_out(self.node.peer_up(link.proven.peer, self._loop.time()))
        self.promises.link_ready(neighbour)
        self.entrance.enter()

    # ── What promises ask for (see `promises.Host`) ──

    def deliver(self, raw: bytes) -> Bundle | None:
        """Which durable subscriptions of this broker want an event that its origin has sent; None: not to be told yet."""
        if self.subscribing.resting and self.subscribing.rests(decode_stored(raw).header.type):
            return None
        effects = self.node.deliver_stored(raw, self._loop.time())
        if effects is None:
            return None
        durable_of = self.subscribing.durable_of
        told = [effect for effect in effects if isinstance(effect, Delivery) and effect.subscription in durable_of]
        return [(durable_of[notify.subscription], self._told_bytes(notify)) for notify in told]

    def awaits_keys(self, raw: bytes) -> bool:
        """Whether no event of its type can be opened yet, as this broker has just started and the keys have not come."""
        return self.subscribing.awaits_keys(decode_stored(raw).header.type)

    def bury(self, raw: bytes, only_for: str, why: str) -> None:
        """Put an event that cannot be opened among the dead letters of those that may want it."""
        header = decode_stored(raw).header
        known = self.types.event_type(header.type)
        self.queues.bury_unopened(header, known.name if known else header.type, raw, only_for, why)

    async def take(self, ready: Sequence[tuple[EventId, Bundle]]) -> None:
        """Put events into the durable queues; returns when they are on disk."""
        for _, bundle in ready:
            for durable, told in bundle:
                self.queues.add(durable, told)
        self.publishing.when_on_disk()
        await self.journal.committed()

    def broker_name(self, id: NodeId) -> str:
        """How a broker is called, as far as it is linked; its id otherwise."""
        link = self.links.open.get(id)
        return f"{link.proven.domain}/{link.proven.name}" if link else id

    # ── Effects ──

    def carry_out(self, effects: Iterable[NodeEffect]) -> None:
        """Do what the node asks for."""
        effects = iter(effects)
        for effect in effects:
            match effect:
                case Send(to, message):
                    self.links.send(to, message)
                case Delivery():
                    self._notify(effect)
                case WakeAt(when, token):
                    self._loop.call_at(when, self._wake, token)
                case Count(what, by):
                    self.counts[what] += by
                case Completed(asked, id) | Failed(asked, _, id):
                    self._completed(effect, asked, id)
                case LinkReady(neighbour, _):
                    self._link_ready(neighbour)
                case Rejected(neighbour, why, cut):
                    self._refused(neighbour, why, cut)
                case Ended(subscription, client, why):
                    self._ended(subscription, client, why)
                case KeepKeys(type_id, generation):
                    if not self._keep_keys(type_id, generation):
                        # What rests on it must not leave; members ask again. Only the clock goes on.
                        self.carry_out([later for later in effects if isinstance(later, WakeAt)])
                        return
                case Joined(type):
                    self.subscribing.settle_keys(type)
                    self._loop.call_soon(self.subscribing.take_up_resting)
                case NotJoined(type, why):
                    log.warning("no keys", extra={"type": type, "why": why})
                    self.subscribing.settle_keys(type)
                case Keep():
                    raise AssertionError("only publish asks for keeping")
                case _:
                    assert_never(effect)

    def _keep_keys(self, type_id: bytes, generation: int) -> bool:
        try:
            self.managers.keep(type_id, generation)
        except SetupError as wrong:
            log.error("a key manager's state cannot be written", extra={"why": str(wrong)})
            return False
        return True

    def _notify(self, notify: Delivery) -> None:
        self.counts["notified"] += 1
        durable = self.subscribing.durable_of.get(notify.subscription)
        if durable is not None:
            if notify.event.origin != self.me.id:
                self.promises.came(notify.event, durable, self._told_bytes(notify))
        elif (session := self.connections.sessions.get(notify.client)) is not None:
            session.tell(notify.subscription, self._told_bytes(notify))
        elif (listener := self.listeners.get(notify.client)) is not None:
            listener.tell(notify.subscription, self._told_bytes(notify))

    def _told_bytes(self, notify: Delivery) -> bytes:
        """The event as a client is told of it; many clients are told the same, one after the other."""
        if self._told[0] is not notify.values or self._told[1] != notify.event:
            told = Told(notify.event, notify.type, now_us(), notify.values)
            self._told = (notify.values, notify.event, encode_told(told))
        return self._told[2]

    def _wake(self, token: Any) -> None:
        self.carry_out(self.node.wake(token, self._loop.time()))

    def _completed(self, effect: Completed | Failed, asked: str, id: Any) -> None:
        failed = effect.why if isinstance(effect, Failed) else ""
        if asked == "subscribe":
            self.subscribing.placed(id, failed)
        elif asked == "leave":
            self._gone.set()
        elif asked == "join" and failed:
            log.warning("could not join yet", extra={"why": failed})
            self._loop.call_later(REJOIN_S, self.entrance.enter_again)
        elif asked == "join":
            self.is_joined.set()
            self.entrance.joined()

    def _refused(self, neighbour: NodeId, why: str, cut: bool) -> None:
        self.counts["refused"] += 1
        log.warning("refused what a broker sent", extra={"neighbour": neighbour, "why": why, "cut": cut})
        if cut:
            self.links.cut(neighbour, why)

    def _ended(self, subscription: SubscriptionId, client: str, why: str) -> None:
        if (session := self.connections.sessions.get(client)) is not None:
            session.ended(subscription, why)
        elif (listener := self.listeners.get(client)) is not None:
            listener.ended(why)
        self.subscribing.ended(subscription, why)

    # ── Tasks ──

    def task(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Have something done beside; it ends with the broker at the latest."""
        task: asyncio.Task[Any] = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a task of this broker failed", exc_info=error)
