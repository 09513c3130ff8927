"""Experiments as data: points, keys, and parameters given from outside."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.lab.small import experiment
from tidings.errors import InputError
from tidings.lab import EXPERIMENTS, Measured, Parameters, PlotAxis, find
from tidings.lab.cbdlo import measures as cbdlo_measures
from tidings.lab.cbdlo import scene
from tidings.lab.experiment import measured_sources, version_of
from tidings.lab.irbr import experiments
from tidings.lab.spanhop import measures, routing

TEN = 10


def measure_ten(parameters: Parameters, seed: int) -> list[Measured]:
    return [Measured("ten", seed, TEN)]


def test_every_experiment_has_a_name_of_its_own_and_a_quick_form_that_is_smaller() -> None:
    assert len({each.name for each in EXPERIMENTS}) == len(EXPERIMENTS)
    for each in EXPERIMENTS:
        assert len(each.quick().points()) <= len(each.points())
        assert each.claims


def test_a_point_for_every_choice_and_seed() -> None:
    chosen = experiment("immune-5", node_count="20,30", seeds="3", protocol="flooding")
    assert [(point.parameters["node_count"], point.seed) for point in chosen.points()] == [
        (20, 0), (20, 1), (20, 2), (30, 0), (30, 1), (30, 2),
    ]  # fmt: skip


def test_a_key_says_everything_a_result_depends_on() -> None:
    one = experiment("immune-5", node_count="20", seeds="1").points()[0]
    assert one.key == experiment("immune-5", node_count="20", seeds="1").points()[0].key
    others = [replace(one, seed=1), replace(one, version="other"), replace(one, parameters={**one.parameters, "m": 2})]
    assert len({one.key, *(other.key for other in others)}) == 4


def test_rewording_a_claim_or_a_label_leaves_what_was_measured_valid() -> None:
    chosen = experiment("irbr-4a")
    reworded = replace(chosen, claims=(), title="", x=PlotAxis("other"))
    assert [point.key for point in reworded.points()] == [point.key for point in chosen.points()]


def test_another_constant_in_a_measure_is_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    before = version_of(experiments.measure_loss)
    assert version_of(experiments.measure_loss) == before
    monkeypatch.setattr(experiments, "_PATIENCE_S", 61.0)
    assert version_of(experiments.measure_loss) != before


@pytest.mark.parametrize("name", ["ALPHA", "INDEXED"])
def test_another_constant_in_a_class_that_a_measure_makes_is_another_version(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = version_of(cbdlo_measures.measure_cost)
    assert version_of(cbdlo_measures.measure_cost) == before
    monkeypatch.setattr(scene, name, 1)
    assert version_of(cbdlo_measures.measure_cost) != before


def test_another_constant_in_a_compiled_loop_is_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    before = version_of(measures.measure_hops)
    monkeypatch.setattr(routing, "LOST", 3)
    assert version_of(measures.measure_hops) != before


def test_a_measure_depends_on_the_protocols_in_their_packages() -> None:
    sources = {(file.parent.name, file.name) for file in measured_sources()}
    assert {("irbr", "router.py"), ("keys", "group.py"), ("sim", "world.py"), ("overlay", "router.py")} <= sources


def test_a_paper_stands_for_all_its_figures_and_nothing_is_chosen_twice() -> None:
    assert [each.name for each in find(["immune"])] == [each.name for each in EXPERIMENTS if each.paper == "immune"]
    assert len(find(["all", "immune", "irbr-4a"])) == len(EXPERIMENTS)


@pytest.mark.parametrize(
    ("name", "hint"), [("imune-4", "did you mean 'immune-4'?"), ("weather", "`tidings lab list` shows those there are")]
)
def test_an_unknown_experiment_is_refused_with_a_hint(name: str, hint: str) -> None:
    with pytest.raises(InputError) as refused:
        find([name])
    assert hint in str(refused.value)


@pytest.mark.parametrize(
    ("name", "settings", "says"),
    [
        ("immune-5", {"node_count": "0"}, "node_count of at least 1, got 0"),
        ("immune-5", {"m": "21"}, "m ≤ m0 ≤ node_count, got m=21"),
        ("immune-4", {"interested": "101"}, "interested from 1 to node_count=100, got 101"),
        ("immune-4", {"delta": "-1"}, "delta of at least 0"),
        ("irbr-4a", {"failed_percent": "-1"}, "failed_percent from 0 to below 100, got -1"),
        ("irbr-4a", {"failed_percent": "some"}, "failed_percent to be numbers"),
        ("irbr-4a", {"protocol": "Scrib"}, "protocol to be one of Scribe"),
        ("irbr-4b", {"interested": "1001"}, "interested from 0 to node_count=1000"),
        ("hermes-8", {"groups": "2000"}, "groups from 1 to below node_count=2000"),
        ("hermes-8", {"base": "10"}, "base to be 2, 4, 8 or 16"),
        ("hermes-8", {"base": "sixteen"}, "base to be a whole number, got 'sixteen'"),
        ("hermes-8", {"group": "2"}, "did you mean 'groups'?"),
        ("hermes-8", {"seeds": "0"}, "at least 1 seed"),
        ("immune-5", {"seeds": "1000000"}, "more than 100000"),
    ],
)
def test_impossible_parameters_are_refused_before_anything_runs(name: str, settings: dict[str, str], says: str) -> None:
    with pytest.raises(InputError) as refused:
        experiment(name, **settings).points()
    assert says in str(refused.value)
