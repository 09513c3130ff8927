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
    Header,
    Interest,
    Message,
    Packet,
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
    packet: Packet


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
heads = st.builds(Header, st.builds(EventId, st.text(), st.integers(0, 9), st.integers(0, 2**60)), st.text())
packets = st.builds(Packet, heads, views, st.binary())


@given(packets)
def test_a_packet_arrives_as_it_was_sent_each_value_of_its_type(packet: Packet) -> None:
    arrived = CODEC.decode(CODEC.encode(Carry(packet)))
    assert arrived == Carry(packet)
    assert isinstance(arrived, Carry)
    assert [type(v) for v in arrived.packet.view.values.values()] == [type(v) for v in packet.view.values.values()]


@given(packets)
def test_the_size_of_a_message_is_the_length_of_its_bytes(packet: Packet) -> None:
    assert size_of(Carry(packet)) == len(CODEC.encode(Carry(packet)))


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
    packet = Packet(Header(EventId("a", 0, 1), "T"), View({}))
    raw = CODEC.encode(Carry(packet)).replace(
        b"\x80", b"\x81\xa1x\x91\x91\x01"
    )  # The empty values become {"x": [[1]]}.
    with pytest.raises(PeerError, match="expected a value for 'x'"):
        CODEC.decode(raw)


def test_a_condition_that_does_not_parse_is_refused_on_arrival() -> None:
    wish = Interest(SubscriptionId("a", 0, 1), "T", Sql("speed > 20", (("speed", "double"),)))
    raw = CODEC.encode(Table((wish,), {})).replace(b"speed > 20", b"speed >>20")
    with pytest.raises(PeerError):
        CODEC.decode(raw)


def test_rewriting_reaches_packets_and_interests_wherever_they_stand() -> None:
    id = SubscriptionId("a", 0, 1)
    table = Table((Interest(id, "T", Ranges.of(x=(1, 2)), b"sealed"),), {})
    hidden = rewritten(table, lambda wish: Interest(wish.id, wish.type, Ranges.of(), wish.envelope), Interest)
    assert hidden.interests == (Interest(id, "T", Ranges.of(), b"sealed"),)
    packet = Packet(Header(EventId("a", 0, 1), "T"), View({"x": 1}), b"sealed")
    assert rewritten(Carry(packet), lambda p: Packet(p.header, SEALED, p.envelope), Packet).packet.view == SEALED


def test_a_message_without_packets_is_passed_through_untouched() -> None:
    ping = Ping(3)
    assert rewritten(ping, lambda packet: None, Packet) is ping


def test_the_peers_a_message_introduces_are_found() -> None:
    a, b = Peer("a", "host:1"), Peer("b", "host:2", 3)
    assert peers_in(Table((), {"a": a}, b)) == [a, b]
    assert peers_in(Ping(1)) == []
