"""The organisation's own brokers and clients: who was enrolled under which key; and invitations to enrol.

The organisation renews the certificates and rights of those who are listed here, and of nobody else. An invitation is
a secret that enrols one participant, once; the registry holds only its digest.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import sha256

from sqlalchemy import RowMapping, Select, delete, insert, or_, select, update

from tidings.errors import Denied, InputError, did_you_mean
from tidings.security import fingerprint, from_fingerprint
from tidings.store import tables
from tidings.store.audit import was_done
from tidings.store.database import Change, Database
from tidings.store.tables import checked_name

_table, _invited = tables.participants, tables.invitations


@dataclass(frozen=True, slots=True)
class EnrolledParticipant:
    """A broker or a client of this organisation, and its newest certificate (PEM)."""

    name: str
    role: str
    key: bytes
    certificate: bytes
    address: str = ""
    manager_key: bytes | None = None
    added_ms: int = 0


class Participants:
    """The participants of one registry's organisation."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, one: EnrolledParticipant, *, by: str, now_ms: int) -> bool:
        """Enrols a participant, or notes its new certificate; False if it was there already.

        Raises InputError for the name of another key: remove that one first.
        """
        checked_name(one.name, "a participant's name")
        with self._database.change(by, now_ms) as change:
            known = _find(change, _table.c.name == one.name)
            if known is None:
                _refuse_known_key(change, one)
                _refuse_name_of_domain(change, one.name)
                change.execute(insert(_table).values(_row(one) | {"added_ms": now_ms}))
                change.record("enrol", one.name, role=one.role, key=fingerprint(one.key))
                return True
            if (known.key, known.role) != (one.key, one.role):
                raise InputError(
                    f"{one.name} is enrolled already, as a {known.role} with another key; choose another name, or "
                    f"remove it first: tidings {known.role} remove {one.name}"
                )
            change.execute(update(_table).where(_table.c.name == one.name).values(_row(one)))
            change.record("renew", one.name, role=one.role, key=fingerprint(one.key))
        return False

    def replace_key(self, one: EnrolledParticipant, *, by: str, now_ms: int) -> None:
        """The participant of this name has a new key."""
        with self._database.change(by, now_ms) as change:
            change.execute(update(_table).where(_table.c.name == one.name).values(_row(one)))
            change.record("replace key", one.name, key=fingerprint(one.key))

    def remove(self, name: str, *, by: str, now_ms: int) -> EnrolledParticipant:
        """Removes a participant: nothing of it is renewed any more. Its rights are revoked apart from that.

        The code that it enrolled with is gone, too: who was removed cannot use it again.
        """
        found = self.find(name)
        with self._database.change(by, now_ms) as change:
            change.execute(delete(_invited).where(or_(_invited.c.used_by == found.key, _invited.c.name == found.name)))
            change.execute(delete(_table).where(_table.c.name == found.name))
            change.record("remove participant", found.name, key=fingerprint(found.key))
        return found

    def was_removed(self, name: str) -> bool:
        """Whether there was a participant of this name, and there is none any more."""
        with self._database.read() as connection:
            is_here = connection.execute(select(_table.c.name).where(_table.c.name == name)).first() is not None
            return not is_here and was_done(connection, "remove participant", name)

    def removed(self) -> frozenset[bytes]:
        """The keys of all who were removed and not enrolled again: their certificates count no more."""
        trail = tables.audit.c
        with self._database.read() as connection:
            rows = connection.scalars(select(trail.details).where(trail.action == "remove participant")).all()
        gone = {from_fingerprint(json.loads(details)["key"]) for details in rows}
        return frozenset(gone - {one.key for one in self.all()}) if gone else frozenset()

    def all(self, role: str | None = None) -> list[EnrolledParticipant]:
        """Every participant, by name; optionally those of one role."""
        query: Select[tuple[object, ...]] = select(_table).order_by(_table.c.name)
        with self._database.read() as connection:
            rows = connection.execute(query).mappings().all()
        return [_read(row) for row in rows if role in (None, row["role"])]

    def find(self, name: str) -> EnrolledParticipant:
        """The participant of this name; raises InputError if there is none."""
        known = {one.name: one for one in self.all()}
        if name not in known:
            hint = did_you_mean(name, known) or "`tidings org show` lists them"
            raise InputError(f"this organisation has no broker or client {name[:100]!r}; {hint}")
        return known[name]

    def with_key(self, key: bytes) -> EnrolledParticipant | None:
        return next((one for one in self.all() if one.key == key), None)

    # ── Invitations ──

    def invite(self, secret: bytes, name: str, role: str, *, expires_ms: int, by: str, now_ms: int) -> None:
        """Who shows this secret before it expires is enrolled under this name, once."""
        checked_name(name, "a participant's name")
        if any(one.name == name for one in self.all()):
            raise InputError(f"{name} is enrolled already; choose another name")
        row = {"digest": sha256(secret).digest(), "name": name, "role": role, "expires_ms": expires_ms}
        with self._database.change(by, now_ms) as change:
            change.execute(insert(_invited).values(row))
            change.record("invite", name, role=role, expires_ms=expires_ms)

    def uninvite(self, name: str, role: str, *, by: str, now_ms: int) -> int:
        """Makes the secrets for this name void that nobody has used; how many."""
        unused = (_invited.c.name == name, _invited.c.role == role, _invited.c.used_by.is_(None))
        with self._database.change(by, now_ms) as change:
            count = len(change.connection.execute(select(_invited.c.digest).where(*unused)).all())
            if count:
                change.execute(delete(_invited).where(*unused))
                change.record("uninvite", name, role=role)
        return count

    def redeem(self, secret: bytes, key: bytes, name: str, role: str, *, now_ms: int) -> None:
        """Uses a secret up for this key, name and role; raises Denied for one that is for another, or is not valid.

        Who guesses changes nothing, and a mistake in the name does not cost the code.
        """
        digest = sha256(secret).digest()
        query = select(_invited).where(_invited.c.digest == digest)
        with self._database.read() as connection:
            if connection.execute(query).one_or_none() is None:
                raise Denied("code: it is not valid; `tidings org invite` makes a new one")
        with self._database.change(fingerprint(key), now_ms) as change:
            found = change.connection.execute(query).mappings().one_or_none()
            if found is None or found["used_by"] not in (None, key):
                raise Denied("code: it is not valid, or it has been used; `tidings org invite` makes a new one")
            if (found["name"], found["role"]) != (name, role):
                raise Denied(f"code: it is for the {found['role']} {found['name']}, not for the {role} {name[:64]}")
            if found["used_by"] is None:
                if now_ms >= found["expires_ms"]:
                    raise Denied("code: it has expired; `tidings org invite` makes a new one")
                change.execute(update(_invited).where(_invited.c.digest == digest).values(used_by=key))
                change.record("redeem", found["name"], key=fingerprint(key))


def _find(change: Change, where: object) -> EnrolledParticipant | None:
    row = change.connection.execute(select(_table).where(where)).mappings().one_or_none()  # type: ignore[arg-type]
    return _read(row) if row is not None else None


def _refuse_known_key(change: Change, one: EnrolledParticipant) -> None:
    if (known := _find(change, _table.c.key == one.key)) is not None:
        raise InputError(f"{fingerprint(one.key)} is enrolled already, as {known.name}")


def _refuse_name_of_domain(change: Change, name: str) -> None:
    """Rights are given by name: it must not be possible to mistake a client for an organisation."""
    if change.connection.scalar(select(tables.domains.c.name).where(tables.domains.c.name == name)) is not None:
        raise InputError(f"{name} is the name of an organisation; choose another one")


def _row(one: EnrolledParticipant) -> dict[str, object]:
    return {
        "name": one.name,
        "role": one.role,
        "key": one.key,
        "manager_key": one.manager_key,
        "address": one.address,
        "certificate": one.certificate,
    }


def _read(row: RowMapping) -> EnrolledParticipant:
    return EnrolledParticipant(**row)
