"""The effects of a node: what its driver has to do, in order.

`Send`, `WakeAt`, `Completed`, `Failed` and `Count` are the router's and pass through unchanged. `Deliver` never does:
the node matches the event with its subscriptions, projects it, and emits a `Delivery` for each. The rest is here.

Events that are published together are an `EventBatch`, and what is delivered of them to one client a `BatchDelivery`.
An event of a batch has the id, and wherever it leaves the batch the bytes and the signature, that it would have had if
it had been published by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from struct import Struct, pack
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import msgspec

from tidings.events import EventColumns, Value
from tidings.overlay import Completed, Count, EventId, Failed, NodeId, Send, SubscriptionId, WakeAt

if TYPE_CHECKING:
    import pyarrow as pa


class Delivery(msgspec.Struct, frozen=True, gc=False):
    """Deliver an event to a client, once for each event and subscription. `values` has only what it may see."""

    subscription: SubscriptionId
    client: str
    event: EventId
    type: str
    values: dict[str, Any]
    hop_from: NodeId = ""
    """The neighbour it came from; empty if it was published here."""


class Keep(msgspec.Struct, frozen=True, gc=False):
    """Write `raw` to disk before doing what follows; after a restart `Node.publish_again(raw)` publishes the event again.

    Only `publish(keep=True)` emits it. A sealed event is stored sealed, without plaintext.
    """

    event: EventId
    raw: bytes


class KeepKeys(msgspec.Struct, frozen=True, gc=False):
    """Write the state of this type's key manager and its generation to disk before doing what follows.

    The effects after it hand out ids and keys that must never be handed out twice.
    """

    type_id: bytes
    generation: int


class Direct(msgspec.Struct, frozen=True, gc=False):
    """Send `raw` straight to the brokers that advertise this type, beside the overlay: a message about keys.

    Receivers pass it to `Node.receive_direct`.
    """

    type: str
    raw: bytes


class Ended(msgspec.Struct, frozen=True, gc=False):
    """The node has removed a client's subscription: its right was revoked or has expired."""

    subscription: SubscriptionId
    client: str
    why: str


class LinkReady(msgspec.Struct, frozen=True, gc=False):
    """The neighbour has proven its key and its membership: messages may pass in both directions."""

    neighbour: NodeId
    domain: str


class Rejected(msgspec.Struct, frozen=True, gc=False):
    """The node dropped a message of this neighbour; `why` begins with the failed check. With `cut`, close the link."""

    neighbour: NodeId
    why: str
    cut: bool = False


class Joined(msgspec.Struct, frozen=True, gc=False):
    """This node holds keys of the type now: it can seal, and read what its rights cover."""

    type: str
    groups: int
    sender_id: int


class NotJoined(msgspec.Struct, frozen=True, gc=False):
    """The key manager refused this node. It sends another request when it gets another right."""

    type: str
    why: str


_INCARNATION = Struct("<q")


class BatchIds(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The ids of events that were published together: of one origin, and numbered without gaps."""

    origin: NodeId
    incarnations: bytes
    """Of each event, as 8 bytes in little-endian order; in those of signed events is a digest."""
    first_seq: int

    @classmethod
    def of(cls, origin: NodeId, incarnations: Sequence[int], first_seq: int) -> BatchIds:
        return cls(origin, pack(f"<{len(incarnations)}q", *incarnations), first_seq)

    def __len__(self) -> int:
        return len(self.incarnations) // _INCARNATION.size

    def __iter__(self) -> Iterator[EventId]:
        for row, (incarnation,) in enumerate(_INCARNATION.iter_unpack(self.incarnations)):
            yield EventId(self.origin, incarnation, self.first_seq + row)

    def __getitem__(self, row: int) -> EventId:
        (incarnation,) = _INCARNATION.unpack_from(self.incarnations, 8 * row)
        return EventId(self.origin, incarnation, self.first_seq + row)

    def row_of(self, event: EventId) -> int:
        """Which event of these has this id; -1 if none."""
        row = event.seq - self.first_seq
        return row if 0 <= row < len(self) and self[row] == event else -1


class StoredBatch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A batch as it is on disk."""

    type: str
    ids: BatchIds
    columns: EventColumns
    """Without any column where the events are sealed."""
    frames: tuple[bytes, ...] = ()
    """The events, where they are sealed: each by itself, and not signed."""


class EventBatch:
    """Events of one type that were published together, checked: as columns, and as the values of each."""

    __slots__ = ("frames", "ids", "name", "rows", "type", "values")

    def __init__(
        self,
        type: str,
        name: str,
        ids: BatchIds,
        rows: pa.RecordBatch,
        values: Sequence[dict[str, Value]],
        frames: tuple[bytes, ...] = (),
    ) -> None:
        """`type` is the wire name, `name` the one that subscribers see; `frames` are the events as they were sealed."""
        self.type, self.name, self.ids, self.rows, self.values = type, name, ids, rows, values
        self.frames = frames

    def __len__(self) -> int:
        return len(self.values)


class BatchDelivery(NamedTuple):
    """Deliver events of a batch to the subscriptions of one client: of each pair, the row and the subscription.

    Pairs are in the order of rows. `names` are the attributes that the client may see of these rows; None: all.
    """

    client: str
    batch: EventBatch
    names: frozenset[str] | None
    rows: Sequence[int]
    subscriptions: Sequence[SubscriptionId]

    def shown(self, row: int) -> Mapping[str, Value]:
        """The values of a row that the client may see."""
        values = self.batch.values[row]
        return values if self.names is None else {name: values[name] for name in values if name in self.names}


class PublishedBatch(NamedTuple):
    """What came of publishing a batch: the events, whom to deliver them to, and other effects."""

    batch: EventBatch
    deliveries: Sequence[BatchDelivery]
    effects: Sequence[NodeEffect]


NodeEffect: TypeAlias = (
    Send
    | WakeAt
    | Completed
    | Failed
    | Count
    | Delivery
    | Keep
    | KeepKeys
    | Direct
    | Ended
    | LinkReady
    | Rejected
    | Joined
    | NotJoined
)
