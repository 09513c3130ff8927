"""Logs as JSON lines on stderr: what happened, when, and the few facts that were put there on purpose.

Only the fields that a log call names are written, and none of them is ever a key, a token or an
event's value: whoever logs says which facts, and this file adds none.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

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


def log_to_stderr(level: str = "info") -> None:
    """Have everything that Tidings logs from this level on written to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    root = logging.getLogger("tidings")
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    root.propagate = False
