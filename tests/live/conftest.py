"""What live tests need before the first broker starts."""

from __future__ import annotations

import pytest

from tidings.matching import load_kernels


@pytest.fixture(scope="session", autouse=True)
def kernels_are_compiled() -> None:
    """Brokers load all kernels before they listen: compiled here once, not by a dozen processes at the same time."""
    load_kernels()
