"""Signatures: of one event, and of many at once."""

from __future__ import annotations

import pytest

from tests.unit.security.london import CAMERA, STRANGER
from tidings.errors import PeerError
from tidings.security.envelope.signing import BATCH_MAX, SignatureReader, digest_of, sign_batch, sign_each

DIGESTS = [digest_of(bytes([number])) for number in range(BATCH_MAX)]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 100, 255, 256])
def test_every_event_of_a_batch_carries_its_way_to_the_signed_root(size: int) -> None:
    reader = SignatureReader()
    blocks = sign_batch(CAMERA, DIGESTS[:size])
    for block, digest in zip(blocks, DIGESTS, strict=False):
        assert reader.signer(block, digest) == CAMERA.public_key
    assert len(blocks[0]) <= 97 + 4 + 32 * 8
    assert reader.batches_verified == 1  # One signature was checked for all of them.


def test_a_block_is_good_for_its_event_only() -> None:
    reader = SignatureReader()
    for blocks in (sign_batch(CAMERA, DIGESTS[:5]), [sign_each(CAMERA, digest) for digest in DIGESTS[:5]]):
        for at, block in enumerate(blocks):
            for other in range(6):
                if other != at:
                    with pytest.raises(PeerError, match="signature: the (event|batch)"):
                        reader.signer(block, DIGESTS[other])


@pytest.mark.parametrize("make", [lambda d: sign_each(CAMERA, d[0]), lambda d: sign_batch(CAMERA, d)[0]])
def test_no_flipped_bit_and_no_cut_of_a_block_goes_unnoticed(make) -> None:  # type: ignore[no-untyped-def]
    reader, block = SignatureReader(), make(DIGESTS[:3])
    assert reader.signer(block, DIGESTS[0]) == CAMERA.public_key
    broken = [block[:size] for size in range(len(block))] + [block + b"\0", block + bytes(32)]
    for bit in range(8 * len(block)):
        changed = bytearray(block)
        changed[bit // 8] ^= 1 << (bit % 8)
        broken.append(bytes(changed))
    for other in broken:
        with pytest.raises(PeerError, match="signature"):
            reader.signer(other, DIGESTS[0])


def test_a_node_does_not_pass_for_a_leaf() -> None:
    """Leaves and nodes start differently: an inner node's two halves are no event."""
    from hashlib import sha256

    leaves = [sha256(b"\0" + digest).digest() for digest in DIGESTS[:2]]
    block = sign_batch(CAMERA, DIGESTS[:2])[0]
    forged = block[:97] + (0).to_bytes(2, "big") + (1).to_bytes(2, "big")
    for digest in (leaves[0] + leaves[1], sha256(b"\1" + leaves[0] + leaves[1]).digest()):
        with pytest.raises(PeerError, match="signature"):
            SignatureReader().signer(forged, digest)


def test_a_stranger_signs_as_itself() -> None:
    assert SignatureReader().signer(sign_each(STRANGER, DIGESTS[0]), DIGESTS[0]) == STRANGER.public_key


@pytest.mark.parametrize(("index", "count"), [(5, 3), (0, 0), (0, 257), (3, 3)])
def test_a_place_that_a_batch_has_not_is_refused(index: int, count: int) -> None:
    block = sign_batch(CAMERA, DIGESTS[:3])[0]
    forged = block[:97] + index.to_bytes(2, "big") + count.to_bytes(2, "big") + block[101:]
    with pytest.raises(PeerError, match="signature: leaf"):
        SignatureReader().signer(forged, DIGESTS[0])
