"""A catalogue of attacks by a hostile member and a hostile stranger, composed at random from a seed.

    python -m tests.adversary.catalogue --overlay hermes --seed 7 --attacks 12

Honest brokers are processes of their own. The hostile member is a broker with genuine papers in this process, which says
whatever an attack has it say; the stranger has no papers. Between attacks a camera publishes. The law: a durable
subscriber of another organisation gets every event once and in order, a live one every event once, a new one gets
keys, nobody ends, nobody dials where only the attacker said there was a broker. What it costs the victims in processor
time, memory and rows on disk is printed, and bounded.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shutil
import sqlite3
import ssl
import struct
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

import msgspec

from tests.adversary.black_holes import BlackHole, is_in_place
from tests.adversary.forgeries import in_anothers_name
from tests.live.test_liars import WithLiar, plates, take
from tidings.delivery.durable_interest import BrokerInterests, DurableInterest, sign_advertisement
from tidings.delivery.messages import (
    Ack,
    Announce,
    Announced,
    DirectEvents,
    DirectRequest,
    InterestVersions,
    Retransmit,
)
from tidings.net import Client, DevNetwork, ReadAccess, Subscription, read_broker
from tidings.net.clock import now_ms, now_us
from tidings.net.config import host_and_port
from tidings.net.transport.frames import AnyFrame, OnlineAnswers, OverlayMessages, Padding, SignedRevocations
from tidings.node import node_id_of
from tidings.node.outbound import encode_stored
from tidings.overlay import Deliver, EventId, Header, Interest, Packet, Peer, Sql, SubscriptionId, View
from tidings.security import Identity, Mode, sign_answer

OVERLAYS = ("irbr", "hermes", "immune", "flooding", "spanhop", "cbdlo")
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "irbr-tapestry": ("irbr", {"network": "tapestry"}),
    "gossip": ("gossip", {}),
}
KINDS = (*OVERLAYS, *VARIANTS)
READERS = {"ccs": ReadAccess(), "yard": ReadAccess(("plate",))}
VICTIMS = ("police-1", "ccs-1")
ROUND_S_MAX = 120.0
LAYOUTS_MAX = 100  # One in three will do.
WANTED = 40  # Conditions of 30 kB: more than a megabyte.
# What a run may leave behind in each victim, and cost it. Generous: what is looked for is growth without end.
MEMORY_MB_MAX, ROWS_MAX, CPU_MS_PER_FRAME_MAX, CPU_S_FREE = 64, 4_000, 10.0, 30.0


@dataclass(slots=True)
class HostileRun:
    """What an attack may use: the network with the liar, chance, an address that counts who dials it."""

    network: WithLiar
    rng: Random
    trap: str
    frames: int = 0
    hole: BlackHole | None = None

    async def say(self, to: str, *frames: AnyFrame) -> None:
        """Says what may get the liar cut off; the next link comes up by itself."""
        link = await self.network.link_to(to)
        for frame in frames:
            if not link.send(frame):
                link = await self.network.link_to(to)
                link.send(frame)
            self.frames += 1
            await link.drained()

    async def say_messages(self, to: str, messages: list[bytes]) -> None:
        await self.say(to, *(OverlayMessages((raw,)) for raw in messages))

    def victim(self) -> str:
        return self.rng.choice(VICTIMS)

    def described(self, name: str) -> Peer:
        return Peer(self.network.id_of(name), self.trap, 1)


Attack: TypeAlias = Callable[[HostileRun], Awaitable[None]]


# ── A member ──


async def speaks_for_others(run: HostileRun) -> None:
    """Records, notices and events of the overlay in the name of another broker."""
    said = in_anothers_name(run.described(run.victim()), run.network.type_name)[run.network.liar.protocol.name]
    chosen = run.rng.sample(said, min(len(said), 200))
    await run.say_messages(run.victim(), [run.network.liar.node.encode(each) for each in chosen])


async def repeats_and_alters(run: HostileRun) -> None:
    """What it has heard, again and with bits turned."""
    heard = [raw for raw in run.network.heard if len(raw) < 50_000]
    chosen = [run.rng.choice(heard) for _ in range(100)]
    await run.say_messages(run.victim(), [_turned(raw, run.rng) if run.rng.random() < 0.7 else raw for raw in chosen])


async def babbles(run: HostileRun) -> None:
    """Bytes that are nothing."""
    await run.say_messages(run.victim(), [run.rng.randbytes(run.rng.randrange(1, 2000)) for _ in range(50)])
    await run.say_messages(run.victim(), [b"\x91" * 60_000, b"\xdd\xff\xff\xff\xff", b""])


async def publishes_for_others(run: HostileRun) -> None:
    """Events under ids of another broker, of the network's type and of types that nobody knows."""
    await run.say_messages(run.victim(), _encoded(run, _packets(run, 100)))


def _packets(run: HostileRun, count: int) -> list[Packet]:
    origin = run.network.id_of(run.victim())
    numbers = [run.rng.choice((1, 1 << 40, 1 << 61, 1 << 62)) + n for n in range(count)]
    return [
        Packet(
            Header(
                EventId(origin, run.rng.randrange(1 << 62), seq), run.rng.choice((run.network.type_name, "unknown"))
            ),
            View({"plate": "FORGED"}),
            run.rng.choice((b"", run.rng.randbytes(200))),
            run.rng.choice((b"", run.rng.randbytes(101))),
        )
        for seq in numbers
    ]


async def invents_durable_brokers(run: HostileRun) -> None:
    """Durable subscriptions of brokers that do not exist, at an address of its choice."""
    rights = run.network.liar.node.neighbours.shown()
    wants = (DurableInterest("all", run.network.type_name, "", 0),)
    for _ in range(100):
        identity = Identity(run.rng.randbytes(32))
        claim = BrokerInterests(Peer(node_id_of(identity.public_key), run.trap), now_us(), wants)
        await run.say("police-1", sign_advertisement(claim, identity, rights))


async def forges_revocations(run: HostileRun) -> None:
    """Revocations and online answers that nobody has signed who may."""
    await run.say(run.victim(), SignedRevocations((run.rng.randbytes(300),)))
    await run.say(run.victim(), OnlineAnswers((sign_answer(run.network.liar.identity, ["night"], now_ms()),)))
    await run.say(run.victim(), OnlineAnswers((run.rng.randbytes(100),)))


async def confirms_what_it_never_got(run: HostileRun) -> None:
    """Acknowledgements, announcements and repetitions of the reliable delivery that fit nothing."""
    me, to = run.network.liar.me.id, run.victim()
    await run.say(to, Ack(run.rng.randrange(1 << 60)), Ack(-1), InterestVersions({me: 1 << 60}))
    numbers = tuple(Announced(1 + n, EventId(me, 0, 1 + n)) for n in range(200))
    await run.say(to, Announce(run.rng.randbytes(16), 1, numbers))
    await run.say(to, *(Retransmit(1 + n, run.rng.randbytes(100)) for n in range(20)))


async def sends_straight_what_is_not_its_own(run: HostileRun) -> None:
    """Events of others, nonsense and far too much as checks; detours for whatever there is."""
    stored = [encode_stored(packet) for packet in _packets(run, 20)]
    rubbish = [run.rng.randbytes(run.rng.randrange(1, 500)) for _ in range(200)]
    for is_check in (True, False):
        await run.say(run.victim(), *(DirectEvents(((0.0, raw),), check=is_check) for raw in stored))
        await run.say(run.victim(), DirectEvents(tuple((-1e300, raw) for raw in rubbish), check=is_check))
    await run.say(run.victim(), DirectEvents(((float("nan"), b"x"),) * 2000))
    asked = (DirectRequest(run.rng.choice((run.network.type_name, "unknown", "~keys/x"))) for _ in range(50))
    await run.say(run.victim(), *asked)


async def swallows_what_passes(run: HostileRun) -> None:
    """Takes the places that events go to, and forwards nothing of others from then on."""
    if run.hole is None:
        run.hole = BlackHole(run.network.liar)
        run.hole.open()
    run.hole.claim()


async def wants_too_much(run: HostileRun) -> None:
    """Subscriptions of its own, with the longest conditions there may be: more of them than fit into a message."""
    liar = run.network.liar
    for number in range(WANTED):
        condition = " OR ".join(f"plate = 'X{run.frames}.{number}.{n}'" for n in range(1200))
        id = SubscriptionId(liar.me.id, liar.me.incarnation, run.rng.randrange(1 << 40, 1 << 41))
        interest = Interest(id, f"made up {number % 3}", Sql(condition, (("plate", "string"),)))
        effects = liar.node.router.subscribe(interest, liar._loop.time())
        liar.carry_out([each for each in effects if not isinstance(each, Deliver)])
        run.frames += 1
        await asyncio.sleep(0)


async def fills_the_link(run: HostileRun) -> None:
    """Megabytes of nothing."""
    await run.say(run.victim(), *(Padding(bytes(1 << 20)) for _ in range(16)))


# ── A stranger ──


async def knocks_and_babbles(run: HostileRun) -> None:
    """Connections without TLS, and with bytes that are no handshake."""
    openings = (
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack(">I", 1 << 31),
        run.rng.randbytes(5000),
        b"\x16\x03\x01\xff\xff",
    )
    for _ in range(20):
        async with _connected(run, None) as writer:
            writer.write(run.rng.choice(openings))
            run.frames += 1


async def comes_without_papers(run: HostileRun) -> None:
    """TLS with a certificate of its own making, or none."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    for _ in range(20):
        async with _connected(run, context) as writer:
            writer.write(struct.pack(">I", 100) + run.rng.randbytes(100))
            run.frames += 1


async def holds_connections(run: HostileRun) -> None:
    """Many at once, on which nothing is said."""
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(60):
            await stack.enter_async_context(_connected(run, None))
            run.frames += 1


MEMBER: tuple[Attack, ...] = (
    speaks_for_others,
    repeats_and_alters,
    babbles,
    publishes_for_others,
    invents_durable_brokers,
    forges_revocations,
    confirms_what_it_never_got,
    sends_straight_what_is_not_its_own,
    swallows_what_passes,
    wants_too_much,
    fills_the_link,
)
STRANGER: tuple[Attack, ...] = (knocks_and_babbles, comes_without_papers, holds_connections)


@contextlib.asynccontextmanager
async def _connected(run: HostileRun, context: ssl.SSLContext | None) -> Any:
    host, port = host_and_port(read_broker(run.network.laid.brokers[run.victim()]).listen)
    writer: asyncio.StreamWriter | _Nobody = _Nobody()
    with contextlib.suppress(OSError, ssl.SSLError):  # Refused: as good.
        _, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname="" if context else None)
    try:
        yield writer
    finally:
        writer.close()


class _Nobody:
    def write(self, _: bytes) -> None: ...

    def close(self) -> None: ...


def _turned(raw: bytes, rng: Random) -> bytes:
    at = rng.randrange(len(raw)) if raw else 0
    return raw[:at] + bytes([raw[at] ^ 1 << rng.randrange(8)]) + raw[at + 1 :] if raw else raw


def _encoded(run: HostileRun, packets: list[Packet]) -> list[bytes]:
    """Each packet in a message of the overlay that carries one and little else; by itself if there is none."""
    node = run.network.liar.node
    kinds = [each for each in _message_kinds(run.network.liar.protocol.messages) if "packet" in each.__struct_fields__]
    made = [_filled(run, kind, packet) for packet in packets for kind in kinds[:2]]
    return [node.encode(each) for each in made if each is not None]


def _message_kinds(messages: Any) -> Iterator[Any]:
    yield from getattr(messages, "__args__", (messages,))


def _filled(run: HostileRun, kind: Any, packet: Packet) -> Any:
    values: dict[str, Any] = {"packet": packet}
    for each in msgspec.structs.fields(kind):
        if each.name != "packet" and each.required:
            if each.type not in (int, str, bool, Peer):
                return None
            values[each.name] = {int: 0, str: "", bool: False, Peer: run.network.liar.me}[each.type]
    return kind(**values)


# ── A run ──


@dataclass(frozen=True, slots=True)
class HostilePlan:
    """What to run; the same plan is the same attacks."""

    overlay: str
    seed: int
    attacks: int = 6

    def chosen(self) -> list[Attack]:
        """Speaking for others is always among them, swallowing what is theirs, and a stranger."""
        rng = Random(self.seed)
        more = [rng.choice(MEMBER + STRANGER) for _ in range(self.attacks - 3)]
        chosen = [speaks_for_others, swallows_what_passes, rng.choice(STRANGER), *more]
        rng.shuffle(chosen)
        return chosen


@dataclass(slots=True)
class HostileOutcome:
    """What was wrong, and what it cost."""

    plan: HostilePlan
    wrong: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)


def judged(plan: HostilePlan) -> HostileOutcome:
    """Runs a plan in a network of its own."""
    folder, outcome = Path(tempfile.mkdtemp(prefix="tidings-hostile-")), HostileOutcome(plan)
    try:
        asyncio.run(_run(plan, folder, outcome))
    except (AssertionError, TimeoutError) as wrong:
        outcome.wrong.append(f"{type(wrong).__name__}: {wrong}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return outcome


async def _run(plan: HostilePlan, folder: Path, outcome: HostileOutcome) -> None:
    brokers = {"police": 1, "ccs": 1, "yard": 1}
    overlay, options = VARIANTS.get(plan.overlay, (plan.overlay, {}))
    layout = DevNetwork(
        first_port=0,
        brokers=brokers,
        readers=READERS,
        overlay=overlay,
        overlay_options=options,
        mode=Mode.ATTRIBUTE,
    )
    dialled: list[None] = []

    async def count(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        dialled.append(None)
        writer.close()

    trap = await asyncio.start_server(count, "127.0.0.1", 0)
    async with _network(folder, layout) as network:
        run = HostileRun(network, Random(plan.seed), "{}:{}".format(*trap.sockets[0].getsockname()))
        camera, desk = await network.client("police/camera"), await network.client("ccs/desk")
        kept = await desk.subscribe("Numberplate", "speed >= 0", durable="all").ready()
        live = await desk.subscribe("Numberplate", "speed < 1000").ready()
        await _arrive(camera, kept, live)
        for attack in plan.chosen():
            before, frames = _costs(network), run.frames
            async with asyncio.timeout(ROUND_S_MAX):
                await attack(run)
                await _arrive(camera, kept, live)
            _note(outcome, attack, run.frames - frames, before, _costs(network))
        late = await (await network.client("ccs/desk")).subscribe("Numberplate", "speed >= 3").ready()
        ids = await camera.publish_many("Numberplate", plates(5))
        assert await take(kept, 5) == ids
        assert sorted(await take(live, 5)) == sorted(ids)
        assert sorted(await take(late, 2)) == sorted(ids[3:]), "a new subscriber"
        outcome.wrong += [f"{name} ended" for name, broker in network.brokers.items() if not broker.is_up]
        outcome.wrong += [f"{len(dialled)} dials to where nobody is"] if dialled else []
    trap.close()


def _network(folder: Path, layout: DevNetwork) -> WithLiar:
    """One in which the liar has the key that serves it best: it can choose it."""
    for number in range(LAYOUTS_MAX):
        network = WithLiar(folder / str(number), layout)
        ids = [network.id_of(name) for name in network.brokers]
        if is_in_place(layout.overlay, network.id_of("yard-1"), ids, network.type_name):
            return network
    raise AssertionError("no network in which the liar has such a key")


async def _arrive(camera: Client, kept: Subscription, live: Subscription) -> None:
    ids = await camera.publish_many("Numberplate", plates(5))
    assert await take(kept, 5) == ids, "the durable subscriber got something else"
    assert sorted(await take(live, 5)) == sorted(ids), "the live subscriber got something else"


@dataclass(frozen=True, slots=True)
class VictimCost:
    """What a broker has used so far."""

    cpu_s: float
    memory_mb: float
    rows: int


def _costs(network: WithLiar) -> dict[str, VictimCost]:
    return {name: _cost(pid, network.laid.brokers[name].parent / "data") for name, pid in network.pids().items()}


def _cost(pid: int, data: Path) -> VictimCost:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    cpu_s = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return VictimCost(cpu_s, int(fields[21]) * os.sysconf("SC_PAGE_SIZE") / 1e6, _rows(data / "journal.db"))


def _rows(file: Path) -> int:
    with contextlib.closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as journal:
        tables = [name for (name,) in journal.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return sum(journal.execute(f"SELECT COUNT(*) FROM {name}").fetchone()[0] for name in tables)


def _note(
    outcome: HostileOutcome, attack: Attack, frames: int, before: dict[str, VictimCost], after: dict[str, VictimCost]
) -> None:
    for name in sorted(before.keys() & after.keys()):
        cpu_s = after[name].cpu_s - before[name].cpu_s
        grown_mb, rows = after[name].memory_mb - before[name].memory_mb, after[name].rows - before[name].rows
        outcome.lines.append(
            f"{outcome.plan.overlay:13} {attack.__name__:27} {frames:4} frames   {name:9} "
            f"{cpu_s:6.2f} s CPU {grown_mb:+7.1f} MB {rows:+5} rows"
        )
        if grown_mb > MEMORY_MB_MAX or rows > ROWS_MAX or cpu_s > CPU_S_FREE + frames * CPU_MS_PER_FRAME_MAX / 1000:
            outcome.wrong.append(f"too dear: {outcome.lines[-1]}")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.adversary.catalogue", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--overlay", choices=KINDS, action="append")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--attacks", type=int, default=12)
    asked = parser.parse_args()
    failed = 0
    for overlay in asked.overlay or KINDS:
        outcome = judged(HostilePlan(overlay, asked.seed, asked.attacks))
        print("\n".join([*outcome.lines, *(f"WRONG {wrong}" for wrong in outcome.wrong)]), flush=True)
        failed += bool(outcome.wrong)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
