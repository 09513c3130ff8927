"""Events as a node's `Keep` writes them down: read again, and matched without the overlay."""

from __future__ import annotations

from typing import Any

from tidings.node import Node, NodeEffect
from tidings.overlay import Codec, Message, Parcel
from tidings.security import UnknownEpoch


class Kept(Message, frozen=True, tag="_KeptEvent"):
    """A parcel as it is written down."""

    parcel: Parcel


_CODEC: Codec[Kept] = Codec(Kept)


def values_of(raw: bytes) -> dict[str, Any] | None:
    """The values of an event that anybody may read; None for a sealed one."""
    view = _CODEC.decode(raw).parcel.view
    return None if view.opaque or view.hidden else view.values


def deliver(node: Node, raw: bytes, now: float) -> list[NodeEffect] | None:
    """What a node's own subscribers are told of an event that another broker has kept; None if its key may still come.

    Neither the overlay nor its memory of what was seen is asked: whoever calls this knows that the event
    is due, however old it is. Raises PeerError for an event that is not genuine.
    """
    parcel, now_ms = _CODEC.decode(raw).parcel, node.now_ms(now)
    known = node._types.get(parcel.head.type)
    if known is None:
        return []
    opened = node._customs.take_parcel("", parcel, now_ms)
    if known.keys is not None and (opened.view.hidden or opened.view.opaque):
        try:
            known.keys.check_keys(node._customs.frame_of(opened), now_ms)
        except UnknownEpoch:
            return None
        if not known.keys.members:
            return None
    return node._delivery._notify(known, opened, now_ms, "")
