"""`make walk`: the way of one event, and of one batch, through the modules, as a trace of the running program shows it.

    python -m tests.walk            all three
    python -m tests.walk publish    one of publish, match, run

publish   a plain event from a client of one organisation to a durable subscriber of another: two brokers, mutual TLS,
          journals on disk, all in one process
match     `tidings match`, files to files on embedded Spark: the driver, then the Python workers
run       one batch of `tidings run`, likewise

Each line is a module, in the order in which its functions are first called, with the module that called it. A number
marks a module that passes the event on: it calls another one of the way. The others are asked and answer (a codec, a
look-up, a file), and the way goes on where it was. `↑` marks a call into a package of a higher layer (`pyproject.toml`
lists the layers): there should be none. `↺` marks a call back into an earlier package.

What runs by the clock (heartbeats, checks, retries) does not count, however often it falls in between, and of the rest
only what every one of several repetitions enters. Only functions that somebody has written count, not those that a data
class is given.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import os
import subprocess
import sys
import tempfile
import threading
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
MODULES_MAX = 20  # The target, for a plain event from the client to the subscriber.
REPEATS = 7
ENTERED = "TIDINGS_WALK_ENTERED"  # Names the file that Python workers of Spark write the modules into that they enter.
BY_THE_CLOCK = frozenset(
    {
        "Maintenance.run",
        "save_router_memory",
        "apply_retention",
        "BrokerSubscriptions.retry_lapsed",
        "ReliableSender._check_regularly",
        "ReliableReceiver._check_regularly",
        "InterestSync._sync_regularly",
        "RevocationSync._sync_regularly",
        "OnlineSync._answer_regularly",
        "Client._reconnect_when_renewed",
        "DirectDelivery._run",
        "Link._keep_alive",
        "Node.wake",
    }
)
"""Functions that a timer calls: on a busy machine they fall into every repetition."""


class Step(NamedTuple):
    """A module that is entered, who called it first, whether from a lower layer, and whether it calls on."""

    module: str
    caller: str
    is_upward: bool
    passes_on: bool


class Walk(NamedTuple):
    """The modules of one way in the order entered, and all calls from a lower layer into a higher one."""

    steps: tuple[Step, ...]
    upward: tuple[tuple[str, str], ...]

    @property
    def way(self) -> tuple[str, ...]:
        """The modules that pass the event on."""
        return tuple(step.module for step in self.steps if step.passes_on)


def layers() -> dict[str, int]:
    """How high each package stands: cli is the highest."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (listed,) = [contract["layers"] for contract in contracts if contract["type"] == "layers"]
    return {name.strip("() "): height for height, line in enumerate(reversed(listed)) for name in line.split("|")}


HEIGHTS = layers()


def package_of(module: str) -> str:
    return module.split(".")[1]


class Tracer:
    """Notes each module of Tidings whose functions are called, in all threads, with the module that called it."""

    def __init__(self, entered: Callable[[str], object] | None = None) -> None:
        self.first: dict[str, str] = {}
        self.upward: dict[tuple[str, str], None] = {}
        self.calls: set[tuple[str, str]] = set()
        """Who calls whom, each once."""
        self._entered = entered

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or not _is_written(frame):
            return
        module = frame.f_globals["__name__"]
        caller = _caller(frame)
        if caller is None or caller == module or (caller, module) in self.calls:
            return
        self.calls.add((caller, module))
        if module not in self.first:
            self.first[module] = caller
            if self._entered is not None:
                self._entered(module)
        if caller and HEIGHTS[package_of(caller)] < HEIGHTS[package_of(module)]:
            self.upward[caller, module] = None

    @contextmanager
    def tracing(self) -> Iterator[None]:
        """Traces this thread, and those that are started meanwhile."""
        threading.setprofile(self)
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)


def _is_written(frame: FrameType) -> bool:
    """Whether this is a function that somebody wrote in Tidings: no module or class body, no making of a value."""
    code = frame.f_code
    is_function = bool(code.co_flags & inspect.CO_OPTIMIZED) and code.co_name != "__post_init__"
    return is_function and code.co_filename[0] != "<" and frame.f_globals.get("__name__", "").startswith("tidings.")


def _caller(frame: FrameType) -> str | None:
    """The module of Tidings that a call comes from, "" if none does; None below an import or a timer."""
    caller, above = "", frame.f_back
    if frame.f_code.co_qualname in BY_THE_CLOCK:
        return None
    while above is not None:
        if above.f_code.co_filename.startswith("<frozen importlib") or above.f_code.co_qualname in BY_THE_CLOCK:
            return None
        if not caller and _is_written(above):
            caller = above.f_globals["__name__"]
        above = above.f_back
    return caller


def common(tracers: list[Tracer]) -> Walk:
    """What all of them saw, in the order of the last."""
    last = tracers[-1]
    entered = [module for module in last.first if all(module in tracer.first for tracer in tracers)]
    upward = tuple(edge for edge in last.upward if all(edge in tracer.upward for tracer in tracers))
    callers = {caller for caller, _ in set.intersection(*(tracer.calls for tracer in tracers))}
    into = {to for _, to in upward}
    return Walk(tuple(Step(each, last.first[each], each in into, each in callers) for each in entered), upward)


# ── Publish ──────────────────────────────────────────────────────────────────


async def publish(folder: Path) -> Walk:
    """One plain event from the police's client to a durable subscriber of the congestion charge service."""
    from tests.live.together import Together
    from tidings.net import DevNetwork, ReadAccess

    network_files = DevNetwork(
        first_port=0,
        brokers={"police": 1, "ccs": 1},
        readers={"ccs": ReadAccess(("plate",))},
        overlay_options={"heartbeat_s": 3600.0, "sync_s": 0.0},  # What one broker sends by the clock, another receives.
    )
    tracers = []
    async with Together(folder, network_files) as network:
        camera, desk = await network.client("police/camera"), await network.client("ccs/desk")
        wanted = await desk.subscribe("Numberplate", "plate LIKE 'AB%'", durable="walk").ready()
        async with asyncio.timeout(60):
            for number in range(3 + REPEATS):  # The first ones make connections, caches and statements.
                with (tracer := Tracer()).tracing():
                    await camera.publish("Numberplate", {"plate": f"AB{number}", "speed": 20.0})
                    received = await anext(wanted)
                assert received.values == {"plate": f"AB{number}"}
                await network.brokers["police-1"].sender.all_acked()
                tracers.append(tracer)
    return common(tracers[3:])


# ── Match and run ────────────────────────────────────────────────────────────


def in_workers(folder: Path) -> Path:
    """Has every Python that is started from now on note the modules it enters; returns the file they are noted in."""
    (folder / "sitecustomize.py").write_text("import tests.walk\ntests.walk.note_entered()\n")
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(folder), str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    )
    os.environ[ENTERED] = str(folder / "entered")
    (folder / "entered").touch()
    return folder / "entered"


def note_entered() -> None:
    """In a Python worker: append each module to the common file when it is first entered."""
    file = os.open(os.environ[ENTERED], os.O_WRONLY | os.O_APPEND)
    tracer = Tracer(lambda module: os.write(file, f"{module}\n".encode()))
    threading.setprofile(tracer)
    sys.setprofile(tracer)


def on_spark(folder: Path, command: Callable[[Path], None]) -> tuple[Walk, list[str]]:
    """The way of a command through the driver, and the modules that the workers enter."""
    entered = in_workers(folder)
    with (tracer := Tracer()).tracing():
        command(folder)
    return common([tracer]), list(dict.fromkeys(entered.read_text().split()))


def match_some(folder: Path) -> None:
    from tests.pipeline.sightings import sightings, subscriptions, write_lines
    from tidings.pipeline import match_files, start

    write_lines(folder / "events.jsonl", sightings(200))
    write_lines(folder / "subscriptions.jsonl", subscriptions(20))
    spark = start("local[2]")
    match_files(spark, str(folder / "events.jsonl"), str(folder / "subscriptions.jsonl"), str(folder / "matches"))


def run_some(folder: Path) -> None:
    from tests.pipeline.sightings import sightings
    from tests.pipeline.test_run import lay_out, put_events
    from tidings.pipeline import read_pipeline, run, start

    file = lay_out(folder / "pipeline")
    put_events(folder / "pipeline", sightings(200), 1)
    run(start("local[2]"), read_pipeline(file))


# ── On the terminal ──────────────────────────────────────────────────────────


def shown(walk: Walk) -> Iterator[str]:
    """The way as lines: the package once, then its modules."""
    passed: list[str] = []
    numbers = itertools.count(1)
    for step in walk.steps:
        number = next(numbers) if step.passes_on else ""
        package = package_of(step.module)
        mark = "↑" if step.is_upward else "↺" if package in passed[:-1] and package != passed[-1] else " "
        if not passed or package != passed[-1]:
            passed.append(package)
        name, caller = step.module.removeprefix("tidings."), step.caller.removeprefix("tidings.") or "outside"
        yield f"  {number:3} {mark} {name:34} from {caller}"
    for caller, callee in walk.upward:
        yield f"  ↑ {caller.removeprefix('tidings.')} calls {callee.removeprefix('tidings.')}"


def show_publish() -> None:
    with tempfile.TemporaryDirectory() as folder:
        walk = asyncio.run(publish(Path(folder)))
    print("publish → durable delivery between two organisations")
    print("\n".join(shown(walk)))
    print(f"  {len(walk.steps)} modules entered, {len(walk.way)} of them pass the event on", end="")
    print(f" (target: {MODULES_MAX} entered, {'met' if len(walk.steps) <= MODULES_MAX else 'missed'});", end=" ")
    print(f"{len(walk.upward)} calls up a layer (target: none, {'missed' if walk.upward else 'met'})")


def show_on_spark(title: str, command: Callable[[Path], None]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        walk, in_workers = on_spark(Path(folder), command)
    print(f"\n{title}\n  the driver")
    print("\n".join(shown(walk)))
    print("  the Python workers")
    print("\n".join(f"      {module.removeprefix('tidings.')}" for module in in_workers))


def main() -> int:
    match sys.argv[1:]:
        case ["publish"]:
            show_publish()
        case ["match"]:
            show_on_spark("tidings match", match_some)
        case ["run"]:
            show_on_spark("tidings run, one batch", run_some)
        case []:  # Each in a process of its own, so that none has loaded what another is seen to load.
            asked = [[sys.executable, "-m", "tests.walk", name] for name in ("publish", "match", "run")]
            return max(subprocess.run(command, check=False).returncode for command in asked)
        case _:
            print(__doc__)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
