"""The messages of Hermes, beside those of the ring."""

from __future__ import annotations

from typing import ClassVar, Literal, TypeAlias

from tidings.overlay.interest import Interest, InterestVersion
from tidings.overlay.messages import EventId, Message, Packet, Peer
from tidings.overlay.prefix.messages import RingMessage


class InterestRequest(Message, frozen=True, tag="Want"):
    """Child to parent: send me the events that this interest matches. `clock` orders what one child sends."""

    interest: Interest
    clock: int


class InterestWithdrawal(Message, frozen=True, tag="Unwant"):
    """Child to parent: I no longer need events for this interest."""

    event_type: str
    interest: InterestVersion
    clock: int


class InterestAck(Message, frozen=True, tag="Risen"):
    """Parent to child: every node above that must know your interest knows it."""

    event_type: str
    interest: InterestVersion
    clock: int


class ToRendezvous(Message, frozen=True, tag="Up"):
    """An event on its way to the rendezvous."""

    packet: Packet
    hops: int
    publisher: Peer


class ToSubscribers(Message, frozen=True, tag="Down"):
    """An event on its way down the tree."""

    packet: Packet
    hops: int


class EventAck(Message, frozen=True, tag="Heard"):
    """I have the event and forward it."""

    event: EventId
    way: Literal["up", "down"]


class RendezvousHint(Message, frozen=True, tag="Root"):
    """Rendezvous to publisher: next time, send events of this type straight to me."""

    me: Peer
    event_type: str


class ChildRefresh(Message, frozen=True, tag="Refresh"):
    """Child to parent: I am still your child in these trees. Each comes with a digest of what you should have from me."""

    trees: tuple[tuple[str, int], ...]
    chatter: ClassVar[bool] = True


class ParentRefresh(Message, frozen=True, tag="Fresh"):
    """Parent to child: I am still your parent. For these trees my digest differs; announce your interests again."""

    again: tuple[str, ...]
    chatter: ClassVar[bool] = True


class Prune(Message, frozen=True):
    """Child to parent: I have another parent in this tree."""

    event_type: str


class ParentLeaving(Message, frozen=True, tag="Orphan"):
    """Parent to child: I leave; find another parent in this tree."""

    event_type: str


HermesMessage: TypeAlias = (
    InterestRequest
    | InterestWithdrawal
    | InterestAck
    | ToRendezvous
    | ToSubscribers
    | EventAck
    | RendezvousHint
    | ChildRefresh
    | ParentRefresh
    | Prune
    | ParentLeaving
    | RingMessage
)
