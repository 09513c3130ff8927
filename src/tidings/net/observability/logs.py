"""Logs as JSON lines on stderr: what happened, when, and the few facts that were put there on purpose.

Only the fields that a log call names are written, and none of them is ever a key, a token or an
event's value: whoever logs says which facts, and this file adds none.

Much of what is logged is what others do, as often as they like. So of each kind of line a few hundred are written at
once and then a few each second; the next one says how many were left out.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

BURST, PER_S = 200.0, 5.0  # Lines of one kind: some megabytes an hour, whatever others do.
KINDS_MAX = 1024  # That are counted; there are about a hundred.
_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


class JsonLines(logging.Formatter):
    """One JSON object on one line."""

    def format(self, record: logging.LogRecord) -> str:
        row: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "from": record.name,
            "what": record.getMessage(),
        }
        row |= {name: value for name, value in vars(record).items() if name not in _OWN}
        if record.exc_info:
            row["error"] = self.formatException(record.exc_info)
        return json.dumps(row, default=str)


class Sparingly(logging.Filter):
    """Leaves out lines of a kind that comes too often. A kind is what a call logs, whatever the facts beside it."""

    def __init__(self) -> None:
        super().__init__()
        self._kinds: dict[tuple[str, str], tuple[float, float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        kind = record.name, str(record.msg)[:200]
        if kind not in self._kinds and len(self._kinds) >= KINDS_MAX:
            self._kinds.clear()
        left, at, left_out = self._kinds.get(kind, (BURST, record.created, 0))
        left = min(BURST, left + PER_S * max(0.0, record.created - at))
        if left < 1.0:
            self._kinds[kind] = left, record.created, left_out + 1
            return False
        self._kinds[kind] = left - 1.0, record.created, 0
        if left_out:
            record.left_out = left_out
        return True


def log_to_stderr(level: str = "info") -> None:
    """Have everything that Tidings logs from this level on written to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    handler.addFilter(Sparingly())
    root = logging.getLogger("tidings")
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    root.propagate = False
