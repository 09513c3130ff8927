"""The live network: publish-to-notify latency and throughput through 1, 3 and 5 brokers with 1, 1,000 and 100,000 subscriptions.

    python -m benchmarks.live [--quick] [--only BROKERS:SUBSCRIPTIONS …]

Brokers are processes of their own, in a line (flooding), with mutual TLS and a journal on disk; every publish is
acknowledged after fsync. Publisher and subscriber share this process. Latency is measured at 1,000 events a second,
throughput by publishing as fast as acknowledgements come. Goals: 20,000 events a second through one broker with 1,000
conditions; p99 under 20 ms through three brokers at 1,000 events a second. Both are meant for an idle machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tidings.net import Client, LaidOut, Layout, Reader, Subscription, lay_out

RESULT = Path(__file__).parent / "results" / "live.json"
GRID = [(brokers, subscriptions) for brokers in (1, 3, 5) for subscriptions in (1, 1_000, 100_000)]
QUICK = [(1, 1_000), (3, 1)]
GOAL_PER_S, GOAL_P99_MS = 20_000.0, 20.0
MARK = "MARK"


async def started(laid: LaidOut) -> list[asyncio.subprocess.Process]:
    """All brokers as processes, part of the network."""
    processes = []
    for config in laid.brokers.values():
        command = [sys.executable, "-m", "tidings", "broker", "run", "--config", str(config), "--log", "error"]
        processes.append(await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE))
    for process in processes:
        assert process.stdout is not None
        while b"joined" not in await process.stdout.readline():
            pass
    return processes


async def measured(brokers: int, subscriptions: int, events: int, seconds: float) -> dict[str, Any]:
    """One cell of the table."""
    organisations = {f"o{n}": 1 for n in range(brokers)}
    layout = Layout(
        first_port=0,
        brokers=organisations,
        readers={name: Reader() for name in organisations},
        overlay="flooding",
        in_line=True,
    )
    with tempfile.TemporaryDirectory() as folder:
        laid = lay_out(Path(folder) / "network", layout)
        processes = await started(laid)
        try:
            return await _measured(laid, [process.pid for process in processes], subscriptions, events, seconds)
        finally:
            for process in processes:
                process.kill()
                await process.wait()


async def _measured(laid: LaidOut, pids: list[int], subscriptions: int, events: int, seconds: float) -> dict[str, Any]:
    brokers = len(pids)
    desk = await Client.connect(laid.clients[f"o{brokers - 1}/desk"])
    camera = await Client.connect(laid.clients["o0/camera"])
    marks = await desk.subscribe("Numberplate", f"plate = '{MARK}'").ready()
    others = [
        desk.subscribe("Numberplate", f"plate = 'AB{n}' AND speed > {n % 50}.5") for n in range(subscriptions - 1)
    ]
    for each in others:
        await each.ready()
    before = [cpu_s(pid) for pid in pids]
    per_s = await _throughput(camera, marks, subscriptions, events)
    spent = [1e6 * (cpu_s(pid) - already) / events for pid, already in zip(pids, before, strict=True)]
    row = {
        "brokers": brokers,
        "subscriptions": subscriptions,
        "events_per_s": per_s,
        "first_broker_cpu_us": round(spent[0], 1),
        "last_broker_cpu_us": round(spent[-1], 1),
        **await _latency(camera, marks, seconds),
    }
    await camera.close()
    await desk.close()
    return row


def cpu_s(pid: int) -> float:
    """What a process has used of the processor, which a busy machine changes less than the time it takes."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _throughput(camera: Client, marks: Subscription, subscriptions: int, events: int) -> float:
    """Events a second from the first publish to the notice of the last."""
    said = [{"plate": f"AB{n % (2 * subscriptions)}", "area": "EC2", "speed": float(n % 100)} for n in range(events)]
    begun = time.perf_counter()
    await camera.publish_many("Numberplate", said)
    await camera.publish("Numberplate", {"plate": MARK})
    await anext(marks)
    return round(events / (time.perf_counter() - begun), 1)


async def _latency(camera: Client, marks: Subscription, seconds: float) -> dict[str, float]:
    """From `publish` to the notice, at 1,000 events a second, one at a time."""
    count = int(seconds * 1000)
    said: list[float] = []
    took: list[float] = []

    async def hear() -> None:
        for number in range(count):
            await anext(marks)
            took.append(time.perf_counter() - said[number])

    hearing = asyncio.create_task(hear())
    begun, answers = time.perf_counter(), []
    for number in range(count):
        await asyncio.sleep(max(0.0, begun + number / 1000 - time.perf_counter()))
        said.append(time.perf_counter())
        answers.append(asyncio.create_task(camera.publish("Numberplate", {"plate": MARK})))
    await asyncio.gather(hearing, *answers)
    took.sort()
    return {f"p{p}_ms": round(1000 * took[min(count - 1, count * p // 100)], 2) for p in (50, 99)}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.live")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", nargs="*", metavar="BROKERS:SUBSCRIPTIONS")
    parser.add_argument("--events", type=int, default=0)
    asked = parser.parse_args()
    grid = [tuple(map(int, cell.split(":"))) for cell in asked.only] if asked.only else QUICK if asked.quick else GRID
    events, seconds = asked.events or (5_000 if asked.quick else 50_000), 2.0 if asked.quick else 10.0
    rows = []
    for brokers, subscriptions in grid:
        row = asyncio.run(measured(brokers, subscriptions, events, seconds))
        rows.append(row)
        print("  ".join(f"{name} {value:,}" for name, value in row.items()), flush=True)
    if not asked.only:
        RESULT.parent.mkdir(exist_ok=True)
        about = {"cpus": os.cpu_count(), "load": os.getloadavg(), "events": events}
        goals = {"events_per_s": GOAL_PER_S, "p99_ms": GOAL_P99_MS}
        RESULT.write_text(json.dumps({"goals": goals, "machine": about, "rows": rows}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
