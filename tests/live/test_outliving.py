"""A broker that outlives its machine: whatever happens to its process or its database, nothing is lost or comes twice."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.outliving import outlive
from tests.live.terminals import Terminals
from tests.postgres_server import WHY_SKIPPED, PostgresServer, postgres_server, programs

pytestmark = [pytest.mark.live, pytest.mark.slow]
GUIDE = Path(__file__).resolve().parents[2] / "docs" / "operating" / "high-availability.md"


@pytest.fixture(autouse=True)
def there_is_a_server() -> None:
    if programs() is None and not os.environ.get("CI"):
        pytest.skip(WHY_SKIPPED)


def test_what_was_acknowledged_outlives_a_kill_a_freeze_and_the_primarys_disk(tmp_path: Path) -> None:
    trials = ("kill", "freeze", "promote")
    # A longer lease than by default: nobody is to lose it because the machine is busy.
    outlived = asyncio.run(outlive(tmp_path, events=1500, seconds=5.0, trials=trials, lease_s=5.0))
    assert outlived.wrong() == []
    assert set(outlived.takeovers_s) == {"kill", "freeze"}


@pytest.fixture
def postgres() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


def test_the_guide_to_high_availability_does_what_it_says(tmp_path: Path, postgres: PostgresServer) -> None:
    for block in re.findall(r"^```sql\n(.*?)^```$", GUIDE.read_text(), re.M | re.S):
        for statement in block.split(";\n")[:-1]:
            postgres.run_sql(postgres.url(), statement)
    with Terminals(tmp_path, ports={5432: postgres.port}) as terminals:
        terminals.run(GUIDE)
