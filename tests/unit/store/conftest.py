"""Every test of the registry runs on both databases: SQLite in a file, and a real PostgreSQL where there is one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.postgres_server import WHY_SKIPPED, PostgresServer, postgres_server, programs
from tests.unit.security.london import NOW_MS
from tidings.store import Registry


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    if programs() is None:
        pytest.skip(WHY_SKIPPED)
    pytest.importorskip("psycopg", reason="no PostgreSQL driver here: pip install 'tidings[postgres]'")
    with postgres_server() as server:
        yield server


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.live)])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a registry may be made: a file that is not there yet, or an empty schema."""
    if request.param == "sqlite":
        return str(tmp_path / "tidings.db")
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.new_schema()


@pytest.fixture
def registry(address: str) -> Iterator[Registry]:
    with Registry.open(address, now_ms=NOW_MS) as opened:
        yield opened
