"""What nodes of a ring say to one another (see `ring`)."""

from __future__ import annotations

from typing import ClassVar, TypeAlias

from tidings.overlay.messages import Message, Peer


class Heartbeat(Message, frozen=True):
    """I am here. Now and then with the leaves I know, so that neighbours agree; `answer` asks for one back."""

    me: Peer
    leaves: tuple[Peer, ...] = ()
    answer: bool = False
    chatter: ClassVar[bool] = True


class Ping(Message, frozen=True):
    """Are you there? I am."""

    me: Peer


class Pong(Message, frozen=True):
    """I am, and these are near me."""

    me: Peer
    leaves: tuple[Peer, ...]


class LookupRequest(Message, frozen=True, tag="Where"):
    """Whom do you know nearer to `key`? With `rows`, also all that a node standing there could use."""

    me: Peer
    key: str
    rows: bool = False


class LookupReply(Message, frozen=True, tag="There"):
    """These, my leaves among them."""

    me: Peer
    key: str
    peers: tuple[Peer, ...]


class NodeLeaving(Message, frozen=True, tag="Gone"):
    """I leave."""

    me: Peer


RingMessage: TypeAlias = Heartbeat | Ping | Pong | LookupRequest | LookupReply | NodeLeaving
