"""The messages of IRBR, beside those of the network below it."""

from __future__ import annotations

from hashlib import blake2b
from typing import ClassVar, NamedTuple, TypeAlias

import msgspec

from tidings.overlay.irbr.filter_table import FailureNotice, FilterEntry
from tidings.overlay.messages import Message, NodeId, Packet, Peer, SubscriptionId, encoded
from tidings.overlay.tapestry.messages import TapestryMessage

EVENT, UPDATE = 0, 1  # Kinds of multicast tasks.


class TaskId(NamedTuple):
    """Names something that is multicast: an event by its id, an update by a number of its origin, both by content.

    Without the content, whoever used an origin's next numbers first would silence it.
    """

    kind: int
    origin: NodeId
    incarnation: int
    seq: int
    mark: int = 0


class NodeArrival(msgspec.Struct, frozen=True, array_like=True, tag="Arrival"):
    """A node has joined a cell that was empty."""

    peer: Peer


RangeUpdate: TypeAlias = FilterEntry | FailureNotice | NodeArrival


def content_mark(content: Packet | RangeUpdate) -> int:
    """A digest of what is multicast, the same on every node that passes it on."""
    match content:
        case Packet(header, view, envelope):
            body = encoded((header.type, envelope or view.values))
        case FilterEntry():
            body = encoded((content.origin.id, content.statement()))
        case FailureNotice():
            body = encoded(content)
        case _:
            body = encoded(content.peer.statement())
    return int.from_bytes(blake2b(body, digest_size=7).digest(), "big")


class EventMulticast(Message, frozen=True, tag="Carry"):
    """An event for all interested nodes that share `range_len` digits with the receiver."""

    packet: Packet
    range_len: int


class UpdateMulticast(Message, frozen=True, tag="Spread"):
    """An update for all nodes that share `range_len` digits with the receiver."""

    task: TaskId
    range_len: int
    update: RangeUpdate


class CustodyAccepted(Message, frozen=True, tag="Got"):
    """I have the event or update and am responsible for the range."""

    task: TaskId
    range_len: int


class CustodyComplete(Message, frozen=True, tag="Done"):
    """Every node in the range has it."""

    task: TaskId
    range_len: int


class TableQuery(Message, frozen=True, tag="Compare"):
    """This is the digest of what I know of a range; send me what I should know, after this id."""

    me: Peer
    prefix: str
    digest: int
    after: SubscriptionId | None = None


class RoutineQuery(TableQuery, frozen=True, tag="Routine"):
    """The same, sent on schedule: no answer if the digests agree."""

    chatter: ClassVar[bool] = True


class FirstContactQuery(RoutineQuery, frozen=True, tag="Acquaint"):
    """The same, from a node that has just met the receiver, which queries back if a digest differs.

    `mine` is the digest of what the receiver should know of the sender's cell. `beyond` is
    that of everything outside the range that both are in, which both should know alike.
    """

    mine: int = 0
    beyond: int = 0


class TableReply(Message, frozen=True, tag="Table"):
    """What the receiver should know of a range; `more` if there are entries after the last of these.

    Not `whole` if the sender is still joining: then the receiver must ask another node.
    """

    prefix: str
    entries: tuple[FilterEntry, ...]
    notices: tuple[FailureNotice, ...]
    more: bool
    whole: bool = True


class DeclaredDead(Message, frozen=True, tag="Mourned"):
    """The receiver was declared dead. If it is not, it announces its subscriptions again."""

    notice: FailureNotice


IrbrMessage: TypeAlias = (
    EventMulticast
    | UpdateMulticast
    | CustodyAccepted
    | CustodyComplete
    | TableQuery
    | RoutineQuery
    | FirstContactQuery
    | TableReply
    | DeclaredDead
    | TapestryMessage
)
