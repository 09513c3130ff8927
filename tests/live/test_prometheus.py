"""The alert rules of deploy/, checked by Prometheus' own tool."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.live

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "tidings.rules.yml"


@pytest.fixture(scope="module", autouse=True)
def has_prometheus() -> None:
    if shutil.which("prometheus") is None or shutil.which("promtool") is None:
        assert "CI" not in os.environ, "CI installs prometheus; it must not be skipped there"
        pytest.skip("there is no prometheus here: apt-get install prometheus")


def test_the_rules_and_the_configuration_are_valid() -> None:
    subprocess.run(["promtool", "check", "rules", RULES], check=True, capture_output=True)
    subprocess.run(["promtool", "check", "config", DEPLOY / "prometheus" / "prometheus.yml"], check=True)


def test_the_chart_has_the_same_rules() -> None:
    assert (DEPLOY / "helm" / "tidings-broker" / "tidings.rules.yml").read_bytes() == RULES.read_bytes()
