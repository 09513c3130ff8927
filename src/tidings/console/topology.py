"""The map: brokers and the links between them, put together from what the brokers of several clients report.

A broker reports itself, the brokers that it is linked with, and those that it cannot reach. What one broker says of
another is the word of that broker; a broker that reports itself counts more.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tidings.console.participants import ConsoleClient


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
        brokers[status["id"]] = _own(status, client.name, is_stale=bool(history.problem))
        for each in status["linked"]:
            brokers.setdefault(each["id"], _linked(each))
            _link(links, status["id"], each["id"], queued=each["queued"], is_up=True)
        for each in status["unlinked"]:
            brokers.setdefault(each["id"], _away(each))
            _link(links, status["id"], each["id"], queued=0, is_up=False)
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
        "published": status["counts"].get("published", 0),
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


def _link(links: dict[tuple[str, str], dict[str, Any]], one: str, other: str, *, queued: int, is_up: bool) -> None:
    """Both ends may report it; it is up if either has it, and the longer queue is shown."""
    a, b = sorted((one, other))
    link = links.setdefault((a, b), {"a": a, "b": b, "queued": 0, "up": False})
    link["queued"], link["up"] = max(link["queued"], queued), link["up"] or is_up
