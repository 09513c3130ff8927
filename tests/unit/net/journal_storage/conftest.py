"""One PostgreSQL server for all tests of this folder."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.postgres_server import WHY_SKIPPED, PostgresServer, postgres_server, programs


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    if programs() is None and not os.environ.get("CI"):
        pytest.skip(WHY_SKIPPED)
    with postgres_server() as server:
        yield server
