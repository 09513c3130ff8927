"""`Node`: one participant without I/O, a facade over the parts of this package.

Input comes in by methods, with the moment `now` (seconds, never backwards). Output is a list of effects, for the
driver to carry out in order. A live broker and the simulator run the same class.

    client publishes  → rights checked, sealed      (outbound)   → router → Send, Delivery
    frame comes in    → decoded, opened             (inbound)    → router → Send, Delivery
    frame goes out    → `frame_for`                 (outbound)

The driver calls `frame_for` when it writes the bytes, not when the effect is made: a right that ended in between no
longer counts. It sets the wall clock with `clock_is`; rights, epochs and freshness go by that clock.

The parts return effects and never call each other's methods through the node. `_carry_out` is the one place that looks
at them: it passes on those for the driver, and turns the others (deliver this packet, publish this control message,
subscribe to that control type) into calls of the next part.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from tidings.errors import Denied, ErrorCode, InputError, PeerError
from tidings.events import EventType
from tidings.node.client_authorization import ClientAuthorization
from tidings.node.credentials import NOTHING, Credentials, RevocationState, node_id_of, organisation_of
from tidings.node.effects import (
    BatchIds,
    Delivery,
    Direct,
    Ended,
    Joined,
    Keep,
    NodeEffect,
    NotJoined,
    PublishedBatch,
    Rejected,
)
from tidings.node.inbound import Inbound
from tidings.node.key_distribution import (
    ASK_AGAIN_S,
    CODEC,
    KeyDistribution,
    KeyEffect,
    PublishControl,
    SubscribeControl,
)
from tidings.node.local_delivery import (
    WAITING_MAX,
    WAITS_FOR_PUBLISHER,
    LocalDelivery,
    LocalSubscription,
    LocalSubscriptions,
)
from tidings.node.neighbours import (
    PROOFS_MAX,
    LinkAck,
    LinkCreds,
    LinkHello,
    LinkMembers,
    LinkRevoke,
    LinkStrangers,
    NeighbourTable,
    Shown,
)
from tidings.node.outbound import COUNT_BITS, Outbound, decode_stored, decode_stored_batch, encode_stored
from tidings.node.subscriptions import ClientSubscriptions, InterestSummary
from tidings.node.trace_log import TraceHop, TraceLog, TraceObserver
from tidings.node.trust_boundary import CacheTrustPolicy, TrustBoundary
from tidings.node.type_crypto import TypeCrypto, UnknownPublisher
from tidings.node.type_registry import CONTROL, RegisteredType, TypeRegistry
from tidings.overlay import (
    Codec,
    Completed,
    Count,
    Deliver,
    Effect,
    EventId,
    Failed,
    Message,
    NodeId,
    OriginSeals,
    Packet,
    Peer,
    Place,
    Protocol,
    Router,
    SeenIds,
    Send,
    SubscriptionId,
    Token,
    UnknownSpeaker,
    WakeAt,
    speakers_in,
)
from tidings.security import (
    ANY_TYPE,
    DELAY_MS,
    Identity,
    KeyManager,
    Mode,
    RandomBytes,
    SignedType,
    Signing,
    UnknownEpoch,
    verify_signature,
)

if TYPE_CHECKING:
    import pyarrow as pa

FRAME_SLACK_BYTES = 64  # Of the frame around a message with proofs.
STRANGERS_MAX = 256  # Members whose proofs are asked for at once.
COUNT_MASK = (1 << COUNT_BITS) - 1
BATCHES_MAX = 1024  # Own ones whose ids are remembered: some megabytes, and as many events as routers remember.
TO_SELF_MAX = 4096  # Messages of a router to its own node that are not delivered yet.
RETRY_S = 5.0  # After the overlay refused an interest that the node itself needs.
RENEW_S = 5.0  # From new keys to filters sealed with them: less than the grace period after which the keys start.
ROUTINE_S = 10.0  # Between two checks for expired rights and keys.
_LINK = (LinkHello, LinkCreds, LinkAck, LinkRevoke)

PartEffect: TypeAlias = Effect | KeyEffect
"""What the parts of a node return: effects for the driver, and those that `_carry_out` acts on."""


@dataclass(frozen=True, slots=True)
class LocalIdentity:
    """Who a node is: its peer address in this incarnation, its signing key, and its organisation's domain."""

    peer: Peer
    key: Identity
    domain: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePolicy:
    """The operator's decisions about trust and limits."""

    network_key: bytes | None = None
    """The key whose `join-net` rights make a node a member of the network; None: no membership is needed."""
    cache_trust: CacheTrustPolicy = "same-domain"
    """Whose plaintext caches the node trusts without opening the sealed event: those of its own organisation, those of
    any authorised reader (and a sample of them is verified), or nobody's."""
    signing: Signing = "none"
    """Whether this broker signs its events, beside sealing them."""
    late_ms: int = DELAY_MS
    """How late an event may come. The node keeps its key so long and delivers it to nobody later. Longer where events
    are stored for subscribers that are away."""
    need_signatures: bool = False
    """Deliver sealed events only if a broker with the right to publish signed them: every member of a key group could
    have sealed an event."""
    open_links: bool = False
    """Links need no handshake: for networks of one organisation, without rights."""
    bind_ids: bool = True
    """A node's id must be that of its key (`node_id_of`)."""
    interests_max: int | None = None
    """Beyond so many subscriptions of one type the node advertises interest in all events of the type (see
    `subscriptions`); None: it advertises every subscription, however many."""
    key_retry_s: float = ASK_AGAIN_S
    """How long the node waits for a key manager before it asks again."""
    traced_max: int = 4096
    """Recent events in the trace log (`hop`); 0 for none."""


class Node:
    """One participant. A method raises only what its docstring names, and never for anything a peer did."""

    def __init__(
        self,
        local: LocalIdentity,
        protocol: Protocol,
        *,
        rng: Random,
        random: RandomBytes,
        neighbours: Sequence[Peer] = (),
        options: Mapping[str, Any] | None = None,
        policy: NodePolicy | None = None,
        router: Router[Any] | None = None,
    ) -> None:
        """`rng` makes the router's choices; `random` gives the bytes of keys and nonces.

        Without a `router` the protocol builds one for these neighbours, with these options.
        """
        self.policy = policy or NodePolicy()
        self.protocol, self.identity = protocol, local.key
        self._wall_ms, self._wall_at, self._now = 0.0, 0.0, 0.0
        self._seals = OriginSeals(local.peer.id, local.key.sign, self._verify_record)
        self._are_sealed = self.policy.bind_ids and not self.policy.open_links
        self.me = me = self.sealed_peer(local.peer) if self._are_sealed else local.peer
        self.router = router or protocol.build(Place(me, tuple(neighbours), rng), **(options or {}))
        self.revocations = RevocationState()
        self.types = TypeRegistry()
        self._random, self._rng = random, rng
        self.neighbours = NeighbourTable(
            local.key,
            local.domain,
            self.revocations,
            random,
            network_key=self.policy.network_key,
            owner_of=self.types.owner_of,
            open_links=self.policy.open_links,
            bind_ids=self.policy.bind_ids,
        )
        blind = not protocol.content_in_packets_only
        seals = self._seals if self._are_sealed else None
        self.boundary = TrustBoundary(
            self.types, self.neighbours, self.policy.cache_trust, rng, blind=blind, seals=seals
        )
        self._keys = KeyDistribution(local.key, self.neighbours.mine, self.revocations, self.policy.key_retry_s)
        self.clients = ClientAuthorization(self.neighbours.mine, self.revocations)
        self._codec: Codec[Any] = Codec(
            protocol.messages | LinkHello | LinkCreds | LinkAck | LinkRevoke | LinkMembers | LinkStrangers
        )
        self._link_codec: Codec[Any] = Codec(LinkHello | LinkCreds | LinkAck | LinkRevoke)
        self._trace = TraceLog(self.policy.traced_max)
        self._inbound = Inbound(self.boundary, self._trace)
        signer = local.key if self._are_sealed and self.policy.signing != "none" else None
        self._outbound = Outbound(me, self._codec, self.clients, self.boundary, self._trace, seals, signer)
        self._delivery = LocalDelivery(
            self.types, self.boundary, self._trace, need_signatures=self.policy.need_signatures
        )
        self._subscriptions = ClientSubscriptions(
            me, self.types, self.clients, self.router, blind=blind, interests_max=self.policy.interests_max
        )
        self._to_self: deque[Message] = deque(maxlen=TO_SELF_MAX)
        self._batched = RecentBatches()
        self._controls_seen = SeenIds[EventId]()
        self._durable: dict[NodeId, tuple[Credentials, Shown, int]] = {}  # Bounded by the interest directory.
        self._sealed_last: tuple[Any, Any] = (None, None)
        self._speakers_last: tuple[Any, list[NodeId]] = (None, [])

    # ── Life cycle ─────────────────────────────────────────────────────────────

    def clock_is(self, wall_ms: int, now: float) -> None:
        """Set the wall clock: it showed `wall_ms` (since 1970) at the moment `now`."""
        self._wall_ms, self._wall_at = float(wall_ms), now

    def now_ms(self, now: float) -> int:
        """The wall clock at the moment `now`."""
        return int(self._wall_ms + (now - self._wall_at) * 1000.0)

    def start(self, now: float, memory: bytes = b"") -> list[NodeEffect]:
        """Start as a member whose place is given; `memory` is what `memory()` returned before the restart."""
        return [*self._carry_out(self.router.start(now, memory), now), _routine(now)]

    def join(self, via: Sequence[Peer], now: float) -> list[NodeEffect]:
        """Join a running network through any of these peers."""
        return [*self._carry_out(self.router.join(via, now), now), _routine(now)]

    def leave(self, now: float) -> list[NodeEffect]:
        """Hand over and leave; the node runs on until Completed or Failed."""
        return self._carry_out(self.router.leave(now), now)

    def memory(self) -> bytes:
        """The router's state for a restart. The driver declares types, rights and subscriptions again itself."""
        return self.router.memory()

    def wake(self, token: Token, now: float) -> list[NodeEffect]:
        """A WakeAt is due."""
        if not (isinstance(token, tuple) and token and token[0] == CONTROL):
            return self._carry_out(self.router.wake(token, now), now)
        _, what, name, round = token
        now_ms = self.now_ms(now)
        match what:
            case "join":
                return self._carry_out(self._keys.retry(name, round, now, now_ms), now)
            case "tick":
                return self._carry_out(self._keys.tick(name, round, now, now_ms), now)
            case "beacon":
                return self._carry_out(self._keys.beacons(name, round, now, now_ms), now)
            case "self":
                return self._receive_own(now)
            case "subscribe":
                return self._subscribe_again(name, now)
            case "renew":
                keys = self.types[name].keys
                return self.renew(name, now) if keys is not None and keys.keyring.changes == round else []
            case _:
                return [*self._expire(now), _routine(now)]

    # ── Types and rights ───────────────────────────────────────────────────────

    def declare(self, declared: SignedType | EventType, now: float) -> list[NodeEffect]:
        """Register a type. A bare EventType is open: no rights, nothing sealed.

        Raises PeerError or Denied for a signed type that is not genuine or not valid now, InputError for one too
        many or for another definition under the name of an open one.
        """
        if self.types.add(self._registered(declared, now)):
            self.neighbours.verify_pending()
        return []

    def hold(self, token: bytes, now: float) -> list[NodeEffect]:
        """Take a right of this broker's own, present it to the neighbours, and request the keys that it opens.

        Raises Denied unless the right is this broker's, genuine, and for a known type.
        """
        held = self.neighbours.mine.add(self.neighbours.verify_any(token, self.types.owners()))
        effects = self.neighbours.present([held.raw])
        if isinstance(held.right.type_id, bytes):
            known = self.types.get(held.right.type_id.hex())
            if known is not None and known.keys is not None:
                if not known.keys.groups_for(held):
                    known.keys.refusal = why = (
                        "group: the broker's right is to some attributes, and events of this type are encrypted as one; "
                        "it needs a right to all of them"
                    )
                    return [*effects, NotJoined(known.name, why)]
                requests = self._keys.request_keys(known.keys, now, self.now_ms(now))
                return [*effects, *self._carry_out(requests, now)]
        return effects

    def revoke(self, ids: Iterable[str], now: float) -> list[NodeEffect]:
        """Revoke these links of rights, whoever presents them; effective at once."""
        if not self.revocations.revoke(ids):
            return []
        self.clients.forget()
        self.boundary.forget_interests()
        return [*self._carry_out(self._keys.revoke(now, self.now_ms(now)), now), *self._expire(now)]

    def withdraw(self, ids: Sequence[str], now: float) -> list[NodeEffect]:
        """Give up this broker's own rights that contain one of these links, and notify the neighbours."""
        self.clients.forget()
        return [*self.neighbours.withdraw(ids), *self._expire(now)]

    def confirmed_online(self, url: str, at_ms: int) -> None:
        """The online test of a right answered with yes."""
        self.revocations.confirmed_online(url, at_ms)

    def online_answers(self, urls: Iterable[str], at_ms: int, now: float) -> list[NodeEffect]:
        """These online tests answered with yes at a moment. Keys that a right opens only now are requested."""
        now_ms, mine = self.now_ms(now), self.neighbours.mine
        before = {held.raw for held in mine.all() if held.refusal(self.revocations, now_ms) is None}
        for url in urls:
            self.revocations.confirmed_online(url, at_ms)
        effects: list[NodeEffect] = []
        for held in mine.all():
            if held.right.online and held.raw not in before and held.refusal(self.revocations, now_ms) is None:
                known = self.types.get(held.right.type_id.hex()) if isinstance(held.right.type_id, bytes) else None
                if known is not None and known.keys is not None and known.keys.groups_for(held):
                    effects += self._carry_out(self._keys.request_keys(known.keys, now, now_ms), now)
        return effects

    def host(self, manager: KeyManager, now: float) -> list[NodeEffect]:
        """Run a type's key manager on this node, over the overlay."""
        return self._carry_out(self._keys.host(manager, now, self.now_ms(now)), now)

    def renew(self, type: str, now: float) -> list[NodeEffect]:
        """Seal the advertised interests of a type (by its wire name) again under the current keys."""
        return self._carry_out(self._subscriptions.renew(type, now, self.now_ms(now)), now)

    # ── Replay ──

    def accepted(self) -> list[tuple[str, int, int]]:
        """For each sealed type and sender, the latest moment delivered since the last call; to be kept for a restart."""
        return [
            (known.name, sender, moment)
            for known in self.types.all()
            if known.keys is not None
            for sender, moment in known.keys.replay.take_newest()
        ]

    def restore_accepted(self, type: str, newest: Mapping[int, int], now: float) -> None:
        """What an earlier life has delivered: nothing of these senders up to these moments is delivered again."""
        known = self.types.get(type)
        if known is not None and known.keys is not None:
            known.keys.replay.restore(known.keys.signed.type_id, newest, self.now_ms(now))

    def _registered(self, declared: SignedType | EventType, now: float) -> RegisteredType:
        if isinstance(declared, EventType):
            return RegisteredType(declared.name, declared, None, None, LocalSubscriptions(declared))
        declared.verify(self.now_ms(now))
        keys = None
        if declared.mode is not Mode.PLAIN:
            keys = TypeCrypto(
                declared,
                self.identity,
                self._random,
                self.revocations,
                signing=self.policy.signing,
                need_signatures=self.policy.need_signatures,
                late_ms=self.policy.late_ms,
                neighbour=self.neighbours.shown_by,
            )
        local = LocalSubscriptions(declared.event_type)
        return RegisteredType(declared.type_id.hex(), declared.event_type, declared, keys, local)

    def _expire(self, now: float) -> list[NodeEffect]:
        """End what depends on rights that no longer hold, and retry the events that wait for a key."""
        now_ms = self.now_ms(now)
        effects = [*self.neighbours.expire(now_ms), *self._carry_out(self._keys.evict_lapsed(now, now_ms), now)]
        if self.neighbours.members.expire(now_ms):
            self._seals.forget()
        ended, further = self._subscriptions.expire(now, now_ms)
        for one in ended:
            effects += [one, *self.unsubscribe(one.subscription, now)]
        effects += self._carry_out(further, now)
        for known in self.types.all():
            if known.keys is not None:
                known.keys.retire(now_ms)
        return [*effects, *self._retry_deliveries(now)]

    # ── Links ──────────────────────────────────────────────────────────────────

    def link_up(
        self, peer: Peer, now: float, *, my_cert: bytes = b"", their_cert: bytes = b"", dialled: bool = True
    ) -> list[NodeEffect]:
        """TLS to this peer is established. LinkReady follows, or Rejected with `cut`; until then no message passes."""
        return self.neighbours.up(peer, my_cert, their_cert, dialled)

    def link_down(self, neighbour: NodeId, now: float) -> list[NodeEffect]:
        """TLS is closed, and the neighbour's credentials are dropped. `peer_down` informs the router."""
        self.neighbours.down(neighbour)
        return []

    def knows(self, peer: Peer) -> bool:
        """Whether the link to this peer, in this incarnation, is ready."""
        near = self.neighbours.get(peer.id)
        return near is not None and near.ready and near.peer.incarnation == peer.incarnation

    def peer_up(self, peer: Peer, now: float) -> list[NodeEffect]:
        """A neighbour in the overlay is reachable: a new one, or one that was down."""
        if self._are_sealed:
            self._now = now
            try:
                self._seals.check_record(peer)
            except PeerError:  # Its address is known from the link; to others it is not passed on.
                peer = Peer(peer.id, peer.address, peer.incarnation)
        return self._carry_out(self.router.peer_up(peer, now), now)

    def peer_down(self, neighbour: NodeId, now: float) -> list[NodeEffect]:
        """A neighbour in the overlay is down."""
        return self._carry_out(self.router.peer_down(neighbour, now), now)

    def unsent(self, to: NodeId, message: Message, now: float) -> list[NodeEffect]:
        """The message of a Send could not be sent."""
        if isinstance(message, _LINK):
            return []
        return self._carry_out(self.router.unsent(to, message, now), now)

    def encode(self, message: Message) -> bytes:
        """A message's bytes exactly as it is, without regard to what a neighbour may read: for tools and tests."""
        return self._codec.encode(message)

    def frame_for(self, to: NodeId, message: Message, now: float) -> bytes:
        """A message's bytes for this neighbour, with the plaintext that it may see at this moment and no other.

        The driver calls it when it writes the bytes. Raises Denied while the link is not ready, and for more filters
        than a message may hold; the message then counts as unsent.
        """
        if not isinstance(message, _LINK) and not self.neighbours.is_ready(to):
            raise Denied(f"link: the handshake with {to} is not complete")
        now_ms = self.now_ms(now)
        try:
            if isinstance(message, _LINK):
                return self._codec.encode(message)
            if not self._are_sealed:
                return self._outbound.frame_for(to, message, now_ms)
            message = self._with_seals(message)
            raw = self._outbound.frame_for(to, message, now_ms)
            room = self._codec.bytes_max - len(raw) - FRAME_SLACK_BYTES
            proofs = self.neighbours.unshown(to, self._speakers(message), room, now_ms)
            return self._codec.encode(LinkMembers(proofs, raw)) if proofs else raw
        except PeerError as refused:
            raise Denied(str(refused)) from None
        except OverflowError:  # A number from another node, counted on beyond 64 bits.
            raise Denied("message: a number that does not fit into 64 bits") from None

    def receive(self, sender: NodeId, raw: bytes, now: float) -> list[NodeEffect]:
        """Take a frame. The driver vouches for `sender`, and for nothing in the bytes. Never raises."""
        try:
            if not self.neighbours.is_ready(sender):  # Of a stranger, nothing but the handshake is even decoded.
                return self._receive_link(sender, self._link_message(raw), now)
            message = self._codec.decode(raw)
            if isinstance(message, _LINK):
                return self._receive_link(sender, message, now)
            if isinstance(message, LinkStrangers):
                self.neighbours.show_again(sender, message.ids)
                return []
            if isinstance(message, LinkMembers):
                message = self._introduced_by(message, now)
            if self._are_sealed:
                self._now = now
                self._seals.check(message)
            message = self._inbound.open(sender, message, now, self.now_ms(now))
        except UnknownSpeaker as unknown:
            ask = LinkStrangers(unknown.speakers[:STRANGERS_MAX])
            return [Send(sender, ask), *_rejected(sender, unknown, cut=False)]
        except (PeerError, Denied) as refused:
            # A wrong plaintext cache is the neighbour's own doing; any other fault may come from a node behind it.
            cut = refused.code is ErrorCode.CACHE or not self.neighbours.is_ready(sender)
            return _rejected(sender, refused, cut)
        return self._carry_out(self.router.receive(sender, message, now), now, sender)

    # ── Records that others pass on ────────────────────────────────────────────

    def sealed_peer(self, peer: Peer) -> Peer:
        """This node's own address, signed by it."""
        return Peer(peer.id, peer.address, peer.incarnation, self._seals.seal_of(peer))

    def _with_seals(self, message: Any) -> Any:
        """The message with this node's own records signed: once, for all whom it is sent to."""
        if self._sealed_last[0] is not message:
            self._sealed_last = message, self._seals.sealed(message)
        return self._sealed_last[1]

    def _speakers(self, message: Any) -> list[NodeId]:
        if self._speakers_last[0] is not message:
            found = speakers_in(message)
            if (packet := getattr(message, "packet", None)) is not None and packet.header.type.startswith(CONTROL):
                found.append(packet.header.id.origin)
            self._speakers_last = message, found
        return self._speakers_last[1]

    def _introduced_by(self, message: LinkMembers, now: float) -> Any:
        """The message inside, after the proofs before it: a proof that does not hold is not counted."""
        for proof in message.proofs[:PROOFS_MAX]:
            with suppress(Denied, PeerError):
                self.neighbours.members.learn(proof, self.now_ms(now))
        inner = self._codec.decode(message.message)
        if isinstance(inner, (*_LINK, LinkMembers, LinkStrangers)):
            raise PeerError("link: a message about links inside another", code=ErrorCode.MESSAGE)
        return inner

    def _verify_record(self, speaker: NodeId, seal: bytes, body: bytes) -> None:
        if speaker == self.me.id:
            verify_signature(self.identity.public_key, seal, body, "a record")
        else:
            self.neighbours.members.verify(speaker, seal, body, self.now_ms(self._now))

    def receive_many(self, frames: Iterable[tuple[NodeId, bytes]], now: float) -> list[NodeEffect]:
        """Take several frames in order."""
        return [effect for sender, raw in frames for effect in self.receive(sender, raw, now)]

    def introduced(self) -> list[Peer]:
        """The peers, with their addresses, that messages have named since the last call."""
        return self._inbound.introduced()

    def _link_message(self, raw: bytes) -> Any:
        try:
            return self._link_codec.decode(raw)
        except PeerError:
            raise Denied("link: a message from a node whose handshake is not complete") from None

    def _receive_link(self, sender: NodeId, message: Any, now: float) -> list[NodeEffect]:
        try:
            return self.neighbours.receive(sender, message, self.now_ms(now))
        except (PeerError, Denied) as refused:
            return _rejected(sender, refused, cut=True)

    # ── Brokers that have events stored for them ───────────────────────────────

    def admit_debtor(self, key: bytes, shown: Shown, now: float) -> bytes:
        """Keep the proofs of a broker that has events stored for it, and return its organisation.

        Raises Denied unless it is a member of the network.
        """
        held = self.neighbours.credentials_of(key, shown, self.now_ms(now))
        self._durable[node_id_of(key)] = (held, shown, len(self.types.all()))
        return next((organisation_of(one) for one in held.of(ANY_TYPE)), b"")

    def may_receive(self, broker: NodeId, type: str, now: float) -> bool:
        """Whether a broker that was admitted is a member now, and may read events of this type (by its wire name)."""
        known, now_ms = self.types.get(type), self.now_ms(now)
        if broker not in self._durable:
            return False
        held, shown, types = self._durable[broker]
        if types != (known_now := len(self.types.all())):  # A right for an unknown type could not be verified.
            self._durable[broker] = (held, shown, known_now)  # A refusal counts, too: this is asked for each event.
            with suppress(Denied):
                self.admit_debtor(held.key, shown, now)
                held = self._durable[broker][0]
        if not self.neighbours.is_member(held, now_ms):
            return False
        if known is None or known.signed is None or known.signed.owner_key == held.key:
            return True
        return held.readable(known.signed.type_id, now_ms) != NOTHING

    # ── Clients ────────────────────────────────────────────────────────────────

    def attach(self, client: str, key: bytes, tokens: Iterable[bytes], now: float) -> list[NodeEffect]:
        """A client has connected and proven that it holds `key`. Raises Denied for an invalid token."""
        owners = self.types.owners()
        self.clients.attach(client, key, [self.neighbours.verify_any(token, owners) for token in tokens])
        return []

    def detach(self, client: str, now: float, *, drop: bool = False) -> list[NodeEffect]:
        """The client has disconnected. Its subscriptions stay for as long as its rights hold, unless `drop`."""
        self.clients.detach(client)
        gone = [one.id for one in self._subscriptions.all.values() if drop and one.client == client]
        return [effect for id in gone for effect in self.unsubscribe(id, now)]

    def publish(
        self, client: str, type: str, values: Mapping[str, Any], now: float, *, keep: bool = False
    ) -> tuple[EventId, list[NodeEffect]]:
        """Publish a client's event. With `keep`, the first effect is a Keep.

        Raises Denied if the client or this broker may not, NotYet if a key or the clock must be waited for,
        EventError if the values do not fit. Nothing has happened then.
        """
        (packet,) = self._outbound.packets_of(client, self.types.find(type), [values], self.now_ms(now))
        effects: list[NodeEffect] = [Keep(packet.header.id, encode_stored(packet))] if keep else []
        return packet.header.id, effects + self._route(packet, now)

    def publish_many(
        self, client: str, type: str, events: Sequence[Mapping[str, Any]], now: float, *, keep: bool = False
    ) -> tuple[list[EventId], list[NodeEffect]]:
        """Publish several events of one type. Raises as `publish` does for the first wrong one, before any is sent."""
        known, now_ms = self.types.find(type), self.now_ms(now)
        packets = self._outbound.packets_of(client, known, events, now_ms)
        effects: list[NodeEffect] = []
        if keep:
            effects += [Keep(packet.header.id, encode_stored(packet)) for packet in packets]
        for packet in packets:
            effects += self._route(packet, now)
        return [packet.header.id for packet in packets], effects

    def takes_batch(self, known: RegisteredType, now: float) -> bool:
        """Whether `publish_batch` can publish events of this type now: for no other node, and with all keys and rights."""
        if self._trace.observer is not None or not self.router.stays_here(known.name):
            return False
        return known.keys is None or known.keys.takes_rows(self.now_ms(now))

    def publish_batch(self, client: str, known: RegisteredType, rows: pa.RecordBatch, now: float) -> PublishedBatch:
        """Publish events of a type that `takes_batch`, as rows of its columns. Raises as `publish` does.

        Each gets the id that it would get from `publish_many`, and reaches the same subscriptions of this node.
        """
        now_ms = self.now_ms(now)
        batch = self._outbound.batch_of(client, known, rows, now_ms)
        if known.keys is None:
            self._batched.add(batch.ids)
        else:
            known.keys.accept_own(batch.ids[0], len(batch), now_ms)
        deliveries, ended = self._delivery.deliver_batch(known, batch, now_ms)
        self._trace.published(batch, deliveries, now)
        return PublishedBatch(batch, deliveries, self._drop_ended(list(ended), now))

    def events_in(self, raw: bytes) -> list[tuple[EventId, bytes]]:
        """The events of a stored batch that this node published, each as `publish_many` would have had it kept.

        Raises InputError for what is no stored batch, or of a type that is not known here.
        """
        stored = decode_stored_batch(raw)
        known = self.types.find(stored.type)
        return [(packet.header.id, encode_stored(packet)) for packet in self._outbound.packets_in(known, stored)]

    def publish_again(self, raw: bytes, now: float) -> list[NodeEffect]:
        """Publish a stored event again, under the same id.

        Raises InputError for what no Keep wrote. A sealed event that has become too old for its readers fails.
        """
        packet = decode_stored(raw)
        try:
            opened = self.boundary.open_packet("", packet, self.now_ms(now))
        except PeerError as refused:
            return [Failed("publish", str(refused), packet.header.id)]
        return self._route(opened, now)

    def deliver_stored(self, raw: bytes, now: float) -> list[NodeEffect] | None:
        """Deliver an event that another broker has stored to this node's clients; None if a key may still come.

        Neither the overlay nor duplicate detection is involved: the caller knows that the event is due, however old.
        Raises InputError for what no Keep wrote, PeerError for an event that is not genuine.
        """
        now_ms = self.now_ms(now)
        opened = self.boundary.open_packet("", decode_stored(raw), now_ms)
        try:
            return self._drop_ended(self._delivery.deliver_stored(opened, now_ms), now)
        except (UnknownEpoch, UnknownPublisher):
            return None

    def receive_direct(self, sender: NodeId, raw: bytes, published_at: float, now: float) -> list[NodeEffect]:
        """Take an event that its origin has sent straight here, beside the overlay. Never raises.

        The event is delivered unless it was before, to the subscriptions that were there when it was published. The
        driver vouches for `sender`, and for nothing in the bytes.
        """
        try:
            packet = decode_stored(raw)
            if packet.header.id.origin != sender:
                raise PeerError("direct: an event of another broker than its sender")
            self._now = now
            opened = self.boundary.open_packet("", packet, self.now_ms(now))
        except (PeerError, InputError) as refused:
            return [Count(f"refused_{refused.code}"), Rejected(sender, str(refused))]
        done = self._deliver(opened, now, sender, published_at)
        told = [(each.subscription, each.client) for each in done if isinstance(each, Delivery)]
        self._trace.delivered_straight(opened, now, told)
        return done

    def live_types(self) -> list[str]:
        """The types that this node has subscriptions to, and those of messages about keys that it listens to."""
        return [*self._keys.listens_to(), *(known.name for known in self.types.all() if len(known.local))]

    def subscribe(self, client: str, type: str, condition: str, now: float) -> tuple[SubscriptionId, list[NodeEffect]]:
        """Subscribe a client. It gets every matching event published after Completed("subscribe", id).

        Raises Denied if the client or this broker may not read what the condition names, FilterError if the condition
        does not fit the type.
        """
        id, effects = self._subscriptions.subscribe(client, type, condition, now, self.now_ms(now))
        return id, self._carry_out(effects, now)

    def check_reader(self, client: str, type: str, names: tuple[str, ...], now: float) -> None:
        """Return if a client may see these attributes of a type (by its wire name); raise Denied otherwise."""
        signed = self.types[type].signed
        if signed is not None:
            self.clients.visibility_for(client, names, signed, self.now_ms(now))

    def unsubscribe(self, id: SubscriptionId, now: float) -> list[NodeEffect]:
        """Remove a subscription; removing an unknown one completes at once."""
        return self._carry_out(self._subscriptions.unsubscribe(id, now), now)

    def _route(self, packet: Packet, now: float) -> list[NodeEffect]:
        """Hand an event that enters the network here to the router."""
        self._trace.arrived(packet, "", now)
        return self._carry_out(self.router.publish(self.boundary.for_router(packet), now), now)

    # ── Carrying out effects ───────────────────────────────────────────────────

    def _carry_out(self, effects: Sequence[PartEffect], now: float, came_from: NodeId = "") -> list[NodeEffect]:
        """Act on the effects that are for this node, and return those for the driver, in order."""
        done: list[NodeEffect] = []
        for effect in effects:
            match effect:
                case Send(to, message):
                    done.append(effect if to != self.me.id else self._send_to_self(message, now))
                case Deliver(packet):
                    done += self._deliver(packet, now, came_from)
                case Completed("subscribe", SubscriptionId() as id):
                    done += self._confirmed(id, now)
                case Failed("subscribe", _, SubscriptionId() as id):
                    done += self._subscribe_failed(effect, id, now)
                case Completed("unsubscribe", SubscriptionId() as id) | Failed(
                    "unsubscribe", _, SubscriptionId() as id
                ) if self._subscriptions.is_internal(id):
                    pass
                case PublishControl(control, message):
                    packet = self._outbound.control_packet(control, CODEC.encode(message))
                    done += [*self._route(packet, now), Direct(control, encode_stored(packet))]
                    done += self._deliver(packet, now, "")  # The overlay may bring it back by way of others.
                case SubscribeControl(control):
                    interest = self._keys.subscribed(control, self._subscriptions.new_id())
                    done += self._carry_out(self.router.subscribe(interest, now), now)
                case Joined(type):
                    done += [effect, *self.renew(type, now), *self._retry_deliveries(now)]
                case _:
                    done.append(effect)
        return done

    def _send_to_self(self, message: Message, now: float) -> WakeAt:
        """Some routers address the owner of a place, which may be their own node: that needs no link."""
        self._to_self.append(message)
        return WakeAt(now, (CONTROL, "self", "", 0))

    def _receive_own(self, now: float) -> list[NodeEffect]:
        messages, self._to_self = self._to_self, deque(maxlen=TO_SELF_MAX)
        return [each for one in messages for each in self._carry_out(self.router.receive(self.me.id, one, now), now)]

    def _confirmed(self, id: SubscriptionId, now: float) -> list[NodeEffect]:
        """An interest is in place everywhere: a control type's, or that of client subscriptions."""
        control = self._keys.interest(id)
        if control is not None:
            return self._carry_out(self._keys.in_place(control.type, now, self.now_ms(now)), now)
        placed, effects = self._subscriptions.confirmed(id, now)
        done: list[NodeEffect] = [Completed("subscribe", each) for each in placed]
        return done + self._carry_out(effects, now) if effects else done

    def _subscribe_failed(self, failed: Failed, id: SubscriptionId, now: float) -> list[NodeEffect]:
        """A new subscription that failed is removed, and its client informed; the node retries its own interests."""
        if self._subscriptions.failed(id):
            return [failed]
        return [WakeAt(now + RETRY_S, (CONTROL, "subscribe", id, 0), idle=True)]

    def _subscribe_again(self, id: SubscriptionId, now: float) -> list[NodeEffect]:
        control = self._keys.interest(id)
        if control is not None:
            return self._carry_out(self.router.subscribe(control, now), now)
        return self._carry_out(self._subscriptions.retry(id, now, self.now_ms(now)), now)

    def _deliver(
        self, packet: Packet, now: float, came_from: NodeId, published_at: float = math.inf
    ) -> list[NodeEffect]:
        type = packet.header.type
        if type.startswith(CONTROL):  # By the overlay and straight, so each comes twice.
            if not self._keys.is_subscribed(type) or not self._controls_seen.add(packet.header.id):
                return []
            return self._receive_control(type, self.boundary.control_of(packet), now)
        if packet.header.id.origin == self.me.id and packet.header.id in self._batched:
            return [Count("own event back")]  # The router, which sees what comes twice, has not seen batches.
        now_ms = self.now_ms(now)
        packet = self.boundary.from_router(packet, now_ms)
        done = self._drop_ended(self._delivery.deliver(packet, now_ms, came_from, now, published_at), now)
        if done and done[0] is WAITS_FOR_PUBLISHER:
            done += self._carry_out(self._keys.query_publishers(type, now), now)
        return done

    def _drop_ended(self, effects: list[NodeEffect], now: float) -> list[NodeEffect]:
        """The effects, followed by those of removing the subscriptions that have ended."""
        ended = [effect.subscription for effect in effects if effect.__class__ is Ended]
        return effects + [each for id in ended for each in self.unsubscribe(id, now)] if ended else effects

    def _retry_deliveries(self, now: float) -> list[NodeEffect]:
        return self._drop_ended(self._delivery.retry(self.now_ms(now)), now)

    def _receive_control(self, control: str, raw: bytes, now: float) -> list[NodeEffect]:
        """A message about keys. New keys open waiting events, and soon this node's filters are sealed with them."""
        known = self.types.get(control.partition("/")[2])
        before = known.keys.keyring.changes if known is not None and known.keys is not None else 0
        done = self._carry_out(self._keys.receive(control, raw, now, self.now_ms(now)), now)
        if known is not None and known.keys is not None and known.keys.keyring.changes != before:
            later = now + self._rng.uniform(1.0, 2.0) * RENEW_S  # Spread, so that not all nodes send at once.
            done.append(WakeAt(later, (CONTROL, "renew", known.name, known.keys.keyring.changes), idle=True))
        return [*done, *self._retry_deliveries(now)]

    # ── Inspection ─────────────────────────────────────────────────────────────

    def watch(self, observer: TraceObserver) -> None:
        """Has an observer hear of all that the trace log records from now on."""
        self._trace.observer = observer

    def hop(self, event: EventId) -> TraceHop | None:
        """What this node did with a recent event; None if it is not in the trace log."""
        return self._trace.get(event)

    def why(self, event: EventId, subscription: SubscriptionId) -> str:
        """Why a recent event was delivered to a subscription of this node, or why not."""
        hop, one = self._trace.get(event), self._subscriptions.all.get(subscription)
        if hop is None:
            return "event: not seen here, or too long ago"
        if one is None:
            return "subscription: not of this node"
        if one.type != hop.type:
            return "type: the event is of another type than the subscription"
        return self._withheld(one, hop) or hop.why(one)

    def _withheld(self, one: LocalSubscription, hop: TraceHop) -> str:
        """Why rights or keys kept an event from a subscription; whether it matched must not be revealed then."""
        view = self._trace.view(hop.event)
        if hop.refused or view is None or any(id == one.id for id, _ in hop.delivered):
            return ""
        return one.refusal(view)

    def summary(self, type: str) -> InterestSummary | None:
        """The interest summary that this node advertises for a type, by its wire name; None if there is none."""
        return self._subscriptions.summary(type)

    def subscriptions(self) -> list[LocalSubscription]:
        """The subscriptions of this node's clients, oldest first."""
        return list(self._subscriptions.all.values())

    def status(self, now: float) -> dict[str, Any]:
        """This node's state for operators, as JSON values. Nothing in it is secret."""
        return {
            "id": self.me.id,
            "incarnation": self.me.incarnation,
            "protocol": self.protocol.name,
            "links": list(self.router.links()),
            "map": msgspec.to_builtins(self.router.map_entry()),
            "overlay": self.router.status(),
            "neighbours": [near.status() for near in self.neighbours.all()],
            "types": [known.status() for known in self.types.all()],
            "subscriptions": len(self._subscriptions.all),
            "clients": len(self.clients),
            "waiting_for_key": len(self._delivery),
            "holdings": {name: list(amount) for name, amount in self.holdings().items()},
        }

    def holdings(self) -> dict[str, tuple[int, int]]:
        """What this node stores: for each kind the number of entries and the limit."""
        return {
            **self.router.holdings(),
            **self.boundary.holdings(),
            "waiting_for_key": (len(self._delivery), WAITING_MAX),
            "hops": (len(self._trace), max(self.policy.traced_max, 1)),
            **self._inbound.holdings(),
            **self._seals.holdings(),
            **self.neighbours.members.holdings(),
        }


class RecentBatches:
    """The ids of the batches that this node has published lately."""

    def __init__(self, at_most: int = BATCHES_MAX) -> None:
        self._at_most = at_most
        self._firsts: deque[int] = deque()
        self._ids: deque[BatchIds] = deque()

    def add(self, ids: BatchIds) -> None:
        """A batch, numbered above all before it."""
        self._firsts.append(ids.first_seq & COUNT_MASK)
        self._ids.append(ids)
        if len(self._ids) > self._at_most:
            self._firsts.popleft()
            self._ids.popleft()

    def __contains__(self, event: EventId) -> bool:
        at = bisect_right(self._firsts, event.seq & COUNT_MASK) - 1
        return at >= 0 and self._ids[at].row_of(event) >= 0


def _routine(now: float) -> WakeAt:
    return WakeAt(now + ROUTINE_S, (CONTROL, "routine", "", 0), idle=True)


def _rejected(sender: NodeId, refused: PeerError | Denied, cut: bool) -> list[NodeEffect]:
    return [Count(f"refused_{refused.code}"), Rejected(sender, str(refused), cut)]
