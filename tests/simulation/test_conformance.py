"""Conformance × protocols × faults, each with one seed and always the same; `python -m tests.soak` takes new ones."""

from __future__ import annotations

import functools
import os
import subprocess
import sys

import pytest

from tests import conformance
from tests.conformance import FAULTS, PROTOCOLS, everything
from tidings.sim import SimulationPlan, run

SEED = 1


@pytest.mark.parametrize("faults", FAULTS)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_protocol_keeps_its_guarantees_under(protocol: str, faults: str) -> None:
    conformance.it_keeps_its_guarantees(protocol, SEED, FAULTS[faults](SEED))


@pytest.mark.parametrize(
    "options", [{"mode": "advertise"}, {"forward": "core_tree"}, {"forward": "core_flood"}], ids=str
)
@pytest.mark.parametrize("faults", FAULTS)
def test_immune_keeps_its_guarantees_in_every_mode_under(faults: str, options: dict[str, str]) -> None:
    conformance.it_keeps_its_guarantees("immune", 3, FAULTS[faults](3), **options)


@pytest.mark.parametrize("faults", FAULTS)
def test_irbr_keeps_its_guarantees_on_tapestry_under(faults: str) -> None:
    conformance.it_keeps_its_guarantees("irbr", 3, FAULTS[faults](3), network="tapestry")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_message_fits_through_a_link(protocol: str) -> None:
    conformance.what_it_says_fits_through_a_link(protocol, SEED)


def test_every_message_of_tapestry_fits_through_a_link() -> None:
    conformance.what_it_says_fits_through_a_link("irbr", SEED, network="tapestry")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_subscription_is_completed_and_taken_back(protocol: str) -> None:
    conformance.a_subscription_is_completed_and_taken_back(protocol, SEED)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_same_seed_gives_the_same_run_to_the_last_bit_whatever_the_hash_seed_and_what_ran_before(
    protocol: str,
) -> None:
    assert digests("0", PROTOCOLS)[protocol] == digests("1234", PROTOCOLS[::-1])[protocol]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_another_seed_gives_another_run(protocol: str) -> None:
    one, other = (run(SimulationPlan(protocol, seed=seed, node_count=8)).trace.digest() for seed in (SEED, SEED + 1))
    assert one != other


@functools.cache
def digests(hash_seed: str, protocols: tuple[str, ...]) -> dict[str, str]:
    """What runs of these protocols, one after the other, come to in a process of its own with this hash seed."""
    program = "import sys; from tidings.sim import SimulationPlan, run\nfor p in sys.argv[1:]: print(run(SimulationPlan.read(p)).trace.digest())"
    plans = [SimulationPlan(protocol, seed=SEED, faults=everything(SEED)).written() for protocol in protocols]
    env = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
    said = subprocess.run([sys.executable, "-c", program, *plans], env=env, capture_output=True, text=True, check=True)
    return dict(zip(protocols, said.stdout.split(), strict=True))
