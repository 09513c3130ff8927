"""The audit log: a line for each action, by whom, and what came of it; never an event's values."""

from __future__ import annotations

import json
import logging
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path

log = logging.getLogger("tidings.console")
FIELD_CHARACTERS_MAX = 300

OPERATOR = "operator"
"""Whoever has the login key."""
ACTOR: ContextVar[str] = ContextVar("actor", default="")
"""The user whose request is answered; empty before anybody has logged in."""


class AuditLog:
    """Writes actions as JSON lines: to a file if there is one, and always to the program's log."""

    def __init__(self, file: Path | None) -> None:
        self._file = file

    def record(self, action: str, client: str, **facts: str) -> None:
        """Appends one line. An action whose line cannot be written raises OSError, so do it first."""
        about = {"user": ACTOR.get(), **facts}
        shown = {name: value[:FIELD_CHARACTERS_MAX] for name, value in about.items()}
        log.info(action, extra={"client": client, **shown})
        if self._file is not None:
            at = datetime.now(UTC).isoformat(timespec="milliseconds")
            line = json.dumps({"at": at, "action": action, "client": client, **shown})
            with self._file.open("a", encoding="utf-8") as stream:
                stream.write(line + "\n")
