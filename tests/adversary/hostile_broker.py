"""A broker process that turns hostile: it takes part like any other, with genuine papers, and lies all the while.

It says again and altered what it has heard, speaks in the name of others, confirms what it never got, and drops a part of
what it should pass on. A file beside its configuration, with a seed in it, makes it so.
"""

from __future__ import annotations

import asyncio
from collections import deque
from pathlib import Path
from random import Random
from typing import Any

from tidings.delivery.messages import Ack, DirectEvents, InterestVersions, Retransmit
from tidings.net import Broker
from tidings.net.transport.frames import AnyFrame, OverlayMessages, SignedRevocations
from tidings.node.outbound import encode_stored
from tidings.overlay import EventId, Header, Packet, View

HEARD_MAX = 2000
PAUSE_S_MAX = 0.2
DROPPED = 0.1  # Of the messages that it should send.
CUT = 0.01  # Of what it says: something for which it is cut off.


def turn_hostile(file: Path) -> None:
    """Has every broker that this process starts be hostile, if there is such a file."""
    if not file.exists():
        return
    honest_start, seed = Broker.start, int(file.read_text())

    async def start(*arguments: Any) -> Broker:
        broker = await honest_start(*arguments)
        _Hostility(broker, Random(seed)).begin()
        return broker

    Broker.start = start  # type: ignore[method-assign,assignment]


class _Hostility:
    def __init__(self, broker: Broker, rng: Random) -> None:
        self._broker, self._rng = broker, rng
        self._heard: deque[bytes] = deque(maxlen=HEARD_MAX)

    def begin(self) -> None:
        receive, send = self._broker.node.receive_many, self._broker.links.send

        def listen(frames: Any, now: float) -> Any:
            frames = list(frames)
            self._heard.extend(raw for _, raw in frames)
            return receive(frames, now)

        def drop(to: str, message: Any) -> None:
            if self._rng.random() >= DROPPED:
                send(to, message)

        self._broker.node.receive_many = listen  # type: ignore[method-assign]
        self._broker.links.send = drop  # type: ignore[method-assign]
        self._lying = asyncio.create_task(self._lie())  # Until the process ends.

    async def _lie(self) -> None:
        while True:
            await asyncio.sleep(self._rng.uniform(0.0, PAUSE_S_MAX))
            links = self._broker.links.ready_links()
            if links and self._heard:
                self._rng.choice(links).send(self._lies())

    def _lies(self) -> AnyFrame:
        rng = self._rng
        if rng.random() < CUT:
            return SignedRevocations((rng.randbytes(200),))
        match rng.randrange(6):
            case 0:
                return OverlayMessages(tuple(rng.choice(self._heard) for _ in range(10)))
            case 1:
                return OverlayMessages(tuple(_turned(rng.choice(self._heard), rng) for _ in range(10)))
            case 2:
                return OverlayMessages(tuple(self._in_anothers_name() for _ in range(10)))
            case 3:
                return Ack(rng.randrange(1 << 40))
            case 4:
                raw = encode_stored(Packet(Header(EventId(self._broker.me.id, 1, 1), "unheard of"), View({})))
                return DirectEvents(((rng.random(), rng.choice((raw, rng.randbytes(99)))),), check=rng.random() < 0.5)
            case _:
                return rng.choice(
                    (InterestVersions({self._broker.me.id: 1 << 60}), Retransmit(rng.randrange(99), b"nothing"))
                )

    def _in_anothers_name(self) -> bytes:
        links = self._broker.links.ready_links()
        origin = self._rng.choice(links).proven.id if links else self._broker.me.id
        id = EventId(origin, self._rng.randrange(1 << 62), self._rng.randrange(1 << 62))
        packet = Packet(Header(id, "unheard of"), View({"plate": "FORGED"}))
        for kind in getattr(self._broker.protocol.messages, "__args__", ()):
            if kind.__struct_fields__ == ("packet", "range_len"):
                return self._broker.node.encode(kind(packet, 0))
        return self._rng.randbytes(100)


def _turned(raw: bytes, rng: Random) -> bytes:
    at = rng.randrange(len(raw)) if raw else 0
    return raw[:at] + bytes([raw[at] ^ 1 << rng.randrange(8)]) + raw[at + 1 :] if raw else raw
