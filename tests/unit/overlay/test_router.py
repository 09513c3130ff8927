"""The contract as others find it: protocols by name, options checked, defaults that say what they promise."""

from __future__ import annotations

from dataclasses import fields
from random import Random
from typing import Any

import pytest

from tests.conformance import PROTOCOLS
from tidings.errors import InputError
from tidings.overlay import NAMES, Completed, Peer, Place, Ranges, SubscriptionId, protocol
from tidings.overlay.baselines.flooding import Flooding
from tidings.overlay.hermes.router import HermesOptions
from tidings.overlay.immune.neighbour_state import ImmuneOptions
from tidings.overlay.interest import Interest
from tidings.overlay.irbr.router import IrbrOptions
from tidings.sim import World


@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_protocol_goes_by_the_name_of_its_module(name: str) -> None:
    assert protocol(name).name == name


def test_an_unknown_protocol_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(InputError, match="did you mean 'flooding'"):
        protocol("floodin")


def test_immune_refuses_options_it_does_not_know() -> None:
    place = Place(Peer("a"), (), Random(1))
    for options in ({"colour": "red"}, {"forward": "sideways"}, {"delta": -1}, {"mode": "x"}, {"check": "none"}):
        with pytest.raises(InputError):
            protocol("immune").build(place, **options)


@pytest.mark.parametrize("name", NAMES)
def test_every_protocol_refuses_an_option_it_does_not_know(name: str) -> None:
    with pytest.raises(InputError, match=f"{name}: .*colour"):
        protocol(name).build(Place(Peer("a0"), (), Random(1)), colour="red")


def test_a_protocol_that_needs_no_subscriptions_completes_them_at_once() -> None:
    node, id = Flooding([]), SubscriptionId("a", 0, 1)
    assert node.subscribe(Interest(id, "T", Ranges.of(x=(1, 2))), now=0.0) == [Completed("subscribe", id)]
    assert node.unsubscribe(id, now=0.0) == [Completed("unsubscribe", id)]
    assert node.leave(now=0.0) == [Completed("leave")]


@pytest.mark.parametrize("options", [IrbrOptions, HermesOptions, ImmuneOptions])
def test_every_option_has_a_default_and_robust_is_the_defaults(options: Any) -> None:
    assert options.robust() == options()
    assert options.paper() != options()


@pytest.mark.parametrize(("name", "paper"), [("irbr", IrbrOptions.paper()), ("hermes", HermesOptions.paper())])
def test_a_network_as_the_paper_has_it_delivers_without_faults(name: str, paper: Any) -> None:
    chosen = {each.name: getattr(paper, each.name) for each in fields(paper)}
    world = World(name, node_count=4, options=chosen)
    id = world.subscribe(2, Ranges.of(x=(0, 9)))
    world.run_for(5.0)
    world.publish(0, {"x": 3})
    world.run_for(5.0)
    assert [notice.subscription for notice in world.trace.notices] == [id]


def test_a_protocol_that_keeps_content_in_packets_says_so() -> None:
    declared = {name for name in NAMES if protocol(name).content_in_packets_only}
    assert declared == {"flooding", "gossip", "hermes", "immune", "irbr"}


def test_live_options_are_options_that_a_protocol_accepts() -> None:
    for name in NAMES:
        protocol(name).build(Place(Peer("213"), (), Random(0)), **protocol(name).live_options)
