"""Conformance × protocols × seeds × faults. Always the same seeds; `python -m tests.soak` takes new ones."""

from __future__ import annotations

import functools
import os
import subprocess
import sys

import pytest

from tests import conformance
from tests.conformance import FAULTS, PROTOCOLS, everything
from tidings.sim import Plan

SEEDS = (1, 2)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("faults", FAULTS)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_protocol_keeps_its_promises_under(protocol: str, faults: str, seed: int) -> None:
    conformance.it_keeps_its_promises(protocol, seed, FAULTS[faults](seed))


@pytest.mark.parametrize(
    "options", [{"mode": "advertise"}, {"forward": "core_tree"}, {"forward": "core_flood"}], ids=str
)
@pytest.mark.parametrize("faults", FAULTS)
def test_immune_keeps_its_promises_in_every_mode_under(faults: str, options: dict[str, str]) -> None:
    conformance.it_keeps_its_promises("immune", 3, FAULTS[faults](3), **options)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_message_fits_through_a_link(protocol: str) -> None:
    conformance.what_it_says_fits_through_a_link(protocol, seed=1)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_subscription_is_completed_and_taken_back(protocol: str) -> None:
    conformance.a_subscription_is_completed_and_taken_back(protocol, seed=1)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_same_seed_gives_the_same_run(protocol: str) -> None:
    conformance.the_same_seed_gives_the_same_run(protocol, seed=1)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_run_is_the_same_whatever_the_hash_seed(protocol: str) -> None:
    assert digests("0")[protocol] == digests("1234")[protocol]


@functools.cache
def digests(hash_seed: str) -> dict[str, str]:
    """What the same run of each protocol comes to, in a process of its own with this hash seed."""
    program = (
        "import sys; from tidings.sim import Plan, run\nfor p in sys.argv[1:]: print(run(Plan.read(p)).trace.digest())"
    )
    plans = [Plan(protocol, seed=4, faults=everything(4)).written() for protocol in PROTOCOLS]
    env = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
    said = subprocess.run([sys.executable, "-c", program, *plans], env=env, capture_output=True, text=True, check=True)
    return dict(zip(PROTOCOLS, said.stdout.split(), strict=True))
