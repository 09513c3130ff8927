"""A broker's status in words."""

from __future__ import annotations

from typing import Any

import pytest

from tidings.cli.network.bench import spread_ms
from tidings.cli.network.status import in_words

CALM: dict[str, Any] = {
    "broker": "police-1",
    "domain": "police",
    "address": "127.0.0.1:7401",
    "joined": True,
    "draining": False,
    "stuck": False,
    "stuck_why": "",
    "version": "0.2.0",
    "uptime_s": 3725.0,
    "journal_bytes": 94_300,
    "disk_free_bytes": 60_500_000_000,
    "linked": [{"id": "c4c5", "name": "broker ccs/ccs-1", "address": "127.0.0.1:7402", "queued": 0}],
    "unlinked": [],
    "connected": [{"client": "police/camera/015b5f1e", "published": 3, "told": 0, "lost": 0}],
    "durables": 1,
    "waiting": 12_345,
    "owed": {},
    "early": [0, 65536],
    "listed": [0, 8192],
    "counts": {"published": 100},
    "protocol": "irbr",
    "links": ["c4c5"],
    "types": [{"name": "Numberplate", "mode": "attribute", "epochs": {"51": [1], "bb": []}, "subscriptions": 2}],
    "subscriptions": 2,
    "waiting_for_key": 0,
    "holdings": {"seen": [10, 65536]},
}


def said(**changed: Any) -> dict[str, str]:
    return {row["what"]: row["is"] for row in in_words({**CALM, **changed})}


def test_a_calm_broker_says_so_in_words_and_units() -> None:
    assert said() == {
        "broker": "police/police-1, listening at 127.0.0.1:7401",
        "state": "running, part of the network",
        "running for": "1 h 2 min, version 0.2.0",
        "disk": "the journal takes 94.3 kB; 60.5 GB are free",
        "routing": "irbr; 1 neighbour",
        "linked brokers": "ccs/ccs-1",
        "clients": "police/camera (3 published, 0 received)",
        "event type": "Numberplate: each attribute is encrypted by itself; keys of 1 of its 2 groups held; 2 subscriptions",
        "subscriptions": "2 here, 1 of them durable",
        "published": "100 events",
        "delivered": "0 events to subscribers",
        "to other brokers": "everything is acknowledged",
        "to subscribers": "12,345 events wait for durable subscribers",
        "memory": "all tables are well below their limits (-o json lists them)",
    }


@pytest.mark.parametrize(
    ("changed", "what", "words"),
    [
        ({"joined": False}, "state", "not part of the network yet"),
        ({"draining": True}, "state", "draining"),
        ({"stuck_why": "disk is full"}, "PROBLEM", "cannot be written (disk is full): free some disk space"),
        (
            {"unlinked": [{"id": "88", "address": "h:1", "why": "nobody listens there"}]},
            "NOT LINKED",
            "h:1: nobody listens",
        ),
        ({"owed": {"c4c5": 7, "88db9bb9": 1}}, "to other brokers", "7 for ccs/ccs-1, 1 for 88db9bb9… (not linked)"),
        ({"early": [3, 65536]}, "out of order", "3 events received before others (at most 65,536)"),
        ({"waiting_for_key": 1}, "without a key", "1 event"),
        ({"holdings": {"seen": [60_000, 65_536]}}, "NEARLY FULL", "seen: 60,000 of at most 65,536"),
        ({"counts": {"refused_signature": 2}}, "refused", "2 for signature"),
        ({"counts": {"handshakes failed": 2}}, "turned away", "2 connections"),
    ],
)
def test_what_needs_attention_gets_a_line(changed: dict[str, Any], what: str, words: str) -> None:
    assert words in said(**changed)[what]


def test_watching_shows_how_fast_counters_grow() -> None:
    later = {**CALM, "uptime_s": CALM["uptime_s"] + 2.0, "counts": {"published": 600}}
    rows = {row["what"]: row["is"] for row in in_words(later, CALM)}
    assert rows["published"] == "600 events (250/s)"


def test_a_status_of_an_older_broker_is_shown_without_what_it_does_not_say() -> None:
    new = ("stuck_why", "version", "uptime_s", "journal_bytes", "disk_free_bytes", "unlinked", "waiting")
    older = {name: value for name, value in CALM.items() if name not in new}
    assert "running for" not in {row["what"] for row in in_words(older)}


def test_a_percentile_is_the_smallest_value_that_so_many_do_not_exceed() -> None:
    hundred = [n / 1000 for n in range(100, 0, -1)]
    assert spread_ms(hundred) == {"min": 1.0, "avg": 50.5, "p50": 50.0, "p99": 99.0, "max": 100.0}
    assert spread_ms([0.002]) == {"min": 2.0, "avg": 2.0, "p50": 2.0, "p99": 2.0, "max": 2.0}
    assert set(spread_ms([]).values()) == {None}


AT = "vivaldi; at (12.3, -3.0) ms, error 8%"
FOUND: dict[str, Any] = {
    "method": "vivaldi",
    "coordinates_ms": [12.34, -3.0],
    "error": 0.084,
    "measured": 5,
    "published": 2,
    "indexed": 3,
    "distant_zones": 6,
    "nearer": 2,
    "compared": 2,
    "recorded_ms": 121.0,
    "nearer_ms": 8.4,
    "waits_for": "",
}


def test_the_network_below_irbr_is_named() -> None:
    assert said(overlay={"network": "tapestry"})["routing"] == "irbr on tapestry; 1 neighbour"


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (
            {},
            f"{AT}; 3 records of the index here; a nearer broker for 2 of 6 distant zones, round trips 8.4 instead of 121.0 ms",
        ),
        (
            {"compared": 0, "recorded_ms": None, "nearer_ms": None, "nearer": 0},
            f"{AT}; 3 records of the index here; a nearer broker for 0 of 6 distant zones",
        ),
        ({"coordinates_ms": None, "waits_for": "answers of 1 landmark"}, "vivaldi; waits for answers of 1 landmark"),
        (
            {"waits_for": "more brokers", "indexed": 1},
            f"{AT}; 1 record of the index here; waits for more brokers",
        ),
    ],
)
def test_proximity_says_where_the_broker_is_and_what_was_gained_or_what_is_missing(
    changed: dict[str, Any], told: str
) -> None:
    assert said(overlay={"proximity": {**FOUND, **changed}})["proximity"] == told
    assert "proximity" not in said()
