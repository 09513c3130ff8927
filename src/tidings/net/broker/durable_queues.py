"""Durable subscriptions: what waits for a subscriber that is away, slow, or about to crash.

A durable subscription belongs to a client's key and has a name. Its notices are numbered; its
subscriber acknowledges positions, and whatever it has not acknowledged comes again when it comes back. A
subscriber that is connected is sent at most a window ahead of its acknowledgements, from memory
while it keeps up and from the journal when it does not, so a slow one costs disk and nobody's time.

What is kept of sealed types is encrypted with a key of this broker's own before it touches the disk.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from tidings.errors import InputError, SetupError
from tidings.net.broker.journal import DeadLetter, Durable, Journal, QueuedNotice
from tidings.net.broker.tail import Tail
from tidings.net.ids import show_event
from tidings.net.transport.frames import Notice, Told, read_told
from tidings.overlay import Header
from tidings.security import Identity

UNACKNOWLEDGED_MAX = 2048  # Notices ahead of a subscriber's word; what it must be able to hold.
AT_ONCE = 256
SEALS_MAX = 65_536  # Sealed events that are known again; one that is repeated later than that counts as new.
NAME_MAX = 200
_PLAIN, _SEALED, _UNOPENED = b"\0", b"\1", b"\2"
_NONCE_BYTES = 12


class AtRest:
    """Seals what must not be readable on disk. The key never leaves the process and is made of the broker's own."""

    def __init__(self, identity: Identity) -> None:
        self._box = AESGCM(HKDFExpand(SHA256(), 32, b"tidings/queue/1").derive(identity.secret))

    def seal(self, body: bytes) -> bytes:
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return _SEALED + nonce + self._box.encrypt(nonce, body, None)

    def open(self, kept: bytes) -> bytes:
        """What was kept; raises SetupError if it was kept under another broker's key."""
        if kept[:1] == _PLAIN:
            return kept[1:]
        try:
            return self._box.decrypt(kept[1 : 1 + _NONCE_BYTES], kept[1 + _NONCE_BYTES :], None)
        except InvalidTag:
            raise SetupError("the journal was written with another key than this broker's") from None


class Outlet(Protocol):
    """Where notices go: a client's link, or somebody at the gateway."""

    @property
    def is_open(self) -> bool: ...

    def send(self, frame: Notice) -> bool:
        """Queue a notice."""

    async def drained(self) -> None:
        """Waits until there is room."""


class Reading:
    """One durable subscription while its subscriber is connected."""

    def __init__(self, durable: Durable, link: Outlet, stream: int, tail: Tail[bytes]) -> None:
        self.durable, self.link, self.stream, self.tail = durable, link, stream, tail
        self.pump: asyncio.Task[None] | None = None


class DurableQueues:
    """All durable subscriptions of one broker."""

    def __init__(
        self,
        journal: Journal,
        at_rest: AtRest,
        queue_max: int,
        now_us: Callable[[], int],
        deliver: Callable[[bytes], list[tuple[str, bytes]] | None] = lambda raw: None,
    ) -> None:
        """`deliver` opens an event that could not be opened before, and tells whom it is for (see `promises.Host`)."""
        self.journal, self._at_rest, self._queue_max, self._now_us = journal, at_rest, queue_max, now_us
        self._deliver = deliver
        self.all: dict[str, Durable] = {durable.id: durable for durable in journal.durables()}
        self.count_of = Counter(durable.type for durable in self.all.values())
        self.sealed: set[str] = set()  # Those whose notices must not be readable on disk.
        self._readings: dict[str, Reading] = {}
        self._seals: OrderedDict[tuple[str, int, int], None] = OrderedDict()
        self._fresh: list[tuple[str, int, bytes]] = []  # Noted, and not on disk yet.

    # ── Made and ended ──

    def find(self, owner: bytes, name: str) -> Durable | None:
        return self.all.get(durable_id(owner, name))

    def make(
        self, owner: bytes, name: str, type: str, condition: str, since_us: int, tokens: Sequence[bytes]
    ) -> Durable:
        """A new durable subscription; raises InputError where the name is taken for something else."""
        if not 0 < len(name) <= NAME_MAX:
            raise InputError(f"expected a name of 1 to {NAME_MAX} characters for a durable subscription")
        known = self.find(owner, name)
        if known is not None and (known.type, known.condition) != (type, condition):
            raise InputError(
                f"the durable subscription {name!r} is for {known.type} WHERE {known.condition};"
                " give it up first, or take another name"
            )
        if known is not None:
            return known
        made = Durable(
            durable_id(owner, name), owner, name, type, condition, since_us, msgspec.msgpack.encode(tuple(tokens))
        )
        self.all[made.id] = made
        self.count_of[type] += 1
        self.journal.note_durable(made)
        return made

    def forget(self, durable: Durable) -> None:
        """Give a subscription up, with all that waits for it."""
        self.stop_reading(durable.id)
        if self.all.pop(durable.id, None) is not None:
            self.count_of[durable.type] -= 1
            self.journal.note_forgotten(durable)

    # ── Growing ──

    def add(self, id: str, told: bytes) -> None:
        """Put a notice behind the others of one subscription; it is sent once `commit`ted."""
        durable = self.all.get(id)
        if durable is None or (id in self.sealed and not self._is_new(id, told)):
            return
        body = self._kept(id, told)
        if durable.next_position - 1 - durable.acknowledged >= self._queue_max:
            self._bury(durable, told, body, f"queue: more than {self._queue_max} events wait for this subscriber")
            return
        self._fresh.append((id, self.journal.note_queued(durable, body), body))

    def _is_new(self, id: str, told: bytes) -> bool:
        """Whether a sealed event is not there under another broker's name: a member could list another's as its own.

        Who sealed it and when is in the seal, and no two are alike.
        """
        _, sender, moment = read_told(told).event
        seal = (id, sender, moment)
        if seal in self._seals:
            return False
        self._seals[seal] = None
        if len(self._seals) > SEALS_MAX:
            self._seals.popitem(last=False)
        return True

    def take_fresh(self) -> list[tuple[str, int, bytes]]:
        """What has been added since last asked; to be given to `committed` once it is on disk."""
        fresh, self._fresh = self._fresh, []
        return fresh

    def committed(self, fresh: list[tuple[str, int, bytes]]) -> None:
        """These are on disk: who reads gets them."""
        for id, position, body in fresh:
            reading = self._readings.get(id)
            if reading is not None:
                reading.tail.add(position, body)
                self._pump(reading)

    def waiting(self) -> int:
        """How many notices wait, over all subscriptions."""
        return sum(durable.next_position - 1 - durable.acknowledged for durable in self.all.values())

    # ── Read ──

    def read(self, durable: Durable, link: Outlet, stream: int, after: int | None = None) -> None:
        """Send what waits, and what comes, to its subscriber, from its last acknowledgement or its own word on.

        A subscriber that comes twice is served on the later connection.
        """
        self.stop_reading(durable.id)
        if after is not None and after > durable.acknowledged:
            self.journal.note_acknowledged(durable, after)
        tail = Tail(durable.acknowledged, durable.next_position - 1, lambda after, n: self._fetch(durable.id, after, n))
        reading = self._readings[durable.id] = Reading(durable, link, stream, tail)
        self._pump(reading)

    async def _fetch(self, id: str, after: int, at_most: int) -> list[tuple[int, bytes]]:
        return [(row.position, bytes(row.body)) for row in await self.journal.queued(id, after, at_most)]

    def stop_reading(self, id: str, link: Outlet | None = None) -> None:
        reading = self._readings.get(id)
        if reading is not None and (link is None or reading.link is link):
            del self._readings[id]
            if reading.pump is not None:
                reading.pump.cancel()

    def acknowledge(self, durable: Durable, position: int) -> None:
        """Everything up to `position` never comes again; of one that was given up, nothing waits."""
        if position > durable.acknowledged and self.all.get(durable.id) is durable:
            self.journal.note_acknowledged(durable, position)
            reading = self._readings.get(durable.id)
            if reading is not None:
                self._pump(reading)

    def _pump(self, reading: Reading) -> None:
        if reading.pump is None and reading.tail.has_more:
            reading.pump = asyncio.get_running_loop().create_task(self._send(reading))

    async def _send(self, reading: Reading) -> None:
        try:
            while reading.link.is_open and (room := self._room(reading)) > 0 and reading.tail.has_more:
                for position, body in await reading.tail.take(min(room, AT_ONCE)):
                    told = msgspec.Raw(self._at_rest.open(body))
                    if not reading.link.send(Notice(reading.stream, position, told)):
                        reading.tail.back_to(position - 1)
                        break
                await reading.link.drained()
        finally:
            reading.pump = None
        if reading.link.is_open and self._room(reading) > 0:
            self._pump(reading)

    def _room(self, reading: Reading) -> int:
        return UNACKNOWLEDGED_MAX - (reading.tail.at - reading.durable.acknowledged)

    # ── Dead letters ──

    async def reject(self, durable: Durable, position: int, why: str) -> None:
        """Put one notice aside, as its subscriber cannot use it."""
        found: list[QueuedNotice] = await self.journal.queued(durable.id, position - 1, 1)
        if found and found[0].position == position and self.all.get(durable.id) is durable:
            body = bytes(found[0].body)
            self._bury(durable, self._at_rest.open(body), body, f"rejected: {why[:500]}")
            self.journal.note_taken_out(durable, position)

    def _bury(self, durable: Durable, told: bytes, body: bytes, why: str) -> None:
        read: Told = read_told(told)
        self.journal.note_dead(durable, self._now_us(), show_event(read.event), read.type, why, body)

    def bury_unopened(self, header: Header, type: str, raw: bytes, only_for: str, why: str) -> None:
        """Put an event that cannot be opened aside, for each subscription that may want it; sealed as it is."""
        for durable in self.all.values():
            if durable.type == header.type and only_for in ("", durable.id):
                self.journal.note_dead(durable, self._now_us(), show_event(header.id), type, why, _UNOPENED + raw)

    def replay(self, letters: Sequence[DeadLetter]) -> int:
        """Put dead letters behind their queues again; those whose subscription is gone, or whose key is, stay."""
        revived = 0
        for letter in letters:
            durable = self.all.get(letter.durable)
            bodies = self._bodies(letter) if durable is not None else None
            if durable is not None and bodies is not None:
                self._fresh += [(durable.id, self.journal.note_queued(durable, body), body) for body in bodies]
                self.journal.note_revived(letter.number)
                revived += 1
        return revived

    def _bodies(self, letter: DeadLetter) -> list[bytes] | None:
        """The notice that a letter becomes, if any; None if it still cannot be opened."""
        body = bytes(letter.body)
        if body[:1] != _UNOPENED:
            return [body]
        bundle = self._deliver(body[1:])
        if bundle is None:
            return None
        return [self._kept(letter.durable, told) for id, told in bundle if id == letter.durable]

    def _kept(self, id: str, told: bytes) -> bytes:
        return self._at_rest.seal(told) if id in self.sealed else _PLAIN + told


def durable_id(owner: bytes, name: str) -> str:
    """Names a durable subscription for good, at every broker."""
    return hashlib.sha256(b"tidings/durable/1\0" + owner + name.encode()).hexdigest()[:24]
