"""What every protocol must do, each a function that takes any protocol.

Each protocol must keep its guarantees (`tidings.overlay.Guarantee`) and what all must
keep: nothing twice, nothing unwanted, nothing invented, no circles, bounded, quiet at
the end. A failure shrinks the plan and prints the command that replays it.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from tidings.overlay import NAMES, Codec, Guarantee, protocol
from tidings.sim import (
    Fault,
    SimulationPlan,
    Workload,
    World,
    comings_and_goings,
    crashes,
    failure,
    in_order,
    judge,
    loss_and_repeats,
    shrunk,
    slow_nodes,
    split_and_heal,
)

PROTOCOLS = NAMES
NODE_COUNT = 24


def everything(seed: int) -> tuple[Fault, ...]:
    """A little of each kind of fault."""
    return in_order(
        [
            *loss_and_repeats(seed, over_s=10.0),
            *crashes(seed, NODE_COUNT, share=0.1),
            *comings_and_goings(seed, NODE_COUNT, joins=2, leaves=1),
            *slow_nodes(seed, NODE_COUNT),
        ]
    )


FAULTS: dict[str, Callable[[int], tuple[Fault, ...]]] = {
    "nothing": lambda seed: (),
    "loss and repeats": loss_and_repeats,
    "crashes": lambda seed: crashes(seed, NODE_COUNT),
    "a split": lambda seed: split_and_heal(seed, NODE_COUNT),
    "comings and goings": lambda seed: comings_and_goings(seed, NODE_COUNT),
    "slow nodes": lambda seed: slow_nodes(seed, NODE_COUNT),
    "everything": everything,
}


def it_keeps_its_guarantees(name: str, seed: int, faults: tuple[Fault, ...], **options: Any) -> None:
    """Under these faults, whatever the seed."""
    plan = SimulationPlan(name, seed=seed, node_count=NODE_COUNT, faults=faults, options=options)
    if failure(plan) is not None:
        judge(shrunk(plan))  # Raises: the smaller plan fails as well.


def what_it_says_fits_through_a_link(name: str, seed: int, **options: Any) -> None:
    """Every message comes out of its bytes as it went in."""
    codec: Codec[Any] = Codec(protocol(name).messages)
    world = World(name, node_count=NODE_COUNT, seed=seed, options=options)
    sent = _all_sent(world)
    _a_little_of_everything(world)
    assert sent, "nothing was said"
    for message in sent:
        assert codec.decode(codec.encode(message)) == message


def a_subscription_is_completed_and_taken_back(name: str, seed: int) -> None:
    """And what is published afterwards is not told."""
    world = World(name, node_count=NODE_COUNT, seed=seed)
    world.run_for(60.0)
    rng = Random(seed)
    wanted = [world.subscribe(rng.randrange(NODE_COUNT), each) for each in Workload().wanted(rng)]
    world.run_for(60.0)
    assert all(world.trace.subscriptions[id].completed_at is not None for id in wanted)
    for id in wanted:
        world.unsubscribe(id)
    world.run_for(60.0)
    assert all(world.trace.subscriptions[id].gone_at is not None for id in wanted)
    world.publish_some(5)
    world.run_until_quiet()
    assert world.trace.notices == []


def needs(name: str, guarantee: Guarantee) -> None:
    """Skip a protocol that does not guarantee this."""
    if guarantee not in protocol(name).guarantees:
        pytest.skip(f"{name} does not guarantee {guarantee.name.lower().replace('_', ' ')}")


def _all_sent(world: World) -> list[Any]:
    """All different messages of a world from now on, as it describes them to its trace."""
    sent: list[Any] = []
    describe = world.describe

    def listen(message: Any) -> Any:
        sent.append(message)
        return describe(message)

    world.describe = listen  # type: ignore[method-assign]
    return sent


def _a_little_of_everything(world: World) -> None:
    rng = Random(world.seed)
    for each in Workload(subscriptions=8).wanted(rng):
        world.subscribe(rng.choice(world.up()), each)
    world.strike(everything(world.seed))
    world.publish_some(10)
    world.run_for(60.0)
