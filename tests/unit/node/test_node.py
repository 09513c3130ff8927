"""One node: rights at the edge, sealing, what is believed, what is refused, and that nothing makes it fall over."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from tests.city import Sighting
from tests.given import Quake
from tests.unit.node.pair import FEDERATION, PLATES, Cable, a_node, attach, two
from tidings.errors import Denied, EventError, FilterError, InputError, PeerError
from tidings.events import EventType
from tidings.node import Delivery, Ended, Joined, Keep, KeepKeys, Node, NodeEffect, NodePolicy, NotJoined, Rejected
from tidings.node.filter_encoding import UNREAD
from tidings.node.outbound import encode_stored
from tidings.node.type_crypto import SealedInterest
from tidings.overlay import (
    Completed,
    Count,
    Effect,
    EventId,
    Failed,
    Header,
    Interest,
    Message,
    Packet,
    Send,
    SubscriptionId,
    View,
    WakeAt,
)
from tidings.overlay.baselines.flooding import Flood, Flooding
from tidings.security import Grant, Mode, OnlineTest, grant, split
from tidings.security.envelope.frame import with_cache
from tidings.sim import START_MS, Federation
from tidings.store import Registry

WHOLE = FEDERATION.type(EventType("Report", text=str, level=int), Mode.EVENT)
PLAIN = FEDERATION.type(EventType("Notice", text=str), Mode.PLAIN)
SEEN = {"plate": "AB12CDE", "place": "Soho", "speed": 31}


def told(effects: list[NodeEffect]) -> list[tuple[str, dict[str, object]]]:
    return [(effect.client, effect.values) for effect in effects if isinstance(effect, Delivery)]


def refusals(effects: list[NodeEffect]) -> list[str]:
    return [effect.why.partition(":")[0] for effect in effects if isinstance(effect, Rejected)]


def publish(
    cable: Cable, node: Node, client: str, values: dict[str, object], name: str = "Sighting"
) -> list[NodeEffect]:
    _, effects = node.publish(client, name, values, cable.now)
    return cable.carry(node, effects)


def sent(node: Node, client: str, values: dict[str, object], now: float = 0.0) -> Flood:
    """The message in which an event leaves."""
    _, effects = node.publish(client, "Sighting", values, now)
    (message,) = [effect.message for effect in effects if isinstance(effect, Send)]
    return message  # type: ignore[no-any-return]


def encoded(node: Node, message: Message) -> bytes:
    """A message as a node would send it that does not care what may be sent."""
    return node.encode(message)


# ── Open and plain types ───────────────────────────────────────────────────────


def test_an_open_type_needs_no_rights_at_all() -> None:
    cable = two()
    for node in cable.nodes.values():
        node.declare(Quake, 0.0)
    cable.other.attach("listener", b"", [], 0.0)
    id, effects = cable.other.subscribe("listener", "Quake", "magnitude > 5", 0.0)
    assert Completed("subscribe", id) in effects
    assert told(publish(cable, cable.one, "seismograph", {"magnitude": 6.1}, "Quake")) == [
        ("listener", {"magnitude": 6.1})
    ]
    assert told(publish(cable, cable.one, "seismograph", {"magnitude": 4.1}, "Quake")) == []


def test_a_plain_type_asks_for_rights_and_seals_nothing() -> None:
    cable = two(signed=PLAIN)
    one = cable.one
    with pytest.raises(Denied, match="client: 'camera' is not attached"):
        one.publish("camera", "Notice", {"text": "x"}, 0.0)
    attach(cable, one, "camera", signed=PLAIN)
    with pytest.raises(Denied, match="right: none for this type was shown"):  # The broker itself has none.
        one.publish("camera", "Notice", {"text": "x"}, 0.0)
    one.hold(FEDERATION.right(PLAIN, one.identity).to_bytes(), 0.0)
    cable.frames.clear()
    publish(cable, one, "camera", {"text": "readable by all"}, "Notice")
    assert any(b"readable by all" in raw for _, raw in cable.frames)


def test_what_does_not_fit_the_type_is_refused_at_the_edge_and_dropped_from_the_network() -> None:
    cable = two()
    for node in cable.nodes.values():
        node.declare(Quake, 0.0)
    with pytest.raises(EventError):
        cable.one.publish("x", "Quake", {"magnitude": "strong"}, 0.0)
    cable.other.subscribe("listener", "Quake", "TRUE", 0.0)
    flood = Flood(Packet(Header(EventId(cable.one.me.id, 0, 99), "Quake"), View({"magnitude": "strong"})), 3)
    effects = cable.other.receive(cable.one.me.id, encoded(cable.one, flood), 0.0)
    assert told(effects) == []
    assert Count("undelivered_event") in effects


def test_types_are_found_by_name_full_name_and_id_and_a_typo_gets_a_hint() -> None:
    node = two(None).one
    for name in ("Sighting", PLATES.name, PLATES.type_id.hex()):
        assert node.types.find(name).signed == PLATES
    with pytest.raises(InputError, match="did you mean 'Sighting'"):
        node.types.find("Sihgting")
    node.declare(FEDERATION.type(Sighting, Mode.EVENT, version=2), 0.0)
    assert node.types.find("Sighting@1").signed == PLATES
    newest = node.types.find("Sighting").signed
    assert newest is not None
    assert newest.version == 2


def test_a_name_that_several_owners_use_must_be_given_in_full() -> None:
    node = two(None).one
    other = Federation(43).type(Sighting, Mode.EVENT)
    node.declare(other, 0.0)
    with pytest.raises(InputError, match="several owners have a type 'Sighting'"):
        node.types.find("Sighting")
    assert node.types.find(other.name).signed == other
    node.types.own_keys = frozenset([PLATES.owner_key])
    assert node.types.find("Sighting").signed == PLATES


def test_a_higher_version_of_another_owner_does_not_take_a_name_over() -> None:
    node = two(None).one
    node.declare(Federation(43).type(Sighting, Mode.EVENT, version=9), 0.0)
    with pytest.raises(InputError, match="several owners have a type 'Sighting'"):
        node.types.find("Sighting")


def test_a_type_that_is_not_genuine_is_not_declared() -> None:
    node = a_node("one")
    with pytest.raises(InputError, match="names that begin with ~"):
        node.declare(EventType("~keys", x=int), 0.0)
    late = FEDERATION.type(Sighting, Mode.ATTRIBUTE, not_after=START_MS)
    with pytest.raises(Denied, match="validity"):
        node.declare(late, 0.0)


# ── Rights at the edge (SECURE-INV-10) ────────────────────────────────────────────────


def test_both_the_client_and_its_broker_must_have_the_right_to_publish() -> None:
    cable = two(("plate", "speed"), ())
    attach(cable, cable.one, "camera")
    with pytest.raises(Denied, match="attributes: no right to"):
        cable.one.publish("camera", "Sighting", SEEN, 0.0)
    attach(cable, cable.one, "camera", ("plate",))
    with pytest.raises(Denied, match="attributes: no right to"):
        cable.one.publish("camera", "Sighting", {"plate": "A", "speed": 3}, 0.0)
    assert publish(cable, cable.one, "camera", {"plate": "A"}) == []


def test_a_right_for_one_thing_is_none_for_another() -> None:
    cable = two(None, None)
    attach(cable, cable.one, "reader", actions=("subscribe",))
    with pytest.raises(Denied, match="action: publish"):
        cable.one.publish("reader", "Sighting", SEEN, 0.0)
    attach(cable, cable.one, "writer", actions=("publish",))
    with pytest.raises(Denied, match="action: subscribe"):
        cable.one.subscribe("writer", "Sighting", "speed > 3", 0.0)
    with pytest.raises(Denied, match="action: subscribe"):
        cable.one.subscribe("writer", "Sighting", "TRUE", 0.0)


def test_a_token_of_somebody_else_or_of_nobody_known_is_refused() -> None:
    node = two(None).one
    theirs = FEDERATION.right(PLATES, FEDERATION.identity("somebody"))
    with pytest.raises(Denied, match="holder:"):
        node.attach("thief", FEDERATION.identity("thief").public_key, [theirs.to_bytes()], 0.0)
    with pytest.raises(Denied, match="holder:"):
        node.hold(theirs.to_bytes(), 0.0)
    with pytest.raises(Denied, match="signature: no owner known here has issued this right"):
        node.attach("forger", bytes(32), [b"no token"], 0.0)


def test_a_right_that_ended_or_was_revoked_allows_nothing_more() -> None:
    cable = two(None, None)
    one = cable.one
    right = FEDERATION.right(PLATES, FEDERATION.identity("camera"), until_ms=START_MS + 2000)
    one.attach("camera", FEDERATION.identity("camera").public_key, [right.to_bytes()], 0.0)
    one.publish("camera", "Sighting", SEEN, 1.999)
    with pytest.raises(Denied, match="validity:"):
        one.publish("camera", "Sighting", SEEN, 2.0)
    right = FEDERATION.right(PLATES, FEDERATION.identity("camera"))
    one.attach("camera", FEDERATION.identity("camera").public_key, [right.to_bytes()], 2.0)
    one.publish("camera", "Sighting", SEEN, 2.0)
    one.revoke(right.revocation_ids, 2.0)
    with pytest.raises(Denied, match="revoked: link 0"):
        one.publish("camera", "Sighting", SEEN, 2.0)


def test_a_subscription_ends_with_its_right_before_the_next_event_is_told() -> None:
    cable = two(None, None)
    attach(cable, cable.one, "camera")
    right = FEDERATION.right(PLATES, FEDERATION.identity("reader"))
    cable.other.attach("reader", FEDERATION.identity("reader").public_key, [right.to_bytes()], 0.0)
    id, effects = cable.other.subscribe("reader", "Sighting", "speed > 3", 0.0)
    cable.carry(cable.other, effects)
    assert told(publish(cable, cable.one, "camera", SEEN)) == [("reader", SEEN)]
    ended = cable.other.revoke(right.revocation_ids, 0.0)
    assert [(e.subscription, e.client, e.why.partition(":")[0]) for e in ended if isinstance(e, Ended)] == [
        (id, "reader", "revoked")
    ]
    assert told(publish(cable, cable.one, "camera", SEEN)) == []


def test_a_client_sees_only_what_it_may_and_only_events_within_its_constraints() -> None:
    cable = two(None, None)
    attach(cable, cable.one, "camera")
    attach(cable, cable.other, "detective", ("plate", "speed"), constraints=("plate = 'AB12CDE'",))
    _, effects = cable.other.subscribe("detective", "Sighting", "TRUE", 0.0)
    cable.carry(cable.other, effects)
    assert told(publish(cable, cable.one, "camera", SEEN)) == [("detective", {"plate": "AB12CDE", "speed": 31})]
    assert told(publish(cable, cable.one, "camera", {**SEEN, "plate": "XX"})) == []
    with pytest.raises(Denied, match="attributes: no right to"):  # Asking is seeing.
        cable.other.subscribe("detective", "Sighting", "place = 'Soho'", 0.0)
    with pytest.raises(FilterError):
        cable.other.subscribe("detective", "Sighting", "speed > 'fast'", 0.0)


def test_a_right_to_some_attributes_opens_no_event_that_is_sealed_as_one() -> None:
    node = two(signed=WHOLE).one
    effects = node.hold(FEDERATION.right(WHOLE, node.identity, ("text",)).to_bytes(), 0.0)
    assert any(isinstance(effect, NotJoined) for effect in effects)


def test_a_join_that_the_manager_refuses_is_answered() -> None:
    cable = two(None, ())
    right = FEDERATION.right(PLATES, cable.other.identity)
    cable.one.revoke(right.revocation_ids, 0.0)
    effects = cable.carry(cable.other, cable.other.hold(right.to_bytes(), 0.0))
    (refused,) = [effect for effect in effects if isinstance(effect, NotJoined)]
    assert refused.why.startswith("revoked: link 0")


# ── What crosses the link ──────────────────────────────────────────────────────


def test_a_manager_keeps_its_state_before_it_says_anything() -> None:
    cable = two(None, ())
    right = FEDERATION.right(PLATES, cable.other.identity).to_bytes()
    asked = cable.other.hold(right, 0.0)
    raws = [cable.other.frame_for(e.to, e.message, 0.0) for e in asked if isinstance(e, Send)]
    answers = [effect for raw in raws for effect in cable.one.receive(cable.other.me.id, raw, 0.0)]
    kept = [index for index, effect in enumerate(answers) if isinstance(effect, KeepKeys)]
    said = [
        index for index, effect in enumerate(answers) if isinstance(effect, Send) and isinstance(effect.message, Flood)
    ]
    assert len(kept) == 1
    assert kept[0] < max(said)


def test_an_altered_event_is_dropped_and_the_link_stays() -> None:
    cable = two(None, None)
    attach(cable, cable.one, "camera")
    flood = sent(cable.one, "camera", SEEN)
    envelope = bytearray(flood.packet.envelope)
    envelope[-1] ^= 1
    altered = Flood(Packet(flood.packet.header, View({}, opaque=True), bytes(envelope)), 3)
    effects = cable.other.receive(cable.one.me.id, encoded(cable.one, altered), 0.0)
    assert [(effect.why.partition(":")[0], effect.cut) for effect in effects if isinstance(effect, Rejected)] == [
        ("tag", False)
    ]


@pytest.mark.parametrize("change", ["type", "id", "no envelope", "garbage"])
def test_a_head_must_be_that_of_the_sealed_event(change: str) -> None:
    cable = two(None, None)
    attach(cable, cable.one, "camera")
    packet = sent(cable.one, "camera", SEEN).packet
    header, envelope = packet.header, packet.envelope
    if change == "type":
        cable.other.declare(WHOLE, 0.0)
        header = msgspec.structs.replace(header, type=WHOLE.type_id.hex())
    elif change == "id":
        header = msgspec.structs.replace(header, id=header.id._replace(seq=header.id.seq + 1))
    else:
        envelope = b"" if change == "no envelope" else b"garbage"
    forged = Flood(Packet(header, View({"plate": "forged"}), envelope), 3)
    effects = cable.other.receive(cable.one.me.id, encoded(cable.one, forged), 0.0)
    assert refusals(effects) == [{"type": "head", "id": "head", "no envelope": "envelope", "garbage": "header"}[change]]
    assert told(effects) == []


def test_an_event_is_told_once_however_it_is_replayed_and_never_when_it_is_old() -> None:
    """SECURE-INV-9: a replay under another origin gets past the router, and not past the node."""
    cable = two(None, None, organisations=("police", "charge"))
    attach(cable, cable.one, "camera")
    attach(cable, cable.other, "reader")
    cable.carry(cable.other, cable.other.subscribe("reader", "Sighting", "TRUE", 0.0)[1])
    flood = sent(cable.one, "camera", SEEN)
    later = sent(cable.one, "camera", SEEN)
    first = cable.other.receive(cable.one.me.id, encoded(cable.one, _bare(flood)), 0.0)
    assert told(first) == [("reader", SEEN)]
    for origin in ("somebody", "somebody else"):
        header = msgspec.structs.replace(flood.packet.header, id=flood.packet.header.id._replace(origin=origin))
        again = Flood(Packet(header, View({}, opaque=True), flood.packet.envelope), 3)
        effects = cable.other.receive(cable.one.me.id, encoded(cable.one, again), 0.1)
        assert told(effects) == []
        assert Count("undelivered_replay") in effects
    stale = cable.other.receive(cable.one.me.id, encoded(cable.one, _bare(later)), 65.001)
    assert told(stale) == []
    assert Count("undelivered_fresh") in stale


def test_a_second_copy_of_an_event_changes_nothing_in_its_trace() -> None:
    """An overlay may bring an event twice, and its origin sends some straight as well: no copy of it is refused."""
    cable = two(None, None, organisations=("police", "charge"))
    attach(cable, cable.one, "camera")
    attach(cable, cable.other, "reader")
    subscriptions = [cable.other.subscribe("reader", "Sighting", where, 0.0) for where in ("TRUE", "speed > 90")]
    for _, effects in subscriptions:
        cable.carry(cable.other, effects)
    wanted, fast = (id for id, _ in subscriptions)
    flood = sent(cable.one, "camera", SEEN)
    cable.other.receive(cable.one.me.id, encoded(cable.one, _bare(flood)), 0.0)
    again = cable.other.receive_direct(cable.one.me.id, encode_stored(_bare(flood).packet), 0.0, 0.1)
    assert Count("undelivered_replay") in again
    id = flood.packet.header.id
    hop = cable.other.hop(id)
    assert hop is not None
    assert hop.refused == ""
    assert cable.other.why(id, wanted) == "delivered: TRUE"
    assert cable.other.why(id, fast) == "not TRUE: speed > 90"


def _bare(flood: Flood) -> Flood:
    return Flood(Packet(flood.packet.header, View({}, opaque=True), flood.packet.envelope), flood.hops)


def test_a_subscription_without_a_right_is_not_stored() -> None:
    """SECURE-INV-10: sealed with real keys, but signed by a broker whose right is revoked, or with the token of another."""
    cable = two(None, None)
    attach(cable, cable.other, "reader")
    id, _ = cable.other.subscribe("reader", "Sighting", "speed > 3", 0.0)
    known = cable.other.types[PLATES.type_id.hex()]
    held = cable.other.neighbours.mine.of(PLATES.type_id)[0]
    assert known.keys is not None
    envelope = known.keys.seal_filter(id, known.local.get(id).condition, 2, held, START_MS)  # type: ignore[union-attr]
    interest = Interest(id, PLATES.type_id.hex(), UNREAD, envelope)
    judge = cable.one.boundary.open_interest
    assert judge(interest, START_MS).wanted.exact
    foreign = FEDERATION.right(PLATES, cable.one.identity).to_bytes()
    frame = msgspec.msgpack.decode(envelope, type=SealedInterest).frame
    swapped = msgspec.msgpack.encode(SealedInterest(frame, foreign))
    renamed = SubscriptionId(id.origin, id.incarnation, id.seq + 1)
    for forged, why in (
        (Interest(id, interest.type, interest.wanted, swapped), "token: not the one"),
        (Interest(renamed, interest.type, interest.wanted, envelope), "filter: of another subscription"),
        (Interest(id, interest.type, interest.wanted, b""), "filter: expected a sealed one"),
    ):
        with pytest.raises(Exception, match=why):
            judge(forged, START_MS)
    cable.one.revoke(held.token.revocation_ids, 0.0)
    with pytest.raises(Denied, match="revoked: a link"):
        judge(interest, START_MS)


def test_one_interest_without_a_right_does_not_spoil_those_beside_it() -> None:
    judged: list[object] = []
    node = two(None, None).one
    bad = Interest(SubscriptionId("x", 0, 1), PLATES.type_id.hex(), UNREAD, b"")
    taken = node.boundary.interest_for_router(bad, START_MS, judged)  # type: ignore[arg-type]
    assert judged[0] is not None
    assert not taken.wanted.matches(View({}, opaque=True))
    assert taken.wanted.boxes() == ()


# ── Whose plaintext is believed ────────────────────────────────────────────────


def lying(cable: Cable) -> bytes:
    """A frame whose ciphertexts are right and whose plaintext says otherwise."""
    packet = sent(cable.one, "camera", SEEN).packet
    pairs = [(PLATES.attr_id("speed"), b"\x02" + (99).to_bytes(8, "big"))]
    return encoded(
        cable.one, Flood(Packet(packet.header, View({}, opaque=True), with_cache(split(packet.envelope), pairs)), 3)
    )


@pytest.mark.parametrize(
    ("trust", "organisations", "speed"),
    [
        ("same-domain", ("police", "police"), 99),
        ("same-domain", ("police", "charge"), 31),
        ("any-authorised", ("police", "charge"), 99),
        ("verify", ("police", "police"), None),
    ],
)
def test_plaintext_is_believed_as_the_policy_says(
    trust: str, organisations: tuple[str, str], speed: int | None
) -> None:
    policy = NodePolicy(network_key=FEDERATION.network.public_key, cache_trust=trust)  # type: ignore[arg-type]
    cable = two(None, None, organisations=organisations, policy=policy)
    attach(cable, cable.one, "camera")
    attach(cable, cable.other, "reader")
    cable.other.subscribe("reader", "Sighting", "TRUE", 0.0)
    effects = cable.other.receive(cable.one.me.id, lying(cable), 0.0)
    if speed is None:
        assert [(e.why, e.cut) for e in effects if isinstance(e, Rejected)] == [
            ("cache: contradicts the sealed event", True)
        ]
    else:
        assert [values["speed"] for _, values in told(effects)] == [speed]


def test_a_neighbour_that_is_believed_and_lies_is_found_out_before_long() -> None:
    """`any-authorised` compares now and then, and cuts the link at the first lie it finds."""
    policy = NodePolicy(network_key=FEDERATION.network.public_key, cache_trust="any-authorised")
    cable = two(None, None, organisations=("police", "charge"), policy=policy)
    attach(cable, cable.one, "camera")
    found = [
        number
        for number in range(500)
        for effect in cable.other.receive(cable.one.me.id, lying(cable), 0.0)
        if isinstance(effect, Rejected) and effect.cut
    ]
    assert 0 < len(found) < 50


def test_a_second_copy_costs_no_decryption() -> None:
    cable = two(None, None, organisations=("police", "charge"))
    attach(cable, cable.one, "camera")
    raw = encoded(cable.one, _bare(sent(cable.one, "camera", SEEN)))
    for _ in range(5):
        cable.other.receive(cable.one.me.id, raw, 0.0)
    assert cable.other.boundary.decrypted == 1


# ── Keeping, and looking ───────────────────────────────────────────────────────


def test_a_kept_event_is_said_again_as_the_same_event_and_holds_no_plaintext() -> None:
    cable = two(None, None)
    attach(cable, cable.one, "camera")
    attach(cable, cable.other, "reader")
    cable.carry(cable.other, cable.other.subscribe("reader", "Sighting", "speed > 3", 0.0)[1])
    id, effects = cable.one.publish("camera", "Sighting", SEEN, 0.0, keep=True)
    keep = effects[0]
    assert isinstance(keep, Keep)
    assert keep.event == id
    assert b"AB12CDE" not in keep.raw
    assert told(cable.carry(cable.one, effects)) == [("reader", SEEN)]
    again = a_node("one", ["other"])  # A new life, without memory of the event.
    again.declare(PLATES, 0.0)
    assert [type(effect).__name__ for effect in again.publish_again(keep.raw, 0.0)] == ["Send"]
    assert told(cable.carry(cable.one, cable.one.publish_again(keep.raw, 0.0))) == []
    with pytest.raises(InputError, match="not a stored event"):
        again.publish_again(b"\x00", 0.0)


def test_a_kept_event_whose_envelope_is_broken_fails_and_says_so() -> None:
    cable = two(None, None)
    attach(cable, cable.one, "camera")
    _, effects = cable.one.publish("camera", "Sighting", SEEN, 0.0, keep=True)
    assert isinstance(effects[0], Keep)
    broken = bytearray(effects[0].raw)
    broken[-3] ^= 1
    (failed,) = cable.other.publish_again(bytes(broken), 0.0)
    assert isinstance(failed, Failed)
    assert failed.why.startswith("tag:")


def test_the_status_is_json_and_shows_no_secret() -> None:
    cable = two(None, None)
    text = json.dumps(cable.one.status(0.0))
    assert json.loads(text)["neighbours"][0]["ready"] is True
    assert cable.one.identity.secret.hex() not in text


def test_several_events_at_once_are_several_events() -> None:
    cable = two(None, None)
    attach(cable, cable.one, "camera")
    attach(cable, cable.other, "reader")
    cable.carry(cable.other, cable.other.subscribe("reader", "Sighting", "speed > 3", 0.0)[1])
    many = [{"speed": speed} for speed in range(8)]
    ids, effects = cable.one.publish_many("camera", "Sighting", many, 0.0, keep=True)
    assert len(set(ids)) == 8
    assert [effect.event for effect in effects if isinstance(effect, Keep)] == ids
    frames = [(cable.one.me.id, cable.one.frame_for(e.to, e.message, 0.0)) for e in effects if isinstance(e, Send)]
    assert [values["speed"] for _, values in told(cable.other.receive_many(frames, 0.0))] == [4, 5, 6, 7]


def test_a_sender_id_is_new_with_every_welcome() -> None:
    cable = two(None, None)
    given = [effect.sender_id for effect in cable.effects if isinstance(effect, Joined)]
    assert len(given) == len(set(given)) == 2


def test_an_event_or_a_filter_that_is_too_large_is_refused_at_the_edge_and_from_the_network() -> None:
    cable = two(None, None)
    attach(cable, cable.one, "camera")
    attach(cable, cable.one, "reader")
    with pytest.raises(EventError, match="an event has at most 262144"):
        cable.one.publish("camera", "Sighting", {"plate": "é" * 140_000}, 0.0)
    with pytest.raises(InputError, match="may have 32,768 characters"):
        cable.one.subscribe("reader", "Sighting", f"plate = '{'x' * 70_000}'", 0.0)
    assert cable.one.subscriptions() == []
    header = Header(EventId(cable.one.me.id, 0, 1), "Quake")
    large = Flood(Packet(header, View({"text": "x" * 300_000})), 3)
    assert refusals(cable.other.receive(cable.one.me.id, encoded(cable.one, large), 0.0)) == ["size"]


def test_of_a_stranger_nothing_but_the_handshake_is_decoded() -> None:
    cable = two(None, None)
    garbage = cable.one.encode(Flood(Packet(Header(EventId("x", 0, 1), "Quake"), View({})), 3))[:-1]
    assert refusals(cable.other.receive(cable.one.me.id, garbage, 0.0)) != ["link"]  # A member's message is read.
    assert refusals(cable.other.receive("stranger", garbage, 0.0)) == ["link"]


def test_a_number_beyond_64_bits_is_not_sent_and_ends_nothing() -> None:
    cable = two(None, None)
    too_much = Flood(Packet(Header(EventId("x", 0, 1), "Quake"), View({})), 1 << 64)
    with pytest.raises(Denied, match="64 bits"):
        cable.one.frame_for(cable.other.me.id, too_much, 0.0)


def test_the_condition_of_a_client_without_a_right_is_not_parsed() -> None:
    cable = two(None, None)
    cable.one.attach("nobody", b"", [], 0.0)
    with pytest.raises(Denied, match="right|token"):
        cable.one.subscribe("nobody", "Sighting", "this is no condition (", 0.0)


def test_what_the_registry_revokes_ends_at_the_node(tmp_path: Path) -> None:
    cable = two(None, None)
    right = FEDERATION.right(PLATES, FEDERATION.identity("reader"))
    cable.other.attach("reader", FEDERATION.identity("reader").public_key, [right.to_bytes()], 0.0)
    id, _ = cable.other.subscribe("reader", "Sighting", "speed > 3", 0.0)
    with Registry.open(tmp_path / "tidings.db", now_ms=START_MS) as registry:
        registry.types.declare(PLATES, by="owner", now_ms=START_MS)
        registry.grants.add(right, by="owner", now_ms=START_MS)
        registry.grants.revoke(right, by_key=FEDERATION.owner.public_key, now_ms=START_MS)
        effects = cable.other.revoke([gone.revocation_id for gone in registry.grants.revocations()], 0.0)
    assert [effect.subscription for effect in effects if isinstance(effect, Ended)] == [id]


def test_an_event_that_another_broker_kept_is_told_however_old_it_is_and_only_if_it_is_genuine() -> None:
    cable = two(None, None)
    attach(cable, cable.one, "camera")
    attach(cable, cable.other, "reader")
    _, effects = cable.one.publish("camera", "Sighting", SEEN, 0.0, keep=True)
    keep = effects[0]
    assert isinstance(keep, Keep)
    cable.other.subscribe("reader", "Sighting", "speed > 3", 0.0)
    for _ in range(2):  # Whoever asks keeps the book.
        assert told(cable.other.deliver_stored(keep.raw, 3600.0) or []) == [("reader", SEEN)]
    broken = bytearray(keep.raw)
    broken[-3] ^= 1
    with pytest.raises(PeerError, match="tag"):
        cable.other.deliver_stored(bytes(broken), 0.0)
    stranger = two(None, ()).other
    assert stranger.deliver_stored(keep.raw, 0.0) == []


def test_a_right_with_an_online_test_holds_while_the_answer_is_fresh() -> None:
    cable = two(None, None)
    holder = FEDERATION.identity("camera")
    granted = Grant(
        PLATES.type_id, frozenset({"publish"}), holder.public_key, online=(OnlineTest("https://police.example", 5000),)
    )
    token = grant(FEDERATION.owner, granted, bytes)
    cable.one.attach("camera", holder.public_key, [token.to_bytes()], 0.0)
    with pytest.raises(Denied, match="online: no confirmation from"):
        cable.one.publish("camera", "Sighting", SEEN, 0.0)
    cable.one.confirmed_online("https://police.example", START_MS)
    cable.one.publish("camera", "Sighting", SEEN, 4.9)
    with pytest.raises(Denied, match="online: no confirmation from"):
        cable.one.publish("camera", "Sighting", SEEN, 5.1)


class Unwilling(Flooding):
    """An overlay that takes no subscription while it does not want to."""

    unwilling = True

    def subscribe(self, interest: Interest, now: float) -> list[Effect]:
        if self.unwilling:
            return [Failed("subscribe", "no room", interest.id)]
        return super().subscribe(interest, now)


def test_a_subscription_that_the_overlay_refuses_is_gone_and_what_keys_need_is_tried_again() -> None:
    router = Unwilling([])
    node = a_node("alone", router=router)
    node.declare(Quake, 0.0)
    node.declare(PLATES, 0.0)
    id, effects = node.subscribe("listener", "Quake", "TRUE", 0.0)
    assert effects == [Failed("subscribe", "no room", id)]
    assert node.subscriptions() == []
    effects = node.host(FEDERATION.key_manager(PLATES), 0.0)
    effects += node.hold(FEDERATION.right(PLATES, node.identity).to_bytes(), 0.0)
    assert not any(isinstance(effect, Joined) for effect in effects)
    router.unwilling = False
    wakes = [effect for effect in effects if isinstance(effect, WakeAt) and effect.when == 5.0]
    woken = [effect for wake in wakes for effect in node.wake(wake.token, wake.when)]
    assert any(isinstance(effect, Joined) for effect in woken)
