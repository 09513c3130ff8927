"""The console in a browser: first paint, a map of 1,000 brokers, and a tail of 5,000 events a second.

    python -m benchmarks.console [SECONDS]

Brokers, console and Chromium share one machine. A frame that comes more than 50 ms after the one before is late; the
longest gap says for how long the page stood still at worst. The map is drawn from made-up brokers, by the page's own
module, in the page.

What a console costs its broker, a process of its own: the broker's processor time per event, of the same events at the
same pace, without a page, with one that shows the map, and with one that tails every event, which costs what any
subscriber to everything costs; several rounds in turn, and the median of each. Processor time tells also on a machine
with other work; throughput does not.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.live.contender import cpu_s_of
from tests.live.console_pages import LoopThread, chromium, go, opened
from tests.live.processes import LiveNetwork
from tidings.console import Console, ConsoleSettings
from tidings.net import Client, DevNetwork

PER_SECOND, TICKS = 5000, 20
ROUND_S, ROUNDS = 6.0, 5
FRAMES = """() => {
  window.gaps = []; let last = performance.now();
  const next = (now) => { window.gaps.push(now - last); last = now; requestAnimationFrame(next); };
  requestAnimationFrame(next);
}"""
BIG_MAP = """async () => {
  const { networkMap } = await import("/map.mjs");
  const brokers = Array.from({ length: 1000 }, (_, n) => ({ id: (n * 4294967).toString(16).padStart(8, "0"), name: `b-${n}`,
    domain: `org-${n % 8}`, state: "up", address: "127.0.0.1:1" }));
  const links = Array.from({ length: 5000 }, (_, n) => ({ a: brokers[n % 1000].id, b: brokers[(n * 37 + 11) % 1000].id, up: true, queued: 0 }));
  const began = performance.now();
  document.querySelector("main").replaceChildren(networkMap({ brokers, links, overlay: "irbr" }, () => "#/network"));
  document.querySelector("svg.map").getBoundingClientRect();
  await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  return performance.now() - began;
}"""


async def publish(camera: Client, seconds: float) -> float:
    """Publishes at a steady rate; returns the rate that was reached."""
    began, sent = time.monotonic(), 0
    while (passed := time.monotonic() - began) < seconds:
        due = int(passed * PER_SECOND) - sent
        if due > 0:
            await camera.publish_many("Numberplate", [{"plate": f"P{sent + n}", "speed": 31.0} for n in range(due)])
            sent += due
        await asyncio.sleep(1 / TICKS)
    return sent / (time.monotonic() - began)


async def cost(camera: Client, broker: int) -> float:
    """Microseconds of the broker's processor time per event."""
    before = cpu_s_of(broker)
    published = await publish(camera, ROUND_S) * ROUND_S
    return 1e6 * (cpu_s_of(broker) - before) / published


def measure(seconds: float, folder: Path) -> dict[str, Any]:
    loop = LoopThread()
    network = loop.run(LiveNetwork(folder, DevNetwork(first_port=0, brokers={"police": 1})).__aenter__())
    (broker,) = network.pids().values()
    camera = loop.run(network.client("police/camera"))
    settings = ConsoleSettings(clients=[network.laid.clients["police/desk"]], listen="127.0.0.1:0")
    console = loop.run(_started(settings))
    found: dict[str, Any] = {}
    with chromium() as browser:
        page = opened(browser, console.url)
        page.reload()
        page.wait_for_selector("svg.map a.node")
        paints = page.evaluate("() => performance.getEntriesByType('paint').map((each) => [each.name, each.startTime])")
        found["first_contentful_paint_ms"] = round(dict(paints)["first-contentful-paint"])
        found["map_1000_brokers_5000_links_ms"] = round(page.evaluate(BIG_MAP))
        go(page, "events", "type=Numberplate")
        page.wait_for_selector("[role=status]:has-text('No event')")
        page.evaluate(FRAMES)
        found["published_per_s"] = round(loop.run(publish(camera, seconds)))
        gaps = page.evaluate("() => window.gaps")
        found["frames"] = len(gaps)
        found["late_frames"] = sum(gap > 50 for gap in gaps)
        found["longest_gap_ms"] = round(max(gaps))
        found["tail"] = page.locator("[role=status]").inner_text()
        costs: dict[str, list[float]] = {"alone": [], "on_the_map": [], "tailed": []}
        for _ in range(ROUNDS):
            page.goto("about:blank")
            loop.run(_idle(console))
            costs["alone"].append(loop.run(cost(camera, broker)))
            page.goto(f"http://{console.address}/#/network")
            page.wait_for_selector("svg.map a.node")
            costs["on_the_map"].append(loop.run(cost(camera, broker)))
            go(page, "events", "type=Numberplate")
            page.wait_for_selector("[role=status]:has-text('No event')")
            costs["tailed"].append(loop.run(cost(camera, broker)))
    medians = {name: statistics.median(each) for name, each in costs.items()}
    found |= {f"broker_us_per_event_{name}": round(each, 1) for name, each in medians.items()}
    for shown in ("on_the_map", "tailed"):
        found[f"of_a_core_{shown}"] = f"{100 * PER_SECOND * (medians[shown] - medians['alone']) / 1e6:.2f} %"
    loop.run(console.__aexit__(None, None, None))
    loop.run(network.__aexit__(None, None, None))
    loop.stop()
    return found


async def _started(settings: ConsoleSettings) -> Console:
    return await Console(settings).__aenter__()


async def _idle(console: Console) -> None:
    for client in console.clients.values():
        await client.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        print(json.dumps(measure(float(sys.argv[1]) if sys.argv[1:] else 10.0, Path(temporary)), indent=1))
