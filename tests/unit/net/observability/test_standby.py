"""What a process shows of itself while another one holds the lease of its journal."""

from __future__ import annotations

import asyncio
import http.client
import json

import pytest

from tidings.net.observability.metrics import StandbyServer

pytestmark = pytest.mark.live


def asked(address: str, method: str, path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(address, timeout=30)
    connection.request(method, path)
    response = connection.getresponse()
    return response.status, response.read()


def test_a_standby_is_live_and_not_ready_and_can_only_be_read() -> None:
    async def scenario() -> None:
        async with StandbyServer("127.0.0.1:0") as standby:
            status, why = await asyncio.to_thread(asked, standby.address, "GET", "/readyz")
            assert (status, json.loads(why)["ready"]) == (503, False)
            assert "lease" in json.loads(why)["why"][0]
            assert (await asyncio.to_thread(asked, standby.address, "GET", "/livez"))[0] == 200
            numbers = (await asyncio.to_thread(asked, standby.address, "GET", "/metrics"))[1]
            assert b"tidings_ready 0.0" in numbers
            assert (await asyncio.to_thread(asked, standby.address, "POST", "/metrics"))[0] == 405
            assert (await asyncio.to_thread(asked, standby.address, "GET", "/"))[0] == 404

    asyncio.run(scenario())
