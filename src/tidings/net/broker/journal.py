"""The journal: everything a broker must not forget, in one database, written in groups.

    events     published here: kept for brokers and subscribers that missed them, until retention deletes them
    batches    likewise, of events that were published together: one row for as many positions as it has events
    owed       the outbox: which of them each broker needs, with their numbers; kept as long as the events are
    streams    the outbox: the next number of the stream to each broker, and the last acknowledgement
    heard      the inbox: the next number of the stream from each origin
    wants      the interest advertisements of other brokers
    durables   the durable subscriptions of this broker's own clients, and how far each has acknowledged
    queue      the events that wait for them
    dead       dead letters: events that could not be delivered, and why

The table names are older than the words that the code uses, and stay: they are the file format.

Changes are noted at once and written together: `note_…` methods return immediately, and
`committed()` waits until everything noted before it is on disk (fsync), with one transaction for all
waiting callers. While the disk refuses, say because it is full, or the database is away, the journal tries the same
group again and acknowledges nothing: callers go on waiting, and `stuck_why` lets the broker refuse new events instead.

The database is a file or on a server: see `net.journal_storage`. Where another process has taken the journal over
(`lost`), nothing is written or acknowledged any more.

`EventHistory` reads the kept events from a moment in the past up to now, without a gap.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import secrets
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

import msgspec

from tidings.delivery import DurableInterest, LogAncestor, LogCursor, PendingEvent, TypeNamed, matcher
from tidings.errors import InputError, SetupError
from tidings.events import Value
from tidings.net.journal_storage.interface import JournalStorage, JournalTables, LeaseLost, Statements, first_line
from tidings.net.journal_storage.sqlite import SqliteStorage, advice
from tidings.node import BatchIds, stored_values
from tidings.overlay import EventId

SCHEMA_VERSION = 1
# From the start of a group of several events to the next: more are on their way, and what follows a commit travels
# together. A commit that takes as long gathers enough by itself, and there is no pause.
GATHER_S = 0.003
GROUP_LARGE = 256  # Events that are worth a commit of their own, without a pause.
ROWS_AT_ONCE = 64  # In one statement.
LATE_S = 0.1  # How long what no caller waits for may stay unwritten: acknowledgements, what live subscribers were sent.
RETRY_S = 0.5  # Between two tries to write a group that the disk has refused.
READ_BATCHES = 16  # At a time, of a few hundred kilobytes each.
READ_ROWS = 1024  # At a time: a queue of a million rows is read in parts.
REPEATS_MAX = 131_072  # Idempotency keys that are remembered: a retry that comes later than this counts as new.
SEALS_KEPT_MAX = 1_000_000  # Sealed events that are recognised when they come again: some 80 MB.
SEEN_MAX = 65_536  # Senders whose newest event is remembered.
LEFT_MAX = 64  # Events that are matched at once, while nothing else is done.
RECENT_MAX = 8192  # Events in memory, which close the gap between reading the journal and being up to date.
# How far two brokers' clocks may differ before a new subscription misses events of its first moments.
SKEW_US = 5_000_000
# What a restore leaves in the table `meta`, and what ends a copy that another has replaced.
ANCESTORS, COPY, RENUMBERED, SUPERSEDED = "ancestors", "copy", "renumbered", "superseded"
_T = TypeVar("_T")
EventsIn: TypeAlias = Callable[[bytes], Sequence[tuple[EventId, bytes]]]
_Section = dict[str, list[tuple[Any, ...]]]  # What was noted, by the statement that writes it.
log = logging.getLogger("tidings.journal")

_SCHEMA = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value BLOB) WITHOUT ROWID;
CREATE TABLE events (position INTEGER PRIMARY KEY, origin TEXT, incarnation INTEGER, seq INTEGER, type TEXT,
    at_us INTEGER, repeat_key BLOB, raw BLOB);
CREATE TABLE owed (broker TEXT, number INTEGER, position INTEGER, origin TEXT, incarnation INTEGER, seq INTEGER,
    only_for TEXT, PRIMARY KEY (broker, number)) WITHOUT ROWID;
CREATE INDEX owed_position ON owed (position);
CREATE TABLE streams (broker TEXT PRIMARY KEY, next_number INTEGER, confirmed INTEGER) WITHOUT ROWID;
CREATE TABLE heard (origin TEXT PRIMARY KEY, journal BLOB, next_number INTEGER) WITHOUT ROWID;
CREATE TABLE wants (broker TEXT PRIMARY KEY, version INTEGER, body BLOB) WITHOUT ROWID;
CREATE TABLE durables (id TEXT PRIMARY KEY, owner BLOB, name TEXT, type TEXT, condition TEXT, since_us INTEGER,
    tokens BLOB, next_position INTEGER, acknowledged INTEGER, UNIQUE (owner, name)) WITHOUT ROWID;
CREATE TABLE queue (durable TEXT, position INTEGER, body BLOB, PRIMARY KEY (durable, position)) WITHOUT ROWID;
CREATE TABLE dead (number INTEGER PRIMARY KEY, durable TEXT, owner BLOB, at_us INTEGER, event TEXT, type TEXT,
    why TEXT, body BLOB);
"""

# Since 0.2; made where they are missing, and not seen by older programs.
_LATER = """
CREATE TABLE IF NOT EXISTS seals (number INTEGER PRIMARY KEY, durable TEXT, sender INTEGER, moment INTEGER,
    UNIQUE (durable, sender, moment));
CREATE TABLE IF NOT EXISTS seen (type TEXT, sender INTEGER, moment INTEGER, PRIMARY KEY (type, sender)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS batches (position INTEGER PRIMARY KEY, size INTEGER, type TEXT, at_us INTEGER,
    repeat_key BLOB, ids BLOB, raw BLOB);
"""
TABLES = JournalTables(SCHEMA_VERSION, _SCHEMA, _LATER)

# The order in which a section of a group is written. No section deletes what it adds, so additions come first.
_EVENT = "INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
_BATCH = "INSERT INTO batches VALUES (?, ?, ?, ?, ?, ?, ?)"
# An event of a batch that a broker is owed by itself. Without a type, so that histories have it only in its batch.
_PART = "INSERT OR IGNORE INTO events VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
_OWE = "INSERT INTO owed VALUES (?, ?, ?, ?, ?, ?, ?)"
_STREAM = "INSERT OR REPLACE INTO streams VALUES (?, ?, ?)"
_HEARD = "INSERT OR REPLACE INTO heard VALUES (?, ?, ?)"
_WANTS = "INSERT OR REPLACE INTO wants VALUES (?, ?, ?)"
_DURABLE = "INSERT OR REPLACE INTO durables VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
_QUEUE = "INSERT INTO queue VALUES (?, ?, ?)"
_SEAL = "INSERT OR IGNORE INTO seals (durable, sender, moment) VALUES (?, ?, ?)"
_SEEN = "INSERT OR REPLACE INTO seen VALUES (?, ?, ?)"
_GROWN = "UPDATE durables SET next_position = ? WHERE id = ?"
_DEAD = "INSERT INTO dead (durable, owner, at_us, event, type, why, body) VALUES (?, ?, ?, ?, ?, ?, ?)"
_META = "INSERT OR REPLACE INTO meta VALUES (?, ?)"
_CONFIRMED = "DELETE FROM owed WHERE broker = ? AND number < ?"
_ACKNOWLEDGED = "UPDATE durables SET acknowledged = max(acknowledged, ?) WHERE id = ?"
_DONE = "DELETE FROM queue WHERE durable = ? AND position <= ?"
_TAKEN = "DELETE FROM queue WHERE durable = ? AND position = ?"
_FORGET = "DELETE FROM durables WHERE id = ?"
_FORGET_QUEUE = "DELETE FROM queue WHERE durable = ?"
_FORGET_SEALS = "DELETE FROM seals WHERE durable = ?"
_FORGET_SEEN = "DELETE FROM seen WHERE moment <= (SELECT moment FROM seen ORDER BY moment DESC LIMIT 1 OFFSET ?)"
_BURIED = "DELETE FROM dead WHERE number = ?"
_INSERTS = frozenset({_EVENT, _OWE, _QUEUE, _SEAL})
_ORDER = (
    _EVENT, _BATCH, _PART, _OWE, _STREAM, _HEARD, _WANTS, _DURABLE, _QUEUE, _SEAL, _SEEN, _GROWN, _DEAD, _META,
    _CONFIRMED, _ACKNOWLEDGED, _DONE, _TAKEN, _FORGET, _FORGET_QUEUE, _FORGET_SEALS, _BURIED,
)  # fmt: skip


class JournaledEvent(NamedTuple):
    """An event published here. `raw` is from the node's `Keep`."""

    position: int
    event: EventId
    type: str
    at_us: int
    raw: bytes
    is_of_batch: bool = False
    """Whether the journal has it in a batch, and so must be told of it before it is owed by itself."""

    @property
    def last(self) -> int:
        return self.position


class JournaledBatch(NamedTuple):
    """Events published here together, at positions from the first on. `raw` is from `encode_stored_batch`."""

    position: int
    size: int
    type: str
    at_us: int
    raw: bytes

    @property
    def last(self) -> int:
        return self.position + self.size - 1


class QueuedEvent(NamedTuple):
    """An event that waits for a durable subscriber."""

    position: int
    body: bytes


@dataclass(slots=True)
class DurableSubscription:
    """A durable subscription of one of this broker's own clients."""

    id: str
    owner: bytes
    name: str
    type: str
    condition: str
    since_us: int
    tokens: bytes
    next_position: int = 1
    acknowledged: int = 0


class DeadLetter(NamedTuple):
    """An event that could not be delivered, and why."""

    number: int
    durable: str
    owner: bytes
    at_us: int
    event: str
    type: str
    why: str
    body: bytes


class RepeatedBatches:
    """The ids of the newest batches by their idempotency keys, of `REPEATS_MAX` events."""

    def __init__(self, newest: Iterable[tuple[bytes, BatchIds]]) -> None:
        self._ids: OrderedDict[bytes, BatchIds] = OrderedDict()
        self._count = 0
        for key, ids in newest:
            self.add(key, ids)

    def add(self, key: bytes, ids: BatchIds) -> None:
        self._ids[key] = ids
        self._count += len(ids)
        while self._count > REPEATS_MAX and len(self._ids) > 1:
            self._count -= len(self._ids.popitem(last=False)[1])

    def get(self, key: bytes) -> BatchIds | None:
        return self._ids.get(key)


class Journal:
    """One broker's journal. All methods run on the event loop's thread; disk I/O happens in threads of its own."""

    def __init__(self, place: Path | JournalStorage) -> None:
        """Opens or creates the journal, and starts a new incarnation of the broker; `place` is a file or open storage."""
        self.storage = place if not isinstance(place, Path) else SqliteStorage(place, TABLES)
        try:
            begun = self.storage.write(_begin_life)
        except self.storage.refusals as wrong:
            raise SetupError(f"cannot write to the journal {self.storage.where}: {advice(wrong)}") from None
        assert begun is not None
        self.id, self.incarnation = begun
        ends = (
            "SELECT coalesce(max(position), 0) + 1 FROM events",
            "SELECT coalesce(max(position + size), 1) FROM batches",
        )
        self.next_event = max(int(self.read_now(query)[0][0]) for query in ends)
        self.repeats = self._repeats()
        self.repeated_batches = RepeatedBatches(self._newest_batches())
        self.committed_groups = 0
        self.stuck_why = ""
        self.lost: LeaseLost | None = None
        """Why nothing is written any more: another process has the journal."""
        self._noted: list[_Section] = []
        self._waiting: list[asyncio.Future[None]] = []
        self._then: list[Callable[[], object]] = []
        self._committing: asyncio.Task[None] | None = None
        self._late: asyncio.TimerHandle | None = None
        self._next_group_at = 0.0
        self._write_thread = ThreadPoolExecutor(1, "journal-write")
        self._read_thread = ThreadPoolExecutor(1, "journal-read")

    # ── Writing ──

    @property
    def is_stuck(self) -> bool:
        """Whether the disk refuses what was last noted."""
        return bool(self.stuck_why)

    def disk_usage(self) -> dict[str, int]:
        """How much room the journal takes, and how much of the disk is free; nothing where that is not known."""
        return dict(self.storage.usage())

    async def committed(self) -> None:
        """Waits until everything noted so far is on disk."""
        if not self._noted and self._committing is None:
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(done)
        self._commit_soon()
        await done

    def then(self, do: Callable[[], object]) -> None:
        """Calls `do` once everything noted so far is on disk; calls run in the order in which they were registered."""
        self._then.append(do)
        self._commit_soon()

    def _commit_soon(self) -> None:
        if self._committing is None:
            self._committing = asyncio.get_running_loop().create_task(self._commit_groups())

    def _write_late(self) -> None:
        if self._late is None:  # No caller waits for it, and there may be nothing else to write.
            self._late = asyncio.get_running_loop().call_later(LATE_S, self._commit_late)

    def _commit_late(self) -> None:
        self._late = None
        self._commit_soon()

    async def _commit_groups(self) -> None:
        loop = asyncio.get_running_loop()
        while self._noted or self._waiting or self._then:
            # Whatever is noted in this turn of the loop, or just after a group, joins the next group.
            await asyncio.sleep(max(0.0, self._next_group_at - loop.time()))
            noted, self._noted = self._noted, []
            waiting, self._waiting = self._waiting, []
            then, self._then = self._then, []
            begun = loop.time()
            if noted:
                await self._write(noted, loop)
            if self.lost is not None:
                return  # Nobody is told that anything is written; `_committing` stays, so that nothing more is tried.
            # A publisher that waits for a single event must not wait longer.
            if 1 < sum(len(section.get(_EVENT, ())) for section in noted) < GROUP_LARGE:
                self._next_group_at = begun + GATHER_S
            for do in then:
                _call_safely(do)
            for done in waiting:
                if not done.done():
                    done.set_result(None)
        self._committing = None

    async def _write(self, noted: list[_Section], loop: asyncio.AbstractEventLoop) -> None:
        write = functools.partial(self.storage.write, functools.partial(_write_group, noted), is_group=True)
        while True:
            try:
                await loop.run_in_executor(self._write_thread, write)
            except LeaseLost as lost:
                self.lost, self.stuck_why = lost, str(lost)
                return
            # The disk is full, the file is locked by a backup or damaged, the server is away: log it, and try again.
            except self.storage.refusals as wrong:
                why = first_line(wrong)
                if why != self.stuck_why:
                    log.error("the journal cannot be written: %s", why, extra={"journal": self.storage.where})
                self.stuck_why = why
                await asyncio.sleep(RETRY_S)
            else:
                self.stuck_why = ""
                self.committed_groups += 1
                return

    def _note(self, change: str, *row: Any) -> None:
        if not self._noted:
            self._noted.append({})
        section = self._noted[-1]
        rows = section.get(change)
        if rows is None:
            section[change] = [row]
        else:
            rows.append(row)

    # ── Events published here, and the outbox ──

    def note_event(self, event: EventId, type: str, at_us: int, repeat_key: bytes, raw: bytes) -> int:
        """Stores a published event; returns its position in this journal."""
        position = self.next_event
        self.next_event += 1
        self._note(_EVENT, position, *event, type, at_us, repeat_key, raw)
        self.repeats[repeat_key] = event
        if len(self.repeats) > REPEATS_MAX:
            self.repeats.popitem(last=False)
        return position

    def note_batch(self, ids: BatchIds, type: str, at_us: int, repeat_key: bytes, raw: bytes) -> JournaledBatch:
        """Stores events that were published together; returns them with their positions in this journal."""
        noted = JournaledBatch(self.next_event, len(ids), type, at_us, raw)
        self.next_event += noted.size
        self._note(_BATCH, noted.position, noted.size, type, at_us, repeat_key, msgspec.msgpack.encode(ids), raw)
        self.repeated_batches.add(repeat_key, ids)
        return noted

    def note_of_batch(self, event: JournaledEvent) -> None:
        """Stores an event of a batch by itself too, at its position there, for a broker that is owed it."""
        self._note(_PART, event.position, *event.event, "", event.at_us, b"", event.raw)

    def note_pending(self, broker: str, pending: PendingEvent) -> None:
        self._note(_OWE, broker, pending.number, pending.position, *pending.event, pending.only_for)

    def note_stream(self, broker: str, next_number: int, confirmed: int) -> None:
        self._note(_STREAM, broker, next_number, confirmed)

    def note_acked(self, broker: str, below: int) -> None:
        """Forgets the numbers of a stream that nobody will ask for again: this broker's own."""
        self._note(_CONFIRMED, broker, below)

    def note_interest(self, broker: str, version: int, body: bytes) -> None:
        self._note(_WANTS, broker, version, body)

    # ── The inbox, durable subscriptions and their queues ──

    def note_received(self, origin: str, journal: bytes, next_number: int) -> None:
        self._note(_HEARD, origin, journal, next_number)

    def note_durable(self, durable: DurableSubscription) -> None:
        d = durable
        row = (d.owner, d.name, d.type, d.condition, d.since_us, d.tokens, d.next_position, d.acknowledged)
        self._note(_DURABLE, d.id, *row)

    def note_queued(self, durable: DurableSubscription, body: bytes) -> int:
        """Appends an event to the queue; returns its position."""
        position = durable.next_position
        durable.next_position += 1
        self._note(_QUEUE, durable.id, position, body)
        self._note(_GROWN, durable.next_position, durable.id)
        return position

    def note_seal(self, durable: str, sender: int, moment: int) -> None:
        """Remembers a sealed event that is queued, in the same transaction."""
        self._note(_SEAL, durable, sender, moment)

    def note_seen(self, type: str, sender: int, moment: int) -> None:
        """Remembers the newest event of a sender that live subscribers were sent."""
        self._note(_SEEN, type, sender, moment)
        self._write_late()

    def note_acknowledged(self, durable: DurableSubscription, position: int) -> None:
        """Deletes everything up to `position` from the queue."""
        durable.acknowledged = max(durable.acknowledged, min(position, durable.next_position - 1))
        self._note(_ACKNOWLEDGED, durable.acknowledged, durable.id)
        self._note(_DONE, durable.id, durable.acknowledged)
        self._write_late()

    def note_forgotten(self, durable: DurableSubscription) -> None:
        self._note(_FORGET, durable.id)
        self._note(_FORGET_QUEUE, durable.id)
        self._note(_FORGET_SEALS, durable.id)
        self._noted.append({})  # A subscription of the same name may follow, which this must not delete.

    def note_dead(self, durable: DurableSubscription, at_us: int, event: str, type: str, why: str, body: bytes) -> None:
        self._note(_DEAD, durable.id, durable.owner, at_us, event, type, why, body)

    def note_taken_out(self, durable: DurableSubscription, position: int) -> None:
        self._note(_TAKEN, durable.id, position)

    def note_revived(self, number: int) -> None:
        """Deletes a dead letter that is queued again."""
        self._note(_BURIED, number)

    def note_meta(self, name: str, value: bytes) -> None:
        self._note(_META, name, value)

    # ── Reading ──

    def read_now(self, query: str, *arguments: Any) -> list[Any]:
        """Reads synchronously; only for the start of the broker."""
        return self.storage.read_now(query, arguments)

    def meta(self, name: str) -> bytes:
        rows = self.read_now("SELECT value FROM meta WHERE name = ?", name)
        return bytes(rows[0][0]) if rows else b""

    def ancestors(self) -> list[LogAncestor]:
        """The journals that this one was restored from, the newest last; see `net.recovery`."""
        return msgspec.msgpack.decode(self.meta(ANCESTORS) or b"\x90", type=list[LogAncestor])

    @property
    def copy(self) -> int:
        """When this journal was restored from a backup, in ms; 0 if it never was. The copy with the highest counts."""
        return int.from_bytes(self.meta(COPY), "big")

    def renumbered(self) -> dict[str, tuple[int, int]]:
        """By durable subscription: the positions below the first number were moved by the second in the restore."""
        return msgspec.msgpack.decode(self.meta(RENUMBERED) or b"\x80", type=dict[str, tuple[int, int]])

    def seals(self, at_most: int) -> tuple[list[tuple[str, int, int]], int]:
        """The last sealed events that were queued, oldest first, and the latest moment of all others; -1 if none."""
        query = "SELECT durable, sender, moment, number FROM seals ORDER BY number DESC LIMIT ?"
        rows = self.read_now(query, at_most)
        first = rows[-1][3] if rows else 0
        ((older,),) = self.read_now("SELECT coalesce(max(moment), -1) FROM seals WHERE number < ?", first)
        return [(durable, sender, moment) for durable, sender, moment, _ in reversed(rows)], older

    def has_seal(self, durable: str, sender: int, moment: int) -> bool:
        """Whether a sealed event was queued, and is among the last SEALS_KEPT_MAX."""
        query = "SELECT 1 FROM seals WHERE durable = ? AND sender = ? AND moment = ?"
        return bool(self.read_now(query, durable, sender, moment))

    def seen(self, type: str) -> dict[int, int]:
        """For each sender of a type, the newest event that live subscribers were sent."""
        return dict(self.read_now("SELECT sender, moment FROM seen WHERE type = ?", type))

    def durables(self) -> list[DurableSubscription]:
        return [DurableSubscription(*row) for row in self.read_now("SELECT * FROM durables ORDER BY owner, name")]

    def streams(self) -> list[tuple[str, int, int]]:
        return self.read_now("SELECT * FROM streams")

    def received(self) -> list[tuple[str, bytes, int]]:
        return self.read_now("SELECT * FROM heard")

    def interests(self) -> list[tuple[str, int, bytes]]:
        return self.read_now("SELECT * FROM wants")

    async def queued(self, durable: str, after: int, at_most: int = READ_ROWS) -> list[QueuedEvent]:
        """The queued events after a position, oldest first."""
        query = "SELECT position, body FROM queue WHERE durable = ? AND position > ? ORDER BY position LIMIT ?"
        return [QueuedEvent(*row) for row in await self._read(query, durable, after, at_most)]

    async def queue_sizes(self) -> dict[str, int]:
        return dict(await self._read("SELECT durable, count(*) FROM queue GROUP BY durable"))

    async def pending(self, broker: str, first: int, at_most: int = READ_ROWS) -> list[PendingEvent]:
        """The events pending for a broker, from a number on."""
        query = (
            "SELECT number, position, origin, incarnation, seq, only_for FROM owed"
            " WHERE broker = ? AND number >= ? ORDER BY number LIMIT ?"
        )
        rows = await self._read(query, broker, first, at_most)
        return [PendingEvent(number, position, EventId(*event), only) for number, position, *event, only in rows]

    async def pending_packets(self, broker: str, numbers: Sequence[int]) -> list[tuple[int, bytes]]:
        """The bytes of these pending events, lowest number first; those that are acknowledged are left out."""
        marks = ", ".join("?" * len(numbers))
        query = (
            "SELECT number, raw FROM owed JOIN events USING (position)"  # noqa: S608 - marks only
            f" WHERE broker = ? AND number IN ({marks}) ORDER BY number"
        )
        return [(number, bytes(raw)) for number, raw in await self._read(query, broker, *numbers)]

    async def kept_from(self, broker: str, number: int, below: int) -> int:
        """The lowest number of a stream from which on, up to `below`, all events are still kept; at least `number`."""
        count = "SELECT count(*) FROM owed WHERE broker = ? AND number >= ? AND number < ?"
        ((found,),) = await self._read(count, broker, number, below)
        if found == below - number or not found:
            return number if found else below
        query = (
            "SELECT max(number) FROM owed AS one WHERE broker = ? AND number >= ? AND number < ? AND NOT EXISTS"
            " (SELECT 1 FROM owed WHERE broker = one.broker AND number = one.number - 1)"
        )
        ((first,),) = await self._read(query, broker, number, below)
        return int(first) if first is not None else below

    async def events_since(self, at_us: int, type: str, after: int, before: int) -> list[JournaledEvent]:
        """Events of a type, published since a moment, between two positions; at most `READ_ROWS` of them."""
        query = (
            "SELECT position, origin, incarnation, seq, type, at_us, raw FROM events"
            " WHERE position > ? AND position < ? AND at_us >= ? AND type = ? ORDER BY position LIMIT ?"
        )
        rows = await self._read(query, after, before, at_us, type, READ_ROWS)
        return [JournaledEvent(position, EventId(o, i, s), *rest) for position, o, i, s, *rest in rows]

    async def batches_since(self, at_us: int, type: str, after: int, before: int) -> list[JournaledBatch]:
        """Batches of a type, published since a moment, between two positions; at most `READ_BATCHES` of them."""
        query = (
            "SELECT position, size, type, at_us, raw FROM batches"
            " WHERE position > ? AND position < ? AND at_us >= ? AND type = ? ORDER BY position LIMIT ?"
        )
        rows = await self._read(query, after, before, at_us, type, READ_BATCHES)
        return [JournaledBatch(position, size, type, at, bytes(raw)) for position, size, type, at, raw in rows]

    async def dead_letters(self, owner: bytes | None = None) -> list[DeadLetter]:
        where, arguments = ("WHERE owner = ?", (owner,)) if owner is not None else ("", ())
        query = f"SELECT number, durable, owner, at_us, event, type, why, body FROM dead {where} ORDER BY number"  # noqa: S608 - one of two texts above
        return [DeadLetter(*row) for row in await self._read(query, *arguments)]

    async def _read(self, query: str, *arguments: Any) -> list[Any]:
        await self.committed()  # Reads see everything noted before.
        loop = asyncio.get_running_loop()
        while True:
            try:
                return await loop.run_in_executor(self._read_thread, self.storage.read, query, arguments)
            except self.storage.unreachable as wrong:
                log.warning("the journal cannot be read: %s", first_line(wrong), extra={"journal": self.storage.where})
                await asyncio.sleep(RETRY_S)

    # ── Retention ──

    async def pending_too_long(self, before_us: int) -> list[tuple[str, int]]:
        """For each broker with a pending event older than this, the last number of such an event."""
        query = (
            "SELECT broker, max(number) FROM owed JOIN events USING (position) JOIN streams USING (broker)"
            " WHERE at_us < ? AND number >= confirmed GROUP BY broker"
        )
        return await self._read(query, before_us)

    async def forget_old(self, keep_max: int, before_us: int, dead_max: int) -> None:
        """Deletes events over the limit in number or age that no broker still has to acknowledge, and the oldest dead letters.

        While the disk refuses, nothing is deleted; the next call tries again.
        """
        await self.committed()
        loop = asyncio.get_running_loop()
        up_to = self.next_event - 1 - keep_max
        forget = functools.partial(_forget_old, up_to=up_to, before_us=before_us, dead_max=dead_max)
        try:
            await loop.run_in_executor(self._write_thread, self.storage.write, forget)
        except LeaseLost:
            pass  # They are another process's now.
        except self.storage.refusals as wrong:
            why = first_line(wrong)
            log.error("old events cannot be deleted yet: %s", why, extra={"journal": self.storage.where})

    def _repeats(self) -> OrderedDict[bytes, EventId]:
        """Oldest first. Not a plain dict: to find its oldest key it walks over ever more gaps."""
        query = "SELECT repeat_key, origin, incarnation, seq FROM events ORDER BY position DESC LIMIT ?"
        rows = self.read_now(query, REPEATS_MAX)
        return OrderedDict((bytes(key), EventId(*event)) for key, *event in reversed(rows))

    def _newest_batches(self) -> list[tuple[bytes, BatchIds]]:
        """The idempotency keys and ids of the batches among the newest events, oldest first."""
        query = "SELECT repeat_key, ids FROM batches WHERE position > ? ORDER BY position"
        rows = self.read_now(query, self.next_event - REPEATS_MAX)
        return [(bytes(key), msgspec.msgpack.decode(bytes(ids), type=BatchIds)) for key, ids in rows]

    def close(self) -> None:
        """Finishes the write in progress, and closes; changes that no caller has waited for may be lost."""
        if self._late is not None:
            self._late.cancel()
        self._write_thread.shutdown(wait=True)
        self._read_thread.shutdown(wait=True)
        self.storage.close(lost=self.lost is not None)


@dataclass(slots=True)
class Backlog:
    """The kept events that match a new subscription, as far as the journal has been read."""

    interest: DurableInterest | None = None
    reached: int = 0
    found: list[JournaledEvent] = field(default_factory=list)
    matches: Callable[[Mapping[str, Value] | None], bool] | None = None
    """Whether an event with these values may match; made once, as parsing takes milliseconds."""
    is_bare: bool = False
    """Whether the bytes of events are left out: many subscriptions may want the same."""


class EventHistory:
    """The events published here, for subscriptions that begin in the past or are learnt of late.

    `read` reads the journal until the rest is in memory, which takes a while; `complete` adds the rest at once. The
    caller must not await between `complete` and the step that makes the subscription known: then no event is missed.
    """

    def __init__(self, journal: Journal, type_named: TypeNamed, events_in: EventsIn) -> None:
        """`events_in` takes a stored batch apart."""
        self._journal, self._type_named, self._events_in = journal, type_named, events_in
        self._recent: deque[JournaledEvent | JournaledBatch] = deque()
        self._recent_count = 0  # Events in it, those of batches included.

    def add(self, published: JournaledEvent | JournaledBatch) -> None:
        """An event, or a batch, has just been published."""
        self._recent.append(published)
        self._recent_count += _size_of(published)
        while self._recent_count > RECENT_MAX and len(self._recent) > 1:
            self._recent_count -= _size_of(self._recent.popleft())

    async def read(
        self, interests: Sequence[DurableInterest], *, skew_us: int = SKEW_US, at_most: int | None = None
    ) -> list[Backlog]:
        """For each subscription, the events that match it since its start, by a clock that may differ by `skew_us`.

        With `at_most`, which is for those of others, without their bytes; raises InputError if there are more in all.
        """
        begun = [msgspec.structs.replace(each, since_us=each.since_us - skew_us) for each in interests]
        backlogs = [Backlog(each, is_bare=at_most is not None) for each in begun]
        for backlog in backlogs:
            await self._read(backlog)
            if at_most is not None and sum(len(each.found) for each in backlogs) > at_most:
                raise InputError(f"more than {at_most} events of the past")
        while late := [backlog for backlog in backlogs if not self._is_near(backlog.reached)]:
            for backlog in late:  # More was published while others were read than is in memory.
                await self._read(backlog)
        return backlogs

    async def _read(self, backlog: Backlog) -> None:
        """Until little is left for `complete`, which nothing else can interrupt."""
        while not self._is_near(backlog.reached):
            await self._read_more(backlog)
        while sum(map(_size_of, later := self._later(backlog))) > LEFT_MAX:
            self._take(backlog, later)
            await asyncio.sleep(0)
            if not self._is_near(backlog.reached):
                return await self._read(backlog)
        return None

    def _later(self, backlog: Backlog) -> list[JournaledEvent | JournaledBatch]:
        """What is in memory after the events of a backlog, oldest first."""
        later = list(itertools.takewhile(lambda event: event.position > backlog.reached, reversed(self._recent)))
        return later[::-1]

    def complete(self, backlog: Backlog) -> list[JournaledEvent]:
        """The events of a backlog, oldest first, up to this moment."""
        later = self._later(backlog) if backlog.interest is not None else []
        while later:  # At most LEFT_MAX events, if they were read.
            later = later[self._take(backlog, later) :]
        return backlog.found

    def _is_near(self, position: int) -> bool:
        """Whether everything after a position is in memory."""
        first = self._recent[0].position if self._recent else self._journal.next_event
        return position >= first - 1

    async def _read_more(self, backlog: Backlog) -> None:
        interest, end = backlog.interest, self._journal.next_event
        assert interest is not None
        journal, asked = self._journal, (interest.since_us, interest.type, backlog.reached)
        batches = await journal.batches_since(*asked, end)
        reached = batches[-1].last if len(batches) == READ_BATCHES else end - 1
        events = await journal.events_since(*asked, reached + 1)
        if len(events) == READ_ROWS:
            reached = events[-1].position
        kept: list[JournaledEvent | JournaledBatch] = [*events, *(each for each in batches if each.last <= reached)]
        kept.sort(key=lambda each: each.position)
        while kept:
            kept = kept[self._take(backlog, kept) :]
            await asyncio.sleep(0)
        backlog.reached = reached

    def _take(self, backlog: Backlog, kept: Sequence[JournaledEvent | JournaledBatch]) -> int:
        """Takes the first of these, about as many as can be matched at once; returns how many."""
        events: list[JournaledEvent] = []
        count = 0
        while count < len(kept) and len(events) < LEFT_MAX:
            published = kept[count]
            count += 1
            backlog.reached = published.last
            events += self._of_interest(backlog, published)
        found = [event for event in events if self._matches(backlog, event)]
        if backlog.is_bare:
            for event in found:
                if event.is_of_batch:  # Whoever is owed it gets it from a row of its own.
                    self._journal.note_of_batch(event)
            found = [event._replace(raw=b"") for event in found]
        backlog.found += found
        return count

    def _of_interest(self, backlog: Backlog, published: JournaledEvent | JournaledBatch) -> list[JournaledEvent]:
        """The event, or the events of the batch, if they are of the type and the time."""
        interest = backlog.interest
        assert interest is not None
        if published.type != interest.type or published.at_us < interest.since_us:
            return []
        if isinstance(published, JournaledEvent):
            return [published]
        first, type, at_us = published.position, published.type, published.at_us
        events = enumerate(self._events_in(published.raw), first)
        return [JournaledEvent(at, id, type, at_us, raw, is_of_batch=True) for at, (id, raw) in events]

    def _matches(self, backlog: Backlog, event: JournaledEvent) -> bool:
        if backlog.matches is None:
            assert backlog.interest is not None
            backlog.matches = matcher(backlog.interest, self._type_named(backlog.interest.type))
        return backlog.matches(stored_values(event.raw))


def _size_of(published: JournaledEvent | JournaledBatch) -> int:
    return published.last - published.position + 1


async def read_on(
    cursor: LogCursor[_T], at_most: int, fetch: Callable[[int, int], Awaitable[Sequence[tuple[int, _T]]]]
) -> Sequence[tuple[int, _T]]:
    """The next entries at a cursor, from memory or from the journal; only one task at a time may call this."""
    if not cursor.has_more or at_most <= 0:
        return []
    if taken := cursor.take(at_most):
        return taken
    read = cursor.next_read(at_most)
    return cursor.supply(read, await fetch(read.after, read.at_most))


def _begin_life(connection: Statements) -> tuple[bytes, int]:
    """The id of the journal, and the number of this incarnation, which no earlier one had."""
    known = dict(connection.execute("SELECT name, value FROM meta WHERE name IN ('id', 'incarnation')").fetchall())
    id = bytes(known.get("id") or secrets.token_bytes(16))
    life = int(known.get("incarnation", -1)) + 1  # A number, as 0.1 wrote it, or its digits.
    connection.executemany(_META, [("id", id), ("incarnation", str(life).encode())])
    return id, life


def _call_safely(do: Callable[[], object]) -> None:
    """A callback that fails must not hold up the others, or the next group."""
    try:
        do()
    except Exception as fault:
        log.error("an action after a commit failed", exc_info=fault)


def _write_group(noted: list[_Section], connection: Statements) -> None:
    for section in noted:
        for change in _ORDER:
            rows = section.get(change)
            if rows:
                _execute(connection, change, _last_of_each(change, rows))


def _execute(connection: Statements, change: str, rows: Sequence[tuple[Any, ...]]) -> None:
    """Many rows in one statement: after each statement the thread has to wait for the GIL."""
    if change in _INSERTS:
        for some in parts(rows, ROWS_AT_ONCE):
            connection.execute(_inserting(change, len(some)), [value for row in some for value in row])
    else:
        connection.executemany(change, rows)


@functools.cache
def _inserting(change: str, count: int) -> str:
    row = change[change.index("VALUES (") + len("VALUES ") :]
    return change + f", {row}" * (count - 1)


def _last_of_each(change: str, rows: list[tuple[Any, ...]]) -> Sequence[tuple[Any, ...]]:
    """Where a later change overwrites an earlier one, only the later: a thousand events update one counter once."""
    if change is _GROWN:
        return [(position, id) for id, position in {id: position for position, id in rows}.items()]
    if change in (_STREAM, _HEARD):
        return list({row[0]: row for row in rows}.values())
    if change is _SEEN:
        return list({row[:2]: row for row in rows}.values())
    return rows


def _forget_old(connection: Statements, up_to: int, before_us: int, dead_max: int) -> None:
    first_owed = _scalar(
        connection,
        "SELECT coalesce(min(position), 9223372036854775807) FROM owed JOIN streams USING (broker)"
        " WHERE number >= confirmed",
    )
    # Up to the first event that is young enough: checking the age of each of a million would hold up publishers.
    young = [
        row[0]
        for table in ("events", "batches")
        for row in connection.execute(
            f"SELECT position FROM {table} WHERE at_us >= ? ORDER BY position LIMIT 1",  # noqa: S608 - one of two
            (before_us,),
        ).fetchall()
    ]
    end = min(first_owed, max(up_to + 1, min(young, default=first_owed)))
    connection.execute("DELETE FROM events WHERE position < ?", (end,))
    connection.execute("DELETE FROM batches WHERE position + size <= ?", (end,))
    connection.execute("DELETE FROM owed WHERE position < ?", (end,))
    newest = _scalar(connection, "SELECT coalesce(max(number), 0) FROM dead")
    connection.execute("DELETE FROM dead WHERE number <= ?", (newest - dead_max,))
    newest = _scalar(connection, "SELECT coalesce(max(number), 0) FROM seals")
    connection.execute("DELETE FROM seals WHERE number <= ?", (newest - SEALS_KEPT_MAX,))
    connection.execute(_FORGET_SEEN, (SEEN_MAX,))


def _scalar(connection: Statements, query: str) -> int:
    return int(connection.execute(query).fetchone()[0])


def parts(rows: Sequence[_T], size: int) -> Iterator[Sequence[_T]]:
    """`rows` in parts of at most `size`."""
    for start in range(0, len(rows), size):
        yield rows[start : start + size]
