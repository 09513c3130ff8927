"""Events as a node's `Keep` writes them down: read again, and matched without the overlay."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tidings.errors import PeerError
from tidings.node import Node, NodeEffect
from tidings.overlay import Codec, Message, Parcel


class Kept(Message, frozen=True, tag="_KeptEvent"):
    """A parcel as it is written down."""

    parcel: Parcel


_CODEC: Codec[Kept] = Codec(Kept)


def values_of(raw: bytes) -> dict[str, Any] | None:
    """The values of an event that anybody may read; None for a sealed one."""
    view = _CODEC.decode(raw).parcel.view
    return None if view.opaque or view.hidden else view.values


def deliver(node: Node, raw: bytes, now: float) -> Iterable[NodeEffect]:
    """What a node's own subscribers are told of an event that another broker has kept; nothing of one it cannot read.

    Neither the overlay nor its memory of what was seen is asked: whoever calls this knows that the event
    is due, however old it is.
    """
    try:
        opened = node._customs.take_parcel("", _CODEC.decode(raw).parcel, node.now_ms(now))
    except PeerError:
        return []
    known = node._types.get(opened.head.type)
    return node._notify(known, opened, now, "") if known is not None else []
