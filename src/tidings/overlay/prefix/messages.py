"""The messages of the ring."""

from __future__ import annotations

from typing import ClassVar, TypeAlias

from tidings.overlay.messages import Message, Peer


class Heartbeat(Message, frozen=True):
    """I am alive. Now and then with my leaf set, so that neighbours agree; `answer` asks for one back."""

    me: Peer
    leaves: tuple[Peer, ...] = ()
    answer: bool = False
    chatter: ClassVar[bool] = True


class Ping(Message, frozen=True):
    """Are you alive? I am."""

    me: Peer


class Pong(Message, frozen=True):
    """I am alive, and this is my leaf set."""

    me: Peer
    leaves: tuple[Peer, ...]


class LookupRequest(Message, frozen=True, tag="Where"):
    """Which nodes do you know nearer to `key`? With `rows`, also all that a node at that key could use."""

    me: Peer
    key: str
    rows: bool = False


class LookupReply(Message, frozen=True, tag="There"):
    """These, with my leaf set among them."""

    me: Peer
    key: str
    peers: tuple[Peer, ...]


class NodeLeaving(Message, frozen=True, tag="Gone"):
    """I leave."""

    me: Peer


RingMessage: TypeAlias = Heartbeat | Ping | Pong | LookupRequest | LookupReply | NodeLeaving
