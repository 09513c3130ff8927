"""Publishers are who they say: what a reader with all keys, or a relay without any, makes up is told to nobody."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import replace
from random import Random
from typing import Any

import msgspec
import pytest

from tests.live.test_liars import arrives, with_liar
from tidings.errors import PeerError
from tidings.events import EventType
from tidings.net import Client, DevNetwork, ReadAccess, Subscription
from tidings.net.transport.frames import OverlayMessages
from tidings.node import LocalIdentity, Node, NodePolicy, node_id_of
from tidings.node.credentials import RevocationState
from tidings.node.effects import Delivery, Keep
from tidings.node.outbound import decode_stored, encode_stored
from tidings.node.trust_boundary import mark_of, plain_digest
from tidings.node.type_crypto import PUBLISHERS_OF_ONE_MAX, TypeCrypto, event_id_of, sealed_by
from tidings.overlay import EventId, Header, Packet, Peer, View, protocol
from tidings.overlay.baselines.flooding import Flood
from tidings.security import (
    Grant,
    Identity,
    Keyring,
    Mode,
    ReplayWindow,
    Sealer,
    SignedType,
    Signing,
    grant,
    signatures_of,
    split,
)

QUAKE = EventType("Quake", magnitude=int)
READER = DevNetwork(
    first_port=0, readers={"ccs": ReadAccess(), "yard": ReadAccess()}, mode=Mode.ATTRIBUTE, overlay="flooding"
)
PLAIN = DevNetwork(first_port=0, readers={"ccs": ReadAccess(), "yard": ReadAccess()}, overlay="flooding")
FORGED = {"plate": "FORGED", "area": "EC2", "speed": 1.0}


def a_node(incarnation: int = 0, identity: Identity | None = None) -> Node:
    """One broker by itself with a subscriber to all quakes, which asks for signatures as live ones do."""
    identity = identity or Identity.make(secrets.token_bytes)
    policy = NodePolicy(signing="batch", need_signatures=True)
    me = LocalIdentity(Peer(node_id_of(identity.public_key), "", incarnation), identity)
    node = Node(me, protocol("flooding"), rng=Random(1), random=secrets.token_bytes, policy=policy)
    node.declare(QUAKE, 0.0)
    node.attach("desk", identity.public_key, [], 0.0)
    node.subscribe("desk", "Quake", "magnitude > 0", 0.0)
    return node


def published(node: Node, **values: Any) -> Packet:
    _, effects = node.publish("desk", "Quake", values, 1.0, keep=True)
    assert isinstance(effects[0], Keep)
    return decode_stored(effects[0].raw)


def delivered(node: Node, packet: Packet) -> list[Any]:
    try:
        effects = node.deliver_stored(encode_stored(packet), 0.0)
    except PeerError:
        return []
    return [each for each in effects or [] if isinstance(each, Delivery)]


def test_an_event_in_the_open_is_its_origins_and_nobody_elses() -> None:
    origin, reader = a_node(), a_node()
    true = published(origin, magnitude=7)
    assert delivered(reader, true)
    id = true.header.id
    altered = msgspec.structs.replace(true, view=View({"magnitude": 1}))
    unsigned = Packet(Header(EventId(id.origin, 0, 9), "Quake"), true.view)
    forger = Identity.make(secrets.token_bytes)
    bare = Header(EventId(id.origin, 0, id.seq), "Quake")
    digest = plain_digest(bare, {"magnitude": 1})
    (block,) = signatures_of(forger, [digest])
    forged = Packet(Header(EventId(id.origin, mark_of(digest), id.seq), "Quake"), View({"magnitude": 1}), b"", block)
    for wrong in (altered, unsigned, forged):
        assert delivered(reader, wrong) == []


def test_nobody_can_use_the_id_of_an_event_to_come() -> None:
    """A relay that has no key, and does not verify a signature, still refuses another event under the same id."""
    origin, relay = a_node(), a_node()
    true = published(origin, magnitude=7)
    squatting = msgspec.structs.replace(true, view=View({"magnitude": 8}))
    with pytest.raises(PeerError, match="another event"):
        relay.boundary.is_plain(squatting)


def test_the_same_event_after_a_restart_is_another_one() -> None:
    identity = Identity.make(secrets.token_bytes)
    one, other = (published(a_node(life, identity), magnitude=7).header.id for life in (1, 2))
    assert one != other


def test_a_signed_event_has_an_id_that_no_unsigned_one_has() -> None:
    signed = SignedType.make(Identity.make(secrets.token_bytes), QUAKE, mode=Mode.PLAIN)
    signer = Identity.make(secrets.token_bytes)
    ids = {
        event_id_of(
            "x", split(Sealer(signed, Keyring(signed), 7, signer=signer, signing=way).seal({"magnitude": 1}, 10**12))
        )
        for way in ("none", "batch")
    }
    assert len(ids) == 2


def test_delegates_that_one_publisher_mints_push_out_its_own_and_nobody_elses() -> None:
    owner, hostile, honest = (Identity.make(secrets.token_bytes) for _ in range(3))
    signed = SignedType.make(owner, QUAKE)
    keys = TypeCrypto(signed, Identity.make(secrets.token_bytes), secrets.token_bytes, RevocationState())

    def right(holder: bytes, **more: Any) -> Any:
        return grant(owner, Grant(signed.type_id, frozenset({"publish"}), holder, **more), secrets.token_bytes)

    keys.add_publisher(right(honest.public_key).to_bytes())
    root = right(hostile.public_key, delegate=True, max_depth=1)
    for _ in range(PUBLISHERS_OF_ONE_MAX + 8):
        holder = Identity.make(secrets.token_bytes).public_key
        link = Grant(signed.type_id, frozenset({"publish"}), holder, hostile.public_key)
        keys.add_publisher(root.narrow(link, hostile).to_bytes())
    assert len(keys.publishers) == 1 + PUBLISHERS_OF_ONE_MAX
    assert honest.public_key in keys.publishers


def test_the_owner_of_a_type_can_do_without_signatures_and_nobody_else() -> None:
    owner = Identity.make(secrets.token_bytes)
    without = SignedType.make(owner, QUAKE, signatures=False)
    assert SignedType.from_bytes(without.to_bytes()) == without
    assert not SignedType.from_bytes(without.to_bytes()).signatures
    with pytest.raises(PeerError, match="signature"):  # The flag is under the owner's signature.
        replace(without, signatures=True).verify(0)


def test_a_publisher_that_uses_anothers_sender_id_uses_up_none_of_its_numbers() -> None:
    """Who seals what, and when, is the same for both but the origin; without signatures there is none to go by."""
    signed = SignedType.make(Identity.make(secrets.token_bytes), QUAKE, mode=Mode.PLAIN)
    both = [Identity.make(secrets.token_bytes) for _ in range(2)]
    ways: tuple[tuple[Signing, int], ...] = (("each", 2), ("none", 1))
    for way, count in ways:
        frames = [
            split(Sealer(signed, Keyring(signed), 7, signer=who, signing=way).seal({"magnitude": 1}, 10**12))
            for who in both
        ]
        ids = [event_id_of(node_id_of(who.public_key), frame) for who, frame in zip(both, frames, strict=True)]
        window = ReplayWindow(grace_ms=5000, delay_ms=60_000)
        for id in dict.fromkeys(map(sealed_by, ids)):
            window.check(b"type", id, 10**12, 0, 10**12)
            window.accept(b"type", id, 10**12, 0, 10**12)
        assert len(window) == count
        assert all(0 <= sealed_by(id) < 1 << 63 for id in ids), "it is kept in a database"


def test_an_event_that_comes_straight_is_delivered_once_and_to_who_was_there() -> None:
    origin, reader = a_node(), a_node()
    me, raws = origin.me.id, [encode_stored(published(origin, magnitude=n)) for n in (7, 8)]
    now = 5.0
    assert told(reader.receive_direct(me, raws[0], now, now)) == [7]
    assert told(reader.receive_direct(me, raws[0], now, now)) == [], "it has come already"
    flood = reader.encode(Flood(decode_stored(raws[0]), 3))
    assert told(reader.receive("somebody", flood, now)) == [], "by whatever way"
    reader.attach("late", origin.identity.public_key, [], 4.0)
    reader.subscribe("late", "Quake", "magnitude > 7", 4.0)
    assert told(reader.receive_direct(me, raws[1], 3.0, now)) == [8], "published before the second subscription"
    for wrong in (b"", b"\xc1", raws[0][:-3]):
        assert told(reader.receive_direct(me, wrong, now, now)) == []
    assert told(reader.receive_direct("another", encode_stored(published(origin, magnitude=9)), now, now)) == []


def told(effects: list[Any]) -> list[int]:
    return [each.values["magnitude"] for each in effects if isinstance(each, Delivery)]


@pytest.mark.live
@pytest.mark.slow
@pytest.mark.parametrize("layout", [READER, PLAIN], ids=["sealed", "plain"])
def test_a_reader_that_publishes_in_anothers_name_is_believed_by_nobody(layout: DevNetwork, tmp_path: Any) -> None:
    """The yard has every key and no right to publish. It seals under the police's sender id, and signs or does not."""

    async def scenario(network: Any, camera: Client, heard: Subscription) -> None:
        await arrives(camera, heard, 3)
        liar = network.liar
        known = liar.node.types.get(network.type_name)
        police = network.id_of("police-1")
        for packet in _forgeries(liar, known, police, network):
            await network.say("ccs-1", OverlayMessages((liar.node.encode(Flood(packet)),)))

    with_liar(tmp_path, scenario, layout)


def _forgeries(liar: Any, known: Any, victim: str, network: Any) -> list[Packet]:
    values = known.event_type.check(FORGED)
    if known.keys is None:
        header = Header(EventId(victim, 0, 1 << 50), known.name)
        digest = plain_digest(header, values)
        (block,) = signatures_of(liar.identity, [digest])
        marked = Header(EventId(victim, mark_of(digest), 1 << 50), known.name)
        return [Packet(header, View(values)), Packet(marked, View(values), b"", block)]
    sender = split(next(iter(network.overheard().values())).envelope).sender_id
    made: list[Packet] = []
    for way in ("none", "each"):
        sealer = Sealer(known.signed, known.keys.keyring, sender, signer=liar.identity, signing=way)
        frame = split(sealer.seal(values, liar.node.now_ms(asyncio.get_running_loop().time()) + 1))
        made += [
            Packet(Header(event_id_of(origin, frame), known.name), View({}, opaque=True), frame.raw)
            for origin in (victim, liar.me.id)
        ]
    return made
