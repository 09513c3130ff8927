"""The map: brokers and the links between them, put together from what the brokers of several clients report.

A broker reports itself, the brokers that it is linked with, and those that it cannot reach. What one broker says of
another is the word of that broker; a broker that reports itself counts more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

from tidings.console.participants import ConsoleClient

RATE_POINTS = 6  # Ten seconds.
# Acknowledgements come in groups: what a broker has published in some seconds is under way, and not behind.
UNDER_WAY_S = 3.0
UNDER_WAY_EVENTS = 16


def topology(clients: Iterable[ConsoleClient]) -> dict[str, Any]:
    """Brokers, links and problems, for the map; brokers in the order of their names."""
    brokers: dict[str, dict[str, Any]] = {}
    links: dict[tuple[str, str], dict[str, Any]] = {}
    problems, overlays = [], set()
    for client in clients:
        history = client.history
        if history.problem:
            problems.append({"client": client.name, "why": history.problem})
        if history.latest is None:
            continue
        status = history.latest
        overlays.add(status["protocol"])
        rates = _rates(history.points)
        brokers[status["id"]] = {**_own(status, client.name, is_stale=bool(history.problem)), **rates}
        under_way = UNDER_WAY_EVENTS + UNDER_WAY_S * rates.get("published_per_s", 0.0)
        for each in status["linked"]:
            brokers.setdefault(each["id"], _linked(each))
            _link(links, status["id"], each, under_way, is_up=True)
        for each in status["unlinked"]:
            brokers.setdefault(each["id"], _away(each))
            end = {"id": each["id"], "owed": status["owed"].get(each["id"], 0)}
            _link(links, status["id"], end, under_way, is_up=False)
    return {
        "overlay": ", ".join(sorted(overlays)),
        "brokers": sorted(brokers.values(), key=lambda each: (each["domain"], each["name"])),
        "links": list(links.values()),
        "problems": problems,
    }


def _own(status: Any, client: str, *, is_stale: bool) -> dict[str, Any]:
    state = "stale" if is_stale else "stuck" if status["stuck"] else "draining" if status["draining"] else "up"
    return {
        "id": status["id"],
        "name": status["broker"],
        "domain": status["domain"],
        "address": status["address"],
        "state": state if status["joined"] or state != "up" else "joining",
        "client": client,
        "clients": len(status["connected"]),
        "subscriptions": status["subscriptions"],
        "waiting": status["waiting"],
        "oldest_s": status["oldest_s"],
        "published": status["counts"].get("published", 0),
        "role": status["map"]["role"],
        "zones": status["map"]["zones"],
        "axes": status["map"]["axes"],
        "trees": status["map"]["trees"],
        "neighbours": status["links"],
    }


def _linked(each: Any) -> dict[str, Any]:
    domain, _, name = str(each["name"]).removeprefix("broker ").rpartition("/")
    return {"id": each["id"], "name": name, "domain": domain, "address": each["address"], "state": "linked"}


def _away(each: Any) -> dict[str, Any]:
    return {
        "id": each["id"],
        "name": f"{str(each['id'])[:8]}…",
        "domain": "unknown",
        "address": each["address"],
        "state": "away",
        "why": str(each["why"]),
    }


def _rates(points: Iterable[tuple[float, Mapping[str, float]]]) -> dict[str, float]:
    """Events a second over the last answers: published at this broker, and delivered to its subscriptions."""
    recent = list(points)[-RATE_POINTS:]
    if len(recent) < 2:
        return {}
    seconds = max(0.1, recent[-1][0] - recent[0][0])
    found = {}
    for name in ("published", "delivered"):
        # A broker that was restarted counts from 0 again.
        total = sum(max(0.0, after[name] - before[name]) for (_, before), (_, after) in pairwise(recent))
        found[f"{name}_per_s"] = round(total / seconds, 2)
    return found


def _link(
    links: dict[tuple[str, str], dict[str, Any]], one: str, end: Mapping[str, Any], under_way: float, *, is_up: bool
) -> None:
    """Both ends may report it; it is up if either has it, and the worse of two numbers is shown."""
    a, b = sorted((one, end["id"]))
    new = {"a": a, "b": b, "queued": 0, "owed": 0, "silent_s": 0.0, "up": False, "behind": False}
    link = links.setdefault((a, b), new)
    link["up"] = link["up"] or is_up
    link["behind"] = link["behind"] or end.get("owed", 0) > under_way
    for name in ("queued", "owed", "silent_s"):
        link[name] = max(link[name], end.get(name, 0))
