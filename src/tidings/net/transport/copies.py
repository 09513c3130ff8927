"""Copies of a broker: of those with one key, the one that was restored last counts.

A broker that is restored from a backup has the key of the broker that was backed up. That one may still run, or be
started again, and both would number events, acknowledge deliveries and issue keys under one name. So a restored journal
carries the time of its restore as its copy number, signed with the broker's key and shown in each handshake. A broker
that knows of a later copy tells an earlier one, with that signature as the proof, and closes the connection; the
earlier one verifies that it is its own key's, stops, and does not start again. Nobody else can make such a proof, so
nobody else can stop a broker with it.
"""

from __future__ import annotations

import msgspec

from tidings.errors import PeerError
from tidings.security import Identity, verify_signature

_CONTEXT = b"tidings/copy/1\0"
NUMBER_MAX = 1 << 62


class CopyProof(msgspec.Struct, frozen=True, array_like=True):
    """Which copy of a broker this is: when it was restored, in ms, signed by its key; 0 for one that never was."""

    number: int = 0
    signature: bytes = b""


ORIGINAL = CopyProof()


def prove_copy(identity: Identity, number: int) -> CopyProof:
    """The proof that a broker shows; none is needed by one that was never restored."""
    return CopyProof(number, identity.sign(_signed(number))) if number else ORIGINAL


def check_copy(key: bytes, proof: CopyProof) -> None:
    """Raises PeerError unless the broker with this key has signed its number."""
    if not 0 <= proof.number < NUMBER_MAX:
        raise PeerError("hello: the number of a copy is out of range")
    if proof.number:
        verify_signature(key, proof.signature, _signed(proof.number), "the hello of a restored broker")


def _signed(number: int) -> bytes:
    return _CONTEXT + number.to_bytes(8, "big")
