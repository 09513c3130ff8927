"""The online test of rights, live: who manages a type's keys says which rights hold, and all brokers pass it on.

    every ANSWER_EVERY_S   a broker with `acs` reads its file and signs the names in it, with each key in `manages`
    received               newer than the last of its key, and genuine → put in force here, sent to all other links
    a link is ready        the last list of each key

Only the owners and key managers of known types are listened to, so there are no more lists than types. Nothing needs to
be said for a right to end: without a recent list it does not hold.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from tidings.errors import InputError, PeerError
from tidings.net.broker.periodic import BackgroundTasks
from tidings.net.clock import now_ms
from tidings.net.transport.connection import Link
from tidings.net.transport.frames import OnlineAnswers
from tidings.net.transport.peer_links import PeerLinks
from tidings.security import Identity, OnlineAnswer, read_answer, sign_answer, verify_answer

ANSWER_EVERY_S = 2.0  # A right can end within its token's time and this.
AHEAD_MS_MAX = 60_000  # Clocks differ.
FILE_BYTES_MAX = 256 * 1024

log = logging.getLogger("tidings.broker")


class OnlineSync:
    """One broker's part in online tests."""

    def __init__(
        self,
        links: PeerLinks,
        tasks: BackgroundTasks,
        file: Path | None,
        services: Sequence[Identity],
        *,
        heard: Callable[[], Collection[bytes]],
        confirm: Callable[[Sequence[str], int], None],
    ) -> None:
        """`heard` are the keys whose answers count here; `confirm` gets tests that were answered with yes, and when."""
        self._links, self._tasks, self._file, self._services = links, tasks, file, services
        self._heard, self._confirm = heard, confirm
        self._last: dict[bytes, tuple[OnlineAnswer, bytes]] = {}

    def start(self) -> None:
        if self._file is not None:
            self._tasks.start(self._answer_regularly(self._file))

    def link_ready(self, link: Link) -> None:
        if self._last:
            link.send(OnlineAnswers(tuple(raw for _, raw in self._last.values())))

    def receive(self, link: Link, frame: OnlineAnswers) -> None:
        """Lists from another broker; raises PeerError for one that its key has not signed."""
        fresh = [raw for raw in frame.answers if self._take(raw)]
        self._spread(fresh, link)

    def _take(self, raw: bytes) -> bool:
        answer, now = read_answer(raw), now_ms()
        known = self._last.get(answer.key)
        if (known is not None and answer.at_ms <= known[0].at_ms) or answer.at_ms > now + AHEAD_MS_MAX:
            return False
        if answer.key not in self._heard():
            return False
        verify_answer(answer)
        self._last[answer.key] = answer, raw
        self._confirm(answer.urls(), min(answer.at_ms, now))
        return True

    def _spread(self, answers: Sequence[bytes], but: Link | None) -> None:
        for link in self._links.ready_links() if answers else ():
            if link is not but:
                link.send(OnlineAnswers(tuple(answers)))

    async def _answer_regularly(self, file: Path) -> None:
        told = ""
        while True:
            try:
                signed = [sign_answer(each, read_names(file), now_ms()) for each in self._services]
                self._spread([raw for raw in signed if self._take(raw)], None)
                told = ""
            except (OSError, InputError, PeerError) as wrong:  # No answer: the rights end in their time.
                if told != (told := str(wrong)):
                    log.error("online tests are not answered", extra={"why": told})
            await asyncio.sleep(ANSWER_EVERY_S)


def read_names(file: Path) -> list[str]:
    """The names of the rights that hold, one to a line; raises InputError for a file that is too long or no text."""
    with file.open("rb") as stream:
        raw = stream.read(FILE_BYTES_MAX + 1)
    if len(raw) > FILE_BYTES_MAX:
        raise InputError(f"{file}: more than {FILE_BYTES_MAX} bytes")
    try:
        lines = [line.partition("#")[0].strip() for line in raw.decode().splitlines()]
    except UnicodeDecodeError:
        raise InputError(f"{file}: expected names of rights, one to a line, in UTF-8") from None
    return [line for line in lines if line]
