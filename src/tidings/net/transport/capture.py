"""Capture: what a broker sends to others, in plain text, to see what leaves an organisation.

    tidings broker run --config broker.toml --capture FOLDER

TLS hides the traffic of a link from everybody, including those responsible for the broker. With this option a broker writes,
for each other broker, the bytes it passes to TLS, from the end of the handshake on, to a file
named by the other's id. They are frames as in `frames`, one after the other. The other end sees
exactly this, so the folder is as confidential as that; a broker captures nothing without the option.
"""

from __future__ import annotations

import asyncio
import logging
import os
from io import FileIO
from pathlib import Path
from typing import Any

from tidings.overlay import NodeId

log = logging.getLogger("tidings.capture")


class Capture:
    """The capture files of one broker."""

    def __init__(self, folder: Path) -> None:
        """Creates the folder, readable by its owner alone."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._folder = folder
        self._files: dict[NodeId, FileIO] = {}
        self._has_failed = False
        log.warning("capturing what is sent to other brokers", extra={"folder": str(folder)})

    def tapped(self, writer: asyncio.StreamWriter, peer: NodeId) -> Any:
        """A writer that captures what is sent to this peer before it is sent."""
        return _Tapped(writer, self, peer)

    def note(self, peer: NodeId, sent: bytes) -> None:
        """Writes at once, so that a killed broker has captured what it sent. Ends, with a log line, where the disk refuses."""
        if self._has_failed:
            return
        try:
            if peer not in self._files:
                self._files[peer] = open(_opened(self._folder, peer), "ab", buffering=0)  # noqa: SIM115 - kept open
            self._files[peer].write(sent)
        except OSError as wrong:
            self._has_failed = True
            log.error("the capture has stopped: %s", wrong, extra={"peer": peer})


def file_for(folder: Path, peer: NodeId) -> Path:
    """The file with what is sent to a broker."""
    return folder / f"to-{peer}.frames"


def _opened(folder: Path, peer: NodeId) -> int:
    return os.open(file_for(folder, peer), os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)


class _Tapped:
    """A stream writer whose output is captured."""

    def __init__(self, writer: asyncio.StreamWriter, capture: Capture, peer: NodeId) -> None:
        self._writer, self._capture, self._peer = writer, capture, peer

    def write(self, data: bytes) -> None:
        self._capture.note(self._peer, data)
        self._writer.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)
