"""Kernels that are compiled when they are first called, or taken from the cache on disk.

Taking all of them takes a fifth of a second, and who opens a saved index needs only two.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit
from numba.core.compiler_lock import global_compiler_lock
from numba.core.runtime.nrt import rtsys

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
            self._compiled = self._from_disk() or self._compile()
        return self._compiled

    def _compile(self) -> Callable[..., Any]:
        return njit(self._signature, cache=True, nogil=True)(self._function)  # type: ignore[no-any-return]

    def _from_disk(self) -> Callable[..., Any] | None:
        """What an earlier process has compiled, if there is any.

        Numba would first load all that it could compile with, and SciPy for it, which takes ten times
        as long as the kernel itself. A version of Numba in which this cannot be left out does just that.
        """
        kernel: Any = njit(cache=True, nogil=True)(self._function)
        try:
            with global_compiler_lock:
                rtsys.initialize(kernel.targetctx)
                found = kernel._cache._load_overload(self._signature, kernel.targetctx)
                if found is None:
                    return None
                kernel.add_overload(found)
        except (AttributeError, TypeError):
            return None
        kernel.disable_compile()
        return kernel  # type: ignore[no-any-return]


def kernel(signature: Any) -> Callable[[Callable[..., Any]], Kernel]:
    """Makes a function a kernel with this signature. Kernels call plain Numba functions, not one another."""
    return lambda function: Kernel(function, signature)


def load_kernels() -> None:
    """Have every kernel ready. For who serves others and must not stop to compile: the very first time takes a minute."""
    for each in _MADE:
        each.ready()
