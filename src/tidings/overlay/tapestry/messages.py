"""The messages of Tapestry, beside those of every prefix network."""

from __future__ import annotations

from typing import TypeAlias

from tidings.overlay.messages import Message, NodeId, Peer
from tidings.overlay.prefix.messages import RingMessage


class Insertion(Message, frozen=True):
    """A newcomer, for all nodes that share `range_len` digits with the receiver. Acknowledge when they know it."""

    me: Peer
    newcomer: Peer
    range_len: int


class InsertionAck(Message, frozen=True):
    """All nodes of that range know of the newcomer, as far as they are alive."""

    me: Peer
    newcomer: NodeId
    incarnation: int
    range_len: int


TapestryMessage: TypeAlias = RingMessage | Insertion | InsertionAck
