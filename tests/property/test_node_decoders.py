"""Whatever a neighbour sends, a node answers with effects, does not raise, and keeps no more than it says.

The bytes are real frames of every kind that a node takes, mangled, and plain garbage; they come from a
neighbour that has proven itself, from one that has not, and from nobody.
"""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.property.test_security_decoders import mangled
from tests.unit.node.pair import PLATES, Cable, a_node, attach, membership, two
from tidings.errors import InputError
from tidings.node import Delivery, Node
from tidings.node.filter_encoding import UNREAD
from tidings.node.key_distribution import CODEC, GroupJoinRequest, JoinRefusal, JoinReply, KeyAnnouncement
from tidings.node.type_registry import CONTROL
from tidings.overlay import EventId, Header, Interest, Packet, Peer, SubscriptionId, View
from tidings.overlay.baselines.flooding import Flood
from tidings.overlay.hermes.messages import InterestRequest
from tidings.sim import START_MS


def a_cable() -> Cable:
    cable = two(None, None, organisations=("police", "charge"))
    attach(cable, cable.one, "camera")
    attach(cable, cable.other, "reader")
    cable.carry(cable.other, cable.other.subscribe("reader", "Sighting", "speed > 3", 0.0)[1])
    cable.carry(cable.one, cable.one.publish("camera", "Sighting", {"plate": "A", "speed": 5}, 0.0)[1])
    return cable


CABLE = a_cable()
FRAMES = sorted({raw for to, raw in CABLE.frames if to == CABLE.other.me.id}, key=len)


@settings(max_examples=300)
@given(st.sampled_from(FRAMES).flatmap(mangled) | st.binary(max_size=300), st.sampled_from(["near", "met", "nobody"]))
def test_no_frame_makes_a_node_raise_or_tells_a_client_what_was_not_said(raw: bytes, who: str) -> None:
    node = CABLE.other
    node.link_up(Peer("0" * 32), 0.0)
    sender = {"near": CABLE.one.me.id, "met": "0" * 32, "nobody": "1" * 32}[who]
    told = [effect for effect in node.receive(sender, raw, 0.0) if isinstance(effect, Delivery)]
    assert all(notice.values == {"plate": "A", "speed": 5} for notice in told)
    assert all(held <= at_most for held, at_most in node.holdings().values())
    CABLE.up()  # A mangled introduction may have ended the link, as it should.


CONTROLS = {
    "join": CODEC.encode(GroupJoinRequest(b"x" * 40)),
    "welcome": CODEC.encode(JoinReply(PLATES.type_id, b"x" * 100)),
    "refusal": CODEC.encode(JoinRefusal(PLATES.type_id, bytes(16), "why", bytes(64))),
    "keys": CODEC.encode(KeyAnnouncement()),
}


@pytest.mark.parametrize("what", CONTROLS)
def test_no_word_about_keys_makes_a_node_raise_or_changes_its_keys(what: str) -> None:
    node = CABLE.one
    holder = node.identity.public_key.hex()
    control = {"join": f"join/{PLATES.type_id.hex()}", "keys": f"keys/{PLATES.type_id.hex()}"}
    type = CONTROL + control.get(what, f"welcome/{holder}")
    keys = node.types[PLATES.type_id.hex()].keys
    assert keys is not None
    ring = repr(keys.keyring)

    @settings(max_examples=80)
    @given(mangled(CONTROLS[what]) | st.binary(max_size=200), st.integers(0, 2**62))
    def run(raw: bytes, seq: int) -> None:
        packet = Packet(Header(EventId("anybody", 0, seq), type), View({}), raw)
        node.receive(CABLE.other.me.id, CABLE.other.encode(Flood(packet, 1)), 0.0)

    run()
    assert repr(keys.keyring) == ring


def test_no_interest_makes_a_node_raise() -> None:
    node, other = a_node("hermes one", protocol_name="hermes"), a_node("hermes other", protocol_name="hermes")
    for each in (node, other):
        each.declare(PLATES, 0.0)
        each.hold(membership(each).to_bytes(), 0.0)
    Cable(node, other).up()
    id, good = _a_filter(CABLE.other)

    @settings(max_examples=150)
    @given(mangled(good) | st.binary(max_size=100))
    def run(envelope: bytes) -> None:
        interest = Interest(id, PLATES.type_id.hex(), UNREAD, envelope)
        raw = other.encode(InterestRequest(interest, 1))
        node.receive(other.me.id, raw, 0.0)

    run()


def _a_filter(node: Node) -> tuple[SubscriptionId, bytes]:
    (one,) = node.subscriptions()
    keys = node.types[PLATES.type_id.hex()].keys
    assert keys is not None
    return one.id, keys.seal_filter(one.id, one.condition, 9, node.neighbours.mine.of(PLATES.type_id)[0], START_MS)


def test_a_kept_event_is_read_back_or_refused() -> None:
    @settings(max_examples=100)
    @given(st.binary(max_size=300))
    def run(raw: bytes) -> None:
        with pytest.raises(InputError):
            CABLE.other.publish_again(raw, 0.0)

    run()


def test_a_small_frame_costs_little_memory() -> None:
    tracemalloc.start()
    for raw in FRAMES:
        for cut in range(0, len(raw), max(1, len(raw) // 50)):
            CABLE.other.receive(CABLE.one.me.id, raw[:cut] + b"\xff\xff\xff\xff" + raw[cut + 4 :], 0.0)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 32 * 2**20
