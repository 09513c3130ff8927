"""The nodes of a world as the world knows them, and their messages where these travel as bytes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from tidings.overlay import Interest, NodeId, Peer, Router, SubscriptionId


class Carried(msgspec.Struct, frozen=True, gc=False):
    """A message as bytes, made for one link by a node that seals (see `nodes`). The sender's own message is for bounces."""

    raw: bytes
    message: Any
    name: str
    about: Any


@dataclass(slots=True, eq=False)
class Member:
    """One node of the world: its router, its own subscriptions, and whether it is up."""

    index: int
    peer: Peer
    router: Router[Any]
    links: list[int]
    up: bool = True
    leaving: bool = False
    side: int = 0  # Of a split.
    each_s: float = 0.0  # How long it takes over a message, where it is slow.
    busy_until: float = 0.0
    subscriptions: dict[SubscriptionId, Interest] = field(default_factory=dict)
    subscriptions_made: int = 0
    events_published: int = 0

    @property
    def id(self) -> NodeId:
        return self.peer.id
