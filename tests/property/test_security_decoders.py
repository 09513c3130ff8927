"""Whatever bytes come in, a decoder answers or refuses with a typed error, and holds no more than it was given."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from contextlib import suppress

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.security.london import (
    CAMERA,
    DETECTIVE,
    MANAGER,
    NOW_MS,
    OWNER,
    PLATES,
    SIGHTING,
    WHOLE,
    a_grant,
    a_keyring,
    a_type,
    source,
)
from tidings.errors import TidingsError
from tidings.security import (
    BiscuitCapability,
    FilterOpener,
    FilterSealer,
    Identity,
    KeyManager,
    Mode,
    Opener,
    Sealer,
    SealingKey,
    SignedType,
    cached,
    from_fingerprint,
    grant,
    make_join,
    open_welcome,
    split,
)
from tidings.security.envelope.signing import SignatureReader, sign_batch
from tidings.security.envelope.value_codec import unpadded, value_size

KEX = SealingKey.make(source(1))
OPEN, PAPER = a_type(mode=Mode.PLAIN), a_type(suite=0x10)
MANAGING = KeyManager(PLATES, MANAGER, source(2), NOW_MS)


def frame_of(signed_type: SignedType) -> bytes:
    sealer = Sealer(signed_type, a_keyring(signed_type), 7, signer=CAMERA, signing="batch")
    return cached(signed_type, split(sealer.seal(SIGHTING, NOW_MS)), SIGHTING, None)


def a_filter(signed_type: SignedType) -> bytes:
    sealer = FilterSealer(signed_type, a_keyring(signed_type), 7, signer=DETECTIVE)
    return sealer.seal([{signed_type.group_ids[0]: b"x"}] * 2, sub_id=bytes(16), version=1, lease_ms=1, now_ms=NOW_MS)


def opener_of(signed_type: SignedType) -> Callable[[bytes], object]:
    opener = Opener(signed_type, a_keyring(signed_type), may_publish=lambda key, attributes: None)
    return lambda raw: opener.open_(raw, NOW_MS, cache="verify")


TOKEN = grant(OWNER, a_grant(), source(3)).to_bytes()
JOIN = make_join(PLATES, PLATES.group_ids, TOKEN, DETECTIVE, KEX, now_ms=NOW_MS, random=source(4))[0]

DECODERS: dict[str, tuple[Callable[[bytes], object], bytes]] = {
    "frame": (split, frame_of(PLATES)),
    "attribute event": (opener_of(PLATES), frame_of(PLATES)),
    "whole event": (opener_of(WHOLE), frame_of(WHOLE)),
    "plain event": (opener_of(OPEN), frame_of(OPEN)),
    "paper event": (opener_of(PAPER), frame_of(PAPER)),
    "filter by attribute": (FilterOpener(PLATES, a_keyring(PLATES)).open_, a_filter(PLATES)),
    "filter as one": (FilterOpener(WHOLE, a_keyring(WHOLE)).open_, a_filter(WHOLE)),
    "event type": (SignedType.from_bytes, PLATES.to_bytes()),
    "token": (lambda raw: BiscuitCapability.from_bytes(raw, OWNER.public_key), TOKEN),
    "join": (lambda raw: KeyManager(PLATES, MANAGER, source(2), NOW_MS).join(raw, NOW_MS), JOIN),
    "welcome": (lambda raw: open_welcome(PLATES, raw, bytes(16), DETECTIVE, KEX), bytes(100)),
    "manager's state": (
        lambda raw: MANAGING.import_state(raw, bytes(32), generation=0),
        MANAGING.export_state(bytes(32)),
    ),
    "signature": (lambda raw: SignatureReader().signer(raw, bytes(32)), sign_batch(CAMERA, [bytes(32)] * 3)[1]),
    "seal": (lambda raw: KEX.open(raw, b""), bytes(64)),
    "value": (lambda raw: value_size(raw, 0), b"\x03\0\0\0\1x"),
    "padding": (unpadded, b"x\x80" + bytes(14)),
    "pem": (Identity.from_pem, OWNER.to_pem()),
    "fingerprint": (lambda raw: from_fingerprint(raw.decode("latin-1")), b"ed25519:" + b"00" * 32),
}


@st.composite
def mangled(draw: st.DrawFn, good: bytes) -> bytes:
    """Bytes that were good: some changed, some cut out, some put in."""
    raw = bytearray(good)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(raw) - 1)))
        match draw(st.sampled_from(["set", "cut", "add", "number"])):
            case "set":
                raw[at : at + 1] = bytes([draw(st.integers(0, 255))])
            case "cut":
                del raw[at : at + draw(st.integers(1, 40))]
            case "add":
                raw[at:at] = draw(st.binary(max_size=40))
            case "number":
                raw[at : at + 4] = draw(st.sampled_from([b"\xff" * 4, b"\x7f\xff\xff\xff", bytes(4), b"\0\0\xff\xff"]))
    return bytes(raw)


@pytest.mark.parametrize(("decode", "good"), DECODERS.values(), ids=DECODERS.keys())
def test_a_decoder_answers_or_refuses_with_a_typed_error(decode: Callable[[bytes], object], good: bytes) -> None:
    @settings(max_examples=120)
    @given(st.binary(max_size=200) | mangled(good))
    def run(raw: bytes) -> None:
        with suppress(TidingsError):
            decode(raw)

    run()


HUGE = [
    bytes([0x50, 1, mode, 1]) + PLATES.type_id + bytes(18) + b"\xff" * size
    for mode in (0, 1, 2, 17, 18)
    for size in (2, 60)
]


@pytest.mark.parametrize("raw", [*HUGE, b"\x9b" + b"\xff" * 8, b"\xdd\xff\xff\xff\xff", b"\x5b" + b"\x7f" * 8])
def test_a_few_bytes_that_promise_a_lot_cost_little(raw: bytes) -> None:
    tracemalloc.start()
    for decode, _ in DECODERS.values():
        with pytest.raises(TidingsError):
            decode(raw)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**22


def test_the_good_ones_are_good() -> None:
    for name in (
        "frame",
        "attribute event",
        "whole event",
        "plain event",
        "paper event",
        "event type",
        "token",
        "join",
    ):
        decode, good = DECODERS[name]
        decode(good)
    assert msgspec.msgpack.decode(JOIN)
