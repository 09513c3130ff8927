"""A broker: one `Node`, run on real links, a real clock and a real disk.

    a client publishes   node → [Keep, Send, Notify, …]   kept and owed on disk first, then sent, then acknowledged
    bytes come           node → [Send, Notify, …]         sent at once; durable subscribers' notices wait for their number
    a timer rings        node → […]

All of it happens on one event loop. The node itself never waits, reads a clock or touches a socket;
this file carries out what it asks for. Publishers are slowed down when the disk or a link cannot keep up.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import secrets
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, assert_never

import msgspec

from tidings.errors import Denied, InputError, PeerError, SetupError, TidingsError
from tidings.net.capture import Capture
from tidings.net.config import BrokerConfig, host_and_port
from tidings.net.durable import AtRest, DurableQueues
from tidings.net.entrance import Entrance
from tidings.net.frames import Said, Standing, Told, Trace, Traced, encode_told
from tidings.net.gateway import Listener
from tidings.net.gathering import Gathering
from tidings.net.handshake import Participant, shake
from tidings.net.journal import Durable, Journal, OwedEvent
from tidings.net.link import Link
from tidings.net.links import Links
from tidings.net.managers import Managers
from tidings.net.names import now_ms, now_us, read_identity, read_token
from tidings.net.owed import Bundle
from tidings.net.pki import client_context, der, key_and_domain, server_context
from tidings.net.promises import Past, Promises
from tidings.net.queries import Queries
from tidings.net.sessions import Session
from tidings.net.types import KnownType, KnownTypes, read_type
from tidings.node import (
    Ended,
    Joined,
    Keep,
    KeepKeys,
    LinkReady,
    Node,
    NodeEffect,
    NodePolicy,
    Notify,
    NotJoined,
    Refused,
    node_id_of,
    read_kept,
)
from tidings.overlay import (
    Completed,
    Count,
    EventId,
    Failed,
    NodeId,
    Peer,
    Place,
    Send,
    SubscriptionId,
    WakeAt,
    protocol,
)
from tidings.security import from_fingerprint

ROUTINE_S = 1.0
BACK_MS = 2000  # A clock that goes back by more has been set: events sealed before it seem to lie in the future.
MEMORY_EVERY_S = 5.0  # How often what the router remembers is written down, if it has changed.
FORGET_EVERY_S = 30.0
LAPSED_AGAIN_S = 10.0  # How often durable subscriptions without a right are tried again: a clock may have been wrong.
REJOIN_S = 2.0  # After a join that failed.
ROOM_S_MAX = 5.0  # How long publishers wait for one slow link; then it is its own affair.
SLOW_S_MAX = 1.0  # How long everybody waits, once, for one slow client.
DRAIN_S_MAX = 60.0
KEYS_S_MAX = 30.0  # How long a subscription waits for the keys of its type: some askings long.
STABLE_S_MAX = (
    10.0  # How long a subscription waits to be known everywhere before its client is told that it is in place.
)
LIVE_OPTIONS: dict[str, dict[str, Any]] = {"irbr": {"sync_s": 2.0}}
"""What suits a live network better than a simulated one. Brokers that start in the same second may miss what the others
say first, keys among it; they compare their tables often, which costs nothing as long as they agree."""
_DURABLE = "durable:"

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
        self.types = KnownTypes()
        self.counts: Counter[str] = Counter()
        at_rest, queue_max = AtRest(self.identity), config.limits.queue_events_max
        self.queues = DurableQueues(self.journal, at_rest, queue_max, now_us, self.deliver)
        self.queries = Queries(self)
        self.managers = Managers(config)
        self.sessions: dict[str, Session] = {}
        self.listeners: dict[str, Listener] = {}
        self.filling: dict[str, Session] = {}
        self.promises: Promises
        self.is_joined = asyncio.Event()
        self.is_draining = False
        self._gone, self._stopped = asyncio.Event(), asyncio.Event()
        self._draining: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self.entrance = Entrance(self)
        self._durable_of: dict[SubscriptionId, str] = {}
        self._subscription_of: dict[str, SubscriptionId] = {}
        self._waiting: dict[SubscriptionId, asyncio.Future[None]] = {}
        self._keys_settled: set[str] = set()  # Types whose keys have come or been refused; asked, never walked.
        self._keys_came = asyncio.Event()
        self._resting: dict[str, Durable] = {}
        self._lapsed: dict[str, Durable] = {}
        self._told: tuple[Any, EventId | None, bytes] = (None, None, b"")
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._connections = 0
        self._remembered = b""

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
        await self._listen()
        self.entrance.enter()
        self._resting = dict(self.queues.all)
        self._take_up_resting()
        if self.queues.all:
            self.promises.tell(list(self.queues.all.values()))
        for peer in self.config.peers:
            self.links.keep(peer.peer.id)
        for routine in (self._routine, self._keep_memory, self._forget_old, self._take_up_lapsed):
            self._task(routine())
        log.info(
            "listening", extra={"broker": self.config.name, "address": self.address, "overlay": self.protocol.name}
        )

    @property
    def address(self) -> str:
        """Where it listens, with the port it was given where it asked for any."""
        assert self._server is not None
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"{host}:{port}"

    async def _listen(self) -> None:
        config = self.config
        host, port = host_and_port(config.listen, "listen: ")
        context = server_context(config.certificate, config.key, config.trusted)
        self._server = await asyncio.start_server(self._accept, host, port, ssl=context, ssl_handshake_timeout=10.0)

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
        if self._server is not None:
            self._server.close()
        for session in list(self.sessions.values()):
            session.link.close("this broker stops")
        self.promises.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.links.close()
        self.journal.note_meta("router memory", self.node.memory())
        await self.journal.committed()
        self.journal.close()
        self.managers.close()
        self._stopped.set()

    # ── Making ──

    def _make_node(self) -> Node:
        config = self.config
        chance = random.Random(secrets.randbits(64))
        neighbours = tuple(peer.peer for peer in config.peers) if self.protocol.on_graph else ()
        options = {**LIVE_OPTIONS.get(config.overlay, {}), **config.overlay_options}
        inner = self.protocol.build(Place(self.me, neighbours, chance), **options)
        policy = NodePolicy(network_key=from_fingerprint(config.network_key) if config.network_key else None)
        return Node(
            self.me,
            self.protocol,
            self.identity,
            chance=chance,
            random=secrets.token_bytes,
            router=Gathering(inner, self.me),
            policy=policy,
            domain=config.domain,
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
        self._hold_tokens(now)

    def declare(self, known: KnownType, now: float | None = None) -> None:
        """Make a type known to this broker and its clients."""
        self.carry_out(self.node.declare(known.signed or known.event_type, self._loop.time() if now is None else now))
        self.types.add(known)

    # ── Connections ──

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._connections >= self.config.limits.connections_max:
            self.counts["connections refused"] += 1
            writer.transport.abort()
            return
        self._connections += 1
        try:
            await self._serve(reader, writer)
        except (PeerError, Denied, TimeoutError, ConnectionError, OSError) as wrong:
            self.counts["handshakes failed"] += 1
            log.info("a connection was refused", extra={"why": str(wrong)[:200] or type(wrong).__name__})
            writer.close()
        finally:
            self._connections -= 1

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        proven, frames = await shake((reader, writer), self.participant, dialled=False)
        if proven.role == "broker":
            serving = self.links.accept(proven, frames, writer)
            if serving is not None:
                await asyncio.wait([serving])
            return
        link = Link(
            proven,
            frames,
            writer,
            queue_bytes_max=self.config.limits.client_queue_bytes_max,
            silence_s_max=self.config.limits.silence_s_max,
        )
        await self._serve_client(link)

    async def _serve_client(self, link: Link) -> None:
        proven = link.proven
        if sum(s.key == proven.key for s in self.sessions.values()) >= self.config.limits.clients_per_key_max:
            link.close("too many connections of this client")
            return
        name = f"{proven.domain}/{proven.name}/{secrets.token_hex(4)}"
        self.attach(name, proven.key, proven.tokens)
        session = self.sessions[name] = Session(self, link, name)
        try:
            await session.serve()
        except PeerError as wrong:
            self.counts["clients that broke the rules"] += 1
            link.close(str(wrong)[:200])
        finally:
            link.close()
            await link.closed()

    def attach(self, client: str, key: bytes, tokens: Sequence[bytes]) -> None:
        """With the tokens that hold; one that does not is as good as not shown."""
        good = []
        for token in tokens:
            try:
                self.node.attach(client, key, [token], self._loop.time())
                good.append(token)
            except Denied as why:
                log.info("a client's token does not hold", extra={"client": client, "why": str(why)})
        self.carry_out(self.node.attach(client, key, good, self._loop.time()))

    def left(self, session: Session) -> None:
        """A client has gone."""
        self.sessions.pop(session.name, None)
        self.detach(session.name)

    def detach(self, client: str) -> None:
        """A client is no longer here, and its subscriptions end."""
        self.carry_out(self.node.detach(client, self._loop.time(), drop=True))

    async def has_room(self) -> None:
        """Waits while some link's queue is full, for a while: publishers go no faster than events can leave."""
        fullest = self.links.fullest()
        if fullest is not None and fullest.is_half_full:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ROOM_S_MAX):
                    await fullest.drained()
        await self._room_for_local()

    async def _room_for_local(self) -> None:
        while self.filling:
            await self._emptied(self.filling.pop(next(iter(self.filling))))

    async def _emptied(self, session: Session) -> None:
        """Waits for a client that is sent much; one that does not take it is not waited for until it has."""
        try:
            async with asyncio.timeout(SLOW_S_MAX):
                await session.link.drained()
        except TimeoutError:
            session.is_slow = True
            self._task(self._no_longer_slow(session))

    async def _no_longer_slow(self, session: Session) -> None:
        await session.link.drained()
        session.is_slow = False

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
                await self._room_for_local()
                now = self._loop.time()
                self.carry_out(self.node.receive_many([(peer, raw) for raw in frame.messages], now))
                self.links.learn(self.node.introduced())
            elif not self.links.is_ready(peer):
                continue
            elif isinstance(frame, Standing):
                self.entrance.stands(peer, frame.is_joined)
            elif isinstance(frame, Trace | Traced):
                self.queries.receive(link, frame)
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

    # ── What clients ask for ──

    async def publish(
        self, client: str, known: KnownType, events: Sequence[tuple[bytes, dict[str, Any]]]
    ) -> list[EventId]:
        """Publish events; returns when they are on disk, with what is owed for them. As `publish_now`."""
        done: asyncio.Future[list[EventId]] = self._loop.create_future()

        def on_disk(ids: list[EventId]) -> None:
            if not done.done():  # Whoever asked may have gone.
                done.set_result(ids)

        self.publish_now(client, known, events, on_disk)
        return await done

    def publish_now(
        self,
        client: str,
        known: KnownType,
        events: Sequence[tuple[bytes, dict[str, Any]]],
        then: Callable[[list[EventId]], None],
    ) -> None:
        """Publish events; `then` is given their ids when they are on disk, with what is owed for them.

        Each comes with what tells a repetition; one said again keeps its id. Raises as `Node.publish` does;
        nothing has happened then.
        """
        if self.is_draining:
            raise Denied("draining: this broker takes no more events; publish at another")
        if self.journal.is_stuck:  # What came before waits in memory; more must not.
            why = self.journal.stuck_why
            raise SetupError(f"disk: this broker cannot write its journal ({why}); publish again when it can")
        repeats = self.journal.repeats
        new = {key: values for key, values in events if key not in repeats}
        if new:
            ids, effects = self.node.publish_many(client, known.name, list(new.values()), self._loop.time(), keep=True)
            self.counts["published"] += len(ids)
            self._note_down(known, list(new), effects)
        all_ids = [repeats[key] for key, _ in events]
        self.journal.then(lambda: then(all_ids))

    def _note_down(self, known: KnownType, keys: Sequence[bytes], effects: list[NodeEffect]) -> None:
        """Notes what must be on disk, all at once so that events stay in order; the rest is done when it is there."""
        owed: list[tuple[NodeId, OwedEvent]] = []
        later: list[NodeEffect] = []
        names, at_us = iter(keys), now_us()
        for effect in effects:
            match effect:
                case Keep(event, raw):
                    position = self.journal.note_event(event, known.name, at_us, next(names), raw)
                    owed += self.promises.owe(position, event, known.name, at_us, raw)
                    self._queue_own(position, event, known.name, raw)
                case _:
                    later.append(effect)
        self._when_on_disk(owed, later)

    def _queue_own(self, position: int, event: EventId, type: str, raw: bytes) -> None:
        """For durable subscribers of the event's own broker. Not by way of the overlay: it may be busy joining."""
        if not self.queues.count_of[type]:
            return
        bundle = None if self.promises.owes_myself() else self.deliver(raw)
        if bundle is None:  # Their subscriptions wait for keys, or events before this one do.
            self.promises.owe_myself(position, event)
            return
        for durable, told in bundle:
            self.queues.add(durable, told)

    def _when_on_disk(self, owed: Sequence[tuple[NodeId, OwedEvent]] = (), later: Sequence[NodeEffect] = ()) -> None:
        """Have everything that was noted written, and then tell whoever it is for."""
        fresh = self.queues.take_fresh()

        def tell() -> None:
            self.carry_out(later)
            self.promises.committed(owed)
            self.queues.committed(fresh)

        self.journal.then(tell)

    async def subscribe(self, client: str, type: str, condition: str) -> SubscriptionId:
        """Subscribe; returns when the subscription is known wherever it must be, or the time is over."""
        await self._keys_of(type)
        id, effects = self.node.subscribe(client, type, condition, self._loop.time())
        return await self._stable(id, effects, STABLE_S_MAX)

    async def _keys_of(self, type: str) -> None:
        """Waits a while for a sealed type's keys that are neither here nor refused: a broker that has just started."""
        known = self.types.meant(type)
        if known.is_plain or known.name in self._keys_settled:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(KEYS_S_MAX):
                while known.name not in self._keys_settled:
                    await self._keys_came.wait()

    def _settle_keys(self, type: str) -> None:
        self._keys_settled.add(type)
        self._keys_came.set()
        self._keys_came.clear()

    def _stable(
        self, id: SubscriptionId, effects: list[NodeEffect], within_s: float
    ) -> Coroutine[Any, Any, SubscriptionId]:
        waiting = self._waiting[id] = self._loop.create_future()
        self.carry_out(effects)
        return self._wait_for(id, waiting, within_s)

    async def _wait_for(self, id: SubscriptionId, waiting: asyncio.Future[None], within_s: float) -> SubscriptionId:
        if waiting.done():
            waiting.result()  # Raises where it failed.
            return id
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await waiting
        self._waiting.pop(id, None)
        return id

    def unsubscribe(self, id: SubscriptionId) -> None:
        self.carry_out(self.node.unsubscribe(id, self._loop.time()))

    async def subscribe_durable(
        self, owner: bytes, name: str, known: KnownType, condition: str, since_us: int, tokens: Sequence[bytes]
    ) -> Durable:
        """Make or take up a durable subscription; returns when it is on disk and the brokers linked now are told."""
        found = self.queues.find(owner, name)
        if found is not None:
            return self.queues.make(owner, name, known.name, condition, since_us, tokens)
        begins = since_us if since_us >= 0 else now_us()
        await self._keys_of(known.name)
        past = await self.promises.past_of(known.name, condition, since_us) if since_us >= 0 else Past()
        durable = self.queues.make(owner, name, known.name, condition, begins, tokens)
        try:
            stable = self._take_up(durable)
        except TidingsError:
            self.queues.forget(durable)
            raise
        self._queue_past(durable, past)  # Before anything can be published: the past comes first.
        await stable
        self.promises.tell(list(self.queues.all.values()))
        await self.journal.committed()
        return durable

    def _take_up_resting(self) -> None:
        """Take up durable subscriptions of earlier lives; those whose keys have not come are tried again later."""
        for durable in list(self._resting.values()):
            try:
                self._task(self._take_up(durable))
            except TidingsError as wrong:
                if not str(wrong).startswith("key:"):  # Its right has ended; what waits for it stays.
                    log.warning("a durable subscription rests", extra={"durable": durable.name, "why": str(wrong)})
                    self._lapsed[durable.id] = self._resting.pop(durable.id)
            else:
                del self._resting[durable.id]

    def _queue_past(self, durable: Durable, past: Past) -> None:
        for raw in self.promises.all_of(past):
            for id, told in self.deliver(raw) or []:
                if id == durable.id:
                    self.queues.add(id, told)
        self._when_on_disk()

    def _take_up(self, durable: Durable) -> Coroutine[Any, Any, SubscriptionId]:
        """Subscribe at the node for a durable subscription, under its owner's rights."""
        client = _DURABLE + durable.id
        if not self.types.is_plain(durable.type):
            self.queues.sealed.add(durable.id)
        self.attach(client, durable.owner, msgspec.msgpack.decode(durable.tokens, type=tuple[bytes, ...]))
        id, effects = self.node.subscribe(client, durable.type, durable.condition, self._loop.time())
        self._durable_of[id], self._subscription_of[durable.id] = durable.id, id
        return self._stable(id, effects, STABLE_S_MAX)

    async def forget_durable(self, durable: Durable) -> None:
        """Give up a durable subscription for good."""
        self.queues.forget(durable)
        self._lapsed.pop(durable.id, None)
        id = self._subscription_of.pop(durable.id, None)
        if id is not None:
            self._durable_of.pop(id, None)
            self.unsubscribe(id)
        self.promises.tell(list(self.queues.all.values()))
        await self.journal.committed()

    # ── What promises ask for (see `promises.Host`) ──

    def deliver(self, raw: bytes) -> Bundle | None:
        """Which durable subscriptions of this broker want an event that its origin has sent; None: not to be told yet."""
        if self._resting:
            return None
        effects = self.node.tell(raw, self._loop.time())
        if effects is None:
            return None
        told = [effect for effect in effects if isinstance(effect, Notify)]
        return [
            (self._durable_of[n.subscription], self._told_bytes(n)) for n in told if n.subscription in self._durable_of
        ]

    def bury(self, raw: bytes, only_for: str, why: str) -> None:
        """Put an event that cannot be opened among the dead letters of those that may want it."""
        head = read_kept(raw).head
        known = self.types.named(head.type)
        self.queues.bury_unopened(head, known.name if known else head.type, raw, only_for, why)

    async def take(self, ready: Sequence[tuple[EventId, Bundle]]) -> None:
        """Put events into the durable queues; returns when they are on disk."""
        for _, bundle in ready:
            for durable, told in bundle:
                self.queues.add(durable, told)
        self._when_on_disk()
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
                case Notify():
                    self._notify(effect)
                case WakeAt(when, token):
                    self._loop.call_at(when, self._wake, token)
                case Count(what, by):
                    self.counts[what] += by
                case Completed(asked, id) | Failed(asked, _, id):
                    self._completed(effect, asked, id)
                case LinkReady(neighbour, _):
                    self._link_ready(neighbour)
                case Refused(neighbour, why, cut):
                    self._refused(neighbour, why, cut)
                case Ended(subscription, client, why):
                    self._ended(subscription, client, why)
                case KeepKeys(type_id, generation):
                    if not self._keep_keys(type_id, generation):
                        # What rests on it must not leave; members ask again. Only the clock goes on.
                        self.carry_out([later for later in effects if isinstance(later, WakeAt)])
                        return
                case Joined(type):
                    self._settle_keys(type)
                    self._loop.call_soon(self._take_up_resting)
                case NotJoined(type, why):
                    log.warning("no keys", extra={"type": type, "why": why})
                    self._settle_keys(type)
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

    def _notify(self, notify: Notify) -> None:
        self.counts["notified"] += 1
        durable = self._durable_of.get(notify.subscription)
        if durable is not None:
            if notify.event.origin != self.me.id:
                self.promises.came(notify.event, durable, self._told_bytes(notify))
        elif (session := self.sessions.get(notify.client)) is not None:
            session.tell(notify.subscription, self._told_bytes(notify))
        elif (listener := self.listeners.get(notify.client)) is not None:
            listener.tell(notify.subscription, self._told_bytes(notify))

    def _told_bytes(self, notify: Notify) -> bytes:
        """The event as a client is told of it; many clients are told the same, one after the other."""
        if self._told[0] is not notify.values or self._told[1] != notify.event:
            told = Told(notify.event, notify.type, now_us(), notify.values)
            self._told = (notify.values, notify.event, encode_told(told))
        return self._told[2]

    def _wake(self, token: Any) -> None:
        self.carry_out(self.node.wake(token, self._loop.time()))

    def _completed(self, effect: Completed | Failed, asked: str, id: Any) -> None:
        failed = effect.why if isinstance(effect, Failed) else ""
        if asked == "subscribe" and id in self._waiting:
            waiting = self._waiting.pop(id)
            if not waiting.done():
                waiting.set_exception(PeerError(failed)) if failed else waiting.set_result(None)
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
        session = self.sessions.get(client)
        if session is not None:
            session.ended(subscription, why)
        durable = self.queues.all.get(self._durable_of.pop(subscription, ""))
        if durable is not None:
            log.warning("a durable subscription has lost its right", extra={"durable": durable.name, "why": why})
            self._lapsed[durable.id] = durable

    # ── Routine ──

    async def _routine(self) -> None:
        while True:
            self._look_at_the_clock()
            self.entrance.enter()
            self._take_up_resting()
            try:
                revoked = await asyncio.to_thread(self.managers.revocations)
            except SetupError as wrong:  # A registry that is busy, or on a full disk, is asked again.
                log.error("the registry cannot be read", extra={"why": str(wrong)})
            else:
                self.carry_out(self.node.revoke(revoked, self._loop.time()) if revoked else [])
            await asyncio.sleep(ROUTINE_S)

    def _look_at_the_clock(self) -> None:
        now, shown_ms = self._loop.time(), now_ms()
        back_ms = self.node.now_ms(now) - shown_ms
        self.node.clock_is(shown_ms, now)
        if back_ms > BACK_MS:
            log.warning("the clock has gone back", extra={"by_ms": back_ms})
            self._hold_tokens(now)

    def _hold_tokens(self, now: float) -> None:
        """Ask for what this broker's rights open. Who asks again gets a sender id whose moments nobody has used."""
        for file in self.config.tokens:
            self.carry_out(self.node.hold(read_token(file), now))

    async def _take_up_lapsed(self) -> None:
        """What has lost its right gets it back if the right holds again; nobody waits for it."""
        while True:
            await asyncio.sleep(LAPSED_AGAIN_S)
            for durable in list(self._lapsed.values()):
                with contextlib.suppress(TidingsError):
                    self._task(self._take_up(durable))
                    del self._lapsed[durable.id]

    async def _keep_memory(self) -> None:
        while True:
            await asyncio.sleep(MEMORY_EVERY_S)
            memory = self.node.memory()
            if memory != self._remembered:
                self._remembered = memory
                self.journal.note_meta("router memory", memory)
                await self.journal.committed()

    async def _forget_old(self) -> None:
        limits = self.config.limits
        while True:
            await asyncio.sleep(FORGET_EVERY_S)
            before_us = now_us() - int(limits.retention_hours * 3_600_000_000)
            await self.promises.give_up(before_us)
            await self.journal.forget_old(limits.retention_events_max, before_us, limits.dead_letters_max)

    def _task(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a task of this broker failed", exc_info=error)
