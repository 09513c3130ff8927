"""Kernels: compiled when they are first called, or loaded from the cache on disk.

Loading all of them takes a fifth of a second, and a process that opens a saved index needs
only two.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit
from numba.core.compiler_lock import global_compiler_lock
from numba.core.runtime.nrt import rtsys

_KERNELS: list[Kernel] = []


class Kernel:
    """A function and the one signature that it is compiled for; it runs without the GIL."""

    __slots__ = ("_compiled", "function", "signature")

    def __init__(self, function: Callable[..., Any], signature: Any) -> None:
        self.function, self.signature = function, signature
        self._compiled: Callable[..., Any] | None = None
        _KERNELS.append(self)

    def __call__(self, *arguments: Any) -> Any:
        return self.ready()(*arguments)

    @property
    def is_ready(self) -> bool:
        return self._compiled is not None

    def ready(self) -> Callable[..., Any]:
        """The compiled function itself, for callers that count nanoseconds."""
        if self._compiled is None:
            self._compiled = self._from_disk() or self._compile()
        return self._compiled

    def load(self) -> bool:
        """Takes what an earlier process compiled; False if this process must compile it."""
        self._compiled = self._compiled or self._from_disk()
        return self.is_ready

    def _compile(self) -> Callable[..., Any]:
        compile: Callable[..., Any] = njit(self.signature, cache=True, nogil=True)
        try:
            return compile(self.function)  # type: ignore[no-any-return]
        except AttributeError:  # The cache names a class that an update of the source has renamed.
            stale: Any = njit(cache=True, nogil=True)(self.function)
            stale._cache.flush()
            return compile(self.function)  # type: ignore[no-any-return]

    def _from_disk(self) -> Callable[..., Any] | None:
        """The function as an earlier process compiled it, if one did.

        Left to itself, Numba first loads its compiler, and SciPy with it, which takes ten times as long
        as loading the kernel. A version of Numba in which this cannot be avoided does just that.
        """
        kernel: Any = njit(cache=True, nogil=True)(self.function)
        try:
            with global_compiler_lock:
                rtsys.initialize(kernel.targetctx)
                found = kernel._cache._load_overload(self.signature, kernel.targetctx)
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


def all_kernels() -> tuple[Kernel, ...]:
    """Every kernel that has been made so far."""
    return tuple(_KERNELS)


def load_kernels(before_compiling: Callable[[], object] | None = None) -> None:
    """Makes every kernel ready, for servers that must not stop to compile.

    The very first time takes half a minute of a core; `before_compiling` is called before that.
    """
    missing = [each for each in _KERNELS if not each.load()]
    if missing and before_compiling is not None:
        before_compiling()
    for each in missing:
        each.ready()
