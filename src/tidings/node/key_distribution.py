"""Keys over the overlay: asking for them, handing them out, and hearing of new ones.

Key groups need no network of their own. What is said about them are events of control types, which
every node routes like any other; their payload stands in the envelope, sealed or signed by itself.

    ~join/TYPE        AskedIn              a node asks the type's manager, which listens here
    ~welcome/HOLDER   LetIn, TurnedAway    the answer, sealed to the one who asked, or signed
    ~keys/TYPE        News                 new keys and the manager's regular word, for all members
                      WhoPublishes, Publishers   whose signatures count, where events are signed

A node asks once it knows that the answer will reach it, and asks again until it is answered. One that
missed an update asks anew: the welcome has all it needs. Every state of a manager is kept (`KeepKeys`)
before anything that rests on it is said.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec

from tidings.errors import Denied, PeerError
from tidings.node.credentials import Credentials, Held, Truth
from tidings.node.effects import Joined, KeepKeys, NodeEffect, NotJoined
from tidings.node.type_crypto import TypeKeys
from tidings.overlay import Codec, Count, Message, WakeAt
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

CONTROL = "~"  # No event type's name begins with it.
ASK_AGAIN_S = 5.0  # Longer than a word takes through any overlay and back.
ASK_AGAIN_S_MAX = 15.0  # With a manager that is away: soon enough after it has come back.
SOON_TRIES = 3  # So often a world waits for the answer; then asking again is routine.
ASK_PUBLISHERS_S = 2.0  # Between two questions who signs; an answer takes a word through the overlay and back.
TOKENS_AT_ONCE = 16  # Rights to publish that one broker shows.
BEACONS_AT_ONCE = 256  # In one word: 40 kB.


class AskedIn(Message, frozen=True):
    """A request to a key manager, signed by whoever asks."""

    raw: bytes


class LetIn(Message, frozen=True):
    """A manager's answer, sealed."""

    type_id: bytes
    raw: bytes


class TurnedAway(Message, frozen=True):
    """A manager's refusal of the request with this nonce, signed."""

    type_id: bytes
    nonce: bytes
    why: str
    signature: bytes


class News(Message, frozen=True):
    """New keys, and that old ones still hold; each signed by the manager."""

    updates: tuple[KeyUpdate, ...] = ()
    beacons: tuple[EpochBeacon, ...] = ()


class WhoPublishes(Message, frozen=True):
    """Whoever signs events of this type, show your right."""


class Publishers(Message, frozen=True):
    """Rights to publish; each speaks for itself."""

    tokens: tuple[bytes, ...]


ControlMessage: TypeAlias = AskedIn | LetIn | TurnedAway | News | WhoPublishes | Publishers
CODEC: Codec[ControlMessage] = Codec(ControlMessage)


class Say(msgspec.Struct, frozen=True):
    """To be published under a control type."""

    type: str
    message: ControlMessage


class Listen(msgspec.Struct, frozen=True):
    """Words of this control type are to come here."""

    type: str


TalkEffect: TypeAlias = NodeEffect | Say | Listen


@dataclass(slots=True)
class _Asking:
    """How far this node has come with one type."""

    keys: TypeKeys
    tries: int = 0
    round: int = 0
    showed_at: float = -math.inf
    """When this node last told of its right to publish."""


@dataclass(slots=True)
class KeyTalk:
    """One node's part in the talk about keys: of the types it reads, and of those whose manager it hosts."""

    identity: Identity
    mine: Credentials
    truth: Truth
    _asking: dict[str, _Asking] = field(default_factory=dict)
    _managers: dict[str, KeyManager] = field(default_factory=dict)
    _heard: dict[str, bool] = field(default_factory=dict)
    """The control types listened to, and whether others know."""
    _asked_at: dict[str, float] = field(default_factory=dict)
    _rounds: dict[tuple[str, str], int] = field(default_factory=dict)
    """Which of a manager's wakes is the one that counts: an earlier one cannot be taken back."""

    # ── Asking for keys ──

    def want(self, keys: TypeKeys, now: float, now_ms: int) -> list[TalkEffect]:
        """This node has a right to the type: have its keys come, if they are not here."""
        name = keys.signed.type_id.hex()
        asking = self._asking.setdefault(name, _Asking(keys))
        if not self._groups(keys, now_ms):
            return []
        effects: list[TalkEffect] = [
            Listen(control) for control in self._needed(name) if self._heard.setdefault(control, False) is False
        ]
        keys.awaited, asking.tries = {held.raw: None for held in self._rights(keys, now_ms)}, 0
        keys.expected = True
        asking.round += 1
        return [*effects, *self._ask(name, asking, now, now_ms)]

    def listening(self, control: str, now: float, now_ms: int) -> list[TalkEffect]:
        """Others know now that this node listens to a control type."""
        if self._heard.get(control):
            return []
        self._heard[control] = True
        return [
            effect
            for name, asking in self._asking.items()
            if asking.keys.awaited and control in self._needed(name)
            for effect in self._ask(name, asking, now, now_ms)
        ]

    def ask_again(self, name: str, round: int, now: float, now_ms: int) -> list[TalkEffect]:
        """The time for an answer is over."""
        asking = self._asking.get(name)
        if asking is None or not asking.keys.awaited or asking.round != round:
            return []
        return self._ask(name, asking, now, now_ms)

    def _ask(self, name: str, asking: _Asking, now: float, now_ms: int) -> list[TalkEffect]:
        if not all(self._heard.get(control) for control in self._needed(name)):
            return []
        asking.tries += 1
        asking.round += 1
        wait_s = min(ASK_AGAIN_S * asking.tries, ASK_AGAIN_S_MAX)
        rights = self._rights(asking.keys, now_ms)
        said = [Say(f"{CONTROL}join/{name}", AskedIn(asking.keys.ask(held, now_ms))) for held in rights]
        asking.keys.awaited = {held.raw: None for held in rights}
        return [*said, WakeAt(now + wait_s, _token("join", name, asking.round), idle=asking.tries > SOON_TRIES)]

    def _needed(self, name: str) -> tuple[str, str]:
        return f"{CONTROL}welcome/{self.identity.public_key.hex()}", f"{CONTROL}keys/{name}"

    def _rights(self, keys: TypeKeys, now_ms: int) -> list[Held]:
        return [
            held
            for held in self.mine.of(keys.signed.type_id)
            if held.refusal(self.truth, now_ms) is None and keys.groups_for(held)
        ]

    def _groups(self, keys: TypeKeys, now_ms: int) -> bool:
        return bool(self._rights(keys, now_ms))

    # ── Handing keys out ──

    def host(self, manager: KeyManager, now: float, now_ms: int) -> list[TalkEffect]:
        """Run a type's key manager here."""
        name = manager.signed_type.type_id.hex()
        self._managers[name] = manager
        control = f"{CONTROL}join/{name}"
        listen: list[TalkEffect] = [] if control in self._heard else [Listen(control)]
        self._heard.setdefault(control, False)
        round = self._rounds.get(("beacon", name), 0)
        return [*listen, *self._manage(name, [], now, now_ms), *self.beacons(name, round, now, now_ms)]

    def tick(self, name: str, round: int, now: float, now_ms: int) -> list[TalkEffect]:
        """A manager's next moment has come."""
        manager = self._managers.get(name)
        if manager is None or self._rounds.get(("tick", name)) != round:
            return []
        try:
            return self._manage(name, manager.tick(now_ms), now, now_ms)
        except Denied:  # Its clock stepped back: it stands still until time has caught up.
            return [Count("manager_clock_back"), self._next("tick", name, now + 1.0)]

    def beacons(self, name: str, round: int, now: float, now_ms: int) -> list[TalkEffect]:
        """A manager's regular word, every half grace."""
        manager = self._managers.get(name)
        if manager is None or self._rounds.get(("beacon", name), 0) != round:
            return []
        said = [effect.message for effect in manager.beacons(now_ms) if isinstance(effect, Broadcast)]
        beacons = [message for message in said if isinstance(message, EpochBeacon)]
        words: list[TalkEffect] = [
            Say(f"{CONTROL}keys/{name}", News(beacons=tuple(beacons[start : start + BEACONS_AT_ONCE])))
            for start in range(0, len(beacons), BEACONS_AT_ONCE)
        ]
        half_s = manager.policy.grace_ms / 2000
        return [*words, self._next("beacon", name, now + half_s)]

    def revoke(self, now: float, now_ms: int) -> list[TalkEffect]:
        """Links were revoked: shut out whoever rests on them."""
        effects: list[TalkEffect] = []
        for name, manager in self._managers.items():
            hit = any(
                id in self.truth.revoked
                for group in manager.groups.values()
                for member in group.members.values()
                for id in member.revocation_ids
            )
            if hit:
                effects += self._manage(name, manager.revoke(self.truth.revoked, now_ms), now, now_ms)
        return effects

    def _manage(self, name: str, done: Iterable[ManagerEffect], now: float, now_ms: int) -> list[TalkEffect]:
        manager = self._managers[name]
        effects: list[TalkEffect] = []
        for each in done:
            match each:
                case Persist(generation):
                    effects.append(KeepKeys(manager.signed_type.type_id, generation))
                case Reply(holder, message):
                    control = f"{CONTROL}welcome/{holder.hex()}"
                    effects.append(Say(control, LetIn(manager.signed_type.type_id, message)))
                case Broadcast(KeyUpdate() as update):
                    effects.append(Say(f"{CONTROL}keys/{name}", News(updates=(update,))))
                case Broadcast(EpochBeacon() as beacon):
                    effects.append(Say(f"{CONTROL}keys/{name}", News(beacons=(beacon,))))
        wait_s = max(0.0, (manager.next_tick_ms - now_ms) / 1000)
        return [*effects, self._next("tick", name, now + wait_s)]

    def _next(self, what: str, name: str, when: float) -> WakeAt:
        round = self._rounds[what, name] = self._rounds.get((what, name), 0) + 1
        return WakeAt(when, _token(what, name, round), idle=True)

    # ── Hearing ──

    def hear(self, control: str, raw: bytes, now: float, now_ms: int) -> list[TalkEffect]:
        """A word of a control type; raises PeerError or Denied for one that is not genuine."""
        message = CODEC.decode(raw)
        name = control.partition("/")[2]
        match message:
            case AskedIn(asked):
                return self._asked_in(name, asked, now, now_ms)
            case LetIn(type_id, sealed):
                return self._let_in(type_id.hex(), sealed, now, now_ms)
            case TurnedAway():
                return self._turned_away(message)
            case News(updates, beacons):
                return self._news(name, (*updates, *beacons), now, now_ms)
            case WhoPublishes():
                return self._show_right(name, now, now_ms)
            case Publishers(tokens):
                return self._know(name, tokens)

    def _asked_in(self, name: str, asked: bytes, now: float, now_ms: int) -> list[TalkEffect]:
        manager = self._managers.get(name)
        if manager is None:
            return []
        try:
            done = manager.join(asked, now_ms, revoked=self.truth.revoked, online=self.truth.online)
        except Denied as refused:
            return [Count("joins_refused"), *self._refuse(manager, asked, str(refused))]
        return self._manage(name, done, now, now_ms)

    def _refuse(self, manager: KeyManager, asked: bytes, why: str) -> list[TalkEffect]:
        holder, nonce, signature = manager.refuse(asked, why)
        word = TurnedAway(manager.signed_type.type_id, nonce, why, signature)
        return [Say(f"{CONTROL}welcome/{holder.hex()}", word)]

    def _let_in(self, name: str, sealed: bytes, now: float, now_ms: int) -> list[TalkEffect]:
        asking = self._asking.get(name)
        if asking is None:
            return []
        keys = asking.keys
        keys.welcome(sealed, now_ms)
        asked = self.who_publishes(name, now) if keys.need_signatures else []
        return [*self._joined(name, keys), *self._show_right(name, now, now_ms), *asked]

    def _joined(self, name: str, keys: TypeKeys) -> list[TalkEffect]:
        """For the first time with the answer to the last right: until then clients would be shown less than they may see."""
        keys.is_in = keys.is_in or not keys.awaited
        return [Joined(name, len(keys.members), keys.sender_id)] if keys.is_in else []

    def who_publishes(self, name: str, now: float) -> list[TalkEffect]:
        """Ask who signs events of a type; not more often than ASK_PUBLISHERS_S."""
        if now - self._asked_at.get(name, -ASK_PUBLISHERS_S) < ASK_PUBLISHERS_S:
            return []
        self._asked_at[name] = now
        return [Say(f"{CONTROL}keys/{name}", WhoPublishes())]

    def _show_right(self, name: str, now: float, now_ms: int) -> list[TalkEffect]:
        asking = self._asking.get(name)
        if asking is None or asking.keys.signing == "none" or now - asking.showed_at < ASK_PUBLISHERS_S / 2:
            return []
        asking.showed_at = now
        held = [one.raw for one in self._rights(asking.keys, now_ms) if "publish" in one.right.actions]
        return [Say(f"{CONTROL}keys/{name}", Publishers(tuple(held[:TOKENS_AT_ONCE])))] if held else []

    def _know(self, name: str, tokens: tuple[bytes, ...]) -> list[TalkEffect]:
        asking = self._asking.get(name)
        if asking is not None and asking.keys.need_signatures:
            for token in tokens[:TOKENS_AT_ONCE]:
                asking.keys.know_publisher(token)
        return []

    def _turned_away(self, word: TurnedAway) -> list[TalkEffect]:
        name = word.type_id.hex()
        asking = self._asking.get(name)
        if asking is None or not asking.keys.is_asking(word.nonce):
            return []
        keys = asking.keys
        verify_refusal(keys.signed, word.nonce, word.why, word.signature)
        keys.answered(word.nonce)
        keys.expected = bool(keys.awaited)
        is_last = keys.members and not keys.is_in  # What came before it has waited for this answer.
        return [NotJoined(name, word.why), *(self._joined(name, keys) if is_last else [])]

    def _news(self, name: str, news: tuple[KeyUpdate | EpochBeacon, ...], now: float, now_ms: int) -> list[TalkEffect]:
        asking = self._asking.get(name)
        if asking is None:
            return []
        missed = False
        for each in news:
            try:
                asking.keys.hear(each, now_ms)
            except NeedResync:
                missed = True
        if missed and not asking.keys.awaited:
            return [Count("keys_missed"), *self.want(asking.keys, now, now_ms)]
        return []


def genuine_or_none(talk: KeyTalk, control: str, raw: bytes, now: float, now_ms: int) -> list[TalkEffect]:
    """As `KeyTalk.hear`; a word that is not genuine is counted, for anybody may say anything."""
    try:
        return talk.hear(control, raw, now, now_ms)
    except (PeerError, Denied):
        return [Count("control_refused")]


def _token(what: str, name: str, number: int) -> tuple[str, str, str, int]:
    return (CONTROL, what, name, number)
