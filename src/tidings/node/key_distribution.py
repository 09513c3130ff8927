"""Key distribution over the overlay: join requests, their answers, key updates and beacons.

Key groups need no network of their own. Their messages travel as events of control types, which every node routes
like any other; the payload is in the envelope, sealed or signed by itself.

    ~join/TYPE        JoinRequest          a node asks the type's key manager, which subscribes to this
    ~welcome/HOLDER   JoinReply            the answer: keys, sealed to the node
                      JoinRefusal          or why not, signed
    ~keys/TYPE        KeyAnnouncement      new keys and the manager's beacons, for all members
                      PublisherQuery       who may sign events, where signatures are required
                      PublisherTokens      the rights of those who may

A node sends its request once its subscription to the answer is in place, and repeats it until it is answered. A node
that missed an update joins again: the welcome has everything it needs. The driver stores every state of a manager
(`KeepKeys`) before anything that depends on it is sent.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec

from tidings.errors import Denied, PeerError
from tidings.node.credentials import Credentials, HeldToken, RevocationState
from tidings.node.effects import Joined, KeepKeys, NodeEffect, NotJoined
from tidings.node.type_crypto import TypeCrypto
from tidings.node.type_registry import CONTROL
from tidings.overlay import Codec, Count, Everything, Interest, Message, SubscriptionId, WakeAt
from tidings.security import (
    Broadcast,
    EpochBeacon,
    Identity,
    KeyManager,
    KeyUpdate,
    ManagerEffect,
    NeedResync,
    Persist,
    Reply,
    verify_refusal,
)

ASK_AGAIN_S = 5.0  # Longer than a round trip through any overlay.
ASK_AGAIN_S_MAX = 15.0  # While the manager is down: soon enough after its return.
PLACE_S_MAX = 10.0  # How long the overlay may take to put the subscription to the answer in place.
SOON_TRIES = 3  # The simulator waits for so many tries; later ones count as idle.
ASK_PUBLISHERS_S = 2.0  # Between two queries; an answer takes a round trip through the overlay.
TOKENS_AT_ONCE = 16  # Rights to publish in one answer.
BEACONS_AT_ONCE = 256  # In one message: 40 kB.


class GroupJoinRequest(Message, frozen=True, tag="AskedIn"):
    """A request to a key manager, signed by the requester."""

    raw: bytes


class JoinReply(Message, frozen=True, tag="LetIn"):
    """A manager's answer with keys, sealed to the requester."""

    type_id: bytes
    raw: bytes


class JoinRefusal(Message, frozen=True, tag="TurnedAway"):
    """A manager's refusal of the request with this nonce, signed."""

    type_id: bytes
    nonce: bytes
    why: str
    signature: bytes


class KeyAnnouncement(Message, frozen=True, tag="News"):
    """Key updates, and beacons for the current keys; each signed by the manager."""

    updates: tuple[KeyUpdate, ...] = ()
    beacons: tuple[EpochBeacon, ...] = ()


class PublisherQuery(Message, frozen=True, tag="WhoPublishes"):
    """Asks every broker that signs events of this type for its right."""


class PublisherTokens(Message, frozen=True, tag="Publishers"):
    """Rights to publish; each token proves itself."""

    tokens: tuple[bytes, ...]


ControlMessage: TypeAlias = (
    GroupJoinRequest | JoinReply | JoinRefusal | KeyAnnouncement | PublisherQuery | PublisherTokens
)
CODEC: Codec[ControlMessage] = Codec(ControlMessage)


class PublishControl(msgspec.Struct, frozen=True):
    """Publish a message under a control type."""

    type: str
    message: ControlMessage


class SubscribeControl(msgspec.Struct, frozen=True):
    """Subscribe this node to a control type."""

    type: str


KeyEffect: TypeAlias = NodeEffect | PublishControl | SubscribeControl


@dataclass(slots=True)
class _Join:
    """The state of this node's membership in the key groups of one type."""

    keys: TypeCrypto
    tries: int = 0
    round: int = 0
    sent_right_at: float = -math.inf
    """When this node last sent its right to publish."""


@dataclass(slots=True)
class KeyDistribution:
    """One node's part in key distribution: as a member for the types it reads, as the host of key managers."""

    identity: Identity
    mine: Credentials
    state: RevocationState
    ask_again_s: float = ASK_AGAIN_S
    """After the first request to a key manager that is not answered; after each further one, longer."""
    _joins: dict[str, _Join] = field(default_factory=dict)
    _managers: dict[str, KeyManager] = field(default_factory=dict)
    _subscribed: dict[str, bool] = field(default_factory=dict)
    """The control types this node subscribes to, and whether the subscription is in place."""
    _controls: dict[SubscriptionId, str] = field(default_factory=dict)
    """The same by the id of the subscription."""
    _asked_at: dict[str, float] = field(default_factory=dict)
    _rounds: dict[tuple[str, str], int] = field(default_factory=dict)
    """The number of a manager's current timer: an earlier one cannot be cancelled and is ignored."""

    # ── Requesting keys ──

    def request_keys(self, keys: TypeCrypto, now: float, now_ms: int) -> list[KeyEffect]:
        """This node has a right to the type: request its keys."""
        name = keys.signed.type_id.hex()
        join = self._joins.setdefault(name, _Join(keys))
        if not self._groups(keys, now_ms):
            return []
        effects: list[KeyEffect] = [
            SubscribeControl(control)
            for control in self._needed(name)
            if self._subscribed.setdefault(control, False) is False
        ]
        keys.awaited, join.tries = {held.raw: None for held in self._rights(keys, now_ms)}, 0
        keys.expected = True
        join.round += 1
        requests = self._request(name, join, now, now_ms)
        if not requests:  # The overlay may never say that it is in place: requests and answers go straight as well.
            requests = [WakeAt(now + PLACE_S_MAX, _token("join", name, join.round), idle=True)]
        return [*effects, *requests]

    def subscribed(self, control: str, id: SubscriptionId) -> Interest:
        """The interest by which this node subscribes to a control type, under this id."""
        self._controls[id] = control
        return Interest(id, control, Everything())

    def interest(self, id: SubscriptionId) -> Interest | None:
        """The interest in a control type that has this id; None for any other id."""
        control = self._controls.get(id)
        return None if control is None else Interest(id, control, Everything())

    def is_subscribed(self, control: str) -> bool:
        return control in self._controls.values()

    def listens_to(self) -> list[str]:
        """The control types that this node subscribes to."""
        return list(self._subscribed)

    def in_place(self, control: str, now: float, now_ms: int) -> list[KeyEffect]:
        """The subscription to a control type is in place everywhere: send the requests that waited for it."""
        if self._subscribed.get(control):
            return []
        self._subscribed[control] = True
        return [
            effect
            for name, join in self._joins.items()
            if join.keys.awaited and control in self._needed(name)
            for effect in self._request(name, join, now, now_ms)
        ]

    def retry(self, name: str, round: int, now: float, now_ms: int) -> list[KeyEffect]:
        """No answer came in time: send the request again."""
        join = self._joins.get(name)
        if join is None or not join.keys.awaited or join.round != round:
            return []
        return self._request(name, join, now, now_ms, anyway=True)

    def _request(self, name: str, join: _Join, now: float, now_ms: int, *, anyway: bool = False) -> list[KeyEffect]:
        if not anyway and not all(self._subscribed.get(control) for control in self._needed(name)):
            return []
        join.tries += 1
        join.round += 1
        wait_s = min(self.ask_again_s * join.tries, ASK_AGAIN_S_MAX)
        rights = self._rights(join.keys, now_ms)
        requests: list[KeyEffect] = [
            PublishControl(f"{CONTROL}join/{name}", GroupJoinRequest(join.keys.join_request(held, now_ms)))
            for held in rights
        ]
        join.keys.awaited = {held.raw: None for held in rights}
        return [*requests, WakeAt(now + wait_s, _token("join", name, join.round), idle=join.tries > SOON_TRIES)]

    def _needed(self, name: str) -> tuple[str, str]:
        return f"{CONTROL}welcome/{self.identity.public_key.hex()}", f"{CONTROL}keys/{name}"

    def _rights(self, keys: TypeCrypto, now_ms: int) -> list[HeldToken]:
        return [
            held
            for held in self.mine.of(keys.signed.type_id)
            if held.refusal(self.state, now_ms) is None and keys.groups_for(held)
        ]

    def _groups(self, keys: TypeCrypto, now_ms: int) -> bool:
        return bool(self._rights(keys, now_ms))

    # ── Hosting a key manager ──

    def host(self, manager: KeyManager, now: float, now_ms: int) -> list[KeyEffect]:
        """Run a type's key manager here."""
        name = manager.signed_type.type_id.hex()
        self._managers[name] = manager
        control = f"{CONTROL}join/{name}"
        listen: list[KeyEffect] = [] if control in self._subscribed else [SubscribeControl(control)]
        self._subscribed.setdefault(control, False)
        round = self._rounds.get(("beacon", name), 0)
        return [*listen, *self._manage(name, [], now, now_ms), *self.beacons(name, round, now, now_ms)]

    def tick(self, name: str, round: int, now: float, now_ms: int) -> list[KeyEffect]:
        """A manager's timer has fired."""
        manager = self._managers.get(name)
        if manager is None or self._rounds.get(("tick", name)) != round:
            return []
        try:
            return self._manage(name, manager.tick(now_ms), now, now_ms)
        except Denied:  # The clock stepped back: the manager pauses until it has caught up.
            return [Count("manager_clock_back"), self._next("tick", name, now + 1.0)]

    def beacons(self, name: str, round: int, now: float, now_ms: int) -> list[KeyEffect]:
        """Send a manager's beacons, every half grace period."""
        manager = self._managers.get(name)
        if manager is None or self._rounds.get(("beacon", name), 0) != round:
            return []
        broadcast = [effect.message for effect in manager.beacons(now_ms) if isinstance(effect, Broadcast)]
        beacons = [message for message in broadcast if isinstance(message, EpochBeacon)]
        messages: list[KeyEffect] = [
            PublishControl(
                f"{CONTROL}keys/{name}", KeyAnnouncement(beacons=tuple(beacons[start : start + BEACONS_AT_ONCE]))
            )
            for start in range(0, len(beacons), BEACONS_AT_ONCE)
        ]
        half_s = manager.policy.grace_ms / 2000
        return [*messages, self._next("beacon", name, now + half_s)]

    def revoke(self, now: float, now_ms: int) -> list[KeyEffect]:
        """Links were revoked: expel the members whose rights contain them."""
        effects: list[KeyEffect] = []
        for name, manager in self._managers.items():
            hit = any(
                id in self.state.revoked
                for group in manager.groups.values()
                for member in group.members.values()
                for id in member.revocation_ids
            )
            if hit:
                effects += self._manage(name, manager.revoke(self.state.revoked, now_ms), now, now_ms)
        return effects

    def evict_lapsed(self, now: float, now_ms: int) -> list[KeyEffect]:
        """Expel the members whose rights need a recent yes of an online test, and have none."""
        effects: list[KeyEffect] = []
        for name, manager in self._managers.items():
            if lapsed := manager.lapsed(self.state.online, now_ms):
                effects += self._manage(name, manager.revoke(lapsed, now_ms), now, now_ms)
        return effects

    def _manage(self, name: str, done: Iterable[ManagerEffect], now: float, now_ms: int) -> list[KeyEffect]:
        manager = self._managers[name]
        effects: list[KeyEffect] = []
        for each in done:
            match each:
                case Persist(generation):
                    effects.append(KeepKeys(manager.signed_type.type_id, generation))
                case Reply(holder, message):
                    control = f"{CONTROL}welcome/{holder.hex()}"
                    effects.append(PublishControl(control, JoinReply(manager.signed_type.type_id, message)))
                case Broadcast(KeyUpdate() as update):
                    effects.append(PublishControl(f"{CONTROL}keys/{name}", KeyAnnouncement(updates=(update,))))
                case Broadcast(EpochBeacon() as beacon):
                    effects.append(PublishControl(f"{CONTROL}keys/{name}", KeyAnnouncement(beacons=(beacon,))))
        wait_s = max(0.0, (manager.next_tick_ms - now_ms) / 1000)
        return [*effects, self._next("tick", name, now + wait_s)]

    def _next(self, what: str, name: str, when: float) -> WakeAt:
        round = self._rounds[what, name] = self._rounds.get((what, name), 0) + 1
        return WakeAt(when, _token(what, name, round), idle=True)

    # ── Receiving ──

    def receive(self, control: str, raw: bytes, now: float, now_ms: int) -> list[KeyEffect]:
        """Take a message of a control type. One that is not genuine is only counted: anybody may send anything."""
        try:
            return self._receive(control, raw, now, now_ms)
        except (PeerError, Denied):
            return [Count("control_refused")]

    def _receive(self, control: str, raw: bytes, now: float, now_ms: int) -> list[KeyEffect]:
        message = CODEC.decode(raw)
        name = control.partition("/")[2]
        match message:
            case GroupJoinRequest(asked):
                return self._join_requested(name, asked, now, now_ms)
            case JoinReply(type_id, sealed):
                return self._welcomed(type_id.hex(), sealed, now, now_ms)
            case JoinRefusal():
                return self._refused(message)
            case KeyAnnouncement(updates, beacons):
                return self._announced(name, (*updates, *beacons), now, now_ms)
            case PublisherQuery():
                return self._send_right(name, now, now_ms)
            case PublisherTokens(tokens):
                return self._add_publishers(name, tokens)

    def _join_requested(self, name: str, asked: bytes, now: float, now_ms: int) -> list[KeyEffect]:
        manager = self._managers.get(name)
        if manager is None:
            return []
        try:
            done = manager.join(asked, now_ms, revoked=self.state.revoked, online=self.state.online)
        except Denied as refused:
            return [Count("joins_refused"), *self._refuse(manager, asked, str(refused))]
        return self._manage(name, done, now, now_ms)

    def _refuse(self, manager: KeyManager, asked: bytes, why: str) -> list[KeyEffect]:
        holder, nonce, signature = manager.refuse(asked, why)
        refusal = JoinRefusal(manager.signed_type.type_id, nonce, why, signature)
        return [PublishControl(f"{CONTROL}welcome/{holder.hex()}", refusal)]

    def _welcomed(self, name: str, sealed: bytes, now: float, now_ms: int) -> list[KeyEffect]:
        join = self._joins.get(name)
        if join is None:
            return []
        keys = join.keys
        keys.welcome(sealed, now_ms)
        asked = self.query_publishers(name, now) if keys.need_signatures else []
        return [*self._joined(name, keys), *self._send_right(name, now, now_ms), *asked]

    def _joined(self, name: str, keys: TypeCrypto) -> list[KeyEffect]:
        """Joined, once every token has its answer: until then clients would see less than they may."""
        keys.is_in = keys.is_in or not keys.awaited
        return [Joined(name, len(keys.members), keys.sender_id)] if keys.is_in else []

    def query_publishers(self, name: str, now: float) -> list[KeyEffect]:
        """Ask who signs events of a type, at most every ASK_PUBLISHERS_S."""
        if now - self._asked_at.get(name, -ASK_PUBLISHERS_S) < ASK_PUBLISHERS_S:
            return []
        self._asked_at[name] = now
        return [PublishControl(f"{CONTROL}keys/{name}", PublisherQuery())]

    def _send_right(self, name: str, now: float, now_ms: int) -> list[KeyEffect]:
        join = self._joins.get(name)
        if join is None or join.keys.signing == "none" or now - join.sent_right_at < ASK_PUBLISHERS_S / 2:
            return []
        join.sent_right_at = now
        held = [one.raw for one in self._rights(join.keys, now_ms) if "publish" in one.right.actions]
        return [PublishControl(f"{CONTROL}keys/{name}", PublisherTokens(tuple(held[:TOKENS_AT_ONCE])))] if held else []

    def _add_publishers(self, name: str, tokens: tuple[bytes, ...]) -> list[KeyEffect]:
        join = self._joins.get(name)
        if join is not None and join.keys.need_signatures:
            for token in tokens[:TOKENS_AT_ONCE]:
                join.keys.add_publisher(token)
        return []

    def _refused(self, refusal: JoinRefusal) -> list[KeyEffect]:
        name = refusal.type_id.hex()
        join = self._joins.get(name)
        if join is None or not join.keys.has_requested(refusal.nonce):
            return []
        keys = join.keys
        verify_refusal(keys.signed, refusal.nonce, refusal.why, refusal.signature)
        keys.answered(refusal.nonce)
        keys.refusal = refusal.why
        keys.expected = bool(keys.awaited)
        is_last = keys.members and not keys.is_in  # The keys received before have waited for this answer.
        return [NotJoined(name, refusal.why), *(self._joined(name, keys) if is_last else [])]

    def _announced(
        self, name: str, news: tuple[KeyUpdate | EpochBeacon, ...], now: float, now_ms: int
    ) -> list[KeyEffect]:
        join = self._joins.get(name)
        if join is None:
            return []
        missed = False
        for each in news:
            try:
                join.keys.receive(each, now_ms)
            except NeedResync:
                missed = True
        if missed and not join.keys.awaited:
            return [Count("keys_missed"), *self.request_keys(join.keys, now, now_ms)]
        return []


def _token(what: str, name: str, number: int) -> tuple[str, str, str, int]:
    return (CONTROL, what, name, number)
