"""What nodes of IRBR say to each other, beside what the ring says. (How they come to say it is in `irbr`.)"""

from __future__ import annotations

from typing import ClassVar, TypeAlias

import msgspec

from tidings.overlay.irbr.custody_transfer import Done, Got, TaskId
from tidings.overlay.irbr.filter_table import Entry, Obituary
from tidings.overlay.messages import Message, Packet, Peer, SubscriptionId
from tidings.overlay.pastry.messages import RingMessage


class Arrival(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A node has come into a cell that was empty."""

    peer: Peer


News: TypeAlias = Entry | Obituary | Arrival


class Carry(Message, frozen=True):
    """An event for all who want it among the nodes that share `range_len` digits with the receiver."""

    packet: Packet
    range_len: int


class Spread(Message, frozen=True):
    """News for all nodes that share `range_len` digits with the receiver."""

    task: TaskId
    range_len: int
    news: News


class Compare(Message, frozen=True):
    """This is what I know of a range; tell me, after this id, what I should know."""

    me: Peer
    prefix: str
    digest: int
    after: SubscriptionId | None = None


class Routine(Compare, frozen=True):
    """The same, asked unasked: if there is nothing to tell, no answer."""

    chatter: ClassVar[bool] = True


class Acquaint(Routine, frozen=True):
    """The same, of one who has met you just now. Who knows less than `mine` of my cell, or not `beyond`, asks back.

    `beyond` is of all outside the range that both of us are in, which we should know alike.
    """

    mine: int = 0
    beyond: int = 0


class Table(Message, frozen=True):
    """What you should know of a range; `more` if there is more after the last of these.

    `whole` unless I am on my way in myself: then somebody else must be asked.
    """

    prefix: str
    entries: tuple[Entry, ...]
    obituaries: tuple[Obituary, ...]
    more: bool
    whole: bool = True


class Mourned(Message, frozen=True):
    """You were thought dead. If you are not, say again what you want."""

    obituary: Obituary


IrbrMessage: TypeAlias = Carry | Spread | Got | Done | Compare | Routine | Acquaint | Table | Mourned | RingMessage
