"""One sealed type as this node deals with it: keys held, events opened, filters opened, both sealed.

Everything is as far as the keys go. An event's view names what this node cannot read; a filter's
unreadable parts count as true. The head of a packet is tied to what is sealed: its type is the
frame's, its id the sender id and moment that the tags depend on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

import msgspec

from tidings.errors import Denied, ErrorCode, InputError, PeerError
from tidings.events import Value
from tidings.filters import Condition
from tidings.node.credentials import Credentials, Held, Truth
from tidings.node.filter_encoding import UNREAD, clauses_of, wanted_from
from tidings.overlay import SEALED, AnyWanted, EventId, Header, Interest, SubscriptionId, View
from tidings.security import (
    DELAY_MS,
    AccessRequest,
    CacheTrust,
    EpochBeacon,
    FilterOpener,
    FilterSealer,
    Frame,
    GroupMember,
    Identity,
    JoinWelcome,
    Keyring,
    KeyUpdate,
    Mode,
    NotYet,
    Opener,
    RandomBytes,
    ReplayWindow,
    Sealer,
    SealingKey,
    SignedType,
    Signing,
    UnknownEpoch,
    Verifier,
    fingerprint,
    make_join,
    open_welcome,
)

PUBLISHERS_MAX = 4096  # Brokers that publish one type.
JOINS_MAX = 64  # Requests that may still be answered; older ones were lost.
INTEREST_BYTES_MAX = 2**16  # A sealed filter and the token that it rests on; one of a thousand texts fits.
WAIT_MS = 1_000  # How long to wait, as a first guess, for keys that are on their way.


class SealedInterest(msgspec.Struct, frozen=True, array_like=True):
    """A subscription as it travels: the sealed filter, and the right of the broker that signed it."""

    frame: bytes
    token: bytes


class UnknownPublisher(PeerError):
    """An event is signed by somebody of whom this node knows no right: it may have to be asked for."""

    code = ErrorCode.PUBLISHER


@dataclass(slots=True)
class _Presented:
    """The token that came with the filter being read, and until when it turned out to hold."""

    token: bytes
    now_ms: int
    not_after: int = 0


class TypeKeys:
    """What one node holds of one sealed type."""

    def __init__(
        self,
        signed: SignedType,
        identity: Identity,
        random: RandomBytes,
        truth: Truth,
        *,
        signing: Signing = "none",
        need_signatures: bool = False,
        late_ms: int = DELAY_MS,
    ) -> None:
        self.signed, self._identity, self._random, self._truth = signed, identity, random, truth
        self.signing, self.need_signatures = signing, need_signatures
        self.keyring = Keyring(signed, delay_ms=late_ms, beacons=True)
        self.opener = Opener(signed, self.keyring)
        self._publishers: dict[bytes, Credentials] = {}
        self._signed_opener = Opener(signed, self.keyring, may_publish=self._may_publish)
        self.replay = ReplayWindow(grace_ms=signed.grace_ms, delay_ms=late_ms)
        self.sender_id = 0
        self.expected = False
        """Whether keys have been asked for, or will be, and not been refused."""
        self.awaited: dict[bytes, None] = {}
        """The rights that an answer is still to come to; each is asked with by itself."""
        self.is_in = False
        """Whether all rights have been answered once, with keys to one of them at least."""
        self.members: dict[bytes, GroupMember] = {}
        self._kex = SealingKey.make(random)
        self._asked: dict[bytes, bytes] = {}
        self._sealer: Sealer | None = None
        self._filter_sealer: FilterSealer | None = None
        self._verifier = Verifier()
        self._presented = _Presented(b"", 0)
        modern = not signed.profile.is_paper
        self._filter_opener = FilterOpener(signed, self.keyring, may_subscribe=self._may_subscribe) if modern else None
        self._names = {id: attribute.name for id, attribute in signed.attributes_by_id.items()}

    # ── Keys ──

    def groups_for(self, held: Held) -> tuple[bytes, ...]:
        """The key groups a right opens; none where it covers only some of an event that is sealed as one."""
        if self.signed.mode is Mode.EVENT:
            return self.signed.group_ids if held.right.covers(tuple(self.signed.attr_ids.values())) else ()
        return tuple(gid for gid in self.signed.group_ids if held.right.covers((gid,)))

    def ask(self, held: Held, now_ms: int) -> bytes:
        """The request to be let into the groups that this right opens."""
        gids = self.groups_for(held)
        asked, nonce = make_join(
            self.signed, gids, held.raw, self._identity, self._kex, now_ms=now_ms, random=self._random
        )
        self._asked[nonce] = held.raw
        while len(self._asked) > JOINS_MAX:
            del self._asked[next(iter(self._asked))]
        return asked

    def welcome(self, sealed: bytes, now_ms: int) -> JoinWelcome:
        """Takes over what the manager gave; raises PeerError for what answers no request of this node."""
        for nonce in tuple(self._asked):
            try:
                welcome = open_welcome(self.signed, sealed, nonce, self._identity, self._kex)
            except PeerError:
                continue
            self.answered(nonce)
            self._take_over(welcome, now_ms)
            return welcome
        raise PeerError("welcome: the answer to no request of this node")

    def is_asking(self, nonce: bytes) -> bool:
        return nonce in self._asked

    def answered(self, nonce: bytes) -> None:
        """A request has its answer, and with it the right that was asked with, however often it was."""
        self.awaited.pop(self._asked.pop(nonce), None)

    def hear(self, news: KeyUpdate | EpochBeacon, now_ms: int) -> None:
        """Takes up a key, or the manager's word that it is there; raises NeedResync where something was missed."""
        member = self.members.get(news.gid)
        if member is None:
            return
        if isinstance(news, KeyUpdate):
            member.apply(news, now_ms)
        else:
            member.receive_beacon(news, now_ms)

    def retire(self, now_ms: int) -> None:
        """Drops what no event in time can need."""
        self.keyring.retire(now_ms)
        self.replay.forget(now_ms)

    def _take_over(self, welcome: JoinWelcome, now_ms: int) -> None:
        tree = self.signed.profile.key_tree
        for share in welcome.shares:
            member = self.members.get(share.gid) or GroupMember(
                share.gid, self._identity.public_key, self._kex, self.signed.key_manager, self.keyring, tree
            )
            member.welcome(share, now_ms)
            self.members[share.gid] = member
        self.sender_id = welcome.sender_id
        signer = self._identity if self.signing != "none" else None
        self._sealer = Sealer(
            self.signed,
            self.keyring,
            welcome.sender_id,
            signer=signer,
            signing=self.signing,
            publisher_key=self._identity.public_key,
        )
        if not self.signed.profile.is_paper:
            self._filter_sealer = FilterSealer(self.signed, self.keyring, welcome.sender_id, signer=self._identity)

    # ── Events ──

    def seal(self, values: Mapping[str, Value], now_ms: int) -> bytes:
        """An event's envelope; raises NotYet or Denied where there is no key to seal it with."""
        if self._sealer is None:
            raise self._no_keys(now_ms)
        return self._sealer.seal(values, now_ms)

    def read(self, frame: Frame, now_ms: int, cache: CacheTrust) -> View:
        """What this node can read of an event; raises PeerError if anything it can check is wrong."""
        opened = self.opener.open_(frame, now_ms, cache=cache, relay=True)
        if self.signed.mode is Mode.EVENT:
            return SEALED if opened.sealed and not opened.values else View(opened.values)
        hidden = tuple(name for gid in opened.sealed if (name := self._names[gid]) not in opened.values)
        return View(opened.values, hidden)

    def check_keys(self, frame: Frame, now_ms: int) -> None:
        """Raises UnknownEpoch where this node is in a group of the event's and lacks just that key."""
        self.opener.open_(frame, now_ms, wanted=())

    def check_joined(self, view: View) -> None:
        """Raises UnknownEpoch where nothing of an event can be read because no key has come yet."""
        if self.expected and not self.members and (view.hidden or view.opaque):
            raise UnknownEpoch(self.signed.type_id, 0)

    # ── Publishers ──

    def know_publisher(self, raw: bytes) -> None:
        """Somebody's right to publish; raises Denied for one that is none."""
        token = self._verifier.read(raw, self.signed.owner_key)
        right = token.right()
        if right.type_id != self.signed.type_id or "publish" not in right.actions:
            raise Denied("action: not a right to publish events of this type")
        if right.holder not in self._publishers and len(self._publishers) >= PUBLISHERS_MAX:
            raise Denied(f"publisher: more than {PUBLISHERS_MAX} are known")
        self._publishers.setdefault(right.holder, Credentials(right.holder, self._truth)).add(token)

    def check_publisher(self, frame: Frame, now_ms: int) -> None:
        """Raises PeerError unless the event is signed by a broker with the right to publish it.

        UnknownPublisher where no right of the signer has been seen yet.
        """
        self._checked_at_ms = now_ms
        try:
            self._signed_opener.open_(frame, now_ms, wanted=(), relay=True)
        except Denied as refused:
            raise PeerError(f"publisher: {refused}") from None

    def _may_publish(self, signer: bytes, attr_ids: tuple[bytes, ...]) -> None:
        publisher = self._publishers.get(signer)
        if publisher is None:
            raise UnknownPublisher(f"publisher: no right of {fingerprint(signer)} has been seen")
        publisher.right_for(AccessRequest(self.signed.type_id, "publish", frozenset(attr_ids)), self._checked_at_ms)

    _checked_at_ms = 0

    # ── Filters ──

    def check_groups(self, names: Sequence[str], now_ms: int) -> None:
        """Raises NotYet where keys to read these attributes with may still come, Denied where they will not."""
        if self.signed.profile.is_paper or self.signed.mode is Mode.EVENT:
            return
        missing = [name for name in names if self.signed.attr_ids[name] not in self.members]
        if not self.members or (self.awaited and (missing or not self.is_in)):
            raise self._no_keys(now_ms)
        if missing:
            raise Denied(f"group: this broker was not let in to read {', '.join(missing)}")

    def seal_filter(self, id: SubscriptionId, condition: Condition, version: int, held: Held, now_ms: int) -> bytes:
        """A subscription's envelope, by this right; empty where the type's profile has none."""
        if self.signed.profile.is_paper:
            return b""
        if self._filter_sealer is None:
            raise self._no_keys(now_ms)
        frame = self._filter_sealer.seal(
            clauses_of(condition, self.signed, held.right.attributes),
            sub_id=sub_id_of(id),
            version=version,
            lease_ms=0,  # As long as the right itself: routers withdraw it earlier, and it is sealed anew with new keys.
            now_ms=now_ms,
            capability_digest=held.token.digest,
        )
        envelope = msgspec.msgpack.encode(SealedInterest(frame, held.raw))
        if len(envelope) > INTEREST_BYTES_MAX:
            raise InputError(f"the condition takes {len(envelope)} bytes sealed; at most {INTEREST_BYTES_MAX}")
        return envelope

    def read_filter(self, interest: Interest, now_ms: int) -> tuple[AnyWanted, int]:
        """What this node wants on behalf of a subscription from elsewhere, and until when its right holds.

        Raises PeerError or Denied: only one that is signed by a broker with the right to it is let pass.
        """
        if self._filter_opener is None:
            return UNREAD, self.signed.not_after
        if len(interest.envelope) > INTEREST_BYTES_MAX:
            raise PeerError(f"filter: {len(interest.envelope)} bytes; at most {INTEREST_BYTES_MAX} are allowed")
        try:
            sealed = msgspec.msgpack.decode(interest.envelope, type=SealedInterest)
        except msgspec.MsgspecError as wrong:
            raise PeerError(f"filter: expected a sealed one: {wrong}") from None
        self._presented = _Presented(sealed.token, now_ms)
        opened = self._filter_opener.open_(sealed.frame)
        if opened.sub_id != sub_id_of(interest.id):
            raise PeerError("filter: of another subscription")
        opened.check_lease(now_ms)
        lease_end = opened.sealed_ms + opened.lease_ms if opened.lease_ms else self._presented.not_after
        return wanted_from(opened.clauses, self.signed), min(self._presented.not_after, lease_end)

    def _may_subscribe(self, signer: bytes, digest: bytes, attr_ids: tuple[bytes, ...]) -> None:
        raw, now_ms = self._presented.token, self._presented.now_ms
        if sha256(raw).digest() != digest:
            raise Denied("token: not the one that the subscription was signed with")
        token = self._verifier.read(raw, self.signed.owner_key)
        right = token.right()
        asked = frozenset(attr_ids) & self._names.keys() or right.attributes or frozenset(self._names)
        if self.signed.mode is Mode.EVENT:
            asked = frozenset(self._names)
        right.check(AccessRequest(self.signed.type_id, "subscribe", asked), now_ms, signer, self._truth.online)
        self._presented.not_after = right.not_after
        for id in token.revocation_ids:
            if id in self._truth.revoked:
                raise Denied(f"revoked: a link ({id[:16]}…) of the subscriber's right has been revoked")

    def _no_keys(self, now_ms: int) -> Denied:
        what = f"key: this broker holds no keys of {self.signed.event_type.name} yet"
        if self.expected:
            return NotYet(what, now_ms + WAIT_MS, code=ErrorCode.KEY)
        return Denied(what, code=ErrorCode.KEY)


def sub_id_of(id: SubscriptionId) -> bytes:
    """A subscription's id as sealed filters have it."""
    return sha256(f"{id.origin}/{id.incarnation}/{id.seq}".encode()).digest()[:16]


def event_id_of(origin: str, frame: Frame) -> EventId:
    """A sealed event's id: the sender id and the moment that its tags depend on."""
    return EventId(origin, frame.sender_id, frame.ts_ms << 20 | frame.seq)


def check_header(header: Header, frame: Frame) -> None:
    """Raises PeerError where a head speaks of another event than is in the envelope."""
    if header.type != frame.type_id.hex() or header.id != event_id_of(header.id.origin, frame):
        raise PeerError("head: of another event than the one in the envelope")
