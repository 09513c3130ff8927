"""The HTTP gateway and the metrics page, asked by an HTTP client that knows nothing of Tidings."""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import os
import secrets
import shutil
import ssl
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from prometheus_client.parser import text_string_to_metric_families

from tests.live.together import Together
from tidings.net import ClientConfig, read_client
from tidings.net.clock import now_ms
from tidings.net.config import host_and_port
from tidings.net.gateway.dpop import token_hash
from tidings.net.gateway.server import Gateway
from tidings.net.ids import read_identity, read_token
from tidings.net.observability.metrics import MetricsServer
from tidings.net.transport.tls import client_context, der
from tidings.security import BiscuitCapability
from tidings.store import Registry

pytestmark = pytest.mark.live

AB = {"specversion": "1.0", "id": "1", "source": "cam-7", "type": "Numberplate", "data": {"plate": "AB", "speed": 31.0}}
STRUCTURED = {"Content-Type": "application/cloudevents+json"}
PAGE, ALLOWED = "https://app.example", "Access-Control-Allow-Origin"
IN_A_BROWSER = Path(__file__).with_name("in_a_browser.mjs")


def connection(address: str, who: ClientConfig) -> http.client.HTTPSConnection:
    host, port = host_and_port(address)
    context = client_context(who.certificate, who.key, who.trusted)
    context.load_verify_locations(who.trusted.with_name("web.crt"))
    return http.client.HTTPSConnection(host, port, context=context, timeout=60)


def bearer(who: ClientConfig) -> dict[str, str]:
    return {"Authorization": "Bearer " + ", ".join(file.read_text().strip() for file in who.tokens)}


def posted(address: str, who: ClientConfig, body: Any, **headers: str) -> http.client.HTTPResponse:
    link = connection(address, who)
    link.request("POST", "/events", json.dumps(body), {**STRUCTURED, **bearer(who), **headers})
    return link.getresponse()


def post(address: str, who: ClientConfig, body: Any, **headers: str) -> tuple[int, dict[str, Any]]:
    answer = posted(address, who, body, **headers)
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


def from_a_page(address: str, who: ClientConfig, method: str, path: str, **headers: str) -> http.client.HTTPResponse:
    """A request as a browser makes it: it knows the gateway's own certificate, and shows none."""
    host, port = host_and_port(address)
    context = ssl.create_default_context(cafile=str(who.trusted.with_name("web.crt")))
    link = http.client.HTTPSConnection(host, port, context=context, timeout=60)
    link.request(method, path, json.dumps(AB) if method == "POST" else None, {**STRUCTURED, **headers})
    return link.getresponse()


def proof(who: ClientConfig, method: str, address: str, path: str) -> dict[str, str]:
    key = load_pem_private_key(who.key.read_bytes(), None)
    assert isinstance(key, Ed25519PrivateKey)
    tokens = bearer(who)
    claims = {"jti": secrets.token_hex(8), "htm": method, "htu": f"https://{address}{path}", "iat": int(time.time())}
    header = {
        "typ": "dpop+jwt",
        "jwk": jwt.algorithms.OKPAlgorithm.to_jwk(key.public_key(), as_dict=True),
        "x5c": [base64.b64encode(der(who.certificate.read_bytes())).decode()],
    }
    signed = jwt.encode({**claims, "ath": token_hash(tokens["Authorization"])}, key, "EdDSA", header)
    return {**tokens, "DPoP": signed}


def scenario_with(work: Any, folder: Path) -> None:
    async def scenario() -> None:
        async with Together(folder) as network:
            broker = network.brokers["police-1"]
            anywhere = "127.0.0.1:0"
            config = replace(broker.config, gateway=anywhere, gateway_origins=(PAGE,))
            async with (
                Gateway(config, broker.services, broker.clients) as gateway,
                MetricsServer(anywhere, broker.numbers) as metrics,
            ):
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


def test_a_listener_whose_right_is_revoked_is_told_so_and_the_stream_ends(tmp_path: Path) -> None:
    def work(gateway: str, metrics: str, camera: ClientConfig, desk: ClientConfig) -> None:
        heard = listen(gateway, desk, "type=Numberplate")
        next(heard)
        owner = read_identity(desk.trusted.with_name("authority.pem"))
        token = BiscuitCapability.from_bytes(read_token(desk.tokens[0]), owner.public_key)
        with Registry.open(desk.trusted.parent / "police-1" / "data" / "registry.db", now_ms=now_ms()) as registry:
            registry.grants.revoke(token, by_key=owner.public_key, now_ms=now_ms())
        ((_, said),) = list(heard)
        assert "revoked" in said["why"]

    scenario_with(work, tmp_path)


def test_who_shows_no_certificate_is_known_by_a_proof_and_by_nothing_less(tmp_path: Path) -> None:
    def work(gateway: str, metrics: str, camera: ClientConfig, desk: ClientConfig) -> None:
        proven = proof(camera, "POST", gateway, "/events")
        assert from_a_page(gateway, camera, "POST", "/events", **bearer(camera)).status == 401
        assert from_a_page(gateway, camera, "POST", "/events", **proven).status == 201
        assert from_a_page(gateway, camera, "POST", "/events", **proven).status == 403  # Used before.
        assert from_a_page(gateway, desk, "POST", "/events", **proof(desk, "POST", gateway, "/events")).status == 403

    scenario_with(work, tmp_path)


def test_pages_are_for_everybody_and_the_gateway_for_pages_of_origins_that_are_let_in(tmp_path: Path) -> None:
    def work(gateway: str, metrics: str, camera: ClientConfig, desk: ClientConfig) -> None:
        page = from_a_page(gateway, desk, "GET", "/")
        assert (page.status, b"tidings" in page.read().lower()) == (200, True)
        assert b"export class Gateway" in from_a_page(gateway, desk, "GET", "/tidings.mjs").read()
        asks = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "dpop"}
        let_in = from_a_page(gateway, desk, "OPTIONS", "/events", Origin=PAGE, **asks)
        assert let_in.headers["Access-Control-Allow-Origin"] == PAGE
        assert let_in.headers["Access-Control-Allow-Headers"] == "dpop"
        proven = proof(camera, "POST", gateway, "/events")
        assert from_a_page(gateway, camera, "POST", "/events", Origin=PAGE, **proven).headers[ALLOWED] == PAGE
        others = from_a_page(gateway, desk, "OPTIONS", "/events", Origin="https://elsewhere.example", **asks)
        assert ALLOWED not in others.headers

    scenario_with(work, tmp_path)


def test_the_module_for_browsers_publishes_subscribes_and_is_refused_like_everybody(tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None or int(subprocess.check_output([node, "--version"], text=True)[1:].split(".")[0]) < 20:
        pytest.skip("the module for browsers is run by Node.js 20 or newer, and there is none")

    def work(gateway: str, metrics: str, camera: ClientConfig, desk: ClientConfig) -> None:
        done = subprocess.run(
            [node, str(IN_A_BROWSER), gateway, str(camera.key.parent), str(desk.key.parent)],
            env={**os.environ, "NODE_EXTRA_CA_CERTS": str(desk.trusted.with_name("web.crt"))},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        said = json.loads(done.stdout)
        assert said["heard"] == [{"plate": "AB", "speed": 31}, {"plate": "CD", "speed": 32}]
        assert said["again"] == [{"plate": "CD", "speed": 32}]  # The first was acknowledged.
        assert said["refused"] == 403

    scenario_with(work, tmp_path)


def page(address: str, path: str) -> tuple[int, str]:
    link = http.client.HTTPConnection(*host_and_port(address), timeout=60)
    link.request("GET", path)
    answer = link.getresponse()
    return answer.status, answer.read().decode()


def samples_of(text: str) -> dict[tuple[str, str], float]:
    """By name and the label that tells series of one name apart."""
    return {
        (
            sample.name,
            next((sample.labels[key] for key in ("le", "subscription") if key in sample.labels), ""),
        ): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_the_metrics_page_counts_and_times_what_was_published_and_delivered(tmp_path: Path) -> None:
    def work(gateway: str, metrics: str, camera: ClientConfig, desk: ClientConfig) -> None:
        heard = listen(gateway, desk, "type=Numberplate&durable=d")
        next(heard)
        for number in range(3):
            post(gateway, camera, {**AB, "id": str(number)})
        positions = [next(heard)[0] for _ in range(3)]
        waits = samples_of(page(metrics, "/metrics")[1])
        assert waits["tidings_events_published_total", ""] == 3
        assert waits["tidings_publish_duration_seconds_count", ""] == 3
        assert waits["tidings_publish_duration_seconds_bucket", "+Inf"] == 3
        assert waits["tidings_delivery_duration_seconds_count", ""] == 0
        assert waits["tidings_subscription_lag_events", "d"] == waits["tidings_queue_events", ""] == 3
        assert waits["tidings_subscription_oldest_age_seconds", "d"] > 0
        assert waits["tidings_certificate_expiry_timestamp_seconds", ""] > time.time()
        assert waits["tidings_journal_bytes", ""] > 0
        next(listen(gateway, desk, "type=Numberplate&durable=d", last=positions[1]))  # Acknowledges two.
        after = samples_of(page(metrics, "/metrics")[1])
        assert after["tidings_delivery_duration_seconds_count", ""] == 2
        assert after["tidings_subscription_lag_events", "d"] == 1
        assert not [name for name, _ in after if name.startswith("tidings_count")]

    scenario_with(work, tmp_path)


def test_a_broker_is_live_and_ready_until_it_drains(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Together(tmp_path) as network:
            broker = network.brokers["police-1"]
            async with MetricsServer("127.0.0.1:0", broker.numbers) as metrics:
                assert (await asyncio.to_thread(page, metrics.address, "/livez"))[0] == 200
                assert (await asyncio.to_thread(page, metrics.address, "/readyz"))[0] == 200
                broker.publisher.is_draining = True
                status, why = await asyncio.to_thread(page, metrics.address, "/readyz")
                assert (status, json.loads(why)) == (503, {"ready": False, "why": ["it drains"]})
                assert (await asyncio.to_thread(page, metrics.address, "/livez"))[0] == 200
                assert (await asyncio.to_thread(page, metrics.address, "/"))[0] == 404

    asyncio.run(scenario())
