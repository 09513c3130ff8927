"""Kernels that are compiled when they are first called, or taken from the cache on disk.

Taking all of them takes a fifth of a second, and who opens a saved index needs only two.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit

_MADE: list[Kernel] = []


class Kernel:
    """A function and the one signature that it is compiled for, without the GIL."""

    __slots__ = ("_compiled", "_function", "_signature")

    def __init__(self, function: Callable[..., Any], signature: Any) -> None:
        self._function, self._signature = function, signature
        self._compiled: Callable[..., Any] | None = None
        _MADE.append(self)

    def __call__(self, *arguments: Any) -> Any:
        return self.ready()(*arguments)

    def ready(self) -> Callable[..., Any]:
        """The compiled function itself, for callers that count nanoseconds."""
        if self._compiled is None:
            self._compiled = njit(self._signature, cache=True, nogil=True)(self._function)
        return self._compiled


def kernel(signature: Any) -> Callable[[Callable[..., Any]], Kernel]:
    """Makes a function a kernel with this signature. Kernels call plain Numba functions, not one another."""
    return lambda function: Kernel(function, signature)


def load_kernels() -> None:
    """Have every kernel ready. For who serves others and must not stop to compile: the very first time takes a minute."""
    for each in _MADE:
        each.ready()
