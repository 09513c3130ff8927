"""The way of an event is found from wherever one asks, and everybody tells only what the asker may know."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.live.together import Together
from tidings.net import DevNetwork, ReadAccess
from tidings.security import Mode

pytestmark = pytest.mark.live

EVENT = {"plate": "AB", "speed": 31.0}
LINE = DevNetwork(
    first_port=0,
    brokers={"police": 2, "ccs": 1, "yard": 1},
    readers={"ccs": ReadAccess(("plate",)), "yard": ReadAccess()},
    overlay="flooding",
    in_line=True,
)
WAY = ["police/police-1", "police/police-2", "ccs/ccs-1", "yard/yard-1"]


async def has_crossed(network: Together) -> str:
    """An event that was published at the police and has reached the yard."""
    camera, desk = await network.client("police/camera"), await network.client("yard/desk")
    heard = await desk.subscribe("Numberplate", "speed > 20").ready()
    event = await camera.publish("Numberplate", EVENT)
    assert (await anext(heard)).id == event
    return event


async def told_and_traced(network: Together, *askers: str) -> list[list[dict[str, Any]]]:
    """What each of the askers is told about its way."""
    event = await has_crossed(network)
    clients = [await network.client(asker) for asker in askers]
    return [await client.ask("trace", event=event) for client in clients]


def names(hops: list[dict[str, Any]]) -> list[str]:
    return [f"{hop['domain']}/{hop['broker']}" for hop in hops]


def test_the_whole_way_is_found_from_its_beginning_its_middle_and_its_end(tmp_path: Path) -> None:
    async def see() -> None:
        async with Together(tmp_path, LINE) as network:
            ways = await told_and_traced(network, "police/camera", "ccs/desk", "yard/desk")
            assert [names(hops) for hops in ways] == [WAY] * 3
            for hops in ways:
                assert [hop["came_from"] for hop in hops] == ["", *WAY[:-1]]
                assert [[sent["to"] for sent in hop["sent"]] for hop in hops] == [*([each] for each in WAY[1:]), []]
                assert sorted((hop["ago_s"] for hop in hops), reverse=True) == [hop["ago_s"] for hop in hops]

    asyncio.run(see())


def test_who_was_told_is_said_within_an_organisation_and_to_nobody_else(tmp_path: Path) -> None:
    async def see() -> None:
        async with Together(tmp_path, LINE) as network:
            nosy = await network.client("police/desk")
            await nosy.subscribe("Numberplate", "speed > 99").ready()
            by_police, by_ccs, by_yard = await told_and_traced(network, "police/desk", "ccs/desk", "yard/desk")
            assert [why["why"] for hop in by_police for why in hop["missed"]] == ["not TRUE: speed > 99"]
            assert [hop["missed"] for hop in (*by_ccs, *by_yard)] == [[]] * 8
            assert [len(hop["told"]) for hop in by_yard] == [0, 0, 0, 1]
            assert [hop["told"] for hop in (*by_police, *by_ccs)] == [[]] * 8

    asyncio.run(see())


def test_of_a_sealed_event_each_broker_says_what_it_could_read(tmp_path: Path) -> None:
    async def see() -> None:
        async with Together(tmp_path, replace(LINE, mode=Mode.ATTRIBUTE)) as network:
            (hops,) = await told_and_traced(network, "police/camera")
            everything = ["plate", "speed"]
            assert [sorted(hop["readable"]) for hop in hops] == [everything, everything, ["plate"], everything]
            assert [hop["hidden"] for hop in hops] == [[], [], ["speed"], []]

    asyncio.run(see())


def test_each_broker_of_a_circle_is_named_once(tmp_path: Path) -> None:
    layout = DevNetwork(first_port=0, readers={"ccs": ReadAccess(), "yard": ReadAccess()}, overlay="flooding")

    async def see() -> None:
        async with Together(tmp_path, layout) as network:
            (hops,) = await told_and_traced(network, "ccs/desk")
            assert sorted(names(hops)) == ["ccs/ccs-1", "police/police-1", "yard/yard-1"]
            assert names(hops)[0] == "police/police-1"

    asyncio.run(see())


def test_a_broker_that_has_forgotten_finds_the_way_through_its_neighbours(tmp_path: Path) -> None:
    async def see() -> None:
        async with Together(tmp_path, LINE) as network:
            event = await has_crossed(network)
            await network.stop("yard-1")
            await network.start("yard-1")
            asker = await network.client("yard/desk")
            while not (hops := await asker.ask("trace", event=event)):
                continue  # Its link is not up yet.
            assert names(hops) == WAY[:-1]

    asyncio.run(see())
