"""Chaos: everything happens to the brokers of three organisations while publishers and durable subscribers run.

    make chaos [MINUTES=10] [SEED=N]
    python -m tests.live.chaos [--brokers 12] [--events 100000] [--seconds 480] [--seed N] [--postgres ccs]

Brokers are killed and started again, frozen, cut off from one another, put into another time and left without
room on their disks (see `faults`). In the end:

- every acknowledged event has come exactly once to each matching durable subscriber, in the order of each publisher;
- nobody has got an event, or an attribute of one, without a right to it, and who shows no right gets nothing at all;
- no byte of a value that an organisation may not read is in what others sent to its brokers, on its disks or in its logs;
- no broker has ended unless it was killed.

One broker of the yard is hostile: it lies, repeats, alters and drops (see `tests.adversary.hostile_broker`).

The faults are drawn from the seed; what the machine makes of them is not, so a failure may take some
runs to come again. No outcome depends on how fast the machine is: what takes long is waited for, as long as something
still moves.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from random import Random, SystemRandom
from typing import Any, TypeVar

from tests.live.faults import Faults, Troubled
from tests.live.leaks import found_in, plate
from tests.live.outcome import Outcome, clock, described, leaves, listed
from tests.live.wanted import Said, Wanted, sighting, wanted_by, what_all_want
from tests.postgres_server import PASSWORD, PostgresCluster, new_home, programs
from tidings.errors import Denied, PeerError, SetupError, TidingsError
from tidings.matching import load_kernels
from tidings.net import Client, DevNetwork, ReadAccess, Subscription, read_client
from tidings.security import Mode

ORGANISATIONS = ("police", "ccs", "yard")
WHAT_ENDS = ("key:", "beacon:", "clock:", "disk:")  # Refusals that end by themselves: said again until it is taken.
SAY_AGAIN_S = 0.1
TRY_AGAIN_S = 0.5
PUBLISHERS_MAX = 2
WATCH_EVERY_S = 1.0
TELL_EVERY_S = 15.0
# Ten times what any waiting in a broker lasts: who has not moved for so long never will, on whatever machine.
STILL_S_MAX = 300.0
ASKED_S_MAX = 30.0  # Of a broker, when something is wrong already.
PUBLISHING = 0.8  # Of the minutes asked for; the rest is for starting, settling and searching.
_T = TypeVar("_T")
Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How big, how long, and which dice."""

    brokers: int = 12
    events: int = 100_000
    seconds: float = 480.0
    seed: int = 1
    mode: Mode = Mode.ATTRIBUTE
    overlay: str = "irbr"
    troubles: int = 2
    """Faults at the same time."""
    pause_s: float = 2.0
    """At most so long between two faults."""
    batch: int = 50
    disk_mb: int = 256
    hostile: bool = True
    """Whether a broker of the yard is hostile, if it has another one for its subscriber."""
    postgres: str = ""
    """The organisation whose brokers have their journals in a PostgreSQL server; empty: all have files."""

    @property
    def layout(self) -> DevNetwork:
        each, more = divmod(self.brokers, len(ORGANISATIONS))
        return DevNetwork(
            first_port=0,
            brokers={name: each + (number < more) for number, name in enumerate(ORGANISATIONS)},
            readers={"ccs": ReadAccess(), "yard": ReadAccess(("plate",), (f"plate = '{plate(1)}'",))},
            mode=self.mode,
            overlay=self.overlay,
        )

    def is_on_postgres(self, broker: str) -> bool:
        return broker.rpartition("-")[0] == self.postgres

    def command(self) -> str:
        """What plays it again."""
        mode = self.mode.name.lower()
        return (
            f"python -m tests.live.chaos --brokers {self.brokers} --events {self.events} --seconds {self.seconds:g}"
            f" --seed {self.seed} --troubles {self.troubles} --pause {self.pause_s:g}"
            f" --mode {mode} --overlay {self.overlay}{'' if self.hostile else ' --honest'}"
            f"{f' --postgres {self.postgres}' if self.postgres else ''}"
        )


def _silently(_: str) -> None:
    pass


async def run(plan: Plan, folder: Path, say: Say = _silently) -> Outcome:
    """Lets it happen, and judges; `say` hears how it goes. What the brokers leave behind stays in the folder."""
    layout, begun = plan.layout, time.monotonic()
    others = [each.broker for each in wanted_by(layout)[1:] if not plan.is_on_postgres(each.broker)]
    small = sorted({"police-1", others[0]})
    say(f"starting {plan.brokers} brokers of {', '.join(ORGANISATIONS)}")
    if plan.postgres:
        say(f"the journals of {plan.postgres} are in a PostgreSQL server")
    troubled = Troubled(folder, layout, small=small, disk_mb=plan.disk_mb)
    if plan.hostile and layout.brokers["yard"] > 1:
        troubled.brokers["yard-1"].config.with_name("hostile").write_text(str(plan.seed))
        say("yard-1 is hostile")
    async with journals_in_postgres(plan, troubled), troubled as network:
        chaos = Chaos(plan, network, say)
        say(f"all brokers are up after {clock(time.monotonic() - begun)}")
        if not all(disk.is_real for disk in network.disks.values()):
            say("file systems cannot be mounted here: full disks are limits on file sizes, which end captures, too")
        await chaos.run()
    say("looking for what must not have left")
    chaos.judge_leaks()
    chaos.outcome.took_s = time.monotonic() - begun
    return chaos.outcome


@contextlib.asynccontextmanager
async def journals_in_postgres(plan: Plan, network: Troubled) -> AsyncIterator[None]:
    """A server for the journals of one organisation, and its brokers' files changed to that; nothing without one."""
    if not plan.postgres:
        yield
        return
    home = new_home()
    server = PostgresCluster(home)
    try:
        await asyncio.to_thread(server.make)
        await asyncio.to_thread(server.start)
        for name, broker in network.brokers.items():
            if plan.is_on_postgres(name):
                _keep_journal_at(broker.config, f"postgresql://tester@127.0.0.1:{server.port}/postgres")
        yield
    finally:
        await asyncio.to_thread(server.stop)
        shutil.rmtree(home, ignore_errors=True)


def _keep_journal_at(config: Path, url: str) -> None:
    config.with_name("journal-password").write_text(PASSWORD)
    added = f'journal = "{url}"\njournal_password = "file:journal-password"\n'
    config.write_text(config.read_text().replace("listen = ", f"{added}listen = ", 1))


class Chaos:
    """One run."""

    def __init__(self, plan: Plan, network: Troubled, say: Say = _silently) -> None:
        self.plan, self.network, self.say = plan, network, say
        self.wanted = wanted_by(plan.layout)
        self.faults = Faults(network, Random(plan.seed))
        self.published: dict[str, Said] = {}  # By event id.
        self.outcome = Outcome()
        self._refused = asyncio.Event()
        self._begun = time.monotonic()

    async def run(self) -> None:
        """Judges also where it could not come to its end: then it is wrong for that alone."""
        try:
            await self._run()
        except* Exception as failed:  # noqa: BLE001 - whatever it is, it is a reason.
            why = ", and ".join(map(described, leaves(failed)))
            self.outcome.wrong.append(f"it ended {clock(self._age_s)} after its start, with some on their way: {why}")
        self._judge()
        if self.outcome.wrong:
            self.network.keeps_disks = True
            await self._write_down_status()
            await self._name_dead_letters()

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as beside:  # Whichever fails ends all.
            others = [beside.create_task(self._watch()), beside.create_task(self._tell())]
            subscriptions = [await self._placed(wanted) for wanted in self.wanted]
            reading = zip(self.wanted, subscriptions, strict=True)
            others += [beside.create_task(wanted.read(each)) for wanted, each in reading]
            others.append(beside.create_task(self._intrude()))
            await self._publish_in_trouble()
            await self._come_to_rest()
            # In a short run its broker may have been waiting for keys all the time, and says no only then.
            await self._refused.wait()
            for task in others:
                task.cancel()

    async def _publish_in_trouble(self) -> None:
        async with asyncio.TaskGroup() as busy:
            saying = [busy.create_task(self._publish(name)) for name in self._publishers()]
            for _ in range(self.plan.troubles):
                busy.create_task(self._trouble(saying))

    async def _come_to_rest(self) -> None:
        """Ends the faults, and waits until everybody has as much as it should have."""
        last_fault = time.monotonic()
        self.say("everything is said; mending what is broken, and waiting for the rest")
        await self.faults.mend()
        await self._last_words()
        for wanted in self.wanted:
            await wanted.has(len(wanted.expected(self.published)))
        self.outcome.settled_in_s = time.monotonic() - last_fault

    async def _placed(self, wanted: Wanted) -> Subscription:
        client = await self._connected(partial(self.network.client, wanted.client, wanted.broker))
        return await self._until_taken(
            lambda: client.subscribe("Numberplate", wanted.condition, durable="chaos").ready()
        )

    def _publishers(self) -> list[str]:
        return [f"police-{1 + n}" for n in range(min(PUBLISHERS_MAX, self.plan.layout.brokers["police"]))]

    # ── Saying ──

    async def _publish(self, broker: str) -> None:
        client = await self._connected(partial(self.network.client, "police/camera", broker))
        count, batch, dice = self.plan.events // len(self._publishers()), self.plan.batch, self._dice(broker)
        pause_s, loop = self.plan.seconds * batch / count, asyncio.get_running_loop()
        due = loop.time()
        for number in range(0, count, batch):
            names = [f"{broker}/{number + index}" for index in range(batch)]
            await self._said(client, names, [Said(broker, sighting(dice)) for _ in names])
            due += pause_s
            await asyncio.sleep(max(0.0, due - loop.time()))
        self.outcome.published_in_s = self._age_s

    def _dice(self, broker: str) -> Random:
        return Random(f"{self.plan.seed}/{broker}")

    async def _last_words(self) -> None:
        """One event from each publisher that everybody wants: what comes twice comes before it."""
        for broker in self._publishers():
            client = await self._connected(partial(self.network.client, "police/camera", broker))
            await self._said(client, [f"{broker}/last"], [Said(broker, what_all_want())])

    async def _said(self, client: Client, names: list[str], events: list[Said]) -> None:
        """Returns when they are acknowledged, and written down as such."""
        values = [said.values for said in events]
        ids = await self._until_taken(lambda: client.publish_many("Numberplate", values, names=names))
        self.published.update(zip(ids, events, strict=True))

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

    async def _connected(self, connect: Callable[[], Awaitable[Client]]) -> Client:
        """Tried again until somebody answers: a broker may be down, frozen, or have no time."""
        while True:
            try:
                return await connect()
            except PeerError:
                await asyncio.sleep(TRY_AGAIN_S)

    async def _trouble(self, saying: list[asyncio.Task[None]]) -> None:
        while not all(task.done() for task in saying) or not self.faults.is_complete:
            await asyncio.sleep(self.faults.rng.uniform(0.0, self.plan.pause_s))
            await self.faults.strike()

    async def _intrude(self) -> None:
        """Somebody who shows no right, and asks for everything again and again."""
        config = replace(read_client(self.network.laid.clients["yard/desk"]), tokens=())
        async with await self._connected(partial(Client.connect, config)) as intruder:
            while True:
                try:
                    await intruder.subscribe("Numberplate", durable="stolen").ready()
                    raise AssertionError("a client without a right was let in")
                except Denied:
                    self.outcome.intrusions_refused += 1
                    self._refused.set()
                await asyncio.sleep(TRY_AGAIN_S)

    # ── Watching ──

    async def _watch(self) -> None:
        """Raises where a broker has ended by itself, and where nothing moves any more."""
        moved, moved_at = -1, time.monotonic()
        while time.monotonic() - moved_at < STILL_S_MAX:
            self.faults.check_up()
            if moved < len(self.published) + self._delivered():
                moved, moved_at = len(self.published) + self._delivered(), time.monotonic()
            await asyncio.sleep(WATCH_EVERY_S)
        raise AssertionError(f"for {STILL_S_MAX:.0f} s nothing was acknowledged or delivered")

    async def _tell(self) -> None:
        while True:
            await asyncio.sleep(TELL_EVERY_S)
            struck = self.faults.struck
            self.say(
                f"{len(self.published):,} of {self.plan.events:,} events acknowledged, {self._delivered():,} delivered,"
                f" {struck.total()} faults: {listed(struck)}; load {os.getloadavg()[0]:.1f}"
            )

    @property
    def _age_s(self) -> float:
        return time.monotonic() - self._begun

    def _delivered(self) -> int:
        return sum(len(wanted.got) for wanted in self.wanted)

    async def _write_down_status(self) -> None:
        """What each broker says of itself, for whoever looks for the reason."""
        asked = (self._asked(f"{name.rpartition('-')[0]}/desk", name, "status") for name in self.network.brokers)
        rows = [row for rows in await asyncio.gather(*asked) for row in rows]
        (self.network.laid.folder / "status.json").write_text(json.dumps(rows, indent=2, default=str))

    async def _name_dead_letters(self) -> None:
        """Why a broker itself says that it has not delivered something."""
        for wanted in self.wanted:
            reasons = Counter(
                letter.get("why", "") for letter in await self._asked(wanted.client, wanted.broker, "dlq")
            )
            self.outcome.wrong += [f"{wanted.client} has {n:,} dead letters: {why}" for why, n in reasons.items()]

    async def _asked(self, client: str, broker: str, what: str) -> list[dict[str, Any]]:
        try:
            async with asyncio.timeout(ASKED_S_MAX):
                return await (await self.network.client(client, broker)).ask(what)
        except (TidingsError, TimeoutError) as wrong:
            return [{"broker": broker, "why": f"does not say its {what}: {described(wrong)}"}]

    # ── Judging ──

    def _judge(self) -> None:
        self.outcome.events = len(self.published)
        self.outcome.published_in_s = self.outcome.published_in_s or self._age_s
        self.outcome.faults = dict(self.faults.struck)
        for wanted in self.wanted:
            self.outcome.delivered[wanted.client] = len(wanted.got)
            self.outcome.wrong += wanted.wrong(self.published)

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
        if self.plan.overlay == "irbr":  # Straight to who wants it. Others may go through one who strips everything.
            self._judge_search(sent, may)

    def _judge_search(self, to_the_yard: list[Path], to_ccs: list[Path]) -> None:
        for secret in ("area", "speed"):
            if not found_in(to_ccs, secret):
                self.outcome.wrong.append(f"the search does not find {secret} where it may be")
        if not found_in(to_the_yard, "plate"):
            self.outcome.wrong.append("the search does not find plates on the way to who may see them")


# ── From the command line ──


def judged(plan: Plan, say: Say = _silently) -> Outcome:
    """One run, in a folder that is removed if all is well; else says what is wrong, where to look, and how to try again."""
    folder = Path(tempfile.mkdtemp(prefix="tidings-chaos-"))
    try:
        outcome = asyncio.run(_until_terminated(plan, folder, say))
    except Exception as fault:  # noqa: BLE001 - whatever it is, it is a reason, and the next seed has its turn.
        outcome = Outcome(wrong=[f"it could not be run: {described(fault)}"])
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    if outcome.wrong:
        print(outcome.failure(plan.seed, plan.command(), folder), flush=True)
    else:
        shutil.rmtree(folder)
    return outcome


async def _until_terminated(plan: Plan, folder: Path, say: Say) -> Outcome:
    """`run`, which takes its processes and mounts with it when it is told to end."""
    this = asyncio.current_task()
    assert this is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this.cancel)
    return await run(plan, folder, say)


def main() -> int:
    plan, in_json = _asked()
    begun = time.monotonic()

    def say(what: str) -> None:
        print(f"[{clock(time.monotonic() - begun):>5}] {what}", file=sys.stderr, flush=True)

    say(f"chaos with seed {plan.seed}: {plan.events:,} events in {clock(plan.seconds)}, and settling after it")
    load_kernels()  # Once, not by a dozen brokers at the same time.
    try:
        outcome = judged(plan, say)
    except (KeyboardInterrupt, asyncio.CancelledError):
        say("ended before its time")
        return 130
    print(json.dumps(asdict(outcome), indent=2) if in_json else outcome.summary())
    say(f"with seed {plan.seed}, {'something is wrong: see above' if outcome.wrong else 'all is well'}")
    return 1 if outcome.wrong else 0


def _asked() -> tuple[Plan, bool]:
    parser = argparse.ArgumentParser(prog="python -m tests.live.chaos", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--brokers", type=int, default=12)
    parser.add_argument("--events", type=int, default=100_000)
    how_long = parser.add_mutually_exclusive_group()
    how_long.add_argument("--seconds", type=float, help="how long the publishing is spread out over (480)")
    how_long.add_argument("--minutes", type=float, default=10.0, help="about how long all of it is to take (10)")
    parser.add_argument("--seed", type=int, default=SystemRandom().randrange(10**6), help="by default a new one")
    parser.add_argument("--troubles", type=int, default=2, help="faults at the same time")
    parser.add_argument("--pause", type=float, default=2.0, dest="pause_s", help="at most so long between two of them")
    parser.add_argument("--mode", choices=[mode.name.lower() for mode in Mode], default="attribute")
    parser.add_argument("--overlay", default="irbr")
    database = parser.add_mutually_exclusive_group()
    database.add_argument("--postgres", default="", metavar="ORGANISATION", help="its journals are in PostgreSQL")
    database.add_argument(
        "--postgres-if-there", default="", metavar="ORGANISATION", help="the same, where it is installed"
    )
    parser.add_argument("--honest", action="store_false", dest="hostile", help="no broker is hostile")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    asked = vars(parser.parse_args())
    minutes, output = asked.pop("minutes"), asked.pop("output")
    if_there = asked.pop("postgres_if_there")
    asked["postgres"] = asked["postgres"] or (if_there if programs() is not None else "")
    asked["seconds"] = asked["seconds"] or minutes * 60 * PUBLISHING
    return Plan(**{**asked, "mode": Mode[asked["mode"].upper()]}), output == "json"


if __name__ == "__main__":
    sys.exit(main())
