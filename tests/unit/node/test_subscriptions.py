"""Many sealed subscriptions: told to the overlay as one, which is sealed and signed like any other, and costs no event."""

from __future__ import annotations

import pytest

from tests.unit.node.pair import FEDERATION, PLATES, Cable, a_node, attach, membership
from tidings.errors import Denied
from tidings.node import Ended, Joined, Node, NodePolicy, Notify
from tidings.node.filter_encoding import UNREAD
from tidings.overlay import Completed, Effect, Interest, SubscriptionId
from tidings.overlay.baselines.flooding import Flooding
from tidings.sim import START_MS

APART_MAX = 2
SEEN = {"plate": "AB12CDE", "place": "Soho", "speed": 31}


class Recorded(Flooding):
    """Flooding that remembers what it was told of interests, and says that one is known when it is asked to."""

    def __init__(self) -> None:
        super().__init__([])
        self.told: list[Interest] = []
        self.taken_back: list[SubscriptionId] = []
        self.is_slow = False

    def subscribe(self, interest: Interest, now: float) -> list[Effect]:
        self.told.append(interest)
        return [] if self.is_slow else super().subscribe(interest, now)

    def unsubscribe(self, id: SubscriptionId, now: float) -> list[Effect]:
        self.taken_back.append(id)
        return super().unsubscribe(id, now)


def alone() -> tuple[Node, Recorded]:
    """A broker with keys and a client, whose overlay can be looked into."""
    router = Recorded()
    policy = NodePolicy(network_key=FEDERATION.network.public_key, apart_max=APART_MAX)
    node = a_node("alone", router=router, policy=policy)
    node.declare(PLATES, 0.0)
    node.hold(membership(node).to_bytes(), 0.0)
    node.host(FEDERATION.key_manager(PLATES), 0.0)
    effects = node.hold(FEDERATION.right(PLATES, node.identity).to_bytes(), 0.0)
    assert any(isinstance(effect, Joined) for effect in effects)
    attach(Cable(node, node), node, "reader")
    router.told.clear()
    return node, router


def subscribe(node: Node, count: int, *, now: float = 0.0) -> list[SubscriptionId]:
    return [node.subscribe("reader", "Sighting", f"speed > {n}", now)[0] for n in range(count)]


def test_beyond_the_limit_one_sealed_interest_stands_for_all() -> None:
    node, router = alone()
    ids = subscribe(node, 6)
    assert [interest.id for interest in router.told[:APART_MAX]] == ids[:APART_MAX]
    (wide,) = router.told[APART_MAX:]
    assert wide.id not in ids
    assert wide.envelope
    assert node._customs.take_interest(wide, START_MS).wanted == UNREAD
    assert router.taken_back == ids[:APART_MAX]


def test_every_subscription_is_told_of_its_events_whether_or_not_it_is_gathered() -> None:
    node, _ = alone()
    ids = subscribe(node, 6)
    _, effects = node.publish("reader", "Sighting", {**SEEN, "speed": 3}, 0.0)
    assert [effect.subscription for effect in effects if isinstance(effect, Notify)] == ids[:3]


def test_a_gathered_subscription_is_in_place_when_the_wide_one_is_known() -> None:
    node, router = alone()
    subscribe(node, APART_MAX)
    router.is_slow = True
    first, effects = node.subscribe("reader", "Sighting", "speed > 7", 0.0)
    second, later = node.subscribe("reader", "Sighting", "speed > 8", 0.0)
    assert effects == later == []
    assert router.taken_back == []
    known = node._done([Completed("subscribe", router.told[-1].id)], 1.0)
    assert known[:2] == [Completed("subscribe", first), Completed("subscribe", second)]
    _, third = node.subscribe("reader", "Sighting", "speed > 9", 2.0)
    assert len(third) == 1


def test_everything_is_wanted_no_more_when_the_last_subscription_is_taken_back() -> None:
    node, router = alone()
    ids = subscribe(node, 5)
    wide = router.told[-1].id
    for id in ids[:-1]:
        assert Completed("unsubscribe", id) in node.unsubscribe(id, 1.0)
    assert wide not in router.taken_back
    node.unsubscribe(ids[-1], 1.0)
    assert wide in router.taken_back
    subscribe(node, 1)
    assert len(router.told) == APART_MAX + 2


def test_new_keys_have_one_interest_sealed_again_and_not_thousands() -> None:
    node, router = alone()
    subscribe(node, 50)
    before = router.told[-1]
    router.told.clear()
    node._renew(PLATES.type_id.hex(), 1.0)
    (again,) = router.told
    assert again.id == before.id
    assert again.envelope != before.envelope


def test_the_wide_interest_moves_to_another_right_when_its_own_is_revoked() -> None:
    node, router = alone()
    short = FEDERATION.right(PLATES, node.identity, ["speed"], until_ms=START_MS + 60_000)
    node.hold(short.to_bytes(), 0.0)
    subscribe(node, 5)
    longest = node._wants._wide[PLATES.type_id.hex()].held
    assert longest.raw != short.to_bytes()
    router.told.clear()
    effects = node.revoke(longest.token.revocation_ids, 1.0)
    assert not any(isinstance(effect, Ended) for effect in effects)
    assert {interest.id for interest in router.told} == {node._wants._wide[PLATES.type_id.hex()].id}
    assert node._wants._wide[PLATES.type_id.hex()].held.raw == short.to_bytes()


def test_what_may_not_be_read_is_refused_beyond_the_limit_too() -> None:
    node, _ = alone()
    subscribe(node, 5)
    attach(Cable(node, node), node, "stranger", ["plate"])
    with pytest.raises(Denied):
        node.subscribe("stranger", "Sighting", "speed > 3", 0.0)
    assert len(node.subscriptions()) == 5


def test_without_a_limit_each_is_told_by_itself() -> None:
    node, router = alone()
    node._wants._apart_max = None
    ids = subscribe(node, 6)
    assert [interest.id for interest in router.told] == ids
