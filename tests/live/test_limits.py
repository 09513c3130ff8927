"""Rates and quotas of a running broker: who is over them is refused with what helps, and others go on."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.live.test_gateway import AB, post, posted
from tests.live.together import Together
from tidings.errors import Denied, ErrorCode, RateLimited
from tidings.net import DevNetwork, ReadAccess, read_client
from tidings.net.gateway.server import Gateway

pytestmark = pytest.mark.live


def test_a_client_over_its_rate_is_refused_and_gets_everything_in_when_it_comes_again(tmp_path: Path) -> None:
    # A burst of ten, and then one event a tenth of a second.
    layout = DevNetwork(first_port=0, brokers={"police": 1}, limits={"client_events_per_s": 10.0, "burst_s": 1.0})

    async def scenario() -> None:
        async with Together(tmp_path, layout) as network:
            camera, other = await network.client("police/camera"), await network.client("police/desk")
            kept = await other.subscribe("Numberplate", durable="kept").ready()
            events = [{"plate": f"AB{n}"} for n in range(15)]
            said = await camera.publish_many("Numberplate", events[:10], names=[str(n) for n in range(10)])
            with pytest.raises(RateLimited, match="rate: this client may publish 10 events a second") as refused:
                await camera.publish_many("Numberplate", events[10:], names=["10", "11", "12", "13", "14"])
            assert 0 < refused.value.retry_after_s <= 0.5
            assert refused.value.code is ErrorCode.RATE
            assert network.brokers["police-1"].counts["rate limited"] == 5
            while len(said) < 15:
                try:
                    said += await camera.publish_many("Numberplate", events[10:], names=["10", "11", "12", "13", "14"])
                except RateLimited as again:
                    await asyncio.sleep(again.retry_after_s)
            assert [(await anext(kept)).id for _ in range(15)] == said

    asyncio.run(scenario())


def test_the_rate_of_an_organisation_counts_its_clients_on_links_and_at_the_gateway(tmp_path: Path) -> None:
    # A burst of three, and then one event in a hundred seconds.
    limits = {"organisation_events_per_s": 0.01, "burst_s": 300.0}
    layout = DevNetwork(first_port=0, brokers={"police": 1}, limits=limits)

    async def scenario() -> None:
        async with Together(tmp_path, layout) as network:
            broker = network.brokers["police-1"]
            camera = await network.client("police/camera")
            await camera.publish_many("Numberplate", [{"plate": "AB"}] * 2)
            config = replace(broker.config, gateway="127.0.0.1:0")
            async with Gateway(config, broker.services, broker.clients) as gateway:
                caller = read_client(network.laid.clients["police/camera"])
                assert (await asyncio.to_thread(post, gateway.address, caller, AB))[0] == 201
                answer = await asyncio.to_thread(posted, gateway.address, caller, AB)
                assert (answer.status, json.loads(answer.read())["code"]) == (429, "rate")
                assert 0 < int(answer.headers["Retry-After"]) <= 100
            with pytest.raises(RateLimited, match="this organisation may publish 0.01 events a second"):
                await camera.publish("Numberplate", {"plate": "AB"})

    asyncio.run(scenario())


def test_the_brokers_of_another_organisation_are_slowed_down_and_lose_nothing(tmp_path: Path) -> None:
    limits = {"peer_messages_per_s": 100.0, "burst_s": 0.1}  # Ten at once.
    layout = DevNetwork(first_port=0, brokers={"police": 1, "ccs": 1}, limits=limits, readers={"ccs": ReadAccess()})

    async def scenario() -> None:
        async with Together(tmp_path, layout) as network:
            camera, desk = await network.client("police/camera"), await network.client("ccs/desk")
            heard = await desk.subscribe("Numberplate").ready()
            slowed, before = network.brokers["ccs-1"].counts, network.brokers["ccs-1"].counts["peers slowed down"]
            async with asyncio.timeout(60):
                while slowed["peers slowed down"] == before:
                    sent = await camera.publish_many("Numberplate", [{"plate": f"AB{n}"} for n in range(40)])
                    assert [(await anext(heard)).id for _ in sent] == sent

    asyncio.run(scenario())


def test_a_client_has_as_many_durable_subscriptions_as_it_may_and_keeps_those_it_has(tmp_path: Path) -> None:
    layout = DevNetwork(first_port=0, brokers={"police": 1}, limits={"durables_per_client_max": 2, "durables_max": 3})

    async def scenario() -> None:
        async with Together(tmp_path, layout) as network:
            desk, camera = await network.client("police/desk"), await network.client("police/camera")
            first = await desk.subscribe("Numberplate", durable="a").ready()
            await desk.subscribe("Numberplate", durable="b").ready()
            with pytest.raises(Denied, match="durables_per_client_max") as refused:
                await desk.subscribe("Numberplate", durable="c").ready()
            assert refused.value.code is ErrorCode.LIMIT
            await first.close(forget=True)
            await desk.subscribe("Numberplate", durable="c").ready()
            await camera.subscribe("Numberplate", durable="a").ready()
            with pytest.raises(Denied, match="durables_max"):
                await camera.subscribe("Numberplate", durable="b").ready()

    asyncio.run(scenario())
