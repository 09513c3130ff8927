"""The cryptography of one sealed type: the keys this node holds, and what it seals and opens with them.

A node opens as much as its keys allow. An event's view names the attributes that it cannot read; the unreadable parts
of a filter count as true. The packet header is bound to the envelope: its type is the frame's type, its id the sender
id and moment that the authentication tags cover.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from tidings.errors import Denied, ErrorCode, InputError, PeerError
from tidings.events import Value
from tidings.filters import Condition
from tidings.node.credentials import Credentials, HeldToken, RevocationState, validity_window
from tidings.node.filter_encoding import clauses_of, wanted_from
from tidings.overlay import SEALED, AnyWanted, EventId, Header, Interest, SubscriptionId, View
from tidings.security import (
    DELAY_MS,
    FLAG_SIGNATURE,
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
    digest_of,
    fingerprint,
    make_join,
    open_welcome,
    seal_rows,
    signatures_of,
)

if TYPE_CHECKING:
    import pyarrow as pa

PUBLISHERS_MAX = 4096  # Brokers that publish one type.
PUBLISHERS_OF_ONE_MAX = 64  # … whose rights descend from one grant of its owner: delegates cost nothing to make.
SIGNED_SENDER = 1 << 32  # Added to the sender id in a signed event's id: unsigned events have other ids.
JOINS_MAX = 64  # Requests that may still be answered; older ones were lost.
INTEREST_BYTES_MAX = 2**16  # A sealed filter and its token; a filter with a thousand string constants fits.
WAIT_MS = 1_000  # A first guess how long requested keys take to come.


class SealedInterest(msgspec.Struct, frozen=True, array_like=True):
    """An interest advertisement on the wire: the sealed filter, and the token of the broker that signed it."""

    frame: bytes
    token: bytes


class SealedRows(NamedTuple):
    """Events that were sealed together, and not signed yet."""

    sender: int
    """The incarnation in their ids."""
    first_seq: int
    frames: tuple[bytes, ...]


class UnknownPublisher(PeerError):
    """An event is signed by a broker whose right to publish is not known here yet."""

    code = ErrorCode.PUBLISHER


@dataclass(slots=True)
class _Presented:
    """The token that came with the filter being opened, and until when it holds."""

    token: bytes
    now_ms: int
    not_after: int = 0


class TypeCrypto:
    """The keys and key-group memberships of one node for one sealed type."""

    def __init__(
        self,
        signed: SignedType,
        identity: Identity,
        random: RandomBytes,
        state: RevocationState,
        *,
        signing: Signing = "none",
        need_signatures: bool = False,
        late_ms: int = DELAY_MS,
        neighbour: Callable[[bytes], Credentials | None] = lambda key: None,
    ) -> None:
        """`neighbour` gives the rights that a neighbour with this key has shown; its owner may ask for no signatures."""
        self.signed, self._identity, self._random, self._state = signed, identity, random, state
        self.signing: Signing = signing if signed.signatures else "none"
        self.need_signatures = need_signatures and signed.signatures
        self._neighbour = neighbour
        self.keyring = Keyring(signed, delay_ms=late_ms, beacons=True)
        self.opener = Opener(signed, self.keyring)
        self._publishers: dict[bytes, Credentials] = {}
        self._grantees: dict[bytes, dict[bytes, None]] = {}
        self._permitted: dict[tuple[bytes, tuple[bytes, ...]], tuple[int, int, int]] = {}
        self._signed_opener = Opener(signed, self.keyring, may_publish=self._may_publish)
        self.replay = ReplayWindow(grace_ms=signed.grace_ms, delay_ms=late_ms)
        self.sender_id = 0
        self.expected = False
        """Whether keys were requested, or will be, and were not refused."""
        self.refusal = ""
        """Why the last request got no keys, or none could be made."""
        self.awaited: dict[bytes, None] = {}
        """The tokens whose join request has no answer yet; each token makes a request of its own."""
        self.is_in = False
        """Whether every request has been answered once, at least one of them with keys."""
        self.members: dict[bytes, GroupMember] = {}
        self._kex = SealingKey.make(random)
        self._requests: dict[bytes, bytes] = {}
        self._sealer: Sealer | None = None
        self._filter_sealer: FilterSealer | None = None
        self._verifier = Verifier()
        self._presented = _Presented(b"", 0)
        self._filter_opener = FilterOpener(signed, self.keyring, may_subscribe=self._may_subscribe)
        self._names = {id: attribute.name for id, attribute in signed.attributes_by_id.items()}

    @property
    def own_key(self) -> bytes:
        """The key with which this node signs."""
        return self._identity.public_key

    # ── Keys ──

    def groups_for(self, held: HeldToken) -> tuple[bytes, ...]:
        """The key groups that a right opens; none if it covers only some attributes of a type sealed in event mode."""
        if self.signed.mode is Mode.EVENT:
            return self.signed.group_ids if held.right.covers(tuple(self.signed.attr_ids.values())) else ()
        return tuple(gid for gid in self.signed.group_ids if held.right.covers((gid,)))

    def join_request(self, held: HeldToken, now_ms: int) -> bytes:
        """A request to join the key groups that this right opens."""
        gids = self.groups_for(held)
        asked, nonce = make_join(
            self.signed, gids, held.raw, self._identity, self._kex, now_ms=now_ms, random=self._random
        )
        self._requests[nonce] = held.raw
        while len(self._requests) > JOINS_MAX:
            del self._requests[next(iter(self._requests))]
        return asked

    def welcome(self, sealed: bytes, now_ms: int) -> JoinWelcome:
        """Install the keys that the manager sent; raises PeerError if this answers no request of this node."""
        for nonce in tuple(self._requests):
            try:
                welcome = open_welcome(self.signed, sealed, nonce, self._identity, self._kex)
            except PeerError:
                continue
            self.answered(nonce)
            self._take_over(welcome, now_ms)
            return welcome
        raise PeerError("welcome: the answer to no request of this node")

    def has_requested(self, nonce: bytes) -> bool:
        return nonce in self._requests

    def answered(self, nonce: bytes) -> None:
        """Mark a request as answered, and with it its token, however often that was sent."""
        self.awaited.pop(self._requests.pop(nonce), None)

    def receive(self, news: KeyUpdate | EpochBeacon, now_ms: int) -> None:
        """Apply a key update or a beacon of the manager; raises NeedResync if an update was missed."""
        member = self.members.get(news.gid)
        if member is None:
            return
        if isinstance(news, KeyUpdate):
            member.apply(news, now_ms)
        else:
            member.receive_beacon(news, now_ms)

    def retire(self, now_ms: int) -> None:
        """Drop the keys and replay state that no timely event can need."""
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
        self._filter_sealer = FilterSealer(self.signed, self.keyring, welcome.sender_id, signer=self._identity)

    # ── Events ──

    def seal(self, values: Mapping[str, Value], now_ms: int) -> bytes:
        """Seal an event; raises NotYet or Denied without a key."""
        if self._sealer is None:
            raise self._no_keys(now_ms)
        return self._sealer.seal(values, now_ms)

    def seal_many(self, events: Sequence[Mapping[str, Value]], now_ms: int) -> list[bytes]:
        """Seal events; where they are signed, up to 256 share a signature. Raises as `seal` does."""
        if self._sealer is None:
            raise self._no_keys(now_ms)
        return self._sealer.seal_batch(events, now_ms)

    def takes_rows(self, now_ms: int) -> bool:
        """Whether `seal_rows` can seal now, and nobody would refuse what this broker has sealed so."""
        if self._sealer is None or self.signed.profile.is_paper or self.signing == "each":
            return False
        if self.need_signatures and self.signing == "none":
            return False  # Its readers refuse what is not signed, one by one.
        try:
            if self.need_signatures:
                self._checked_at_ms = now_ms
                self._may_publish(self.own_key, tuple(self.signed.attr_ids.values()))
        except (Denied, PeerError):
            return False
        return True

    def seal_rows(self, rows: pa.RecordBatch, events: Sequence[Mapping[str, Value]], now_ms: int) -> SealedRows:
        """Seal events that follow one another, without their signatures; raises as `seal` does."""
        if self._sealer is None:
            raise self._no_keys(now_ms)
        ts_ms, seq, frames = seal_rows(self.signed, self.keyring, self._sealer, rows, events, now_ms)
        sender = sealed_as(self._sealer.sender_id, is_signed=bool(self._sealer.flags & FLAG_SIGNATURE))
        return SealedRows(sender, ts_ms << 20 | seq, tuple(frames))

    def accept_own(self, first: EventId, count: int, now_ms: int) -> None:
        """Events that were sealed here together: what of them comes back is not delivered again."""
        self.replay.accept_run(self.signed.type_id, sealed_by(first), first.seq, count, now_ms)

    def sign_rows(self, frames: Sequence[bytes]) -> list[bytes]:
        """What `seal_rows` has sealed, as `seal_many` would have made it."""
        if self.signing == "none":
            return list(frames)
        blocks = signatures_of(self._identity, [digest_of(frame) for frame in frames])
        return [frame + block for frame, block in zip(frames, blocks, strict=True)]

    def read(self, frame: Frame, now_ms: int, cache: CacheTrust) -> View:
        """Open an event as far as the keys allow; raises PeerError if any check fails."""
        opened = self.opener.open_(frame, now_ms, cache=cache, relay=True)
        if self.signed.mode is Mode.EVENT:
            return SEALED if opened.sealed and not opened.values else View(opened.values)
        hidden = tuple(name for gid in opened.sealed if (name := self._names[gid]) not in opened.values)
        return View(opened.values, hidden)

    def check_keys(self, frame: Frame, now_ms: int) -> None:
        """Raise UnknownEpoch if this node is a member of one of the event's groups and lacks this epoch's key."""
        self.opener.open_(frame, now_ms, wanted=())

    def check_joined(self, view: View) -> None:
        """Raise UnknownEpoch if the event is unreadable because this node's first keys have not come yet."""
        if self.expected and not self.members and (view.hidden or view.opaque):
            raise UnknownEpoch(self.signed.type_id, 0)

    # ── Publishers ──

    @property
    def publishers(self) -> frozenset[bytes]:
        """The keys that have shown a right to publish."""
        return frozenset(self._publishers)

    def add_publisher(self, raw: bytes) -> None:
        """Store a broker's right to publish; raises Denied if the token grants none."""
        token = self._verifier.read(raw, self.signed.owner_key)
        right = token.right()
        if right.type_id != self.signed.type_id or "publish" not in right.actions:
            raise Denied("action: not a right to publish events of this type")
        if right.holder not in self._publishers:
            self._make_room(right.holder, token.inspect()[0].holder or b"")
        self._publishers.setdefault(right.holder, Credentials(right.holder, self._state)).add(token)
        self._permitted.clear()

    def _make_room(self, holder: bytes, grantee: bytes) -> None:
        """Beyond its number, whom the owner granted the right to loses the oldest of its own, and nobody else one."""
        theirs = self._grantees.setdefault(grantee, {})
        if len(theirs) >= PUBLISHERS_OF_ONE_MAX:
            oldest = next(iter(theirs))
            del theirs[oldest], self._publishers[oldest]
        if len(self._publishers) >= PUBLISHERS_MAX:
            raise Denied(f"publisher: more than {PUBLISHERS_MAX} are known")
        theirs[holder] = None

    def check_publisher(self, frame: Frame, now_ms: int, signer: bytes = b"") -> None:
        """Raise PeerError unless the event is signed by a broker with the right to publish it.

        UnknownPublisher if no right of the signer is known here yet. A `signer` has been verified before.
        """
        self._checked_at_ms = now_ms
        try:
            if signer:
                self._may_publish(signer, self.opener.plan_for(frame).attr_ids)
            else:
                self._signed_opener.open_(frame, now_ms, wanted=(), relay=True)
        except Denied as refused:
            raise PeerError(f"publisher: {refused}") from None

    def _may_publish(self, signer: bytes, attr_ids: tuple[bytes, ...]) -> None:
        now_ms, state = self._checked_at_ms, self._state
        changes, since, until = self._permitted.get((signer, attr_ids), (-1, 0, 0))
        if changes == state.changes and since <= now_ms < until:
            return
        request = AccessRequest(self.signed.type_id, "publish", frozenset(attr_ids))
        publisher = self._publishers.get(signer) or self._neighbour(signer)
        if publisher is None or not publisher.of(self.signed.type_id):
            raise UnknownPublisher(f"publisher: no right of {fingerprint(signer)} has been seen")
        right = publisher.right_for(request, now_ms).right
        if len(self._permitted) >= PUBLISHERS_MAX:
            self._permitted.clear()
        self._permitted[signer, attr_ids] = (state.changes, *validity_window([right], state, now_ms))

    _checked_at_ms = 0

    # ── Filters ──

    def check_groups(self, names: Sequence[str], now_ms: int) -> None:
        """Raise NotYet if keys to these attributes may still come, Denied if they will not."""
        if self.signed.mode is Mode.EVENT:
            return
        missing = [name for name in names if self.signed.attr_ids[name] not in self.members]
        if not self.members or (self.awaited and (missing or not self.is_in)):
            raise self._no_keys(now_ms)
        if missing:
            raise Denied(f"group: this broker is not in the key groups of {', '.join(missing)}")

    def seal_filter(
        self, id: SubscriptionId, condition: Condition, version: int, held: HeldToken, now_ms: int
    ) -> bytes:
        """Seal and sign a subscription under this right."""
        if self._filter_sealer is None:
            raise self._no_keys(now_ms)
        frame = self._filter_sealer.seal(
            clauses_of(condition, self.signed, held.right.attributes),
            sub_id=sub_id_of(id),
            version=version,
            lease_ms=0,  # As long as the right: routers withdraw it earlier, and new keys have it sealed again.
            now_ms=now_ms,
            capability_digest=held.token.digest,
        )
        envelope = msgspec.msgpack.encode(SealedInterest(frame, held.raw))
        if len(envelope) > INTEREST_BYTES_MAX:
            raise InputError(f"the condition takes {len(envelope)} bytes sealed; at most {INTEREST_BYTES_MAX}")
        return envelope

    def read_filter(self, interest: Interest, now_ms: int) -> tuple[AnyWanted, int]:
        """The filter of another broker's advertisement as far as it is readable, and until when its right holds.

        Raises PeerError or Denied unless a broker with the right to subscribe signed it.
        """
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
        right.check(AccessRequest(self.signed.type_id, "subscribe", asked), now_ms, signer, self._state.online)
        self._presented.not_after = right.not_after
        for id in token.revocation_ids:
            if id in self._state.revoked:
                raise Denied(f"revoked: a link ({id[:16]}…) of the subscriber's right has been revoked")

    def _no_keys(self, now_ms: int) -> Denied:
        what = f"key: this broker holds no keys of {self.signed.event_type.name}"
        if self.expected:
            return NotYet(f"{what} yet; it has asked for them", now_ms + WAIT_MS, code=ErrorCode.KEY)
        why = self.refusal or "it has no right to read it"
        return Denied(f"{what}, and gets none: {why}", code=ErrorCode.KEY)


def sub_id_of(id: SubscriptionId) -> bytes:
    """A subscription's id inside sealed filters."""
    return sha256(f"{id.origin}/{id.incarnation}/{id.seq}".encode()).digest()[:16]


def event_id_of(origin: str, frame: Frame) -> EventId:
    """A sealed event's id: the sender id and moment that its authentication tags cover, and whether it is signed.

    So whoever cannot open a signed event, and takes the first with its id for the true one, is not deceived by one
    that anybody could have made: to be taken, it needs the origin's signature.
    """
    sender = sealed_as(frame.sender_id, is_signed=bool(frame.flags & FLAG_SIGNATURE))
    return EventId(origin, sender, frame.ts_ms << 20 | frame.seq)


def sealed_as(sender_id: int, *, is_signed: bool) -> int:
    """The incarnation in the id of a sealed event."""
    return sender_id | SIGNED_SENDER if is_signed else sender_id


def sealed_by(id: EventId) -> int:
    """A number for who sealed an event, by which replays are found.

    Of a signed event it holds the origin: whoever may publish the type can use the sender id of another publisher, and
    uses up none of its numbers. Without signatures nobody knows the origin, and the sender id has to do.
    """
    if not id.incarnation & SIGNED_SENDER:
        return id.incarnation
    named = id.origin.encode() + id.incarnation.to_bytes(8, "big")
    return SIGNED_SENDER | int.from_bytes(sha256(b"tidings/sender/1\0" + named).digest()[:7], "big")


def check_header(header: Header, frame: Frame) -> None:
    """Raise PeerError if the packet header names another event than the envelope."""
    if header.type != frame.type_id.hex() or header.id != event_id_of(header.id.origin, frame):
        raise PeerError("head: of another event than the one in the envelope")
