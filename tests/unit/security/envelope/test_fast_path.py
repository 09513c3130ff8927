"""Frames known again by their shape: read faster, and never otherwise than in full."""

from __future__ import annotations

import random

import pytest

from tests.unit.security.london import NOW_MS, PLATES, SIGHTING, WHOLE, a_keyring, source
from tidings.errors import PeerError
from tidings.security import Opened, Opener, ReplayWindow, Sealer, SignedType, cached, split


def with_caches(signed_type: SignedType, count: int) -> list[bytes]:
    """Frames of one shape, each with its plaintext beside it."""
    sealer = Sealer(signed_type, a_keyring(signed_type), 7)
    rows = [{**SIGHTING, "plate": f"AB{number:05}"} for number in range(count)]
    return [cached(signed_type, split(sealer.seal(row, NOW_MS)), row, None) for row in rows]


def told(opener: Opener, frame: bytes) -> Opened | str:
    try:
        return opener.open_(frame, NOW_MS, cache="trust")
    except PeerError as wrong:
        return str(wrong)


@pytest.mark.parametrize("signed_type", [PLATES, WHOLE])
def test_whatever_is_altered_a_reader_that_knows_the_shape_says_what_a_new_one_says(signed_type: SignedType) -> None:
    frames = with_caches(signed_type, 40)
    knowing, rng = Opener(signed_type, a_keyring(signed_type)), random.Random(2)
    for frame in frames[:5]:
        told(knowing, frame)
    assert knowing.has_fast_path(len(frames[0]))
    for frame in frames[5:]:
        for at in rng.sample(range(len(frame)), 40):
            altered = frame[:at] + bytes([frame[at] ^ 1 << rng.randrange(8)]) + frame[at + 1 :]
            assert told(knowing, altered) == told(Opener(signed_type, a_keyring(signed_type)), altered)
        assert told(knowing, frame) == told(Opener(signed_type, a_keyring(signed_type)), frame)


def test_a_shape_does_not_outlive_its_keys() -> None:
    keyring = a_keyring(PLATES)
    frames, opener = with_caches(PLATES, 5), Opener(PLATES, keyring)
    for frame in frames[:4]:
        opener.open_(frame, NOW_MS, cache="trust")
    for gid in PLATES.group_ids:
        keyring.add(gid, 4, NOW_MS + 1, source(9)(32))
    late = _at(frames[4], NOW_MS + 2 + PLATES.grace_ms)
    assert str(told(opener, late)).startswith("epoch: published at")


def _at(frame: bytes, ts_ms: int) -> bytes:
    return frame[:40] + ts_ms.to_bytes(8, "big") + frame[48:]


def test_a_copy_is_known_by_its_number_in_any_shape() -> None:
    replay = ReplayWindow(grace_ms=5_000, delay_ms=60_000)
    opener = Opener(PLATES, a_keyring(PLATES), replay=replay)
    frames = with_caches(PLATES, 6)
    for frame in frames:
        opener.open_(frame, NOW_MS, cache="trust")
    assert str(told(opener, frames[5])).startswith("replay")


def test_a_reader_that_lacks_a_key_reads_every_frame_in_full() -> None:
    frames = with_caches(PLATES, 5)
    opener = Opener(PLATES, a_keyring(PLATES, ("plate",)))
    for frame in frames:
        opener.open_(frame, NOW_MS, cache="trust")
    assert not opener.has_fast_path(len(frames[0]))
