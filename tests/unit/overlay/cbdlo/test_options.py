"""The options of CBDLO: presets, names that config files use, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from tidings.errors import InputError
from tidings.overlay.cbdlo.options import CbdloOptions
from tidings.overlay.random_graph.graph import GraphOptions


def test_the_defaults_are_the_preset_robust() -> None:
    assert CbdloOptions() == CbdloOptions.robust() == CbdloOptions.of()
    assert GraphOptions() == GraphOptions.robust()


def test_the_preset_paper_neither_acknowledges_nor_announces() -> None:
    paper = CbdloOptions.of(profile="paper")
    assert paper == CbdloOptions.paper()
    assert (paper.reliable, paper.mode, paper.walkers, paper.fingers) == (False, "count", 1, False)
    assert (paper.graph.policy, paper.graph.announces) == ("naive", False)


def test_named_options_replace_those_of_the_profile() -> None:
    options = CbdloOptions.of(profile="paper", policy="balanced", table_size=20, walkers=3)
    assert (options.graph.policy, options.graph.table_size, options.walkers) == ("balanced", 20, 3)
    assert options.mode == "count"


def test_none_leaves_an_option_as_the_profile_has_it() -> None:
    assert CbdloOptions.of(profile="paper", mode=None, policy=None, walkers=None) == CbdloOptions.paper()


def test_only_mode_full_limits_the_attributes_that_an_interest_is_indexed_under() -> None:
    assert CbdloOptions.of(indexed_max=1).indexed == 1
    assert CbdloOptions.of(mode="count", indexed_max=1).indexed is None


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        ({"profile": "best"}, "profile robust or paper"),
        ({"walker": 2}, "walkers"),
        ({"graph": GraphOptions()}, "unknown option 'graph'"),
        ({"hops_max": 0}, "hops_max ≥ 1"),
        ({"indexed_max": 0}, "indexed_max ≥ 1"),
        ({"coordinators": 0}, "coordinators from 1 to 64"),
    ],
    ids=str,
)
def test_an_invalid_option_is_refused_with_what_was_expected(named: dict[str, Any], expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        CbdloOptions.of(**named)
