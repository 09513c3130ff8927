"""Key groups: who holds the key of one attribute (or of a whole event), and when it changes.

The data key is drawn at random and changed only where the members' credentials require it.
Secrecy is relative to credentials, not to the moment of joining and leaving: a holder that was
entitled when the present key began may join without a key change; a holder that leaves while still
entitled need not be evicted until its credential ends, or `max_lazy` has passed.

    join    entitled since the key began     → the key, sealed to the joiner; a leaf at the next refresh
            otherwise                        → a leaf, and a refresh
    leave   still entitled                   → departed; evicted at the next refresh, or when the time is up
            revoked, expired, online only    → evicted, and a refresh
    tick    a credential has ended           → evicted, and a refresh
            the period has ended             → a refresh, and one leaf's key renewed

A refresh evicts everybody departed, gives everybody waiting a leaf, and broadcasts one `KeyUpdate`. Members whose
rights end one after the other are evicted together: a member could otherwise delegate a thousand rights that end in
a thousand different milliseconds, and every change of keys is work for all.
Time comes in as `now_ms`, randomness as a source of bytes.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import ClassVar, Protocol

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tidings.errors import Denied, PeerError
from tidings.security.identity import Identity, RandomBytes, SealingKey, fingerprint, verify_signature
from tidings.security.keys.keyring import Keyring
from tidings.security.keys.tree_member import MEMBERS
from tidings.security.keys.trees import (
    MEMBERS_MAX,
    TREES,
    KeyTree,
    NeedResync,
    SealedForMember,
    TreeState,
    TreeUpdate,
    without_keys,
)
from tidings.security.validity import show_ms, why_not_valid

LEAD_MS = 2_000  # How long a new key travels before it is used, unless somebody was evicted.
SPACING_MS = 500  # Between two evictions; shorter than the grace, for which an evicted member may read anyway.
# Members by rights that one receiver of the owner's has delegated: a hundred times what a large organisation runs.
MEMBERS_OF_ONE_MAX = 1024
PAST_MAX = 16  # Earlier keys for a member that comes back: at least so many changes may happen while it is away.
DEK_BYTES = 32


class MemberStatus(enum.StrEnum):
    """Whether a member has a leaf, waits for one, or has left."""

    ACTIVE = "active"
    PENDING_LEAF = "pending leaf"
    DEPARTED = "departed"


class MemberRecord(msgspec.Struct, array_like=True):
    """One member of a group, as the manager knows it."""

    holder: bytes
    kex_key: bytes
    valid_from: int
    valid_to: int
    online: bool
    status: MemberStatus
    timer_ms: int
    revocation_ids: tuple[str, ...] = ()
    grantee: bytes = b""
    """Whom the type's owner gave the right that the member's own was delegated from."""
    since_epoch: int = 0
    """The epoch in which the member joined, if that is known: it has had every key from there on."""


class ArchivedKey(msgspec.Struct, frozen=True, array_like=True):
    """A key that was in use from `start_ms` to `end_ms`."""

    epoch: int
    start_ms: int
    end_ms: int | None
    dek: bytes

    __repr__ = without_keys


class KeyUpdate(msgspec.Struct, frozen=True, array_like=True):
    """A new key for a group: the tree's update, and the data key under the tree's new root."""

    gid: bytes
    epoch: int
    start_ms: int
    tree: TreeUpdate
    wrapped: bytes
    signature: bytes = b""

    signed_as: ClassVar[str] = "KeyUpdate"


class EpochBeacon(msgspec.Struct, frozen=True, array_like=True):
    """Says that the manager is alive and which epoch is the group's present one; sent every half grace."""

    gid: bytes
    epoch: int
    start_ms: int
    now_ms: int
    signature: bytes = b""

    signed_as: ClassVar[str] = "Beacon"


class GroupKey(msgspec.Struct, frozen=True, array_like=True):
    """A joiner's share of one group: the present key and, if it has a leaf already, its path.

    `past` are keys that the joiner had as a member, and may have lost: it has been started again.
    """

    gid: bytes
    epoch: int
    start_ms: int
    dek: bytes
    tree_version: int
    path: SealedForMember | None
    past: tuple[ArchivedKey, ...] = ()

    __repr__ = without_keys


class GroupState(msgspec.Struct, frozen=True, array_like=True):
    """A whole group, as it is stored."""

    gid: bytes
    epoch: int
    start_ms: int
    dek: bytes
    last_refresh_ms: int
    clock_ms: int
    tree: TreeState
    members: tuple[MemberRecord, ...]
    archive: tuple[ArchivedKey, ...]

    __repr__ = without_keys


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPolicy:
    """The settings of a group; `lazy=False` refreshes at every join and leave, as the classic scheme does."""

    period_ms: int
    grace_ms: int
    max_lazy_ms: int
    lead_ms: int = LEAD_MS
    tree: str = "lkh"
    lazy: bool = True

    def __post_init__(self) -> None:
        # An evicted member can read until the next key starts; that must stay within the grace.
        assert 0 <= self.lead_ms <= self.grace_ms, "the lead is at most the grace"

    @property
    def spacing_ms(self) -> int:
        """The shortest time between two evictions."""
        return min(SPACING_MS, self.grace_ms) if self.lazy else 0


class KeyGroup:
    """The manager's side of one group. Every call that changes the key gives the update to broadcast."""

    def __init__(self, gid: bytes, policy: GroupPolicy, random: RandomBytes, now_ms: int) -> None:
        self.gid, self.policy, self._random = gid, policy, random
        self.epoch, self.start_ms, self._dek = 1, now_ms, random(DEK_BYTES)
        self.tree: KeyTree = TREES[policy.tree](gid, random)
        self.members: dict[bytes, MemberRecord] = {}
        self.refreshes = 0
        self._archive: list[ArchivedKey] = []
        self._last_refresh_ms = self._clock_ms = now_ms
        self._timers: list[tuple[int, bytes]] = []
        self._next_eviction_ms = now_ms
        self._of_grantee: Counter[bytes] = Counter()

    # ── Membership ──

    def join(
        self,
        holder: bytes,
        kex_key: bytes,
        *,
        valid_from: int,
        valid_to: int,
        now_ms: int,
        online_since: int | None = None,
        online: bool = False,
        revocation_ids: Sequence[str] = (),
        grantee: bytes = b"",
    ) -> list[KeyUpdate]:
        """Admits a holder whose right has been checked. `online_since` is when its online test began to say yes.

        Evictions that are due come first: a right that has ended must not be taken for one that continues.
        """
        self.check_join(valid_from, valid_to, now_ms)
        updates = [update for update in (self.tick(now_ms),) if update is not None]
        member = MemberRecord(
            holder,
            kex_key,
            valid_from,
            valid_to,
            online,
            MemberStatus.ACTIVE,
            valid_to,
            tuple(revocation_ids),
            grantee,
            self.members[holder].since_epoch if holder in self.members else 0,
        )
        if holder not in self.tree:
            member.status = MemberStatus.PENDING_LEAF
        comes_back = holder in self.members
        if comes_back:
            self._of_grantee[self.members[holder].grantee] -= 1
        self._of_grantee[grantee] += 1
        self.members[holder] = member
        heappush(self._timers, (member.timer_ms, holder))
        entitled = valid_from <= self.start_ms and (
            not online or (online_since is not None and online_since <= self.start_ms)
        )
        if not comes_back and not (entitled and self.policy.lazy):
            updates.append(self.refresh(now_ms, self.policy.lead_ms))
        if not comes_back:
            member.since_epoch = self.epoch  # After the change: it must not get the key before.
        return updates

    def check_join(self, valid_from: int, valid_to: int, now_ms: int) -> None:
        """Raises Denied where `join` would refuse a right of this validity; changes nothing."""
        self._see(now_ms)
        if why := why_not_valid(valid_from, valid_to, now_ms):
            raise Denied(f"validity: the right {why}")
        soonest = max(now_ms + self.policy.lead_ms, self.start_ms + 1)
        if valid_to <= soonest:
            raise Denied(f"validity: the right ends at {show_ms(valid_to)}, before a new key could start")

    def check_room(self, holder: bytes, grantee: bytes) -> None:
        """Raises Denied where the delegates of one grantee are too many, or all members."""
        if holder in self.members:
            return
        if grantee and self._of_grantee[grantee] >= MEMBERS_OF_ONE_MAX:
            raise Denied(f"group: more than {MEMBERS_OF_ONE_MAX} members by rights of {fingerprint(grantee)}")
        if len(self.members) >= MEMBERS_MAX:
            raise Denied(f"group: more than {MEMBERS_MAX} members")

    def leave(self, holder: bytes, now_ms: int) -> KeyUpdate | None:
        """Marks a member as departed; it can read until its right ends or the next refresh."""
        self._see(now_ms)
        member = self._member(holder)
        if member.status is MemberStatus.DEPARTED:
            return None  # Leaving twice must not postpone the eviction.
        if member.online or member.valid_to <= now_ms or not self.policy.lazy:
            return self._evict([holder], now_ms)
        member.status = MemberStatus.DEPARTED
        member.timer_ms = min(member.valid_to, now_ms + self.policy.max_lazy_ms)
        heappush(self._timers, (member.timer_ms, holder))
        return None

    def revoke(self, holders: Sequence[bytes], now_ms: int) -> KeyUpdate | None:
        """Evicts those of `holders` that are members, with one refresh."""
        self._see(now_ms)
        return self._evict([holder for holder in holders if holder in self.members], now_ms)

    def tick(self, now_ms: int) -> KeyUpdate | None:
        """Evicts members whose credentials have ended, and refreshes when the period has ended."""
        self._see(now_ms)
        due = []
        while self._timers and self._timers[0][0] <= now_ms:
            when, holder = heappop(self._timers)
            if holder in self.members and self.members[holder].timer_ms == when and holder not in due:
                due.append(holder)
        if due and (update := self._evict(due, now_ms)) is not None:
            return update
        if now_ms >= self._last_refresh_ms + self.policy.period_ms:
            return self.refresh(now_ms, self.policy.lead_ms)
        return None

    @property
    def next_tick_ms(self) -> int:
        """When `tick` will next have something to do; it may turn out to be nothing."""
        period = self._last_refresh_ms + self.policy.period_ms
        return min(self._timers[0][0], period) if self._timers else period

    # ── What members receive ──

    def key_for(self, holder: bytes) -> GroupKey:
        """The present key for one member, and its path if it has a leaf."""
        member = self._member(holder)
        path = self.tree.resync(holder, member.kex_key) if holder in self.tree else None
        return GroupKey(self.gid, self.epoch, self.start_ms, self._dek, self.tree.version, path, self._past(member))

    def _past(self, member: MemberRecord) -> tuple[ArchivedKey, ...]:
        """The last keys that a member has had: events that were sealed with them may still be on their way to it."""
        if not member.since_epoch:
            return ()
        return tuple(key for key in self._archive[-PAST_MAX:] if key.epoch >= member.since_epoch)

    def beacon(self, now_ms: int) -> EpochBeacon:
        return EpochBeacon(self.gid, self.epoch, self.start_ms, now_ms)

    def history(self, valid_from: int, valid_to: int) -> tuple[ArchivedKey, ...]:
        """The keys, past and present, of epochs that overlap a right's validity."""
        kept = [*self._archive, ArchivedKey(self.epoch, self.start_ms, None, self._dek)]
        return tuple(key for key in kept if key.start_ms < valid_to and (key.end_ms is None or key.end_ms > valid_from))

    def skip_ahead(self, now_ms: int, epochs: int) -> None:
        """Changes the key and leaves numbers out, which this group, restored from a backup, may have used since.

        No update leads there: members notice by the next beacon, and ask for their share again.
        """
        self._see(now_ms)
        self.refresh(now_ms, lead_ms=0)
        self.epoch += epochs
        self.tree.version += epochs

    # ── Storage ──

    def to_state(self) -> GroupState:
        return GroupState(
            self.gid,
            self.epoch,
            self.start_ms,
            self._dek,
            self._last_refresh_ms,
            self._clock_ms,
            self.tree.to_state(),
            tuple(self.members.values()),
            tuple(self._archive),
        )

    @classmethod
    def from_state(cls, state: GroupState, policy: GroupPolicy, random: RandomBytes) -> KeyGroup:
        group = cls(state.gid, policy, random, state.start_ms)
        group.epoch, group._dek = state.epoch, state.dek
        group._last_refresh_ms, group._clock_ms = state.last_refresh_ms, state.clock_ms
        group.tree.restore(state.tree)
        group._archive = list(state.archive)
        for member in state.members:
            group.members[member.holder] = member
            group._of_grantee[member.grantee] += 1
            heappush(group._timers, (member.timer_ms, member.holder))
        return group

    # ── Steps ──

    def _see(self, now_ms: int) -> None:
        """Refuses a clock that stepped back by more than the grace: keys would be given out for a past time."""
        if now_ms < self._clock_ms - self.policy.grace_ms:
            raise Denied(f"clock: {self._clock_ms - now_ms} ms behind what it showed before; the group changes nothing")
        self._clock_ms = max(self._clock_ms, now_ms)

    def _member(self, holder: bytes) -> MemberRecord:
        if holder not in self.members:
            raise Denied(f"member: {holder.hex()[:16]}… is not in group {self.gid.hex()[:16]}…")
        return self.members[holder]

    def _evict(self, holders: Sequence[bytes], now_ms: int) -> KeyUpdate | None:
        if not holders:
            return None
        for holder in holders:
            self.members[holder].status = MemberStatus.DEPARTED
        if 0 < self._next_eviction_ms - now_ms <= self.policy.spacing_ms:  # More: the clock has gone back.
            self._postpone(holders)
            return None
        self._next_eviction_ms = now_ms + self.policy.spacing_ms
        return self.refresh(now_ms, lead_ms=0)

    def _postpone(self, holders: Sequence[bytes]) -> None:
        for holder in holders:
            self.members[holder].timer_ms = self._next_eviction_ms
            heappush(self._timers, (self._next_eviction_ms, holder))

    def refresh(self, now_ms: int, lead_ms: int) -> KeyUpdate:
        """Changes the key: evicts everybody departed and gives everybody waiting a leaf. It starts `lead_ms` from now."""
        gone = [m.holder for m in self.members.values() if m.status is MemberStatus.DEPARTED]
        for holder in gone:
            self._of_grantee[self.members.pop(holder).grantee] -= 1
        self._of_grantee += Counter()  # Drops those that have none left.
        update = self._change_tree([holder for holder in gone if holder in self.tree])
        self._archive.append(
            ArchivedKey(self.epoch, self.start_ms, start := max(now_ms + lead_ms, self.start_ms + 1), self._dek)
        )
        self.epoch, self.start_ms, self._dek = self.epoch + 1, start, self._random(DEK_BYTES)
        self._last_refresh_ms = now_ms
        self.refreshes += 1
        return KeyUpdate(self.gid, self.epoch, start, update, self._wrapped(update))

    def _change_tree(self, leaves: list[bytes]) -> TreeUpdate:
        waiting = [m for m in self.members.values() if m.status is MemberStatus.PENDING_LEAF]
        for member in waiting:
            member.status = MemberStatus.ACTIVE
        if waiting or leaves:
            return self.tree.batch([(m.holder, m.kex_key) for m in waiting], leaves)
        return self.tree.rebuild() if self.tree.is_lopsided else self.tree.rotate()

    def _wrapped(self, update: TreeUpdate) -> bytes:
        if not len(self.tree):
            return b""  # Nobody is there to read it.
        box = AESGCM(self.tree.root_kek())
        return box.encrypt(
            wrap_nonce(self.epoch, update.version), self._dek, wrap_aad(self.gid, self.epoch, self.start_ms)
        )


# ── A member's side ──────────────────────────────────────────────────────────


class GroupMember:
    """One holder's share of one group: follows the tree and puts each new key on the ring."""

    def __init__(
        self, gid: bytes, holder: bytes, kex: SealingKey, manager_key: bytes, keyring: Keyring, tree: str
    ) -> None:
        self.gid, self._manager_key, self._keyring = gid, manager_key, keyring
        self.tree = MEMBERS[tree](gid, holder, kex)

    def welcome(self, share: GroupKey, now_ms: int) -> None:
        """Takes this group's share from a welcome."""
        if share.path is None:
            self.tree.await_path(share.tree_version)
        else:
            self.tree.resync(share.path, share.tree_version)
        for key in share.past:
            self._keyring.add(self.gid, key.epoch, key.start_ms, key.dek)
        self._keyring.add(self.gid, share.epoch, share.start_ms, share.dek)
        self._keyring.vouch(self.gid, now_ms)

    def apply(self, update: KeyUpdate, now_ms: int) -> None:
        """Applies a new key. Raises NeedResync when an update was missed, PeerError for one not the manager's.

        A second copy does nothing.
        """
        verify_message(update, self._manager_key)
        if update.gid != self.gid:
            raise PeerError("group: an update for another group")
        if update.tree.version <= self.tree.version:
            return
        kek = self.tree.apply(update.tree)
        aad = wrap_aad(self.gid, update.epoch, update.start_ms)
        try:
            dek = AESGCM(kek).decrypt(wrap_nonce(update.epoch, update.tree.version), update.wrapped, aad)
        except (InvalidTag, ValueError):
            raise NeedResync("group: the new key does not open under this member's root") from None
        self._keyring.add(self.gid, update.epoch, update.start_ms, dek)
        self._keyring.vouch(self.gid, now_ms)

    def receive_beacon(self, beacon: EpochBeacon, now_ms: int) -> None:
        """Records that the manager is alive; raises NeedResync if it announces a key this member never got."""
        verify_message(beacon, self._manager_key)
        if beacon.gid != self.gid or abs(now_ms - beacon.now_ms) > self._keyring.grace_ms:
            raise PeerError("beacon: for another group, or not of this time")
        held = self._keyring.epochs(self.gid)
        newest = held[-1].epoch if held else 0
        if beacon.epoch < newest:
            raise PeerError(f"beacon: the manager went back from epoch {newest} to {beacon.epoch}")
        if beacon.epoch > newest:
            raise NeedResync(f"beacon: epoch {beacon.epoch} is announced, {newest} is held")
        # As of when it was sent: whoever holds a beacon up must not lengthen what it vouches for.
        self._keyring.vouch(self.gid, min(now_ms, beacon.now_ms))


# ── Signed messages ──────────────────────────────────────────────────────────


def signed_message(message: KeyUpdate | EpochBeacon, manager: Identity) -> KeyUpdate | EpochBeacon:
    """The message with the manager's signature."""
    return msgspec.structs.replace(message, signature=manager.sign(signed_bytes(message)))


def verify_message(message: KeyUpdate | EpochBeacon, manager_key: bytes) -> None:
    verify_signature(manager_key, message.signature, signed_bytes(message), f"a {message.signed_as}")


class Signable(Protocol):
    """A message of a key manager or to it, with a field `signature`.

    `signed_as` is the message's name in what is signed, so that no signature fits two kinds of message. It is
    part of the wire format and stays when a class is renamed.
    """

    signed_as: ClassVar[str]


def signed_bytes(message: Signable) -> bytes:
    """The bytes that the signature of a message is over."""
    bare = msgspec.structs.replace(message, signature=b"")  # type: ignore[type-var]
    return b"ps/km/1\0" + message.signed_as.encode() + b"\0" + msgspec.msgpack.encode(bare)


def wrap_nonce(epoch: int, version: int) -> bytes:
    return epoch.to_bytes(4, "big") + version.to_bytes(8, "big")


def wrap_aad(gid: bytes, epoch: int, start_ms: int) -> bytes:
    return gid + epoch.to_bytes(4, "big") + start_ms.to_bytes(8, "big", signed=True)
