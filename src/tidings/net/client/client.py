"""A client: publishes to its broker, receives events from it, and reconnects by itself when the connection is lost.

    async with await Client.connect("camera.toml") as client:
        await client.publish("Numberplate", {"plate": "AB12CDE", "speed": 31.0})       returns when it is on disk
        async for event in client.subscribe("Numberplate", "speed > 20"):
            ...

After a reconnect the client sends again what the broker has not acknowledged, under the same idempotency key: the
broker publishes nothing twice. A durable subscription (`durable="name"`) continues after the last event that was
processed: an event counts as processed when the loop asks for the next one, or ends without an exception.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import secrets
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from struct import error as struct_error
from struct import iter_unpack
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from tidings.errors import Denied, EventError, InputError, PeerError, RateLimited, TidingsError
from tidings.events import (
    BATCH_BYTES_MAX,
    Event,
    EventColumns,
    EventType,
    Timestamp,
    from_declaration,
    is_columnar,
    rows_at_most,
)
from tidings.net.config import ClientConfig, addresses_in, files_in, read_client
from tidings.net.enrolment.live_files import ChangedFiles, renew_if_ended, renew_when_due
from tidings.net.ids import read_identity, read_token, show_event
from tidings.net.transport.connection import SILENCE_S_MAX, Link
from tidings.net.transport.frames import (
    IN_COLUMNS,
    Acknowledge,
    Answer,
    AnyFrame,
    BatchPublished,
    EventBatchDelivery,
    EventDelivery,
    Publish,
    PublishBatch,
    Published,
    Query,
    Reject,
    RequestDone,
    RequestRefused,
    Subscribe,
    Subscribed,
    Unsubscribe,
    as_error,
    read_event,
)
from tidings.net.transport.handshake import HANDSHAKE_S_MAX, Participant, shake
from tidings.net.transport.tls import anchors_in, client_context, own_certificate, why_unreached
from tidings.security import from_fingerprint

if TYPE_CHECKING:
    import pyarrow as pa

CONNECT_S_MAX = 10.0
CONNECT_ONE_S_MAX = 3.0  # To one of several addresses: beyond a dead one another process may serve.
SILENCE_ONE_S_MAX = 4.0  # Likewise, of a connection.
PAUSE_S_MIN, PAUSE_S_MAX = 0.1, 2.0  # Between two attempts to reconnect.
EVENTS_PER_FRAME = 1000
BATCH_MIN = 8  # Fewer events are sent as they are: columns cost more than they save.
IN_FLIGHT_MAX = 8  # Frames of events without an answer; what is published meanwhile is gathered …
LINGER_S = 0.001  # … for so long at most, or until an answer comes.
UNPUBLISHED_MAX = 100_000  # Events sent and not acknowledged; `publish` waits beyond that.
LIVE_QUEUE_MAX = 65_536  # Events of one subscription that is not durable, waiting for its loop; the oldest are lost.
ACKNOWLEDGE_EVERY = 64
LOOK_EVERY_S = 1.0  # For files that were replaced.

_Records: TypeAlias = "Sequence[Mapping[str, Any]] | pa.Table | pa.RecordBatch"

log = logging.getLogger("tidings.client")


@dataclass(frozen=True, slots=True)
class Received:
    """An event as a subscriber sees it: the values it may see, and its position in a durable subscription."""

    id: str
    type: str
    at: Timestamp
    values: Mapping[str, Any]
    position: int = 0


@dataclass(slots=True)
class _Asked:
    """A request without a reply; sent again on the next connection."""

    frame: AnyFrame
    answer: asyncio.Future[Any]
    weight: int = 0


class _Rows(NamedTuple):
    """Events that came together; what a subscriber takes of them is made when it takes it."""

    type: str
    at: Timestamp
    ids: Sequence[str]
    values: Sequence[dict[str, Any]]

    def received(self, row: int) -> Received:
        return Received(self.ids[row], self.type, self.at, dict(self.values[row]))


class _Gathered(NamedTuple):
    """An event that is about to be published, together with others. Its name is empty if its publisher gave it none."""

    name: str
    values: dict[str, Any]
    answer: asyncio.Future[str]


class Subscription:
    """The events of one subscription, as an asynchronous iterator."""

    def __init__(self, client: Client, asked: Subscribe, *, hold: bool = False) -> None:
        self._client, self._asked, self._hold = client, asked, hold
        self.missed = 0
        """Events lost so far because the loop was too slow; never any of a durable subscription."""
        self._queue: deque[Received | tuple[_Rows, int]] = deque()
        self._came = asyncio.Event()
        self._stream = 0
        self._last_seen = self._handed_out = self._acknowledged = 0
        self._error: TidingsError | None = None
        self._is_closed = False

    def __aiter__(self) -> AsyncIterator[Received]:
        return self

    async def __anext__(self) -> Received:
        self._acknowledge(self._handed_out)
        while not self._queue:
            self._acknowledge(self._handed_out, at_once=True)
            if self._error is not None:
                raise self._error
            if self._is_closed:
                raise StopAsyncIteration
            self._came.clear()
            await self._came.wait()
        taken = self._queue.popleft()
        event = taken[0].received(taken[1]) if isinstance(taken, tuple) else taken
        self._handed_out = 0 if self._hold else event.position
        return event

    async def ready(self) -> Subscription:
        """Returns when the subscription is in place; raises the broker's refusal."""
        await self._client._in_place(self)
        return self

    async def reject(self, event: Received, why: str) -> None:
        """The subscriber cannot use this event; the broker makes it a dead letter, with the reason."""
        await self._client.request(lambda ticket: Reject(ticket, self._stream, event.position, why))

    async def close(self, *, forget: bool = False) -> None:
        """Ends the subscription; what has been handed out counts as processed. With `forget`, the broker deletes a durable one."""
        self._acknowledge(self._handed_out, at_once=True)
        await self._client._close(self, forget)
        self._end(None)

    def _acknowledge(self, position: int, *, at_once: bool = False) -> None:
        if position > self._acknowledged and (at_once or position - self._acknowledged >= ACKNOWLEDGE_EVERY):
            self._acknowledged = position
            self._client._send(Acknowledge(self._stream, position))

    def _take(self, delivery: EventDelivery) -> None:
        if delivery.position and delivery.position <= self._last_seen:
            return  # A duplicate, sent before the connection broke and again since.
        event = read_event(delivery.event)
        self._last_seen = delivery.position
        self.missed += delivery.missed
        at = Timestamp(event.at_us)
        received = Received(show_event(event.event), event.type, at, event.values, delivery.position)
        self._put(received, is_live=not delivery.position)

    def _put(self, event: Received | tuple[_Rows, int], *, is_live: bool) -> None:
        if is_live and len(self._queue) >= LIVE_QUEUE_MAX:
            self._queue.popleft()
            self.missed += 1
        self._queue.append(event)
        self._came.set()

    def _placed(self, answer: Subscribed) -> None:
        self._stream = answer.stream
        self._acknowledged = answer.after  # An acknowledgement on a broken connection may have been lost.
        if self._last_seen == 0:
            self._last_seen = answer.after

    def _again(self, ticket: int) -> Subscribe:
        a = self._asked
        return Subscribe(ticket, a.type, a.condition, a.durable, a.since_us, max(a.after, self._acknowledged or -1))

    def _end(self, error: TidingsError | None) -> None:
        self._error, self._is_closed = error, True
        self._came.set()


class Client:
    """A connection to one broker that reconnects by itself. Created by `Client.connect`."""

    def __init__(self, config: ClientConfig) -> None:
        self.config = config
        self._load()
        self._files = ChangedFiles((config.certificate, config.trusted, *config.tokens))
        self._watchers: list[asyncio.Task[None]] = []
        self._tickets = itertools.count(1)
        self._asked: dict[int, _Asked] = {}
        self._unpublished = self._in_flight = 0
        self._room = asyncio.Event()
        self._room.set()
        self._subscriptions: dict[int, Subscription] = {}  # By the ticket they were last asked for with.
        self._streams: dict[int, Subscription] = {}
        self._link: Link | None = None
        self._version = 0  # That the last connection speaks.
        self._runner: asyncio.Task[None] | None = None
        self._names = secrets.token_hex(8)
        self._types: dict[str, EventType] = {}
        self._gathered: dict[str, list[_Gathered]] = {}
        self._lingering: asyncio.TimerHandle | None = None
        self._publishing: set[asyncio.Task[None]] = set()
        self._learning: asyncio.Task[None] | None = None  # Asks for the type of events that are gathered.
        self._next_address = 0
        self._is_closing = False

    def _load(self) -> None:
        """Reads the files that say who this is; they are replaced when they are renewed."""
        config = self.config
        identity = read_identity(config.key)
        tokens = tuple(read_token(file) for file in files_in(config.tokens, ".token"))
        certificate = own_certificate(config.certificate, identity.public_key, config.domain, "client")
        anchors = tuple(anchors_in(config.trusted))
        self._participant = Participant(identity, certificate, config.domain, config.name, "client", tokens, anchors)
        self._context = client_context(config.certificate, config.key, config.trusted)

    async def _reconnect_when_renewed(self) -> None:
        """Comes back under new rights and a new certificate as soon as they are there."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            if self._files.changed():
                try:
                    self._load()
                except (TidingsError, OSError) as wrong:
                    log.error("changed files cannot be used", extra={"why": str(wrong)})
                    continue
                if self._link is not None:
                    self._link.close("the client was renewed")

    @classmethod
    async def connect(cls, config: ClientConfig | Path | str) -> Client:
        """Connects as a file or a `ClientConfig` describes; raises if the broker cannot be reached or refuses."""
        config = config if isinstance(config, ClientConfig) else read_client(Path(config))
        if config.enrolment:
            await renew_if_ended(config.certificate, "client")
        client = cls(config)
        link = await client._dial()
        loop = asyncio.get_running_loop()
        client._runner = loop.create_task(client._run(link))
        client._watchers.append(loop.create_task(client._reconnect_when_renewed()))
        if client.config.enrolment:
            client._watchers.append(loop.create_task(renew_when_due(client.config.certificate, "client")))
        return client

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connection; requests without a reply fail."""
        self._send_gathered()
        self._is_closing = True
        for watcher in (*self._watchers, *([self._learning] if self._learning is not None else [])):
            watcher.cancel()
        for subscription in list(self._subscriptions.values()):
            subscription._acknowledge(subscription._handed_out, at_once=True)
            subscription._end(None)
        if self._link is not None:
            self._link.close("done")
            await self._link.closed()
        if self._runner is not None:
            self._runner.cancel()
            await asyncio.gather(self._runner, return_exceptions=True)
        self._fail(PeerError("the client was closed before the broker answered"))

    # ── Publishing ──

    async def publish(self, what: Event | str, values: Mapping[str, Any] | None = None, *, name: str = "") -> str:
        """Publish an `Event`, or values of a type; returns the event's id once it is on the broker's disk.

        `name` is an idempotency key: the broker publishes the same name from the same client once. The key of an
        `Event` is its source and id.
        """
        if isinstance(what, Event):
            type, values, name = what.type, what.values, name or f"{what.source}\0{what.id}"
        else:
            type = what
        return await self._gather(type, name, dict(values or {}))

    def _gather(self, type: str, name: str, values: dict[str, Any]) -> asyncio.Future[str]:
        """Events published in one turn of the event loop are sent together; while many are under way, those of more turns."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[str] = loop.create_future()
        if not self._gathered:
            if self._in_flight < IN_FLIGHT_MAX:
                loop.call_soon(self._send_gathered)
            else:
                self._lingering = loop.call_later(LINGER_S, self._send_gathered)
        gathered = self._gathered.setdefault(type, [])
        gathered.append(_Gathered(name, values, answer))
        if self._lingering is not None and len(gathered) >= EVENTS_PER_FRAME:
            self._send_gathered()
        return answer

    def _send_gathered(self) -> None:
        if self._lingering is not None:
            self._lingering.cancel()
            self._lingering = None
        gathered, self._gathered = self._gathered, {}
        for type, events in gathered.items():
            for start in range(0, len(events), EVENTS_PER_FRAME):
                self._publish_together(type, events[start : start + EVENTS_PER_FRAME])

    def _publish_together(self, type: str, events: list[_Gathered]) -> None:
        """In one frame: at once where the window allows, without a task of its own."""
        if self._room.is_set():
            rows = self._rows_of(type, events) if len(events) >= BATCH_MIN else None
            asked: asyncio.Future[Any]
            if rows is not None:
                asked = self._ask_rows(type, rows)
            else:
                asked = self._ask_events(type, [(event.name or self._new_name(), event.values) for event in events])
            asked.add_done_callback(partial(self._answer_each, type, events))
        else:
            task = asyncio.get_running_loop().create_task(self._publish_later(type, events))
            self._publishing.add(task)
            task.add_done_callback(self._publishing.discard)

    def _rows_of(self, type: str, events: list[_Gathered]) -> pa.RecordBatch | None:
        """The events as columns, if they can be sent so. A type that is not known here is asked for, for the next ones."""
        if any(event.name for event in events) or self._version < IN_COLUMNS:
            return None
        known = self._types.get(type)
        if known is None:
            if not self._learning:
                self._learning = asyncio.get_running_loop().create_task(self._learn(type))
            return None
        if not is_columnar(known) or rows_at_most(known) < len(events):
            return None
        return _as_rows([event.values for event in events], known)

    async def _learn(self, type: str) -> None:
        with contextlib.suppress(TidingsError):
            await self.event_type(type)
        self._learning = None

    async def _publish_later(self, type: str, events: list[_Gathered]) -> None:
        await self._room.wait()
        self._publish_together(type, events)

    def _answer_each(self, type: str, events: list[_Gathered], asked: asyncio.Future[Any]) -> None:
        error = asked.exception()
        if error is None:
            for id, event in zip(_ids_of(asked.result()), events, strict=True):
                if not event.answer.done():
                    event.answer.set_result(id)
        elif len(events) > 1 and not isinstance(error, RateLimited):
            self._types.pop(type, None)  # It may have changed.
            for event in events:  # One bad event fails the whole frame: send each by itself.
                self._publish_together(type, [event])
        else:
            for event in events:
                if not event.answer.done():
                    event.answer.set_exception(error)

    async def publish_many(self, type: str, events: _Records, *, names: Sequence[str] | None = None) -> list[str]:
        """Publish events of one type, in order; returns their ids once all are on the broker's disk.

        Events are records, or the rows of an Arrow table. Without names they are sent as columns, where their type
        allows it and their broker knows how.

        Raises RateLimited where the broker takes no more now: with the same `names`, the call can be repeated after
        `retry_after_s`, and what was published is not published again.
        """
        known = await self._columnar(type) if names is None and len(events) >= BATCH_MIN else None
        if not isinstance(events, Sequence) and known is None:
            events = await self._records(type, events)
        sent: list[tuple[_Records, asyncio.Future[Any]]] = []
        self._send_gathered()  # What was published before comes before.
        for start in range(0, len(events), EVENTS_PER_FRAME):
            await self._room.wait()
            part = events[start : start + EVENTS_PER_FRAME]
            rows = _as_rows(part, known) if known is not None else None
            if rows is not None:
                sent.append((part, self._ask_rows(type, rows)))
            else:
                records = part if isinstance(part, Sequence) else await self._records(type, part)
                some = names[start : start + EVENTS_PER_FRAME] if names else [self._new_name() for _ in records]
                sent.append((part, self._ask_events(type, list(zip(some, records, strict=True)))))
        return [id for part, asked in sent for id in await self._ids_of_part(type, part, asked)]

    async def _ids_of_part(self, type: str, part: _Records, asked: asyncio.Future[Any]) -> list[str]:
        try:
            return _ids_of(await asked)
        except InputError:
            if self._types.pop(type, None) is None:
                raise
            # The type may have changed since this client asked for it. If one event is wrong, the answer says which.
            records = part if isinstance(part, Sequence) else await self._records(type, part)
            return _ids_of(await self._ask_events(type, [(self._new_name(), each) for each in records]))

    async def _columnar(self, type: str) -> EventType | None:
        """The type, if its events can be sent as columns on this connection."""
        if self._version < IN_COLUMNS:
            return None
        try:
            known = await self.event_type(type)
        except TidingsError:
            return None  # The publish itself is refused with the reason.
        return known if is_columnar(known) and rows_at_most(known) >= EVENTS_PER_FRAME else None

    async def _records(self, type: str, rows: pa.Table | pa.RecordBatch) -> list[dict[str, Any]]:
        import pyarrow as pa

        from tidings.events import conform, row_values

        known = await self.event_type(type)
        table = rows if isinstance(rows, pa.Table) else pa.Table.from_batches([rows])
        return row_values(conform(table, known), range(table.num_rows), known)

    def _new_name(self) -> str:
        return f"{self._names}.{next(self._tickets)}"

    def _ask_rows(self, type: str, rows: pa.RecordBatch) -> asyncio.Future[BatchPublished]:
        from tidings.events import columns_of_rows

        return self.request(
            partial(_publish_batch, type, self._new_name(), columns_of_rows(rows)), weight=rows.num_rows
        )

    def _ask_events(self, type: str, events: Sequence[tuple[str, Mapping[str, Any]]]) -> asyncio.Future[Published]:
        said = tuple((name, dict(values)) for name, values in events)
        return self.request(partial(_publish, type, said), weight=len(said))

    # ── Subscribing ──

    def subscribe(
        self,
        type: str,
        condition: str = "TRUE",
        *,
        durable: str = "",
        since: Timestamp | None = None,
        after: int = -1,
        hold: bool = False,
    ) -> Subscription:
        """The events of a type for which the condition is TRUE, from when the broker has it in place.

        With a name in `durable` events wait while the client is away; `since` begins it in the past, as far as
        retention reaches; `after` is the last position processed, for a client that tracks it itself. With `hold`, what
        is handed out never counts as processed: only `after` of a later subscription acknowledges it.
        """
        asked = Subscribe(0, type, condition, durable, -1 if since is None else int(since), after)
        subscription = Subscription(self, asked, hold=hold)
        self._place(subscription)
        return subscription

    def _place(self, subscription: Subscription) -> None:
        ticket = next(self._tickets)
        self._subscriptions[ticket] = subscription
        self._send(subscription._again(ticket))

    async def _in_place(self, subscription: Subscription) -> None:
        while not subscription._stream and not subscription._is_closed:
            subscription._came.clear()
            await subscription._came.wait()
        if subscription._error is not None:
            raise subscription._error

    async def _close(self, subscription: Subscription, forget: bool) -> None:
        self._subscriptions = {t: each for t, each in self._subscriptions.items() if each is not subscription}
        if subscription._stream:
            self._streams.pop(subscription._stream, None)
            await self.request(lambda ticket: Unsubscribe(ticket, subscription._stream, forget))

    # ── Queries ──

    async def event_type(self, name: str) -> EventType:
        """A type as the broker knows it, to convert text into values."""
        if name not in self._types:
            (declared,) = await self.ask("type", name=name)
            self._types[name] = from_declaration(declared)
        return self._types[name]

    async def ask(self, what: str, **options: Any) -> list[dict[str, Any]]:
        """Sends a query to the broker; `net.broker.admin` lists the queries."""
        answer: Answer = await self.request(lambda ticket: Query(ticket, what, options))
        return list(answer.rows)

    def request(self, frame_for: Callable[[int], AnyFrame], weight: int = 0) -> asyncio.Future[Any]:
        """Sends a frame of the wire protocol under a new ticket; the future has the answer, or the refusal.

        After a reconnection it is sent again. `weight` counts towards the events that may be under way.
        """
        ticket = next(self._tickets)
        asked = _Asked(frame_for(ticket), asyncio.get_running_loop().create_future(), weight)
        if self._is_closing:
            asked.answer.set_exception(PeerError("the client is closed"))
            return asked.answer
        self._asked[ticket] = asked
        self._unpublished += weight
        self._in_flight += weight > 0
        if self._unpublished >= UNPUBLISHED_MAX:
            self._room.clear()
        self._send_asked(ticket, asked.frame)
        return asked.answer

    @property
    def link(self) -> Link | None:
        """The present connection, if there is one."""
        return self._link

    def _send(self, frame: AnyFrame) -> None:
        if self._link is not None and self._link.is_open:
            self._link.send(frame)

    def _send_asked(self, ticket: int, frame: AnyFrame) -> None:
        """Sends a request. One that has no bytes, or more than fit into a frame, fails, and nothing else with it."""
        try:
            self._send(frame)
        except (AssertionError, OverflowError, RecursionError, TypeError, ValueError) as wrong:
            self._answered(ticket, None, InputError(f"this cannot be sent: {str(wrong)[:200]}"))

    # ── The connection ──

    async def _dial(self) -> Link:
        """A connection to the first address that answers, beginning after the one that was used last."""
        addresses = addresses_in(self.config.broker, "broker: ")
        refusal: PeerError | None = None
        for turn in range(len(addresses)):
            number = (self._next_address + turn) % len(addresses)
            try:
                link = await self._dial_at(*addresses[number])
            except PeerError as wrong:
                refusal = wrong
            else:
                self._next_address = (number + 1) % len(addresses)
                return link
        assert refusal is not None
        raise refusal

    async def _dial_at(self, host: str, port: int) -> Link:
        at = f"{host}:{port}" if "," in self.config.broker else self.config.broker
        try:
            async with asyncio.timeout(CONNECT_S_MAX if "," not in self.config.broker else CONNECT_ONE_S_MAX):
                streams = await asyncio.open_connection(host, port, ssl=self._context, server_hostname="")
        except (OSError, TimeoutError) as wrong:
            raise PeerError(f"cannot reach the broker at {at}: {why_unreached(wrong)}") from None
        expected = from_fingerprint(self.config.broker_key) if self.config.broker_key else None
        try:
            within_s = HANDSHAKE_S_MAX if "," not in self.config.broker else CONNECT_ONE_S_MAX
            proven, reader = await shake(streams, self._participant, dialled=True, expected=expected, within_s=within_s)
        except TimeoutError:
            streams[1].transport.abort()
            raise PeerError(f"the broker at {at} did not finish its handshake") from None
        except OSError as wrong:
            streams[1].transport.abort()
            raise PeerError(f"the broker at {at} refused: {why_unreached(wrong)}") from None
        except (PeerError, Denied):
            streams[1].close()
            raise
        self._version = proven.version
        silence_s = SILENCE_ONE_S_MAX if "," in self.config.broker else SILENCE_S_MAX
        # `publish` waits long before the queue is full.
        return Link(proven, reader, streams[1], queue_bytes_max=1 << 30, silence_s_max=silence_s)

    async def _run(self, link: Link) -> None:
        pause_s = PAUSE_S_MIN
        while not self._is_closing:
            try:
                await self._converse(link)
                pause_s = PAUSE_S_MIN
            except PeerError as wrong:
                link.close(str(wrong)[:100])
            link.close()
            link = await self._reconnect(pause_s)

    async def _reconnect(self, pause_s: float) -> Link:
        while True:
            await asyncio.sleep(pause_s)
            try:
                return await self._dial()
            except (PeerError, InputError):
                pause_s = min(2 * pause_s, PAUSE_S_MAX)
            except Denied as refused:
                self._fail(refused)
                raise

    async def _converse(self, link: Link) -> None:
        self._link = link
        self._streams.clear()
        placed, self._subscriptions = list(self._subscriptions.values()), {}
        for ticket, asked in list(self._asked.items()):
            frame = asked.frame
            if isinstance(frame, PublishBatch) and link.proven.version < IN_COLUMNS:
                frame = _one_by_one(frame)
            self._send_asked(ticket, frame)
        for subscription in placed:
            subscription._stream = 0
            self._place(subscription)
        async for frame in link.frames("to client"):
            self._receive(frame)

    def _receive(self, frame: AnyFrame) -> None:
        match frame:
            case EventDelivery(stream=number):
                if (stream := self._streams.get(number)) is not None:
                    stream._take(frame)
            case Subscribed(ticket, number):
                if (subscription := self._subscriptions.get(ticket)) is not None:
                    self._streams[number] = subscription
                    subscription._placed(frame)
                    subscription._came.set()
            case EventBatchDelivery():
                self._take_rows(frame)
            case Published(ticket) | BatchPublished(ticket) | Answer(ticket) | RequestDone(ticket):
                self._answered(ticket, frame, None)
            case RequestRefused(ticket):
                self._refused(ticket, as_error(frame))

    def _take_rows(self, delivery: EventBatchDelivery) -> None:
        from tidings.events import values_of_columns

        for number, missed in delivery.missed:
            if (stream := self._streams.get(number)) is not None:
                stream.missed += missed
        try:
            values = values_of_columns(delivery.columns)
            pairs = list(zip(iter_unpack("<i", delivery.rows), iter_unpack("<i", delivery.streams), strict=True))
            ids = _ids_of(delivery)
            if len(ids) != len(values) or not all(0 <= row < len(values) for (row,), _ in pairs):
                raise ValueError("ids or rows that do not fit its columns")
        except (EventError, struct_error, ValueError) as wrong:
            raise PeerError(f"delivery: {str(wrong)[:200]}") from None
        rows = _Rows(delivery.type, Timestamp(delivery.at_us), ids, values)
        for (row,), (number,) in pairs:
            if (stream := self._streams.get(number)) is not None:
                stream._put((rows, row), is_live=True)

    def _answered(self, ticket: int, frame: AnyFrame | None, error: TidingsError | None) -> None:
        asked = self._asked.pop(ticket, None)
        if asked is None:
            return
        self._unpublished -= asked.weight
        self._in_flight -= asked.weight > 0
        if self._unpublished < UNPUBLISHED_MAX:
            self._room.set()
        if not asked.answer.done():
            asked.answer.set_exception(error) if error is not None else asked.answer.set_result(frame)
        if self._lingering is not None and self._in_flight < IN_FLIGHT_MAX:
            self._send_gathered()

    def _refused(self, ticket: int, error: TidingsError) -> None:
        if ticket in self._asked:
            self._answered(ticket, None, error)
        elif ticket in self._subscriptions:
            self._subscriptions.pop(ticket)._end(error)
        elif -ticket in self._streams:  # A right has ended.
            self._streams.pop(-ticket)._end(error)

    def _fail(self, error: TidingsError) -> None:
        self._send_gathered()
        for ticket in list(self._asked):
            self._answered(ticket, None, error)
        for subscription in self._subscriptions.values():
            subscription._end(error)


def _as_rows(events: _Records, known: EventType) -> pa.RecordBatch | None:
    """Events as rows of the columns of their type; None for those that are better sent as they are."""
    import pyarrow as pa

    from tidings.events import conform, rows_of_records

    if isinstance(events, Sequence):
        rows = rows_of_records(events, known)
    else:
        table = conform(events if isinstance(events, pa.Table) else pa.Table.from_batches([events]), known)
        rows = table.combine_chunks().to_batches()[0]
    return rows if rows is not None and rows.nbytes <= BATCH_BYTES_MAX // 2 else None


def _publish_batch(type: str, name: str, columns: EventColumns, ticket: int) -> PublishBatch:
    return PublishBatch(ticket, type, name, columns)


def _one_by_one(batch: PublishBatch) -> Publish:
    """The same for a broker of an earlier version, under the keys that a later one publishes them one by one under."""
    from tidings.events import values_of_columns

    values = values_of_columns(batch.columns)
    return Publish(batch.ticket, batch.type, tuple((f"{batch.name}.{row}", each) for row, each in enumerate(values)))


def _ids_of(answer: Published | BatchPublished | EventBatchDelivery) -> list[str]:
    """The ids in an answer or a delivery, as texts; raises ValueError or struct.error for broken ones."""
    if isinstance(answer, Published):
        return [show_event(id) for id in answer.ids]
    pairs = zip(iter_unpack("<q", answer.incarnations), iter_unpack("<q", answer.numbers), strict=True)
    return [f"{answer.origin}.{incarnation}.{number}" for (incarnation,), (number,) in pairs]


def _publish(type: str, events: tuple[tuple[str, dict[str, Any]], ...], ticket: int) -> Publish:
    return Publish(ticket, type, events)
