"""Introductions: who is at the other end, what it may see, and what ends a link."""

from __future__ import annotations

import msgspec
import pytest

from tests.given import Quake
from tests.unit.node.pair import FEDERATION, PLATES, Cable, a_node, membership, two
from tidings.errors import Denied
from tidings.node import LinkReady, Node, NodeEffect, NodePolicy, Rejected, node_id_of
from tidings.node.neighbours import LinkCreds, LinkHello, LinkRevoke
from tidings.overlay import EventId, Peer, Send
from tidings.sim import START_MS


def refused(effects: list[NodeEffect]) -> list[tuple[str, bool]]:
    return [(effect.why, effect.cut) for effect in effects if isinstance(effect, Rejected)]


def test_two_members_are_ready_for_each_other() -> None:
    cable = two()
    ready = [effect.neighbour for effect in cable.effects if isinstance(effect, LinkReady)]
    assert sorted(ready) == sorted(cable.nodes)


def test_a_node_without_membership_is_not_let_in_and_gets_no_message() -> None:
    one, stranger = a_node("one", ["stranger"]), a_node("stranger", ["one"])
    one.hold(membership(one).to_bytes(), 0.0)
    cable = Cable(one, stranger)
    cable.up()
    assert ("right: none for the network was shown", True) in [
        (why.partition(" by ")[0], cut) for why, cut in refused(cable.effects)
    ]
    _, sends = publish_open(one)
    with pytest.raises(Denied, match="link:"):
        one.frame_for(stranger.me.id, sends[0].message, 0.0)


def test_what_a_stranger_says_is_not_taken() -> None:
    one, stranger = a_node("one"), a_node("stranger", ["one"], policy=NodePolicy(open_links=True))
    _, effects = publish_open(stranger)
    raw = stranger.frame_for(one.me.id, effects[0].message, 0.0)
    assert refused(one.receive(stranger.me.id, raw, 0.0)) == [
        ("link: a message from a node whose handshake is not complete", True)
    ]


def publish_open(node: Node) -> tuple[EventId, list[Send]]:
    node.declare(Quake, 0.0)
    id, effects = node.publish("anybody", "Quake", {"magnitude": 6.0}, 0.0)
    return id, [effect for effect in effects if isinstance(effect, Send)]


def test_credentials_of_another_session_end_the_link() -> None:
    """The signature covers both nonces: what was shown once cannot be shown again by somebody else."""
    one, other = a_node("one"), a_node("other")
    for node in (one, other):
        node.hold(membership(node).to_bytes(), 0.0)
    cable = Cable(one, other)
    cable.up()
    (creds,) = [raw for to, raw in cable.frames if to == one.me.id and b"LinkCreds" in raw]
    hello = next(raw for to, raw in cable.frames if to == one.me.id and b"LinkHello" in raw)
    one.link_up(other.me, 1.0, my_cert=b"one", their_cert=b"other", dialled=True)
    one.receive(other.me.id, hello, 1.0)
    assert refused(one.receive(other.me.id, creds, 1.0)) == [
        (f"signature: the credentials is not signed by ed25519:{other.identity.public_key.hex()}", True)
    ]


@pytest.mark.parametrize("field", ["my_cert", "their_cert", "dialled"])
def test_credentials_are_tied_to_the_certificates_and_the_ends(field: str) -> None:
    one, other = a_node("one"), a_node("other")
    for node in (one, other):
        node.hold(membership(node).to_bytes(), 0.0)
    cable = Cable(one, other)
    how = {"my_cert": b"one", "their_cert": b"other", "dialled": True}
    how[field] = False if field == "dialled" else b"forged"
    first = one.link_up(other.me, 0.0, **how)  # type: ignore[arg-type]
    second = other.link_up(one.me, 0.0, my_cert=b"other", their_cert=b"one", dialled=False)
    cable.carry_all([(one, each) for each in first] + [(other, each) for each in second])
    assert {cut for _, cut in refused(cable.effects)} == {True}
    assert not any(isinstance(effect, LinkReady) for effect in cable.effects)


def test_a_node_cannot_go_by_the_id_of_another() -> None:
    one, other = a_node("one"), a_node("other")
    one.link_up(Peer("0" * 32), 0.0)
    hello = LinkHello(other.identity.public_key, "", bytes(32), (1,), (1,))
    raw = other.encode(hello)
    assert refused(one.receive("0" * 32, raw, 0.0)) == [(f"link: {'0' * 32} is not the node of that key", True)]
    assert other.me.id == node_id_of(other.identity.public_key)


def test_tokens_that_do_not_count_are_told_and_the_rest_do() -> None:
    one, other = a_node("one"), a_node("other")
    for node in (one, other):
        node.declare(PLATES, 0.0)
        node.hold(membership(node).to_bytes(), 0.0)
    other.hold(FEDERATION.right(PLATES, other.identity, until_ms=START_MS + 1000).to_bytes(), 0.0)
    cable = Cable(one, other)
    cable.up()
    near = one.neighbours
    assert near.readable(other.me.id, PLATES.type_id, START_MS + 999) is None
    assert near.readable(other.me.id, PLATES.type_id, START_MS + 1000) == frozenset()


def test_a_right_shown_in_session_counts_from_then_on_and_one_taken_back_no_more() -> None:
    cable = two()
    one, other = cable.one, cable.other
    assert one.neighbours.readable(other.me.id, PLATES.type_id, START_MS) == frozenset()
    right = FEDERATION.right(PLATES, other.identity, ("plate",))
    cable.carry(other, other.hold(right.to_bytes(), 0.0))
    assert one.neighbours.readable(other.me.id, PLATES.type_id, START_MS) == frozenset({PLATES.attr_id("plate")})
    cable.carry(other, other.withdraw(right.revocation_ids, 0.0))
    assert one.neighbours.readable(other.me.id, PLATES.type_id, START_MS) == frozenset()


def test_a_right_to_an_unknown_type_counts_once_the_type_is_known() -> None:
    one, other = a_node("one"), a_node("other")
    other.declare(PLATES, 0.0)
    for node in (one, other):
        node.hold(membership(node).to_bytes(), 0.0)
    other.hold(FEDERATION.right(PLATES, other.identity).to_bytes(), 0.0)
    Cable(one, other).up()
    assert one.neighbours.readable(other.me.id, PLATES.type_id, START_MS) == frozenset()
    one.declare(PLATES, 0.0)
    assert one.neighbours.readable(other.me.id, PLATES.type_id, START_MS) is None


def test_a_neighbour_whose_membership_is_revoked_is_cut_off() -> None:
    cable = two()
    shown = cable.one.neighbours.get(cable.other.me.id)
    assert shown is not None
    assert shown.credentials is not None
    ids = shown.credentials.all()[0].token.revocation_ids
    effects = cable.one.revoke(ids, 0.0)
    assert (Rejected(cable.other.me.id, "link: the neighbour is no longer a member of the network", True)) in effects
    assert not cable.one.neighbours.is_ready(cable.other.me.id)


def test_nobody_can_take_back_the_right_of_another() -> None:
    cable = two(None, None)
    mine = cable.other.neighbours.mine.of(PLATES.type_id)[0]
    foreign = msgspec.msgpack.encode(LinkRevoke(mine.token.revocation_ids))
    cable.other.receive(cable.one.me.id, foreign, 0.0)
    assert cable.other.neighbours.mine.of(PLATES.type_id) == [mine]


def test_credentials_out_of_turn_end_the_link() -> None:
    cable = two()
    last = [raw for to, raw in cable.frames if to == cable.one.me.id and b"LinkCreds" in raw][-1]
    assert refused(cable.one.receive(cable.other.me.id, last, 0.0)) == [
        ("link: credentials before the hello, out of turn or too many", True)
    ]
    assert LinkCreds.__name__.encode() in last
