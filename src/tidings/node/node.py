"""One participant: checks rights, opens and seals, runs a router, matches locally. No I/O.

A `Node` is a plain object. What happens to it comes in by its methods, with the moment `now` (seconds,
only ever forward); what to do comes out as a list of effects, to be carried out in order. A live broker
and a simulated world run the very same one.

    client publishes  → right checked, sealed, viewed      → router → Send, Notify
    bytes come in     → decoded, opened as far as keys go  → router → Send, Notify
    bytes go out      → `frame_for`: sealed, and beside it the plaintext this neighbour may have right now

`frame_for` is called when the bytes are written and not when the effect is made, so that a right which
ended in between counts no more.

The clock on the wall is told with `clock_is`; rights, epochs and freshness go by it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import Any

from tidings.errors import Denied, ErrorCode, PeerError
from tidings.events import EventType
from tidings.node.client_authorization import Clients
from tidings.node.credentials import Truth
from tidings.node.customs import Customs
from tidings.node.effects import Ended, Joined, Keep, NodeEffect, NotJoined, Refused
from tidings.node.inbound import Passing
from tidings.node.key_distribution import CODEC, CONTROL, KeyTalk, Listen, Say, TalkEffect, genuine_or_none
from tidings.node.local_delivery import WAITING_MAX, WAITS_FOR_PUBLISHER, Delivery
from tidings.node.local_subscriptions import LocalSubscription, LocalSubscriptions
from tidings.node.neighbours import LinkAck, LinkCreds, LinkHello, LinkRevoke, Neighbourhood
from tidings.node.outbound import Saying
from tidings.node.policy import NodePolicy
from tidings.node.stored_event import kept, read_kept
from tidings.node.subscriptions import Wanting
from tidings.node.trace_log import Hop, Hops
from tidings.node.type_crypto import TypeKeys, UnknownPublisher
from tidings.node.type_registry import Catalogue, Known
from tidings.overlay import (
    Codec,
    Completed,
    Count,
    Deliver,
    Effect,
    EventId,
    Everything,
    Failed,
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
    Token,
    WakeAt,
)
from tidings.security import (
    BiscuitCapability,
    Identity,
    KeyManager,
    Mode,
    RandomBytes,
    SignedType,
    UnknownEpoch,
)

TO_SELF_MAX = 4096  # Messages to itself that a router has made and not yet had.
TRY_AGAIN_S = 5.0  # After the overlay could not do what the node itself needs.
RENEW_S = 5.0  # After new keys came, before filters are sealed with them: the keys start within the grace.
ROUTINE_S = 10.0  # Between two looks at what has expired.
_LINK = (LinkHello, LinkCreds, LinkAck, LinkRevoke)


class Node:
    """One participant. No method but those that say so raises for anything a peer did."""

    def __init__(
        self,
        me: Peer,
        protocol: Protocol,
        identity: Identity,
        *,
        rng: Random,
        random: RandomBytes,
        neighbours: Sequence[Peer] = (),
        options: Mapping[str, Any] | None = None,
        policy: NodePolicy | None = None,
        domain: str = "",
        router: Router[Any] | None = None,
    ) -> None:
        """`rng` is the router's, for choices; `random` gives the bytes of keys and nonces."""
        self.me, self.protocol, self.identity = me, protocol, identity
        self.policy = policy or NodePolicy()
        self.router = router or protocol.build(Place(me, tuple(neighbours), rng), **(options or {}))
        self.truth = Truth()
        self._random, self._rng = random, rng
        self._blind = not protocol.content_in_packets_only
        self._types = Catalogue()
        self._near = Neighbourhood(
            identity,
            domain,
            self.truth,
            random,
            network_key=self.policy.network_key,
            owner_of=self._types.owner_of,
            open_links=self.policy.open_links,
            bind_ids=self.policy.bind_ids,
        )
        self._customs = Customs(self._types, self._near, self.policy.cache_trust, rng)
        self._talk = KeyTalk(identity, self._near.mine, self.truth)
        self._clients = Clients(self._near.mine, self.truth)
        self._codec: Codec[Any] = Codec(protocol.messages | LinkHello | LinkCreds | LinkAck | LinkRevoke)
        self._hops = Hops(self.policy.traced_max)
        self._passing = Passing(self._codec, self._types, self._customs, self._hops, blind=self._blind)
        self._delivery = Delivery(self._types, self._customs, self._hops)
        self._controls: dict[SubscriptionId, str] = {}
        self._wants = Wanting(
            me,
            self._types,
            self._clients,
            self.router,
            blind=self._blind,
            apart_max=self.policy.apart_max,
        )
        self._saying = Saying(me, self._clients, self._customs)
        self._to_self: deque[Message] = deque(maxlen=TO_SELF_MAX)
        self._wall_ms, self._wall_at = 0.0, 0.0

    # ── Life ───────────────────────────────────────────────────────────────────

    def clock_is(self, wall_ms: int, now: float) -> None:
        """The clock on the wall showed `wall_ms` (since 1970) at the moment `now`."""
        self._wall_ms, self._wall_at = float(wall_ms), now

    def now_ms(self, now: float) -> int:
        """What the clock on the wall shows at `now`."""
        return int(self._wall_ms + (now - self._wall_at) * 1000.0)

    def start(self, now: float, memory: bytes = b"") -> list[NodeEffect]:
        """Begin to take part, in one's place already; `memory` is what `memory()` gave in the last life."""
        return [*self._done(self.router.start(now, memory), now), self._routine(now)]

    def join(self, via: Sequence[Peer], now: float) -> list[NodeEffect]:
        """Come into a network that exists, through any of these peers."""
        return [*self._done(self.router.join(via, now), now), self._routine(now)]

    def leave(self, now: float) -> list[NodeEffect]:
        """Hand over and go; the node runs on until Completed or Failed."""
        return self._done(self.router.leave(now), now)

    def memory(self) -> bytes:
        """What a restart begins from: the router's. Subscriptions and rights are the driver's to tell again."""
        return self.router.memory()

    def wake(self, token: Token, now: float) -> list[NodeEffect]:
        """The moment a WakeAt asked for."""
        if isinstance(token, tuple) and token and token[0] == CONTROL:
            return self._wake_up(token, now)
        return self._done(self.router.wake(token, now), now)

    def _wake_up(self, token: tuple[Any, ...], now: float) -> list[NodeEffect]:
        _, what, name, round = token
        now_ms = self.now_ms(now)
        match what:
            case "join":
                return self._said(self._talk.ask_again(name, round, now, now_ms), now)
            case "tick":
                return self._said(self._talk.tick(name, round, now, now_ms), now)
            case "beacon":
                return self._said(self._talk.beacons(name, round, now, now_ms), now)
            case "self":
                return self._read_own(now)
            case "subscribe":
                return self._subscribe_again(name, now)
            case "renew":
                keys = self._types[name].keys
                return self._renew(name, now) if keys is not None and keys.keyring.changes == round else []
            case _:
                return [*self._expire(now), self._routine(now)]

    def _routine(self, now: float) -> WakeAt:
        return WakeAt(now + ROUTINE_S, (CONTROL, "routine", "", 0), idle=True)

    # ── Types and rights ───────────────────────────────────────────────────────

    def declare(self, declared: SignedType | EventType, now: float) -> list[NodeEffect]:
        """Make a type known to this node. A bare EventType is open: no rights, nothing sealed.

        Raises PeerError or Denied for a signed type that is not genuine or not valid now, InputError for
        one too many or for another definition under the name of an open one.
        """
        if self._types.add(self._make_known(declared, now)):
            self._near.read_again()
        return []

    def hold(self, token: bytes, now: float) -> list[NodeEffect]:
        """Take up a right of this broker's own, show it to the neighbours, and ask for the keys it opens.

        Raises Denied for one that is not this broker's, or not genuine, or for a type it does not know.
        """
        held = self._near.mine.add(self._read_token(token))
        effects = self._near.present([held.raw])
        if isinstance(held.right.type_id, bytes):
            known = self._types.get(held.right.type_id.hex())
            if known is not None and known.keys is not None:
                if not known.keys.groups_for(held):
                    why = "group: the right is for some attributes, and the event is sealed as one"
                    return [*effects, NotJoined(known.name, why)]
                return [*effects, *self._said(self._talk.want(known.keys, now, self.now_ms(now)), now)]
        return effects

    def revoke(self, ids: Iterable[str], now: float) -> list[NodeEffect]:
        """These links of rights no longer count, whoever shows them; effective with the next thing that happens."""
        new = self.truth.revoke(ids)
        if not new:
            return []
        self._clients.forget()
        self._customs.forget_interests()
        return [*self._said(self._talk.revoke(now, self.now_ms(now)), now), *self._expire(now)]

    def withdraw(self, ids: Sequence[str], now: float) -> list[NodeEffect]:
        """Give up rights of this broker's own that have one of these links, and tell the neighbours."""
        self._clients.forget()
        return [*self._near.withdraw(ids), *self._expire(now)]

    def said_yes(self, url: str, at_ms: int) -> None:
        """A right's online test was answered with yes."""
        self.truth.said_yes(url, at_ms)

    def host(self, manager: KeyManager, now: float) -> list[NodeEffect]:
        """Run a type's key manager here, over the overlay."""
        return self._said(self._talk.host(manager, now, self.now_ms(now)), now)

    def _make_known(self, declared: SignedType | EventType, now: float) -> Known:
        if isinstance(declared, EventType):
            return Known(declared.name, declared, None, None, LocalSubscriptions(declared))
        declared.verify(self.now_ms(now))
        keys = None
        if declared.mode is not Mode.PLAIN:
            keys = TypeKeys(
                declared,
                self.identity,
                self._random,
                self.truth,
                signing=self.policy.signing,
                need_signatures=self.policy.need_signatures,
                late_ms=self.policy.late_ms,
            )
        local = LocalSubscriptions(declared.event_type)
        return Known(declared.type_id.hex(), declared.event_type, declared, keys, local)

    def _read_token(self, token: bytes) -> BiscuitCapability:
        """A token for membership or for any type known here; raises Denied as the nearest of them does."""
        owners = [self.policy.network_key, *self._types.owners()]
        refusal = Denied("signature: a right that nobody known here has given", code=ErrorCode.SIGNATURE)
        for owner in dict.fromkeys(owner for owner in owners if owner is not None):
            try:
                return self._near.read_any(token, owner)
            except Denied as refused:
                refusal = refusal if refused.code is ErrorCode.SIGNATURE else refused
        raise refusal

    def _expire(self, now: float) -> list[NodeEffect]:
        """Ends what rests on rights that no longer hold."""
        now_ms = self.now_ms(now)
        effects = self._near.lapsed(now_ms)
        ended, further = self._wants.ended(now, now_ms)
        for one in ended:
            effects += [one, *self.unsubscribe(one.subscription, now)]
        effects += self._done(further, now)
        for known in self._types:
            if known.keys is not None:
                known.keys.retire(now_ms)
        return [*effects, *self._waited_for(now)]

    # ── Links ──────────────────────────────────────────────────────────────────

    def link_up(
        self, peer: Peer, now: float, *, my_cert: bytes = b"", their_cert: bytes = b"", dialled: bool = True
    ) -> list[NodeEffect]:
        """TLS to this peer stands. LinkReady follows, or Refused with `cut`; until then no message passes."""
        return self._near.up(peer, my_cert, their_cert, dialled)

    def link_down(self, neighbour: NodeId, now: float) -> list[NodeEffect]:
        """TLS is gone, and with it all that the neighbour had shown. The router is told by `peer_down`."""
        self._near.down(neighbour)
        return []

    def knows(self, peer: Peer) -> bool:
        """Whether the link to this peer, in this life of it, is ready."""
        near = self._near.get(peer.id)
        return near is not None and near.ready and near.peer.incarnation == peer.incarnation

    def peer_up(self, peer: Peer, now: float) -> list[NodeEffect]:
        """A neighbour of the overlay is there: a new one, or one that was gone."""
        return self._done(self.router.peer_up(peer, now), now)

    def peer_down(self, neighbour: NodeId, now: float) -> list[NodeEffect]:
        """A neighbour of the overlay is gone."""
        return self._done(self.router.peer_down(neighbour, now), now)

    def unsent(self, to: NodeId, message: Message, now: float) -> list[NodeEffect]:
        """The message of a Send did not get through."""
        if isinstance(message, _LINK):
            return []
        return self._done(self.router.unsent(to, message, now), now)

    def frame_for(self, to: NodeId, message: Message, now: float) -> bytes:
        """A message's bytes for this neighbour, with the plaintext that it may see at this moment and no other.

        To be called when they are written. Raises Denied while the neighbour has not proven itself, and for
        more filters than a message may hold; the message then counts as unsent.
        """
        if isinstance(message, _LINK):
            return self._codec.encode(message)
        if not self._near.is_ready(to):
            raise Denied(f"link: {to} has not proven that it belongs here")
        return self._passing.frame_for(to, message, self.now_ms(now))

    def receive(self, sender: NodeId, raw: bytes, now: float) -> list[NodeEffect]:
        """Take a frame. The driver vouches for `sender`, and for nothing in the bytes. Never raises."""
        try:
            message = self._codec.decode(raw)
            if isinstance(message, _LINK):
                return self._introduce(sender, message, now)
            if not self._near.is_ready(sender):
                raise Denied("link: a message from somebody who has not proven that it belongs here")
            message = self._passing.opened(sender, message, now, self.now_ms(now))
        except (PeerError, Denied) as refused:
            # A lie about plaintext is the neighbour's own; what is wrong inside may come from anywhere behind it.
            cut = refused.code is ErrorCode.CACHE or not self._near.is_ready(sender)
            return _refusal(sender, refused, cut)
        return self._done(self.router.receive(sender, message, now), now, sender)

    def receive_many(self, frames: Iterable[tuple[NodeId, bytes]], now: float) -> list[NodeEffect]:
        """Take several frames, one after the other."""
        return [effect for sender, raw in frames for effect in self.receive(sender, raw, now)]

    def introduced(self) -> list[Peer]:
        """The peers that messages have named since this was last asked: whom, and where they are reached."""
        return self._passing.introduced()

    def _introduce(self, sender: NodeId, message: Any, now: float) -> list[NodeEffect]:
        try:
            return self._near.take(sender, message, self.now_ms(now))
        except (PeerError, Denied) as refused:
            return _refusal(sender, refused, cut=True)

    # ── Clients ────────────────────────────────────────────────────────────────

    def attach(self, client: str, key: bytes, tokens: Iterable[bytes], now: float) -> list[NodeEffect]:
        """A client is here and has proven that it holds `key`. Raises Denied for a token that is not good."""
        self._clients.attach(client, key, [self._read_token(token) for token in tokens])
        return []

    def detach(self, client: str, now: float, *, drop: bool = False) -> list[NodeEffect]:
        """The client is gone. Its subscriptions stay, for as long as its rights hold, unless they are to be dropped."""
        self._clients.detach(client)
        gone = [one.id for one in self._wants.all.values() if drop and one.client == client]
        return [effect for id in gone for effect in self.unsubscribe(id, now)]

    def publish(
        self, client: str, type: str, values: Mapping[str, Any], now: float, *, keep: bool = False
    ) -> tuple[EventId, list[NodeEffect]]:
        """Publish an event of a client's. With `keep`, a Keep comes before everything else.

        Raises Denied where the client or this broker may not, NotYet where a key or the clock must be waited
        for, EventError where the values do not fit. Nothing has happened then.
        """
        packet = self._saying.packet_of(client, self._types.find(type), values, self.now_ms(now))
        effects: list[NodeEffect] = [Keep(packet.header.id, kept(packet))] if keep else []
        self._passing.came(packet, "", now)
        return packet.header.id, effects + self._done(self.router.publish(self._passing.for_router(packet), now), now)

    def publish_many(
        self, client: str, type: str, events: Sequence[Mapping[str, Any]], now: float, *, keep: bool = False
    ) -> tuple[list[EventId], list[NodeEffect]]:
        """Publish several events of one type. Raises as `publish` does, for the first of them, before any is sent."""
        known, now_ms = self._types.find(type), self.now_ms(now)
        packets = [self._saying.packet_of(client, known, values, now_ms) for values in events]
        effects: list[NodeEffect] = [Keep(packet.header.id, kept(packet)) for packet in packets] if keep else []
        for packet in packets:
            self._passing.came(packet, "", now)
            effects += self._done(self.router.publish(self._passing.for_router(packet), now), now)
        return [packet.header.id for packet in packets], effects

    def publish_again(self, raw: bytes, now: float) -> list[NodeEffect]:
        """Say an event again that a Keep had written down: the same event, under the same id.

        Raises InputError for what no Keep wrote. A sealed event that has grown too old for its readers fails.
        """
        packet = read_kept(raw)
        try:
            opened = self._customs.take_packet("", packet, self.now_ms(now))
        except PeerError as refused:
            return [Failed("publish", str(refused), packet.header.id)]
        self._passing.came(opened, "", now)
        return self._done(self.router.publish(self._passing.for_router(opened), now), now)

    def tell(self, raw: bytes, now: float) -> list[NodeEffect] | None:
        """Tell this node's own clients of an event that another broker has kept; None if what it takes may still come.

        Neither the overlay nor the memory of what was seen is asked: whoever calls this knows that the event is
        due, however old it is. Raises InputError for what no Keep wrote, PeerError for an event that is not genuine.
        """
        packet = read_kept(raw)
        now_ms = self.now_ms(now)
        opened = self._customs.take_packet("", packet, now_ms)
        try:
            return self._dropping(self._delivery.tell(opened, now_ms), now)
        except (UnknownEpoch, UnknownPublisher):
            return None

    def subscribe(self, client: str, type: str, condition: str, now: float) -> tuple[SubscriptionId, list[NodeEffect]]:
        """Have a client told of matching events. Those published after Completed("subscribe", id) come.

        Raises Denied where the client or this broker may not read what the condition asks for, FilterError
        where the condition does not fit the type.
        """
        id, effects = self._wants.subscribe(client, type, condition, now, self.now_ms(now))
        return id, self._done(effects, now)

    def unsubscribe(self, id: SubscriptionId, now: float) -> list[NodeEffect]:
        """Take a subscription back; one that is not there is taken back already."""
        return self._done(self._wants.unsubscribe(id, now), now)

    # ── Effects ────────────────────────────────────────────────────────────────

    def _done(self, effects: list[Effect], now: float, came_from: NodeId = "") -> list[NodeEffect]:
        """The router's effects as the node's: what is delivered is matched, control words are heard."""
        done: list[NodeEffect] = []
        for effect in effects:
            match effect:
                case Send(to, message):
                    done.append(effect if to != self.me.id else self._keep_to_oneself(message, now))
                case Deliver(packet):
                    done += self._deliver(packet, now, came_from)
                case Completed("subscribe", SubscriptionId() as id):
                    done += self._stable(id, now)
                case Failed("subscribe", _, SubscriptionId() as id):
                    done += self._unstable(effect, id, now)
                case _:
                    done.append(effect)
        return done

    def _keep_to_oneself(self, message: Message, now: float) -> WakeAt:
        """Some routers write to whoever holds a place, which may be their own node: that needs no link."""
        self._to_self.append(message)
        return WakeAt(now, (CONTROL, "self", "", 0))

    def _read_own(self, now: float) -> list[NodeEffect]:
        messages, self._to_self = self._to_self, deque(maxlen=TO_SELF_MAX)
        return [each for one in messages for each in self._done(self.router.receive(self.me.id, one, now), now)]

    def _stable(self, id: SubscriptionId, now: float) -> list[NodeEffect]:
        control = self._controls.get(id)
        if control is not None:
            return self._said(self._talk.listening(control, now, self.now_ms(now)), now)
        placed, effects = self._wants.known(id, now)
        done: list[NodeEffect] = [Completed("subscribe", each) for each in placed]
        return done + self._done(effects, now) if effects else done

    def _unstable(self, failed: Failed, id: SubscriptionId, now: float) -> list[NodeEffect]:
        """A new subscription that failed is gone, and its client told so; what the node itself needs is tried again."""
        if self._wants.failed(id):
            return [failed]
        return [WakeAt(now + TRY_AGAIN_S, (CONTROL, "subscribe", id, 0), idle=True)]

    def _subscribe_again(self, id: SubscriptionId, now: float) -> list[NodeEffect]:
        if id in self._controls:
            return self._done(self.router.subscribe(Interest(id, self._controls[id], Everything()), now), now)
        return self._done(self._wants.again(id, now, self.now_ms(now)), now)

    def _said(self, effects: Sequence[TalkEffect], now: float) -> list[NodeEffect]:
        """Carries out what is said and listened to about keys."""
        done: list[NodeEffect] = []
        for effect in effects:
            match effect:
                case Say(control, message):
                    packet = self._saying.word(control, CODEC.encode(message))
                    done += self._done(self.router.publish(self._passing.for_router(packet), now), now)
                case Listen(control):
                    done += self._listen(control, now)
                case Joined():
                    done += [effect, *self._renew(effect.type, now), *self._waited_for(now)]
                case _:
                    done.append(effect)
        return done

    def _listen(self, control: str, now: float) -> list[NodeEffect]:
        id = self._wants.new_id()
        self._controls[id] = control
        return self._done(self.router.subscribe(Interest(id, control, Everything()), now), now)

    def _renew(self, name: str, now: float) -> list[NodeEffect]:
        return self._done(self._wants.renew(name, now, self.now_ms(now)), now)

    def _deliver(self, packet: Packet, now: float, came_from: NodeId) -> list[NodeEffect]:
        type = packet.header.type
        if type.startswith(CONTROL):
            if not any(control == type for control in self._controls.values()):
                return []
            return self._hear(type, packet.envelope, now)
        if self._blind and packet.envelope:  # What the router was not shown is still at hand.
            packet = self._customs.take_packet("", packet, self.now_ms(now))
        done = self._dropping(self._delivery.deliver(packet, self.now_ms(now), came_from), now)
        if done and done[0] is WAITS_FOR_PUBLISHER:
            done += self._said(self._talk.who_publishes(type, now), now)
        return done

    def _dropping(self, effects: list[NodeEffect], now: float) -> list[NodeEffect]:
        """The effects, and those of taking back the subscriptions that have ended."""
        ended = [effect.subscription for effect in effects if effect.__class__ is Ended]
        return effects + [each for id in ended for each in self.unsubscribe(id, now)] if ended else effects

    def _waited_for(self, now: float) -> list[NodeEffect]:
        return self._dropping(self._delivery.try_again(self.now_ms(now)), now)

    def _hear(self, control: str, raw: bytes, now: float) -> list[NodeEffect]:
        """A word about keys. New ones open what was waiting, and have this node's filters sealed anew before long."""
        known = self._types.get(control.partition("/")[2])
        before = known.keys.keyring.changes if known is not None and known.keys is not None else 0
        done = self._said(genuine_or_none(self._talk, control, raw, now, self.now_ms(now)), now)
        if known is not None and known.keys is not None and known.keys.keyring.changes != before:
            later = now + self._rng.uniform(1.0, 2.0) * RENEW_S  # Not all nodes at once.
            done.append(WakeAt(later, (CONTROL, "renew", known.name, known.keys.keyring.changes), idle=True))
        return [*done, *self._waited_for(now)]

    # ── Looking ────────────────────────────────────────────────────────────────

    def hop(self, event: EventId) -> Hop | None:
        """What this node did with a recent event; None if it does not remember it."""
        return self._hops.get(event)

    def why(self, event: EventId, subscription: SubscriptionId) -> str:
        """Why a subscription of this node was told of a recent event, or was not."""
        hop, one = self._hops.get(event), self._wants.all.get(subscription)
        if hop is None:
            return "event: not seen here, or too long ago"
        if one is None:
            return "subscription: not of this node"
        if one.type != hop.type:
            return "type: the event is of another type than the subscription"
        return self._withheld(one, hop) or hop.why(one)

    def _withheld(self, one: LocalSubscription, hop: Hop) -> str:
        """Why an event was kept from a subscription whether or not it is wanted, which must not be told; else empty."""
        view = self._hops.view(hop.event)
        if hop.refused or view is None or any(id == one.id for id, _ in hop.told):
            return ""
        return one.refusal(view)

    def subscriptions(self) -> list[LocalSubscription]:
        """The subscriptions of this node's clients, oldest first."""
        return list(self._wants.all.values())

    def status(self, now: float) -> dict[str, Any]:
        """What there is to see of this node, as JSON has it. Nothing secret is in it."""
        return {
            "id": self.me.id,
            "incarnation": self.me.incarnation,
            "protocol": self.protocol.name,
            "links": list(self.router.links()),
            "neighbours": [near.status() for near in self._near.all()],
            "types": [known.status() for known in self._types],
            "subscriptions": len(self._wants.all),
            "clients": len(self._clients),
            "waiting_for_key": len(self._delivery),
            "holdings": {name: list(amount) for name, amount in self.holdings().items()},
        }

    def holdings(self) -> dict[str, tuple[int, int]]:
        """What this node keeps: for each kind how many there are and how many there may be."""
        return {
            **self.router.holdings(),
            **self._customs.holdings(),
            "waiting_for_key": (len(self._delivery), WAITING_MAX),
            "hops": (len(self._hops), max(self.policy.traced_max, 1)),
            **self._passing.holdings(),
        }


def _refusal(sender: NodeId, refused: PeerError | Denied, cut: bool) -> list[NodeEffect]:
    return [Count(f"refused_{refused.code}"), Refused(sender, str(refused), cut)]
