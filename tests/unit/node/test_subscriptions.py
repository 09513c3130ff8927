"""Many subscriptions of one type: advertised as one summary, which costs no event; of a sealed type it is sealed, too."""

from __future__ import annotations

import pytest

from tests.given import Quake
from tests.unit.node.pair import FEDERATION, PLATES, Cable, a_node, attach, membership
from tidings.errors import Denied
from tidings.node import Delivery, Ended, Joined, Node, NodeEffect, NodePolicy
from tidings.node.filter_encoding import UNREAD
from tidings.node.subscriptions import InterestSummary
from tidings.overlay import Completed, Effect, Everything, Failed, Interest, SubscriptionId, WakeAt
from tidings.overlay.baselines.flooding import Flooding
from tidings.sim import START_MS

INTERESTS_MAX = 2
SEEN = {"plate": "AB12CDE", "place": "Soho", "speed": 31}


class Recorded(Flooding):
    """Flooding that records interests; while `is_slow` it confirms one only when it is woken."""

    def __init__(self) -> None:
        super().__init__([])
        self.advertised: list[Interest] = []
        self.withdrawn: list[SubscriptionId] = []
        self.is_slow = self.refuses = False

    @property
    def standing(self) -> list[Interest]:
        """What is advertised and not withdrawn."""
        return [interest for interest in self.advertised if interest.id not in self.withdrawn]

    def subscribe(self, interest: Interest, now: float) -> list[Effect]:
        self.advertised.append(interest)
        if self.refuses:
            return [Failed("subscribe", "no place for it", interest.id)]
        return [] if self.is_slow else super().subscribe(interest, now)

    def unsubscribe(self, id: SubscriptionId, now: float) -> list[Effect]:
        self.withdrawn.append(id)
        return super().unsubscribe(id, now)

    def wake(self, token: object, now: float) -> list[Effect]:
        return [Completed("subscribe", self.advertised[-1].id)]


def alone(interests_max: int | None = INTERESTS_MAX) -> tuple[Node, Recorded]:
    """A broker with keys and a client, whose overlay can be looked into."""
    router = Recorded()
    policy = NodePolicy(network_key=FEDERATION.network.public_key, interests_max=interests_max)
    node = a_node("alone", router=router, policy=policy)
    node.declare(PLATES, 0.0)
    node.hold(membership(node).to_bytes(), 0.0)
    node.host(FEDERATION.key_manager(PLATES), 0.0)
    effects = node.hold(FEDERATION.right(PLATES, node.identity).to_bytes(), 0.0)
    assert any(isinstance(effect, Joined) for effect in effects)
    attach(Cable(node, node), node, "reader")
    router.advertised.clear()
    return node, router


def summary_of(node: Node) -> InterestSummary:
    summary = node.summary(PLATES.type_id.hex())
    assert summary is not None
    return summary


def subscribe(node: Node, count: int, *, now: float = 0.0) -> list[SubscriptionId]:
    return [node.subscribe("reader", "Sighting", f"speed > {n}", now)[0] for n in range(count)]


def test_beyond_the_limit_one_sealed_interest_stands_for_all() -> None:
    node, router = alone()
    ids = subscribe(node, 6)
    assert [interest.id for interest in router.advertised[:INTERESTS_MAX]] == ids[:INTERESTS_MAX]
    (summary,) = router.advertised[INTERESTS_MAX:]
    assert summary.id not in ids
    assert summary.envelope
    assert node.boundary.open_interest(summary, START_MS).wanted == UNREAD
    assert router.withdrawn == ids[:INTERESTS_MAX]


def test_every_subscription_gets_its_events_whether_or_not_it_is_summarised() -> None:
    node, _ = alone()
    ids = subscribe(node, 6)
    _, effects = node.publish("reader", "Sighting", {**SEEN, "speed": 3}, 0.0)
    assert [effect.subscription for effect in effects if isinstance(effect, Delivery)] == ids[:3]


def test_a_summarised_subscription_is_in_place_when_the_summary_is() -> None:
    node, router = alone()
    subscribe(node, INTERESTS_MAX)
    router.is_slow = True
    first, effects = node.subscribe("reader", "Sighting", "speed > 7", 0.0)
    second, later = node.subscribe("reader", "Sighting", "speed > 8", 0.0)
    assert effects == later == []
    assert router.withdrawn == []
    known = node.wake("confirm", 1.0)
    assert known[:2] == [Completed("subscribe", first), Completed("subscribe", second)]
    _, third = node.subscribe("reader", "Sighting", "speed > 9", 2.0)
    assert len(third) == 1


def test_the_summary_is_withdrawn_with_the_last_subscription() -> None:
    node, router = alone()
    ids = subscribe(node, 5)
    summary = router.advertised[-1].id
    for id in ids[:-1]:
        assert Completed("unsubscribe", id) in node.unsubscribe(id, 1.0)
    assert summary not in router.withdrawn
    node.unsubscribe(ids[-1], 1.0)
    assert summary in router.withdrawn
    subscribe(node, 1)
    assert len(router.advertised) == INTERESTS_MAX + 2


def test_new_keys_have_one_interest_sealed_again_and_not_thousands() -> None:
    node, router = alone()
    subscribe(node, 50)
    before = router.advertised[-1]
    router.advertised.clear()
    node.renew(PLATES.type_id.hex(), 1.0)
    (again,) = router.advertised
    assert again.id == before.id
    assert again.envelope != before.envelope


def test_the_summary_moves_to_another_right_when_its_own_is_revoked() -> None:
    node, router = alone()
    short = FEDERATION.right(PLATES, node.identity, ["speed"], until_ms=START_MS + 60_000)
    node.hold(short.to_bytes(), 0.0)
    subscribe(node, 5)
    longest = summary_of(node).held
    assert longest is not None
    assert longest.raw != short.to_bytes()
    router.advertised.clear()
    effects = node.revoke(longest.token.revocation_ids, 1.0)
    assert not any(isinstance(effect, Ended) for effect in effects)
    assert {interest.id for interest in router.advertised} == {summary_of(node).id}
    moved = summary_of(node).held
    assert moved is not None
    assert moved.raw == short.to_bytes()


def test_what_may_not_be_read_is_refused_beyond_the_limit_too() -> None:
    node, _ = alone()
    subscribe(node, 5)
    attach(Cable(node, node), node, "stranger", ["plate"])
    with pytest.raises(Denied):
        node.subscribe("stranger", "Sighting", "speed > 3", 0.0)
    assert len(node.subscriptions()) == 5


def test_without_a_limit_each_subscription_is_advertised_by_itself() -> None:
    node, router = alone(interests_max=None)
    ids = subscribe(node, 6)
    assert [interest.id for interest in router.advertised] == ids


# ── Types that are not sealed ──


def open_broker(interests_max: int) -> tuple[Node, Recorded]:
    router = Recorded()
    node = a_node("alone", router=router, policy=NodePolicy(open_links=True, interests_max=interests_max))
    node.declare(Quake, 0.0)
    return node, router


def quakes(node: Node, count: int) -> list[tuple[SubscriptionId, list[NodeEffect]]]:
    return [node.subscribe("museum", "Quake", f"magnitude > {n}", 0.0) for n in range(count)]


def test_few_interests_are_advertised_one_by_one() -> None:
    node, router = open_broker(3)
    ((id, effects),) = quakes(node, 1)
    assert effects == [Completed("subscribe", id)]
    assert [interest.id for interest in router.standing] == [id]


def test_more_than_a_few_become_one_and_the_driver_hears_of_its_own_only() -> None:
    node, router = open_broker(3)
    made = quakes(node, 7)
    assert [effect for _, effects in made for effect in effects] == [Completed("subscribe", id) for id, _ in made]
    assert [interest.wanted for interest in router.standing] == [Everything()]


def test_the_last_one_withdrawn_takes_the_summary_along() -> None:
    node, router = open_broker(1)
    first, second, third = (id for id, _ in quakes(node, 3))
    for id in (third, first, second):
        assert node.unsubscribe(id, 1.0) == [Completed("unsubscribe", id)]
    assert router.standing == []


def test_a_subscription_withdrawn_before_the_summary_is_in_place_leaves_nothing_behind() -> None:
    node, router = open_broker(1)
    ((first, _),) = quakes(node, 1)
    router.is_slow = True
    second, _ = node.subscribe("museum", "Quake", "magnitude > 7", 0.0)
    node.unsubscribe(first, 1.0)
    assert node.wake("confirm", 2.0) == [Completed("subscribe", second)]
    assert [interest.wanted for interest in router.standing] == [Everything()]


def test_a_summary_that_the_overlay_refuses_is_advertised_again() -> None:
    node, router = open_broker(1)
    quakes(node, 1)
    router.refuses = True
    _, effects = node.subscribe("museum", "Quake", "magnitude > 7", 0.0)
    (later,) = [effect for effect in effects if isinstance(effect, WakeAt)]
    router.refuses = False
    assert Completed("subscribe", node.subscriptions()[1].id) in node.wake(later.token, later.when)
