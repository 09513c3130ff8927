"""The online test of a right: a signed list of the rights that hold now, by name, from whoever manages a type's keys.

A token may demand a recent yes (`OnlineTest`). The test's url names who answers, and which right is meant:

    acs:ed25519:KEY/night-shift

The holder of that key, the access-control service, says every few seconds which of its rights hold. A list is believed
for as long as the token allows; a right that is no longer on it, or of which nothing is heard, ends by itself.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from tidings.errors import InputError, PeerError
from tidings.security.identity import KEY_BYTES, Identity, fingerprint, verify_signature

ANSWER_BYTES_MAX = 64 * 1024
NAMES_MAX = 1024  # Rights with an online test that one service answers for.
NAME_CHARS_MAX = 128
_CONTEXT = b"ps/online/1\0"


class OnlineAnswer(msgspec.Struct, frozen=True, array_like=True):
    """The names of the rights that hold at a moment, signed."""

    key: bytes
    at_ms: int
    names: tuple[str, ...]
    signature: bytes = b""

    def urls(self) -> list[str]:
        """The online tests that this answers with yes."""
        return [online_url(self.key, name) for name in self.names]


def online_url(key: bytes, name: str) -> str:
    """The test of this name, which the holder of this key answers.

    >>> online_url(bytes(32), "night-shift")[:20]
    'acs:ed25519:00000000'
    """
    return f"acs:{fingerprint(key)}/{name}"


def sign_answer(service: Identity, names: Iterable[str], at_ms: int) -> bytes:
    """The list of rights that hold now, as it is sent; raises InputError for more than one list can have."""
    listed = tuple(sorted(set(names)))
    if len(listed) > NAMES_MAX or any(not 0 < len(name) <= NAME_CHARS_MAX for name in listed):
        raise InputError(f"expected at most {NAMES_MAX} names of rights, of 1 to {NAME_CHARS_MAX} characters each")
    answer = OnlineAnswer(service.public_key, at_ms, listed)
    return msgspec.msgpack.encode(msgspec.structs.replace(answer, signature=service.sign(_signed(answer))))


def read_answer(raw: bytes) -> OnlineAnswer:
    """An answer, not verified yet; raises PeerError for anything else."""
    if len(raw) > ANSWER_BYTES_MAX:
        raise PeerError(f"online: {len(raw)} bytes; at most {ANSWER_BYTES_MAX} are allowed")
    try:
        answer = msgspec.msgpack.decode(raw, type=OnlineAnswer)
    except msgspec.MsgspecError as wrong:
        raise PeerError(f"online: expected an answer: {wrong}") from None
    if len(answer.key) != KEY_BYTES or len(answer.names) > NAMES_MAX:
        raise PeerError("online: a key of the wrong length, or too many names")
    return answer


def verify_answer(answer: OnlineAnswer) -> None:
    """Raises PeerError unless the service has signed it."""
    verify_signature(answer.key, answer.signature, _signed(answer), "the online answer")


def _signed(answer: OnlineAnswer) -> bytes:
    return _CONTEXT + msgspec.msgpack.encode((answer.key, answer.at_ms, answer.names))
