"""Kernels are compiled once, when they are first needed, or all at once before anybody is served."""

from __future__ import annotations

import subprocess
import sys
from textwrap import dedent

import numpy as np
import pytest

from tidings.matching.kernels import cache, cells, match_one


def test_a_kernel_computes_what_its_function_does_and_is_compiled_once() -> None:
    doubled = cache.Kernel(lambda number: 2 * number, "int64(int64)")
    assert doubled(21) == 42
    assert doubled.ready() is doubled.ready()


def test_all_kernels_are_ready_after_loading() -> None:
    before = cache.Kernel(lambda number: number + 1, "int64(int64)")
    cache.load_kernels()
    assert all(each.is_ready for each in cache.all_kernels())
    assert before(1) == 2


def test_a_kernel_from_disk_comes_without_what_it_was_compiled_with() -> None:
    match_one.match_one.ready()
    program = """
        import sys
        from tidings.matching.kernels.match_one import match_one
        match_one.ready()
        print([name for name in ("scipy.linalg", "numba.np.arraymath") if name in sys.modules])
    """
    done = subprocess.run([sys.executable, "-c", dedent(program)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_where_numba_lets_nothing_be_left_out_it_does_all_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "rtsys", None)
    filled = cache.Kernel(cells.fill_table.function, cells.fill_table.signature)
    slots = np.empty(3, np.int32)
    filled(np.array([5, 9]), 5, 2, slots)
    assert slots.tolist() == [0, 1, 2]
