"""Chaos: everything happens to the brokers of three organisations while publishers and durable subscribers run.

    python -m tests.live.chaos [--brokers 12] [--events 100000] [--seconds 600] [--seed N]

Brokers are killed and started again, frozen, cut off from one another, put into another time and left without
room on their disks (see `faults`). In the end:

- every acknowledged event has come exactly once to each matching durable subscriber, in the order of each publisher;
- nobody has got an event, or an attribute of one, without a right to it, and who shows no right gets nothing at all;
- no byte of a value that an organisation may not read is in what others sent to its brokers, on its disks or in its logs.

The faults are drawn from the seed; what the machine makes of them is not, so a failure may take some
runs to come again.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from tests.live.faults import Faults, Troubled
from tests.live.leaks import area, found_in, plate, speed
from tidings.errors import Denied, SetupError
from tidings.net import Client, Layout, Reader, Subscription, read_client
from tidings.security import Mode

ORGANISATIONS = ("police", "ccs", "yard")
EVERYTHING = frozenset({"plate", "area", "speed", "seen_at"})
WHAT_ENDS = ("key:", "beacon:", "clock:", "disk:")  # Refusals that end by themselves: said again until it is taken.
SAY_AGAIN_S = 0.1
TRY_AGAIN_S = 0.5
PUBLISHERS_MAX = 2
SETTLE_S_MAX = 300.0  # After the last fault, on a loaded machine.
_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How big, how long, and which dice."""

    brokers: int = 12
    events: int = 100_000
    seconds: float = 600.0
    seed: int = 1
    mode: Mode = Mode.ATTRIBUTE
    overlay: str = "irbr"
    troubles: int = 2
    """Faults at the same time."""
    pause_s: float = 2.0
    """At most so long between two faults."""
    batch: int = 50
    disk_mb: int = 256

    @property
    def layout(self) -> Layout:
        each, more = divmod(self.brokers, len(ORGANISATIONS))
        return Layout(
            first_port=0,
            brokers={name: each + (number < more) for number, name in enumerate(ORGANISATIONS)},
            readers={"ccs": Reader(), "yard": Reader(("plate",), (f"plate = '{plate(1)}'",))},
            mode=self.mode,
            overlay=self.overlay,
        )


@dataclass
class Wanted:
    """One durable subscriber: what it wants, what it may see, what it got."""

    client: str
    broker: str
    condition: str
    matches: Callable[[dict[str, Any]], bool]
    may_see: frozenset[str]
    got: list[str] = field(default_factory=list)
    saw: set[str] = field(default_factory=set)
    came: asyncio.Event = field(default_factory=asyncio.Event)

    async def read(self, subscription: Subscription) -> None:
        async for event in subscription:
            self.got.append(event.id)
            self.saw.update(event.values)
            self.came.set()

    async def has(self, count: int) -> None:
        """Waits until so many have come."""
        while len(self.got) < count:
            self.came.clear()
            await self.came.wait()


def wanted_by(layout: Layout) -> list[Wanted]:
    """One subscriber in each organisation, at its last broker; the yard may see one car and nothing but plates."""
    last = {name: f"{name}-{count}" for name, count in layout.brokers.items()}
    here, one = area("EC2"), plate(1)
    return [
        Wanted("police/desk", last["police"], f"area = '{here}'", lambda v: v["area"] == here, EVERYTHING),
        Wanted("ccs/desk", last["ccs"], "speed >= 50", lambda v: v["speed"] >= 50, EVERYTHING),
        Wanted("yard/desk", last["yard"], "plate LIKE 'AB%'", lambda v: v["plate"] == one, frozenset({"plate"})),
    ]


@dataclass
class Outcome:
    """What came of it; `wrong` is empty if all is well."""

    wrong: list[str] = field(default_factory=list)
    events: int = 0
    refused_and_said_again: int = 0
    intrusions_refused: int = 0
    delivered: dict[str, int] = field(default_factory=dict)
    faults: dict[str, int] = field(default_factory=dict)
    searched_mb: float = 0.0
    published_in_s: float = 0.0
    settled_in_s: float = 0.0


async def run(plan: Plan, folder: Path) -> Outcome:
    """Lets it happen, and judges."""
    layout = plan.layout
    small = sorted({"police-1", wanted_by(layout)[1].broker})
    async with Troubled(folder, layout, small=small, disk_mb=plan.disk_mb) as network:
        chaos = Chaos(plan, network)
        await chaos.run()
    chaos.judge_leaks()
    return chaos.outcome


class Chaos:
    """One run."""

    def __init__(self, plan: Plan, network: Troubled) -> None:
        self.plan, self.network = plan, network
        self.wanted = wanted_by(plan.layout)
        self.faults = Faults(network, Random(plan.seed))
        self.published: dict[str, tuple[str, dict[str, Any]]] = {}  # By event id: by whom, and what.
        self.outcome = Outcome()

    async def run(self) -> None:
        begun = time.monotonic()
        subscriptions = [await self._placed(wanted) for wanted in self.wanted]
        others = [asyncio.create_task(wanted.read(each)) for wanted, each in zip(self.wanted, subscriptions)]
        others.append(asyncio.create_task(self._intrude()))
        saying = asyncio.gather(*[asyncio.create_task(self._publish(name)) for name in self._publishers()])
        await asyncio.gather(*(self._trouble(saying) for _ in range(self.plan.troubles)))
        await saying
        self.outcome.published_in_s = time.monotonic() - begun
        await self.faults.mend()
        await self._last_words()
        await self._settled()
        self.outcome.settled_in_s = time.monotonic() - begun - self.outcome.published_in_s
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        self._judge()

    async def _placed(self, wanted: Wanted) -> Subscription:
        client = await self.network.client(wanted.client, wanted.broker)
        return await self._until_taken(
            lambda: client.subscribe("Numberplate", wanted.condition, durable="chaos").ready()
        )

    def _publishers(self) -> list[str]:
        return [f"police-{1 + n}" for n in range(min(PUBLISHERS_MAX, self.plan.layout.brokers["police"]))]

    # ── Saying ──

    async def _publish(self, broker: str) -> None:
        client, dice = await self.network.client("police/camera", broker), Random(f"{self.plan.seed}/{broker}")
        count, batch = self.plan.events // len(self._publishers()), self.plan.batch
        pause_s, loop = self.plan.seconds * batch / count, asyncio.get_running_loop()
        due = loop.time()
        for number in range(0, count, batch):
            events = [_sighting(dice) for _ in range(batch)]
            ids = await self._said(client, events, [f"{broker}/{number + index}" for index in range(batch)])
            self.published.update((id, (broker, values)) for id, values in zip(ids, events, strict=True))
            due += pause_s
            await asyncio.sleep(max(0.0, due - loop.time()))

    async def _last_words(self) -> None:
        """One event from each publisher that everybody wants: what comes twice comes before it."""
        last = {"plate": plate(1), "area": area("EC2"), "speed": speed(99.0)}
        for broker in self._publishers():
            client = await self.network.client("police/camera", broker)
            (id,) = await self._said(client, [last], [f"{broker}/last"])
            self.published[id] = (broker, last)

    async def _said(self, client: Client, events: list[dict[str, Any]], names: list[str]) -> list[str]:
        return await self._until_taken(lambda: client.publish_many("Numberplate", events, names=names))

    async def _until_taken(self, ask: Callable[[], Awaitable[_T]]) -> _T:
        """Asked again until it is taken: a broker may have to wait for its keys, or for room."""
        while True:
            try:
                return await ask()
            except (Denied, SetupError) as refused:
                if not str(refused).startswith(WHAT_ENDS):
                    raise
                self.outcome.refused_and_said_again += 1
                await asyncio.sleep(SAY_AGAIN_S)

    async def _trouble(self, saying: asyncio.Future[Any]) -> None:
        while not saying.done() or not self.faults.is_complete:
            await asyncio.sleep(self.faults.chance.uniform(0.0, self.plan.pause_s))
            await self.faults.strike()

    async def _intrude(self) -> None:
        """Somebody who shows no right, and asks for everything again and again."""
        config = replace(read_client(self.network.laid.clients["yard/desk"]), tokens=())
        intruder = await Client.connect(config)
        try:
            while True:
                try:
                    await intruder.subscribe("Numberplate", durable="stolen").ready()
                    self.outcome.wrong.append("a client without a right was let in")
                except Denied:
                    self.outcome.intrusions_refused += 1
                await asyncio.sleep(TRY_AGAIN_S)
        finally:
            await intruder.close()

    # ── Judging ──

    def _expected(self, wanted: Wanted) -> list[str]:
        return [id for id, (_, values) in self.published.items() if wanted.matches(values)]

    async def _settled(self) -> None:
        """Waits until everybody has as much as it should have, or cannot be waited for any longer."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_S_MAX):
                for wanted in self.wanted:
                    await wanted.has(len(self._expected(wanted)))

    def _judge(self) -> None:
        self.outcome.events = len(self.published)
        self.outcome.faults = dict(self.faults.struck)
        for wanted in self.wanted:
            self.outcome.delivered[wanted.client] = len(wanted.got)
            self.outcome.wrong += self._wrong_with(wanted)

    def _wrong_with(self, wanted: Wanted) -> list[str]:
        got, expected, wrong = wanted.got, self._expected(wanted), []
        if len(set(got)) != len(got):
            wrong.append(f"{wanted.client} got {len(got) - len(set(got))} events twice")
        if missing := set(expected) - set(got):
            wrong.append(f"{wanted.client} misses {len(missing)} of {len(expected)}")
        if unasked := set(got) - set(expected):
            wrong.append(f"{wanted.client} got {len(unasked)} that it must not have")
        mixed = [each for each in self._publishers() if self._of(each, got) != self._of(each, expected)]
        wrong += [f"{wanted.client} got the events of {publisher} out of order" for publisher in mixed]
        if wanted.saw - wanted.may_see:
            wrong.append(f"{wanted.client} was shown {wanted.saw - wanted.may_see}")
        return wrong

    def _of(self, publisher: str, ids: list[str]) -> list[str]:
        return [id for id in ids if id in self.published and self.published[id][0] == publisher]

    def judge_leaks(self) -> None:
        """Looks for what the yard may not see in all that reached it, and proves that it would have been found."""
        if self.plan.mode is Mode.PLAIN:
            return
        sent, may = self.network.captured(to="yard"), self.network.captured(to="ccs")
        kept = [file for file in (self.network.laid.folder / "yard").rglob("*") if file.is_file()]
        kept = [file for file in kept if "captured" not in file.parts]
        self.outcome.searched_mb = sum(file.stat().st_size for file in [*sent, *kept]) / 1e6
        for secret in ("area", "speed"):
            self.outcome.wrong += [f"{secret} can be seen in {file}" for file in found_in([*sent, *kept], secret)]
            if not found_in(may, secret):
                self.outcome.wrong.append(f"the search does not find {secret} where it may be")
        if not found_in(sent, "plate"):
            self.outcome.wrong.append("the search does not find plates on the way to who may see them")


def _sighting(dice: Random) -> dict[str, Any]:
    return {
        "plate": plate(dice.randrange(20)),
        "area": area(dice.choice(["EC2", "WC1"])),
        "speed": speed(float(dice.randrange(2, 100))),
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.live.chaos")
    parser.add_argument("--brokers", type=int, default=12)
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=600.0, help="how long the publishing is spread out over")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--troubles", type=int, default=2, help="faults at the same time")
    parser.add_argument("--pause", type=float, default=2.0, dest="pause_s", help="at most so long between two of them")
    parser.add_argument("--mode", choices=[mode.name.lower() for mode in Mode], default="attribute")
    parser.add_argument("--overlay", default="irbr")
    asked = vars(parser.parse_args())
    plan = Plan(**{**asked, "mode": Mode[asked["mode"].upper()]})
    folder = Path(tempfile.mkdtemp(prefix="tidings-chaos-"))
    outcome = asyncio.run(run(plan, folder))
    print(json.dumps(asdict(outcome), indent=2))
    if outcome.wrong:
        print(f"something is wrong; logs in {folder}", file=sys.stderr)
    else:
        shutil.rmtree(folder)
    return 1 if outcome.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
