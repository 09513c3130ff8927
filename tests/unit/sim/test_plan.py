"""A plan is written down, read back, replayed and shrunk."""

from __future__ import annotations

import shlex
from pathlib import Path
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidings import overlay
from tidings.errors import InputError
from tidings.overlay import Effect, Guarantee, NodeId, Packet, Protocol
from tidings.overlay.baselines.flooding import Flood, Flooding
from tidings.sim import (
    Crash,
    NetworkSplit,
    SimulationPlan,
    Weather,
    Workload,
    comings_and_goings,
    crashes,
    failure,
    loss_and_repeats,
    run,
    shrunk,
    slow_nodes,
    split_and_heal,
)
from tidings.sim.__main__ import main

seeds = st.integers(0, 10**6)
faults = st.one_of(
    seeds.map(loss_and_repeats),
    seeds.map(lambda seed: crashes(seed, 24)),
    seeds.map(lambda seed: split_and_heal(seed, 24)),
    seeds.map(lambda seed: comings_and_goings(seed, 24)),
    seeds.map(lambda seed: slow_nodes(seed, 24)),
)
plans = st.builds(
    SimulationPlan,
    st.just("flooding"),
    seeds,
    faults=faults,
    weather=st.builds(Weather, loss=st.floats(0, 1)),
    settled=st.booleans(),
)


class Forgetful(Flooding):
    """Floods, but never to its first neighbour: a protocol with a bug."""

    def receive(self, sender: NodeId, message: Flood, now: float) -> list[Effect]:
        return [e for e in super().receive(sender, message, now) if getattr(e, "to", "") != min(self.neighbours)]

    def publish(self, packet: Packet, now: float) -> list[Effect]:
        return [e for e in super().publish(packet, now) if getattr(e, "to", "") != min(self.neighbours)]


@pytest.fixture
def buggy(monkeypatch: pytest.MonkeyPatch) -> str:
    found = Protocol("forgetful", Forgetful.build, Flood, frozenset({Guarantee.REACHES_ALL}), on_graph=True)
    real = overlay.protocol
    for place in ("tidings.sim.plan.protocol", "tidings.sim.world.protocol"):
        monkeypatch.setattr(place, lambda name: found if name == "forgetful" else real(name))
    return "forgetful"


@given(plans)
def test_a_plan_reads_back_as_it_was_written(plan: SimulationPlan) -> None:
    assert SimulationPlan.read(plan.written()) == plan


@given(plans)
def test_the_command_of_a_plan_holds_the_whole_plan(plan: SimulationPlan) -> None:
    *command, written = shlex.split(plan.command())
    assert command == ["python", "-m", "tidings.sim", "replay"]
    assert SimulationPlan.read(written) == plan


@given(seeds)
def test_faults_are_in_order_and_about_nodes_there_are(seed: int) -> None:
    for each in (crashes(seed, 24), comings_and_goings(seed, 24)):
        assert [fault.at for fault in each] == sorted(fault.at for fault in each)
        assert all(0 <= getattr(fault, "node", 0) < 24 for fault in each)


@pytest.mark.parametrize("text", ["", "[]", '{"protocol": 3}', '{"protocol":"flooding","colour":"red"}', '{"seed": 1}'])
def test_what_is_no_plan_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="expected a plan"):
        SimulationPlan.read(text)


def test_a_protocol_with_a_bug_fails_and_says_how_to_see_it_again(buggy: str) -> None:
    failed = failure(SimulationPlan(buggy, seed=1))
    assert failed is not None
    assert "did not reach subscription" in str(failed)
    assert """python -m tidings.sim replay '{"protocol":"forgetful","seed":1}'""" in str(failed)


def test_a_failing_plan_is_shrunk_to_what_matters(buggy: str) -> None:
    big = SimulationPlan(buggy, seed=3, faults=slow_nodes(3, 24), workload=Workload(events=40))
    small = shrunk(big)
    assert failure(small) is not None
    assert small.faults == ()
    assert small.node_count <= 6
    assert small.workload.subscriptions <= 2
    assert small.workload.events < 40


def test_shrinking_keeps_the_one_fault_that_matters() -> None:
    many = (*crashes(1, 24), NetworkSplit(3.0, until=9.0, side=(1, 2)), *slow_nodes(1, 24))
    plan = SimulationPlan("flooding", faults=many)
    small = shrunk(plan, fails=lambda tried: any(isinstance(fault, NetworkSplit) for fault in tried.faults))
    assert small.faults == (NetworkSplit(3.0, until=9.0, side=(1, 2)),)


def test_shrinking_ends_however_many_faults_there_are() -> None:
    asked = []
    rng = Random(1)

    def sometimes(plan: SimulationPlan) -> bool:
        asked.append(plan)
        return rng.random() < 0.5

    shrunk(SimulationPlan("flooding", faults=tuple(Crash(float(i), i) for i in range(500))), sometimes)
    assert len(asked) <= 200


def test_replaying_a_plan_that_holds_prints_its_digest(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    plan = SimulationPlan("flooding", seed=5)
    (tmp_path / "plan.json").write_text(plan.written())
    assert main(["replay", plan.written()]) == 0
    assert capsys.readouterr().out.strip() == run(plan).trace.digest()
    assert main(["replay", str(tmp_path / "plan.json"), "--show"]) == 0
    assert "publish" in capsys.readouterr().out
    assert main(["shrink", plan.written()]) == 0
    assert "nothing to shrink" in capsys.readouterr().err


def test_replaying_a_plan_that_fails_says_so(buggy: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", SimulationPlan(buggy, seed=1).written()]) == 1
    assert "did not reach" in capsys.readouterr().err
    assert main(["shrink", SimulationPlan(buggy, seed=1).written()]) == 1
    shorter = SimulationPlan.read(capsys.readouterr().out)
    assert shorter.node_count < 24


@pytest.mark.parametrize(
    "text", ['{"protocol":"floding"}', "{", "no-such-file.json", '{"protocol":"flooding","node_count":0}']
)
def test_bad_input_is_a_message_and_not_a_stack_trace(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", text]) == 2
    assert capsys.readouterr().err


def test_a_plan_says_only_what_differs_from_the_usual() -> None:
    assert msgspec.json.decode(SimulationPlan("flooding").written()) == {"protocol": "flooding"}
