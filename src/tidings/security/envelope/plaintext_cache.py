"""The plaintext that a relay may attach to a sealed event, and what sealing and opening share.

Ciphers, associated data and the order of attributes depend only on which attributes an event has
and on their epochs. `Sealer` and `Opener` compute them once and keep them as a plan, so that an
attribute costs its encryption and little else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from tidings.events import Value, encode_value
from tidings.security.envelope.frame import Frame, with_cache
from tidings.security.envelope.value_codec import padded
from tidings.security.rights.reduction import AttributeSet, Right
from tidings.security.signed_type import Mode, PadPolicy, SignedType

PLANS_MAX = 4096  # Attribute sets in use at a time; beyond it plans are dropped and made again, which is only slower.
FOREVER = 2**63

Crypt: TypeAlias = Callable[[bytes, bytes, bytes], bytes]
"""Nonce, data and associated data in; data out."""


def project(signed_type: SignedType, values: Mapping[str, Value], allowed: Right | AttributeSet) -> dict[str, Value]:
    """Of `values`, those that the right is for: what may be shown to its holder."""
    ids = allowed.attributes if isinstance(allowed, Right) else allowed
    return {name: value for name, value in values.items() if ids is None or signed_type.attr_ids[name] in ids}


def cached(signed_type: SignedType, frame: Frame, values: Mapping[str, Value], allowed: AttributeSet) -> bytes:
    """The frame for one neighbour: its ciphertexts untouched, with the plaintext `allowed` to that neighbour attached.

    A cache that came in is dropped. An event sealed as one is cached as a whole or not at all.
    """
    if signed_type.mode is Mode.EVENT and allowed is not None and not allowed.issuperset(signed_type.attr_ids.values()):
        allowed = frozenset()
    shown = project(signed_type, values, allowed) if signed_type.mode is not Mode.PLAIN else {}
    return with_cache(frame, [(signed_type.attr_ids[name], encode_value(value)) for name, value in shown.items()])


def uncached(frame: Frame) -> bytes:
    """The frame without plaintext: the only form that may be stored."""
    return with_cache(frame, [])


def longest(made: SignedType, name: str) -> int:
    """The longest plaintext of this attribute: five bytes of head, and padding where there is some."""
    most = made.max_len_of(name) + 5
    return len(padded(bytes(most))) if made.pad_policy is PadPolicy.BUCKET else max(most, 9)
