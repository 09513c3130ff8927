"""Whatever bytes arrive, before and after a peer has proven its membership: refused in one piece, and nothing raises."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import cache
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.node.pair import Cable, a_node, membership
from tidings.delivery.durable_interest import read_advertisement
from tidings.delivery.messages import InterestAdvertisement
from tidings.errors import PeerError, TidingsError
from tidings.net.transport import frames
from tidings.net.transport.frames import FrameReader, read_event
from tidings.node import Node, Rejected, node_id_of
from tidings.node.outbound import decode_stored
from tidings.overlay import Codec, Send, protocol
from tidings.security import BiscuitCapability, Identity, SignedType, read_answer, read_revocation, split

STAGES = ("handshake", "broker", "client", "to client")


def frames_of(stage: str) -> Callable[[bytes], object]:
    """What a broker does with one frame of a peer at this stage."""
    reader = FrameReader(asyncio.StreamReader.__new__(asyncio.StreamReader))
    if stage != "handshake":
        reader.expect(stage)
    return reader.decoded


def tokens_of(key: bytes) -> Callable[[bytes], object]:
    return lambda raw: BiscuitCapability.from_bytes(raw, key)


FRAMES = [frames_of(stage) for stage in STAGES]
BOUNDED = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
OVERLAYS = ("irbr", "hermes", "immune", "flooding", "spanhop", "cbdlo")
_ME = Identity(bytes([7] * 32))


def values() -> st.SearchStrategy[Any]:
    """What MessagePack can hold, with the numbers at which counters break."""
    edges = st.sampled_from([0, -1, 1 << 62, (1 << 63) - 1, (1 << 64) - 1, -(1 << 63)])
    numbers = [edges, st.integers(-(1 << 63), (1 << 64) - 1), st.floats()]
    leaves: st.SearchStrategy[Any] = st.one_of(
        st.none(), st.booleans(), *numbers, st.text(max_size=8), st.binary(max_size=8)
    )
    return st.recursive(leaves, lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=4), inner))


def raw_messages(overlay: str) -> st.SearchStrategy[bytes]:
    """Noise, and arrays that begin like a message of the overlay or of a link."""
    kinds = [*msgspec_tags(overlay), "LinkHello", "LinkCreds", "LinkMembers", "LinkStrangers", "LinkRevoke"]
    like = st.tuples(st.sampled_from(kinds), st.lists(values(), max_size=6))
    return st.binary(max_size=200) | like.map(lambda pair: msgspec.msgpack.encode([pair[0], *pair[1]]))


@cache
def msgspec_tags(overlay: str) -> tuple[str, ...]:
    union = protocol(overlay).messages
    return tuple(str(kind.__struct_config__.tag) for kind in getattr(union, "__args__", (union,)))


@cache
def linked(overlay: str) -> Cable:
    one, other = (a_node(name, protocol_name=overlay) for name in ("one", "other"))
    for node in (one, other):
        node.hold(membership(node).to_bytes(), 0.0)
    cable = Cable(one, other)
    cable.up()
    assert one.neighbours.is_ready(other.me.id)
    return cable


@pytest.mark.parametrize("overlay", OVERLAYS)
@BOUNDED
@given(data=st.data())
def test_a_member_can_send_any_bytes_and_a_node_goes_on(overlay: str, data: st.DataObject) -> None:
    cable = linked(overlay)
    effects = cable.one.receive(cable.other.me.id, data.draw(raw_messages(overlay)), 1.0)
    for effect in effects:
        if isinstance(effect, Send):
            sends_or_refuses(cable.one, effect)


@BOUNDED
@given(data=st.data())
def test_a_member_can_send_anything_straight_and_a_node_goes_on(data: st.DataObject) -> None:
    """Noise, and stored events with anything in each place."""
    cable = linked("irbr")
    one, other = cable.one, cable.other.me.id
    ids = st.tuples(st.just(other) | st.text(max_size=4), values(), values())
    types = st.sampled_from(["T", "~keys/x", "~join/x", ""]) | st.text(max_size=4)
    views = st.dictionaries(st.text(max_size=4), values(), max_size=3)
    packet = st.tuples(st.tuples(ids, types), st.tuples(views, values(), values()), st.binary(max_size=120))
    stored = st.tuples(st.just("_KeptEvent"), packet).map(msgspec.msgpack.encode)
    raw = data.draw(st.binary(max_size=200) | stored)
    published_at = data.draw(st.floats())
    assert all(
        not isinstance(each, Rejected) or not each.cut for each in one.receive_direct(other, raw, published_at, 1.0)
    )


def sends_or_refuses(node: Node, send: Send) -> None:
    try:
        node.frame_for(send.to, send.message, 1.0)
    except TidingsError:
        return


@BOUNDED
@given(raw=raw_messages("irbr"))
def test_of_a_stranger_nothing_but_the_handshake_is_read(raw: bytes) -> None:
    node, stranger = a_node("fresh", protocol_name="irbr"), a_node("stranger", protocol_name="irbr")
    node.link_up(stranger.me, 0.0)
    effects = node.receive(stranger.me.id, raw, 0.0)
    assert not node.neighbours.is_ready(stranger.me.id)
    assert all(not isinstance(effect, Rejected) or effect.cut for effect in effects)


@pytest.mark.parametrize("stage", STAGES)
@BOUNDED
@given(data=st.data())
def test_every_stage_of_a_link_takes_frames_or_refuses_them(stage: str, data: st.DataObject) -> None:
    kinds = [kind.__struct_config__.tag for kind in frame_kinds()]
    like = st.tuples(st.sampled_from(kinds), st.lists(values(), max_size=6))
    raw = data.draw(st.binary(max_size=200) | like.map(lambda pair: msgspec.msgpack.encode([pair[0], *pair[1]])))
    with contextlib.suppress(PeerError):
        frames_of(stage)(raw)


@cache
def frame_kinds() -> tuple[Any, ...]:
    found = [frames.Handshake, frames.FromBroker, frames.FromClient, frames.ToClient]
    return tuple(dict.fromkeys(kind for union in found for kind in union.__args__))


@BOUNDED
@given(raw=st.binary(max_size=300))
def test_every_other_decoder_refuses_with_an_error_of_ours(raw: bytes) -> None:
    codec: Codec[Any] = Codec(protocol("irbr").messages)
    advertisement = InterestAdvertisement(raw, _ME.public_key, _ME.sign(b"tidings/wants/1\0" + raw))
    openers = (SignedType.from_bytes, read_answer, read_revocation, tokens_of(_ME.public_key), read_event)
    for decode in (codec.decode, decode_stored, split, *openers, *FRAMES):
        with contextlib.suppress(TidingsError):
            decode(raw)
    with pytest.raises(PeerError):
        read_advertisement(advertisement, node_id_of)
