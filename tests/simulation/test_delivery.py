"""Reliable delivery, simulated: links that lose, repeat and reorder, and brokers that crash with only their disks left.

Every broker publishes, and every broker has a durable subscriber. Whatever happens, each queue ends up with the events of
each origin exactly once and in the order in which they were published.
"""

from __future__ import annotations

import copy
import heapq
import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random

import pytest

from tidings.delivery.inbox import Inbox
from tidings.delivery.log_cursor import LogRead
from tidings.delivery.messages import Ack, Announce, DeliveryMessage, Nack, Retransmit, Rewind
from tidings.delivery.outbox import LogAncestor, Outbox, PendingEvent
from tidings.overlay import EventId

BROKERS = ("a", "b", "c")
EVENTS = 60  # Published at each broker.
TROUBLE_S = 60.0  # From then on nothing is lost, and nobody crashes.
END_S = 180.0
CHECK_EVERY_S = 0.25
WINDOW = 16  # Small, so that streams fall behind and are read from the log.


@dataclass(slots=True)
class Disk:
    """What survives a crash of one broker: the tables of its journal that delivery needs."""

    journal: bytes
    events: list[EventId] = field(default_factory=list)
    pending: dict[str, list[PendingEvent]] = field(default_factory=dict)
    streams: dict[str, tuple[int, int]] = field(default_factory=dict)
    received: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    queue: list[EventId] = field(default_factory=list)
    ancestors: list[LogAncestor] = field(default_factory=list)

    def restored(self) -> Disk:
        """A disk that continues this one, as a restore from a backup makes it."""
        numbers = {broker: next_number for broker, (next_number, _) in self.streams.items()}
        made = copy.deepcopy(self)
        made.journal, made.ancestors = self.journal[::-1] + b"'", [*self.ancestors, LogAncestor(self.journal, numbers)]
        return made

    def rows(self, broker: str, read: LogRead) -> list[PendingEvent]:
        return [row for row in self.pending.get(broker, ()) if row.number > read.after][: read.at_most]


class Broker:
    """One broker between two crashes: an outbox and an inbox over its disk."""

    def __init__(self, name: str, disk: Disk) -> None:
        self.name, self.disk = name, disk
        streams = [(broker, *numbers) for broker, numbers in disk.streams.items()]
        self.outbox = Outbox(disk.journal, streams, ancestors=disk.ancestors, window=WINDOW)
        received = [(origin, *position) for origin, position in disk.received.items()]
        self.inbox = Inbox(received, restored=bool(disk.ancestors), early_max=8)

    def publish(self, event: EventId) -> Iterable[tuple[str, DeliveryMessage | EventId]]:
        """Writes an event and its numbers to disk, then sends it into the overlay and announces it."""
        self.disk.events.append(event)
        others = [broker for broker in BROKERS if broker != self.name]
        for broker in others:
            pending = self.outbox.add(broker, len(self.disk.events), event)
            self.disk.pending.setdefault(broker, []).append(pending)
            self._save_stream(broker)
            self.outbox.committed(broker, pending)
        yield from ((broker, event) for broker in others)
        for broker in others:
            yield from self._announce(broker)

    def receive(
        self, sender: str, message: DeliveryMessage | EventId, now: float
    ) -> Iterable[tuple[str, DeliveryMessage | EventId]]:
        match message:
            case EventId():
                self.inbox.receive_from_overlay(message, ("d", b""))
                yield from self._release(message.origin)
            case Announce():
                rewind = self.inbox.receive_announce(sender, message, now)
                if rewind is not None:
                    yield sender, rewind
                else:
                    yield from self._release(sender)
            case Rewind(journal, number):
                if self.outbox.acked_from(sender, journal, number):
                    self.outbox.rewind(sender, number, number, now)
                    self._save_stream(sender)
                    yield from self._announce(sender)
            case Retransmit(number):
                if self.inbox.expects(sender, number):
                    self.inbox.receive_retransmit(sender, number, [("d", b"")])
                    yield from self._release(sender)
            case Ack(acked) | Nack(acked):
                if self.outbox.ack(sender, acked, now):
                    self._save_stream(sender)
                if isinstance(message, Nack):
                    wanted = [row for row in self.disk.pending.get(sender, ()) if row.number in message.numbers]
                    yield from ((sender, Retransmit(row.number, b"")) for row in wanted)
                yield from self._announce(sender)

    def check(self, now: float) -> Iterable[tuple[str, DeliveryMessage]]:
        for broker in self.outbox.unanswered(now):
            self.outbox.announce_again(broker, now)
        for broker in self.outbox.pending():
            yield from self._announce(broker)
        for origin in BROKERS:  # As when a link comes up.
            if origin != self.name and (rewind := self.inbox.rewind(origin)) is not None:
                yield origin, rewind
        for origin in self.inbox.origins():
            if (nack := self.inbox.nack(origin, now)) is not None:
                yield origin, nack

    def _announce(self, broker: str) -> Iterable[tuple[str, DeliveryMessage]]:
        while (step := self.outbox.next_step(broker)) is not None:
            if isinstance(step, LogRead):
                step = self.outbox.supply(broker, step, self.disk.rows(broker, step))
            if step is not None:
                yield broker, step

    def _release(self, origin: str) -> Iterable[tuple[str, DeliveryMessage]]:
        """In one transaction: the queue and the next number."""
        self.disk.queue += [event for event, deliveries in self.inbox.release(origin) if deliveries]
        journal, number = self.disk.received[origin] = self.inbox.position(origin)
        self.inbox.persisted(origin, journal, number)
        yield origin, self.inbox.ack(origin)

    def _save_stream(self, broker: str) -> None:
        stream = self.outbox.stream(broker)
        self.disk.streams[broker] = (stream.next_number, stream.acked)


class DeliveryWorld:
    """Brokers on links that lose, repeat and reorder; one seed, one outcome."""

    def __init__(self, seed: int, *, loss: float = 0.3, repeat: float = 0.2, crashes: int = 12) -> None:
        self.rng, self._loss, self._repeat = Random(seed), loss, repeat
        self.brokers = {name: Broker(name, Disk(name.encode() * 16)) for name in BROKERS}
        self._order = itertools.count()
        self._steps: list[tuple[float, int, str, str, DeliveryMessage | EventId | None]] = []
        for name in BROKERS:
            for at in sorted(self.rng.uniform(0.0, TROUBLE_S) for _ in range(EVENTS)):
                self._at(at, "publish", name)
            for tick in range(int(END_S / CHECK_EVERY_S)):
                self._at(tick * CHECK_EVERY_S, "check", name)
        for _ in range(crashes):
            self._at(self.rng.uniform(0.0, TROUBLE_S), "crash", self.rng.choice(BROKERS))

    def _at(self, when: float, what: str, name: str, message: DeliveryMessage | EventId | None = None) -> None:
        heapq.heappush(self._steps, (when, next(self._order), what, name, message))

    def restore(self, name: str, backup_at: float, at: float) -> None:
        """Has a broker be backed up at one moment, and replaced by what the backup holds at another."""
        self._backups = dict[str, Disk]()
        self._at(backup_at, "backup", name)
        self._at(at, "restore", name)

    def run(self) -> None:
        while self._steps:
            now, _, what, name, message = heapq.heappop(self._steps)
            broker = self.brokers[name]
            match what:
                case "publish":
                    life = len(broker.disk.ancestors)
                    sent = list(broker.publish(EventId(name, life, len(broker.disk.events) + 1)))
                case "check":
                    sent = list(broker.check(now))
                case "crash":  # All that was in memory is gone.
                    self.brokers[name] = Broker(name, broker.disk)
                    continue
                case "backup":
                    self._backups[name] = copy.deepcopy(broker.disk)
                    continue
                case "restore":  # Its connections end with the earlier copy.
                    self.brokers[name] = Broker(name, self._backups[name].restored())
                    self._steps = [step for step in self._steps if name not in (step[2], step[3]) or step[4] is None]
                    heapq.heapify(self._steps)
                    continue
                case sender:
                    assert message is not None
                    sent = list(broker.receive(sender, message, now))
            for to, each in sent:
                self._send(name, to, each, now)

    def _send(self, sender: str, to: str, message: DeliveryMessage | EventId, now: float) -> None:
        is_trouble = now < TROUBLE_S
        for _ in range(2 if is_trouble and self.rng.random() < self._repeat else 1):
            if not is_trouble or self.rng.random() >= self._loss:
                self._at(now + self.rng.uniform(0.01, 2.0 if is_trouble else 0.1), sender, to, message)


def received(broker: Broker, origin: str) -> list[EventId]:
    return [event for event in broker.disk.queue if event.origin == origin]


@pytest.mark.parametrize("seed", range(20))
def test_each_event_reaches_each_queue_once_and_in_order_whatever_is_lost_and_whoever_crashes(seed: int) -> None:
    world = DeliveryWorld(seed)
    world.run()
    for origin, broker in itertools.permutations(BROKERS, 2):
        assert received(world.brokers[broker], origin) == world.brokers[origin].disk.events
    assert not any(broker.outbox.pending_count() for broker in world.brokers.values())


@pytest.mark.parametrize("seed", range(20))
def test_a_broker_restored_from_a_backup_gets_and_gives_each_event_once(seed: int) -> None:
    """But for what it published itself between the backup and the restore: a part may have reached others, once."""
    world = DeliveryWorld(seed)
    world.restore("a", backup_at=world.rng.uniform(0.0, 40.0), at=world.rng.uniform(40.0, 70.0))
    world.run()
    for origin, broker in (("b", "a"), ("b", "c"), ("c", "a"), ("c", "b")):
        assert received(world.brokers[broker], origin) == world.brokers[origin].disk.events
    published = world.brokers["a"].disk.events
    for broker in ("b", "c"):
        got = received(world.brokers[broker], "a")
        assert [event for event in got if event in set(published)] == published
        assert len(set(got)) == len(got)


@pytest.mark.parametrize("seed", range(5))
def test_the_overlay_is_only_the_fast_path(seed: int) -> None:
    """With everything lost half of the time, what the overlay loses is retransmitted."""
    world = DeliveryWorld(seed, loss=0.5, crashes=0)
    world.run()
    for origin, broker in itertools.permutations(BROKERS, 2):
        assert received(world.brokers[broker], origin) == world.brokers[origin].disk.events


def test_one_seed_has_one_outcome() -> None:
    queues = []
    for _ in range(2):
        world = DeliveryWorld(7)
        world.run()
        queues.append([world.brokers[name].disk.queue for name in BROKERS])
    assert queues[0] == queues[1]
