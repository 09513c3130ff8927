"""What nodes of Hermes say to each other, beside what the ring and the trees say. (How they come to say it is in `hermes`.)"""

from __future__ import annotations

from typing import ClassVar, Literal, TypeAlias

from tidings.overlay.hermes.multicast_tree import Risen, Unwant, Want
from tidings.overlay.messages import EventId, Message, Packet, Peer
from tidings.overlay.pastry.messages import RingMessage


class Up(Message, frozen=True):
    """An event on its way to the rendezvous."""

    packet: Packet
    hops: int
    publisher: Peer


class Down(Message, frozen=True):
    """An event on its way to those who want it."""

    packet: Packet
    hops: int


class Heard(Message, frozen=True):
    """I have the event and pass it on."""

    event: EventId
    way: Literal["up", "down"]


class Root(Message, frozen=True):
    """I am the rendezvous of this type; next time come straight to me."""

    me: Peer
    event_type: str


class Refresh(Message, frozen=True):
    """I am still your child in these trees, and this is what you should have from me."""

    trees: tuple[tuple[str, int], ...]
    chatter: ClassVar[bool] = True


class Fresh(Message, frozen=True):
    """I am still your parent. Of these trees I have something else; tell me again."""

    again: tuple[str, ...]
    chatter: ClassVar[bool] = True


class Prune(Message, frozen=True):
    """I have another parent in this tree."""

    event_type: str


class Orphan(Message, frozen=True):
    """I leave: find another parent in this tree."""

    event_type: str


HermesMessage: TypeAlias = (
    Want | Unwant | Risen | Up | Down | Heard | Root | Refresh | Fresh | Prune | Orphan | RingMessage
)
