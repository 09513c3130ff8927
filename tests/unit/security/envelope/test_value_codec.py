"""Plaintext: the bytes of events, written and read by type (2.5, 2.6)."""

from __future__ import annotations

import pytest

from tidings.errors import EventError, PeerError
from tidings.events import Date, Exact, Time, Timestamp, Value, ValueType, encode_value
from tidings.security import PadPolicy
from tidings.security.envelope.value_codec import decoder, encoder, padded, unpadded, value_size

VALUES: list[tuple[ValueType, Value]] = [
    (ValueType.BOOL, True),
    (ValueType.INT, -5),
    (ValueType.DOUBLE, 0.5),
    (ValueType.STRING, ""),
    (ValueType.STRING, "é" * 200),
    (ValueType.BYTES, b"\0\1"),
    (ValueType.TIMESTAMP, Timestamp(7)),
    (ValueType.decimal(9, 2), Exact("-12.30")),
    (ValueType.decimal(38, 38), Exact("0." + "9" * 38)),
    (ValueType.DATE, Date("2026-01-31")),
    (ValueType.TIME, Time("23:59:59.999999")),
    (ValueType.array(ValueType.STRING), ("a", None, "")),
    (ValueType.array(ValueType.decimal(9, 2)), ()),
    (ValueType.map(ValueType.INT, ValueType.DATE), {-1: Date(0), 1: None}),
]


@pytest.mark.parametrize(("value_type", "value"), VALUES)
def test_a_values_bytes_are_those_that_events_define(value_type: ValueType, value: Value) -> None:
    raw = encoder(value_type, PadPolicy.NONE)(value)
    assert raw == encode_value(value)
    read = decoder(value_type, PadPolicy.NONE)(raw)
    assert (read, type(read)) == (value, type(value))
    assert value_size(b"xx" + raw + b"yy", 2) == len(raw)


@pytest.mark.parametrize(("value_type", "value"), VALUES)
def test_a_decoder_takes_its_own_type_and_the_exact_length(value_type: ValueType, value: Value) -> None:
    raw = encode_value(value)
    decode = decoder(value_type, PadPolicy.NONE)
    for wrong in [b"", raw[:-1], raw + b"\0", bytes([raw[0] ^ 7]) + raw[1:], b"\x7f" + raw[1:]]:
        with pytest.raises(PeerError, match="value"):
            decode(wrong)


OTHERS: list[tuple[ValueType, Value]] = [
    (ValueType.decimal(9, 2), Exact("-12.300")),
    (ValueType.decimal(9, 2), Exact("12345678.90")),
    (ValueType.DATE, Time(5)),
    (ValueType.array(ValueType.DATE), ("2026-01-31",)),
    (ValueType.array(ValueType.DOUBLE), (1, 2)),
    (ValueType.array(ValueType.decimal(9, 2)), (Exact("1.5"),)),
    (ValueType.array(ValueType.STRING), {"a": "b"}),
    (ValueType.map(ValueType.STRING, ValueType.INT), {1: 1}),
    (ValueType.map(ValueType.STRING, ValueType.INT), {"a": "b"}),
]


@pytest.mark.parametrize(("value_type", "value"), OTHERS)
def test_a_value_with_other_digits_or_items_than_its_type_has_is_refused(value_type: ValueType, value: Value) -> None:
    with pytest.raises(PeerError, match="value"):
        decoder(value_type, PadPolicy.NONE)(encode_value(value))


def test_a_map_with_a_key_twice_or_out_of_order_is_refused() -> None:
    kind = ValueType.map(ValueType.STRING, ValueType.INT)
    raw = encode_value({"a": 1, "b": 2})
    head, entry = raw[:5], (len(raw) - 5) // 2
    first, second = raw[5 : 5 + entry], raw[5 + entry :]
    for wrong in (head + second + first, head + first + first):
        with pytest.raises(PeerError, match="value"):
            decoder(kind, PadPolicy.NONE)(wrong)


def test_bytes_that_are_no_text_are_no_text() -> None:
    with pytest.raises(PeerError, match="expected a text"):
        decoder(ValueType.STRING, PadPolicy.NONE)(b"\x03\0\0\0\1\xff")
    with pytest.raises(EventError, match="expected a text"):
        encoder(ValueType.STRING, PadPolicy.NONE)("\ud800")
    with pytest.raises(PeerError, match="true or false"):
        decoder(ValueType.BOOL, PadPolicy.NONE)(b"\1\2")


@pytest.mark.parametrize(
    ("size", "room"), [(0, 16), (15, 16), (16, 32), (63, 64), (64, 128), (127, 128), (128, 256), (255, 256), (256, 512)]
)
def test_padding_fills_the_next_bucket(size: int, room: int) -> None:
    assert len(padded(bytes(size))) == room
    assert unpadded(padded(bytes(size))) == bytes(size)


@pytest.mark.parametrize("raw", [b"", bytes(16), b"x" * 16, b"\x80", b"\x80" + bytes(31), b"x\x80" + bytes(13)])
def test_padding_that_is_never_written_is_refused(raw: bytes) -> None:
    with pytest.raises(PeerError, match="padding"):
        unpadded(raw)


@pytest.mark.parametrize("raw", [b"", b"\1", b"\7\0\0\0\0", b"\3\0\0\0", b"\3\0\0\0\5abcd", b"\2\0"])
def test_a_value_cut_short_or_of_no_type_has_no_size(raw: bytes) -> None:
    with pytest.raises(PeerError, match="value"):
        value_size(raw, 0)
