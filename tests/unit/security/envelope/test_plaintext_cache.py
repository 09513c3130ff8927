"""Envelopes: the known answer, who reads what, and every way to tamper with one (SECURE-INV-7, 11, 16)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from tests.unit.security.london import (
    CAMERA,
    CHARGE,
    NOW_MS,
    OPEN,
    PLATES,
    SIGHTING,
    STRANGER,
    WHOLE,
    Numberplate,
    a_keyring,
    a_type,
    ids,
)
from tidings.errors import Denied, EventError, PeerError
from tidings.events import Date, EventType, Exact, Required, Time, Timestamp, Value
from tidings.security import (
    MODERN,
    SUITES,
    FilterOpener,
    FilterSealer,
    Keyring,
    Mode,
    NotYet,
    Opener,
    PadPolicy,
    ReplayWindow,
    Sealer,
    SignedType,
    UnknownEpoch,
    cached,
    content_key,
    manifest_of,
    project,
    split,
    suite_of,
    uncached,
)
from tidings.security.envelope.frame import FLAG_CACHE, FLAG_SIGNATURE
from tidings.security.envelope.value_codec import encoder

MODES = {"attribute": PLATES, "event": WHOLE, "plain": OPEN}
SEALED = {"attribute": PLATES, "event": WHOLE}


def a_frame(signed_type: SignedType = PLATES, **how: Any) -> bytes:
    return Sealer(signed_type, a_keyring(signed_type), 7, **how).seal(SIGHTING, NOW_MS)


def an_opener(signed_type: SignedType = PLATES, *names: str, **how: Any) -> Opener:
    return Opener(signed_type, a_keyring(signed_type, names or None), **how)


def flips(raw: bytes) -> Iterator[tuple[int, bytes]]:
    for bit in range(8 * len(raw)):
        changed = bytearray(raw)
        changed[bit // 8] ^= 1 << (bit % 8)
        yield bit, bytes(changed)


def unnoticed(opener: Opener, frame: bytes) -> list[int]:
    """The bits that can be flipped without the frame being refused."""
    passed = []
    for bit, changed in flips(frame):
        with suppress(PeerError, Denied):
            opener.open_(changed, NOW_MS)
            passed.append(bit)
    return passed


# ── The known answer ───────────────────────────────────────────────────


def test_the_known_answer_comes_out_step_by_step() -> None:
    name = "pito.police.uk/Numberplate@1"
    type_id, plate, location = MODERN.type_id(name), MODERN.attr_id(name, "plate"), MODERN.attr_id(name, "location")
    manifest = manifest_of(tuple(sorted((plate, location))))
    nonce = MODERN.nonce(7, 1_763_247_840_123, 5, b"")
    key = content_key(bytes(range(32)), "pub", plate, 3)
    plaintext = encoder(Numberplate["plate"].type, PadPolicy.NONE)("AB12CDE")
    aad = MODERN.aad(Mode.ATTRIBUTE, type_id, plate, 3, manifest)
    assert manifest.hex() == "73313f82353ccfeae54b20be8ca8dd1b0bed7e7524a72c245be2a0eaab56b343"
    assert nonce.hex() == "0000000719a89c2db7b00005"
    assert key.hex() == "11ff1708fa9e00c88a33bf95838fd3f09befd2e1e95c543db5fa5aec08679469"
    assert plaintext.hex() == "030000000741423132434445"
    assert len(aad) == 104
    sealed = suite_of(0x01).cipher(key).encrypt(nonce, plaintext, aad)
    assert sealed.hex() == "dfda266f37d84b332bb117527c059ac15cad6fda47c82d5c760186e9"


def test_a_frame_holds_exactly_the_bytes_that_the_steps_give() -> None:
    keyring = a_keyring(PLATES)
    sealer = Sealer(PLATES, keyring, 7)
    for _ in range(5):
        sealer.seal(SIGHTING, NOW_MS)
    frame = split(sealer.seal({"plate": "AB12CDE", "location": "x"}, NOW_MS))
    plate = PLATES.attr_id("plate")
    manifest = manifest_of(tuple(sorted(ids(PLATES, "plate", "location"))))
    nonce, aad = PLATES.profile.nonce(7, NOW_MS, 5, b""), PLATES.profile.aad(2, PLATES.type_id, plate, 3, manifest)
    key = keyring.get(plate, 3)
    assert key is not None
    expected = suite_of(1).cipher(key.content_key("pub")).encrypt(nonce, bytes.fromhex("030000000741423132434445"), aad)
    assert dict(zip(frame.attr_ids, frame.bodies, strict=True))[plate] == expected
    assert frame.event_id == (PLATES.type_id, 7, NOW_MS, 5)


def test_sizes_are_those_of_the_cost_formulas() -> None:
    values = {"plate": "A" * 30, "location": "B" * 30}
    encoded = 2 * 35
    assert len(Sealer(PLATES, a_keyring(PLATES), 7).seal(values, NOW_MS)) == 56 + 56 * 2 + encoded
    assert len(Sealer(WHOLE, a_keyring(WHOLE), 7).seal(values, NOW_MS)) == 54 + 8 + (2 + 2 * 32 + encoded) + 16


# ── Who reads what ───────────────────────────────────────────────────────────


@pytest.mark.parametrize("pad", PadPolicy)
@pytest.mark.parametrize("suite", SUITES)
@pytest.mark.parametrize("mode", Mode)
def test_whoever_has_every_key_reads_everything(mode: Mode, suite: int, pad: PadPolicy) -> None:
    signed_type = a_type(mode=mode, suite=suite, pad_policy=pad)
    frame = a_frame(signed_type, publisher_key=CAMERA.public_key)
    opened = an_opener(signed_type).open_(frame, NOW_MS)
    assert opened.values == SIGHTING
    assert opened.sealed == ()


def test_every_type_of_value_survives() -> None:
    kinds = {"g": "decimal(38,4)", "h": "date", "i": "time", "j": "array<decimal(5,2)>", "k": "map<int,string>"}
    event_type = EventType("All", kinds, a=bool, b=int, c=float, d=str, e=bytes, f=Timestamp)
    values: dict[str, Value] = {"a": True, "b": -(2**63), "c": 1.5, "d": "é" * 300, "e": bytes(300), "f": Timestamp(5)}
    values |= {"g": Exact("-12.5000"), "h": Date("2026-01-31"), "i": Time("12:30:00")}
    values |= {"j": (Exact("1.50"), None), "k": {7: "seven", -1: None}}
    for mode in Mode:
        signed_type = a_type(event_type=event_type, mode=mode)
        frame = Sealer(signed_type, a_keyring(signed_type), 1).seal(values, NOW_MS)
        assert an_opener(signed_type).open_(frame, NOW_MS).values == values


def test_a_reader_sees_the_attributes_it_has_keys_for_and_the_names_of_the_rest() -> None:
    opened = an_opener(PLATES, "plate").open_(a_frame(), NOW_MS)
    assert opened.values == {"plate": "AB12CDE"}
    assert set(opened.sealed) == ids(PLATES, "location", "speed")


@pytest.mark.parametrize("signed_type", SEALED.values(), ids=SEALED.keys())
def test_a_reader_without_keys_sees_nothing(signed_type: SignedType) -> None:
    frame = a_frame(signed_type)
    opened = Opener(signed_type, Keyring(signed_type)).open_(frame, NOW_MS)
    assert opened.values == {}
    assert set(opened.sealed) == set(signed_type.group_ids)
    assert all(str(value).encode() not in frame for value in SIGHTING.values())


@pytest.mark.parametrize("signed_type", MODES.values(), ids=MODES.keys())
def test_only_what_is_wanted_is_opened(signed_type: SignedType) -> None:
    assert an_opener(signed_type).open_(a_frame(signed_type), NOW_MS, wanted={"speed"}).values == {"speed": 31.0}


def test_a_projection_keeps_what_the_right_is_for() -> None:
    assert project(PLATES, SIGHTING, ids(PLATES, "plate")) == {"plate": "AB12CDE"}
    assert project(PLATES, SIGHTING, None) == SIGHTING


def test_frames_of_equal_lengths_come_of_values_of_equal_lengths() -> None:
    """SECURE-INV-12, as far as frames show it."""
    one = Sealer(PLATES, a_keyring(PLATES), 7).seal({"plate": "AB12CDE", "location": "here"}, NOW_MS)
    other = Sealer(PLATES, a_keyring(PLATES), 7).seal({"plate": "ZZ99ZZZ", "location": "away"}, NOW_MS)
    assert len(one) == len(other)
    assert split(one).heads == split(other).heads


def test_padding_hides_lengths_within_a_bucket() -> None:
    padded = a_type(pad_policy=PadPolicy.BUCKET)
    frames = [Sealer(padded, a_keyring(padded), 7).seal({"plate": "A" * size}, NOW_MS) for size in range(11)]
    assert len({len(frame) for frame in frames}) == 1
    longer = Sealer(padded, a_keyring(padded), 7).seal({"plate": "A" * 11}, NOW_MS)
    assert len(longer) == len(frames[0]) + 16


# ── Tampering (SECURE-INV-7) ───────────────────────────────────────────────────────


@pytest.mark.parametrize("suite", [0x01, 0x02, 0x11, 0x12])
@pytest.mark.parametrize("mode", [Mode.EVENT, Mode.ATTRIBUTE])
def test_no_flipped_bit_goes_unnoticed(mode: Mode, suite: int) -> None:
    signed_type = a_type(mode=mode, suite=suite, event_type=EventType("Small", a=bool, b=str))
    frame = Sealer(signed_type, a_keyring(signed_type), 7).seal({"a": True, "b": "xy"}, NOW_MS)
    opener = an_opener(signed_type)
    assert unnoticed(opener, frame) == []
    assert opener.open_(frame, NOW_MS).values == {"a": True, "b": "xy"}


def test_an_eax_frame_notices_flipped_bits_all_the_same() -> None:
    signed_type = a_type(suite=0x10, event_type=EventType("Small", a=bool))
    frame = Sealer(signed_type, a_keyring(signed_type), 7, publisher_key=CAMERA.public_key).seal({"a": True}, NOW_MS)
    opener = an_opener(signed_type)
    # In the paper's profile neither the sender id nor the counter is bound to anything: the nonce is time and key.
    unbound = {24, 25, 26, 27, 37, 38, 39}
    assert {bit // 8 for bit in unnoticed(opener, frame)} == unbound


@pytest.mark.parametrize("signed_type", MODES.values(), ids=MODES.keys())
def test_no_cut_and_no_addition_goes_unnoticed(signed_type: SignedType) -> None:
    frame, opener = a_frame(signed_type), an_opener(signed_type)
    for changed in [*(frame[:size] for size in range(len(frame))), frame + b"\0", frame + frame]:
        with pytest.raises(PeerError):
            opener.open_(changed, NOW_MS)


def rebuilt(frame: bytes, tuples: Callable[[list[tuple[bytes, bytes]]], list[tuple[bytes, bytes]]]) -> bytes:
    """The frame with its sealed attributes rearranged."""
    parts = split(frame)
    pairs = tuples(list(zip(parts.heads, parts.bodies, strict=True)))
    body = b"".join(head + len(sealed).to_bytes(4, "big") + sealed for head, sealed in pairs)
    return frame[: parts.layout.header_bytes] + len(pairs).to_bytes(2, "big") + body


OTHER_EVENT = Sealer(PLATES, a_keyring(PLATES), 8).seal({**SIGHTING, "plate": "ZZ99ZZZ"}, NOW_MS)
FEWER = Sealer(PLATES, a_keyring(PLATES), 7).seal({"plate": "AB12CDE"}, NOW_MS)


def spliced(pairs: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    theirs = split(OTHER_EVENT)
    return [(pairs[0][0], theirs.bodies[0]), *pairs[1:]]


REARRANGED: dict[str, tuple[Callable[[list[tuple[bytes, bytes]]], list[tuple[bytes, bytes]]], str]] = {
    "the first dropped": (lambda pairs: pairs[1:], "tag"),
    "the last dropped": (lambda pairs: pairs[:-1], "tag"),
    "all dropped": (lambda pairs: [], "attribute: .* has none"),
    "two swapped": (lambda pairs: [pairs[1], pairs[0], pairs[2]], "out of order or repeated"),
    "one twice": (lambda pairs: [pairs[0], *pairs], "out of order or repeated"),
    "ciphertexts swapped": (
        lambda pairs: [(pairs[0][0], pairs[1][1]), (pairs[1][0], pairs[0][1]), pairs[2]],
        "tag",
    ),
    "one of another event": (spliced, "tag"),
    "one the type has not": (lambda pairs: sorted([*pairs, (bytes(36), pairs[0][1])]), "attribute: 0000.* is none of"),
    "one of another epoch": (
        lambda pairs: [(pairs[0][0][:32] + (4).to_bytes(4, "big"), pairs[0][1]), *pairs[1:]],
        "epoch: 4 of group .* is not among the keys held",
    ),
    "one emptied": (lambda pairs: [(pairs[0][0], b""), *pairs[1:]], "tag"),
}


@pytest.mark.parametrize(("rearrange", "why"), REARRANGED.values(), ids=REARRANGED.keys())
def test_attributes_cannot_be_rearranged(
    rearrange: Callable[[list[tuple[bytes, bytes]]], list[tuple[bytes, bytes]]], why: str
) -> None:
    changed = rebuilt(a_frame(), rearrange)
    with pytest.raises(PeerError, match=why):
        an_opener().open_(changed, NOW_MS)


def test_a_relay_takes_an_attribute_whose_key_is_late_for_unreadable() -> None:
    """SECURE-INV-5: it may forward too much, never too little."""
    newer = Keyring(PLATES)
    for gid in PLATES.group_ids:
        newer.add(gid, 4, NOW_MS, bytes(32))
    frame = Sealer(PLATES, newer, 7).seal(SIGHTING, NOW_MS)
    assert an_opener().open_(frame, NOW_MS, relay=True).values == {}
    with pytest.raises(UnknownEpoch) as refused:
        an_opener().open_(frame, NOW_MS)
    assert refused.value.epoch == 4


def test_an_attribute_added_is_noticed_by_whoever_reads_one() -> None:
    def add(pairs: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        theirs = split(a_frame())
        return sorted({**dict(zip(theirs.heads, theirs.bodies, strict=True)), **dict(pairs)}.items())

    with pytest.raises(PeerError, match="tag"):
        an_opener(PLATES, "plate").open_(rebuilt(FEWER, add), NOW_MS)


def test_in_the_papers_profile_an_attribute_can_be_dropped_unnoticed() -> None:
    """SECURE-GAP-7: the paper's associated data is the type alone. This is why it is not the default."""
    paper = a_type(suite=0x10)
    frame = a_frame(paper, publisher_key=CAMERA.public_key)
    assert len(an_opener(paper).open_(rebuilt(frame, lambda pairs: pairs[1:]), NOW_MS).values) == 2


def test_a_frame_of_another_type_is_refused_by_name() -> None:
    other = a_type(version=2)
    with pytest.raises(PeerError, match="type: the frame is of"):
        an_opener(other).open_(a_frame(), NOW_MS)


def test_a_frame_in_another_mode_or_suite_than_the_types_is_refused() -> None:
    for at, new, why in [
        (2, 1, "mode: event; Numberplate uses attribute"),
        (3, 2, "suite: 0x02; Numberplate uses 0x01"),
    ]:
        frame = a_frame(WHOLE) if at == 2 else a_frame()
        changed = bytearray(frame)
        changed[at] = new
        changed[4:36] = PLATES.type_id
        with pytest.raises(PeerError, match=why):
            an_opener().open_(bytes(changed), NOW_MS)


@pytest.mark.parametrize(
    ("at", "new", "why"),
    [
        (0, 0x51, "header: not a Tidings frame"),
        (1, 2, "version: 2 is unknown; expected 1"),
        (2, 9, "header: 9 is no mode"),
        (3, 0x77, "suite: 0x77 is unknown"),
        (40, 0xFF, "out of range"),
        (48, 0xFF, "out of range"),
        (53, 0x04, "out of range"),
    ],
)
def test_a_header_is_refused_by_what_is_wrong_with_it(at: int, new: int, why: str) -> None:
    frame = bytearray(a_frame())
    frame[at] = new
    with pytest.raises(PeerError, match=why):
        split(bytes(frame))


def test_a_frame_may_not_promise_more_than_it_holds() -> None:
    frame = bytearray(a_frame())
    frame[54:56] = b"\xff\xff"
    with pytest.raises(PeerError, match="cut short"):
        split(bytes(frame))
    with pytest.raises(PeerError, match="at most"):
        split(bytes(2**24 + 1))


# ── Values and types ─────────────────────────────────────────────────────────


def test_sealing_refuses_what_does_not_fit_the_type() -> None:
    sealer = Sealer(a_type(max_len={"plate": 4}), a_keyring(a_type(max_len={"plate": 4})), 1)
    for values, why in [
        ({"plat": "x"}, "did you mean 'plate'"),
        ({"plate": "12345"}, "'plate' is longer"),
        ({"plate": 5}, "expected a text"),
        ({}, "needs at least one"),
    ]:
        with pytest.raises(EventError, match=why):
            sealer.seal(values, NOW_MS)  # type: ignore[arg-type]


def test_a_publisher_that_breaks_its_type_is_found_out() -> None:
    """A member has the keys, so the tag holds; the values do not."""
    short = a_type(max_len={"plate": 4}, event_type=EventType("T", plate=str, n=Required(int)))
    keys = a_keyring(short)

    def lying(event_type: EventType, values: dict[str, Any]) -> bytes:
        loose = a_type(event_type=event_type, max_len={"plate": 4} if "x" in values else {})
        object.__setattr__(loose, "__dict__", {**loose.__dict__, "type_id": short.type_id, "attr_ids": short.attr_ids})
        return Sealer(loose, keys, 1).seal(values, NOW_MS)

    with pytest.raises(PeerError, match="'plate' is longer"):
        an_opener(short).open_(lying(EventType("T", plate=str, n=int), {"plate": "12345", "n": 1}), NOW_MS)
    with pytest.raises(PeerError, match="'n' is required and missing"):
        an_opener(short).open_(lying(EventType("T", plate=str, n=int), {"plate": "1"}), NOW_MS)
    with pytest.raises(PeerError, match="value: expected a whole number"):
        an_opener(short).open_(lying(EventType("T", plate=str, n=str), {"plate": "1", "n": "1"}), NOW_MS)


# ── Epochs ─────────────────────────────────────────────────────────────


def two_epochs(signed_type: SignedType = PLATES) -> Keyring:
    keyring = a_keyring(signed_type)
    for gid in signed_type.group_ids:
        keyring.add(gid, 4, NOW_MS + 10_000, bytes(32))
    return keyring


@pytest.mark.parametrize("signed_type", SEALED.values(), ids=SEALED.keys())
def test_a_publisher_changes_keys_at_the_announced_moment(signed_type: SignedType) -> None:
    sealer = Sealer(signed_type, two_epochs(signed_type), 1)
    for now, epoch in [(NOW_MS, 3), (NOW_MS + 9_999, 3), (NOW_MS + 10_000, 4), (NOW_MS + 20_000, 4)]:
        head = split(sealer.seal(SIGHTING, now)).heads[0]
        assert int.from_bytes(head[-4:], "big") == epoch


@pytest.mark.parametrize("late", [4_999, 5_000])
def test_an_old_key_is_taken_for_the_grace_and_no_longer(late: int) -> None:
    frame = Sealer(PLATES, a_keyring(PLATES), 1).seal(SIGHTING, NOW_MS + 10_000 + late)
    opener = Opener(PLATES, two_epochs())
    if late < PLATES.grace_ms:
        assert opener.open_(frame, NOW_MS + 10_000).values == SIGHTING
    else:
        with pytest.raises(PeerError, match="epoch: published at"):
            opener.open_(frame, NOW_MS + 10_000)


def test_a_key_is_not_taken_long_before_its_time() -> None:
    early = a_keyring(PLATES, epoch=3, start_ms=NOW_MS - 60_000)
    frame = Sealer(PLATES, early, 1).seal(SIGHTING, NOW_MS - 5_001)
    with pytest.raises(PeerError, match="epoch: published at"):
        an_opener().open_(frame, NOW_MS)


def test_without_a_key_nothing_is_sealed() -> None:
    with pytest.raises(Denied, match="key: none held"):
        Sealer(PLATES, Keyring(PLATES), 1).seal(SIGHTING, NOW_MS)
    with pytest.raises(NotYet, match="epoch: the first key of"):
        Sealer(PLATES, a_keyring(PLATES), 1).seal(SIGHTING, NOW_MS - 1)


def test_a_publisher_cut_off_from_its_manager_stops() -> None:
    keyring = Keyring(PLATES, beacons=True)
    for gid in PLATES.group_ids:
        keyring.add(gid, 1, NOW_MS, bytes(32))
        keyring.vouch(gid, NOW_MS)
    sealer = Sealer(PLATES, keyring, 1)
    sealer.seal(SIGHTING, NOW_MS + PLATES.grace_ms)
    with pytest.raises(Denied, match="beacon: nothing heard of group"):
        sealer.seal(SIGHTING, NOW_MS + PLATES.grace_ms + 1)
    for gid in PLATES.group_ids:
        keyring.vouch(gid, NOW_MS + PLATES.grace_ms)
    sealer.seal(SIGHTING, NOW_MS + PLATES.grace_ms + 1)


# ── Caches ─────────────────────────────────────────────────────────────


class Counting:
    """A cipher that counts how often it is asked."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.calls = inner, 0

    def decrypt(self, nonce: bytes, data: bytes, aad: bytes) -> bytes:
        self.calls += 1
        return bytes(self.inner.decrypt(nonce, data, aad))


def counted(signed_type: SignedType) -> tuple[Opener, list[Counting]]:
    keyring = a_keyring(signed_type)
    counters = []
    for gid in signed_type.group_ids:
        for key in keyring.epochs(gid):
            counters.append(counter := Counting(key.cipher("pub")))
            key.watch(lambda _, counter=counter: counter)  # type: ignore[misc]
    return Opener(signed_type, keyring), counters


@pytest.mark.parametrize(("signed_type", "calls"), [(PLATES, 3), (WHOLE, 1)])
def test_a_trusted_cache_saves_every_decryption(signed_type: SignedType, calls: int) -> None:
    frame = cached(signed_type, split(a_frame(signed_type)), SIGHTING, None)
    opener, counters = counted(signed_type)
    assert opener.open_(frame, NOW_MS, cache="trust").values == SIGHTING
    assert sum(counter.calls for counter in counters) == 0
    assert opener.open_(frame, NOW_MS).values == SIGHTING
    assert sum(counter.calls for counter in counters) == calls


def test_a_cache_holds_what_the_neighbour_may_have_and_nothing_else() -> None:
    """SECURE-INV-4, as far as frames go."""
    frame = cached(PLATES, split(a_frame()), SIGHTING, ids(PLATES, "plate"))
    assert set(split(frame).cache) == ids(PLATES, "plate")
    assert b"AB12CDE" in frame
    assert b"Russell" not in frame
    assert cached(PLATES, split(frame), SIGHTING, frozenset()) == a_frame()


def test_an_event_sealed_as_one_is_cached_wholly_or_not_at_all() -> None:
    frame = cached(WHOLE, split(a_frame(WHOLE)), SIGHTING, ids(WHOLE, "plate", "location"))
    assert not split(frame).flags & FLAG_CACHE
    assert b"AB12CDE" not in frame
    assert split(cached(WHOLE, split(a_frame(WHOLE)), SIGHTING, ids(WHOLE, *SIGHTING))).flags & FLAG_CACHE


@pytest.mark.parametrize("signing", ["none", "each"])
def test_stripping_a_cache_gives_back_the_publishers_bytes(signing: str) -> None:
    frame = a_frame(signer=CAMERA, signing=signing)
    assert uncached(split(cached(PLATES, split(frame), SIGHTING, None))) == frame


def test_a_frame_shows_no_content_even_where_it_carries_some() -> None:
    frame = split(cached(PLATES, split(a_frame()), SIGHTING, None))
    assert b"AB12CDE" in frame.raw
    assert "AB12CDE" not in repr(frame)


def test_a_partial_cache_is_filled_up_by_decryption() -> None:
    frame = cached(PLATES, split(a_frame()), SIGHTING, ids(PLATES, "plate"))
    opener, counters = counted(PLATES)
    assert opener.open_(frame, NOW_MS, cache="trust").values == SIGHTING
    assert sum(counter.calls for counter in counters) == 2


@pytest.mark.parametrize("signed_type", SEALED.values(), ids=SEALED.keys())
def test_a_lying_cache_is_found_out_by_whoever_looks(signed_type: SignedType) -> None:
    lie = cached(signed_type, split(a_frame(signed_type)), {**SIGHTING, "plate": "ZZ99ZZZ"}, None)
    with pytest.raises(PeerError, match="cache: contradicts"):
        an_opener(signed_type).open_(lie, NOW_MS, cache="verify")
    assert an_opener(signed_type).open_(lie, NOW_MS).values == SIGHTING


def test_a_cache_with_an_attribute_the_event_has_not_is_refused() -> None:
    frame = cached(PLATES, split(FEWER), SIGHTING, None)
    with pytest.raises(PeerError, match="cache: holds an attribute"):
        an_opener().open_(frame, NOW_MS, cache="trust")


# ── Signatures (SECURE-INV-11) ──────────────────────────────────────────────────────


def only(*allowed: bytes) -> Callable[[bytes, tuple[bytes, ...]], None]:
    def may_publish(key: bytes, attributes: tuple[bytes, ...]) -> None:
        if key not in allowed:
            raise Denied("action: may not publish")

    return may_publish


@pytest.mark.parametrize("signing", ["each", "batch"])
@pytest.mark.parametrize("signed_type", MODES.values(), ids=MODES.keys())
def test_a_signed_event_names_its_publisher(signed_type: SignedType, signing: Any) -> None:
    sealer = Sealer(signed_type, a_keyring(signed_type), 7, signer=CAMERA, signing=signing)
    opener = an_opener(signed_type, may_publish=only(CAMERA.public_key))
    for frame in (sealer.seal(SIGHTING, NOW_MS), *sealer.seal_batch([SIGHTING] * 3, NOW_MS)):
        assert opener.open_(frame, NOW_MS).signer == CAMERA.public_key


@pytest.mark.parametrize("signing", ["none", "each", "batch"])
def test_a_member_that_may_only_read_cannot_publish_with_the_groups_real_key(signing: Any) -> None:
    frame = Sealer(PLATES, a_keyring(PLATES), 7, signer=CHARGE, signing=signing).seal(SIGHTING, NOW_MS)
    opener = an_opener(may_publish=only(CAMERA.public_key))
    with pytest.raises((Denied, PeerError), match="may not publish|not signed"):
        opener.open_(frame, NOW_MS)


def test_a_signature_cannot_be_moved_to_another_event() -> None:
    mine = Sealer(PLATES, a_keyring(PLATES), 9, signer=CHARGE, signing="each").seal(SIGHTING, NOW_MS)
    theirs = split(a_frame(signer=CAMERA, signing="each"))
    forged = mine[: split(mine).cache_end] + theirs.signature
    with pytest.raises(PeerError, match="signature: the event is not signed by"):
        an_opener(may_publish=only(CAMERA.public_key)).open_(forged, NOW_MS)


@pytest.mark.parametrize("signing", ["each", "batch"])
def test_no_flipped_bit_of_a_signed_event_goes_unnoticed_even_without_keys(signing: Any) -> None:
    small = a_type(event_type=EventType("Small", a=bool))
    sealer = Sealer(small, a_keyring(small), 7, signer=CAMERA, signing=signing)
    frame = sealer.seal_batch([{"a": True}, {"a": False}], NOW_MS)[0]
    opener = Opener(small, Keyring(small), may_publish=only(CAMERA.public_key))
    opener.open_(frame, NOW_MS)
    assert unnoticed(opener, frame) == []


def test_a_signature_survives_caches_along_the_way() -> None:
    frame = cached(PLATES, split(a_frame(signer=CAMERA, signing="each")), SIGHTING, ids(PLATES, "plate"))
    assert split(frame).flags == FLAG_CACHE | FLAG_SIGNATURE
    assert an_opener(may_publish=only(CAMERA.public_key)).open_(frame, NOW_MS).signer == CAMERA.public_key


# ── Replay and purposes (SECURE-INV-9, 16) ─────────────────────────────────────────


def test_an_event_is_taken_once_and_a_forged_copy_does_not_spoil_it() -> None:
    opener = an_opener(replay=ReplayWindow(grace_ms=5_000, delay_ms=60_000))
    frame = a_frame()
    forged = frame[:-1] + bytes([frame[-1] ^ 1])
    with pytest.raises(PeerError, match="tag"):
        opener.open_(forged, NOW_MS)
    opener.open_(frame, NOW_MS)
    with pytest.raises(PeerError, match="replay: event 7/"):
        opener.open_(frame, NOW_MS)


def test_an_event_of_which_nothing_can_be_checked_is_not_remembered() -> None:
    replay = ReplayWindow(grace_ms=5_000, delay_ms=60_000)
    Opener(PLATES, Keyring(PLATES), replay=replay).open_(a_frame(), NOW_MS)
    assert len(replay) == 0


@pytest.mark.parametrize("signed_type", SEALED.values(), ids=SEALED.keys())
def test_a_sealed_filter_never_opens_as_an_event_nor_an_event_as_a_filter(signed_type: SignedType) -> None:
    """SECURE-INV-16."""
    keyring = a_keyring(signed_type)
    gid = signed_type.group_ids[0]
    raw = FilterSealer(signed_type, keyring, 7).seal(
        [{gid: b"plaintext"}], sub_id=bytes(16), version=1, lease_ms=1000, now_ms=NOW_MS
    )
    with pytest.raises(PeerError, match="no mode of an event"):
        Opener(signed_type, keyring).open_(raw, NOW_MS)
    with pytest.raises(PeerError, match="type: not a sealed subscription"):
        FilterOpener(signed_type, keyring).open_(a_frame(signed_type))


def test_even_with_the_same_nonce_and_data_the_keys_of_the_two_purposes_differ() -> None:
    key = a_keyring(PLATES).epochs(PLATES.group_ids[0])[0]
    assert key.content_key("pub") != key.content_key("sub")
    assert STRANGER.secret.hex() not in repr(key)
    assert key.content_key("pub").hex() not in repr(key)
