"""What crosses a link comes out as it went in; what is no message is the peer's fault."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidings.errors import PeerError
from tidings.events import Timestamp
from tidings.overlay import (
    SEALED,
    Codec,
    EventId,
    Head,
    Interest,
    Message,
    Parcel,
    Peer,
    Ranges,
    Sql,
    SubscriptionId,
    View,
    peers_in,
    rewritten,
    size_of,
)


class Carry(Message, frozen=True):
    parcel: Parcel


class Table(Message, frozen=True):
    interests: tuple[Interest, ...]
    known: dict[str, Peer]
    next: Peer | None = None


class Ping(Message, frozen=True):
    number: int


CODEC: Codec[Carry | Table | Ping] = Codec(Carry | Table | Ping)

values = st.one_of(
    st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.text(), st.binary(),
    st.integers(-(2**63), 2**63 - 1).map(Timestamp),
)  # fmt: skip
views = st.builds(View, st.dictionaries(st.text(), values), st.lists(st.text()).map(tuple), st.booleans())
heads = st.builds(Head, st.builds(EventId, st.text(), st.integers(0, 9), st.integers(0, 2**60)), st.text())
parcels = st.builds(Parcel, heads, views, st.binary())


@given(parcels)
def test_a_parcel_arrives_as_it_was_sent_each_value_of_its_type(parcel: Parcel) -> None:
    arrived = CODEC.decode(CODEC.encode(Carry(parcel)))
    assert arrived == Carry(parcel)
    assert isinstance(arrived, Carry)
    assert [type(v) for v in arrived.parcel.view.values.values()] == [type(v) for v in parcel.view.values.values()]


@given(parcels)
def test_the_size_of_a_message_is_the_length_of_its_bytes(parcel: Parcel) -> None:
    assert size_of(Carry(parcel)) == len(CODEC.encode(Carry(parcel)))


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_the_peers_fault(raw: bytes) -> None:
    with contextlib.suppress(PeerError):
        assert isinstance(CODEC.decode(raw), Message)


def test_a_message_over_the_limit_is_refused_before_it_is_read() -> None:
    with pytest.raises(PeerError, match="at most 10 bytes"):
        Codec(Ping, bytes_max=10).decode(b"\x92\xa4Ping" + b"\x00" * 20)


def test_deeply_nested_bytes_do_not_exhaust_the_stack() -> None:
    with pytest.raises(PeerError):
        CODEC.decode(b"\x92\xa5Carry" + b"\x91" * 100_000)


def test_a_value_of_no_type_is_refused() -> None:
    parcel = Parcel(Head(EventId("a", 0, 1), "T"), View({}))
    raw = CODEC.encode(Carry(parcel)).replace(b"\x80", b"\x81\xa1x\x91\x01")  # The empty values become {"x": [1]}.
    with pytest.raises(PeerError, match="expected a value for 'x'"):
        CODEC.decode(raw)


def test_a_condition_that_does_not_parse_is_refused_on_arrival() -> None:
    wish = Interest(SubscriptionId("a", 0, 1), "T", Sql("speed > 20", (("speed", "double"),)))
    raw = CODEC.encode(Table((wish,), {})).replace(b"speed > 20", b"speed >>20")
    with pytest.raises(PeerError):
        CODEC.decode(raw)


def test_rewriting_reaches_parcels_and_interests_wherever_they_stand() -> None:
    id = SubscriptionId("a", 0, 1)
    table = Table((Interest(id, "T", Ranges.of(x=(1, 2)), b"sealed"),), {})
    hidden = rewritten(table, lambda wish: Interest(wish.id, wish.type, Ranges.of(), wish.envelope), Interest)
    assert hidden.interests == (Interest(id, "T", Ranges.of(), b"sealed"),)
    parcel = Parcel(Head(EventId("a", 0, 1), "T"), View({"x": 1}), b"sealed")
    assert rewritten(Carry(parcel), lambda p: Parcel(p.head, SEALED, p.envelope), Parcel).parcel.view == SEALED


def test_a_message_without_parcels_is_passed_through_untouched() -> None:
    ping = Ping(3)
    assert rewritten(ping, lambda parcel: None, Parcel) is ping


def test_the_peers_a_message_introduces_are_found() -> None:
    a, b = Peer("a", "host:1"), Peer("b", "host:2", 3)
    assert peers_in(Table((), {"a": a}, b)) == [a, b]
    assert peers_in(Ping(1)) == []
