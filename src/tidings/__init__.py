"""Tidings: content-based publish/subscribe across organisations."""

from tidings.events import Event, EventType, Required, Timestamp

__version__ = "0.1.0"

__all__ = ["Event", "EventType", "Required", "Timestamp", "__version__"]
