"""Where an event went: every broker that had it is asked, along the way it took.

A broker remembers for a while from whom it first had an event and to whom it sent it. These ways make a tree. Who is
asked says what it did itself, asks on along the tree, away from the asker, and answers with all of it:

    asked by the broker it had the event from   → asks those it sent the event to
    asked by one that had the event from it     → asks those, and the broker it had the event from
    asked by any other, to whom it sent a copy  → asks nobody: another way has led the event here

Each broker waits less long than its asker does, so that what is known comes back even where somebody does not
answer. What another broker says is its own word: nobody vouches for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from tidings.net.ids import show_event
from tidings.net.transport.connection import Link
from tidings.net.transport.frames import HopSaid, Missed, SentTo, ToldTo, Trace, Traced
from tidings.node import TraceHop
from tidings.overlay import EventId, NodeId

if TYPE_CHECKING:
    from tidings.net.broker.broker import Broker

WAIT_S = 3.0  # For all brokers together.
WAIT_SHARE = 0.9  # Of what its asker waits, a broker waits for those it asks.
NEIGHBOURS_S = 1.0  # For the neighbours of a broker that does not know an event itself.
WAIT_S_MIN = 0.15  # With less time than this nobody is asked on: nearly thirty brokers down.
ASKED_MAX = 256  # Questions without an answer; with more, a broker speaks for itself only.
HOPS_MAX = 128  # In one answer: it fits into a frame whatever is in it.
MISSED_MAX = 100  # Subscriptions of one broker that were not told.


class Dated(NamedTuple):
    """What a broker says about an event, and when it had it, by this broker's clock."""

    at: float
    said: HopSaid


class Tracing:
    """What one broker knows, and finds out, about the ways of events."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._loop = asyncio.get_running_loop()
        self._tickets = 0
        self._asked: dict[int, tuple[float, asyncio.Future[list[Dated]]]] = {}

    async def trace(self, event: EventId) -> list[HopSaid]:
        """All that is said about an event, for a client of this broker, in the order of its way."""
        hop = self._broker.node.hop(event)
        if hop is None:
            found = await self._through_who_knows(event)
        else:
            mine = self._mine(event, hop, self._broker.config.domain)
            others = await self._along(event, hop, "", up=True, wait_s=WAIT_S)
            found = [mine, *(each for each in others if _name(each.said) != _name(mine.said))]
        return self._as_of_now(_in_order(found))

    async def _through_who_knows(self, event: EventId) -> list[Dated]:
        """This broker has not had the event, or has forgotten it: a neighbour that has had it asks on."""
        peers = self._broker.links.ready_peers()
        answers = await asyncio.gather(*(self._ask(peer, event, up=False, wait_s=NEIGHBOURS_S) for peer in peers))
        knows = [peer for peer, found in zip(peers, answers) if found]
        return await self._ask(knows[0], event, up=True, wait_s=WAIT_S) if knows else []

    # ── Asking ──

    async def _along(self, event: EventId, hop: TraceHop, asker: NodeId, *, up: bool, wait_s: float) -> list[Dated]:
        """What those say to whom the event went from here, and with `up` the one it came from; never the asker."""
        further = {to: False for to, _ in hop.sent if to != hop.came_from}
        if up and hop.came_from:
            further[hop.came_from] = True
        further.pop(asker, None)
        answers = [self._ask(peer, event, up=up, wait_s=wait_s) for peer, up in further.items()]
        return [each for found in await asyncio.gather(*answers) for each in found]

    async def _ask(self, peer: NodeId, event: EventId, *, up: bool, wait_s: float) -> list[Dated]:
        link = self._broker.links.ready(peer)
        if link is None or wait_s < WAIT_S_MIN or len(self._asked) >= ASKED_MAX:
            return []
        self._tickets = ticket = self._tickets + 1
        answer: asyncio.Future[list[Dated]] = self._loop.create_future()
        self._asked[ticket] = self._loop.time(), answer
        link.send(Trace(ticket, event, up, wait_s * WAIT_SHARE))
        try:
            async with asyncio.timeout(wait_s):
                return await answer
        except TimeoutError:
            return []
        finally:
            del self._asked[ticket]

    # ── Being asked ──

    def receive(self, link: Link, frame: Trace | Traced) -> None:
        """A broker asks, or answers."""
        if isinstance(frame, Trace):
            self._broker.task(self._answer(link, frame))
        else:
            self._answered(frame)

    async def _answer(self, link: Link, asked: Trace) -> None:
        began, hop, asker = self._loop.time(), self._broker.node.hop(asked.event), link.proven.id
        found: list[Dated] = []
        if hop is not None:
            if asked.up or asker == hop.came_from:
                wait_s = min(asked.wait_s, WAIT_S)
                found = await self._along(asked.event, hop, asker, up=asked.up, wait_s=wait_s)
            found = [self._mine(asked.event, hop, link.proven.domain), *found]
        if link.proven.domain != self._broker.config.domain:
            found = [Dated(at, msgspec.structs.replace(said, told=(), missed=())) for at, said in found]
        took_s = self._loop.time() - began
        link.send(Traced(asked.ticket, tuple(self._as_of_now(found[:HOPS_MAX])), took_s))

    def _answered(self, frame: Traced) -> None:
        """Half of the time that the other end did not spend itself was on the way back."""
        asked_at, answer = self._asked.get(frame.ticket, (0.0, None))
        if answer is None or answer.done():
            return
        now = self._loop.time()
        on_the_way_s = max(0.0, now - asked_at - max(0.0, frame.took_s)) / 2
        answer.set_result([Dated(now - on_the_way_s - said.ago_s, said) for said in frame.hops[:HOPS_MAX]])

    def _as_of_now(self, found: Iterable[Dated]) -> list[HopSaid]:
        now = self._loop.time()
        return [msgspec.structs.replace(said, ago_s=round(now - at, 6)) for at, said in found]

    # ── What this broker did ──

    def _mine(self, event: EventId, hop: TraceHop, asker: str) -> Dated:
        """Who was told, and who was not, is for the broker's own organisation only."""
        b = self._broker
        said = HopSaid(
            broker=b.config.name,
            domain=b.config.domain,
            type=hop.type,
            ago_s=0.0,
            came_from=b.broker_name(hop.came_from) if hop.came_from else "",
            readable=hop.readable,
            hidden=hop.hidden,
            sent=tuple(SentTo(b.broker_name(to), shown) for to, shown in hop.sent),
            refused=hop.refused,
        )
        if asker == b.config.domain:
            said = msgspec.structs.replace(said, told=self._told(hop), missed=self._missed(event, hop))
        return Dated(hop.at, said)

    def _told(self, hop: TraceHop) -> tuple[ToldTo, ...]:
        return tuple(ToldTo(client, show_event(id)) for id, client in hop.delivered)

    def _missed(self, event: EventId, hop: TraceHop) -> tuple[Missed, ...]:
        node, told = self._broker.node, {id for id, _ in hop.delivered}
        others = [one for one in node.subscriptions() if one.id not in told][:MISSED_MAX]
        return tuple(Missed(one.client, node.why(event, one.id)) for one in others)


def _in_order(found: Iterable[Dated]) -> list[Dated]:
    """Each broker once, after the one it had the event from and no earlier than that.

    A question takes as long on a link as the event did, so what is known of the moments is not exact enough by itself.
    """
    waiting = {_name(each.said): each for each in sorted(found, key=lambda each: each.at)}
    placed: dict[str, Dated] = {}
    while waiting:
        ready = [name for name, each in waiting.items() if each.said.came_from not in waiting]
        for name in ready or list(waiting):  # In a circle there are only lies.
            at, said = waiting.pop(name)
            before = placed.get(said.came_from)
            placed[name] = Dated(max(at, before.at) if before else at, said)
    return sorted(placed.values(), key=lambda each: each.at)


def _name(said: HopSaid) -> str:
    return f"{said.domain}/{said.broker}"
