"""The audit trail: a hash chain with one entry for every change. And the registry's clock check, which relies on it.

Whoever alters or removes an entry breaks every hash after it. Whoever truncates the trail leaves an intact, shorter
chain. So store the last hash elsewhere from time to time, and pass it to `verify`. The database itself refuses
to update or delete entries; the hashes protect against an administrator who can turn that off.

    hash = SHA-256("tidings/audit/1" 00 ‖ previous hash ‖ JSON [position, at_ms, actor, action, subject, details])

The JSON is ASCII without spaces, and so is `details`, which is a string in it. The first entry follows 32 zero bytes.

Rights and keys expire by the clock. With a clock that was set back, expired rights would be valid again, and a change
would be dated before the one that it follows. So whoever acts by a clock compares it with the registry's last change
first. If the clock of the last change was ahead, and this one is right, an operator accepts it, and the trail records
that.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, insert, select, update

from tidings.errors import Denied
from tidings.events import Timestamp
from tidings.store import tables
from tidings.store.migrations import GENESIS_HASH

if TYPE_CHECKING:
    from tidings.store.database import Database

ENTRIES_AT_ONCE = 1000  # Read in batches, so that verifying a long trail needs little memory.
BEHIND_MS_MAX = 3_600_000  # Clocks of machines that share a registry differ; rights are backdated by as much.


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One change: when, by whom, what was done, and to what."""

    position: int
    at_ms: int
    actor: str
    action: str
    subject: str
    details: str
    hash: bytes

    def follows(self, previous: bytes) -> bool:
        """Whether this entry is unaltered and follows the one with the hash `previous`."""
        fields = (self.position, self.at_ms, self.actor, self.action, self.subject, self.details)
        return self.hash == _hash(previous, *fields)


@dataclass(frozen=True, slots=True)
class AuditHead:
    """The head of the trail: the last entry's position and hash."""

    position: int
    hash: bytes


class Audit:
    """Reads the trail. Entries are written by `Database.change`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def entries(self, after: int = 0) -> Iterator[AuditEntry]:
        """All entries after a position, oldest first."""
        with self._database.read() as connection:
            yield from _entries(connection, after)

    def head(self) -> AuditHead:
        with self._database.read() as connection:
            return read_audit_head(connection)

    def verify(self, noted: AuditHead | None = None) -> AuditHead:
        """The head of the trail, if the chain is intact; raises Denied that names the first broken entry.

        `noted` is an earlier head that was stored elsewhere. With it, a trail that was truncated before that is
        detected, too.
        """
        with self._database.read() as connection:  # One snapshot, so that head and entries are consistent.
            head, last = read_audit_head(connection), AuditHead(0, GENESIS_HASH)
            met = noted in (None, last)
            for entry in _entries(connection):
                last = _next(last, entry)
                met = met or last == noted
        if last != head:
            raise Denied(f"audit: the trail ends at entry {last.position}, but should end at {head.position}")
        if noted is not None and not met:
            raise Denied(f"audit: the trail does not contain entry {noted.position} as it was noted")
        return head


class RegistryClock:
    """Compares a machine's clock with the registry's last change."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def last_change_ms(self) -> int | None:
        """The time of the last change, by the clock of whoever made it; None if there was none."""
        columns = tables.audit.c
        with self._database.read() as connection:
            return connection.scalar(select(columns.at_ms).order_by(columns.position.desc()).limit(1))

    def check(self, now_ms: int) -> None:
        """Raises Denied if `now_ms` is more than BEHIND_MS_MAX before the last change.

        The last change counts, not the one with the latest time: a clock that is set back in small steps is not
        detected.
        """
        last = self.last_change_ms()
        if last is not None and now_ms < last - BEHIND_MS_MAX:
            raise Denied(
                f"clock: it shows {_iso(now_ms)}, but the registry was changed at {_iso(last)}; "
                "set the clock, or accept it if it is right: `tidings registry clock --accept`"
            )

    def accept(self, *, by: str, now_ms: int) -> None:
        """From now on clocks are compared with `now_ms`; the trail records this as a change."""
        head, last = tables.audit_head, self.last_change_ms()
        with self._database.change(by, now_ms) as change:
            change.execute(update(head).values(position=head.c.position))  # Changes nothing but the trail.
            change.record("accept clock", "clock", last_change_ms=last)


def _entries(connection: Connection, after: int = 0) -> Iterator[AuditEntry]:
    query = select(tables.audit).where(tables.audit.c.position > after).order_by(tables.audit.c.position)
    for row in connection.execute(query, execution_options={"yield_per": ENTRIES_AT_ONCE}):
        yield AuditEntry(**row._mapping)


def _next(last: AuditHead, entry: AuditEntry) -> AuditHead:
    if entry.position != last.position + 1 or not entry.follows(last.hash):
        raise Denied(f"audit: the trail is broken at entry {last.position + 1}")
    return AuditHead(entry.position, entry.hash)


def read_audit_head(connection: Connection, *, lock: bool = False) -> AuditHead:
    """The head of the trail; with `lock`, nobody else writes until this transaction ends."""
    query = select(tables.audit_head.c.position, tables.audit_head.c.hash)
    return AuditHead(*connection.execute(query.with_for_update() if lock else query).one())


def was_done(connection: Connection, action: str, subject: str) -> bool:
    """Whether this was done before: what tells a repeated command from a mistaken name."""
    entries = tables.audit.c
    query = select(entries.position).where(entries.action == action, entries.subject == subject).limit(1)
    return connection.execute(query).first() is not None


def add_entry(
    connection: Connection,
    head: AuditHead,
    at_ms: int,
    actor: str,
    action: str,
    subject: str,
    details: Mapping[str, Any],
) -> None:
    """Appends an entry after `head`, which this transaction has locked."""
    fields = (head.position + 1, at_ms, actor, action, subject, _json(details))
    digest = _hash(head.hash, *fields)
    names = ("position", "at_ms", "actor", "action", "subject", "details")
    connection.execute(insert(tables.audit).values(dict(zip(names, fields, strict=True)) | {"hash": digest}))
    connection.execute(update(tables.audit_head).values(position=head.position + 1, hash=digest))


def _hash(previous: bytes, *fields: int | str) -> bytes:
    return sha256(b"tidings/audit/1\0" + previous + _json(fields).encode()).digest()


def _iso(ms: int) -> str:
    return Timestamp(ms * 1000).iso()


def _json(content: object) -> str:
    return json.dumps(content, separators=(",", ":"), sort_keys=True)
