"""Ciphers: each is what its name says, and each notices what was changed."""

from __future__ import annotations

import pytest
from cryptography.exceptions import InvalidTag

from tests.unit.security.london import source
from tidings.errors import PeerError
from tidings.security import SUITES, suite_of
from tidings.security.suites import Eax

# From "The EAX mode of operation" (Bellare, Rogaway, Wagner), appendix: message, key, nonce, header, ciphertext.
EAX_ANSWERS = [
    ("", "233952DEE4D5ED5F9B9C6D6FF80FF478", "62EC67F9C3A4A407FCB2A8C49031A8B3", "6BFB914FD07EAE6B", "E037830E8389F27B025A2D6527E79D01"),
    ("F7FB", "91945D3F4DCBEE0BF45EF52255F095A4", "BECAF043B0A23D843194BA972C66DEBD", "FA3BFD4806EB53FA", "19DD5C4C9331049D0BDAB0277408F67967E5"),
    ("1A47CB4933", "01F74AD64077F2E704C0F60ADA3DD523", "70C3DB4F0D26368400A10ED05D2BFF5E", "234A3463C1264AC6", "D851D5BAE03A59F238A23E39199DC9266626C40F80"),
]  # fmt: skip


@pytest.mark.parametrize(("message", "key", "nonce", "header", "sealed"), EAX_ANSWERS)
def test_eax_gives_the_answers_of_its_authors(message: str, key: str, nonce: str, header: str, sealed: str) -> None:
    cipher = Eax(bytes.fromhex(key))
    assert cipher.encrypt(bytes.fromhex(nonce), bytes.fromhex(message), bytes.fromhex(header)).hex().upper() == sealed
    assert cipher.decrypt(bytes.fromhex(nonce), bytes.fromhex(sealed), bytes.fromhex(header)) == bytes.fromhex(message)


@pytest.mark.parametrize("tag_bytes", [4, 8, 12, 16])
@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 100, 511, 512, 513, 2000])
def test_eax_agrees_with_another_library(size: int, tag_bytes: int) -> None:
    aes = pytest.importorskip("Crypto.Cipher.AES", reason="pycryptodome is not installed")
    random = source(size)
    key, nonce, header, data = random(16), random(40), random(20), random(size)
    theirs = aes.new(key, aes.MODE_EAX, nonce=nonce, mac_len=tag_bytes)
    theirs.update(header)
    assert Eax(key, tag_bytes).encrypt(nonce, data, header) == b"".join(theirs.encrypt_and_digest(data))


@pytest.mark.parametrize("suite", SUITES.values(), ids=lambda suite: suite.name)
def test_every_suite_opens_what_it_sealed_and_nothing_else(suite) -> None:  # type: ignore[no-untyped-def]
    random = source(suite.id)
    key, nonce = random(32), random(12)
    sealed = suite.cipher(key).encrypt(nonce, b"AB12CDE", b"type")
    assert suite.cipher(key).decrypt(nonce, sealed, b"type") == b"AB12CDE"
    assert len(sealed) == 7 + 16
    attempts = [
        (random(32), nonce, sealed, b"type"),
        (key, random(12), sealed, b"type"),
        (key, nonce, sealed, b"tyqe"),
        *((key, nonce, sealed[:size], b"type") for size in range(len(sealed))),
        *((key, nonce, sealed[:at] + bytes([sealed[at] ^ 1]) + sealed[at + 1 :], b"type") for at in range(len(sealed))),
    ]
    for other_key, other_nonce, other, header in attempts:
        with pytest.raises((InvalidTag, ValueError)):
            suite.cipher(other_key).decrypt(other_nonce, other, header)


def test_only_the_gcm_suites_are_sparks() -> None:
    assert [suite.id for suite in SUITES.values() if suite.in_spark] == [0x01, 0x02]


def test_an_unknown_suite_is_refused_with_the_known_ones() -> None:
    with pytest.raises(PeerError, match="suite: 0x77 is unknown; expected one of 0x01, 0x02, 0x10, 0x11, 0x12"):
        suite_of(0x77)
