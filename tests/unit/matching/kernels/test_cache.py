"""A server learns that kernels must be compiled before that takes its half minute, and only then."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from numba import int64

from tidings.matching.kernels import cache
from tidings.matching.kernels.cache import Kernel, load_kernels


def test_compiling_is_announced_once_and_loading_never(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fresh.py").write_text("def twice(n):\n    return 2 * n\n")  # A place without compiled kernels.
    found = importlib.util.spec_from_file_location("fresh", tmp_path / "fresh.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    announced: list[str] = []
    for _ in range(2):  # The second is another process, as far as a kernel can tell.
        monkeypatch.setattr(cache, "_KERNELS", [])
        twice = Kernel(module.twice, int64(int64))
        load_kernels(lambda: announced.append("compiling"))
        assert (twice.is_ready, twice(21)) == (True, 42)
    assert announced == ["compiling"]
