"""A broker that lies: a member with genuine papers, in the test's own process, says what is not so to honest ones.

The yard may read plates and nothing else. Its broker repeats what it heard, alters it, says that it owes what others
have published, speaks for others and confirms what it never got. The honest brokers are processes: none may
crash, lose an event, tell one twice or grow without end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.live.processes import LiveNetwork
from tidings.delivery.durable_interest import BrokerInterests, DurableInterest, sign_advertisement
from tidings.delivery.messages import WINDOW, Ack, Announce, Announced, DeliveryMessage, InterestVersions, Retransmit
from tidings.net import Broker, Client, DevNetwork, ReadAccess, Subscription, read_broker
from tidings.net.clock import now_us
from tidings.net.transport.connection import Link
from tidings.net.transport.frames import AnyFrame, OverlayMessages
from tidings.node.outbound import encode_stored
from tidings.node.type_crypto import event_id_of
from tidings.overlay import Codec, EventId, Header, NodeId, Packet
from tidings.security import Identity, Mode, split

pytestmark = [pytest.mark.live, pytest.mark.slow]

ARRIVE_S_MAX = 90.0
SEALED = DevNetwork(
    first_port=0, readers={"ccs": ReadAccess(), "yard": ReadAccess(("plate",))}, mode=Mode.ATTRIBUTE, overlay="flooding"
)
_SAID = b"Flood"  # As the overlay's messages with events are called.
_PROOFS = b"LinkMembers"  # Before a message about keys; no event comes with them.
GROWTH_MB_MAX = 48  # What a flood of lies may leave behind in a broker: its bounded tables, and Python's own slack.


class WithLiar(LiveNetwork):
    """Honest brokers as processes, and one that the test can make say anything."""

    async def __aenter__(self) -> WithLiar:
        config = read_broker(self.laid.brokers["yard-1"])
        self.heard: list[bytes] = []
        self.answers: list[tuple[NodeId, AnyFrame | None]] = []
        self.changed = asyncio.Event()
        del self.brokers["yard-1"]
        for broker in self.brokers.values():
            await broker.start()
        self.liar = await Broker.start(config)
        self._listen_in()
        await self.joined()
        await self.liar.is_joined.wait()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.liar.stop()
        await super().__aexit__()

    def _listen_in(self) -> None:
        """Keep what honest brokers say to the liar: messages of the overlay, and answers."""
        take, receive, down = self.liar.node.receive_many, self.liar.receive_delivery, self.liar.link_is_down

        def listen(frames: Any, now: float) -> Any:
            frames = list(frames)
            self.heard += [raw for _, raw in frames]
            return take(frames, now)

        def answered(link: Link, message: DeliveryMessage) -> None:
            self.answers.append((link.proven.id, message))
            self.changed.set()
            receive(link, message)

        def went_down(peer: NodeId) -> None:
            down(peer)
            self.answers.append((peer, None))
            self.changed.set()

        self.liar.node.receive_many = listen  # type: ignore[method-assign]
        self.liar.receive_delivery = answered  # type: ignore[method-assign]
        self.liar.link_is_down = went_down  # type: ignore[method-assign]

    async def answers_with(self, name: str, frame: AnyFrame | None) -> None:
        """Waits until a broker has said this to the liar; None: until it has hung up."""
        async with asyncio.timeout(ARRIVE_S_MAX):
            while (self.id_of(name), frame) not in self.answers:
                self.changed.clear()
                await self.changed.wait()

    def overheard(self) -> dict[bytes, Packet]:
        """The messages that brought an event of the sealed type to the liar, and the event."""
        codec: Codec[Any] = Codec(self.liar.protocol.messages)
        found = {
            raw: getattr(codec.decode(raw), "packet", None) for raw in self.heard if _SAID in raw and _PROOFS not in raw
        }
        return {raw: packet for raw, packet in found.items() if packet and packet.header.type == self.type_name}

    @property
    def type_name(self) -> str:
        return self.laid.signed.type_id.hex()

    async def link_to(self, name: str) -> Link:
        """The liar's link to a broker, that both have accepted."""
        id = self.id_of(name)
        async with asyncio.timeout(ARRIVE_S_MAX):
            while (link := self.liar.links.ready(id)) is None:
                self.liar.links.reach(id)
                await asyncio.sleep(0.05)  # Links come up in their own time; nothing is decided by how long it takes.
        return link

    async def say(self, to: str, *frames: AnyFrame) -> None:
        """Say something to a broker."""
        link = await self.link_to(to)
        for frame in frames:
            link.send(frame)
            await link.drained()

    async def says_to_its_cost(self, to: str, frame: AnyFrame) -> None:
        """Say something for which a broker hangs up."""
        link = await self.link_to(to)
        self.answers.clear()
        link.send(frame)
        await self.answers_with(to, None)


async def take(subscription: Subscription, count: int) -> list[str]:
    async with asyncio.timeout(ARRIVE_S_MAX):
        return [(await anext(subscription)).id for _ in range(count)]


async def arrives(camera: Client, heard: Subscription, count: int) -> None:
    """What is published comes: all of it, once, in order, and nothing before it."""
    ids = await camera.publish_many("Numberplate", plates(count))
    assert await take(heard, count) == ids


def with_liar(
    folder: Path, scenario: Callable[[WithLiar, Client, Subscription], Awaitable[None]], layout: DevNetwork = SEALED
) -> None:
    """Runs a scenario with a camera at the police and a durable subscriber at ccs; nobody may have ended at its end."""

    async def run() -> None:
        async with WithLiar(folder, layout) as network:
            camera, desk = await network.client("police/camera"), await network.client("ccs/desk")
            heard = await desk.subscribe("Numberplate", "speed >= 0", durable="all").ready()
            await scenario(network, camera, heard)
            await arrives(camera, heard, 1)
            assert all(broker.is_up for broker in network.brokers.values())

    asyncio.run(run())


def plates(count: int) -> list[dict[str, Any]]:
    return [{"plate": f"AB{n}", "area": "EC2", "speed": float(n)} for n in range(count)]


def test_what_is_repeated_or_altered_on_the_way_is_told_to_nobody(tmp_path: Path) -> None:
    async def scenario(network: WithLiar, camera: Client, heard: Subscription) -> None:
        await arrives(camera, heard, 20)
        overheard = list(network.overheard())
        assert len(overheard) >= 20
        for to in ("ccs-1", "police-1"):
            await network.say(to, *(OverlayMessages((raw,)) for raw in overheard for _ in range(3)))
            await network.say(to, *(OverlayMessages((_altered(raw, seed),)) for seed, raw in enumerate(overheard * 3)))

    with_liar(tmp_path, scenario)


def _altered(raw: bytes, seed: int) -> bytes:
    """With one bit of the second half turned, where the sealed values are."""
    at = Random(seed).randrange(len(raw) // 2, len(raw))
    return raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]


def test_what_others_have_published_is_not_taken_from_one_who_lists_it_as_its_own(tmp_path: Path) -> None:
    async def scenario(network: WithLiar, camera: Client, heard: Subscription) -> None:
        await arrives(camera, heard, 3)
        theirs = list(network.overheard().values())[:3]
        # As it is: the one who lists it is not its origin, and is cut off.
        await network.says_to_its_cost("ccs-1", Announce(b"j" * 16, 1, (Announced(1, theirs[0].header.id),)))
        # Under the liar's own name: it is taken, and the seal is known. Listed under one name, sent under another: not taken.
        own = [relabelled(packet, network.liar.me.id) for packet in theirs]
        ids = [*(packet.header.id for packet in own), EventId(network.liar.me.id, 9, 9)]
        await network.say("ccs-1", Announce(b"k" * 16, 1, tuple(Announced(1 + n, id) for n, id in enumerate(ids))))
        await network.say("ccs-1", *(Retransmit(1 + n, encode_stored(own[n % 3])) for n in range(len(ids))))
        await network.answers_with("ccs-1", Ack(1 + len(ids)))

    with_liar(tmp_path, scenario)


def relabelled(packet: Packet, origin: str) -> Packet:
    return Packet(Header(event_id_of(origin, split(packet.envelope)), packet.header.type), packet.view, packet.envelope)


def test_who_speaks_for_others_or_confirms_what_it_never_got_harms_only_itself(tmp_path: Path) -> None:
    async def scenario(network: WithLiar, camera: Client, heard: Subscription) -> None:
        ids = await camera.publish_many("Numberplate", plates(5))
        someone = Identity(bytes(range(32)))
        forged = sign_advertisement(BrokerInterests(network.liar.me, 1 << 50, ()), someone)
        await network.say("police-1", Ack(1 << 40), Ack(2), Ack(-5))
        await network.says_to_its_cost("police-1", forged)
        everything = DurableInterest("mine", network.type_name, "", 0)
        claim = BrokerInterests(network.liar.me, now_us(), (everything,))
        rights = network.liar.node.neighbours.shown()
        await network.say("police-1", sign_advertisement(claim, network.liar.identity, rights))
        ids += await camera.publish_many("Numberplate", plates(5))
        assert await take(heard, 10) == ids
        async with asyncio.timeout(ARRIVE_S_MAX):  # Who has been told confirms it in its own time; the liar never does.
            while not set((await camera.ask("status"))[0]["owed"]) <= {network.liar.me.id}:
                pass

    with_liar(tmp_path, scenario)


def test_lies_without_end_do_not_make_a_broker_grow_without_end(tmp_path: Path) -> None:
    layout = DevNetwork(first_port=0, readers=SEALED.readers, overlay="flooding")

    async def scenario(network: WithLiar, camera: Client, heard: Subscription) -> None:
        await arrives(camera, heard, 1)
        await network.say("ccs-1", *_lies(network, 4))  # Fills what is bounded.
        before = _resident_mb(network.brokers["ccs-1"].pid)
        await network.say("ccs-1", *_lies(network, 40))
        await arrives(camera, heard, 1)
        assert _resident_mb(network.brokers["ccs-1"].pid) - before < GROWTH_MB_MAX
        (status,) = await (await network.client("ccs/desk")).ask("status")
        assert status["listed"][0] <= status["listed"][1]
        assert status["early"][0] <= status["early"][1]

    with_liar(tmp_path, scenario, layout)


def _lies(network: WithLiar, rounds: int) -> list[AnyFrame]:
    """Half a megabyte each: debts far ahead of anything, versions of nobody's wants, events that nobody asked for."""
    me, said = network.liar.me.id, list[AnyFrame]()
    for round in range(rounds):
        first = 1 + round * WINDOW
        said.append(Announce(b"k" * 16, 1, tuple(Announced(n, EventId(me, 0, n)) for n in range(first, first + 8000))))
        said.append(InterestVersions({f"{round:08x}{n:056x}": n for n in range(5000)}))
        said.append(Retransmit(first, bytes(500_000)))
        said.append(Ack(round))
    return said


def _resident_mb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 / 1e6
