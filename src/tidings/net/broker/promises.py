"""The promise, kept live: `owed` on real links, with a journal behind it.

`Promises` is both sides at once, as every broker is. As an origin it writes down what it owes and to
whom, lists it to whoever is linked, and sends again what is asked for. As a broker with durable subscribers it
takes what is listed in order and confirms it once it is on disk.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import msgspec

from tidings.errors import InputError, PeerError
from tidings.net.broker.journal import READ_ROWS, Durable, Journal, OwedEvent, parts
from tidings.net.broker.owed import (
    ASK_AFTER_S,
    WINDOW,
    Bundle,
    Demand,
    Dues,
    DurableInterest,
    WantsBody,
    read_wants,
    signed_wants,
    wants_event,
)
from tidings.net.broker.tail import Tail
from tidings.net.ids import now_us
from tidings.net.transport.connection import Link
from tidings.net.transport.frames import Again, Asks, Confirms, Frame, Listed, Lists, Versions, Wants
from tidings.net.transport.peer_links import Links
from tidings.node import TypeRegistry, decode_stored, stored_values
from tidings.overlay import EventId, NodeId, Peer
from tidings.security import Identity

SKEW_US = (
    5_000_000  # How far two brokers' clocks may differ before a new subscription misses events of its first moments.
)
RECENT_MAX = 8192  # Events kept in memory to close the gap between reading the journal and being up to date.
LIST_AT_ONCE = 512
READ_AT_ONCE = 64  # Events read from the journal together: each reading waits for the group being written.
UNREADABLE_S_MAX = (
    60.0  # How long an event's key is waited for once the manager has answered; later ones are not meant for us.
)
CHECK_EVERY_S = ASK_AFTER_S / 2
LIST_AGAIN_S = 5.0  # Without a word from the other end.
COMPARE_EVERY = 20  # Checks between two comparisons of who wants what: whatever told of it may have been lost.

log = logging.getLogger("tidings.promises")


class Recent(NamedTuple):
    """A published event, for subscriptions that are heard of just after it."""

    position: int
    event: EventId
    type: str
    at_us: int
    raw: bytes


@dataclass(slots=True)
class Debt:
    """What is owed to one broker."""

    next_number: int
    confirmed: int  # Everything below is safe there.
    tail: Tail[OwedEvent]
    pump: asyncio.Task[None] | None = None
    moved_at: float = 0.0  # When something was last confirmed, or all was listed again.


@dataclass(slots=True)
class Past:
    """The kept events that one new subscription wants, as far as the journal was read."""

    interest: DurableInterest | None = None
    reached: int = 0
    found: list[Recent] = field(default_factory=list)


class Host(Protocol):
    """What promises need from the broker they belong to."""

    identity: Identity
    me: Peer
    journal: Journal
    links: Links
    types: TypeRegistry

    def deliver(self, raw: bytes) -> Bundle | None:
        """Match an event against this broker's own durable subscriptions; None if its key may still come."""

    def awaits_keys(self, raw: bytes) -> bool:
        """Whether no event of its type can be opened yet, as this broker has just started and the keys have not come."""

    def bury(self, raw: bytes, only_for: str, why: str) -> None:
        """Put an event that cannot be opened among the dead letters of those that may want it."""

    async def take(self, ready: Sequence[tuple[EventId, Bundle]]) -> None:
        """Put events into the durable queues; returns once they are on disk, with what was noted before."""


class Promises:
    """One broker's part in `owed`."""

    def __init__(self, host: Host) -> None:
        self.host, self.journal = host, host.journal
        self.demand = Demand(host.types.event_type)
        self.dues = Dues(self.journal.heard())
        self._debts: dict[NodeId, Debt] = {}
        self._recent: deque[Recent] = deque(maxlen=RECENT_MAX)
        self._learning = asyncio.Lock()
        self._settled = asyncio.Event()
        self._taking: dict[NodeId, asyncio.Task[None]] = {}
        self._unreadable: dict[tuple[NodeId, int], float] = {}
        self._to_take: dict[NodeId, bool] = {}  # Whether an answer is due even if nothing is ready.
        self._wants: dict[NodeId, Wants] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._version = int.from_bytes(self.journal.meta("wants version") or b"\0", "big")
        self._remember()
        self._checker = self._start(self._check_now_and_then())

    def _remember(self) -> None:
        for broker, next_number, confirmed in self.journal.streams():
            self._debts[broker] = self._debt(broker, next_number, confirmed)
        for broker, _, body in self.journal.wants():
            wants = msgspec.msgpack.decode(body, type=Wants)
            self._wants[broker] = wants
            self.demand.learn(read_wants(wants))
        self.host.links.learn(self.demand.peers())
        for broker, debt in self._debts.items():
            if debt.confirmed < debt.next_number and broker != self.host.me.id:
                self.host.links.keep(broker)

    def _debt(self, broker: NodeId, next_number: int, confirmed: int) -> Debt:
        async def fetch(after: int, at_most: int) -> list[tuple[int, OwedEvent]]:
            return [(owed.number, owed) for owed in await self.journal.owed(broker, after + 1, at_most)]

        return Debt(next_number, confirmed, Tail(confirmed - 1, next_number - 1, fetch))

    # ── As an origin ──

    def owe(self, position: int, event: EventId, type: str, at_us: int, raw: bytes) -> list[tuple[NodeId, OwedEvent]]:
        """Note to whom a published event is owed; hand the result to `committed` once it is on disk."""
        self._recent.append(Recent(position, event, type, at_us, raw))
        if not self.demand.knows(type):
            return []
        brokers = self.demand.brokers_for(type, stored_values(raw))
        return [(broker, self._owe(broker, position, event, "")) for broker in brokers]

    def _owe(self, broker: NodeId, position: int, event: EventId, only_for: str) -> OwedEvent:
        debt = self._debts.get(broker)
        if debt is None:
            debt = self._debts[broker] = self._debt(broker, 1, 1)
        owed = OwedEvent(debt.next_number, position, event, only_for)
        debt.next_number += 1
        self.journal.note_owed(broker, owed)
        self.journal.note_stream(broker, debt.next_number, debt.confirmed)
        return owed

    def committed(self, owed: Sequence[tuple[NodeId, OwedEvent]]) -> None:
        """These are on disk: who is linked is told."""
        for broker, entry in owed:
            debt = self._debts[broker]
            debt.tail.add(entry.number, entry)
            self._pump(broker, debt)

    def _pump(self, broker: NodeId, debt: Debt) -> None:
        if broker == self.host.me.id:
            return  # Paid by `_pay_myself`.
        link = self.host.links.ready(broker)
        if link is None:
            self.host.links.keep(broker)
        elif debt.pump is None and debt.tail.has_more:
            debt.pump = self._start(self._list(link, debt))

    async def _list(self, link: Link, debt: Debt) -> None:
        try:
            while link.is_open and debt.tail.has_more and (room := debt.confirmed + WINDOW - debt.tail.at - 1) > 0:
                taken = await debt.tail.take(min(room, LIST_AT_ONCE))
                listed = tuple(Listed(number, owed.event, owed.only_for) for number, owed in taken)
                if taken and not link.send(Lists(self.journal.id, debt.confirmed, listed)):
                    debt.tail.back_to(taken[0][0] - 1)
                await link.drained()
        finally:
            if debt.pump is asyncio.current_task():
                debt.pump = None

    def _confirm(self, broker: NodeId, below: int) -> None:
        debt = self._debts.get(broker)
        if debt is None or not debt.confirmed < below <= debt.next_number:
            return
        debt.confirmed = below
        debt.moved_at = asyncio.get_running_loop().time()
        self.journal.note_confirmed(broker, below)
        self._settled.set()
        self.journal.note_stream(broker, debt.next_number, below)
        self._pump(broker, debt)

    async def give_up(self, before_us: int) -> None:
        """Let go of what is owed for too long: its broker has not come back."""
        for broker, last in await self.journal.owed_too_long(before_us):
            log.error("events are given up that a broker never confirmed", extra={"broker": broker, "up_to": last})
            self._confirm(broker, last + 1)

    def owes_myself(self) -> bool:
        """Whether events published here wait for durable subscriptions of this very broker."""
        debt = self._debts.get(self.host.me.id)
        return debt is not None and debt.confirmed < debt.next_number

    def owe_myself(self, position: int, event: EventId) -> None:
        """Note that an event published here is for this broker's own durable subscribers, later."""
        self._owe(self.host.me.id, position, event, "")

    async def _pay_myself(self) -> None:
        """Many at a time: one by one they would be published faster than they are paid, and never all be."""
        me = self.host.me.id
        while self.owes_myself():
            debt = self._debts[me]
            numbers = range(debt.confirmed, min(debt.confirmed + READ_AT_ONCE, debt.next_number))
            raws = dict(await self.journal.events_owed(me, numbers))
            if not await self._pay([(number, raws.get(number)) for number in numbers]):
                return

    async def _pay(self, owed: Sequence[tuple[int, bytes | None]]) -> bool:
        """Pay this broker's own subscribers, up to the first event whose key may still come; whether there was none."""
        me, ready, paid = self.host.me.id, list[tuple[EventId, Bundle]](), owed[0][0]
        for number, raw in owed:
            bundle = self._opened(me, number, raw) if raw is not None else []
            if bundle is None:
                break
            if raw is not None:
                ready.append((decode_stored(raw).header.id, bundle))
            paid = number + 1
        self._confirm(me, paid)  # In one transaction with the notices.
        await self.host.take(ready)
        return paid > owed[-1][0]

    async def _send_again(self, link: Link, numbers: Sequence[int]) -> None:
        for some in parts(numbers, READ_AT_ONCE):
            for number, raw in await self.journal.events_owed(link.proven.id, some):
                if not link.is_open:
                    return
                link.send(Again(number, raw))
                await link.drained()

    # ── Who wants what ──

    def tell(self, durables: Sequence[Durable]) -> None:
        """This broker's durable subscriptions are these now: all others get to know."""
        self._version = max(self._version + 1, now_us())  # Grows even where the journal was lost.
        self.journal.note_meta("wants version", self._version.to_bytes(8, "big"))
        interests = tuple(
            DurableInterest(d.id, d.type, d.condition if self.host.types.is_plain(d.type) else "", d.since_us)
            for d in durables
        )
        wants = signed_wants(WantsBody(self.host.me, self._version, interests), self.host.identity)
        self._wants[self.host.me.id] = wants
        for peer in self.host.links.ready_peers():
            self.host.links.open[peer].send(wants)

    def link_ready(self, peer: NodeId) -> None:
        """A link is up: compare what is known of wants, and go on listing where the other end has confirmed."""
        link = self.host.links.open[peer]
        link.send(Versions(self._versions()))
        debt = self._debts.get(peer)
        if debt is not None:
            self._list_again(peer, debt)

    def _list_again(self, broker: NodeId, debt: Debt) -> None:
        """Begin with what is not confirmed: the other end, or the link, may have lost what was listed."""
        if debt.pump is not None:
            debt.pump.cancel()
            debt.pump = None
        debt.tail.back_to(debt.confirmed - 1)
        debt.moved_at = asyncio.get_running_loop().time()
        self._pump(broker, debt)

    def _versions(self) -> dict[NodeId, int]:
        return {**self.demand.versions(), self.host.me.id: self._version if self.host.me.id in self._wants else -1}

    def _send_newer(self, link: Link, known: Mapping[NodeId, int]) -> None:
        for broker, version in self._versions().items():
            if version > known.get(broker, -1) and broker in self._wants:
                link.send(self._wants[broker])

    async def _learn(self, wants: Wants, link: Link) -> None:
        """One at a time: an origin must not be of two minds about what a broker wants."""
        body = read_wants(wants)
        broker = body.who.id
        if broker == self.host.me.id:
            self._version = max(self._version, body.version)  # From before this broker's journal was lost.
            return
        async with self._learning:
            if body.version <= self.demand.version_of(broker):
                return
            self.host.links.learn([body.who])
            owed = await self._owe_the_past(broker, self.demand.unknown_in(body))
            self.demand.learn(body)
            self._wants[broker] = wants
            self.journal.note_wants(broker, body.version, msgspec.msgpack.encode(wants))
        for peer in self.host.links.ready_peers():
            if peer not in (broker, link.proven.id):
                self.host.links.open[peer].send(wants)
        await self.journal.committed()
        self.committed(owed)

    async def _owe_the_past(self, broker: NodeId, new: list[DurableInterest]) -> list[tuple[NodeId, OwedEvent]]:
        """What new subscriptions should have had. The last part is done without a pause, so nothing comes between."""
        pasts = [Past(interest) for interest in new]
        while late := [past for past in pasts if not self._is_near(past.reached)]:
            for past in late:
                assert past.interest is not None
                past.reached = await self._scan(past.interest, past.reached, past.found)
        return [
            (broker, self._owe(broker, recent.position, recent.event, past.interest.id))
            for past in pasts
            if past.interest is not None
            for recent in self._all_of(past)
        ]

    def _is_near(self, position: int) -> bool:
        """Whether everything after a position is in memory."""
        first = self._recent[0].position if self._recent else self.journal.next_event
        return position >= first - 1

    async def _scan(self, interest: DurableInterest, after: int, found: list[Recent]) -> int:
        end = self.journal.next_event
        kept = await self.journal.events_since(interest.since_us - SKEW_US, interest.type, after, end)
        found += [recent for event in kept if self._is_for(interest, recent := Recent(*event))]
        return kept[-1].position if len(kept) == READ_ROWS else end - 1

    def _is_for(self, interest: DurableInterest, recent: Recent) -> bool:
        if recent.type != interest.type or recent.at_us < interest.since_us - SKEW_US:
            return False
        return wants_event(interest, self.host.types.event_type(interest.type), stored_values(recent.raw))

    async def past_of(self, type: str, condition: str, since_us: int) -> Past:
        """What a new subscription of this very broker should have had; `all_of` closes the gap without a pause."""
        interest = DurableInterest("", type, condition, since_us + SKEW_US)  # One clock: no skew.
        past = Past(interest)
        while not self._is_near(past.reached):
            past.reached = await self._scan(interest, past.reached, past.found)
        return past

    def all_of(self, past: Past) -> list[bytes]:
        """The events of a past, oldest first, up to this moment."""
        return [recent.raw for recent in self._all_of(past)]

    def _all_of(self, past: Past) -> list[Recent]:
        if past.interest is None:
            return []
        later = [recent for recent in self._recent if recent.position > past.reached]
        return [*past.found, *(recent for recent in later if self._is_for(past.interest, recent))]

    # ── As a broker with durable subscribers ──

    async def receive(self, link: Link, frame: Frame) -> None:
        """Take a frame of another broker's."""
        origin, now = link.proven.id, asyncio.get_running_loop().time()
        match frame:
            case Versions(known):
                self._send_newer(link, known)
            case Wants():
                self._start(self._learn_or_cut(frame, link))
            case Lists(journal, first, listed):
                if any(entry.event.origin != origin for entry in listed):
                    raise PeerError("lists: a broker owes the events that were published there, and no others")
                self.dues.listed(origin, journal, first, listed, now)
                self._take(origin, answer=True)
            case Asks(confirmed, numbers):
                self._confirm(origin, confirmed)
                self._start(self._send_again(link, numbers[:WINDOW]))
            case Confirms(confirmed):
                self._confirm(origin, confirmed)
            case Again(number, raw):
                if self.dues.is_due(origin, number):
                    self._sent_again(origin, number, raw)
            case _:
                raise PeerError(f"frame: {type(frame).__name__} has no place between brokers")

    def _sent_again(self, origin: NodeId, number: int, raw: bytes) -> None:
        """An event that cannot be opened yet is asked for again, for a while: its key may be on its way."""
        try:
            if decode_stored(raw).header.id != self.dues.event_at(origin, number):
                raise PeerError("again: another event than the one listed")
            bundle = self._opened(origin, number, raw)
        except (PeerError, InputError) as wrong:
            log.warning("an event that was owed cannot be used", extra={"origin": origin, "why": str(wrong)})
            bundle = []
        if bundle is not None:
            self.dues.again(origin, number, bundle)
            self._take(origin)
            if self.dues.can_ask(origin):
                self._ask(origin)

    def _opened(self, origin: NodeId, number: int, raw: bytes) -> Bundle | None:
        """Whom an owed event is for. None: its key may still come. After that it is a dead letter, and for nobody."""
        bundle, now = self.host.deliver(raw), asyncio.get_running_loop().time()
        since = self._unreadable.setdefault((origin, number), now)
        if bundle is None and self.host.awaits_keys(raw):
            self._unreadable[origin, number] = now  # All keys are missing, not this event's: its time has not begun.
            return None
        if bundle is None and now - since < UNREADABLE_S_MAX:
            return None
        del self._unreadable[origin, number]
        if bundle is None:
            why = f"key: the event could not be opened within {UNREADABLE_S_MAX:.0f} s"
            log.error("an event that was owed cannot be opened", extra={"origin": origin, "number": number})
            self.host.bury(raw, self.dues.only_for(origin, number), why)
        return bundle or []

    async def _learn_or_cut(self, wants: Wants, link: Link) -> None:
        try:
            await self._learn(wants, link)
        except PeerError as wrong:
            self.host.links.cut(link.proven.id, str(wrong))

    def came(self, event: EventId, durable: str, told: bytes) -> None:
        """The overlay has brought an event that a durable subscription of this broker's wants."""
        self.dues.came(event, (durable, told))
        self._take(event.origin)

    def _take(self, origin: NodeId, *, answer: bool = False) -> None:
        """Have what is ready taken soon, everything that comes in this turn of the loop at once."""
        self._to_take[origin] = self._to_take.get(origin, False) or answer
        if origin not in self._taking:
            self._taking[origin] = self._start(self._take_ready(origin))

    async def _take_ready(self, origin: NodeId) -> None:
        try:
            while origin in self._to_take:
                answer = self._to_take.pop(origin)
                if ready := list(self.dues.ready(origin)):
                    heard = (self.dues.journal_of(origin), self.dues.next_number(origin))
                    self.journal.note_heard(origin, *heard)
                    await self.host.take(ready)
                    self.dues.is_on_disk(origin, *heard)
                if (ready or answer) and (link := self.host.links.ready(origin)) is not None:
                    link.send(Confirms(self.dues.safe(origin)))
        finally:
            del self._taking[origin]

    async def _check_now_and_then(self) -> None:
        """Ask for what is late, list again what nobody has answered to, and compare wants."""
        for tick in itertools.count():
            await asyncio.sleep(CHECK_EVERY_S)
            now = asyncio.get_running_loop().time()
            await self._pay_myself()
            for broker, debt in list(self._debts.items()):
                if debt.confirmed <= debt.tail.at and now > debt.moved_at + LIST_AGAIN_S:
                    self._list_again(broker, debt)
            for peer in self.host.links.ready_peers() if tick % COMPARE_EVERY == 0 else ():
                self.host.links.open[peer].send(Versions(self._versions()))
            for origin in self.dues.origins():
                self._ask(origin)

    def _ask(self, origin: NodeId) -> None:
        """Ask for what is late. Confirms only what is on disk: what is being written may be lost with this process."""
        link, now = self.host.links.ready(origin), asyncio.get_running_loop().time()
        if link is not None and (late := self.dues.overdue(origin, now)):
            link.send(Asks(self.dues.safe(origin), tuple(late)))

    # ── Being looked at ──

    def owed_count(self) -> int:
        """How many events are owed to others and not confirmed."""
        return sum(debt.next_number - debt.confirmed for debt in self._debts.values())

    async def nothing_owed(self) -> None:
        """Waits until all that is owed to others is confirmed."""
        while self.owed_count():
            self._settled.clear()
            await self._settled.wait()

    def status(self) -> dict[str, Any]:
        owed = {broker: debt.next_number - debt.confirmed for broker, debt in self._debts.items()}
        return {"owed": {broker: n for broker, n in owed.items() if n}, **self.dues.holdings()}

    def _start(self, work: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("keeping a promise failed", exc_info=error)

    def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
