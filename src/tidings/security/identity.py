"""Identities: an Ed25519 key identifies a participant, and secrets for it are sealed to an X25519 key.

Keys travel as their 32 raw bytes. People read them as `ed25519:` and 64 hex digits, the
fingerprint, which is the key itself and nothing shorter: a prefix could be matched by trial.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from cryptography.exceptions import InvalidSignature, InvalidTag, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from tidings.errors import InputError, PeerError

RandomBytes: TypeAlias = Callable[[int], bytes]
"""A source of random bytes: `secrets.token_bytes` in production, a seeded source in tests."""

KEY_BYTES = 32
SIGNATURE_BYTES = 64
_PREFIX = "ed25519:"
_ONE_USE_NONCE = bytes(12)  # Each sealing key is derived for one message, so a fixed nonce is safe.


def fingerprint(public_key: bytes) -> str:
    """A public key as people and names show it.

    >>> fingerprint(bytes(32))[:16]
    'ed25519:00000000'
    """
    return _PREFIX + public_key.hex()


def from_fingerprint(text: str) -> bytes:
    """The public key a fingerprint spells; raises InputError if it spells none."""
    digits = text.removeprefix(_PREFIX)
    try:
        raw = bytes.fromhex(digits)
    except ValueError:
        raw = b""
    if not text.startswith(_PREFIX) or len(raw) != KEY_BYTES or raw.hex() != digits:
        raise InputError(f"expected {_PREFIX} and {2 * KEY_BYTES} lower-case hex digits, got {text[:80]!r}")
    return raw


@dataclass(frozen=True, slots=True)
class Identity:
    """A participant's signing key. Its repr shows the public half only.

    >>> alice = Identity(bytes(range(32)))
    >>> verify_signature(alice.public_key, alice.sign(b"hello"), b"hello", "a greeting")
    """

    secret: bytes
    public_key: bytes = field(init=False, compare=False)
    _key: Ed25519PrivateKey = field(init=False, compare=False)

    def __post_init__(self) -> None:
        _need_key(self.secret, "an Ed25519 secret key")
        # Computed once: both cost more than a signature does.
        object.__setattr__(self, "_key", Ed25519PrivateKey.from_private_bytes(self.secret))
        object.__setattr__(self, "public_key", self._key.public_key().public_bytes_raw())

    @classmethod
    def make(cls, random: RandomBytes) -> Identity:
        return cls(random(KEY_BYTES))

    @classmethod
    def from_pem(cls, pem: bytes, password: bytes | None = None) -> Identity:
        """From a PKCS#8 PEM; raises InputError for another kind of key or a wrong password."""
        try:
            key = load_pem_private_key(pem, password)
        except TypeError:  # How the library says that there is a password and should be none, or the reverse.
            found = "a key with a password" if password is None else "a key without a password, and one was given"
            raise InputError(f"expected an Ed25519 private key as PKCS#8 PEM, got {found}") from None
        except (ValueError, UnsupportedAlgorithm):
            found = "something else" if password is None else "something else, or a key with another password"
            raise InputError(f"expected an Ed25519 private key as PKCS#8 PEM, got {found}") from None
        if not isinstance(key, Ed25519PrivateKey):
            raise InputError(f"expected an Ed25519 private key, got {type(key).__name__}")
        return cls(key.private_bytes_raw())

    def to_pem(self, password: bytes | None = None) -> bytes:
        lock: KeySerializationEncryption = BestAvailableEncryption(password) if password else NoEncryption()
        return self._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, lock)

    def sign(self, message: bytes) -> bytes:
        return self._key.sign(message)

    def __reduce__(self) -> tuple[type[Identity], tuple[bytes]]:
        return Identity, (self.secret,)

    def __repr__(self) -> str:
        return f"Identity({fingerprint(self.public_key)})"


def verify_signature(public_key: bytes, signature: bytes, message: bytes, what: str) -> None:
    """Returns if `public_key` signed `message`; else raises PeerError that names the message as `what`."""
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, message)
    except (InvalidSignature, ValueError):
        raise PeerError(f"signature: {what} is not signed by {fingerprint(public_key)}") from None


@dataclass(frozen=True, slots=True)
class SealingKey:
    """An X25519 key pair: anybody seals to its public half, only the owner opens."""

    secret: bytes

    def __post_init__(self) -> None:
        _need_key(self.secret, "an X25519 secret key")

    @classmethod
    def make(cls, random: RandomBytes) -> SealingKey:
        return cls(random(KEY_BYTES))

    @property
    def public_key(self) -> bytes:
        return X25519PrivateKey.from_private_bytes(self.secret).public_key().public_bytes_raw()

    def open(self, sealed: bytes, context: bytes) -> bytes:
        """The message that was sealed for this key and this `context`; raises PeerError for anything else."""
        try:
            mine = X25519PrivateKey.from_private_bytes(self.secret)
            theirs = bytes(sealed[:KEY_BYTES])
            shared = mine.exchange(X25519PublicKey.from_public_bytes(theirs))
            return _box(shared, theirs, self.public_key, context).decrypt(_ONE_USE_NONCE, sealed[KEY_BYTES:], context)
        except (InvalidTag, ValueError):
            raise PeerError(f"seal: cannot be opened with this key for {context[:40]!r}") from None

    def __repr__(self) -> str:
        return f"SealingKey(x25519:{self.public_key.hex()})"


def seal_to(public_key: bytes, message: bytes, context: bytes, random: RandomBytes) -> bytes:
    """`message` for the owner of `public_key` alone: a fresh public key, then AES-256-GCM.

    `context` says what the message is for; one sealed for another purpose does not open.
    """
    ephemeral = SealingKey(random(KEY_BYTES))
    try:
        shared = X25519PrivateKey.from_private_bytes(ephemeral.secret).exchange(
            X25519PublicKey.from_public_bytes(public_key)
        )
    except ValueError:  # Not 32 bytes, or a point on which every secret agrees.
        raise PeerError(f"seal: {public_key.hex()[:80]!r} is not a usable X25519 public key") from None
    box = _box(shared, ephemeral.public_key, public_key, context)
    return ephemeral.public_key + box.encrypt(_ONE_USE_NONCE, message, context)


def _box(shared: bytes, ephemeral: bytes, recipient: bytes, context: bytes) -> AESGCM:
    # Both public keys go into the salt, so that a sealed message is bound to its recipient.
    return AESGCM(HKDF(SHA256(), 32, salt=ephemeral + recipient, info=b"ps/seal/1\0" + context).derive(shared))


def _need_key(raw: bytes, what: str) -> None:
    if len(raw) != KEY_BYTES:
        raise InputError(f"expected {KEY_BYTES} bytes as {what}, got {len(raw)}")
