"""Tidings: content-based publish/subscribe across organisations. What is not listed here may change."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidings import errors
    from tidings.events import Event, EventType, Required, Timestamp
    from tidings.filters import Condition, covers, overlaps, parse
    from tidings.matching import Index
    from tidings.net import BlockingClient, Client
    from tidings.pipeline import register

__version__ = "0.2.0.dev0"

__all__ = [
    "BlockingClient",
    "Client",
    "Condition",
    "Event",
    "EventType",
    "Index",
    "Required",
    "Timestamp",
    "__version__",
    "covers",
    "errors",
    "overlaps",
    "parse",
    "register",
]

# Loaded when they are first used: who only parses a condition waits neither for the kernels nor for TLS.
_PACKAGE_OF = {
    **dict.fromkeys(("Event", "EventType", "Required", "Timestamp"), "tidings.events"),
    **dict.fromkeys(("Condition", "covers", "overlaps", "parse"), "tidings.filters"),
    "Index": "tidings.matching",
    **dict.fromkeys(("BlockingClient", "Client"), "tidings.net"),
    "register": "tidings.pipeline",
}


def __getattr__(name: str) -> Any:
    if name == "errors":
        return import_module("tidings.errors")
    if name not in _PACKAGE_OF:
        raise AttributeError(f"module 'tidings' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_PACKAGE_OF[name]), name)
    return found


def __dir__() -> list[str]:
    return __all__
