"""A broker: one `Node`, run on real links, a real clock and a real disk.

    a client publishes   node → [Keep, Send, Delivery, …]   event and pending deliveries on disk first, then sent, then acknowledged
    bytes arrive         node → [Send, Delivery, …]         sent at once; deliveries to durable subscribers wait for their number
    a timer fires        node → […]

All of it happens on one event loop. The node itself never waits, reads a clock or touches a socket. `Broker` creates the
parts, hands each what it needs, and carries out what the node returns; no part knows the broker.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, assert_never

from tidings import __version__
from tidings.delivery import (
    Ack,
    Announce,
    DeliveryMessage,
    DirectEvents,
    DirectRequest,
    InterestAdvertisement,
    InterestDirectory,
    InterestVersions,
    Nack,
    PeerRates,
    PublishRates,
    Retransmit,
    Rewind,
)
from tidings.errors import Denied, InputError, PeerError, SetupError, TidingsError
from tidings.net.broker.acceptor import Acceptor
from tidings.net.broker.admin import Admin, EventTracer
from tidings.net.broker.bootstrap import Bootstrap
from tidings.net.broker.client_session import ClientServices, ClientSession
from tidings.net.broker.durable_queues import DurableQueues, QueueCipher
from tidings.net.broker.interest_sync import VERSION_META, InterestSync
from tidings.net.broker.journal import SUPERSEDED, TABLES, EventHistory, Journal, parts
from tidings.net.broker.key_managers import KeyManagers
from tidings.net.broker.periodic import (
    BackgroundTasks,
    Maintenance,
    apply_retention,
    save_router_memory,
)
from tidings.net.broker.publish import Backpressure, Publisher
from tidings.net.broker.reliable_receiver import ReliableReceiver
from tidings.net.broker.reliable_sender import ReliableSender
from tidings.net.broker.subscriptions import AttachedClients, BrokerSubscriptions, EventEncoder, notify_of
from tidings.net.clock import now_ms, now_us
from tidings.net.config import BrokerConfig, files_in
from tidings.net.direct_delivery import DirectDelivery
from tidings.net.enrolment.live_files import LiveFiles, renew_when_due
from tidings.net.ids import broker_id, read_identity
from tidings.net.journal_storage.lease import LeaseKeeper
from tidings.net.journal_storage.postgres import PostgresStorage, wait_for_lease
from tidings.net.journal_storage.session import JournalDatabase
from tidings.net.observability.latency import Meters
from tidings.net.observability.metrics import SUBSCRIPTIONS_MAX, BrokerNumbers, SubscriptionLag
from tidings.net.observability.spans import OtlpSink, SpanRecorder
from tidings.net.online_sync import OnlineSync
from tidings.net.revocation_sync import RevocationSync
from tidings.net.transport.capture import Capture
from tidings.net.transport.connection import Link
from tidings.net.transport.copies import CopyProof, check_copy, prove_copy
from tidings.net.transport.frames import (
    AnyFrame,
    JoinStatus,
    OnlineAnswers,
    OverlayMessages,
    RevocationsHeard,
    RevocationSummary,
    SignedRevocations,
    Superseded,
    TraceReply,
    TraceRequest,
)
from tidings.net.transport.handshake import Participant
from tidings.net.transport.peer_links import PeerLinks
from tidings.net.transport.tls import (
    anchors_in,
    authority_keys,
    check_trusted,
    client_context,
    own_certificate,
    validity_der,
)
from tidings.net.type_files import TypeDefinition, read_type
from tidings.node import (
    INTERESTS_MAX,
    BatchDelivery,
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
    memberships_first,
    node_id_of,
)
from tidings.overlay import (
    Completed,
    Count,
    Failed,
    NodeId,
    Peer,
    Send,
    SubscriptionId,
    WakeAt,
    protocol,
)
from tidings.security import from_fingerprint, show_ms

DRAIN_S_MAX = 60.0
ROUTED_AT_ONCE = 64  # Messages of one link; some milliseconds.
TURN_S = 0.05  # What takes longer lets others have their turn.
RIGHTS_AT_ONCE = 8  # Verified in one turn: some milliseconds.
LAST_WORDS_S_MAX = 5.0  # What a broker that stops waits for a database.

log = logging.getLogger("tidings.broker")


class Broker:
    """One running broker. Created by `Broker.start`, ended by `stop` or, with nothing pending, by `drain`."""

    def __init__(self, config: BrokerConfig, database: PostgresStorage | None = None) -> None:
        """`database` holds the journal; without one it is a file in the broker's folder."""
        self.config, limits = config, config.limits
        self.identity = read_identity(config.key)
        self.certificate_der = own_certificate(config.certificate, self.identity.public_key, config.domain, "broker")
        check_trusted(config.certificate, config.trusted)
        self.journal = Journal(database or config.data / "journal.db")
        if by := self.journal.meta(SUPERSEDED):
            self.journal.close()
            raise superseded_by(int.from_bytes(by, "big"))
        self.protocol = protocol(config.overlay)
        self.me = Peer(
            node_id_of(self.identity.public_key), config.advertise or config.listen, self.journal.incarnation
        )
        self.meters = Meters()
        self.counts = self.meters.counts
        self._loop = asyncio.get_running_loop()
        self._tasks = BackgroundTasks()
        self._left, self._stopped = asyncio.Event(), asyncio.Event()
        self._draining: asyncio.Task[None] | None = None
        self.superseded: Denied | None = None
        """Why this broker has stopped, if another has taken its place: one restored from its backup, or with its lease."""
        self._marks_due = False  # Whether sealed events went to live subscribers that the journal has not noted.
        self.node = self._make_node()
        self.me = self.node.me  # With its seal, so that others may pass it on.
        self.types = self.node.types
        self._know_own_keys()
        self._participant = Participant(
            self.identity,
            self.certificate_der,
            config.domain,
            config.name,
            "broker",
            (),
            tuple(anchors_in(config.trusted)),
            self.me,
            self.protocol.full_name(config.overlay_options),
            prove_copy(self.identity, self.journal.copy),
        )
        self.links = self._make_links()
        self.managers = KeyManagers(config, database)
        self._database = database
        self.revocations = RevocationSync(
            self.links, self.managers, self._tasks, owners=self._owners, revoke=self._revoke
        )
        services = [read_identity(file) for file in config.manages] if config.acs is not None else []
        if config.acs is not None and not services:
            raise InputError("acs: answers are signed by a key manager; name its key in `manages`")
        self.online = OnlineSync(
            self.links, self._tasks, config.acs, services, heard=self._online_services, confirm=self._confirm_online
        )
        self._make_delivery()
        self.backpressure = Backpressure(
            self.links,
            self._tasks,
            link_wait_s_max=limits.link_wait_s_max,
            client_wait_s_max=limits.client_wait_s_max,
        )
        self.spans = self._make_spans()
        rates = self._make_rates()
        self.services = ClientServices(
            self.types, self.publisher, self.subscriptions, self.queues, self.backpressure, rates, self.spans
        )
        shown = self.subscriptions.client_name
        self.tracer = EventTracer(self.node, self.links, self._tasks, config.name, config.domain, shown)
        self.admin = Admin(
            self.tracer,
            self.queues,
            self.types,
            status=self.status,
            subscriptions=self.subscriptions,
            drain=self.drain_soon,
            live=self._live_subscriptions,
            heard_by=self.revocations.heard_by,
        )
        self._acceptor = Acceptor(config, self._participant, self.links, self.clients, self._new_session, self.counts)
        self._bootstrap = Bootstrap(
            self.node,
            self.links,
            [peer.id for peer in self._configured_peers()],
            self.carry_out,
            on_graph=self.protocol.on_graph,
            router_memory=self.journal.meta("router memory"),
            alone_after_s=limits.alone_after_s,
        )
        self._files = LiveFiles(config, self.links, self._acceptor)
        also = (self._reload, self._bootstrap.try_join, self.subscriptions.resume_suspended)
        self._maintenance = Maintenance(
            self.node,
            self.carry_out,
            self.managers,
            config.tokens,
            self._declare_new,
            also,
            self.revocations.take_own,
        )

    # ── Parts ──

    def _know_own_keys(self) -> None:
        """A name that another organisation has given to a type of its own still means ours."""
        trusted = authority_keys(self.config.trusted)
        self.types.own_keys = frozenset(trusted.get(self.config.domain, ()))
        self._trusted_keys = [key for keys in trusted.values() for key in keys]

    def _make_node(self) -> Node:
        config = self.config
        rng = random.Random(secrets.randbits(64))
        neighbours = tuple(self._configured_peers()) if self.protocol.on_graph else ()
        options = {**self.protocol.live_options, **config.overlay_options}
        for option in self.protocol.options_naming_nodes:
            if option in options:
                options[option] = [self._node_named(each, option) for each in options[option]]
        policy = NodePolicy(
            network_key=from_fingerprint(config.network_key) if config.network_key else None,
            interests_max=INTERESTS_MAX,
            key_retry_s=config.limits.key_retry_s,
            signing="batch",
            need_signatures=True,
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

    def _configured_peers(self) -> list[Peer]:
        """Each once, by its first address; not this broker itself, another process of which may be among them."""
        first: dict[NodeId, Peer] = {}
        for each in self.config.peers:
            first.setdefault(each.peer.id, each.peer)
        first.pop(self.me.id, None)
        return list(first.values())

    def _node_named(self, named: object, option: str) -> NodeId:
        """The node id of a broker named by its address, its key or its id; raises InputError for an unknown address."""
        config = self.config
        if str(named).startswith("ed25519:"):
            return broker_id(from_fingerprint(str(named)))
        if ":" not in str(named):
            return str(named)
        if named in (config.listen, config.advertise):
            return self.me.id
        for peer in config.peers:
            if peer.address == named:
                return peer.peer.id
        raise InputError(
            f"[overlay] {option}: no [[peer]] has the address {str(named)[:100]!r}; name it by its key instead"
        )

    def _make_links(self) -> PeerLinks:
        config = self.config
        context = client_context(config.certificate, config.key, config.trusted)
        capture = Capture(config.capture) if config.capture is not None else None
        return PeerLinks(self._participant, context, config.limits, self, capture)

    def _make_rates(self) -> PublishRates:
        limits, counts = self.config.limits, self.counts
        self._peer_rates = PeerRates(limits.peer_messages_per_s, limits.burst_s, counts)
        return PublishRates(limits.client_events_per_s, limits.organisation_events_per_s, limits.burst_s, counts)

    def _make_delivery(self) -> None:
        """The way of an event to its subscribers: durable queues, reliable delivery between brokers, live subscriptions."""
        journal, limits = self.journal, self.config.limits
        self.queues = DurableQueues(
            journal,
            QueueCipher(self.identity),
            limits.queue_events_max,
            now_us,
            self.meters.delivery,
            of_client_max=limits.durables_per_client_max,
            count_max=limits.durables_max,
        )
        self.history = EventHistory(journal, self.types.event_type, self.node.events_in)
        self.clients = AttachedClients(self.node, self.carry_out, lambda key: key in self.managers.removed)
        self._encoder = EventEncoder()
        self.subscriptions = BrokerSubscriptions(
            self.node,
            self.types,
            self.queues,
            self.history,
            self.clients,
            self._encoder,
            self.carry_out,
            self._tasks,
        )
        self.receiver = ReliableReceiver(
            journal,
            self.links,
            self.queues,
            self.subscriptions,
            self._tasks,
            unreadable_s_max=limits.unreadable_s_max,
        )
        version = int.from_bytes(journal.meta(VERSION_META) or b"\0", "big")
        directory = InterestDirectory(
            self.me,
            self.identity,
            self.types.event_type,
            node_id_of,
            lambda key, rights: self.node.admit_debtor(key, rights, self._loop.time()),
            version=version,
        )
        self.sender = ReliableSender(
            self.me.id,
            journal,
            self.links,
            directory,
            self.receiver,
            self._tasks,
            lambda broker, name: self.node.may_receive(broker, name, self._loop.time()),
        )
        self.interest = InterestSync(
            directory, journal, self.links, self.history, self.sender, self._tasks, self.node.neighbours.shown
        )
        self.subscriptions.advertise = self.interest.advertise
        self._make_direct(directory)
        self.publisher = Publisher(
            self.node,
            journal,
            self.sender,
            self.history,
            self.queues,
            self.subscriptions,
            self.meters,
            self.carry_out,
        )
        self.publisher.deliver_rows = self._notify_rows
        self.publisher.published = self.direct.published

    def _make_direct(self, directory: InterestDirectory) -> None:
        """The way round the overlay for live subscriptions and messages about keys."""
        rng, checks = random.Random(secrets.randbits(64)), self.config.limits.spot_checks
        self.direct = DirectDelivery(self.node, self.links, directory, self.history, self._tasks, rng, checks=checks)
        self.direct.carry_out, self.direct.advertise = self.carry_out, self.interest.advertise_live
        self.interest.live_types_added = self.direct.live_types_added
        self.direct.is_live = lambda delivery: delivery.subscription not in self.subscriptions.durable_of

    def _make_spans(self) -> SpanRecorder | None:
        config = self.config
        if not config.traces:
            return None
        sink = OtlpSink(config.traces, {"service.namespace": config.domain, "service.instance.id": config.name})
        spans = SpanRecorder(self.me.id, sink, self.types.display_name, ratio=config.traces_ratio)
        self.node.watch(spans)
        self.publisher.spans = spans
        return spans

    def _new_session(self, link: Link, name: str) -> ClientSession:
        return ClientSession(link, name, self.services, self.admin.named)

    # ── Start ──

    @classmethod
    async def start(cls, config: BrokerConfig, waiting: Callable[[str], None] | None = None) -> Broker:
        """A broker that listens, has restored its durable subscriptions, and is about to join the overlay.

        With its journal in a database it waits until no other process holds the lease; `waiting` is called with why.
        """
        database = await _database_of(config, waiting or _log_waiting) if config.journal else None
        try:
            broker = cls(config, database)
        except BaseException:
            if database is not None:
                database.close()
            raise
        try:
            await broker._start()
        except BaseException:
            broker.journal.close()
            raise
        return broker

    async def _start(self) -> None:
        self._started_at = now = self._loop.time()
        if self._database is not None:
            self._heed_the_lease(self._database.keeper)
        self.node.clock_is(now_ms(), now)
        self._declare_types(now)
        self.links.configure(peer.peer for peer in self.config.peers)
        self.interest.start()
        self.revocations.start()
        self.online.start()
        self.sender.start()
        self.receiver.start()
        self.direct.start()
        await self._acceptor.listen()
        self._bootstrap.try_join()
        self.subscriptions.restore()
        for peer in self.config.peers:
            self.links.keep(peer.peer.id)
        for work in (
            self._maintenance.run(),
            save_router_memory(self.node, self.journal),
            apply_retention(self.sender, self.journal, self.config.limits),
            self.subscriptions.retry_lapsed(self.config.limits.lapsed_retry_s),
            *([renew_when_due(self.config.certificate, "broker")] if self.config.enrolment else []),
            *([self.spans.run()] if self.spans is not None else []),
        ):
            self._tasks.start(work)
        log.info(
            "listening", extra={"broker": self.config.name, "address": self.address, "overlay": self.protocol.name}
        )

    def _declare_types(self, now: float) -> None:
        for known in [*map(read_type, files_in(self.config.types, ".type")), *self.managers.new_types()]:
            self.declare(known, now)
        self._maintenance.revoke(self.managers.revocations())
        self._host_managers(now)
        self._maintenance.present_tokens(now)

    def _host_managers(self, now: float) -> None:
        for manager in self.managers.hosted([known.signed for known in self.types.all() if known.signed]):
            self.carry_out(self.node.host(manager, now))

    def _declare_new(self, types: Iterable[TypeDefinition]) -> None:
        """The registry has changed: types that are new are used at once, and clients that were removed are no more."""
        now = self._loop.time()
        self._acceptor.close_removed(self.managers.removed)
        for known in types:
            if self.types.get(known.name) is None:
                self.declare(known, now)
        self._host_managers(now)
        self._maintenance.present_new_tokens(now)

    def _reload(self) -> None:
        """Uses files that were replaced: a new certificate, other authorities, peers or rights."""
        if not self._files.changed():
            return
        try:
            self._participant = self._files.apply(self._participant)
            self.certificate_der = self._participant.certificate_der
            self._know_own_keys()
            for known in map(read_type, files_in(self.config.types, ".type")):
                if self.types.get(known.name) is None:
                    self.declare(known)
            self._maintenance.present_new_tokens(self._loop.time())
        except (TidingsError, OSError) as wrong:
            log.error("changed files cannot be used", extra={"why": str(wrong)})

    def declare(self, known: TypeDefinition, now: float | None = None) -> None:
        """Makes a type known to this broker and its clients."""
        now = self._loop.time() if now is None else now
        self.carry_out(self.node.declare(known.signed or known.event_type, now))
        if known.signed is not None:
            self.node.restore_accepted(name := known.signed.type_id.hex(), self.journal.seen(name), now)

    # ── Stop ──

    async def drain(self) -> None:
        """Refuses new events, waits until every broker has acknowledged everything, leaves the overlay, and stops."""
        self.publisher.is_draining = True
        try:
            async with asyncio.timeout(DRAIN_S_MAX):
                await self.sender.all_acked()
                self.carry_out(self.node.leave(self._loop.time()))
                await self._left.wait()
        except TimeoutError:
            log.warning("stops with events that are not acknowledged; they stay in its folder")
        finally:
            await self.stop()

    def drain_soon(self) -> None:
        """Begins to drain; `ended` returns when that is done."""
        if not self.is_draining:
            self.publisher.is_draining = True
            self._draining = self._loop.create_task(self.drain())

    def _stop_for(self, by: CopyProof) -> None:
        """Another copy of this broker has been restored since: stops, for good. Raises PeerError without a proof."""
        if by.number <= self.journal.copy:
            raise PeerError("message: an earlier copy cannot take the place of a later one")
        check_copy(self.identity.public_key, by)
        if self.superseded is None:
            self.superseded = superseded_by(by.number)
            log.error("this broker stops", extra={"why": str(self.superseded)})
            self.journal.note_meta(SUPERSEDED, by.number.to_bytes(8, "big"))
            self.publisher.is_draining = True
            self._draining = self._loop.create_task(self.stop())

    def _heed_the_lease(self, keeper: LeaseKeeper) -> None:
        """Another thread renews the lease; what follows from it is done here."""
        keeper.on_lost = lambda lost: self._in_loop(self._stop_superseded, lost)
        keeper.on_doubt = lambda: self._in_loop(self._send_clients_away)
        if keeper.lost is not None:
            self._stop_superseded(keeper.lost)

    def _in_loop(self, do: Callable[..., None], *arguments: Any) -> None:
        with contextlib.suppress(RuntimeError):  # It has just ended.
            self._loop.call_soon_threadsafe(do, *arguments)

    def _stop_superseded(self, lost: Denied) -> None:
        """Another process has this broker's lease: stops, without a word to the journal."""
        if self.superseded is None:
            self.superseded = lost
            log.error("this broker stops", extra={"why": str(lost)})
            self.publisher.is_draining = True
            self._draining = self._loop.create_task(self.stop())

    def _send_clients_away(self) -> None:
        """Another process may have taken over: clients that know its address find out. Others come back here.

        Again and again as long as the lease cannot be renewed: the other one may have begun to listen since.
        """
        self._acceptor.close_sessions("this broker cannot reach its database; another process may have taken over")

    async def ended(self) -> None:
        """Waits until the broker has stopped."""
        await self._stopped.wait()

    async def stop(self) -> None:
        """Closes all connections and the journal. The next start takes up what is on disk."""
        self._acceptor.close()
        await self._tasks.cancel()
        await self.links.close()
        await self._acceptor.closed()
        await self._write_last()
        self.journal.close()
        self.managers.close()
        if self.spans is not None:
            await self.spans.close()
        self._stopped.set()

    async def _write_last(self) -> None:
        if self._database is not None and self._database.keeper.lost is not None:
            return  # The journal is another's.
        self._note_accepted()
        self.journal.note_meta("router memory", self.node.memory())
        committed = asyncio.ensure_future(self.journal.committed())
        # A database may stay away for longer than anybody waits; what it has not taken was not acknowledged.
        await asyncio.wait([committed], timeout=LAST_WORDS_S_MAX if self._database is not None else None)
        committed.cancel()

    # ── State ──

    @property
    def address(self) -> str:
        """Where it listens, with the actual port where the configuration says 0."""
        return self._acceptor.address

    @property
    def is_joined(self) -> asyncio.Event:
        """Set once the broker has joined the overlay."""
        return self._bootstrap.is_joined

    @property
    def is_draining(self) -> bool:
        return self.publisher.is_draining

    def status(self) -> dict[str, Any]:
        """The state of the broker, as JSON would have it; it contains no secrets."""
        owed = self.sender.pending()
        now = self.node.status(self._loop.time())
        return {
            "broker": self.config.name,
            "domain": self.config.domain,
            "address": self.address,
            "joined": self.is_joined.is_set(),
            "draining": self.is_draining,
            "stuck": self.journal.is_stuck,
            "stuck_why": self.journal.stuck_why,
            "version": __version__,
            "uptime_s": round(self._loop.time() - self._started_at, 3),
            **self.journal.disk_usage(),
            **self._journal_status(),
            "linked": [
                {
                    "id": id,
                    "name": str(link.proven),
                    "address": _address(link),
                    "queued": link.queued_bytes,
                    "silent_s": round(link.silent_s, 1),
                    "owed": owed.get(id, 0),
                    "speaks": link.proven.version,
                }
                for id, link in self.links.open.items()
            ],
            "unlinked": self.links.unlinked(),
            "connected": [
                {"client": s.name, "published": s.published, "told": s.delivered, "lost": s.lost}
                for s in self._acceptor.sessions.values()
            ],
            "durables": len(self.queues.all),
            "waiting": self.queues.waiting(),
            "oldest_s": round(self.queues.oldest_s(), 1),
            "owed": owed,
            "certificate_ends_ms": int(validity_der(self.certificate_der)[1].timestamp() * 1000),
            **self.receiver.inbox.holdings(),
            **self.direct.holdings(),
            "counts": dict(self.counts),
            **now,
            "map": {**now["map"], "trees": self._named_trees(now["map"]["trees"])},
        }

    def _journal_status(self) -> dict[str, Any]:
        lease = self.journal.storage.lease()
        if lease is None:
            return {"journal": "file"}
        return {
            "journal": self.journal.storage.where,
            "lease": {
                "role": "lost" if self.superseded is not None else "active",
                "epoch": lease.epoch,
                "holder": lease.holder,
                "renewed_s_ago": round(lease.renewed_s_ago, 3),
                "lease_s": lease.lease_s,
                "standbys": list(lease.standbys),
            },
        }

    def _live_subscriptions(self, key: bytes) -> list[dict[str, Any]]:
        mine = {name for name, session in self._acceptor.sessions.items() if session.key == key}
        return [
            {"name": "", "type": self.types.display_name(one.type), "condition": str(one.condition), "durable": False}
            for one in self.node.subscriptions()
            if one.client in mine and one.id not in self.subscriptions.durable_of
        ]

    def _named_trees(self, trees: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Trees of the types that this broker knows, as its clients do; of others nobody here learns the names."""
        shown = []
        for tree in trees:
            event_type = self.types.event_type(tree["type"])
            if event_type is not None:
                shown.append({**tree, "type": event_type.name})
            elif not tree["type"]:
                shown.append(dict(tree))
        return shown

    def numbers(self) -> BrokerNumbers:
        """What the metrics show."""
        held = {**self.node.holdings(), **self.receiver.inbox.holdings(), **self.direct.holdings()}
        return BrokerNumbers(
            meters=self.meters,
            overlay=self.protocol.name,
            is_joined=self.is_joined.is_set(),
            is_draining=self.is_draining,
            clients=len(self._acceptor.sessions),
            links=len(self.links.open),
            pending=self.sender.pending_count(),
            durables=len(self.queues.all),
            waiting=self.queues.waiting(),
            lags=[
                SubscriptionLag(durable.id, durable.name, self.types.display_name(durable.type), events, age_s)
                for durable, events, age_s in self.queues.lags(SUBSCRIPTIONS_MAX)
            ],
            key_epochs={
                (known["name"], group): max(epochs)
                for known in (each.status() for each in self.types.all())
                for group, epochs in known["epochs"].items()
                if epochs
            },
            certificate_ends_s=validity_der(self.certificate_der)[1].timestamp(),
            disk=self.journal.disk_usage(),
            lease=self.journal.storage.lease(),
            lost_messages=self.links.lost_messages,
            journal_groups=self.journal.committed_groups,
            is_journal_stuck=self.journal.is_stuck,
            holdings={what: amount for what, (amount, _) in held.items()},
        )

    # ── Links (see `peer_links.LinkOwner`) ──

    def link_is_up(self, link: Link, peer: Peer, *, dialled: bool) -> None:
        theirs = link.certificate_der
        self.carry_out(
            self.node.link_up(peer, self._loop.time(), my_cert=self.certificate_der, their_cert=theirs, dialled=dialled)
        )

    def link_is_down(self, peer: NodeId) -> None:
        now = self._loop.time()
        self._bootstrap.link_down(peer)
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
        peer, turn = link.proven.id, self._loop.time()
        async for frame in link.frames("broker"):
            if self._loop.time() - turn > TURN_S:
                await asyncio.sleep(0)
                turn = self._loop.time()
            if self.links.open.get(peer) is not link:
                return  # Replaced by another connection, whose handshake this one must not disturb.
            if isinstance(frame, OverlayMessages):
                if self.backpressure.has_filling:
                    await self.backpressure.wait_for_clients()
                await self._slow_down(link, len(frame.messages))
                await self._route(link, frame.messages)
            elif isinstance(frame, Superseded):
                self._stop_for(frame.by)
            elif not self.links.is_ready(peer):
                continue
            elif isinstance(frame, DeliveryMessage):
                if isinstance(frame, DirectEvents):
                    await self._slow_down(link, len(frame.events))
                elif isinstance(frame, InterestAdvertisement):
                    await self._verify_ahead(frame)
                self.receive_delivery(link, frame)
            else:
                self._receive(link, frame)

    async def _route(self, link: Link, messages: Sequence[bytes]) -> None:
        """Has the node take messages. Where they take long, other links and clients have their turn in between."""
        peer, begun, taken = link.proven.id, self._loop.time(), 0
        while taken < len(messages):
            now, start, effects = self._loop.time(), taken, list[NodeEffect]()
            for raw in messages[start : start + ROUTED_AT_ONCE]:
                effects += self.node.receive_many([(peer, raw)], now)
                taken += 1
                if self._loop.time() - now > TURN_S:
                    break  # One alone may be hundreds of chains of signatures.
            self.carry_out(effects)
            done = self._loop.time()
            self.meters.route.observe(done - begun, taken - start)
            if done - now > TURN_S:
                await asyncio.sleep(0)
                if self.links.open.get(peer) is not link:
                    return
        self.links.learn(self.node.introduced())

    async def _verify_ahead(self, advertisement: InterestAdvertisement) -> None:
        """Verifies the rights that an advertisement shows, some at a time, with other work in between.

        Its own check finds them verified. Of whom shows no membership, nothing else is looked at there.
        """
        shown, verify = memberships_first(advertisement.rights), self.node.neighbours.verify
        for some in parts(shown, RIGHTS_AT_ONCE):
            found = 0
            for type_id, token in some:
                with contextlib.suppress(Denied):
                    verify(type_id, token)
                    found += 1
            await asyncio.sleep(0)
            if not found:
                return

    async def _slow_down(self, link: Link, messages: int) -> None:
        """Waits where the brokers of an organisation send more than they may."""
        if pause_s := self._peer_rates.pause_s(link.proven.domain, messages, self._loop.time()):
            await asyncio.sleep(pause_s)

    def receive_delivery(self, link: Link, message: DeliveryMessage) -> None:
        """A message of the reliable-delivery protocol; raises PeerError for what the sender must not send."""
        match message:
            case Announce():
                self.receiver.receive_announce(link.proven.id, message)
            case Retransmit():
                self.receiver.receive_retransmit(link.proven.id, message)
            case Ack(acked):
                self.sender.receive_ack(link.proven.id, acked)
            case Nack():
                self.sender.receive_nack(link, message)
            case Rewind():
                self.sender.receive_rewind(link.proven.id, message)
            case InterestVersions():
                self.interest.receive_versions(link, message)
            case InterestAdvertisement():
                self.interest.receive_advertisement(link, message)
            case DirectEvents():
                self.direct.receive(link, message)
            case DirectRequest():
                self.direct.receive_request(link, message)

    def _receive(self, link: Link, frame: AnyFrame) -> None:
        match frame:
            case JoinStatus(is_joined):
                self._bootstrap.receive_status(link.proven.id, is_joined)
            case TraceRequest() | TraceReply():
                self.tracer.receive(link, frame)
            case SignedRevocations() | RevocationSummary() | RevocationsHeard() | OnlineAnswers():
                self._receive_about_rights(link, frame)
            case _:
                raise PeerError(f"frame: {type(frame).__name__} is not a frame between brokers")

    def _receive_about_rights(
        self, link: Link, frame: SignedRevocations | RevocationSummary | RevocationsHeard | OnlineAnswers
    ) -> None:
        try:
            if isinstance(frame, OnlineAnswers):
                self.online.receive(link, frame)
            else:
                self.revocations.receive(link, frame)
        except PeerError as wrong:
            self._refused(link.proven.id, str(wrong), cut=True)

    def _owners(self) -> list[bytes]:
        """Whose rights this broker uses, or passes revocations of on."""
        network = self.node.policy.network_key
        return [*self.types.owners(), *self._trusted_keys, *([network] if network is not None else [])]

    def _online_services(self) -> set[bytes]:
        signed = [known.signed for known in self.types.all() if known.signed is not None]
        return {key for each in signed for key in (each.owner_key, each.key_manager)}

    def _confirm_online(self, tests: Sequence[str], at_ms: int) -> None:
        self.carry_out(self.node.online_answers(tests, at_ms, self._loop.time()))

    def _revoke(self, ids: Sequence[str]) -> None:
        self.carry_out(self.node.revoke(ids, self._loop.time()))

    def _link_ready(self, neighbour: NodeId) -> None:
        link = self.links.open.get(neighbour)
        if link is None or link.proven.peer is None:
            return
        self.links.make_ready(neighbour)
        link.send(JoinStatus(self.is_joined.is_set()))
        if self.protocol.on_graph and any(each.peer.id == neighbour for each in self.config.peers):
            self.carry_out(self.node.peer_up(link.proven.peer, self._loop.time()))
        self.revocations.link_ready(link)
        self.online.link_ready(link)
        self.interest.send_versions(link)
        self.receiver.link_ready(neighbour)
        self.sender.link_ready(neighbour)
        self.direct.link_ready(link)
        self._bootstrap.try_join()

    # ── Effects ──

    def carry_out(self, effects: Iterable[NodeEffect]) -> None:
        """Carries out what the node returns."""
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
                        # Nothing that depends on this state may leave; members ask again. Only timers are set.
                        self.carry_out([later for later in effects if isinstance(later, WakeAt)])
                        return
                case Direct(type, raw):
                    self.direct.publish_control(type, raw)
                case Joined(type):
                    self.subscriptions.settle_keys(type)
                    self._loop.call_soon(self.subscriptions.resume_suspended)
                case NotJoined(type, why):
                    log.warning("no keys", extra={"type": self.types.display_name(type), "why": why})
                    self.subscriptions.settle_keys(type)
                case Keep():
                    raise AssertionError("only publish returns Keep")
                case _:
                    assert_never(effect)

    def _keep_keys(self, type_id: bytes, generation: int) -> bool:
        try:
            self.managers.keep(type_id, generation)
        except (SetupError, Denied) as wrong:  # Denied: a restored copy of this manager has gone on.
            log.error("a key manager's state cannot be written", extra={"why": str(wrong)})
            return False
        return True

    def _notify(self, notify: Delivery) -> None:
        self.counts["notified"] += 1
        durable = self.subscriptions.durable_of.get(notify.subscription)
        if durable is not None:
            if notify.event.origin != self.me.id:
                self.receiver.receive_from_overlay(notify.event, durable, self._encoder.encode(notify))
        elif (recipient := self.clients.recipients.get(notify.client)) is not None:
            recipient.deliver(notify.subscription, self._encoder.encode(notify))
            self._note_accepted_soon()

    def _notify_rows(self, delivery: BatchDelivery) -> None:
        """Events of a batch for the live subscriptions of one client."""
        self.counts["notified"] += len(delivery.rows)
        recipient = self.clients.recipients.get(delivery.client)
        if recipient is None:
            return
        self._note_accepted_soon()
        if recipient.deliver_rows(delivery):
            return
        for row, subscription in zip(delivery.rows, delivery.subscriptions, strict=True):
            recipient.deliver(subscription, self._encoder.encode(notify_of(delivery, row, subscription)))

    def _note_accepted_soon(self) -> None:
        if not self._marks_due:
            self._marks_due = True
            self._loop.call_soon(self._note_accepted)

    def _note_accepted(self) -> None:
        """Notes how far live subscribers were sent each sender's sealed events: a restart does not send them again.

        What a kill keeps from the disk, some milliseconds, may be sent again by whoever kept it.
        """
        self._marks_due = False
        for type, sender, moment in self.node.accepted():
            self.journal.note_seen(type, sender, moment)

    def _wake(self, token: Any) -> None:
        self.carry_out(self.node.wake(token, self._loop.time()))

    def _completed(self, effect: Completed | Failed, asked: str, id: Any) -> None:
        failed = effect.why if isinstance(effect, Failed) else ""
        if asked == "subscribe":
            self.subscriptions.placed(id, failed)
        elif asked == "leave":
            self._left.set()
        elif asked == "join":
            self._bootstrap.completed(failed)

    def _refused(self, neighbour: NodeId, why: str, cut: bool) -> None:
        self.counts["refused"] += 1
        log.warning("refused what a broker sent", extra={"neighbour": neighbour, "why": why, "cut": cut})
        if cut:
            self.links.cut(neighbour, why)

    def _ended(self, subscription: SubscriptionId, client: str, why: str) -> None:
        if (recipient := self.clients.recipients.get(client)) is not None:
            recipient.end(subscription, why)
        self.subscriptions.ended(subscription, why)


async def _database_of(config: BrokerConfig, waiting: Callable[[str], None]) -> PostgresStorage:
    """The database of a broker's journal, once this process holds its lease."""
    database = JournalDatabase.of(config.journal, config.name, config.journal_password)
    broker = config.name, node_id_of(read_identity(config.key).public_key)
    shown = config.advertise or config.listen
    return await wait_for_lease(database, broker, config.limits.lease_s, TABLES, waiting, shown)


def _log_waiting(why: str) -> None:
    log.warning("waits for its journal", extra={"why": why})


def superseded_by(copy_ms: int) -> Denied:
    """Why an earlier copy of a broker does not run."""
    return Denied(
        f"superseded: this broker was restored from a backup at {show_ms(copy_ms)}, and that copy has taken its place; "
        "use that one, or create another broker with `tidings broker create`"
    )


def _address(link: Link) -> str:
    return link.proven.peer.address if link.proven.peer is not None else ""
