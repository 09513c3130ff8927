"""A broker's own rights to a sealed type: the keys they open one by one, and what the overlay is told by which of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from tests.unit.node.pair import FEDERATION, PLATES, Cable, a_node, attach, membership, two
from tidings.errors import Denied
from tidings.events import Value
from tidings.node import Delivery, Ended, Joined, Node, NodeEffect, NotJoined
from tidings.node.filter_encoding import UNREAD
from tidings.overlay import Effect, Interest, Send, SubscriptionId, View
from tidings.overlay.baselines.flooding import Flooding
from tidings.security import BiscuitCapability, NotYet
from tidings.sim import START_MS

SEEN: dict[str, Value] = {"plate": "A", "place": "Soho", "speed": 31}


class Recorded(Flooding):
    """Flooding that remembers what it was told of interests."""

    def __init__(self) -> None:
        super().__init__([])
        self.told: list[Interest] = []

    def subscribe(self, interest: Interest, now: float) -> list[Effect]:
        self.told.append(interest)
        return super().subscribe(interest, now)


def with_two_rights() -> tuple[Node, Recorded, Callable[[str], Interest], list[BiscuitCapability]]:
    """A broker with keys by two rights, to plates and places and to speeds; what its overlay was last told."""
    router = Recorded()
    node = a_node("alone", router=router)
    node.declare(PLATES, 0.0)
    node.hold(membership(node).to_bytes(), 0.0)
    node.host(FEDERATION.key_manager(PLATES), 0.0)
    own = [FEDERATION.right(PLATES, node.identity, names) for names in (("plate", "place"), ("speed",))]
    effects = [effect for token in own for effect in node.hold(token.to_bytes(), 0.0)]
    assert any(isinstance(effect, Joined) for effect in effects)
    attach(Cable(node, node), node, "reader")

    def ask(condition: str) -> Interest:
        node.subscribe("reader", "Sighting", condition, 0.0)
        return router.told[-1]

    return node, router, ask, own


def test_the_overlay_is_advertised_under_one_right_and_of_what_that_is_for() -> None:
    """What crosses the wire is as it was; others hear of less and send more, and here it is matched exactly."""
    node, _, ask, own = with_two_rights()
    read = node.boundary.open_interest(ask("plate = 'A' AND place = 'Soho' AND speed > 3"), START_MS).wanted
    assert not read.exact
    assert [read.matches(View({**SEEN, **other})) for other in ({}, {"speed": 1}, {"plate": "B"})] == [
        True,
        True,
        False,
    ]
    assert node.boundary.open_interest(ask("speed > 3"), START_MS).wanted.exact
    assert node.boundary.open_interest(ask("plate = 'A' OR speed > 3"), START_MS).wanted == UNREAD
    by = [one.advertised_under.raw if one.advertised_under else b"" for one in node.subscriptions()]
    assert by == [token.to_bytes() for token in (own[0], own[1], own[0])]


def test_what_was_advertised_under_a_right_that_is_over_is_advertised_under_another() -> None:
    node, router, ask, own = with_two_rights()
    spare = FEDERATION.right(PLATES, node.identity, ("plate",), until_ms=START_MS + 60_000)
    node.hold(spare.to_bytes(), 0.0)
    first, gone = ask("plate = 'A'"), ask("plate = 'A' AND place = 'Soho'")
    kept = ask("speed > 3")
    router.told.clear()
    effects = node.withdraw(own[0].revocation_ids, 1.0)
    assert [effect.subscription for effect in effects if isinstance(effect, Ended)] == [gone.id]
    assert [interest.id for interest in router.told] == [first.id]
    assert node.boundary.open_interest(router.told[-1], START_MS + 1000).wanted.exact
    assert {one.id for one in node.subscriptions()} == {first.id, kept.id}


def test_across_a_link_two_rights_of_a_broker_serve_one_condition() -> None:
    cable = two(None, ("plate",))
    other = cable.other
    cable.carry(other, other.hold(FEDERATION.right(PLATES, other.identity, ("speed",)).to_bytes(), 0.0))
    attach(cable, cable.one, "camera")
    attach(cable, other, "reader")
    id, effects = other.subscribe("reader", "Sighting", "plate = 'A' AND speed > 3", 0.0)
    cable.carry(other, effects)
    shown = []
    for values in (SEEN, {**SEEN, "speed": 1}, {**SEEN, "plate": "B"}):
        _, effects = cable.one.publish("camera", "Sighting", values, 0.0)
        shown += [(e.subscription, e.values) for e in cable.carry(cable.one, effects) if isinstance(e, Delivery)]
    expected: list[tuple[SubscriptionId, dict[str, Value]]] = [(id, {"plate": "A", "speed": 31})]
    assert shown == expected


def asked_in(cable: Cable, *tokens: BiscuitCapability) -> list[bytes]:
    """What the manager's broker answers to one that asks for keys by these rights, to be heard one by one."""
    one, other = cable.one, cable.other
    asked = [effect for token in tokens for effect in other.hold(token.to_bytes(), 0.0)]
    frames = [other.frame_for(effect.to, effect.message, 0.0) for effect in asked if isinstance(effect, Send)]
    answers = [effect for raw in frames for effect in one.receive(other.me.id, raw, 0.0)]
    return [one.frame_for(effect.to, effect.message, 0.0) for effect in answers if isinstance(effect, Send)]


def heard(cable: Cable, answers: Iterable[bytes]) -> list[NodeEffect]:
    return [effect for raw in answers for effect in cable.other.receive(cable.one.me.id, raw, 0.0)]


def test_a_broker_serves_nobody_until_each_of_its_rights_is_answered() -> None:
    """With half of its keys it would show clients less than they may see, and nothing would bring that back."""
    cable = two(None, ())
    other = cable.other
    attach(cable, other, "reader")
    answers = asked_in(cable, *(FEDERATION.right(PLATES, other.identity, (name,)) for name in ("plate", "speed")))
    joined = 0
    for raw in answers:
        with pytest.raises(NotYet, match="key: "):
            other.subscribe("reader", "Sighting", "plate = 'A'", 0.0)
        joined = sum(isinstance(effect, Joined) for effect in heard(cable, [raw]))
        if joined:
            break
    assert joined == 1
    assert len(other.types[PLATES.type_id.hex()].keys.members) == 2  # type: ignore[union-attr]
    other.subscribe("reader", "Sighting", "plate = 'A' AND speed > 3", 0.0)


def test_a_broker_serves_by_one_right_when_the_other_is_refused() -> None:
    cable = two(None, ())
    other = cable.other
    attach(cable, other, "reader")
    good, bad = (FEDERATION.right(PLATES, other.identity, (name,)) for name in ("plate", "speed"))
    cable.one.revoke(bad.revocation_ids, 0.0)
    effects = heard(cable, asked_in(cable, good, bad))
    assert [type(effect) for effect in effects if isinstance(effect, (Joined, NotJoined))][-2:] == [NotJoined, Joined]
    other.subscribe("reader", "Sighting", "plate = 'A'", 0.0)
    with pytest.raises(Denied, match="group: this broker is not in the key groups of speed"):
        other.subscribe("reader", "Sighting", "plate = 'A' AND speed > 3", 0.0)
