"""What a broker tells about itself to clients of its own organisation: status, traces, dead letters; and draining."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from tidings.errors import InputError, did_you_mean
from tidings.events import to_declaration
from tidings.net.frames import Trace, Traced
from tidings.net.link import Link
from tidings.net.names import read_event_id, show_event
from tidings.node import Hop
from tidings.overlay import EventId, NodeId

if TYPE_CHECKING:
    from tidings.net.broker import Broker

Rows: TypeAlias = list[dict[str, Any]]
LETTERS_AT_ONCE = 1000
TRACE_S_MAX = 2.0  # What another broker says about an event is waited for so long.
TRACED_MAX = 16
TOLD_MAX = 100


class Queries:
    """The questions of one broker's clients."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._tickets = 0
        self._asked: dict[int, asyncio.Future[tuple[dict[str, Any], ...]]] = {}
        self._known: dict[str, Callable[[bytes, dict[str, Any]], Awaitable[Rows]]] = {
            "status": self._status,
            "trace": self._trace,
            "dlq": self._dead_letters,
            "dlq replay": self._replay,
            "durables": self._durables,
            "drain": self._drain,
            "type": self._type,
        }

    def named(self, what: str) -> Callable[[bytes, dict[str, Any]], Awaitable[Rows]]:
        """The question of this name; raises InputError if there is none."""
        if what not in self._known:
            raise InputError(f"a broker cannot be asked for {what[:80]!r}; {did_you_mean(what, self._known)}")
        return self._known[what]

    async def _status(self, key: bytes, options: dict[str, Any]) -> Rows:
        return [self.status()]

    def status(self) -> dict[str, Any]:
        """What there is to see of the broker, as JSON has it; nothing secret is in it."""
        b = self._broker
        node = b.node.status(asyncio.get_running_loop().time())
        return {
            "broker": b.config.name,
            "domain": b.config.domain,
            "address": b.address,
            "joined": b.is_joined.is_set(),
            "draining": b.is_draining,
            "stuck": b.journal.is_stuck,
            "linked": [
                {"id": id, "name": str(link.proven), "queued": link.queued_bytes} for id, link in b.links.open.items()
            ],
            "connected": [
                {"client": s.name, "published": s.published, "told": s.told, "lost": s.lost}
                for s in b.connections.sessions.values()
            ],
            "durables": len(b.queues.all),
            **b.promises.status(),
            "counts": dict(b.counts),
            **node,
        }

    async def _trace(self, key: bytes, options: dict[str, Any]) -> Rows:
        """What this broker did with an event, and what the brokers linked with it say they did."""
        event = read_event_id(str(options.get("event", "")))
        answers = [self._ask(peer, event) for peer in self._broker.links.ready_peers()]
        found = await asyncio.gather(*answers)
        return self.trace(event, self._broker.config.domain) + [row for rows in found for row in rows]

    async def _ask(self, peer: NodeId, event: EventId) -> Rows:
        ticket = self._tickets = self._tickets + 1
        answer = self._asked[ticket] = asyncio.get_running_loop().create_future()
        self._broker.links.open[peer].send(Trace(ticket, event))
        try:
            async with asyncio.timeout(TRACE_S_MAX):
                return list(await answer)
        except TimeoutError:
            return []
        finally:
            del self._asked[ticket]

    def receive(self, link: Link, frame: Trace | Traced) -> None:
        """A broker asks, or answers."""
        if isinstance(frame, Trace):
            link.send(Traced(frame.ticket, tuple(self.trace(frame.event, link.proven.domain))))
        elif (asked := self._asked.get(frame.ticket)) is not None and not asked.done():
            asked.set_result(frame.rows[:TRACED_MAX])

    def trace(self, event: EventId, asker: str) -> Rows:
        """What this broker did with an event, as one row; none if it does not remember it.

        Who was told is for the broker's own organisation only.
        """
        b = self._broker
        hop = b.node.hop(event)
        if hop is None:
            return []
        ago_s = asyncio.get_running_loop().time() - hop.at
        row = {
            "broker": b.config.name,
            "domain": b.config.domain,
            "type": hop.type,
            "ago_s": round(ago_s, 6),
            "came_from": b.broker_name(hop.came_from),
            "readable": list(hop.readable),
            "hidden": list(hop.hidden),
            "sent": [{"to": b.broker_name(to), "in_clear": list(shown)} for to, shown in hop.sent],
            "refused": hop.refused,
        }
        return [row | self._who_was_told(event, hop) if asker == b.config.domain else row]

    def _who_was_told(self, event: EventId, hop: Hop) -> dict[str, Any]:
        node, told = self._broker.node, {id for id, _ in hop.told}
        others = [one for one in node.subscriptions() if one.id not in told][:TOLD_MAX]
        return {
            "told": [{"client": client, "subscription": show_event(id)} for id, client in hop.told],
            "not_told": [{"client": one.client, "why": node.why(event, one.id)} for one in others],
        }

    async def _dead_letters(self, key: bytes, options: dict[str, Any]) -> Rows:
        letters = await self._broker.journal.dead_letters(key)
        return [
            {
                "number": letter.number,
                "subscription": self._name_of(letter.durable),
                "event": letter.event,
                "type": letter.type,
                "at_us": letter.at_us,
                "why": letter.why,
            }
            for letter in letters[:LETTERS_AT_ONCE]
        ]

    async def _replay(self, key: bytes, options: dict[str, Any]) -> Rows:
        numbers = options.get("numbers")
        letters = [
            letter for letter in await self._broker.journal.dead_letters(key) if not numbers or letter.number in numbers
        ]
        revived = self._broker.queues.replay(letters)
        await self._broker.take([])
        return [{"replayed": revived, "left": len(letters) - revived}]

    def _name_of(self, durable: str) -> str:
        found = self._broker.queues.all.get(durable)
        return found.name if found else durable

    async def _durables(self, key: bytes, options: dict[str, Any]) -> Rows:
        sizes = await self._broker.journal.queue_sizes()
        return [
            {
                "name": d.name,
                "type": d.type,
                "condition": d.condition,
                "acknowledged": d.acknowledged,
                "waiting": sizes.get(d.id, 0),
            }
            for d in self._broker.queues.all.values()
            if d.owner == key
        ]

    async def _type(self, key: bytes, options: dict[str, Any]) -> Rows:
        return [to_declaration(self._broker.types.meant(str(options.get("name", ""))).event_type)]

    async def _drain(self, key: bytes, options: dict[str, Any]) -> Rows:
        self._broker.drain_soon()
        return [{"draining": True}]
