"""What a broker tells about itself to clients of its own organisation: status, traces, dead letters; and draining."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from tidings.errors import InputError, did_you_mean
from tidings.events import to_declaration
from tidings.net.broker.tracing import Tracing
from tidings.net.ids import read_event_id

if TYPE_CHECKING:
    from tidings.net.broker.broker import Broker

Rows: TypeAlias = list[dict[str, Any]]
LETTERS_AT_ONCE = 1000


class Queries:
    """The questions of one broker's clients."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.tracing = Tracing(broker)
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
        """What this broker did with an event, and what all others say that had it (see `tracing`)."""
        hops = await self.tracing.trace(read_event_id(str(options.get("event", ""))))
        return [msgspec.to_builtins(hop) for hop in hops]

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
        return [to_declaration(self._broker.types.find(str(options.get("name", ""))).event_type)]

    async def _drain(self, key: bytes, options: dict[str, Any]) -> Rows:
        self._broker.drain_soon()
        return [{"draining": True}]
