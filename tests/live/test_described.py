"""The gateway does what its OpenAPI description says: every operation by hand, and whatever schemathesis thinks of."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.live.test_gateway import AB, STRUCTURED, bearer, connection, from_a_page, listen, post, scenario_with
from tidings.net import ClientConfig
from tidings.net.gateway.openapi import OPERATIONS

pytestmark = pytest.mark.live

SUBSCRIPTION = {"types": ["Numberplate"], "protocol": "SSE", "config": {"name": "fast"}}
HOOKS = Path(__file__).with_name("schemathesis_hooks.py")


@dataclass(frozen=True)
class Running:
    """A gateway with two clients of its organisation."""

    address: str
    camera: ClientConfig
    desk: ClientConfig


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One for the whole file, on a loop of its own: the tests leave nothing behind."""
    started: Future[Running] = Future()
    over = threading.Event()

    def work(address: str, metrics: str, camera: ClientConfig, desk: ClientConfig) -> None:
        started.set_result(Running(address, camera, desk))
        over.wait()

    server = threading.Thread(target=scenario_with, args=(work, tmp_path_factory.mktemp("described")))
    server.start()
    try:
        yield started.result(timeout=120)
    finally:
        over.set()
        server.join()


def ask(
    address: str, who: ClientConfig, method: str, path: str, body: Any = None, kind: str = "application/json"
) -> tuple[int, Any, dict[str, str]]:
    link = connection(address, who)
    sent = None if body is None else json.dumps(body)
    link.request(method, path, sent, {"Content-Type": kind, **bearer(who)})
    answer = link.getresponse()
    raw, headers = answer.read(), dict(answer.headers)
    return answer.status, json.loads(raw) if "json" in headers["Content-Type"] else raw.decode(), headers


def test_every_operation_that_is_described_is_answered_as_described(gateway: Running) -> None:
    sent = {
        "publishEvents": ("/events", {**AB, "id": "9"}, STRUCTURED["Content-Type"]),
        "streamEvents": ("/events?type=Numberplate&wait_s=0", None, ""),
        "acknowledge": ("/acknowledge?durable=d&position=0", None, ""),
        "createSubscription": ("/subscriptions", SUBSCRIPTION, "application/json"),
        "updateSubscription": ("/subscriptions/{id}", SUBSCRIPTION, "application/json"),
    }
    camera, desk = gateway.camera, gateway.desk
    next(listen(gateway.address, desk, "type=Numberplate&durable=d"))
    described, id = ask(gateway.address, desk, "GET", "/openapi.json")[1], ""
    assert described["paths"].keys() == {operation.path for operation in OPERATIONS}
    for operation in OPERATIONS:
        path, body, kind = sent.get(operation.name, (operation.path, None, ""))
        who = camera if operation.name == "publishEvents" else desk
        status, answer, headers = ask(gateway.address, who, operation.method, path.replace("{id}", id), body, kind)
        assert status in operation.answers, (operation.name, status, answer)
        assert headers["Content-Type"] == operation.answers[status][1]
        id = answer["id"] if operation.name == "createSubscription" else id


def test_what_is_not_described_is_refused_before_anybody_is_asked_who_they_are(gateway: Running) -> None:
    desk = gateway.desk
    assert from_a_page(gateway.address, desk, "GET", "/nowhere").status == 404
    patched = from_a_page(gateway.address, desk, "PATCH", "/subscriptions/x")
    assert (patched.status, patched.headers["Allow"]) == (405, "GET, PUT, DELETE, OPTIONS")
    misspelt = from_a_page(gateway.address, desk, "GET", "/events?type=Numberplate&wher=TRUE")
    assert (misspelt.status, "where" in json.loads(misspelt.read())["why"]) == (400, True)
    assert from_a_page(gateway.address, desk, "GET", "/openapi.json").status == 200
    assert from_a_page(gateway.address, desk, "GET", "/subscriptions").status == 401


def test_a_subscription_is_created_read_changed_and_deleted_by_its_owner(gateway: Running) -> None:
    camera, desk = gateway.camera, gateway.desk
    filters = [
        {"prefix": {"plate": "A"}},
        {"not": {"any": [{"exact": {"speed": "10"}}, {"tidings": "speed > 90"}]}},
    ]
    status, made, headers = ask(gateway.address, desk, "POST", "/subscriptions", {**SUBSCRIPTION, "filters": filters})
    assert (status, headers["Location"]) == (201, f"/subscriptions/{made['id']}")
    plates = [("AB", 31.0), ("AC", 10.0), ("XY", 31.0), ("AD", 95.0), ("AE", 32.0)]
    for number, (plate, speed) in enumerate(plates):
        post(gateway.address, camera, {**AB, "id": f"api-{number}", "data": {"plate": plate, "speed": speed}})
    heard = listen(gateway.address, desk, made["sink"].partition("?")[2])
    next(heard)
    assert [next(heard)[1]["data"]["plate"] for _ in range(2)] == ["AB", "AE"]
    assert made in ask(gateway.address, desk, "GET", "/subscriptions")[1]
    assert ask(gateway.address, desk, "POST", "/subscriptions", SUBSCRIPTION)[0] == 409
    changed = ask(
        gateway.address, desk, "PUT", f"/subscriptions/{made['id']}", {**made, "filters": [{"tidings": "speed > 50"}]}
    )
    assert (changed[0], changed[1]["filters"]) == (200, [{"tidings": "(speed > 50)"}])
    assert ask(gateway.address, desk, "DELETE", f"/subscriptions/{made['id']}")[:2] == (200, changed[1])
    assert ask(gateway.address, desk, "GET", f"/subscriptions/{made['id']}")[0] == 404


def test_nobody_reads_or_deletes_the_subscription_of_another_and_no_address_is_called(gateway: Running) -> None:
    camera, desk = gateway.camera, gateway.desk
    made = ask(gateway.address, desk, "POST", "/subscriptions", SUBSCRIPTION)[1]
    path = f"/subscriptions/{made['id']}"
    assert ask(gateway.address, camera, "GET", "/subscriptions")[1] == []
    assert [ask(gateway.address, camera, method, path)[0] for method in ("GET", "DELETE")] == [404, 404]
    hook = {**SUBSCRIPTION, "protocol": "HTTP", "sink": "http://169.254.169.254/", "config": {}}
    assert ask(gateway.address, desk, "POST", "/subscriptions", hook)[0] == 403
    refused = {**made, "filters": [{"tidings": "sped > 1"}]}
    assert ask(gateway.address, desk, "PUT", path, refused)[0] == 400
    without = replace(desk, tokens=())
    assert ask(gateway.address, without, "PUT", path, made)[0] == 403
    assert ask(gateway.address, desk, "GET", path)[1] == made  # What was refused has changed nothing.
    ask(gateway.address, desk, "DELETE", path)


@pytest.mark.slow
def test_schemathesis_finds_nothing_that_is_not_as_described(gateway: Running, tmp_path: Path) -> None:
    desk = gateway.desk
    found = subprocess.run(
        [
            *(sys.executable, "-m", "schemathesis.cli", "run", f"https://{gateway.address}/openapi.json"),
            *("--tls-verify", str(desk.trusted.with_name("web.crt"))),
            *("--request-cert", str(desk.certificate), "--request-cert-key", str(desk.key)),
            *("--header", f"Authorization:{bearer(desk)['Authorization']}"),
            *("--seed", "21", "--max-examples", "5", "--generation-database", "none"),
            *("--exclude-checks", "positive_data_acceptance,ignored_auth,object_level_authorization"),
        ],
        cwd=tmp_path,
        env={**os.environ, "SCHEMATHESIS_HOOKS": HOOKS.stem, "PYTHONPATH": str(HOOKS.parent), "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert found.returncode == 0, found.stdout[-8000:] + found.stderr[-2000:]
