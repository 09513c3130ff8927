"""Who subscribes while chaos reigns, what each wants and may see, and what is wrong with what it got."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import Any, NamedTuple

from tests.live.leaks import area, plate, speed
from tidings.net import DevNetwork, Subscription

EVERYTHING = frozenset({"plate", "area", "speed", "seen_at"})
SHOWN_MAX = 3  # Ids in a reason: enough to find the place in the logs and journals.


class Said(NamedTuple):
    """An acknowledged event: at which broker it was published, and what was said."""

    at: str
    values: dict[str, Any]


@dataclass
class Wanted:
    """One durable subscriber: what it wants, what it may see, what it got."""

    client: str
    broker: str
    condition: str
    matches: Callable[[dict[str, Any]], bool]
    may_see: frozenset[str]
    got: list[str] = field(default_factory=list)
    saw: set[str] = field(default_factory=set)
    came: asyncio.Event = field(default_factory=asyncio.Event)

    async def read(self, subscription: Subscription) -> None:
        async for event in subscription:
            self.got.append(event.id)
            self.saw.update(event.values)
            self.came.set()

    async def has(self, count: int) -> None:
        """Waits until so many have come."""
        while len(self.got) < count:
            self.came.clear()
            await self.came.wait()

    def expected(self, published: Mapping[str, Said]) -> list[str]:
        """The ids of what it wants, in the order in which it was acknowledged; `published` is by id."""
        return [id for id, said in published.items() if self.matches(said.values)]

    def wrong(self, published: Mapping[str, Said]) -> list[str]:
        """What should not be so; empty if each event came once, in the order of its publisher, and shows what it may."""
        got, expected = set(self.got), self.expected(published)
        counted = {
            "events twice": _repeated(self.got),
            f"of {len(expected):,} not at all": [id for id in expected if id not in got],
            "that it must not have": sorted(got - set(expected)),
        }
        reasons = [f"{self.client} got {len(ids):,} {what}: {_some(ids)}" for what, ids in counted.items() if ids]
        return reasons + self._out_of_order(published) + self._overexposed()

    def _out_of_order(self, published: Mapping[str, Said]) -> list[str]:
        order = {id: number for number, id in enumerate(published)}
        reasons = []
        for broker in sorted({said.at for said in published.values()}):
            came = [id for id in dict.fromkeys(self.got) if id in order and published[id].at == broker]
            late = [after for before, after in pairwise(came) if order[after] < order[before]]
            if late:
                reasons.append(f"{self.client} got events of {broker} out of order: {_some(late)}")
        return reasons

    def _overexposed(self) -> list[str]:
        shown = sorted(self.saw - self.may_see)
        return [f"{self.client} was shown {', '.join(shown)}"] if shown else []


def wanted_by(layout: DevNetwork) -> list[Wanted]:
    """One subscriber in each organisation, at its last broker; the yard may see one car and nothing but plates."""
    last = {name: f"{name}-{count}" for name, count in layout.brokers.items()}
    here, one = area("EC2"), plate(1)
    return [
        Wanted("police/desk", last["police"], f"area = '{here}'", lambda v: v["area"] == here, EVERYTHING),
        Wanted("ccs/desk", last["ccs"], "speed >= 50", lambda v: v["speed"] >= 50, EVERYTHING),
        Wanted("yard/desk", last["yard"], "plate LIKE 'AB%'", lambda v: v["plate"] == one, frozenset({"plate"})),
    ]


def sighting(dice: Random) -> dict[str, Any]:
    return {
        "plate": plate(dice.randrange(20)),
        "area": area(dice.choice(["EC2", "WC1"])),
        "speed": speed(float(dice.randrange(2, 100))),
    }


def what_all_want() -> dict[str, Any]:
    return {"plate": plate(1), "area": area("EC2"), "speed": speed(99.0)}


def _repeated(ids: Sequence[str]) -> list[str]:
    seen: set[str] = set()
    return [id for id in ids if id in seen or seen.add(id)]  # type: ignore[func-returns-value]


def _some(ids: Sequence[str]) -> str:
    return ", ".join(ids[:SHOWN_MAX]) + (" …" if len(ids) > SHOWN_MAX else "")
