"""The audit trail: one entry for every change, each bound to the one before by a hash.

Whoever alters or removes an entry breaks every hash after it. Whoever cuts off the end leaves
an unbroken shorter trail, so note the last hash somewhere else now and then, and give it to
`verify`. The database itself refuses to update or delete entries; the hashes are for the
administrator who can switch that off.

    hash = SHA-256("tidings/audit/1" 00 ‖ previous hash ‖ JSON [position, at_ms, actor, action, subject, details])

The JSON is ASCII without spaces; `details` is itself such a text. Before the first entry stand 32 zero bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, insert, select, update

from tidings.errors import Denied
from tidings.store import tables
from tidings.store.migrations import NOTHING_BEFORE

if TYPE_CHECKING:
    from tidings.store.database import Database

ENTRIES_AT_ONCE = 1000  # Read in runs, so that checking a long trail needs little memory.


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One change: when, by whom, what, to what."""

    position: int
    at_ms: int
    actor: str
    action: str
    subject: str
    details: str
    hash: bytes

    def follows(self, previous: bytes) -> bool:
        """Whether this entry is as it was written, right after the one with the hash `previous`."""
        fields = (self.position, self.at_ms, self.actor, self.action, self.subject, self.details)
        return self.hash == _hash(previous, *fields)


@dataclass(frozen=True, slots=True)
class Head:
    """Where the trail ends: the last entry's position and hash."""

    position: int
    hash: bytes


class Audit:
    """The trail, for reading. Entries are written by changes, not from here."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def entries(self, after: int = 0) -> Iterator[AuditEntry]:
        """All entries after a position, oldest first."""
        with self._database.read() as connection:
            yield from _entries(connection, after)

    def head(self) -> Head:
        with self._database.read() as connection:
            return read_head(connection)

    def verify(self, noted: Head | None = None) -> Head:
        """Where the trail ends, if it is unbroken; raises Denied naming the first entry that is not as written.

        `noted` is a head from earlier, kept elsewhere: with it, a trail cut off before that is noticed too.
        """
        with self._database.read() as connection:  # One snapshot, so that head and entries belong together.
            head, last = read_head(connection), Head(0, NOTHING_BEFORE)
            met = noted in (None, last)
            for entry in _entries(connection):
                last = _next(last, entry)
                met = met or last == noted
        if last != head:
            raise Denied(f"audit: the trail ends at entry {last.position}, and should at {head.position}")
        if noted is not None and not met:
            raise Denied(f"audit: the trail does not go through entry {noted.position} as it was noted")
        return head


def _entries(connection: Connection, after: int = 0) -> Iterator[AuditEntry]:
    query = select(tables.audit).where(tables.audit.c.position > after).order_by(tables.audit.c.position)
    for row in connection.execute(query, execution_options={"yield_per": ENTRIES_AT_ONCE}):
        yield AuditEntry(**row._mapping)


def _next(last: Head, entry: AuditEntry) -> Head:
    if entry.position != last.position + 1 or not entry.follows(last.hash):
        raise Denied(f"audit: the trail is broken at entry {last.position + 1}")
    return Head(entry.position, entry.hash)


def read_head(connection: Connection, *, lock: bool = False) -> Head:
    """Where the trail ends; with `lock`, nobody else writes until this transaction is over."""
    query = select(tables.audit_head.c.position, tables.audit_head.c.hash)
    return Head(*connection.execute(query.with_for_update() if lock else query).one())


def add_entry(
    connection: Connection, head: Head, at_ms: int, actor: str, action: str, subject: str, details: Mapping[str, Any]
) -> None:
    """The next entry after `head`, which this transaction has locked."""
    fields = (head.position + 1, at_ms, actor, action, subject, _json(details))
    digest = _hash(head.hash, *fields)
    names = ("position", "at_ms", "actor", "action", "subject", "details")
    connection.execute(insert(tables.audit).values(dict(zip(names, fields, strict=True)) | {"hash": digest}))
    connection.execute(update(tables.audit_head).values(position=head.position + 1, hash=digest))


def _hash(previous: bytes, *fields: int | str) -> bytes:
    return sha256(b"tidings/audit/1\0" + previous + _json(fields).encode()).digest()


def _json(content: object) -> str:
    return json.dumps(content, separators=(",", ":"), sort_keys=True)
