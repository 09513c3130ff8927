"""Nobody keeps a broker from its other work: what a link brings is taken in turns, and proofs are checked in order of use."""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.node.pair import FEDERATION, Cable, a_node, membership
from tidings.delivery.messages import InterestAdvertisement
from tidings.errors import Denied
from tidings.net import Broker
from tidings.net.broker import broker as brokers
from tidings.node import memberships_first
from tidings.node.credentials import MemberProof
from tidings.node.neighbours import MEMBERSHIPS_MAX, PROOFS_MAX, LinkMembers
from tidings.overlay.prefix.messages import Heartbeat
from tidings.security import Identity

COST_S = 0.03  # Of one message: two of them take longer than a turn.


def made_up(count: int) -> list[Identity]:
    return [Identity(Random(number).randbytes(32)) for number in range(count)]


def test_messages_that_take_long_are_taken_a_few_at_a_time() -> None:
    taken: list[int] = []

    async def scenario() -> None:
        clock = 0.0

        def receive_many(frames: list[Any], now: float) -> list[Any]:
            nonlocal clock
            clock += COST_S * len(frames)
            return frames

        link = SimpleNamespace(proven=SimpleNamespace(id="liar"))
        broker: Any = SimpleNamespace(
            _loop=SimpleNamespace(time=lambda: clock),
            node=SimpleNamespace(receive_many=receive_many, introduced=list),
            links=SimpleNamespace(open={"liar": link}, learn=list),
            meters=SimpleNamespace(route=SimpleNamespace(observe=lambda seconds, count: None)),
            carry_out=lambda effects: taken.append(len(effects)),
        )
        await Broker._route(broker, link, [b""] * 7)  # type: ignore[arg-type]

    asyncio.run(scenario())
    assert sum(taken) == 7
    assert max(taken) == 2


def test_of_an_advertisement_without_a_membership_nothing_else_is_verified() -> None:
    node, (stranger,) = a_node("one"), made_up(1)
    rights = tuple((bytes(32), bytes([number])) for number in range(200))
    forged = tuple((b"", bytes([number]) * 9) for number in range(200))
    asked: Counter[bytes] = Counter()
    verify = node.neighbours.verify

    def counted(type_id: bytes, token: bytes) -> Any:
        asked[type_id] += 1
        return verify(type_id, token)

    node.neighbours.verify = counted  # type: ignore[method-assign]
    with pytest.raises(Denied, match="member"):
        node.admit_debtor(stranger.public_key, (*rights, *forged), 0.0)
    assert asked == {b"": MEMBERSHIPS_MAX}
    asked.clear()

    async def ahead(shown: tuple[tuple[bytes, bytes], ...]) -> None:
        broker: Any = SimpleNamespace(node=node)
        await Broker._verify_ahead(broker, InterestAdvertisement(b"", stranger.public_key, b"", shown))

    asyncio.run(ahead((*rights, *forged)))
    assert asked == {b"": MEMBERSHIPS_MAX}
    assert brokers.RIGHTS_AT_ONCE <= MEMBERSHIPS_MAX


def test_the_newest_membership_counts_however_many_were_shown_before() -> None:
    node, other = a_node("one"), a_node("other")
    token = membership(other).to_bytes()
    shown = (*((b"", bytes([number]) * 9) for number in range(100)), (b"", token))
    assert memberships_first(shown)[-1] == (b"", token)
    assert node.admit_debtor(other.identity.public_key, shown, 0.0) == FEDERATION.identity("police").public_key


def test_of_a_message_with_a_thousand_proofs_only_some_are_looked_at() -> None:
    one, other = (a_node(name, protocol_name="irbr") for name in ("one", "other"))
    for node in (one, other):
        node.hold(membership(node).to_bytes(), 0.0)
    Cable(one, other).up()
    before = len(one.neighbours.members)
    members = made_up(PROOFS_MAX + 20)
    proofs = tuple(MemberProof(each.public_key, FEDERATION.membership("yard", each).to_bytes()) for each in members)
    inner = other.encode(Heartbeat(other.me, ()))
    one.receive(other.me.id, other.encode(LinkMembers(proofs, inner)), 1.0)
    assert len(one.neighbours.members) - before == PROOFS_MAX
