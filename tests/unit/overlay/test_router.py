"""The contract as others find it: protocols by name, options checked, defaults that say what they promise."""

from __future__ import annotations

from random import Random

import pytest

from tests.conformance import PROTOCOLS
from tidings.errors import InputError
from tidings.overlay import NAMES, Completed, Peer, Place, Ranges, SubscriptionId, protocol
from tidings.overlay.baselines.flooding import Flooding
from tidings.overlay.interest import Interest


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
