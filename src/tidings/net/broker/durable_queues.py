"""The queues of durable subscriptions: what waits for a subscriber that is away, slow, or about to crash.

A durable subscription belongs to a client's key and has a name. The events in its queue are numbered; its
subscriber acknowledges positions, and the broker delivers whatever is not acknowledged again when the subscriber
reconnects. A connected subscriber is sent at most a window ahead of its acknowledgements, from memory
while it keeps up and from the journal when it does not, so a slow one costs disk space and nobody's time.

Queued events of sealed types are encrypted with a key of this broker's own before they touch the disk.
"""

from __future__ import annotations

import asyncio
import hashlib
import heapq
import secrets
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from tidings.delivery import Deliveries, LogCursor
from tidings.errors import Denied, InputError, PeerError, SetupError
from tidings.net.broker.journal import DeadLetter, DurableSubscription, Journal, QueuedEvent, read_on
from tidings.net.ids import show_event
from tidings.net.observability.latency import LatencyHistogram, QueueAges
from tidings.net.transport.frames import DeliveredEvent, EventDelivery, RequestRefused, read_event, refusal
from tidings.node import sealed_by
from tidings.overlay import Header
from tidings.security import Identity

UNACKNOWLEDGED_MAX = 2048  # Events sent and not acknowledged; what a subscriber must be able to hold.
AT_ONCE = 256
SEALS_MAX = 65_536  # Sealed events in memory; one that is older than the oldest of them is looked up on disk.
DURABLES_MAX = 65_536
NAME_MAX = 200
_PLAIN, _SEALED, _UNOPENED, _BOUND = b"\0", b"\1", b"\2", b"\3"
_NONCE_BYTES = 12


class QueueCipher:
    """Encrypts queued events on disk, each for one subscription: in another's queue it cannot be opened.

    The key never leaves the process and is derived from the broker's own.
    """

    def __init__(self, identity: Identity) -> None:
        self._box = AESGCM(HKDFExpand(SHA256(), 32, b"tidings/queue/1").derive(identity.secret))

    def seal(self, durable: str, body: bytes) -> bytes:
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return _BOUND + nonce + self._box.encrypt(nonce, body, durable.encode())

    def open(self, durable: str, kept: bytes) -> bytes:
        """The event; raises SetupError if it was encrypted under another broker's key, or for another subscription."""
        if kept[:1] == _PLAIN:
            return kept[1:]
        try:
            with_ = durable.encode() if kept[:1] == _BOUND else None  # _SEALED: before 0.2.
            return self._box.decrypt(kept[1 : 1 + _NONCE_BYTES], kept[1 + _NONCE_BYTES :], with_)
        except InvalidTag:
            raise SetupError("the journal was written with another key than this broker's, or altered") from None


class DeliverySink(Protocol):
    """Where deliveries go: a client's link, or a listener at the gateway."""

    @property
    def is_open(self) -> bool: ...

    def send(self, frame: EventDelivery | RequestRefused) -> bool:
        """Queues a delivery, or why there will be no more; False if there is no room."""

    async def drained(self) -> None:
        """Waits until there is room."""


class QueueReader:
    """One durable subscription while its subscriber is connected."""

    def __init__(self, durable: DurableSubscription, link: DeliverySink, stream: int) -> None:
        self.durable, self.link, self.stream = durable, link, stream
        self.cursor: LogCursor[bytes] = LogCursor(durable.acknowledged, durable.next_position - 1)
        self.pump: asyncio.Task[None] | None = None


class DurableQueues:
    """All durable subscriptions of one broker."""

    def __init__(
        self,
        journal: Journal,
        cipher: QueueCipher,
        queue_max: int,
        now_us: Callable[[], int],
        delivery: LatencyHistogram | None = None,
        *,
        of_client_max: int = DURABLES_MAX,
        count_max: int = DURABLES_MAX,
    ) -> None:
        self._of_client_max, self._count_max = of_client_max, count_max
        self.journal, self._cipher, self._queue_max, self._now_us = journal, cipher, queue_max, now_us
        self._delivery = delivery or LatencyHistogram()
        self.all: dict[str, DurableSubscription] = {durable.id: durable for durable in journal.durables()}
        self._renumbered = journal.renumbered()
        self._ages = {id: self._restored_ages(durable) for id, durable in self.all.items()}
        self.count_of = Counter(durable.type for durable in self.all.values())
        self.sealed: set[str] = set()  # Those whose events must not be readable on disk.
        self._readers: dict[str, QueueReader] = {}
        seals, self._sealed_before = journal.seals(SEALS_MAX)
        self._seals: OrderedDict[tuple[str, int, int], None] = OrderedDict.fromkeys(seals)
        self._fresh: list[tuple[str, int, bytes]] = []  # Noted, and not on disk yet.

    # ── Creation and deletion ──

    def find(self, owner: bytes, name: str) -> DurableSubscription | None:
        return self.all.get(durable_id(owner, name))

    def make(
        self, owner: bytes, name: str, type: str, condition: str, since_us: int, tokens: Sequence[bytes]
    ) -> DurableSubscription:
        """A new durable subscription; raises InputError where the name is taken by a different one."""
        if not 0 < len(name) <= NAME_MAX:
            raise InputError(f"expected a name of 1 to {NAME_MAX} characters for a durable subscription")
        known = self.find(owner, name)
        if known is not None and (known.type, known.condition) != (type, condition):
            other = f"has the condition {known.condition!r}" if known.type == type else "is for another event type"
            raise InputError(
                f"the durable subscription {name!r} {other};"
                " delete it first (`tidings subscribe --forget`), or choose another name"
            )
        if known is not None:
            return known
        self._check_quota(owner)
        made = DurableSubscription(
            durable_id(owner, name), owner, name, type, condition, since_us, msgspec.msgpack.encode(tuple(tokens))
        )
        self.all[made.id] = made
        self._ages[made.id] = QueueAges()
        self.count_of[type] += 1
        self.journal.note_durable(made)
        return made

    def _check_quota(self, owner: bytes) -> None:
        """Raises Denied where a client, or all of them, have as many durable subscriptions as they may."""
        if len(self.all) >= self._count_max:
            raise Denied(
                f"limit: this broker has {len(self.all)} durable subscriptions, as many as it takes (durables_max)"
            )
        if len(self.all) >= self._of_client_max:  # Counted only where it matters.
            mine = sum(durable.owner == owner for durable in self.all.values())
            if mine >= self._of_client_max:
                raise Denied(
                    f"limit: this client has {mine} durable subscriptions, as many as it may "
                    "(durables_per_client_max); delete one first (`tidings subscribe --forget`)"
                )

    def forget(self, durable: DurableSubscription) -> None:
        """Deletes a subscription and its queue."""
        self.stop_reading(durable.id)
        if self.all.pop(durable.id, None) is not None:
            self.count_of[durable.type] -= 1
            del self._ages[durable.id]
            self.journal.note_forgotten(durable)

    # ── Adding events ──

    def add(self, id: str, encoded: bytes) -> None:
        """Appends an event to the queue of one subscription; it is delivered once it is on disk."""
        durable = self.all.get(id)
        if durable is None or (id in self.sealed and not self._is_new(id, encoded)):
            return
        body = self._stored(id, encoded)
        if durable.next_position - 1 - durable.acknowledged >= self._queue_max:
            self._bury(durable, encoded, body, f"queue: more than {self._queue_max} events wait for this subscriber")
            return
        self._append(durable, body)

    def _append(self, durable: DurableSubscription, body: bytes) -> None:
        position = self.journal.note_queued(durable, body)
        self._ages[durable.id].arrived(position, self._now_us() / 1e6)
        self._fresh.append((durable.id, position, body))

    def _is_new(self, id: str, encoded: bytes) -> bool:
        """Whether a sealed event was not queued before: a broker could announce another's event as its own.

        The envelope holds who sealed it and when, and no two are alike; where events are signed, no two publishers'
        either (`sealed_by`). It is remembered in the transaction that
        queues it, across restarts.
        """
        event = read_event(encoded).event
        seal = (id, sealed_by(event), event.seq)
        if seal in self._seals or (event.seq <= self._sealed_before and self.journal.has_seal(*seal)):
            return False
        self._seals[seal] = None
        self.journal.note_seal(*seal)
        if len(self._seals) > SEALS_MAX:
            (_, _, oldest), _ = self._seals.popitem(last=False)
            self._sealed_before = max(self._sealed_before, oldest)
        return True

    def take_fresh(self) -> list[tuple[str, int, bytes]]:
        """What has been added since the last call; the caller passes it to `committed` once it is on disk."""
        fresh, self._fresh = self._fresh, []
        return fresh

    def committed(self, fresh: list[tuple[str, int, bytes]]) -> None:
        """These are on disk: deliver them to connected subscribers."""
        for id, position, body in fresh:
            reader = self._readers.get(id)
            if reader is not None:
                reader.cursor.append(position, body)
                self._pump(reader)

    def deliver_when_on_disk(self) -> None:
        """Has everything that was added written, and then delivered."""
        fresh = self.take_fresh()
        self.journal.then(lambda: self.committed(fresh))

    async def saved(self) -> None:
        """Waits until all changes are on disk."""
        await self.journal.committed()

    def waiting(self) -> int:
        """How many events wait, over all subscriptions."""
        return sum(map(_lag, self.all.values()))

    def lags(self, at_most: int) -> list[tuple[DurableSubscription, int, float]]:
        """The subscriptions for which most events wait: how many, and the age of the oldest in seconds."""
        now_s = self._now_us() / 1e6
        most = heapq.nlargest(at_most, self.all.values(), key=_lag)
        return [(d, _lag(d), self._ages[d.id].oldest_s(d.acknowledged, d.next_position, now_s)) for d in most]

    def oldest_s(self) -> float:
        """How long the oldest of all waiting events has waited; 0 if none waits."""
        now_s = self._now_us() / 1e6
        return max(
            (self._ages[d.id].oldest_s(d.acknowledged, d.next_position, now_s) for d in self.all.values() if _lag(d)),
            default=0.0,
        )

    def _restored_ages(self, durable: DurableSubscription) -> QueueAges:
        ages = QueueAges()
        query = "SELECT position, body FROM queue WHERE durable = ? ORDER BY position LIMIT 1"
        for position, body in self.journal.read_now(query, durable.id):
            try:
                at_us = read_event(self._cipher.open(durable.id, bytes(body))).at_us
            except (SetupError, PeerError):
                continue  # Its subscriber is told when it is read.
            ages.restore(position, at_us / 1e6, durable.next_position)
        return ages

    # ── Delivery ──

    def read(self, durable: DurableSubscription, link: DeliverySink, stream: int, after: int | None = None) -> None:
        """Delivers queued and new events to the subscriber, from its last acknowledgement or from `after` on.

        A subscriber that connects twice is served on the later connection.
        """
        self.stop_reading(durable.id)
        after = self._since_restore(durable, after)
        if after is not None and after > durable.acknowledged:
            self._note_acknowledged(durable, after)
        reader = self._readers[durable.id] = QueueReader(durable, link, stream)
        self._pump(reader)

    def _since_restore(self, durable: DurableSubscription, after: int | None) -> int | None:
        """A position that the subscriber knows from before this broker was restored from a backup, as it is now."""
        below, shift = self._renumbered.get(durable.id, (0, 0))
        return min(after, below - 1) + shift if after is not None and 0 < after < shift else after

    async def _next(self, reader: QueueReader, at_most: int) -> Sequence[tuple[int, bytes]]:
        async def fetch(after: int, at_most: int) -> list[tuple[int, bytes]]:
            rows = await self.journal.queued(reader.durable.id, after, at_most)
            return [(row.position, bytes(row.body)) for row in rows]

        return await read_on(reader.cursor, at_most, fetch)

    def is_read(self, id: str) -> bool:
        """Whether the subscriber is connected."""
        return id in self._readers

    def stop_reading(self, id: str, link: DeliverySink | None = None) -> None:
        reader = self._readers.get(id)
        if reader is not None and (link is None or reader.link is link):
            del self._readers[id]
            if reader.pump is not None:
                reader.pump.cancel()

    def refuse(self, id: str, why: str) -> None:
        """The right to read a queue has ended: nothing more of it is handed over, and its reader learns why."""
        reader = self._readers.get(id)
        if reader is not None:
            self.stop_reading(id)
            reader.link.send(refusal(-reader.stream, Denied(why)))

    def acknowledge(self, durable: DurableSubscription, position: int) -> None:
        """Deletes everything up to `position` from the queue; ignored for a subscription that was deleted."""
        if position > durable.acknowledged and self.all.get(durable.id) is durable:
            self._note_acknowledged(durable, position)
            reader = self._readers.get(durable.id)
            if reader is not None:
                self._pump(reader)

    def _note_acknowledged(self, durable: DurableSubscription, position: int) -> None:
        before = durable.acknowledged
        self.journal.note_acknowledged(durable, position)
        self._ages[durable.id].acknowledged(before, durable.acknowledged, self._now_us() / 1e6, self._delivery)

    def _pump(self, reader: QueueReader) -> None:
        if reader.pump is None and reader.cursor.has_more:
            reader.pump = asyncio.get_running_loop().create_task(self._send(reader))

    async def _send(self, reader: QueueReader) -> None:
        try:
            while reader.link.is_open and (room := self._window_left(reader)) > 0 and reader.cursor.has_more:
                for position, body in await self._next(reader, min(room, AT_ONCE)):
                    event = msgspec.Raw(self._cipher.open(reader.durable.id, body))
                    if not reader.link.send(EventDelivery(reader.stream, position, event)):
                        reader.cursor.seek(position - 1)
                        break
                await reader.link.drained()
        finally:
            reader.pump = None
        if reader.link.is_open and self._window_left(reader) > 0:
            self._pump(reader)

    def _window_left(self, reader: QueueReader) -> int:
        return UNACKNOWLEDGED_MAX - (reader.cursor.at - reader.durable.acknowledged)

    # ── Dead letters ──

    async def reject(self, durable: DurableSubscription, position: int, why: str) -> None:
        """Makes one event a dead letter, as its subscriber cannot use it."""
        found: list[QueuedEvent] = await self.journal.queued(durable.id, position - 1, 1)
        if found and found[0].position == position and self.all.get(durable.id) is durable:
            body = bytes(found[0].body)
            self._bury(durable, self._cipher.open(durable.id, body), body, f"rejected: {why[:500]}")
            self.journal.note_taken_out(durable, position)

    def _bury(self, durable: DurableSubscription, encoded: bytes, body: bytes, why: str) -> None:
        read: DeliveredEvent = read_event(encoded)
        self.journal.note_dead(durable, self._now_us(), show_event(read.event), read.type, why, body)

    def bury_unopened(self, header: Header, type: str, raw: bytes, only_for: str, why: str) -> None:
        """Makes an event that cannot be opened a dead letter of each subscription that it may match; still sealed."""
        for durable in self.all.values():
            if durable.type == header.type and only_for in ("", durable.id):
                self.journal.note_dead(durable, self._now_us(), show_event(header.id), type, why, _UNOPENED + raw)

    def replay(self, letters: Sequence[DeadLetter], match: Callable[[bytes], Deliveries | None]) -> int:
        """Appends dead letters to their queues again; returns how many. Those without a subscription or a key stay.

        `match` opens an event that could not be opened before, and matches it.
        """
        revived = 0
        for letter in letters:
            durable = self.all.get(letter.durable)
            bodies = self._bodies(letter, match) if durable is not None else None
            if durable is not None and bodies is not None:
                for body in bodies:
                    self._append(durable, body)
                self.journal.note_revived(letter.number)
                revived += 1
        return revived

    def _bodies(self, letter: DeadLetter, match: Callable[[bytes], Deliveries | None]) -> list[bytes] | None:
        """What to queue for a dead letter, if anything; None if it still cannot be opened."""
        body = bytes(letter.body)
        if body[:1] != _UNOPENED:
            return [body]
        deliveries = match(body[1:])
        if deliveries is None:
            return None
        return [self._stored(letter.durable, encoded) for id, encoded in deliveries if id == letter.durable]

    def _stored(self, id: str, encoded: bytes) -> bytes:
        return self._cipher.seal(id, encoded) if id in self.sealed else _PLAIN + encoded


def _lag(durable: DurableSubscription) -> int:
    return durable.next_position - 1 - durable.acknowledged


def durable_id(owner: bytes, name: str) -> str:
    """The id of a durable subscription, at every broker."""
    return hashlib.sha256(b"tidings/durable/1\0" + owner + name.encode()).hexdigest()[:24]
