"""Tidings: content-based publish/subscribe across organisations. What is not listed here may change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidings import errors
from tidings.events import Event, EventType, Required, Timestamp
from tidings.filters import Condition, covers, overlaps, parse

if TYPE_CHECKING:
    from tidings.matching import Index
    from tidings.net import BlockingClient, Client

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
]


def __getattr__(name: str) -> Any:
    # The kernels take about a second to load: who only parses a condition need not wait for them.
    if name == "Index":
        from tidings.matching import Index

        return Index
    # Likewise asyncio, TLS and cryptography, for who does not talk to a broker.
    if name in ("BlockingClient", "Client"):
        from tidings import net

        return getattr(net, name)
    raise AttributeError(f"module 'tidings' has no attribute {name!r}")
