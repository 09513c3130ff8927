"""What is owed: how each acknowledged event reaches each durable subscriber exactly once, whoever crashes.

The overlay carries events as well as it can; some overlays promise little, and none outlives a
`kill -9` in the middle. So a promise is kept beside it. Every broker tells all others which durable
subscriptions it has (`Wants`, signed, passed on from broker to broker). The broker where an event is
published, its *origin*, knows from that to whom the event is owed, and writes it down in the same
transaction as the event, before the publisher hears of it: for each such broker one number, without gaps.

    origin                                           broker with durable subscribers
    publish: event and numbers on disk
    overlay ── event ──────────────────────────────→ kept in memory, not told to anybody yet
    Lists(number: event id, …) ────────────────────→ all below are here: notices and number on disk together
              ←─────────────────────────── Confirms  numbers below are forgotten by the origin
              ←─────────────────────────────── Asks  listed and has not come
    Again(number, event) ──────────────────────────→

Numbers are taken in order, in the same transaction as the notices they become. So whatever is sent
twice is taken once, whatever is lost is asked for, and what one publisher said at one broker keeps its
order. The overlay is the fast way; correctness does not depend on it.

A subscription that an origin hears of late is tried on the events that the origin still keeps from
the subscription's beginning on, and these are owed to it alone. That also makes subscriptions that
begin in the past.

Nothing in here reads a clock, a socket or a disk.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec

from tidings.errors import FilterError, PeerError
from tidings.events import EventType, Value
from tidings.matching import Index
from tidings.net.transport.frames import Listed, Wants
from tidings.node import node_id_of
from tidings.overlay import EventId, NodeId, Peer
from tidings.security import Identity, verify_signature

WINDOW = 4096  # Numbers listed and not confirmed, per broker: bounds what the other end holds in memory.
EARLY_MAX = 65_536  # Events that came before they were listed; one pushed out is asked for.
ASK_AFTER_S = 0.5  # How long the overlay may take after the list before the origin is asked.
ASK_AGAIN_S = 2.0
ASKED_AT_ONCE = 256  # On their way from one origin: enough to keep its disk and the link busy.
INTERESTS_MAX = 200_000  # Of one broker; more makes its frame too large anyway.
BROKERS_MAX = 4096

Bundle: TypeAlias = list[tuple[str, bytes]]
"""For each durable subscription that an event matched, by id: the notice it becomes."""
TypeNamed: TypeAlias = Callable[[str], EventType | None]
"""The event type that a name stands for here, if it is known."""


class DurableInterest(msgspec.Struct, frozen=True, array_like=True):
    """One durable subscription as other brokers know it. No condition: all events of the type may be wanted."""

    id: str
    type: str
    condition: str
    since_us: int


class WantsBody(msgspec.Struct, frozen=True, array_like=True):
    """All durable subscriptions of one broker, and how many times it has told of them."""

    who: Peer
    version: int
    interests: tuple[DurableInterest, ...]


_BODY = msgspec.msgpack.Decoder(WantsBody)
_CONTEXT = b"tidings/wants/1\0"


def signed_wants(body: WantsBody, identity: Identity) -> Wants:
    """What a broker tells the others, so that nobody on the way can change it."""
    raw = msgspec.msgpack.encode(body)
    return Wants(raw, identity.public_key, identity.sign(_CONTEXT + raw))


def read_wants(wants: Wants) -> WantsBody:
    """What a broker has told; raises PeerError unless that broker itself has signed it."""
    verify_signature(wants.key, wants.signature, _CONTEXT + wants.body, "what a broker wants")
    try:
        body = _BODY.decode(wants.body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as wrong:
        raise PeerError(f"wants: {wrong}") from None
    if body.who.id != node_id_of(wants.key) or len(body.interests) > INTERESTS_MAX:
        raise PeerError("wants: not the signer's own, or too many")
    return body


class Demand:
    """Which brokers may want an event for their durable subscribers."""

    def __init__(self, type_named: TypeNamed) -> None:
        self._type_named = type_named
        self._known: dict[NodeId, WantsBody] = {}
        self._indexes: dict[str, Index] = {}
        self._for_all: dict[str, dict[str, None]] = {}  # By type: interests without a condition.

    def version_of(self, broker: NodeId) -> int:
        known = self._known.get(broker)
        return known.version if known else -1

    def versions(self) -> dict[NodeId, int]:
        return {broker: body.version for broker, body in self._known.items()}

    def peers(self) -> list[Peer]:
        """The brokers that have told of something, and where they are reached."""
        return [body.who for body in self._known.values()]

    def unknown_in(self, body: WantsBody) -> list[DurableInterest]:
        """What is new to this broker in what another tells."""
        known = self._known.get(body.who.id)
        ids = {interest.id for interest in known.interests} if known else set()
        return [interest for interest in body.interests if interest.id not in ids]

    def learn(self, body: WantsBody) -> None:
        """From now on, this is what that broker wants."""
        if body.who.id not in self._known and len(self._known) >= BROKERS_MAX:
            raise PeerError(f"wants: more than {BROKERS_MAX} brokers")
        old = self._known.get(body.who.id)
        kept = {interest.id for interest in body.interests}
        for interest in old.interests if old else ():
            if interest.id not in kept:
                self._remove(body.who.id, interest)
        for interest in self.unknown_in(body):
            self._add(body.who.id, interest)
        self._known[body.who.id] = body

    def knows(self, type: str) -> bool:
        """Whether anybody may want events of this type."""
        return type in self._for_all or type in self._indexes

    def brokers_for(self, type: str, values: Mapping[str, Value] | None) -> list[NodeId]:
        """To whom an event is owed, each once."""
        found: dict[NodeId, None] = {name.partition("/")[0]: None for name in self._for_all.get(type, ())}
        index = self._indexes.get(type)
        if index is not None and len(index) and values is not None:
            found.update((name.partition("/")[0], None) for name in index.match_values(values))
        return list(found)

    def _add(self, broker: NodeId, interest: DurableInterest) -> None:
        name, index = f"{broker}/{interest.id}", self._index(interest.type) if interest.condition else None
        try:
            if index is not None:
                index.add(name, interest.condition)
                return
        except FilterError:  # Of a newer version of the language, say: better too much than too little.
            pass
        self._for_all.setdefault(interest.type, {})[name] = None

    def _remove(self, broker: NodeId, interest: DurableInterest) -> None:
        name, index = f"{broker}/{interest.id}", self._indexes.get(interest.type)
        if self._for_all.get(interest.type, {}).pop(name, 1) is not None and index is not None and name in index:
            index.remove(name)

    def _index(self, type: str) -> Index | None:
        event_type = self._type_named(type)
        if event_type is not None and type not in self._indexes:
            self._indexes[type] = Index(event_type)
        return self._indexes.get(type)


def wants_event(interest: DurableInterest, event_type: EventType | None, values: Mapping[str, Any] | None) -> bool:
    """Whether one kept event may be wanted by one subscription; what cannot be told counts as yes."""
    if not interest.condition or event_type is None or values is None:
        return True
    index = Index(event_type)
    try:
        index.add("it", interest.condition)
    except FilterError:
        return True
    return bool(index.match_values(values))


@dataclass(slots=True)
class _Due:
    """One event listed and not taken yet."""

    event: EventId
    only_for: str
    ask_at: float


@dataclass(slots=True)
class _Stream:
    """What one origin owes this broker."""

    journal: bytes
    next_number: int
    safe: int  # Everything below is on disk here; only that is ever confirmed.
    listed: dict[int, _Due] = field(default_factory=dict)
    arrived: dict[int, Bundle] = field(default_factory=dict)
    asked: dict[int, None] = field(default_factory=dict)  # Asked for, and on their way.
    is_more_overdue: bool = False  # Than could be asked for.


class Dues:
    """What other brokers owe this one, and how much of it has come."""

    def __init__(self, heard: Iterable[tuple[NodeId, bytes, int]] = (), *, early_max: int = EARLY_MAX) -> None:
        """`heard` is how far each origin's numbers were taken in earlier lives."""
        self._streams = {origin: _Stream(bytes(journal), number, number) for origin, journal, number in heard}
        self._early: OrderedDict[EventId, Bundle] = OrderedDict()
        self._early_max = early_max

    def next_number(self, origin: NodeId) -> int:
        """Everything below is taken, and on disk or on its way there."""
        stream = self._streams.get(origin)
        return stream.next_number if stream else 1

    def safe(self, origin: NodeId) -> int:
        """Everything below is on disk: what the origin may be told, which then forgets it."""
        stream = self._streams.get(origin)
        return stream.safe if stream else 1

    def is_on_disk(self, origin: NodeId, journal: bytes, below: int) -> None:
        """What was taken below this number, of that journal, is on disk."""
        stream = self._streams.get(origin)
        if stream is not None and stream.journal == journal:
            stream.safe = max(stream.safe, below)

    def journal_of(self, origin: NodeId) -> bytes:
        """The journal whose numbers these are; another one begins anew."""
        stream = self._streams.get(origin)
        return stream.journal if stream else b""

    def came(self, event: EventId, notice: tuple[str, bytes]) -> None:
        """The overlay has brought an event that one more durable subscription wants."""
        bundle = self._early.get(event)
        if bundle is not None:
            bundle.append(notice)
            return
        if len(self._early) >= self._early_max:
            self._early.popitem(last=False)
        self._early[event] = [notice]

    def listed(self, origin: NodeId, journal: bytes, first: int, entries: Iterable[Listed], now: float) -> None:
        """An origin says what it owes. `first` is the lowest number that it has no word about."""
        stream = self._streams.get(origin)
        if stream is None or stream.journal != journal:
            stream = self._streams[origin] = _Stream(journal, first, first)
        if first > stream.next_number:  # This broker has forgotten what it had confirmed; it does not come again.
            stream.next_number = stream.safe = first
        end = stream.next_number + 2 * WINDOW
        for entry in entries:
            if stream.next_number <= entry.number < end:
                patience_s = 0.0 if entry.only_for else ASK_AFTER_S  # The overlay does not bring old events.
                stream.listed.setdefault(entry.number, _Due(entry.event, entry.only_for, now + patience_s))

    def again(self, origin: NodeId, number: int, bundle: Bundle) -> None:
        """The origin itself has sent a listed event."""
        stream = self._streams.get(origin)
        if stream is not None and number in stream.listed:
            stream.arrived[number] = bundle
            stream.asked.pop(number, None)

    def is_due(self, origin: NodeId, number: int) -> bool:
        """Whether an event with this number is still wanted from this origin."""
        stream = self._streams.get(origin)
        return stream is not None and number in stream.listed and number not in stream.arrived

    def event_at(self, origin: NodeId, number: int) -> EventId | None:
        """The event that an origin has listed under a number."""
        due = self._due(origin, number)
        return due.event if due else None

    def only_for(self, origin: NodeId, number: int) -> str:
        """The one durable subscription that a listed event is for; empty if it is for all."""
        due = self._due(origin, number)
        return due.only_for if due else ""

    def _due(self, origin: NodeId, number: int) -> _Due | None:
        stream = self._streams.get(origin)
        return stream.listed.get(number) if stream else None

    def ready(self, origin: NodeId) -> Iterator[tuple[EventId, Bundle]]:
        """What can be taken now, in order; each counts as taken when it is handed out."""
        stream = self._streams.get(origin)
        while stream is not None and (due := stream.listed.get(stream.next_number)) is not None:
            bundle = self._bundle(stream, due)
            if bundle is None:
                return
            del stream.listed[stream.next_number]
            stream.next_number += 1
            yield due.event, [notice for notice in bundle if due.only_for in ("", notice[0])]

    def _bundle(self, stream: _Stream, due: _Due) -> Bundle | None:
        sent = stream.arrived.pop(stream.next_number, None)
        if sent is not None:
            self._early.pop(due.event, None)
            return sent
        if due.only_for:
            return None  # What the overlay brought was matched before this subscription was there, perhaps.
        return self._early.pop(due.event, None)

    def overdue(self, origin: NodeId, now: float) -> list[int]:
        """The lowest numbers that have been waited for long enough; they are asked for, and asked again later.

        Only so many are on their way at a time; `can_ask` tells when there is room for more.
        """
        stream = self._streams.get(origin)
        if stream is None:
            return []
        late = sorted(n for n, due in stream.listed.items() if due.ask_at <= now and self._is_missing(stream, n))
        stream.asked = {number: None for number in stream.asked if self._is_coming(stream, number, now)}
        asked = late[: ASKED_AT_ONCE - len(stream.asked)]
        for number in asked:
            stream.listed[number].ask_at = now + ASK_AGAIN_S
            stream.asked[number] = None
        stream.is_more_overdue = len(asked) < len(late)
        return asked

    def can_ask(self, origin: NodeId) -> bool:
        """Whether more is overdue than could be asked for, and there is room for it now."""
        stream = self._streams.get(origin)
        return stream is not None and stream.is_more_overdue and len(stream.asked) <= ASKED_AT_ONCE // 2

    def _is_coming(self, stream: _Stream, number: int, now: float) -> bool:
        due = stream.listed.get(number)
        return due is not None and due.ask_at > now and self._is_missing(stream, number)

    def _is_missing(self, stream: _Stream, number: int) -> bool:
        due = stream.listed[number]
        return number not in stream.arrived and (bool(due.only_for) or due.event not in self._early)

    def origins(self) -> list[NodeId]:
        return [origin for origin, stream in self._streams.items() if stream.listed]

    def holdings(self) -> dict[str, tuple[int, int]]:
        """How many events wait in memory, and how many may."""
        waiting = sum(len(stream.listed) for stream in self._streams.values())
        return {
            "early": (len(self._early), self._early_max),
            "listed": (waiting, 2 * WINDOW * max(1, len(self._streams))),
        }
