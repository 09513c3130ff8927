"""The key manager of one event type: checks rights, gives out sender ids and keys, runs the groups.

Every call returns effects, in order. `Persist` comes first and must be on disk before anything
after it leaves the machine: a sender id or a key that was sent and then forgotten would be given
out a second time. `generation` counts changes. The caller stores the highest generation beside the
state, and `import_state` refuses an older state.

Sender ids come from `next_sender_id`, a counter that is on disk before it answers (the registry's,
say), so that a type has one counter however many managers give ids out. Without it the manager
counts in its own state.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tidings.errors import Denied, InputError, PeerError
from tidings.security.identity import (
    KEY_BYTES,
    Identity,
    RandomBytes,
    SealingKey,
    fingerprint,
    seal_to,
    verify_signature,
)
from tidings.security.keys.group import (
    LEAD_MS,
    ArchivedKey,
    EpochBeacon,
    GroupKey,
    GroupPolicy,
    GroupState,
    KeyGroup,
    KeyUpdate,
    signed_bytes,
    signed_message,
)
from tidings.security.keys.keyring import DELAY_MS
from tidings.security.keys.trees import without_keys
from tidings.security.rights.biscuit import TOKEN_BYTES_MAX, Verifier
from tidings.security.rights.reduction import AccessRequest, Right
from tidings.security.signed_type import U32_MAX, Mode, SignedType
from tidings.security.suites import expand

JOIN_BYTES_MAX = TOKEN_BYTES_MAX + 2**18  # A token, and the ids of 4096 groups.
NONCES_MAX = 65_536  # Requests remembered within the freshness; more at once are refused, so that none is taken twice.
EPOCHS_SKIPPED = 1 << 16  # By a restore: keys change a thousand times a day at most, and backups are younger than that.
GENERATIONS_SKIPPED = 1 << 32


class JoinRequest(msgspec.Struct, frozen=True, array_like=True):
    """A holder's request to join groups, with its token and the key to seal secrets to."""

    type_id: bytes
    gids: tuple[bytes, ...]
    token: bytes
    holder: bytes
    kex_key: bytes
    nonce: bytes
    ts_ms: int
    signature: bytes = b""

    signed_as: ClassVar[str] = "Join"


class JoinWelcome(msgspec.Struct, frozen=True, array_like=True):
    """The answer, sealed to the joiner: a sender id of its own, and a share of each group."""

    type_id: bytes
    holder: bytes
    sender_id: int
    nonce: bytes
    shares: tuple[GroupKey, ...]
    signature: bytes = b""

    signed_as: ClassVar[str] = "Welcome"


@dataclass(frozen=True, slots=True)
class Persist:
    """Store the state, and this generation beside it, before carrying out anything further."""

    generation: int


@dataclass(frozen=True, slots=True)
class Reply:
    """Send these bytes to this holder."""

    holder: bytes
    message: bytes


@dataclass(frozen=True, slots=True)
class Broadcast:
    """Send this to every member of the group."""

    message: KeyUpdate | EpochBeacon


ManagerEffect: TypeAlias = Persist | Reply | Broadcast


class ManagerState(msgspec.Struct, frozen=True, array_like=True):
    """Everything that a manager stores."""

    generation: int
    next_sender_id: int
    groups: tuple[GroupState, ...]

    __repr__ = without_keys


class KeyManager:
    """Runs all key groups of one type. Time comes in as `now_ms`, randomness as a source of bytes."""

    def __init__(
        self,
        signed_type: SignedType,
        identity: Identity,
        random: RandomBytes,
        now_ms: int,
        *,
        lazy: bool = True,
        lead_ms: int = LEAD_MS,
        tree: str | None = None,
        next_sender_id: Callable[[], int] | None = None,
    ) -> None:
        if identity.public_key != signed_type.key_manager:
            raise Denied(f"manager: {signed_type.name} appoints {fingerprint(signed_type.key_manager)}")
        self._type, self._identity, self._random = signed_type, identity, random
        self.policy = GroupPolicy(
            period_ms=signed_type.refresh_secs * 1000,
            grace_ms=signed_type.grace_ms,
            max_lazy_ms=signed_type.max_lazy_secs * 1000,
            lead_ms=min(lead_ms, signed_type.grace_ms),
            tree=tree or signed_type.profile.key_tree,
            lazy=lazy,
        )
        self.groups = {gid: KeyGroup(gid, self.policy, random, now_ms) for gid in signed_type.group_ids}
        self.generation, self._next_sender_id = 0, 1
        self._outside_sender_id = next_sender_id
        self._verifier = Verifier()
        self._nonces: dict[bytes, int] = {}

    @property
    def signed_type(self) -> SignedType:
        """The type whose keys these are."""
        return self._type

    @property
    def requests_remembered(self) -> int:
        """How many join requests this manager would recognise as repeated."""
        return len(self._nonces)

    # ── Requests ──

    def join(
        self,
        raw: bytes,
        now_ms: int,
        *,
        revoked: Collection[str] = (),
        online: Mapping[str, int] | None = None,
    ) -> list[ManagerEffect]:
        """Admits a holder to the groups it asks for, all of them or none.

        Raises PeerError for a request that is not genuine, Denied naming the check for one not covered.
        """
        asked = self._read_join(raw, now_ms)
        token = self._verifier.read(asked.token, self._type.owner_key)
        right = token.right()
        for attributes in self._asked_attributes(asked, right):
            action = "publish" if "publish" in right.actions else "subscribe"
            request = AccessRequest(self._type.type_id, action, attributes)
            token.verify(request, now_ms=now_ms, proven_key=asked.holder, revoked=revoked, online=online)
        self._nonces[asked.nonce] = now_ms  # Only of requests that were granted: others must not fill the memory.
        grantee = token.inspect()[0].holder or b""
        for gid in asked.gids:
            self.groups[gid].check_room(asked.holder, grantee)
        tests = tuple(f"{_ONLINE}{test.max_age_ms}/{test.url}" for test in right.online)
        updates = self._admit(asked, right, (*token.revocation_ids, *tests), now_ms, online or {}, grantee)
        welcome = self._welcome(asked)
        return [self._persist(), Reply(asked.holder, welcome), *updates]

    def leave(self, holder: bytes, now_ms: int) -> list[ManagerEffect]:
        """A holder, whose key the caller has seen proven, leaves every group it is in."""
        updates = [g.leave(holder, now_ms) for g in self.groups.values() if holder in g.members]
        return self._changed(updates)

    def revoke(self, revoked: Collection[str], now_ms: int) -> list[ManagerEffect]:
        """Evicts every member whose token contains one of these links."""
        updates = []
        for group in self.groups.values():
            hit = [m.holder for m in group.members.values() if any(id in revoked for id in m.revocation_ids)]
            updates.append(group.revoke(hit, now_ms))
        return self._changed(updates)

    def lapsed(self, online: Mapping[str, int], now_ms: int) -> set[str]:
        """The online tests of members that have no recent yes; `revoke` evicts those that need them."""
        tests = {
            id
            for group in self.groups.values()
            for member in group.members.values()
            for id in member.revocation_ids
            if id.startswith(_ONLINE)
        }
        return {test for test in tests if not _has_recent_yes(test, online, now_ms)}

    def tick(self, now_ms: int) -> list[ManagerEffect]:
        """Carries out what is due in every group."""
        updates = [group.tick(now_ms) for group in self.groups.values()]
        return self._changed(updates) if any(updates) else []

    def skip_ahead(self, now_ms: int) -> None:
        """For a manager restored from a backup: new keys, and none of the numbers that it may have used since.

        The caller stores the state before the manager runs. Sender ids are skipped where they are counted.
        """
        for group in self.groups.values():
            group.skip_ahead(now_ms, EPOCHS_SKIPPED)
        self.generation += GENERATIONS_SKIPPED

    @property
    def next_tick_ms(self) -> int:
        return min((group.next_tick_ms for group in self.groups.values()), default=2**63)

    def beacons(self, now_ms: int) -> list[ManagerEffect]:
        """A signed beacon for every group, due every half grace. Changes nothing, so nothing need be stored."""
        return [Broadcast(signed_message(group.beacon(now_ms), self._identity)) for group in self.groups.values()]

    def history(
        self,
        token_raw: bytes,
        gid: bytes,
        *,
        now_ms: int,
        proven_key: bytes,
        revoked: Collection[str] = (),
        online: Mapping[str, int] | None = None,
    ) -> tuple[ArchivedKey, ...]:
        """Past keys for a reader with the right to history, of epochs that overlap that right's validity."""
        token = self._verifier.read(token_raw, self._type.owner_key)
        request = AccessRequest(self._type.type_id, "history", self._attributes(gid))
        token.verify(request, now_ms=now_ms, proven_key=proven_key, revoked=revoked, online=online)
        right = token.right()
        return self._group(gid).history(right.not_before, right.not_after)

    def refuse(self, raw: bytes, why: str) -> tuple[bytes, bytes, bytes]:
        """The holder whose request `join` denied, its nonce, and this manager's signature over the reason."""
        asked = msgspec.msgpack.decode(raw, type=JoinRequest)
        signed = _refusal_bytes(self._type.type_id, asked.nonce, why)
        return asked.holder, asked.nonce, self._identity.sign(signed)

    # ── Steps of a join ──

    def _read_join(self, raw: bytes, now_ms: int) -> JoinRequest:
        if len(raw) > JOIN_BYTES_MAX:
            raise PeerError(f"join: {len(raw)} bytes; at most {JOIN_BYTES_MAX} are allowed")
        try:
            asked = msgspec.msgpack.decode(raw, type=JoinRequest)
        except msgspec.DecodeError as wrong:
            raise PeerError(f"join: {wrong}") from None
        if asked.type_id != self._type.type_id:
            raise PeerError("join: for another type")
        if len(asked.holder) != KEY_BYTES or len(asked.kex_key) != KEY_BYTES or len(asked.nonce) != 16:
            raise PeerError("join: a key or nonce of the wrong length")
        verify_signature(asked.holder, asked.signature, signed_bytes(asked), "the join")
        self._check_fresh(asked, now_ms)
        return asked

    def _check_fresh(self, asked: JoinRequest, now_ms: int) -> None:
        fresh_ms = self._type.grace_ms + DELAY_MS
        if abs(now_ms - asked.ts_ms) > fresh_ms:
            raise PeerError(f"join: asked {now_ms - asked.ts_ms} ms ago; at most {fresh_ms} ms are allowed")
        if asked.nonce in self._nonces:
            raise PeerError("join: this very request was made before")
        if len(self._nonces) >= NONCES_MAX:
            self._nonces = {nonce: ts for nonce, ts in self._nonces.items() if now_ms - ts <= 2 * fresh_ms}
        if len(self._nonces) >= NONCES_MAX:
            raise PeerError(f"join: more than {NONCES_MAX} requests at once")

    def _asked_attributes(self, asked: JoinRequest, right: Right) -> list[frozenset[bytes]]:
        """What the right must cover, group by group; in a type without groups, whatever it is for."""
        if asked.gids or self.groups:
            if not asked.gids:
                raise Denied("group: a join asks for one group at least")
            return [self._attributes(self._group(gid).gid) for gid in asked.gids]
        return [frozenset(self._type.attr_ids.values()) if right.attributes is None else right.attributes]

    def _admit(
        self,
        asked: JoinRequest,
        right: Right,
        revocation_ids: tuple[str, ...],
        now_ms: int,
        online: Mapping[str, int],
        grantee: bytes,
    ) -> list[ManagerEffect]:
        for gid in asked.gids:  # All of them before the first: a refusal leaves nothing half done.
            self.groups[gid].check_join(right.not_before, right.not_after, now_ms)
        since = max((online[test.url] for test in right.online if test.url in online), default=None)
        updates = [
            update
            for gid in asked.gids
            for update in self.groups[gid].join(
                asked.holder,
                asked.kex_key,
                valid_from=right.not_before,
                valid_to=right.not_after,
                now_ms=now_ms,
                online=bool(right.online),
                online_since=since,
                revocation_ids=revocation_ids,
                grantee=grantee,
            )
        ]
        return self._broadcasts(updates)

    def _welcome(self, asked: JoinRequest) -> bytes:
        shares = tuple(self.groups[gid].key_for(asked.holder) for gid in asked.gids)
        welcome = JoinWelcome(self._type.type_id, asked.holder, self.new_sender_id(), asked.nonce, shares)
        welcome = msgspec.structs.replace(welcome, signature=self._identity.sign(signed_bytes(welcome)))
        context = _welcome_context(self._type.type_id, asked.nonce)
        return seal_to(asked.kex_key, msgspec.msgpack.encode(welcome), context, self._random)

    def new_sender_id(self) -> int:
        if self._outside_sender_id is not None:
            # Never below what this manager gave out itself: a counter may have been restored from a backup.
            self._next_sender_id = max(self._next_sender_id, self._outside_sender_id())
        if self._next_sender_id > U32_MAX:
            raise Denied(f"sender: all {U32_MAX} sender ids of {self._type.name} are used; make a new version of it")
        self._next_sender_id += 1
        return self._next_sender_id - 1

    def _group(self, gid: bytes) -> KeyGroup:
        if gid not in self.groups:
            raise Denied(f"group: {gid.hex()[:16]}… is no key group of {self._type.event_type.name}")
        return self.groups[gid]

    def _attributes(self, gid: bytes) -> frozenset[bytes]:
        return frozenset(self._type.attr_ids.values()) if self._type.mode is Mode.EVENT else frozenset((gid,))

    # ── Effects and state ──

    def _persist(self) -> Persist:
        self.generation += 1
        return Persist(self.generation)

    def _changed(self, updates: Sequence[KeyUpdate | None]) -> list[ManagerEffect]:
        return [self._persist(), *self._broadcasts(updates)]

    def _broadcasts(self, updates: Sequence[KeyUpdate | None]) -> list[ManagerEffect]:
        return [Broadcast(signed_message(update, self._identity)) for update in updates if update is not None]

    def export_state(self, master: bytes) -> bytes:
        """The manager's state, sealed under a key derived from `master` for this export alone."""
        state = ManagerState(self.generation, self._next_sender_id, tuple(g.to_state() for g in self.groups.values()))
        salt = self._random(KEY_BYTES)
        head = _STATE_MAGIC + self._type.type_id + self.generation.to_bytes(8, "big") + salt
        return head + _state_box(master, head).encrypt(bytes(12), msgspec.msgpack.encode(state), head)

    def import_state(self, sealed: bytes, master: bytes, *, generation: int) -> None:
        """Continues from an exported state. `generation` is the highest that was ever persisted.

        Raises Denied for an older state, which would give out sender ids and epochs a second time.
        """
        size = len(_STATE_MAGIC) + len(self._type.type_id) + 8 + KEY_BYTES
        head = sealed[:size]
        if not head.startswith(_STATE_MAGIC + self._type.type_id) or len(sealed) <= size:
            raise InputError(f"state: not a key manager's state for {self._type.name}")
        try:
            state = msgspec.msgpack.decode(
                _state_box(master, head).decrypt(bytes(12), sealed[size:], head), type=ManagerState
            )
        except (InvalidTag, msgspec.DecodeError):
            raise Denied("state: the master key does not open it, or it was altered") from None
        if state.generation < generation:
            raise Denied(f"state: an old snapshot, of generation {state.generation}; {generation} was reached before")
        self.generation, self._next_sender_id = state.generation, state.next_sender_id
        self.groups = {g.gid: KeyGroup.from_state(g, self.policy, self._random) for g in state.groups}


# ── A holder's side ──────────────────────────────────────────────────────────


def make_join(
    signed_type: SignedType,
    gids: Sequence[bytes],
    token: bytes,
    holder: Identity,
    kex: SealingKey,
    *,
    now_ms: int,
    random: RandomBytes,
) -> tuple[bytes, bytes]:
    """The request to send, and its nonce, which identifies the answer."""
    asked = JoinRequest(
        signed_type.type_id, tuple(gids), token, holder.public_key, kex.public_key, nonce := random(16), now_ms
    )
    signed = msgspec.structs.replace(asked, signature=holder.sign(signed_bytes(asked)))
    return msgspec.msgpack.encode(signed), nonce


def open_welcome(
    signed_type: SignedType, sealed: bytes, nonce: bytes, holder: Identity, kex: SealingKey
) -> JoinWelcome:
    """The manager's answer to the request with this nonce; raises PeerError for anything else."""
    raw = kex.open(sealed, _welcome_context(signed_type.type_id, nonce))
    try:
        welcome = msgspec.msgpack.decode(raw, type=JoinWelcome)
    except msgspec.DecodeError as wrong:
        raise PeerError(f"welcome: {wrong}") from None
    verify_signature(signed_type.key_manager, welcome.signature, signed_bytes(welcome), "the welcome")
    if (welcome.type_id, welcome.holder, welcome.nonce) != (signed_type.type_id, holder.public_key, nonce):
        raise PeerError("welcome: the answer to another request")
    return welcome


def verify_refusal(signed_type: SignedType, nonce: bytes, why: str, signature: bytes) -> None:
    """Returns if the type's manager gave this reason for refusing the request with this nonce; else raises PeerError."""
    signed = _refusal_bytes(signed_type.type_id, nonce, why)
    verify_signature(signed_type.key_manager, signature, signed, "the refusal")


_STATE_MAGIC = b"tidings/km/1\0"
_ONLINE = "online/"  # Among a member's revocation ids, which are hex: a test, with the age of an answer that counts.


def _has_recent_yes(test: str, online: Mapping[str, int], now_ms: int) -> bool:
    age_ms, _, url = test.removeprefix(_ONLINE).partition("/")
    return url in online and 0 <= now_ms - online[url] <= int(age_ms)


def _state_box(master: bytes, head: bytes) -> AESGCM:
    if len(master) < KEY_BYTES:
        raise InputError(f"expected a master key of at least {KEY_BYTES} bytes, got {len(master)}")
    return AESGCM(expand(master, b"ps/state/1\0" + head))


def _welcome_context(type_id: bytes, nonce: bytes) -> bytes:
    return b"ps/welcome/1\0" + type_id + nonce


def _refusal_bytes(type_id: bytes, nonce: bytes, why: str) -> bytes:
    return b"ps/refused/1\0" + type_id + nonce + why.encode()
