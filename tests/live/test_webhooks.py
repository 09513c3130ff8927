"""Webhooks of the gateway: sent where the operator allows it and the receiver agrees, again and again until it takes them."""

from __future__ import annotations

import asyncio
import http.server
import json
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.live.test_described import SUBSCRIPTION, ask
from tests.live.test_gateway import AB, post
from tests.live.together import Together
from tidings.net import BrokerConfig, read_client
from tidings.net.gateway.server import Gateway

pytestmark = pytest.mark.live


class Receiver:
    """A receiver of webhooks: what it answers to each POST, and what it was sent."""

    def __init__(self) -> None:
        self.address = ""
        self.agrees = True
        self.answers: list[int] = []
        self.heard: queue.Queue[tuple[int, dict[str, Any]]] = queue.Queue()

    def plates(self, count: int) -> list[tuple[int, str]]:
        return [
            (status, event["data"]["plate"]) for status, event in (self.heard.get(timeout=60) for _ in range(count))
        ]


@contextmanager
def receiver() -> Iterator[Receiver]:
    state = Receiver()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_OPTIONS(self) -> None:
            self.send_response(200)
            if state.agrees:
                self.send_header("WebHook-Allowed-Origin", self.headers["WebHook-Request-Origin"])
            self.end_headers()

        def do_POST(self) -> None:
            event = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status = state.answers.pop(0) if state.answers else 204
            self.send_response(status)
            self.send_header("Location", "http://127.0.0.1:9/")  # Never followed.
            self.end_headers()
            state.heard.put((status, event))

        def log_message(self, *_: Any) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.address = f"http://127.0.0.1:{server.server_port}/"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()


def test_a_webhook_gets_every_event_until_it_is_taken_also_after_a_restart(tmp_path: Path) -> None:
    async def scenario(there: Receiver) -> None:
        async with Together(tmp_path) as network:
            broker = network.brokers["police-1"]
            camera, desk = (read_client(network.laid.clients[f"police/{name}"]) for name in ("camera", "desk"))
            config: BrokerConfig = replace(broker.config, gateway="127.0.0.1:0", gateway_sinks=(there.address,))

            async def published(gateway: Gateway, *plates: str) -> None:
                for plate in plates:
                    event = {**AB, "id": plate, "data": {"plate": plate, "speed": 31.0}}
                    assert (await asyncio.to_thread(post, gateway.address, camera, event))[0] == 201

            wanted = {**SUBSCRIPTION, "protocol": "HTTP", "sink": there.address + "plates"}
            async with Gateway(config, broker.services, broker.clients) as gateway:
                there.agrees = False
                assert (await asyncio.to_thread(ask, gateway.address, desk, "POST", "/subscriptions", wanted))[0] == 400
                there.agrees = True
                status, made, _ = await asyncio.to_thread(ask, gateway.address, desk, "POST", "/subscriptions", wanted)
                assert (status, made["protocol"], made["sink"]) == (201, "HTTP", wanted["sink"])
                there.answers = [503, 204, 302]
                await published(gateway, "AA", "BB", "CC")
                heard = await asyncio.to_thread(there.plates, 4)
                assert heard == [(503, "AA"), (204, "AA"), (302, "BB"), (204, "CC")]
                stolen = await asyncio.to_thread(
                    ask, gateway.address, desk, "GET", "/events?type=Numberplate&durable=fast"
                )
                assert stolen[0] == 409
            async with Gateway(config, broker.services, broker.clients) as gateway:
                await published(gateway, "DD")
                while await asyncio.to_thread(there.plates, 1) != [(204, "DD")]:
                    pass  # What was taken just before the restart may come again.
                letters = await (await network.client("police/desk")).ask("dlq")
                assert [letter["why"] for letter in letters] == ["rejected: webhook: the receiver answered 302"]
                path = f"/subscriptions/{made['id']}"
                assert (await asyncio.to_thread(ask, gateway.address, desk, "DELETE", path))[1] == made
                assert json.loads((config.data / "webhooks.json").read_text()) == {}

    with receiver() as there:
        asyncio.run(scenario(there))
