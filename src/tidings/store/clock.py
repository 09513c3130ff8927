"""Whether a clock can be believed: a registry knows moments that are over.

Rights and keys end by the clock. By one that has stepped back, what has expired would hold again, and
a change would be written down before the one it follows. So whoever acts by a clock holds it against
the registry's last change first. A clock that was ahead once, and is right now, is accepted by hand,
and the trail tells so.
"""

from __future__ import annotations

from sqlalchemy import select, update

from tidings.errors import Denied
from tidings.events import Timestamp
from tidings.store import tables
from tidings.store.database import Database

BEHIND_MS_MAX = 3_600_000  # Clocks of machines that share a registry differ; rights are backdated by as much.


class Clock:
    """The time of one registry's last change, to hold clocks against."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def last_change_ms(self) -> int | None:
        """When the registry was last changed, by the clock of who changed it; None if it never was."""
        columns = tables.audit.c
        with self._database.read() as connection:
            return connection.scalar(select(columns.at_ms).order_by(columns.position.desc()).limit(1))

    def check(self, now_ms: int) -> None:
        """Returns unless `now_ms` is more than BEHIND_MS_MAX before the last change; raises Denied then.

        It is the last change that counts, not the latest: clocks that go back by less each time are not noticed.
        """
        last = self.last_change_ms()
        if last is not None and now_ms < last - BEHIND_MS_MAX:
            raise Denied(
                f"clock: it shows {_shown(now_ms)}, and the registry was changed at {_shown(last)}; "
                "set the clock, or accept it if it is right: `tidings registry clock --accept`"
            )

    def accept(self, *, by: str, now_ms: int) -> None:
        """From now on clocks are held against `now_ms`, which the trail keeps as a change of its own."""
        head, last = tables.audit_head, self.last_change_ms()
        with self._database.change(by, now_ms) as change:
            change.execute(update(head).values(position=head.c.position))  # The trail is all that changes.
            change.record("accept clock", "clock", last_change_ms=last)


def _shown(ms: int) -> str:
    return Timestamp(ms * 1000).iso()
