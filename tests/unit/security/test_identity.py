"""Identities: who signed, and who alone can open."""

from __future__ import annotations

import pickle

import pytest

from tests.unit.security.london import CAMERA, OWNER, STRANGER, source
from tidings.errors import InputError, PeerError
from tidings.security import Identity, SealingKey, fingerprint, from_fingerprint, seal_to, verify_signature

KEX = SealingKey.make(source(1))


def test_a_fingerprint_spells_the_whole_key() -> None:
    assert from_fingerprint(fingerprint(OWNER.public_key)) == OWNER.public_key
    assert fingerprint(OWNER.public_key) == "ed25519:" + OWNER.public_key.hex()


@pytest.mark.parametrize("text", ["", "ed25519:", "ed25519:00", "rsa:" + "00" * 32, "ed25519:" + "AB" * 32, "ab" * 32])
def test_a_text_that_spells_no_key_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="64 lower-case hex digits"):
        from_fingerprint(text)


def test_an_identity_survives_its_pem_with_and_without_a_password() -> None:
    assert Identity.from_pem(OWNER.to_pem()) == OWNER
    assert Identity.from_pem(OWNER.to_pem(b"secret"), b"secret") == OWNER


def test_a_wrong_password_and_a_wrong_kind_of_key_are_the_callers_mistake() -> None:
    with pytest.raises(InputError, match=r"PKCS#8 PEM, got something else, or a key with another password$"):
        Identity.from_pem(OWNER.to_pem(b"secret"), b"guess")
    with pytest.raises(InputError, match=r"got a key with a password$"):
        Identity.from_pem(OWNER.to_pem(b"secret"))
    with pytest.raises(InputError, match=r"got a key without a password, and one was given$"):
        Identity.from_pem(OWNER.to_pem(), b"guess")
    with pytest.raises(InputError, match=r"PKCS#8 PEM, got something else$"):
        Identity.from_pem(b"-----BEGIN NOTHING-----")


def test_an_identity_survives_pickling() -> None:
    assert pickle.loads(pickle.dumps(OWNER)) == OWNER


def test_a_secret_is_never_shown() -> None:
    assert OWNER.secret.hex() not in repr(OWNER)
    assert KEX.secret.hex() not in repr(KEX)


@pytest.mark.parametrize("secret", [b"", bytes(31), bytes(33)])
def test_a_secret_of_another_length_is_refused(secret: bytes) -> None:
    with pytest.raises(InputError, match="expected 32 bytes"):
        Identity(secret)


def test_a_signature_holds_for_its_key_and_message_only() -> None:
    signature = CAMERA.sign(b"seen")
    verify_signature(CAMERA.public_key, signature, b"seen", "a word")
    for key, message in [(STRANGER.public_key, b"seen"), (CAMERA.public_key, b"seem"), (bytes(5), b"seen")]:
        with pytest.raises(PeerError, match="signature: a word is not signed by"):
            verify_signature(key, signature, message, "a word")


def test_what_is_sealed_opens_for_its_recipient_and_purpose_only() -> None:
    sealed = seal_to(KEX.public_key, b"the key", b"welcome", source(2))
    assert KEX.open(sealed, b"welcome") == b"the key"
    for key, context in [(KEX, b"farewell"), (SealingKey.make(source(3)), b"welcome")]:
        with pytest.raises(PeerError, match="seal: cannot be opened"):
            key.open(sealed, context)


def test_every_flipped_bit_and_every_cut_of_a_sealed_message_is_noticed() -> None:
    sealed = seal_to(KEX.public_key, b"k", b"c", source(2))
    broken = [sealed[:size] for size in range(len(sealed))]
    broken += [_flipped(sealed, bit) for bit in range(8 * len(sealed)) if bit != 255]
    for message in broken:
        with pytest.raises(PeerError, match="seal"):
            KEX.open(message, b"c")


def test_the_one_bit_that_x25519_ignores_is_bound_by_the_salt() -> None:
    sealed = seal_to(KEX.public_key, b"k", b"c", source(2))
    with pytest.raises(PeerError, match="seal"):
        KEX.open(_flipped(sealed, 8 * 31 + 7), b"c")


def test_two_seals_of_one_message_share_nothing() -> None:
    random = source(4)
    one, other = (seal_to(KEX.public_key, b"the key", b"", random) for _ in range(2))
    assert one[:32] != other[:32]
    assert one[32:] != other[32:]


@pytest.mark.parametrize("key", [b"", bytes(31), bytes(32)])
def test_nothing_is_sealed_to_a_key_on_which_all_secrets_agree(key: bytes) -> None:
    with pytest.raises(PeerError, match="not a usable X25519"):
        seal_to(key, b"the key", b"", source(5))


def _flipped(raw: bytes, bit: int) -> bytes:
    changed = bytearray(raw)
    changed[bit // 8] ^= 1 << (bit % 8)
    return bytes(changed)
