"""The keys one participant holds: by group and epoch, for as long as they are needed.

A data key (dek) is never used by itself. From it come two content keys, one for events and one
for subscriptions, so that a sealed filter never opens as an event.

An epoch holds from its start to its successor's. Clocks differ, so a reader allows a grace G on
either side; events are late, so a key is kept G and the longest delay D beyond its end, and then
dropped.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final, Literal, TypeAlias

import msgspec

from tidings.errors import Denied, ErrorCode, PeerError
from tidings.security.envelope.nonce import NotYet
from tidings.security.signed_type import SignedType
from tidings.security.suites import Cipher, expand, suite_of

DELAY_MS: Final = 60_000  # D: how late an event may come.
# Live epochs of one group; a reader of history asks for more. A manager changes keys so seldom that an event within
# its delay never finds its key pushed out, whoever joins and whoever's rights end (see `group.SPACING_MS`).
EPOCHS_MAX = 512
KEY_MESSAGES_MAX = 2**32  # Beyond it the odds of forging or distinguishing GCM ciphertexts are no longer negligible.
KEY_BLOCKS_MAX = 2**36

Purpose: TypeAlias = Literal["pub", "sub"]
_U32 = struct.Struct(">I")
_MAGIC = b"tidings/keyring/1\0"
DEK_BYTES = 32


def content_key(dek: bytes, purpose: Purpose, gid: bytes, epoch: int) -> bytes:
    """The key that seals for one purpose, in one group, in one epoch."""
    return expand(dek, b"".join((b"ps/ck/1\0", purpose.encode(), b"\0", gid, _U32.pack(epoch))))


class KeyEpoch:
    """One epoch's keys. Its repr shows no key."""

    __slots__ = ("_ciphers", "_suite", "_tag_len", "blocks", "dek", "end_ms", "epoch", "gid", "messages", "start_ms")

    def __init__(self, gid: bytes, epoch: int, start_ms: int, dek: bytes, suite: int, tag_len: int) -> None:
        self.gid, self.epoch, self.start_ms = gid, epoch, start_ms
        self.end_ms: int | None = None
        self.messages = self.blocks = 0
        self.dek, self._suite, self._tag_len = dek, suite, tag_len
        self._ciphers: dict[Purpose, Cipher] = {}

    def content_key(self, purpose: Purpose) -> bytes:
        """The raw content key, of the suite's length; for table jobs, which bring their own cipher."""
        return content_key(self.dek, purpose, self.gid, self.epoch)[: suite_of(self._suite).key_bytes]

    @property
    def suite(self) -> int:
        return self._suite

    def cipher(self, purpose: Purpose) -> Cipher:
        """The cipher under that key, built once."""
        if purpose not in self._ciphers:
            self._ciphers[purpose] = suite_of(self._suite).cipher(self.content_key(purpose), self._tag_len)
        return self._ciphers[purpose]

    def watch(self, around: Callable[[Cipher], Cipher], purpose: Purpose = "pub") -> None:
        """Wraps the cipher, to count what it does; call it before anybody has sealed or opened with the key."""
        self._ciphers[purpose] = around(self.cipher(purpose))

    def count(self, messages: int, blocks: int) -> None:
        """Counts what was sealed; raises Denied once the key has reached its limit."""
        self.messages += messages
        self.blocks += blocks
        if self.messages >= KEY_MESSAGES_MAX or self.blocks >= KEY_BLOCKS_MAX:
            raise Denied(f"limit: epoch {self.epoch} has sealed {self.messages} messages; its key must be refreshed")

    def __repr__(self) -> str:
        return f"KeyEpoch({self.gid.hex()[:16]}…, epoch {self.epoch}, {self.start_ms} to {self.end_ms} ms)"


class Keyring:
    """Every key held for one event type.

    `changes` counts additions and removals; a plan prepared from the keys is stale once it differs.
    With `beacons=True` (a live publisher) a key seals only while a message of the manager has come
    within the grace: a publisher that is cut off must not go on with an old key.
    """

    def __init__(
        self, signed_type: SignedType, *, delay_ms: int = DELAY_MS, beacons: bool = False, epochs_max: int = EPOCHS_MAX
    ) -> None:
        self.grace_ms, self.delay_ms = signed_type.grace_ms, delay_ms
        self.changes = 0
        self._suite, self._tag_len, self._beacons = signed_type.suite, signed_type.tag_len, beacons
        self._epochs: dict[bytes, dict[int, KeyEpoch]] = {gid: {} for gid in signed_type.group_ids}
        self._epochs_max = epochs_max
        self._vouched_ms: dict[bytes, int] = {}

    def add(self, gid: bytes, epoch: int, start_ms: int, dek: bytes) -> None:
        """Adds a key; raises PeerError where it contradicts one already held."""
        held = self._epochs.get(gid)
        if held is None:
            raise PeerError(f"group: {gid.hex()[:16]}… is no key group of this type")
        if (known := held.get(epoch)) is not None:
            if known.start_ms != start_ms or known.dek != dek:
                raise PeerError(f"epoch: {epoch} of {gid.hex()[:16]}… was announced with another key or start")
            return
        if len(held) >= self._epochs_max and epoch < min(held):
            raise PeerError(f"epoch: {epoch} of {gid.hex()[:16]}… is older than the {self._epochs_max} that are held")
        for other in held.values():
            if other.start_ms == start_ms or (other.epoch < epoch) != (other.start_ms < start_ms):
                raise PeerError(f"epoch: {epoch} of {gid.hex()[:16]}… starts on the wrong side of epoch {other.epoch}")
        held[epoch] = KeyEpoch(gid, epoch, start_ms, dek, self._suite, self._tag_len)
        for one, following in pairwise(self.epochs(gid)):
            one.end_ms = following.start_ms
        if len(held) > self._epochs_max:  # Whoever has the key changed often must not lock the members out.
            del held[min(held)]
        self.changes += 1

    def to_bytes(self) -> bytes:
        """Every key held, in the clear: for a file that only its owner reads, and for nothing else."""
        held = [
            (key.gid, key.epoch, key.start_ms, key.dek) for epochs in self._epochs.values() for key in epochs.values()
        ]
        return _MAGIC + msgspec.msgpack.encode(held)

    def fingerprint(self) -> str:
        """Names this very set of keys without telling anything of them: they are random, and hashed."""
        held = sorted(
            (key.gid, key.epoch, key.start_ms, key.dek) for keys in self._epochs.values() for key in keys.values()
        )
        return hashlib.sha256(_MAGIC + msgspec.msgpack.encode(held)).hexdigest()[:32]

    @classmethod
    def from_bytes(cls, raw: bytes, signed_type: SignedType) -> Keyring:
        """The ring that `to_bytes` wrote, past epochs included; raises PeerError for anything else."""
        try:
            held = msgspec.msgpack.decode(raw.removeprefix(_MAGIC), type=list[tuple[bytes, int, int, bytes]])
        except msgspec.DecodeError:
            held = None
        if held is None or not raw.startswith(_MAGIC) or any(len(dek) != DEK_BYTES for *_, dek in held):
            raise PeerError("keyring: expected one as `to_bytes` writes it")
        ring = cls(signed_type, epochs_max=max(EPOCHS_MAX, len(held)))
        for gid, epoch, start_ms, dek in sorted(held):
            ring.add(gid, epoch, start_ms, dek)
        return ring

    def vouch(self, gid: bytes, now_ms: int) -> None:
        """Records that the manager has just confirmed the group's present epoch."""
        self._vouched_ms[gid] = max(now_ms, self._vouched_ms.get(gid, now_ms))

    def get(self, gid: bytes, epoch: int) -> KeyEpoch | None:
        return self._epochs.get(gid, {}).get(epoch)

    def epochs(self, gid: bytes) -> tuple[KeyEpoch, ...]:
        """The epochs held of one group, oldest first."""
        return tuple(held for _, held in sorted(self._epochs.get(gid, {}).items()))

    def for_sealing(self, gid: bytes, ts_ms: int, now_ms: int) -> KeyEpoch:
        """The key that an event of this time is sealed with; raises Denied where there is none to use."""
        if self._beacons and now_ms - self._vouched_ms.get(gid, -self.grace_ms - 1) > self.grace_ms:
            why = f"beacon: nothing heard of group {gid.hex()[:16]}… for {self.grace_ms} ms"
            raise Denied(why, code=ErrorCode.BEACON)
        held = self.epochs(gid)
        for key in reversed(held):
            if key.start_ms <= ts_ms:
                return key
        if held:
            raise NotYet(f"epoch: the first key of {gid.hex()[:16]}… starts at {held[0].start_ms} ms", held[0].start_ms)
        raise Denied(f"key: none held for group {gid.hex()[:16]}…", code=ErrorCode.KEY)

    def vouched_until(self, gids: Sequence[bytes]) -> int:
        """The time from which on keys of these groups may not seal, unless the manager vouches again."""
        if not self._beacons or not gids:
            return 2**63
        return min(self._vouched_ms.get(gid, 0) for gid in gids) + self.grace_ms + 1

    def window(self, key: KeyEpoch) -> tuple[int, int]:
        """The publication times, from and until before, that an event sealed with this key may carry."""
        end = 2**63 if key.end_ms is None else key.end_ms + self.grace_ms
        return key.start_ms - self.grace_ms, end

    def retire(self, now_ms: int) -> int:
        """Drops every key that no fresh event can need; returns how many.

        Dropping is all that Python can promise: the memory is freed, not wiped.
        """
        late = now_ms - self.grace_ms - self.delay_ms
        gone = [key for held in self._epochs.values() for key in held.values() if (key.end_ms or 2**63) <= late]
        for key in gone:
            del self._epochs[key.gid][key.epoch]
        self.changes += bool(gone)
        return len(gone)

    def __repr__(self) -> str:
        held = {gid.hex()[:16]: sorted(epochs) for gid, epochs in self._epochs.items()}
        return f"Keyring({held})"
