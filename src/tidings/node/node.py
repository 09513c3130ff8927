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
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple

from tidings.errors import Denied, EventError, InputError, PeerError, did_you_mean
from tidings.events import EventType
from tidings.filters import Condition, parse
from tidings.node.credentials import Credentials, Held, Truth
from tidings.node.customs import CacheTrustPolicy, Customs, Known
from tidings.node.effects import Ended, Joined, Keep, NodeEffect, Notify, Refused
from tidings.node.hops import Hop, Hops
from tidings.node.keytalk import CODEC, CONTROL, KeyTalk, Listen, Say, TalkEffect, genuine_or_none
from tidings.node.link import LinkAck, LinkCreds, LinkHello, LinkRevoke, Neighbourhood
from tidings.node.local import LocalSubscription, LocalSubscriptions, constraints_of
from tidings.node.reading import UNREAD
from tidings.node.typekeys import TypeKeys, event_id_of
from tidings.overlay import (
    Codec,
    Completed,
    Count,
    Deliver,
    Effect,
    EventId,
    Everything,
    Failed,
    Head,
    Interest,
    Message,
    NodeId,
    Parcel,
    Peer,
    Place,
    Protocol,
    Router,
    Send,
    Sql,
    SubscriptionId,
    View,
    WakeAt,
    peers_in,
    rewritten,
)
from tidings.overlay.router import Token
from tidings.security import (
    ANY_TYPE,
    Identity,
    KeyManager,
    Mode,
    RandomBytes,
    Request,
    SignedType,
    Signing,
    UnknownEpoch,
    split,
)

EVENT_BYTES_MAX = 256 * 1024  # An event as it travels; with plaintext beside it, still half of a message.
TYPES_MAX = 4096  # Declared at one node.
CLIENTS_MAX = 65_536  # Attached at once.
PARKED_MAX = 4096  # Events that wait for a key which is on its way.
INTRODUCED_MAX = 4096  # Peers that messages named and the driver has not asked for yet.
ROUTINE_S = 10.0  # Between two looks at what has expired.
_LINK = (LinkHello, LinkCreds, LinkAck, LinkRevoke)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePolicy:
    """How careful a node is."""

    network_key: bytes | None = None
    """Whose `join-net` rights make a node a member of the network; None: nobody needs to be one."""
    cache_trust: CacheTrustPolicy = "same-domain"
    """Whose plaintext is taken for true without opening what is sealed: that of one's own organisation, that
    of anybody who may read it (and is compared now and then), or nobody's."""
    signing: Signing = "none"
    """Whether events are signed by this broker, beside being sealed."""
    open_links: bool = False
    """Links need no introduction: for networks of one organisation, without rights."""
    bind_ids: bool = True
    """A node's id must be that of its key (`node_id_of`)."""
    traced_max: int = 4096
    """Recent events that `hop` can tell of; 0 for none."""


class _Parked(NamedTuple):
    until_ms: int
    parcel: Parcel
    came_from: NodeId


class Node:
    """One participant. No method but those that say so raises for anything a peer did."""

    def __init__(
        self,
        me: Peer,
        protocol: Protocol,
        identity: Identity,
        *,
        chance: Random,
        random: RandomBytes,
        neighbours: Sequence[Peer] = (),
        options: Mapping[str, Any] | None = None,
        policy: NodePolicy | None = None,
        domain: str = "",
        router: Router[Any] | None = None,
    ) -> None:
        """`chance` is the router's, for choices; `random` gives the bytes of keys and nonces."""
        self.me, self.protocol, self.identity = me, protocol, identity
        self.policy = policy or NodePolicy()
        self.router = router or protocol.build(Place(me, tuple(neighbours), chance), **(options or {}))
        self.truth = Truth()
        self._random, self._chance = random, chance
        self._types: dict[str, Known] = {}
        self._names: dict[str, list[str]] = {}
        self._clients: dict[str, Credentials] = {}
        self._near = Neighbourhood(
            identity,
            domain,
            self.truth,
            random,
            network_key=self.policy.network_key,
            owner_of=self._owner_of,
            open_links=self.policy.open_links,
            bind_ids=self.policy.bind_ids,
        )
        self._customs = Customs(self._types, self._near, self.policy.cache_trust, chance)
        self._talk = KeyTalk(identity, self._near.mine, self.truth)
        self._codec: Codec[Any] = Codec(protocol.messages | LinkHello | LinkCreds | LinkAck | LinkRevoke)
        self._hops = Hops(self.policy.traced_max)
        self._controls: dict[SubscriptionId, str] = {}
        self._subscriptions: dict[SubscriptionId, LocalSubscription] = {}
        self._subscribed = self._published = 0
        self._may: dict[tuple[str, str, tuple[str, ...]], tuple[int, int]] = {}
        self._parked: deque[_Parked] = deque(maxlen=PARKED_MAX)
        self._introduced: dict[NodeId, Peer] = {}
        self._framed: tuple[Message | None, bytes] = (None, b"")
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
        known = self._make_known(declared, now)
        if known.name in self._types:
            if self._types[known.name].event_type != known.event_type:
                raise InputError(f"{known.name} is declared here already, with other attributes")
            return []
        if len(self._types) >= TYPES_MAX:
            raise InputError(f"this node knows {TYPES_MAX} types already")
        self._types[known.name] = known
        names = {known.name, known.event_type.name, known.signed.name if known.signed else known.name}
        for name in sorted(names):
            self._names.setdefault(name, []).append(known.name)
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
                return [*effects, *self._said(self._talk.want(known.keys, now, self.now_ms(now)), now)]
        return effects

    def revoke(self, ids: Iterable[str], now: float) -> list[NodeEffect]:
        """These links of rights no longer count, whoever shows them; effective with the next thing that happens."""
        new = self.truth.revoke(ids)
        if not new:
            return []
        self._may.clear()
        self._customs.forget_interests()
        return [*self._said(self._talk.revoke(now, self.now_ms(now)), now), *self._expire(now)]

    def withdraw(self, ids: Sequence[str], now: float) -> list[NodeEffect]:
        """Give up rights of this broker's own that have one of these links, and tell the neighbours."""
        self._may.clear()
        return self._near.withdraw(ids)

    def said_yes(self, url: str, at_ms: int) -> None:
        """A right's online test was answered with yes."""
        self.truth.said_yes(url, at_ms)

    def host(self, manager: KeyManager, now: float) -> list[NodeEffect]:
        """Run a type's key manager here, over the overlay."""
        return self._said(self._talk.host(manager, now, self.now_ms(now)), now)

    def _make_known(self, declared: SignedType | EventType, now: float) -> Known:
        if isinstance(declared, EventType):
            if declared.name.startswith(CONTROL):
                raise InputError(f"{declared.name!r}: names that begin with {CONTROL} are the network's own")
            return Known(declared.name, declared, None, None, LocalSubscriptions(declared))
        declared.verify(self.now_ms(now))
        keys = None
        if declared.mode is not Mode.PLAIN:
            keys = TypeKeys(declared, self.identity, self._random, signing=self.policy.signing)
            keys.know(self.truth.online, self.truth.revoked)
        local = LocalSubscriptions(declared.event_type)
        return Known(declared.type_id.hex(), declared.event_type, declared, keys, local)

    def _read_token(self, token: bytes) -> Any:
        """A token for membership or for any type known here; raises Denied as the nearest of them does."""
        owners = {b"": None} | {known.signed.type_id: None for known in self._types.values() if known.signed}
        refusals: list[str] = []
        for type_id in owners:
            try:
                return self._near.read(type_id, token)
            except Denied as refused:
                refusals.append(str(refused))
        telling = [why for why in refusals if not why.startswith(("signature", "type"))]
        raise Denied((telling or refusals)[-1])

    def _owner_of(self, type_id: bytes) -> bytes | None:
        known = self._types.get(type_id.hex())
        return known.signed.owner_key if known is not None and known.signed is not None else None

    def _expire(self, now: float) -> list[NodeEffect]:
        """Ends what rests on rights that no longer hold."""
        now_ms = self.now_ms(now)
        effects = self._near.lapsed(now_ms)
        for one in [one for one in self._subscriptions.values() if one.held is not None]:
            assert one.held is not None
            if refusal := one.held.refusal(self.truth, now_ms):
                effects += [Ended(one.id, one.client, refusal), *self.unsubscribe(one.id, now)]
        for known in self._types.values():
            if known.keys is not None:
                known.keys.retire(now_ms)
        return [*effects, *self._unpark(now)]

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

        To be called when they are written. Raises Denied while the neighbour has not proven itself.
        """
        if isinstance(message, _LINK):
            return self._codec.encode(message)
        if not self._near.is_ready(to):
            raise Denied(f"link: {to} has not proven that it belongs here")
        if message is self._framed[0]:
            if (parcel := getattr(message, "parcel", None)) is not None:
                self._went(parcel, to, ())
            return self._framed[1]
        now_ms = self.now_ms(now)

        def change(part: Parcel | Interest) -> Parcel | Interest:
            if isinstance(part, Interest):
                return self._customs.give_interest(part)
            return self._customs.give_parcel(to, part, now_ms, lambda parcel, shown: self._went(parcel, to, shown))

        given = rewritten(message, change, Parcel, Interest)
        raw = self._codec.encode(given)
        # What was the same for this neighbour is the same for all: nothing in it is sealed.
        self._framed = (message, raw) if given is message else (None, b"")
        return raw

    def receive(self, sender: NodeId, raw: bytes, now: float) -> list[NodeEffect]:
        """Take a frame. The driver vouches for `sender`, and for nothing in the bytes. Never raises."""
        try:
            message = self._codec.decode(raw)
            if isinstance(message, _LINK):
                return self._near.take(sender, message, self.now_ms(now))
            if not self._near.is_ready(sender):
                raise Denied("link: a message from somebody who has not proven that it belongs here")
            message = self._opened(sender, message, now)
        except (PeerError, Denied) as refused:
            return self._refuse(sender, str(refused))
        return self._done(self.router.receive(sender, message, now), now, sender)

    def receive_many(self, frames: Iterable[tuple[NodeId, bytes]], now: float) -> list[NodeEffect]:
        """Take several frames, one after the other."""
        return [effect for sender, raw in frames for effect in self.receive(sender, raw, now)]

    def introduced(self) -> list[Peer]:
        """The peers that messages have named since this was last asked: whom, and where they are reached."""
        peers, self._introduced = list(self._introduced.values()), {}
        return peers

    def _opened(self, sender: NodeId, message: Any, now: float) -> Any:
        now_ms = self.now_ms(now)
        if len(self._introduced) < INTRODUCED_MAX:
            self._introduced.update((peer.id, peer) for peer in peers_in(message))

        def change(part: Parcel | Interest) -> Parcel | Interest:
            if isinstance(part, Interest):
                return self._customs.take_interest(part, now_ms)
            opened = self._customs.take_parcel(sender, part, now_ms)
            self._came(opened, sender, now)
            return opened

        return rewritten(message, change, Parcel, Interest)

    def _refuse(self, sender: NodeId, why: str) -> list[NodeEffect]:
        check = why.partition(":")[0]
        near = self._near.get(sender)
        # A lie about plaintext is the neighbour's own; what is wrong inside may have come from anywhere behind it.
        cut = check in ("cache", "link", "version", "right", "holder") or near is None or not near.ready
        return [Count(f"refused_{check if check.isidentifier() else 'message'}"), Refused(sender, why, cut)]

    # ── Clients ────────────────────────────────────────────────────────────────

    def attach(self, client: str, key: bytes, tokens: Iterable[bytes], now: float) -> list[NodeEffect]:
        """A client is here and has proven that it holds `key`. Raises Denied for a token that is not good."""
        if len(self._clients) >= CLIENTS_MAX and client not in self._clients:
            raise Denied(f"client: more than {CLIENTS_MAX} at once")
        credentials = Credentials(key, self.truth)
        for token in tokens:
            credentials.add(self._read_token(token))
        self._clients[client] = credentials
        self._may.clear()
        return []

    def detach(self, client: str, now: float, *, drop: bool = False) -> list[NodeEffect]:
        """The client is gone. Its subscriptions stay, for as long as its rights hold, unless they are to be dropped."""
        self._clients.pop(client, None)
        self._may.clear()
        gone = [one.id for one in self._subscriptions.values() if drop and one.client == client]
        return [effect for id in gone for effect in self.unsubscribe(id, now)]

    def publish(
        self, client: str, type: str, values: Mapping[str, Any], now: float, *, keep: bool = False
    ) -> tuple[EventId, list[NodeEffect]]:
        """Publish an event of a client's. With `keep`, a Keep comes before everything else.

        Raises Denied where the client or this broker may not, NotYet where a key or the clock must be waited
        for, EventError where the values do not fit. Nothing has happened then.
        """
        parcel = self._sealed(client, self._known(type), values, now)
        kept: list[NodeEffect] = [Keep(parcel.head.id, _kept(parcel))] if keep else []
        self._came(parcel, "", now)
        return parcel.head.id, [*kept, *self._done(self.router.publish(parcel, now), now)]

    def publish_many(
        self, client: str, type: str, events: Sequence[Mapping[str, Any]], now: float, *, keep: bool = False
    ) -> tuple[list[EventId], list[NodeEffect]]:
        """Publish several events of one type. Raises as `publish` does, for the first of them, before any is sent."""
        known = self._known(type)
        parcels = [self._sealed(client, known, values, now) for values in events]
        effects: list[NodeEffect] = [Keep(parcel.head.id, _kept(parcel)) for parcel in parcels] if keep else []
        for parcel in parcels:
            self._came(parcel, "", now)
            effects += self._done(self.router.publish(parcel, now), now)
        return [parcel.head.id for parcel in parcels], effects

    def publish_again(self, raw: bytes, now: float) -> list[NodeEffect]:
        """Say an event again that a Keep had written down: the same event, under the same id.

        Raises InputError for what no Keep wrote. A sealed event that has grown too old for its readers fails.
        """
        try:
            parcel = _KEPT.decode(raw)
        except PeerError as wrong:
            raise InputError(f"not an event that was kept: {wrong}") from None
        try:
            opened = self._customs.take_parcel("", parcel.parcel, self.now_ms(now))
        except PeerError as refused:
            return [Failed("publish", str(refused), parcel.parcel.head.id)]
        self._came(opened, "", now)
        return self._done(self.router.publish(opened, now), now)

    def subscribe(self, client: str, type: str, condition: str, now: float) -> tuple[SubscriptionId, list[NodeEffect]]:
        """Have a client told of matching events. Those published after Completed("subscribe", id) come.

        Raises Denied where the client or this broker may not read what the condition asks for, FilterError
        where the condition does not fit the type.
        """
        known = self._known(type)
        wanted = parse(condition, known.event_type)
        id = SubscriptionId(self.me.id, self.me.incarnation, self._subscribed + 1)
        one = LocalSubscription(id, client, known.name, wanted)
        mine = self._check_subscriber(one, known, now) if known.signed is not None else None
        interest = self._interest(one, known, mine, now)
        self._subscribed += 1
        known.local.add(one)
        self._subscriptions[id] = one
        if interest is None:
            return id, [Completed("subscribe", id)]
        return id, self._done(self.router.subscribe(interest, now), now)

    def unsubscribe(self, id: SubscriptionId, now: float) -> list[NodeEffect]:
        """Take a subscription back; one that is not there is taken back already."""
        one = self._subscriptions.pop(id, None)
        if one is None:
            return [Completed("unsubscribe", id)]
        self._types[one.type].local.remove(id)
        return self._done(self.router.unsubscribe(id, now), now)

    # ── Steps of a client's request ────────────────────────────────────────────

    def _known(self, type: str) -> Known:
        names = self._names.get(type, [])
        if len(names) == 1:
            return self._types[names[0]]
        if names:
            raise InputError(f"{len(names)} types are called {type!r}; say which by the full name or the id")
        raise InputError(f"there is no event type {type!r} here; {did_you_mean(type, self._names)}".rstrip("; "))

    def _sealed(self, client: str, known: Known, values: Mapping[str, Any], now: float) -> Parcel:
        checked = known.event_type.check(values)
        if known.signed is not None:
            self._check_publisher(client, known, known.signed, tuple(checked), now)
        if known.keys is None:
            self._published += 1
            id = EventId(self.me.id, self.me.incarnation, self._published)
            return Parcel(Head(id, known.name), View(checked))
        envelope = known.keys.seal(checked, self.now_ms(now))
        if len(envelope) > EVENT_BYTES_MAX:
            raise EventError(f"{known.event_type.name}: {len(envelope)} bytes; an event has at most {EVENT_BYTES_MAX}")
        parcel = Parcel(Head(event_id_of(self.me.id, split(envelope)), known.name), View(checked), envelope)
        self._customs.own(known.keys, parcel)
        return parcel

    def _check_publisher(
        self, client: str, known: Known, signed: SignedType, names: tuple[str, ...], now: float
    ) -> None:
        """Client and broker must both have the right; asked anew when rights change or one of the two ends."""
        now_ms = self.now_ms(now)
        until, changes = self._may.get((client, known.name, names), (0, -1))
        if now_ms < until and changes == self.truth.changes:
            return
        ids = frozenset(signed.attr_ids[name] for name in names) or frozenset(signed.attr_ids.values())
        request = Request(signed.type_id, "publish", ids)
        theirs = self._credentials(client).right_for(request, now_ms)
        mine = self._near.mine.right_for(request, now_ms)
        online = theirs.right.online or mine.right.online
        until = 0 if online else min(theirs.right.not_after, mine.right.not_after, signed.not_after)
        if len(self._may) >= CLIENTS_MAX:
            self._may.clear()
        self._may[client, known.name, names] = (until, self.truth.changes)

    def _check_subscriber(self, one: LocalSubscription, known: Known, now: float) -> Held:
        """Books what the client may see of the type; gives the broker's own right."""
        assert known.signed is not None
        theirs = self._right_to_read(self._credentials(one.client), one.condition, known.signed, now)
        mine = self._right_to_read(self._near.mine, one.condition, known.signed, now)
        names = {
            name: id
            for name, id in known.signed.attr_ids.items()
            if theirs.right.covers((id,)) and mine.right.covers((id,))
        }
        one.held = theirs
        one.shown = None if len(names) == len(known.signed.attr_ids) else frozenset(names)
        one.constraints = constraints_of(
            theirs,
            known.event_type,
            known.signed.attr_ids
            if known.keys is None
            else {name: id for name, id in known.signed.attr_ids.items() if mine.right.covers((id,))},
        )
        return mine

    def _right_to_read(self, credentials: Credentials, wanted: Condition, signed: SignedType, now: float) -> Held:
        now_ms = self.now_ms(now)
        if named := frozenset(signed.attr_ids[name] for name in wanted.attributes):
            return credentials.right_for(Request(signed.type_id, "subscribe", named), now_ms)
        for held in credentials.of(signed.type_id):  # It asks for no attribute, so any right to one will do.
            if "subscribe" in held.right.actions and held.refusal(self.truth, now_ms) is None:
                return held
        every = frozenset(signed.attr_ids.values())
        return credentials.right_for(Request(signed.type_id, "subscribe", every), now_ms)

    def _credentials(self, client: str) -> Credentials:
        credentials = self._clients.get(client)
        if credentials is None:
            raise Denied(f"client: {client!r} is not attached")
        return credentials

    def _interest(self, one: LocalSubscription, known: Known, mine: Held | None, now: float) -> Interest | None:
        """What the router is told of a subscription; nothing of one that no event can match."""
        if not one.condition.boxes:
            return None
        wanted = Sql.of(one.condition)
        if known.keys is None or mine is None:
            return Interest(one.id, known.name, wanted)
        one.version += 1
        envelope = known.keys.seal_filter(one.id, one.condition, one.version, mine, self.now_ms(now))
        return Interest(one.id, known.name, wanted if envelope else UNREAD, envelope)

    # ── Effects ────────────────────────────────────────────────────────────────

    def _done(self, effects: list[Effect], now: float, came_from: NodeId = "") -> list[NodeEffect]:
        """The router's effects as the node's: what is delivered is matched, control words are heard."""
        done: list[NodeEffect] = []
        for effect in effects:
            match effect:
                case Send():
                    done.append(effect)
                case Deliver(parcel):
                    done += self._deliver(parcel, now, came_from)
                case Completed("subscribe", SubscriptionId() as id):
                    done += self._stable(id, now)
                case Completed("unsubscribe", id) | Failed("subscribe" | "unsubscribe", _, id) if id in self._controls:
                    pass
                case _:
                    done.append(effect)
        return done

    def _stable(self, id: SubscriptionId, now: float) -> list[NodeEffect]:
        control = self._controls.get(id)
        if control is not None:
            return self._said(self._talk.listening(control, now, self.now_ms(now)), now)
        one = self._subscriptions.get(id)
        if one is None or one.stable:
            return []
        one.stable = True
        return [Completed("subscribe", id)]

    def _said(self, effects: Sequence[TalkEffect], now: float) -> list[NodeEffect]:
        """Carries out what is said and listened to about keys."""
        done: list[NodeEffect] = []
        for effect in effects:
            match effect:
                case Say(control, message):
                    self._published += 1
                    id = EventId(self.me.id, self.me.incarnation, self._published)
                    parcel = Parcel(Head(id, control), View({}), CODEC.encode(message))
                    done += self._done(self.router.publish(parcel, now), now)
                case Listen(control):
                    done += self._listen(control, now)
                case Joined():
                    done += [effect, *self._renew(effect.type, now), *self._unpark(now)]
                case _:
                    done.append(effect)
        return done

    def _listen(self, control: str, now: float) -> list[NodeEffect]:
        self._subscribed += 1
        id = SubscriptionId(self.me.id, self.me.incarnation, self._subscribed)
        self._controls[id] = control
        return self._done(self.router.subscribe(Interest(id, control, Everything()), now), now)

    def _renew(self, name: str, now: float) -> list[NodeEffect]:
        """Seals the subscriptions of a type again, under the keys of now, so that later members can read them."""
        known, done = self._types[name], list[NodeEffect]()
        for one in known.local.all():
            try:
                mine = self._right_to_read(self._near.mine, one.condition, known.signed, now) if known.signed else None
                interest = self._interest(one, known, mine, now)
            except Denied:
                continue  # It stays as it was: readable for fewer, and wanted all the same.
            if interest is not None:
                done += self._done(self.router.subscribe(interest, now), now)
        return done

    def _deliver(self, parcel: Parcel, now: float, came_from: NodeId) -> list[NodeEffect]:
        type = parcel.head.type
        if type.startswith(CONTROL):
            if not any(control == type for control in self._controls.values()):
                return []
            now_ms = self.now_ms(now)
            heard = genuine_or_none(self._talk, type, parcel.envelope, now, now_ms)
            return [*self._said(heard, now), *self._unpark(now)]
        known = self._types.get(type)
        if known is None or not len(known.local):
            return []
        if known.keys is not None and (refused := self._check_event(known.keys, parcel, now, came_from)) is not None:
            return refused
        return self._notify(known, parcel, now, came_from)

    def _check_event(self, keys: TypeKeys, parcel: Parcel, now: float, came_from: NodeId) -> list[NodeEffect] | None:
        """None if the event may be told to clients: fresh, new, and read with every key this node should have."""
        now_ms = self.now_ms(now)
        frame = self._customs.frame_of(parcel)
        try:
            if parcel.view.hidden or parcel.view.opaque:
                keys.check_keys(frame, now_ms)
            keys.replay.check(frame.type_id, frame.sender_id, frame.ts_ms, frame.seq, now_ms)
            if parcel.view.values:
                keys.replay.accept(frame.type_id, frame.sender_id, frame.ts_ms, frame.seq, now_ms)
        except UnknownEpoch:
            self._parked.append(_Parked(frame.ts_ms + keys.signed.grace_ms + keys.keyring.delay_ms, parcel, came_from))
            return [Count("parked")]
        except PeerError as refused:
            self._hops.refused(parcel.head.id, str(refused))
            return [Count(f"undelivered_{str(refused).partition(':')[0]}")]
        return None

    def _unpark(self, now: float) -> list[NodeEffect]:
        """Tries events again that came before their key."""
        if not self._parked:
            return []
        now_ms, waiting = self.now_ms(now), list(self._parked)
        self._parked.clear()
        done: list[NodeEffect] = []
        for one in waiting:
            if one.until_ms <= now_ms:
                done.append(Count("undelivered_key"))
                continue
            try:
                parcel = self._customs.take_parcel("", one.parcel, now_ms)
            except PeerError as refused:
                done.append(Count(f"undelivered_{str(refused).partition(':')[0]}"))
                continue
            done += [each for each in self._deliver(parcel, now, one.came_from) if each != Count("parked")]
        return done

    def _notify(self, known: Known, parcel: Parcel, now: float, came_from: NodeId) -> list[NodeEffect]:
        try:
            found = known.local.match(parcel.view)
        except EventError as wrong:
            self._hops.refused(parcel.head.id, f"event: {wrong}")
            return [Count("undelivered_event")]
        done: list[NodeEffect] = []
        id, values = parcel.head.id, parcel.view.values
        now_ms = self.now_ms(now) if known.signed is not None else 0
        for one in found:
            if one.held is not None and (refusal := one.held.refusal(self.truth, now_ms)):
                done += [Ended(one.id, one.client, refusal), *self.unsubscribe(one.id, now)]
                continue
            self._hops.told(id, one.id, one.client)
            done.append(Notify(one.id, one.client, id, known.event_type.name, one.shows(values), came_from))
        return done

    # ── Looking ────────────────────────────────────────────────────────────────

    def hop(self, event: EventId) -> Hop | None:
        """What this node did with a recent event; None if it does not remember it."""
        return self._hops.get(event)

    def why(self, event: EventId, subscription: SubscriptionId) -> str:
        """Why a subscription of this node was told of a recent event, or was not."""
        hop, one = self._hops.get(event), self._subscriptions.get(subscription)
        if hop is None:
            return "event: not seen here, or too long ago"
        if one is None:
            return "subscription: not of this node"
        if one.type != hop.type:
            return "type: the event is of another type than the subscription"
        if any(id == subscription for id, _ in hop.told):
            return f"told: {one.condition.text}"
        if hop.refused:
            return hop.refused
        unread = [name for name in one.asks if name in hop.hidden or hop.opaque]
        return f"key: this broker cannot read {', '.join(unread)}" if unread else f"not TRUE: {one.condition.text}"

    def subscriptions(self) -> list[LocalSubscription]:
        """The subscriptions of this node's clients, oldest first."""
        return list(self._subscriptions.values())

    def status(self, now: float) -> dict[str, Any]:
        """What there is to see of this node, as JSON has it. Nothing secret is in it."""
        now_ms = self.now_ms(now)
        return {
            "id": self.me.id,
            "incarnation": self.me.incarnation,
            "protocol": self.protocol.name,
            "links": list(self.router.links()),
            "neighbours": [_neighbour(near, now_ms) for near in self._near.all()],
            "types": [_type(known) for known in self._types.values()],
            "subscriptions": len(self._subscriptions),
            "clients": len(self._clients),
            "parked": len(self._parked),
            "holdings": {name: list(amount) for name, amount in self.holdings().items()},
        }

    def holdings(self) -> dict[str, tuple[int, int]]:
        """What this node keeps: for each kind how many there are and how many there may be."""
        return {
            **self.router.holdings(),
            **self._customs.holdings(),
            "parked": (len(self._parked), PARKED_MAX),
            "hops": (len(self._hops), max(self.policy.traced_max, 1)),
            "introduced": (len(self._introduced), 2 * INTRODUCED_MAX),
        }

    def _came(self, parcel: Parcel, sender: NodeId, now: float) -> None:
        if self.policy.traced_max and not parcel.head.type.startswith(CONTROL):
            self._hops.came(parcel.head.id, parcel.head.type, now, sender, parcel.view)

    def _went(self, parcel: Parcel, to: NodeId, shown: tuple[str, ...]) -> None:
        if self.policy.traced_max:
            self._hops.went(parcel.head.id, to, shown)


class _KeptEvent(Message, frozen=True):
    """A parcel as it is written down: sealed, or plain where its type is."""

    parcel: Parcel


_KEPT: Codec[_KeptEvent] = Codec(_KeptEvent)


def _kept(parcel: Parcel) -> bytes:
    bare = Parcel(parcel.head, View({}, opaque=True), parcel.envelope) if parcel.envelope else parcel
    return _KEPT.encode(_KeptEvent(bare))


def _neighbour(near: Any, now_ms: int) -> dict[str, Any]:
    held = near.credentials.all() if near.credentials else []
    return {
        "id": near.peer.id,
        "domain": near.hello.domain if near.hello else "",
        "ready": near.ready,
        "rights": sum(1 for one in held if one.right.type_id != ANY_TYPE),
    }


def _type(known: Known) -> dict[str, Any]:
    keys = known.keys
    epochs = {gid.hex()[:16]: [key.epoch for key in keys.keyring.epochs(gid)] for gid in keys.members} if keys else {}
    return {
        "name": known.event_type.name,
        "id": known.name,
        "mode": known.signed.mode.name.lower() if known.signed else "open",
        "epochs": epochs,
        "sender_id": keys.sender_id if keys else 0,
        "subscriptions": len(known.local),
    }
