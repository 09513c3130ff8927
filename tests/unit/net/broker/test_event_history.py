"""The events of the past that a subscription should have had."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tidings.delivery import DurableInterest
from tidings.errors import InputError
from tidings.events import EventType
from tidings.net.broker.journal import LEFT_MAX, RECENT_MAX, EventHistory, Journal, JournaledEvent
from tidings.node.outbound import encode_stored
from tidings.overlay import EventId, Header, Packet, View

QUAKE = EventType("Quake", magnitude=int)


def with_events(folder: Path, count: int, act: Callable[[EventHistory, Callable[[], None]], Awaitable[None]]) -> None:
    """A history with so many events, of magnitudes 0 to 9, and a function that publishes one more."""

    async def run() -> None:
        journal = Journal(folder / "journal.db")
        history = EventHistory(journal, lambda name: QUAKE if name == "Quake" else None, lambda raw: [])

        def publish() -> None:
            number = journal.next_event
            id = EventId("me", 0, number)
            raw = encode_stored(Packet(Header(id, "Quake"), View({"magnitude": number % 10})))
            position = journal.note_event(id, "Quake", number, b"%d" % number, raw)
            history.add(JournaledEvent(position, id, "Quake", number, raw))

        for _ in range(count):
            publish()
        await journal.committed()
        await act(history, publish)
        journal.close()

    asyncio.run(run())


@pytest.mark.parametrize("count", [0, 5, LEFT_MAX + 10, 1500, RECENT_MAX + 1500])
def test_every_subscription_gets_what_matches_it_once_and_in_order(count: int, tmp_path: Path) -> None:
    async def act(history: EventHistory, publish: Callable[[], None]) -> None:
        wants = [DurableInterest("all", "Quake", "", 0), DurableInterest("some", "Quake", "magnitude > 7", 3)]
        reading = asyncio.create_task(history.read(wants, skew_us=0))
        for _ in range(20):  # Others publish meanwhile.
            await asyncio.sleep(0)
            publish()
        backlogs = await reading
        publish()
        found = [[event.event.seq for event in history.complete(each)] for each in backlogs]
        numbers = range(1, count + 22)
        assert found == [list(numbers), [n for n in numbers if n % 10 > 7 and n >= 3]]

    with_events(tmp_path, count, act)


def test_who_asks_for_more_of_the_past_than_there_is_room_for_gets_nothing_of_it(tmp_path: Path) -> None:
    async def act(history: EventHistory, publish: Callable[[], None]) -> None:
        wants = [DurableInterest(f"{n}", "Quake", "", 0) for n in range(10)]
        with pytest.raises(InputError, match="more than 1000"):
            await history.read(wants, at_most=1000)
        (backlog,) = await history.read(wants[:1], at_most=1000)
        found = history.complete(backlog)
        assert len(found) == 200
        assert {event.raw for event in found} == {b""}

    with_events(tmp_path, 200, act)
