"""The last step: from an event that came here to the clients that are told of it.

An event of a sealed type must be fresh, new and read with every key that this node should have; where
signatures are asked for, it must be signed by a broker with the right to publish it. One whose key, or
whose publisher's right, is still on its way waits for it, for as long as an event may be late.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from tidings.errors import ErrorCode, EventError, PeerError
from tidings.events import Value
from tidings.node.customs import Customs
from tidings.node.effects import Ended, NodeEffect, Notify
from tidings.node.trace_log import Hops
from tidings.node.type_crypto import TypeKeys, UnknownPublisher
from tidings.node.type_registry import Catalogue, Known
from tidings.node.visibility import Seen
from tidings.overlay import Count, NodeId, Packet
from tidings.security import Frame, UnknownEpoch

WAITING_MAX = 4096  # Events that wait for a key which is on its way; the oldest make room.


WAITS_FOR_KEY, WAITS_FOR_PUBLISHER = Count("waiting_for_key"), Count("waiting_for_publisher")


class _Waiting(NamedTuple):
    until_ms: int
    packet: Packet
    came_from: NodeId


class Delivery:
    """One node's way to its clients."""

    def __init__(self, types: Catalogue, customs: Customs, hops: Hops) -> None:
        self._types, self._customs, self._hops = types, customs, hops
        self._waiting: deque[_Waiting] = deque(maxlen=WAITING_MAX)

    def deliver(self, packet: Packet, now_ms: int, came_from: NodeId) -> list[NodeEffect]:
        """Who is told, and of what. Ended for a subscription whose right turned out to be over: it is to be dropped."""
        known = self._types.get(packet.header.type)
        if known is None or not len(known.local):
            return []
        if known.keys is not None and (refused := self._refusal(known.keys, packet, now_ms, came_from)) is not None:
            return [refused]
        return self._notify(known, packet, now_ms, came_from)

    def tell(self, packet: Packet, now_ms: int) -> list[NodeEffect]:
        """Who is told of an event that is known to be due, whether or not it was seen before and however old it is.

        Raises UnknownEpoch or UnknownPublisher where something that it takes has not come yet, PeerError where
        it is not genuine.
        """
        known = self._types.get(packet.header.type)
        if known is None:
            return []
        if known.keys is not None:
            known.keys.check_joined(packet.view)
            self._check_genuine(known.keys, packet, self._customs.frame_of(packet), now_ms)
        return self._notify(known, packet, now_ms, "")

    def try_again(self, now_ms: int) -> list[NodeEffect]:
        """Keys have come, or time has passed: looks at what waits."""
        if not self._waiting:
            return []
        waiting, self._waiting = self._waiting, deque(maxlen=WAITING_MAX)
        done: list[NodeEffect] = []
        for one in waiting:
            if one.until_ms <= now_ms:
                done.append(Count("undelivered_key"))
                continue
            try:
                opened = self._customs.take_packet("", one.packet, now_ms)
            except PeerError as refused:
                done.append(self._undelivered(one.packet, str(refused), refused.code))
            else:
                done += [each for each in self.deliver(opened, now_ms, one.came_from) if each not in _WAITS]
        return done

    def __len__(self) -> int:
        """How many events wait for a key."""
        return len(self._waiting)

    def _refusal(self, keys: TypeKeys, packet: Packet, now_ms: int, came_from: NodeId) -> Count | None:
        frame = self._customs.frame_of(packet)
        moment = (frame.type_id, frame.sender_id, frame.ts_ms, frame.seq, now_ms)
        try:
            self._check_genuine(keys, packet, frame, now_ms)
            keys.replay.check(*moment)
            if packet.view.values:  # Of an event that cannot be read nothing is known to be true.
                keys.replay.accept(*moment)
        except (UnknownEpoch, UnknownPublisher) as missing:
            late_ms = keys.signed.grace_ms + keys.keyring.delay_ms
            self._waiting.append(_Waiting(frame.ts_ms + late_ms, packet, came_from))
            return WAITS_FOR_KEY if isinstance(missing, UnknownEpoch) else WAITS_FOR_PUBLISHER
        except PeerError as refused:
            return self._undelivered(packet, str(refused), refused.code)
        return None

    def _check_genuine(self, keys: TypeKeys, packet: Packet, frame: Frame, now_ms: int) -> None:
        if packet.view.hidden or packet.view.opaque:
            keys.check_keys(frame, now_ms)
        if keys.need_signatures:
            keys.check_publisher(frame, now_ms)

    def _notify(self, known: Known, packet: Packet, now_ms: int, came_from: NodeId) -> list[NodeEffect]:
        try:
            found = known.local.match(packet.view)
        except EventError as wrong:
            return [self._undelivered(packet, f"event: {wrong}", wrong.code)]
        done: list[NodeEffect] = []
        id, view, name = packet.header.id, packet.view, known.event_type.name
        parts: dict[Seen, tuple[frozenset[str] | None, dict[str, Value]]] = {}
        for one in found:
            shown = view.values
            if (sight := one.sight) is not None:
                seen = sight.at(now_ms)
                if seen is not one.seen and not one.look(seen):
                    done.append(Ended(one.id, one.client, sight.refusal(one.asks, now_ms)))
                    continue
                if not seen.is_all:
                    if seen not in parts:  # Many subscriptions of one client are shown the same.
                        parts[seen] = seen.part(view)
                    names, shown = parts[seen]
                    if names is None or not names.issuperset(one.asks):
                        continue
            self._hops.told(id, one.id, one.client)
            done.append(Notify(one.id, one.client, id, name, shown, came_from))
        return done

    def _undelivered(self, packet: Packet, why: str, code: ErrorCode) -> Count:
        self._hops.refused(packet.header.id, why)
        return Count(f"undelivered_{code}")


_WAITS = (WAITS_FOR_KEY, WAITS_FOR_PUBLISHER)
