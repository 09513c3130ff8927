"""The files of deploy/ that a Prometheus uses: each alert fires when it should, and a real one scrapes a real broker."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import socket
import subprocess
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.live.processes import BrokerProcess
from tidings.errors import RateLimited
from tidings.net import Client, DevNetwork, lay_out

pytestmark = pytest.mark.live

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "tidings.rules.yml"
READY_S_MAX = 120.0

# For each alert: a series that fires it, the same as it is in good times, the minute in which it has fired, and further
# labels. `1+2x9` is 1, 3, … nineteen, a minute apart.
ALERTS = {
    "TidingsBrokerDown": ('up{job="tidings", %s}', "0x60", "1x60", 5, {"job": "tidings"}),
    "TidingsBrokerNotReady": ("tidings_ready{%s}", "0x60", "1x60", 10, {}),
    "TidingsNoStandby": ("tidings_standby_processes{%s}", "0x60", "1x60", 10, {}),
    "TidingsJournalStuck": ("tidings_journal_stuck{%s}", "1x60", "0x60", 5, {}),
    "TidingsDiskFillsUp": ("tidings_disk_free_bytes{%s}", "9e9-1e7x90", "9e9x90", 85, {}),
    "TidingsSubscriberBehind": (
        'tidings_subscription_oldest_age_seconds{id="d1", subscription="orders", type="Sighting", %s}',
        "1000+60x60",
        "5x60",
        10,
        {"id": "d1", "subscription": "orders", "type": "Sighting"},
    ),
    "TidingsOutboxGrows": ("tidings_outbox_events{%s}", "2000+10x90", "2000-1x90", 60, {}),
    "TidingsCertificateEnds": ("tidings_certificate_expiry_timestamp_seconds{%s}", "80000x60", "900000x60", 5, {}),
    "TidingsPublishSlow": ('tidings_publish_duration_seconds_bucket{le="%s", %s}', "", "", 30, {}),
    "TidingsPeerRefused": ("tidings_peer_messages_refused_total{%s}", "0+1x60", "7x60", 15, {}),
    "TidingsRateLimited": ("tidings_events_rate_limited_total{%s}", "0+50x60", "50x60", 15, {}),
}


@pytest.fixture(scope="module", autouse=True)
def has_prometheus() -> None:
    if shutil.which("prometheus") is None or shutil.which("promtool") is None:
        assert "CI" not in os.environ, "CI installs prometheus; it must not be skipped there"
        pytest.skip("there is no prometheus here: apt-get install prometheus")


def rules() -> dict[str, dict[str, Any]]:
    return {rule["alert"]: rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]}


def test_the_rules_and_the_configuration_are_valid() -> None:
    subprocess.run(["promtool", "check", "rules", RULES], check=True, capture_output=True)
    subprocess.run(["promtool", "check", "config", DEPLOY / "prometheus" / "prometheus.yml"], check=True)


def test_the_chart_has_the_same_rules() -> None:
    assert (DEPLOY / "helm" / "tidings-broker" / "tidings.rules.yml").read_bytes() == RULES.read_bytes()


def test_every_alert_fires_when_it_should_and_not_otherwise(tmp_path: Path) -> None:
    assert ALERTS.keys() == rules().keys()
    promtool_tests(tmp_path, [case(name, *ALERTS[name]) for name in ALERTS])


def test_a_process_that_waits_for_its_turn_is_an_alert_only_if_nobody_serves(tmp_path: Path) -> None:
    labels = {"instance": "waits:9101", **rules()["TidingsBrokerNotReady"]["labels"]}
    annotations = case("TidingsBrokerNotReady", "%s", "0", "0", 10, {})["alert_rule_test"][0]["exp_alerts"][0]
    told = {word: text.replace("bad", "waits") for word, text in annotations["exp_annotations"].items()}
    serves = [
        {"series": f'tidings_{name}{{instance="serves:9101"}}', "values": "1x60"} for name in ("ready", "lease_held")
    ]
    waits = [
        {"series": f'tidings_{name}{{instance="waits:9101"}}', "values": "0x60"} for name in ("ready", "lease_held")
    ]
    expected: list[tuple[list[dict[str, str]], list[dict[str, Any]]]] = [
        ([*serves, *waits], []),
        (waits, [{"exp_labels": labels, "exp_annotations": told}]),
    ]
    test = {"eval_time": "10m", "alertname": "TidingsBrokerNotReady"}
    promtool_tests(
        tmp_path,
        [
            {"interval": "1m", "input_series": series, "alert_rule_test": [{**test, "exp_alerts": alerts}]}
            for series, alerts in expected
        ],
    )


def promtool_tests(tmp_path: Path, cases: list[dict[str, Any]]) -> None:
    file = tmp_path / "test.json"  # JSON is YAML.
    file.write_text(json.dumps({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": cases}))
    ran = subprocess.run(["promtool", "test", "rules", file], check=False, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def case(alert: str, series: str, bad: str, good: str, minute: int, labels: dict[str, str]) -> dict[str, Any]:
    """Two brokers: the alert must fire for the one in trouble, and for it alone."""
    labels = {"instance": "bad:9101", **labels}
    rule = rules()[alert]
    expected = {
        "exp_labels": {**rule["labels"], **labels},
        "exp_annotations": {word: rendered(text, labels) for word, text in rule["annotations"].items()},
    }
    return {
        "interval": "1m",
        "input_series": [
            *given(series, 'instance="bad:9101"', bad, slow=True),
            *given(series, 'instance="good:9101"', good, slow=False),
        ],
        "alert_rule_test": [{"eval_time": f"{minute}m", "alertname": alert, "exp_alerts": [expected]}],
    }


def given(series: str, instance: str, values: str, *, slow: bool) -> list[dict[str, str]]:
    if values:
        return [{"series": series % instance, "values": values}]
    fast = "0x60" if slow else "0+60x60"  # A histogram: nothing, or everything, within half a second.
    buckets = (("0.5", fast), ("2.5", "0+60x60"), ("+Inf", "0+60x60"))
    return [{"series": series % (le, instance), "values": counts} for le, counts in buckets]


def rendered(text: str, labels: dict[str, str]) -> str:
    return re.sub(r"{{ \$labels\.(\w+) }}", lambda found: labels[found[1]], text)


def test_a_prometheus_scrapes_a_broker_evaluates_all_rules_and_answers_the_dashboard(tmp_path: Path) -> None:
    async def scenario() -> None:
        layout = DevNetwork(first_port=0, brokers={"police": 1}, limits={"client_events_per_s": 0.01, "burst_s": 300.0})
        laid = lay_out(tmp_path / "network", layout)
        broker = BrokerProcess("police-1", laid.brokers["police-1"], "--metrics", "127.0.0.1:0")
        await broker.start()
        try:
            metrics = (await broker.until("listening"))["metrics"]
            await broker.until("joined")
            async with await Client.connect(laid.clients["police/camera"]) as camera:
                kept = await camera.subscribe("Numberplate", durable="kept").ready()
                await camera.publish_many("Numberplate", [{"plate": "AB1"}] * 3)
                await anext(kept)
                async with prometheus(tmp_path, metrics) as ask:
                    await until_true(ask, 'count_over_time(up{job="tidings"}[1m]) >= 2 and up == 1')
                    with pytest.raises(RateLimited):
                        await camera.publish_many("Numberplate", [{"plate": "AB2"}] * 3)
                    await until_true(ask, 'ALERTS{alertname="TidingsRateLimited", alertstate="firing"}')
                    groups = (await ask("rules"))["groups"]
                    assert {
                        rule["name"]: rule["health"] for group in groups for rule in group["rules"]
                    } == dict.fromkeys(ALERTS, "ok")
                    await check_dashboard(ask)
                check_names(await asyncio.to_thread(fetched, f"http://{metrics}/metrics"))
        finally:
            await broker.kill()

    asyncio.run(scenario())


def check_names(page: bytes) -> None:
    """Names, units and types follow Prometheus' conventions."""
    checked = subprocess.run(["promtool", "check", "metrics"], input=page, check=False, capture_output=True)
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, b"")


async def check_dashboard(ask: Any) -> None:
    """Each query of the dashboard finds something, but for those that need a sealed type or what never happened here."""
    board = json.loads((DEPLOY / "grafana" / "tidings.json").read_text())
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            query = target["expr"].replace("$__rate_interval", "1m").replace("$instance", ".*")
            found = (await ask("query", query=query))["result"]
            assert found or "tidings_key_epoch" in query, f"{panel['title']}: {query}"


async def until_true(ask: Any, query: str) -> None:
    async with asyncio.timeout(READY_S_MAX):
        while not (await ask("query", query=query))["result"]:
            pass  # Each question is a round trip; Prometheus tells nobody when it has scraped.


@asynccontextmanager
async def prometheus(folder: Path, target: str) -> AsyncIterator[Any]:
    """A Prometheus with the rules of deploy/, that scrapes one broker; yields how to ask it."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    described = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    described["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    described["rule_files"] = [str(RULES)]
    described["scrape_configs"][0]["static_configs"] = [{"targets": [target]}]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(described))
    process = await asyncio.create_subprocess_exec(
        "prometheus",
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address={address}",
        stderr=(folder / "prometheus.log").open("wb"),
    )

    async def ask(what: str, **query: str) -> Any:
        url = f"http://{address}/api/v1/{what}?{urllib.parse.urlencode(query)}"
        return json.loads(await asyncio.to_thread(fetched, url))["data"]

    try:
        async with asyncio.timeout(READY_S_MAX):
            while True:
                try:
                    await asyncio.to_thread(fetched, f"http://{address}/-/ready")
                    break
                except OSError:
                    assert process.returncode is None, (folder / "prometheus.log").read_text()[-2000:]
                    await asyncio.sleep(0.1)
        yield ask
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


def fetched(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return bytes(answer.read())
