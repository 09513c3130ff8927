"""Many subscriptions of one broker, gathered into few for the overlay."""

from __future__ import annotations

from typing import Any

from tidings.net.broker.gathering import Gathering
from tidings.overlay import (
    Completed,
    Deliver,
    Effect,
    Everything,
    Interest,
    NodeId,
    Packet,
    Peer,
    Ranges,
    Router,
    SubscriptionId,
)


class Book(Router[Any]):
    """A router that only keeps book of what it is told."""

    def __init__(self) -> None:
        self.told: dict[SubscriptionId, Interest] = {}

    def publish(self, packet: Packet, now: float) -> list[Effect]:
        return [Deliver(packet)]

    def receive(self, sender: NodeId, message: Any, now: float) -> list[Effect]:
        return []

    def subscribe(self, interest: Interest, now: float) -> list[Effect]:
        self.told[interest.id] = interest
        return super().subscribe(interest, now)

    def unsubscribe(self, id: SubscriptionId, now: float) -> list[Effect]:
        del self.told[id]
        return super().unsubscribe(id, now)


def interest(number: int, envelope: bytes = b"") -> Interest:
    return Interest(SubscriptionId("me", 0, number), "T", Ranges.of(x=(number, number)), envelope)


def test_few_interests_are_told_one_by_one() -> None:
    book = Book()
    router = Gathering(book, Peer("me"), apart_max=3)
    assert router.subscribe(interest(1), 0.0) == [Completed("subscribe", interest(1).id)]
    assert list(book.told) == [interest(1).id]


def test_more_than_a_few_become_one_and_the_node_hears_of_its_own_only() -> None:
    book = Book()
    router = Gathering(book, Peer("me"), apart_max=3)
    said = [effect for number in range(1, 8) for effect in router.subscribe(interest(number), 0.0)]
    assert said == [Completed("subscribe", interest(number).id) for number in range(1, 8)]
    assert [each.wanted for each in book.told.values()] == [Everything()]


def test_the_last_one_taken_back_takes_the_gathered_one_along() -> None:
    book = Book()
    router = Gathering(book, Peer("me"), apart_max=1)
    for number in (1, 2, 3):
        router.subscribe(interest(number), 0.0)
    for number in (3, 1, 2):
        assert router.unsubscribe(interest(number).id, 0.0) == [Completed("unsubscribe", interest(number).id)]
    assert book.told == {}


def test_sealed_interests_are_left_as_they_are() -> None:
    book = Book()
    router = Gathering(book, Peer("me"), apart_max=1)
    for number in range(1, 6):
        router.subscribe(interest(number, b"sealed"), 0.0)
    assert len(book.told) == 5
