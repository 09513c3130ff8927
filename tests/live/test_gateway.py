"""The HTTP gateway and the metrics page, asked by an HTTP client that knows nothing of Tidings."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.live.together import Together
from tidings.net import ClientConfig, read_client
from tidings.net.config import host_and_port
from tidings.net.gateway import Gateway
from tidings.net.metrics import Metrics
from tidings.net.pki import client_context

pytestmark = pytest.mark.live

AB = {"specversion": "1.0", "id": "1", "source": "cam-7", "type": "Numberplate", "data": {"plate": "AB", "speed": 31.0}}
STRUCTURED = {"Content-Type": "application/cloudevents+json"}


def connection(address: str, who: ClientConfig) -> http.client.HTTPSConnection:
    host, port = host_and_port(address)
    return http.client.HTTPSConnection(
        host, port, context=client_context(who.certificate, who.key, who.trusted), timeout=60
    )


def bearer(who: ClientConfig) -> dict[str, str]:
    return {"Authorization": "Bearer " + ", ".join(file.read_text().strip() for file in who.tokens)}


def post(address: str, who: ClientConfig, body: Any, **headers: str) -> tuple[int, dict[str, Any]]:
    link = connection(address, who)
    link.request("POST", "/events", json.dumps(body), {**STRUCTURED, **bearer(who), **headers})
    answer = link.getresponse()
    return answer.status, json.loads(answer.read())


def listen(address: str, who: ClientConfig, query: str, last: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Server-sent events: the id and the CloudEvent of each."""
    link = connection(address, who)
    link.request("GET", f"/events?{query}", headers={**bearer(who), **({"Last-Event-ID": last} if last else {})})
    answer = link.getresponse()
    assert answer.status == 200, answer.read()
    id = ""
    yield "", {}  # In place.
    for line in answer:
        name, _, content = line.decode().strip().partition(": ")
        if name == "id":
            id = content
        elif name == "data":
            yield id, json.loads(content)


def scenario_with(work: Any, folder: Path) -> None:
    async def scenario() -> None:
        async with Together(folder) as network:
            broker = network.brokers["police-1"]
            broker.config = replace(broker.config, gateway="127.0.0.1:0", metrics="127.0.0.1:0")
            async with Gateway(broker) as gateway, Metrics(broker) as metrics:
                camera, desk = (read_client(network.laid.clients[f"police/{name}"]) for name in ("camera", "desk"))
                await asyncio.to_thread(work, gateway.address, metrics.address, camera, desk)

    asyncio.run(scenario())


def test_a_cloudevent_posted_by_one_is_streamed_to_another(tmp_path: Path) -> None:
    def work(gateway: str, metrics: str, camera: ClientConfig, desk: ClientConfig) -> None:
        heard = listen(gateway, desk, "type=Numberplate&where=speed+%3E+20")
        next(heard)
        status, said = post(gateway, camera, AB)
        _, event = next(heard)
        assert status == 201
        assert (event["id"], event["type"], event["data"]) == (said["ids"][0], "Numberplate", AB["data"])

    scenario_with(work, tmp_path)


def test_a_durable_listener_goes_on_after_the_last_event_it_names(tmp_path: Path) -> None:
    def work(gateway: str, metrics: str, camera: ClientConfig, desk: ClientConfig) -> None:
        heard = listen(gateway, desk, "type=Numberplate&durable=d")
        next(heard)
        ids = [post(gateway, camera, {**AB, "id": str(n)})[1]["ids"][0] for n in range(3)]
        position, first = next(heard)
        again = listen(gateway, desk, "type=Numberplate&durable=d", last=position)
        next(again)
        assert [first["id"], next(again)[1]["id"], next(again)[1]["id"]] == ids

    scenario_with(work, tmp_path)


def test_the_same_rights_hold_at_the_gateway(tmp_path: Path) -> None:
    def work(gateway: str, metrics: str, camera: ClientConfig, desk: ClientConfig) -> None:
        assert post(gateway, desk, AB)[0] == 403  # May subscribe only.
        status, refused = post(gateway, replace(desk, tokens=camera.tokens), AB)  # Somebody else's token.
        assert (status, refused["error"]) == (403, "Denied")
        assert post(gateway, camera, {**AB, "data": {"plate": 3}})[0] == 400
        assert post(gateway, camera, AB, **{"Content-Type": "text/plain"})[0] == 415

    scenario_with(work, tmp_path)


def test_the_metrics_page_counts_what_was_published(tmp_path: Path) -> None:
    def work(gateway: str, metrics: str, camera: ClientConfig, desk: ClientConfig) -> None:
        post(gateway, camera, AB)
        link = http.client.HTTPConnection(*host_and_port(metrics), timeout=60)
        link.request("GET", "/metrics")
        page = link.getresponse().read().decode()
        assert 'tidings_count_total{what="published"} 1.0' in page

    scenario_with(work, tmp_path)
