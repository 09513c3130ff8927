"""Queries of a broker's own clients: status, dead letters, durable subscriptions, traces; and draining.

A trace asks every broker that had an event, along the path it took. A broker remembers for a while from which broker it
first received an event and to which it forwarded it. These paths form a tree. A broker that is asked reports what it did,
asks on along the tree, away from the asker, and replies with all reports:

    asked by the broker that the event came from    → asks those it forwarded the event to
    asked by one that it forwarded the event to     → asks those, and the broker that the event came from
    asked by any other, which it sent a copy to     → asks nobody: the event came by another path

Each broker waits less long than its asker does, so that the reports that exist come back even where a broker does not
reply. A report is the word of its broker: nobody vouches for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NamedTuple, TypeAlias

import msgspec

from tidings.errors import Denied, InputError, did_you_mean
from tidings.events import to_declaration
from tidings.net.broker.durable_queues import DurableQueues
from tidings.net.broker.periodic import BackgroundTasks
from tidings.net.broker.subscriptions import BrokerSubscriptions
from tidings.net.ids import read_event_id, show_event
from tidings.net.transport.connection import Link
from tidings.net.transport.frames import DeliveredTo, HopReport, NotDelivered, SentTo, TraceReply, TraceRequest
from tidings.net.transport.peer_links import PeerLinks
from tidings.node import Node, TraceHop, TypeRegistry
from tidings.overlay import EventId, NodeId
from tidings.security import fingerprint

Rows: TypeAlias = list[dict[str, Any]]
LETTERS_AT_ONCE = 1000
FOR_ADMINISTRATORS = frozenset({"drain"})
TRACE_S_MAX = 3.0  # For all brokers together.
WAIT_SHARE = 0.9  # Of the time that its asker waits, a broker waits for those it asks.
NEIGHBOURS_S = 1.0  # For the neighbours of a broker that does not know an event.
WAIT_S_MIN = 0.15  # With less time than this a broker asks nobody else: nearly thirty hops away.
ASKED_MAX = 256  # Requests without a reply; with more, a broker reports for itself only.
REPORTS_MAX = 128  # In one reply: they fit into a frame whatever is in them.
MISSED_MAX = 100  # Subscriptions of one broker that an event was not delivered to.


class Admin:
    """Answers the queries of one broker's clients."""

    def __init__(
        self,
        tracer: EventTracer,
        queues: DurableQueues,
        types: TypeRegistry,
        *,
        status: Callable[[], dict[str, Any]],
        subscriptions: BrokerSubscriptions,
        drain: Callable[[], None],
        live: Callable[[bytes], Rows],
        heard_by: Callable[[str], Rows],
    ) -> None:
        """`drain` begins to drain the broker.

        `live` gives the subscriptions of a client's key that are not durable, `heard_by` the brokers that have and have
        not confirmed a revocation.
        """
        self._tracer, self._queues, self._types = tracer, queues, types
        self._read_status, self._durable, self._start_drain = status, subscriptions, drain
        self._live, self._heard_by = live, heard_by
        self._known: dict[str, Callable[[bytes, dict[str, Any]], Awaitable[Rows]]] = {
            "status": self._status,
            "trace": self._trace,
            "dlq": self._dead_letters,
            "dlq replay": self._replay,
            "durables": self._durables,
            "forget": self._forget,
            "drain": self._drain,
            "heard": self._heard,
            "type": self._type,
            "types": self._list_types,
            "subscriptions": self._subscriptions,
        }

    def named(self, what: str, administers: bool) -> Callable[[bytes, dict[str, Any]], Awaitable[Rows]]:
        """The query of this name; raises InputError if there is none, Denied if only administrators may make it."""
        if what not in self._known:
            raise InputError(f"a broker cannot be asked for {what[:80]!r}; {did_you_mean(what, self._known)}")
        if what in FOR_ADMINISTRATORS and not administers:
            raise Denied(
                f"administer: `{what}` is for administrators of this organisation; `tidings client create NAME --admin` "
                "makes one"
            )
        return self._known[what]

    async def _status(self, key: bytes, options: dict[str, Any]) -> Rows:
        return [self._read_status()]

    async def _trace(self, key: bytes, options: dict[str, Any]) -> Rows:
        """The reports of all brokers that had an event (see `EventTracer`)."""
        hops = await self._tracer.trace(read_event_id(str(options.get("event", ""))))
        return [msgspec.to_builtins(hop) for hop in hops]

    async def _dead_letters(self, key: bytes, options: dict[str, Any]) -> Rows:
        letters = await self._queues.journal.dead_letters(key)
        return [
            {
                "number": letter.number,
                "subscription": self._name_of(letter.durable),
                "event": letter.event,
                "type": self._types.display_name(letter.type),
                "at_us": letter.at_us,
                "why": letter.why,
            }
            for letter in letters[:LETTERS_AT_ONCE]
        ]

    async def _replay(self, key: bytes, options: dict[str, Any]) -> Rows:
        numbers = options.get("numbers")
        letters = [
            letter for letter in await self._queues.journal.dead_letters(key) if not numbers or letter.number in numbers
        ]
        revived = self._queues.replay(letters, self._durable.match)
        self._queues.deliver_when_on_disk()
        await self._queues.saved()
        return [{"replayed": revived, "left": len(letters) - revived}]

    def _name_of(self, durable: str) -> str:
        found = self._queues.all.get(durable)
        return found.name if found else durable

    async def _durables(self, key: bytes, options: dict[str, Any]) -> Rows:
        sizes = await self._queues.journal.queue_sizes()
        return [
            {
                "name": d.name,
                "type": self._types.display_name(d.type),
                "condition": d.condition,
                "acknowledged": d.acknowledged,
                "waiting": sizes.get(d.id, 0),
            }
            for d in self._queues.all.values()
            if d.owner == key
        ]

    async def _forget(self, key: bytes, options: dict[str, Any]) -> Rows:
        """Deletes a durable subscription, whatever its condition is; its owner needs no right for that."""
        name, type = str(options.get("durable", "")), options.get("type")
        durable = self._queues.find(key, name)
        if durable is None:
            return [{"forgotten": False}]
        if type is not None and self._types.find(str(type)).name != durable.type:
            return [{"forgotten": False, "type": self._types.display_name(durable.type)}]
        await self._durable.forget_durable(durable)
        return [{"forgotten": True}]

    async def _type(self, key: bytes, options: dict[str, Any]) -> Rows:
        return [to_declaration(self._types.find(str(options.get("name", ""))).event_type)]

    async def _list_types(self, key: bytes, options: dict[str, Any]) -> Rows:
        return [
            {
                "name": known.event_type.name,
                "version": known.signed.version if known.signed else None,
                "owner": fingerprint(known.signed.owner_key) if known.signed else None,
                "mode": known.signed.mode.name.lower() if known.signed else "open",
                "attributes": {each.name: str(each.type) for each in known.event_type},
                "id": known.name,
                "attribute_ids": {n: id.hex() for n, id in known.signed.attr_ids.items()} if known.signed else {},
            }
            for known in self._types.all()
        ]

    async def _subscriptions(self, key: bytes, options: dict[str, Any]) -> Rows:
        return [{**row, "durable": True} for row in await self._durables(key, options)] + self._live(key)

    async def _heard(self, key: bytes, options: dict[str, Any]) -> Rows:
        return self._heard_by(str(options.get("revocation", "")))

    async def _drain(self, key: bytes, options: dict[str, Any]) -> Rows:
        self._start_drain()
        return [{"draining": True}]


class _Dated(NamedTuple):
    """What a broker reports about an event, and when it received the event, by this broker's clock."""

    at: float
    report: HopReport


class EventTracer:
    """Finds out which brokers an event went through, and what each did with it."""

    def __init__(
        self,
        node: Node,
        links: PeerLinks,
        tasks: BackgroundTasks,
        name: str,
        domain: str,
        client_name: Callable[[str], str],
    ) -> None:
        """`name` and `domain` are this broker's own; `client_name` says who a client of the node is, for people."""
        self._node, self._links, self._tasks, self._name, self._domain = node, links, tasks, name, domain
        self._client_name = client_name
        self._loop = asyncio.get_running_loop()
        self._tickets = 0
        self._asked: dict[int, tuple[float, asyncio.Future[list[_Dated]]]] = {}

    async def trace(self, event: EventId) -> list[HopReport]:
        """All reports about an event, for a client of this broker, in the order of its path."""
        hop = self._node.hop(event)
        if hop is None:
            found = await self._through_who_knows(event)
        else:
            mine = self._mine(event, hop, self._domain)
            others = await self._along(event, hop, "", up=True, wait_s=TRACE_S_MAX)
            found = [mine, *(each for each in others if _name(each.report) != _name(mine.report))]
        return self._as_of_now(_in_order(found))

    async def _through_who_knows(self, event: EventId) -> list[_Dated]:
        """This broker does not know the event, or has forgotten it: a neighbour that knows it traces it."""
        peers = self._links.ready_peers()
        answers = await asyncio.gather(*(self._ask(peer, event, up=False, wait_s=NEIGHBOURS_S) for peer in peers))
        knows = [peer for peer, found in zip(peers, answers) if found]
        return await self._ask(knows[0], event, up=True, wait_s=TRACE_S_MAX) if knows else []

    # ── Requests ──

    async def _along(self, event: EventId, hop: TraceHop, asker: NodeId, *, up: bool, wait_s: float) -> list[_Dated]:
        """The reports of the brokers that the event went to from here, and with `up` of the one it came from; never the asker."""
        further = {to: False for to, _ in hop.sent if to != hop.came_from}
        if up and hop.came_from:
            further[hop.came_from] = True
        further.pop(asker, None)
        answers = [self._ask(peer, event, up=up, wait_s=wait_s) for peer, up in further.items()]
        return [each for found in await asyncio.gather(*answers) for each in found]

    async def _ask(self, peer: NodeId, event: EventId, *, up: bool, wait_s: float) -> list[_Dated]:
        link = self._links.ready(peer)
        if link is None or wait_s < WAIT_S_MIN or len(self._asked) >= ASKED_MAX:
            return []
        self._tickets = ticket = self._tickets + 1
        answer: asyncio.Future[list[_Dated]] = self._loop.create_future()
        self._asked[ticket] = self._loop.time(), answer
        link.send(TraceRequest(ticket, event, up, wait_s * WAIT_SHARE))
        try:
            async with asyncio.timeout(wait_s):
                return await answer
        except TimeoutError:
            return []
        finally:
            del self._asked[ticket]

    # ── Replies ──

    def receive(self, link: Link, frame: TraceRequest | TraceReply) -> None:
        """A request or a reply of another broker."""
        if isinstance(frame, TraceRequest):
            self._tasks.start(self._answer(link, frame))
        else:
            self._answered(frame)

    async def _answer(self, link: Link, asked: TraceRequest) -> None:
        began, hop, asker = self._loop.time(), self._node.hop(asked.event), link.proven.id
        found: list[_Dated] = []
        if hop is not None:
            if asked.up or asker == hop.came_from:
                wait_s = min(asked.wait_s, TRACE_S_MAX)
                found = await self._along(asked.event, hop, asker, up=asked.up, wait_s=wait_s)
            found = [self._mine(asked.event, hop, link.proven.domain), *found]
        if link.proven.domain != self._domain:
            found = [_Dated(at, msgspec.structs.replace(report, told=(), missed=())) for at, report in found]
        took_s = self._loop.time() - began
        link.send(TraceReply(asked.ticket, tuple(self._as_of_now(found[:REPORTS_MAX])), took_s))

    def _answered(self, frame: TraceReply) -> None:
        """Of the round trip without the time that the other end took, half was the way back."""
        asked_at, answer = self._asked.get(frame.ticket, (0.0, None))
        if answer is None or answer.done():
            return
        now = self._loop.time()
        on_the_way_s = max(0.0, now - asked_at - max(0.0, frame.took_s)) / 2
        answer.set_result([_Dated(now - on_the_way_s - report.ago_s, report) for report in frame.hops[:REPORTS_MAX]])

    def _as_of_now(self, found: Iterable[_Dated]) -> list[HopReport]:
        now = self._loop.time()
        return [msgspec.structs.replace(report, ago_s=round(now - at, 6)) for at, report in found]

    # ── This broker's own report ──

    def _mine(self, event: EventId, hop: TraceHop, asker: str) -> _Dated:
        """To whom the event was delivered, and to whom not, is for the broker's own organisation only."""
        report = HopReport(
            broker=self._name,
            domain=self._domain,
            type=hop.type,
            ago_s=0.0,
            came_from=self._broker_name(hop.came_from) if hop.came_from else "",
            readable=hop.readable,
            hidden=hop.hidden,
            sent=tuple(SentTo(self._broker_name(to), shown) for to, shown in hop.sent),
            refused=hop.refused,
        )
        if asker == self._domain:
            report = msgspec.structs.replace(report, told=self._told(hop), missed=self._missed(event, hop))
        return _Dated(hop.at, report)

    def _broker_name(self, id: NodeId) -> str:
        """The name of a broker, if it is linked; its id otherwise."""
        link = self._links.open.get(id)
        return f"{link.proven.domain}/{link.proven.name}" if link else id

    def _told(self, hop: TraceHop) -> tuple[DeliveredTo, ...]:
        name_of = self._client_name
        return tuple(DeliveredTo(name_of(client), show_event(id)) for id, client in dict.fromkeys(hop.delivered))

    def _missed(self, event: EventId, hop: TraceHop) -> tuple[NotDelivered, ...]:
        node, told = self._node, {id for id, _ in hop.delivered}
        others = [one for one in node.subscriptions() if one.id not in told][:MISSED_MAX]
        return tuple(NotDelivered(self._client_name(one.client), node.why(event, one.id)) for one in others)


def _in_order(found: Iterable[_Dated]) -> list[_Dated]:
    """Each broker once, after the one that the event came from, and no earlier than that.

    A request takes as long on a link as the event did, so the times alone are not exact enough.
    """
    waiting = {_name(each.report): each for each in sorted(found, key=lambda each: each.at)}
    placed: dict[str, _Dated] = {}
    while waiting:
        ready = [name for name, each in waiting.items() if each.report.came_from not in waiting]
        for name in ready or list(waiting):  # A cycle: some broker lies.
            at, report = waiting.pop(name)
            before = placed.get(report.came_from)
            placed[name] = _Dated(max(at, before.at) if before else at, report)
    return sorted(placed.values(), key=lambda each: each.at)


def _name(report: HopReport) -> str:
    return f"{report.domain}/{report.broker}"
