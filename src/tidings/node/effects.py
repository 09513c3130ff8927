"""The effects of a node: what its driver has to do, in order.

`Send`, `WakeAt`, `Completed`, `Failed` and `Count` are the router's and pass through unchanged. `Deliver` never does:
the node matches the event with its subscriptions, projects it, and emits a `Delivery` for each. The rest is here.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from tidings.overlay import Completed, Count, EventId, Failed, NodeId, Send, SubscriptionId, WakeAt


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
