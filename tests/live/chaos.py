"""Chaos: brokers of three organisations are killed and frozen at random while publishers and durable subscribers run.

    python -m tests.live.chaos [--brokers 12] [--events 100000] [--seconds 600] [--seed N]

In the end every acknowledged event must have come exactly once to each matching durable subscriber, in the
order of each publisher, with no attribute that its reader has no right to. The faults are drawn from the seed;
what the machine makes of them is not, so a failure may take some runs to come again.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from tests.live.processes import LiveNetwork
from tidings.errors import Denied
from tidings.net import Client, Layout, Reader, Received
from tidings.security import Mode

ORGANISATIONS = ("police", "ccs", "yard")
BATCH = 25
SETTLE_S_MAX = 300.0  # After the last fault, on a loaded machine.


@dataclass(frozen=True)
class Plan:
    """How big, how long, and which dice."""

    brokers: int = 12
    events: int = 100_000
    seconds: float = 600.0
    seed: int = 1
    mode: Mode = Mode.PLAIN
    overlay: str = "irbr"
    faults_max: int = 1_000_000


@dataclass
class Wanted:
    """One durable subscriber: what it wants, what it may see, what it got."""

    client: str
    broker: str
    condition: str
    matches: Callable[[dict[str, Any]], bool]
    shown: frozenset[str]
    got: list[Received] = field(default_factory=list)


def wanted_by(plan: Plan) -> list[Wanted]:
    """One subscriber in each organisation, at its last broker; the yard may see one car and nothing but plates."""
    last = plan.brokers // len(ORGANISATIONS)
    everything = frozenset({"plate", "area", "speed", "seen_at"})
    return [
        Wanted("police/desk", f"police-{last}", "area = 'EC2'", lambda v: v["area"] == "EC2", everything),
        Wanted("ccs/desk", f"ccs-{last}", "speed >= 50", lambda v: v["speed"] >= 50, everything),
        Wanted("yard/desk", f"yard-{last}", "plate LIKE 'A%'", lambda v: v["plate"] == "AB1", frozenset({"plate"})),
    ]


async def run(plan: Plan, folder: Path) -> list[str]:
    """What went wrong, nothing if nothing did."""
    readers = {"ccs": Reader(), "yard": Reader(("plate",), ("plate = 'AB1'",))}
    each = plan.brokers // len(ORGANISATIONS)
    layout = Layout(
        first_port=0,
        brokers=dict.fromkeys(ORGANISATIONS, each),
        readers=readers,
        mode=plan.mode,
        overlay=plan.overlay,
    )
    async with LiveNetwork(folder, layout) as network:
        return await Chaos(plan, network).run()


class Chaos:
    """One run."""

    def __init__(self, plan: Plan, network: LiveNetwork) -> None:
        self.plan, self.network = plan, network
        self.chance = Random(plan.seed)
        self.wanted = wanted_by(plan)
        self.published: dict[str, tuple[str, dict[str, Any]]] = {}  # By event id: by whom, and what.
        self.faults: list[str] = []

    async def run(self) -> list[str]:
        readings = []
        for wanted in self.wanted:
            client = await self.network.client(wanted.client, wanted.broker)
            subscription = client.subscribe("Numberplate", wanted.condition, durable="chaos")
            await subscription.ready()
            readings.append(asyncio.create_task(_read(subscription, wanted)))
        publishers = [
            await self.network.client("police/camera", f"police-{1 + n}")
            for n in range(2 if self.plan.brokers > 3 else 1)
        ]
        saying = [asyncio.create_task(self._publish(f"p{n}", client)) for n, client in enumerate(publishers)]
        trouble = asyncio.create_task(self._trouble())
        await asyncio.gather(*saying)
        trouble.cancel()
        await asyncio.gather(trouble, return_exceptions=True)
        await self._all_up()
        wrong = await self._settled()
        for reading in readings:
            reading.cancel()
        return wrong

    async def _publish(self, who: str, client: Client) -> None:
        dice = Random(f"{self.plan.seed}/{who}")
        count = self.plan.events // (2 if self.plan.brokers > 3 else 1)
        pause_s = self.plan.seconds / max(1, count // BATCH)
        loop = asyncio.get_running_loop()
        for number in range(0, count, BATCH):
            due = loop.time() + pause_s
            events = [
                {
                    "plate": f"AB{dice.randrange(20)}",
                    "area": dice.choice(["EC2", "WC1"]),
                    "speed": float(dice.randrange(100)),
                }
                for _ in range(BATCH)
            ]
            names = [f"{who}/{number + index}" for index in range(BATCH)]
            for id, values in zip(await _published(client, events, names), events, strict=True):
                self.published[id] = (who, values)
            await asyncio.sleep(max(0.0, due - loop.time()))

    async def _trouble(self) -> None:
        while len(self.faults) < self.plan.faults_max:
            await asyncio.sleep(self.chance.uniform(0.2, 2.0))
            name = self.chance.choice(list(self.network.brokers))
            broker = self.network.brokers[name]
            if self.chance.random() < 0.6:
                self.faults.append(f"kill {name}")
                await broker.kill()
                await asyncio.sleep(self.chance.uniform(0.0, 2.0))
                await broker.start()
                await broker.until("listening")  # On a busy machine, who is killed at each start never comes up.
            elif broker.is_up:
                self.faults.append(f"freeze {name}")
                broker.freeze()
                await asyncio.sleep(self.chance.uniform(0.1, 5.0))
                broker.thaw()

    async def _all_up(self) -> None:
        for broker in self.network.brokers.values():
            if broker.is_up:
                broker.thaw()
            else:
                await broker.start()
            await broker.until("listening")

    async def _settled(self) -> list[str]:
        """Waits until everybody has what it should have; says what is wrong."""
        expected = {w.client: [id for id, (_, v) in self.published.items() if w.matches(v)] for w in self.wanted}
        deadline = asyncio.get_running_loop().time() + SETTLE_S_MAX
        while asyncio.get_running_loop().time() < deadline:
            if all(len(w.got) >= len(expected[w.client]) for w in self.wanted):
                break
            await asyncio.sleep(0.2)  # Polling a list; nothing is decided by how long it takes.
        return [fault for w in self.wanted for fault in self._faults_of(w, expected[w.client])]

    def _faults_of(self, wanted: Wanted, expected: list[str]) -> list[str]:
        got = [event.id for event in wanted.got]
        faults = []
        if len(set(got)) != len(got):
            faults.append(f"{wanted.client} got {len(got) - len(set(got))} events twice")
        if missing := set(expected) - set(got):
            faults.append(f"{wanted.client} misses {len(missing)} of {len(expected)}")
        if unasked := set(got) - set(expected):
            faults.append(f"{wanted.client} got {len(unasked)} that it must not have")
        for who in {who for who, _ in self.published.values()}:
            order = [id for id in expected if self.published[id][0] == who]
            if [id for id in got if id in set(order)] != order:
                faults.append(f"{wanted.client} got the events of {who} out of order")
        if any(not set(event.values) <= wanted.shown for event in wanted.got):
            faults.append(f"{wanted.client} was shown what it may not see")
        return faults


async def _published(client: Client, events: list[dict[str, Any]], names: list[str]) -> list[str]:
    """Said again until it is taken: a broker that has just come back may have to wait for its keys."""
    while True:
        try:
            return await client.publish_many("Numberplate", events, names=names)
        except Denied as refused:
            if not str(refused).startswith(("key:", "beacon:")):
                raise


async def _read(subscription: Any, wanted: Wanted) -> None:
    async for event in subscription:
        wanted.got.append(event)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.live.chaos")
    parser.add_argument("--brokers", type=int, default=12)
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--mode", choices=[mode.name.lower() for mode in Mode], default="plain")
    parser.add_argument("--overlay", default="irbr")
    asked = parser.parse_args()
    plan = Plan(asked.brokers, asked.events, asked.seconds, asked.seed, Mode[asked.mode.upper()], asked.overlay)
    folder = Path(tempfile.mkdtemp(prefix="tidings-chaos-"))
    wrong = asyncio.run(run(plan, folder))
    print("\n".join(wrong) if wrong else f"all well; logs in {folder}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
