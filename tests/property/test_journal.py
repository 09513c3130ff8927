"""The journal's groups: what is written together is what would have been, written one by one."""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import example, given
from hypothesis import strategies as st

from tidings.delivery.outbox import PendingEvent
from tidings.net.broker.journal import DurableSubscription, Journal
from tidings.overlay import EventId

TABLES = ("events", "owed", "streams", "heard", "wants", "durables", "queue", "dead", "meta")
CHANGES = (
    "made", "queued", "acknowledged", "forgotten", "dead", "taken out",
    "published", "owed", "confirmed", "heard", "wanted", "meta",
)  # fmt: skip
NAMES = ("a", "b")


class Change(NamedTuple):
    """One thing that is noted, for a subscription or a broker of this name."""

    what: str
    name: str
    number: int


class Broker:
    """Uses a journal as a broker does: only what is there is changed, and what was forgotten may be made again."""

    def __init__(self, file: Path) -> None:
        self.journal = Journal(file)
        self.durables: dict[str, DurableSubscription] = {}
        self.next_number = dict.fromkeys(NAMES, 1)

    def do(self, change: Change) -> None:
        what, name, number = change
        if what in ("made", "published", "owed", "confirmed", "heard", "wanted", "meta"):
            getattr(self, "_" + what)(name, number)
        elif name in self.durables:
            getattr(self, "_" + what.replace(" ", "_"))(self.durables[name], number)

    def _made(self, name: str, number: int) -> None:
        made = self.durables.setdefault(name, DurableSubscription(name, b"me", name, "T", "TRUE", number, b""))
        self.journal.note_durable(made)  # Again: under other rights.

    def _queued(self, durable: DurableSubscription, number: int) -> None:
        self.journal.note_queued(durable, bytes([number]))

    def _acknowledged(self, durable: DurableSubscription, number: int) -> None:
        self.journal.note_acknowledged(durable, number)

    def _forgotten(self, durable: DurableSubscription, number: int) -> None:
        self.journal.note_forgotten(self.durables.pop(durable.id))

    def _dead(self, durable: DurableSubscription, number: int) -> None:
        self.journal.note_dead(durable, number, "event", "T", "why", b"")

    def _taken_out(self, durable: DurableSubscription, number: int) -> None:
        if number < durable.next_position:
            self.journal.note_taken_out(durable, number)

    def _published(self, name: str, number: int) -> None:
        self.journal.note_event(EventId("me", 0, self.journal.next_event), "T", number, b"key", b"raw")

    def _owed(self, name: str, number: int) -> None:
        pending = PendingEvent(self.next_number[name], number, EventId("me", 0, number), "")
        self.next_number[name] += 1
        self.journal.note_pending(name, pending)
        self.journal.note_stream(name, self.next_number[name], 1)

    def _confirmed(self, name: str, number: int) -> None:
        self.journal.note_acked(name, min(number, self.next_number[name]))

    def _heard(self, name: str, number: int) -> None:
        self.journal.note_received(name, b"journal", number)

    def _wanted(self, name: str, number: int) -> None:
        self.journal.note_interest(name, number, b"body")

    def _meta(self, name: str, number: int) -> None:
        self.journal.note_meta(name, bytes([number]))


async def left_on_disk(file: Path, groups: list[list[Change]]) -> dict[str, list[Any]]:
    """All tables after these groups of changes, but for what each journal has of its own."""
    broker = Broker(file)
    for group in groups:
        for change in group:
            broker.do(change)
        await broker.journal.committed()
    broker.journal.close()
    disk = sqlite3.connect(file)
    left = {table: sorted(disk.execute(f"SELECT * FROM {table}"), key=repr) for table in TABLES}
    left["meta"] = [row for row in left["meta"] if row[0] != "id"]
    disk.close()
    return left


LIFE = ("made", "queued", "acknowledged", "forgotten")  # Of a subscription: where the order of changes matters most.
a_change = st.builds(
    Change, st.sampled_from(LIFE) | st.sampled_from(CHANGES), st.sampled_from(NAMES), st.integers(1, 6)
)


@example([[Change("made", "a", 1), Change("forgotten", "a", 1), Change("made", "a", 2), Change("queued", "a", 1)]])
@given(st.lists(st.lists(a_change, max_size=12), max_size=4))
def test_a_group_leaves_what_its_changes_one_by_one_would_have_left(groups: list[list[Change]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        together = asyncio.run(left_on_disk(Path(folder) / "together", groups))
        singly = asyncio.run(left_on_disk(Path(folder) / "singly", [[each] for group in groups for each in group]))
    assert together == singly
