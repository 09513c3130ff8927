"""Tables of events sealed and opened at once: the very bytes, and the very refusals, of the live path (SECURE-INV-13)."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.unit.security.london import NOW_MS, a_keyring, a_type
from tidings.errors import Denied, EventError, PeerError
from tidings.events import (
    Date,
    EventType,
    Exact,
    Required,
    Time,
    Timestamp,
    Value,
    arrow_values,
    conform,
    row_values,
)
from tidings.security import (
    BatchMoments,
    BatchOpener,
    BatchSealer,
    Identity,
    Keyring,
    Mode,
    Opener,
    PadPolicy,
    Sealer,
    SignedType,
    Signing,
    State,
    UnknownEpoch,
    manifest_of,
    seal_rows,
    split,
)
from tidings.security.envelope import batch

Everything = EventType(
    "Everything", plate=Required(str), place=str, speed=float, lane=int, is_night=bool, seen_at=Timestamp, photo=bytes,
    toll="decimal(9,2)", mass="decimal(38,10)", day=Date, at=Time, tags=list[str], tolls="array<decimal(9,2)>",
    axles=dict[int, float], marks="map<string,date>",
)  # fmt: skip
MODES: list[dict[str, Any]] = [
    {"mode": Mode.ATTRIBUTE},
    {"mode": Mode.ATTRIBUTE, "pad_policy": PadPolicy.BUCKET},
    {"mode": Mode.ATTRIBUTE, "suite": 0x02},
    {"mode": Mode.EVENT},
    {"mode": Mode.EVENT, "pad_policy": PadPolicy.BUCKET},
    {"mode": Mode.PLAIN},
]


def everything(**fields: Any) -> SignedType:
    return a_type(event_type=Everything, grace_ms=10_000_000, **fields)


def some_values(rng: random.Random) -> dict[str, Value]:
    """Any values, odd ones among them; all but the plate may be missing."""
    drawn: dict[str, Any] = {
        "place": rng.choice(["", "Russell Square", "Zürich \N{HEAVY BLACK HEART}", "x" * 300]),
        "speed": rng.choice([31.5, -0.0, float("nan"), float("inf"), rng.random()]),
        "lane": rng.choice([0, -1, 2**63 - 1, -(2**63), rng.randint(-5, 5)]),
        "is_night": rng.random() < 0.5,
        "seen_at": Timestamp(rng.randint(-(2**55), 2**55)),
        "photo": rng.randbytes(rng.choice([0, 1, 40])),
        "toll": Exact(rng.choice(["0.00", "-0.01", "9999999.99", "-9999999.99"])),
        "mass": Exact(rng.choice(["1.0000000000", "-9999999999999999999999999999.9999999999"])),
        "day": Date(rng.choice([0, -1, 20_484, 2**31 - 1, -(2**31)])),
        "at": Time(rng.choice([0, 1, 86_399_999_999])),
        "tags": rng.choice([(), ("a", None, "é" * 99), (None,)]),
        "tolls": rng.choice([(), (Exact("2.50"), None)]),
        "axles": rng.choice([{}, {2: 1.5, 1: None}, {-1: float("nan")}]),
        "marks": rng.choice([{}, {"b": Date(5), "": None}]),
    }
    kept = {name: value for name, value in drawn.items() if rng.random() < 0.9}
    return {"plate": f"P{rng.randint(0, 10**6)}", **kept}


def table_of(rows: list[dict[str, Value]], event_type: EventType = Everything) -> pa.RecordBatch:
    arrays = [arrow_values([row.get(a.name) for row in rows], a.type) for a in event_type]
    return conform(pa.RecordBatch.from_arrays(arrays, names=[a.name for a in event_type]), event_type)


def moments(count: int, sender_id: int = 7, start: int = 0) -> BatchMoments:
    """Those that a live sealer takes for so many events of one millisecond."""
    return BatchMoments(np.full(count, sender_id), np.full(count, NOW_MS), np.arange(start, start + count))


def live_frames(
    signed_type: SignedType, keyring: Keyring, rows: list[dict[str, Value]], sender_id: int = 7
) -> list[bytes]:
    sealer = Sealer(signed_type, keyring, sender_id)
    return [sealer.seal(row, NOW_MS) for row in rows]


@pytest.mark.parametrize("fields", MODES)
def test_a_batch_seals_to_the_bytes_that_the_live_path_writes(fields: dict[str, Any]) -> None:
    signed_type = everything(**fields)
    rows = [some_values(random.Random(seed)) for seed in range(300)]
    sealed = BatchSealer(signed_type, a_keyring(signed_type)).seal(table_of(rows), moments(len(rows)))
    assert sealed.to_pylist() == live_frames(signed_type, a_keyring(signed_type), rows)


@pytest.mark.parametrize("fields", MODES[:-1])
@pytest.mark.parametrize("signing", ["none", "batch"])
@pytest.mark.parametrize("prepared", [True, False])
def test_rows_seal_to_what_a_live_sealer_makes_of_them_before_it_signs(
    fields: dict[str, Any], signing: Signing, prepared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "_are_prepared", prepared)
    signed_type, signer = everything(**fields), Identity.make(random.Random(5).randbytes)
    rows = [some_values(random.Random(seed)) for seed in range(300)]
    keyring = a_keyring(signed_type)
    sealers = [Sealer(signed_type, keyring, 7, signer=signer, signing=signing) for _ in range(2)]
    ts_ms, seq, frames = seal_rows(signed_type, keyring, sealers[0], table_of(rows), rows, NOW_MS)
    assert (ts_ms, seq) == (NOW_MS, 0)
    signed = sealers[1].seal_batch(rows, NOW_MS)
    unsigned = [split(frame).signed for frame in signed]
    assert frames == [bytes(each) for each in unsigned]
    assert seal_rows(signed_type, keyring, sealers[0], table_of(rows), rows, NOW_MS)[:2] == (NOW_MS, len(rows))


@pytest.mark.parametrize("fields", MODES)
@pytest.mark.parametrize("names", [None, ("plate", "lane"), ("photo",), ()])
def test_a_batch_opens_to_what_the_live_path_reads(fields: dict[str, Any], names: tuple[str, ...] | None) -> None:
    signed_type = everything(**fields)
    if signed_type.mode is not Mode.ATTRIBUTE and names:
        names = None  # A whole event is read wholly or not at all.
    keyring = a_keyring(signed_type, names)
    rows = [some_values(random.Random(seed)) for seed in range(200)]
    frames = live_frames(signed_type, a_keyring(signed_type), rows)
    agree(signed_type, keyring, frames)


@pytest.mark.parametrize("fields", MODES)
def test_whatever_is_altered_a_batch_refuses_it_as_the_live_path_does(fields: dict[str, Any]) -> None:
    signed_type, rng = everything(**fields), random.Random(11)
    rows = [some_values(random.Random(seed)) for seed in range(120)]
    genuine = live_frames(signed_type, a_keyring(signed_type), rows)
    frames = [altered(frame, genuine, rng) for frame in genuine for _ in range(3)] + genuine
    rng.shuffle(frames)
    agree(signed_type, a_keyring(signed_type, ("plate", "seen_at", "photo")), frames)


def altered(frame: bytes, others: list[bytes], rng: random.Random) -> bytes:
    at = rng.randrange(len(frame))
    return rng.choice(
        [
            frame[:at],
            frame[:at] + bytes([frame[at] ^ 1 << rng.randrange(8)]) + frame[at + 1 :],
            frame[:at] + rng.choice(others)[at:],
            frame + b"\0",
            frame[:54] + bytes([0, rng.randrange(4)]) + frame[56:],
            b"",
        ]
    )


def agree(signed_type: SignedType, keyring: Keyring, frames: list[bytes]) -> None:
    """Opened at once and one by one: the same values, the same states, the same words."""
    opener, opened = (
        Opener(signed_type, keyring),
        BatchOpener(signed_type, keyring).open_(pa.array(frames, pa.binary())),
    )
    rows = row_values(pa.Table.from_batches([opened.rows]), range(len(frames)), signed_type.event_type)
    for row, (frame, found) in enumerate(zip(frames, rows, strict=True)):
        state, values, why = live_view(opener, frame)
        assert opened.states[row] == state
        assert _comparable(found) == _comparable(values)
        assert opened.reasons.get(row, "") == why


def live_view(opener: Opener, frame: bytes) -> tuple[State, dict[str, Value], str]:
    """What the live path says of a frame, in the words of a batch."""
    try:
        event = opener.open_(frame, NOW_MS)
    except UnknownEpoch as wrong:
        return State.NO_KEY, {}, str(wrong)
    except PeerError as wrong:
        return State.AUTH_FAIL, {}, str(wrong)
    if event.sealed and not event.values:
        return State.NO_KEY, {}, "key: none for any attribute"
    return State.OK, event.values, ""


def _comparable(row: dict[str, Value]) -> dict[str, str]:
    return {name: repr(value) for name, value in row.items()}


def test_the_known_answer_comes_out_of_a_batch() -> None:
    signed_type = a_type(event_type=EventType("Numberplate", plate=str))
    keyring = a_keyring(signed_type)
    (frame,) = (
        BatchSealer(signed_type, keyring)
        .seal(pa.record_batch({"plate": ["AB12CDE"]}), BatchMoments(np.array([7]), np.array([NOW_MS]), np.array([5])))
        .to_pylist()
    )
    gid = signed_type.attr_id("plate")
    key = keyring.get(gid, 3)
    assert key is not None
    nonce = bytes.fromhex("0000000719a89c2db7b00005")
    aad = b"PS1\x02" + signed_type.type_id + gid + bytes([0, 0, 0, 3]) + manifest_of((gid,))
    assert frame[-28:] == key.cipher("pub").encrypt(nonce, bytes.fromhex("030000000741423132434445"), aad)


def test_only_what_is_shown_is_sealed() -> None:
    signed_type = everything()
    rows = [some_values(random.Random(seed)) for seed in range(50)]
    sealed = BatchSealer(signed_type, a_keyring(signed_type)).seal(table_of(rows), moments(50), ("plate", "lane"))
    bare = [{name: value for name, value in row.items() if name in ("plate", "lane")} for row in rows]
    assert sealed.to_pylist() == live_frames(signed_type, a_keyring(signed_type), bare)


def test_each_row_is_sealed_in_the_epoch_of_its_own_time() -> None:
    signed_type = a_type(event_type=EventType("Numberplate", plate=str, speed=float))
    keyring = a_keyring(signed_type)
    for name in ("plate", "speed"):
        keyring.add(signed_type.attr_id(name), 4, NOW_MS + (10 if name == "plate" else 20), bytes(range(32)))
    rows = table_of([{"plate": f"P{row}", "speed": 1.0} for row in range(30)], signed_type.event_type)
    times = BatchMoments(np.full(30, 7), NOW_MS + np.arange(30), np.zeros(30, np.int64))
    sealed = BatchSealer(signed_type, keyring).seal(rows, times).to_pylist()
    for row, frame in enumerate(sealed):
        assert Sealer(signed_type, keyring, 7).seal({"plate": f"P{row}", "speed": 1.0}, NOW_MS + row) == frame
    assert (BatchOpener(signed_type, keyring).open_(pa.array(sealed)).states == State.OK).all()


def test_without_a_key_nothing_is_sealed() -> None:
    signed_type = everything()
    rows = table_of([some_values(random.Random(1))])
    with pytest.raises(Denied, match="key: none held"):
        BatchSealer(signed_type, a_keyring(signed_type, ("plate",))).seal(rows, moments(1))


def test_a_value_longer_than_its_type_allows_is_refused() -> None:
    signed_type = everything(max_len={"plate": 3})
    with pytest.raises(EventError, match="'plate' is longer"):
        BatchSealer(signed_type, a_keyring(signed_type)).seal(table_of([{"plate": "P1234"}]), moments(1))


def test_a_moment_that_no_header_holds_is_refused() -> None:
    signed_type = everything()
    rows = table_of([{"plate": "P1"}])
    sealer = BatchSealer(signed_type, a_keyring(signed_type))
    for wrong in ((-1, NOW_MS, 0), (2**32, NOW_MS, 0), (7, 2**43, 0), (7, NOW_MS, 2**20)):
        with pytest.raises(EventError, match="expected 0 to"):
            sealer.seal(rows, BatchMoments(*(np.array([number]) for number in wrong)))


def test_an_empty_batch_is_no_trouble() -> None:
    signed_type = everything()
    sealed = BatchSealer(signed_type, a_keyring(signed_type)).seal(table_of([]).slice(0, 0), moments(0))
    assert len(sealed) == 0
    assert BatchOpener(signed_type, a_keyring(signed_type)).open_(sealed).rows.num_rows == 0


def test_a_slice_of_frames_opens_like_the_whole() -> None:
    signed_type = everything()
    rows = [some_values(random.Random(seed)) for seed in range(60)]
    frames = pa.array(live_frames(signed_type, a_keyring(signed_type), rows), pa.binary())
    opener = BatchOpener(signed_type, a_keyring(signed_type))
    assert opener.open_(frames.slice(20, 30)).rows["plate"].to_pylist() == [row["plate"] for row in rows[20:50]]
