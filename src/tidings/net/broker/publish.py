"""Publishing: an event is on disk, with all that is owed for it, before anybody hears of it.

published   → checked and sealed by the node, noted with what is owed and what waits for durable subscribers here
on disk     → sent into the overlay, listed to whom it is owed, told to who is connected, acknowledged
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tidings.errors import Denied, SetupError
from tidings.net.broker.journal import OwedEvent
from tidings.net.ids import now_us
from tidings.node import Keep, NodeEffect, RegisteredType
from tidings.overlay import EventId, NodeId

if TYPE_CHECKING:
    from tidings.net.broker.broker import Broker


class Publishing:
    """What one broker's clients publish."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._loop = asyncio.get_running_loop()

    async def publish(
        self, client: str, known: RegisteredType, events: Sequence[tuple[bytes, dict[str, Any]]]
    ) -> list[EventId]:
        """Publish events; returns when they are on disk, with what is owed for them. As `publish_now`."""
        done: asyncio.Future[list[EventId]] = self._loop.create_future()

        def on_disk(ids: list[EventId]) -> None:
            if not done.done():  # Whoever asked may have gone.
                done.set_result(ids)

        self.publish_now(client, known, events, on_disk)
        return await done

    def publish_now(
        self,
        client: str,
        known: RegisteredType,
        events: Sequence[tuple[bytes, dict[str, Any]]],
        then: Callable[[list[EventId]], None],
    ) -> None:
        """Publish events; `then` is given their ids when they are on disk, with what is owed for them.

        Each comes with what tells a repetition; one said again keeps its id. Raises as `Node.publish` does;
        nothing has happened then.
        """
        broker = self._broker
        if broker.is_draining:
            raise Denied("draining: this broker takes no more events; publish at another")
        if broker.journal.is_stuck:  # What came before waits in memory; more must not.
            why = broker.journal.stuck_why
            raise SetupError(f"disk: this broker cannot write its journal ({why}); publish again when it can")
        repeats = broker.journal.repeats
        new = {key: values for key, values in events if key not in repeats}
        if new:
            now = self._loop.time()
            ids, effects = broker.node.publish_many(client, known.name, list(new.values()), now, keep=True)
            broker.counts["published"] += len(ids)
            self._note_down(known, list(new), effects)
        all_ids = [repeats[key] for key, _ in events]
        broker.journal.then(lambda: then(all_ids))

    def _note_down(self, known: RegisteredType, keys: Sequence[bytes], effects: list[NodeEffect]) -> None:
        """Notes what must be on disk, all at once so that events stay in order; the rest is done when it is there."""
        broker = self._broker
        owed: list[tuple[NodeId, OwedEvent]] = []
        later: list[NodeEffect] = []
        names, at_us = iter(keys), now_us()
        for effect in effects:
            match effect:
                case Keep(event, raw):
                    position = broker.journal.note_event(event, known.name, at_us, next(names), raw)
                    owed += broker.promises.owe(position, event, known.name, at_us, raw)
                    self._queue_own(position, event, known.name, raw)
                case _:
                    later.append(effect)
        self.when_on_disk(owed, later)

    def _queue_own(self, position: int, event: EventId, type: str, raw: bytes) -> None:
        """For durable subscribers of the event's own broker. Not by way of the overlay: it may be busy joining."""
        broker = self._broker
        if not broker.queues.count_of[type]:
            return
        bundle = None if broker.promises.owes_myself() else broker.deliver(raw)
        if bundle is None:  # Their subscriptions wait for keys, or events before this one do.
            broker.promises.owe_myself(position, event)
            return
        for durable, told in bundle:
            broker.queues.add(durable, told)

    def when_on_disk(self, owed: Sequence[tuple[NodeId, OwedEvent]] = (), later: Sequence[NodeEffect] = ()) -> None:
        """Have everything that was noted written, and then tell whoever it is for."""
        broker, fresh = self._broker, self._broker.queues.take_fresh()

        def tell() -> None:
            broker.carry_out(later)
            broker.promises.committed(owed)
            broker.queues.committed(fresh)

        broker.journal.then(tell)
