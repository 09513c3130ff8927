"""A broker's status in words: what an operator wants to know first, with units, and what helps where something is wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tidings.cli.units import count, duration, size

CROWDED = 0.8  # A table in memory that is fuller than this is worth a line.
SEALED = {
    "open": "no rights, nothing encrypted",
    "plain": "rights are checked, nothing is encrypted",
    "event": "each event is encrypted as one",
    "attribute": "each attribute is encrypted by itself",
}

Status = Mapping[str, Any]


def in_words(now: Status, before: Status | None = None) -> list[dict[str, str]]:
    """The rows of a table. With an earlier status, counters also show how fast they grow."""
    return [{"what": what, "is": said} for what, said in _lines(now, before)]


def _lines(now: Status, before: Status | None) -> Iterator[tuple[str, str]]:
    yield "broker", f"{now['domain']}/{now['broker']}, listening at {now['address']}"
    yield "state", _state(now)
    if now.get("stuck_why"):
        helps = (
            "check the database, its disk and its standby"
            if "lease" in now
            else "free some disk space, or check its folder"
        )
        yield "PROBLEM", f"the journal cannot be written ({now['stuck_why']}): {helps}"
    if "uptime_s" in now:
        yield "running for", f"{duration(now['uptime_s'])}, version {now['version']}"
    if "lease" in now:
        yield from _lease(now)
    elif "disk_free_bytes" in now:
        yield "disk", f"the journal takes {size(now['journal_bytes'])}; {size(now['disk_free_bytes'])} are free"
    overlay = now.get("overlay", {})
    on = f" on {overlay['network']}" if "network" in overlay else ""
    yield "routing", f"{now['protocol']}{on}; {count(len(now['links']), 'neighbour')}"
    if "proximity" in overlay:
        yield "proximity", _proximity(overlay["proximity"])
    yield "linked brokers", ", ".join(map(_linked, now["linked"])) or "none"
    for peer in now.get("unlinked", ()):
        yield "NOT LINKED", f"{peer['address']}: {peer['why'] or 'not tried yet'} (it goes on trying)"
    yield "clients", ", ".join(map(_client, now["connected"])) or "none"
    for known in now["types"]:
        yield "event type", _type(known)
    yield "subscriptions", f"{now['subscriptions']:,} here, {now['durables']:,} of them durable"
    yield from _traffic(now, before)
    yield from _waiting(now)
    yield from _crowded(now)


def _state(now: Status) -> str:
    if now["draining"]:
        return "draining: it accepts no events, and stops when nothing is left to deliver"
    if not now["joined"]:
        return "not part of the network yet; it looks for the brokers that its configuration names"
    return "running, part of the network"


def _lease(now: Status) -> Iterator[tuple[str, str]]:
    lease = now["lease"]
    yield "journal", f"{now['journal']}, {size(now['journal_bytes'])}"
    age = f"renewed {lease['renewed_s_ago']:.1f} s ago, for {lease['lease_s']:g} s"
    yield "lease", f"{lease['role']}, epoch {lease['epoch']}, {lease['holder']}; {age}"
    if lease["standbys"]:
        yield "standby", "; ".join(lease["standbys"])
    else:
        yield "NO STANDBY", "nobody would take over from this process; start the same broker on another host"


def _proximity(found: Status) -> str:
    """Where the broker is by network, and by how much nearer brokers have shortened the way to distant zones."""
    if found["coordinates_ms"] is None:
        return f"{found['method']}; waits for {found['waits_for']}"
    at = ", ".join(f"{x:.1f}" for x in found["coordinates_ms"])
    error = f", error {found['error']:.0%}" if found["error"] is not None else ""
    said = f"{found['method']}; at ({at}) ms{error}; {count(found['indexed'], 'record')} of the index here"
    if found["waits_for"]:
        return f"{said}; waits for {found['waits_for']}"
    said += f"; a nearer broker for {found['nearer']:,} of {count(found['distant_zones'], 'distant zone')}"
    if found["compared"]:
        said += f", round trips {found['nearer_ms']:.1f} instead of {found['recorded_ms']:.1f} ms"
    return said


def _linked(link: Status) -> str:
    queued = f" ({size(link['queued'])} queued)" if link["queued"] else ""
    return str(link["name"]).removeprefix("broker ") + queued


def _client(client: Status) -> str:
    name = str(client["client"]).rpartition("/")[0]  # Without the connection's own number.
    lost = f", {client['lost']:,} lost because it was too slow" if client["lost"] else ""
    return f"{name} ({client['published']:,} published, {client['told']:,} received{lost})"


def _type(known: Status) -> str:
    said = f"{known['name']}: {SEALED[known['mode']]}"
    if known["mode"] in ("event", "attribute"):
        epochs = known["epochs"]
        held = sum(map(bool, epochs.values()))
        said += (
            f"; keys of {held} of its {count(len(epochs), 'group')} held"
            if epochs
            else "; no keys, so nothing of it can be read"
        )
    return f"{said}; {count(known['subscriptions'], 'subscription')}"


def _traffic(now: Status, before: Status | None) -> Iterator[tuple[str, str]]:
    counts = now["counts"]
    yield "published", f"{count(counts.get('published', 0), 'event')}{_rate(now, before, 'published')}"
    yield "delivered", f"{count(counts.get('notified', 0), 'event')} to subscribers{_rate(now, before, 'notified')}"
    refused = {what.removeprefix("refused_"): n for what, n in counts.items() if what.startswith("refused_")}
    if refused:
        yield "refused", ", ".join(f"{n:,} for {what}" for what, n in refused.items()) + " (sent by other brokers)"
    if failed := counts.get("handshakes failed", 0):
        yield "turned away", f"{count(failed, 'connection')} of peers or clients; the log says why"


def _rate(now: Status, before: Status | None, what: str) -> str:
    if before is None or now.get("uptime_s", 0) <= before.get("uptime_s", 0):
        return ""
    more = now["counts"].get(what, 0) - before["counts"].get(what, 0)
    return f" ({more / (now['uptime_s'] - before['uptime_s']):,.0f}/s)"


def _waiting(now: Status) -> Iterator[tuple[str, str]]:
    names = {link["id"]: str(link["name"]).removeprefix("broker ") for link in now["linked"]}
    pending = [f"{n:,} for {names.get(id, f'{id[:8]}… (not linked)')}" for id, n in now["owed"].items()]
    yield "to other brokers", f"{', '.join(pending)} not acknowledged" if pending else "everything is acknowledged"
    if "waiting" in now:
        yield "to subscribers", f"{count(now['waiting'], 'event')} wait for durable subscribers"
    if now["waiting_for_key"]:
        yield "without a key", f"{count(now['waiting_for_key'], 'event')} wait for a key"
    early, early_max = now["early"]
    if early:
        yield "out of order", f"{count(early, 'event')} received before others (at most {early_max:,})"


def _crowded(now: Status) -> Iterator[tuple[str, str]]:
    full = {name: held for name, held in now["holdings"].items() if held[0] > CROWDED * held[1]}
    for name, (amount, limit) in full.items():
        yield "NEARLY FULL", f"{name.replace('_', ' ')}: {amount:,} of at most {limit:,}"
    if not full:
        yield "memory", "all tables are well below their limits (-o json lists them)"
