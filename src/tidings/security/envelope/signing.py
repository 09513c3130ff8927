"""A publisher's signature, which every reader can verify.

A group key proves only that some member sealed an event, and every reader is a member. Where
that is not enough the publisher signs each event by itself, or up to 256 at once: then it signs
the root of a Merkle tree, and each event carries its path to the root.

    block = alg 1 ‖ key 32 ‖ signature 64                                     each
    block = alg 2 ‖ key 32 ‖ signature 64 ‖ index 2 ‖ count 2 ‖ siblings 32×n   batch

Leaves, nodes and the signed root start with different bytes, so none passes for another.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from hashlib import sha256

from tidings.errors import PeerError
from tidings.security.identity import Identity, verify_signature

EACH, BATCH = 1, 2
BATCH_MAX = 256  # Eight siblings to carry; 5 ms of a busy publisher.
_HEAD = struct.Struct(">B32s64s")
_PROOF = struct.Struct(">HH")
_ROOTS_REMEMBERED = 4096


def digest_of(signed: bytes | memoryview) -> bytes:
    """What stands for an event in signatures: the hash of its header and ciphertexts."""
    return sha256(signed).digest()


def sign_each(signer: Identity, digest: bytes) -> bytes:
    return _HEAD.pack(EACH, signer.public_key, signer.sign(_each(digest)))


def sign_batch(signer: Identity, digests: Sequence[bytes]) -> list[bytes]:
    """One block for each digest, all proved by one signature."""
    assert 1 <= len(digests) <= BATCH_MAX
    levels = _levels([_leaf(digest) for digest in digests])
    head = _HEAD.pack(BATCH, signer.public_key, signer.sign(_batch(len(digests), levels[-1][0])))
    return [
        head + _PROOF.pack(index, len(digests)) + b"".join(_siblings(levels, index)) for index in range(len(digests))
    ]


def signatures_of(signer: Identity, digests: Sequence[bytes]) -> list[bytes]:
    """One block for each digest, however many there are; each batch of them has one signature."""
    starts = range(0, len(digests), BATCH_MAX)
    return [block for start in starts for block in sign_batch(signer, digests[start : start + BATCH_MAX])]


class SignatureReader:
    """Checks signature blocks, each batch's signature once."""

    def __init__(self) -> None:
        self._roots: dict[bytes, None] = {}

    @property
    def batches_verified(self) -> int:
        """How many batches' signatures have been verified and are remembered."""
        return len(self._roots)

    def signer(self, block: bytes | memoryview, digest: bytes) -> bytes:
        """The key that signed; raises PeerError unless one did."""
        try:
            alg, key, signature = _HEAD.unpack_from(block)
            if alg == EACH and len(block) == _HEAD.size:
                verify_signature(key, signature, _each(digest), "the event")
                return bytes(key)
            if alg == BATCH:
                self._check_batch(key, signature, bytes(block), digest)
                return bytes(key)
        except struct.error:
            pass
        raise PeerError("signature: the block is cut short or of an unknown kind")

    def _check_batch(self, key: bytes, signature: bytes, block: bytes, digest: bytes) -> None:
        index, count = _PROOF.unpack_from(block, _HEAD.size)
        rest = block[_HEAD.size + _PROOF.size :]
        signed = _batch(count, _root_of(_leaf(digest), index, count, rest))
        name = key + signature + signed
        if name not in self._roots:
            verify_signature(key, signature, signed, "the batch of the event")
            while len(self._roots) >= _ROOTS_REMEMBERED:
                del self._roots[next(iter(self._roots))]
            self._roots[name] = None


def _each(digest: bytes) -> bytes:
    return b"ps/event/1\0" + digest


def _batch(count: int, root: bytes) -> bytes:
    return b"ps/batch/1\0" + count.to_bytes(2, "big") + root


def _leaf(digest: bytes) -> bytes:
    return sha256(b"\0" + digest).digest()


def _levels(leaves: list[bytes]) -> list[list[bytes]]:
    """The tree from its leaves up; the odd one out moves up as it is."""
    levels = [leaves]
    while len(levels[-1]) > 1:
        below = levels[-1]
        pairs = [sha256(b"\1" + one + other).digest() for one, other in zip(below[::2], below[1::2], strict=False)]
        levels.append(pairs + below[len(pairs) * 2 :])
    return levels


def _siblings(levels: list[list[bytes]], index: int) -> list[bytes]:
    way = []
    for level in levels[:-1]:
        if index ^ 1 < len(level):
            way.append(level[index ^ 1])
        index >>= 1
    return way


def _root_of(node: bytes, index: int, count: int, siblings: bytes) -> bytes:
    """The root that the path of leaf `index` of `count` leads to; raises PeerError if its length is wrong."""
    if not 0 <= index < count <= BATCH_MAX:
        raise PeerError(f"signature: leaf {index} of {count} in a batch of at most {BATCH_MAX}")
    at = 0
    while count > 1:
        if index ^ 1 < count:
            sibling, at = siblings[at : at + 32], at + 32
            node = sha256(b"\1" + (sibling + node if index & 1 else node + sibling)).digest()
        index, count = index >> 1, (count + 1) >> 1
    if at != len(siblings):
        raise PeerError("signature: the path to the batch's root has the wrong length")
    return node
