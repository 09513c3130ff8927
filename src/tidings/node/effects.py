"""What a node asks of whoever runs it.

A node's answer is a list of effects, to be carried out in order. `Send`, `WakeAt`, `Completed`,
`Failed` and `Count` are the router's own and pass through as they are (`Deliver` never does: the node
matches, projects and says `Notify`). The rest is here.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from tidings.overlay import Completed, Count, EventId, Failed, NodeId, Send, SubscriptionId, WakeAt


class Notify(msgspec.Struct, frozen=True, gc=False):
    """Tell a client of an event. `values` is all that it may see, and no more; once for each event and subscription."""

    subscription: SubscriptionId
    client: str
    event: EventId
    type: str
    values: dict[str, Any]
    hop_from: NodeId = ""
    """The neighbour it came from; empty where it was published here."""


class Keep(msgspec.Struct, frozen=True, gc=False):
    """Write `raw` down before doing what follows; `Node.publish_again(raw)` says the same event again after a restart.

    Comes only where keeping was asked for. Sealed types are sealed in it, and no plaintext is beside them.
    """

    event: EventId
    raw: bytes


class KeepKeys(msgspec.Struct, frozen=True, gc=False):
    """Write the state of this type's key manager down, and this generation beside it, before doing what follows.

    What comes after it in the list gives out ids and keys that must not be given out a second time.
    """

    type_id: bytes
    generation: int


class Ended(msgspec.Struct, frozen=True, gc=False):
    """A client's subscription is no more: its right was revoked or has run out."""

    subscription: SubscriptionId
    client: str
    why: str


class LinkReady(msgspec.Struct, frozen=True, gc=False):
    """The neighbour has proven who it is and that it belongs to the network: messages may pass, both ways."""

    neighbour: NodeId
    domain: str


class Refused(msgspec.Struct, frozen=True, gc=False):
    """Something from this neighbour was dropped, and why: `check: what was wrong`. With `cut`, close the link."""

    neighbour: NodeId
    why: str
    cut: bool = False


class Joined(msgspec.Struct, frozen=True, gc=False):
    """This node holds keys of the type now: it can seal, and read what its rights are for."""

    type: str
    groups: int
    sender_id: int


class NotJoined(msgspec.Struct, frozen=True, gc=False):
    """The key manager turned this node away, and why. It asks again when it is given another right."""

    type: str
    why: str


NodeEffect: TypeAlias = (
    Send
    | WakeAt
    | Completed
    | Failed
    | Count
    | Notify
    | Keep
    | KeepKeys
    | Ended
    | LinkReady
    | Refused
    | Joined
    | NotJoined
)
