"""Columns under one key: OpenSSL's library and its plain twin write the same bytes and refuse the same rows."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from tests.unit.security.london import a_keyring, a_type
from tidings.errors import EventError
from tidings.security import KeyEpoch
from tidings.security.envelope.accelerated import FrameWriter, has_library, open_column
from tidings.security.envelope.column_codec import parts_of

AAD, HEAD = bytes(range(104)), bytes(36)
PLAINS = [b"", b"x", b"AB12CDE", bytes(16), bytes(range(256)) * 20, random.Random(1).randbytes(35)]


@pytest.fixture(params=[True, False], ids=["the library", "its twin"])
def use_library(request: pytest.FixtureRequest) -> bool:
    if request.param and not has_library():
        pytest.skip("this machine has no libcrypto")
    return bool(request.param)


def key(suite: int = 0x01) -> KeyEpoch:
    signed_type = a_type(suite=suite)
    found = a_keyring(signed_type).get(signed_type.attr_id("plate"), 3)
    assert found is not None
    return found


def nonces(count: int) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    return np.frombuffer(random.Random(2).randbytes(12 * count), np.uint8).reshape(count, 12)


def sealed(under: KeyEpoch, plains: list[bytes], use_library: bool) -> list[bytes]:
    column, starts = pa.array(plains, pa.binary()), np.full((len(plains), 3), 7, np.uint8)
    writer = FrameWriter(starts, [(HEAD, column)], use_library=use_library)
    writer.seal(under, nonces(len(plains)), AAD, HEAD, column)
    frames: list[bytes] = writer.frames().to_pylist()
    return frames


@pytest.mark.parametrize("suite", [0x01, 0x02, 0x12])
def test_each_value_is_sealed_as_the_cipher_of_live_events_seals_it(suite: int, use_library: bool) -> None:
    under = key(suite)
    expected = [under.cipher("pub").encrypt(nonce.tobytes(), plain, AAD) for nonce, plain in zip(nonces(6), PLAINS)]
    starts = [b"\7\7\7" + HEAD + len(body).to_bytes(4, "big") for body in expected]
    assert sealed(under, PLAINS, use_library) == [start + body for start, body in zip(starts, expected)]


@pytest.mark.parametrize("suite", [0x01, 0x02, 0x12])
def test_a_row_with_any_bit_changed_is_refused_alone_and_shows_nothing(suite: int, use_library: bool) -> None:
    under = key(suite)
    body = under.cipher("pub").encrypt(nonces(1)[0].tobytes(), b"AB12CDE", AAD)
    forged = [bytes([*body[:at], body[at] ^ 1 << bit, *body[at + 1 :]]) for at in range(len(body)) for bit in range(8)]
    cut = [body[:size] for size in range(len(body))]
    plains, is_wrong = opened(under, [body, *forged, *cut, body], AAD, use_library)
    assert is_wrong == [False, *[True] * len(forged + cut), False]
    assert plains[0] == plains[-1] == b"AB12CDE"
    assert not any(b"".join(plains[1:-1]))


def test_another_key_nonce_or_associated_data_opens_nothing(use_library: bool) -> None:
    under, other = key(), key(0x02)
    body = under.cipher("pub").encrypt(nonces(1)[0].tobytes(), b"AB12CDE", AAD)
    assert opened(other, [body], AAD, use_library)[1] == [True]
    assert opened(under, [body], AAD[:-1], use_library)[1] == [True]
    turned = np.ascontiguousarray(nonces(1)[:, ::-1])
    _, is_wrong = open_column(under, turned, AAD, *parts_of(pa.array([body])), use_library=use_library)
    assert is_wrong.tolist() == [True]


def opened(under: KeyEpoch, bodies: list[bytes], aad: bytes, use_library: bool) -> tuple[list[bytes], list[bool]]:
    """Opened in one column, all under the nonce of the first."""
    data, starts, sizes = parts_of(pa.array(bodies, pa.binary()))
    same = np.ascontiguousarray(np.repeat(nonces(1), len(bodies), axis=0))
    plains, is_wrong = open_column(under, same, aad, data, starts, sizes, use_library=use_library)
    return plains.to_pylist(), is_wrong.tolist()


def test_a_column_of_nothing_is_nothing(use_library: bool) -> None:
    assert sealed(key(), [], use_library) == []
    assert opened(key(), [], AAD, use_library) == ([], [])


def test_more_than_arrow_can_count_is_refused_before_any_of_it_is_written() -> None:
    with pytest.raises(EventError, match="a batch of 5,?175 bytes"):
        FrameWriter(np.zeros((1, 3), np.uint8), [(HEAD, pa.array([bytes(5116)]))], bytes_max=100)
