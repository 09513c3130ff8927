"""Kernels are compiled once, when they are first needed, or all at once before anybody is served."""

from __future__ import annotations

from tidings.matching import compiled


def test_a_kernel_computes_what_its_function_does_and_is_compiled_once() -> None:
    doubled = compiled.Kernel(lambda number: 2 * number, "int64(int64)")
    assert doubled(21) == 42
    assert doubled.ready() is doubled.ready()


def test_all_kernels_are_ready_after_loading() -> None:
    before = compiled.Kernel(lambda number: number + 1, "int64(int64)")
    compiled.load_kernels()
    assert all(each._compiled is not None for each in compiled._MADE)
    assert before(1) == 2
