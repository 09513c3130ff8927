"""Roles: named sets of rights, and who has them.

A role by itself admits nobody. `Issuer.apply_roles` makes tokens of it: one for each right of each member. When the role
changes it issues what is new and revokes what is gone, so a role's members always have exactly its rights.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass

from sqlalchemy import delete, func, insert, select

from tidings.errors import InputError, did_you_mean
from tidings.security import fingerprint
from tidings.store import tables
from tidings.store.audit import was_done
from tidings.store.database import Change, Database
from tidings.store.tables import checked_name
from tidings.store.types import type_with_id

_roles, _rights, _members = tables.roles, tables.role_rights, tables.role_members


@dataclass(frozen=True, slots=True)
class RightTerms:
    """A right without its holder and its dates; attributes by name, None for all of them."""

    type_id: bytes
    actions: tuple[str, ...]
    attributes: tuple[str, ...] | None = None
    where: tuple[str, ...] = ()
    depth: int = 0


@dataclass(frozen=True, slots=True)
class Role:
    """A named set of rights, and the keys that have it."""

    name: str
    rights: tuple[RightTerms, ...]
    members: tuple[bytes, ...]


class RoleStore:
    """The roles of one registry."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def create(self, name: str, *, by: str, now_ms: int) -> bool:
        """Creates a role without rights or members; False if there is one of this name."""
        checked_name(name, "a role's name")
        with self._database.change(by, now_ms) as change:
            if change.connection.scalar(select(_roles.c.name).where(_roles.c.name == name)) is not None:
                return False
            change.execute(insert(_roles).values(name=name, added_ms=now_ms))
            change.record("create role", name)
        return True

    def delete(self, name: str, *, by: str, now_ms: int) -> bool:
        """Deletes a role; `Issuer.apply_roles` then revokes what was issued for it. False if it was deleted before."""
        with self._database.change(by, now_ms) as change:
            is_here = change.connection.scalar(select(_roles.c.name).where(_roles.c.name == name)) is not None
            if not is_here and was_done(change.connection, "delete role", name):
                return False
            _check_exists(change, name)
            for table in (_rights, _members):
                change.execute(delete(table).where(table.c.role == name))
            change.execute(delete(_roles).where(_roles.c.name == name))
            change.record("delete role", name)
        return True

    def allow(self, name: str, terms: RightTerms, *, by: str, now_ms: int) -> bool:
        """Adds a right to a role; False if it has it."""
        with self._database.change(by, now_ms) as change:
            _check_exists(change, name)
            type_with_id(change.connection, terms.type_id)
            if terms in _rights_of(change, name).values():
                return False
            last = change.connection.scalar(select(func.max(_rights.c.number)).where(_rights.c.role == name))
            row = {"role": name, "number": (last or 0) + 1, "type_id": terms.type_id, "terms": _text(terms)}
            change.execute(insert(_rights).values(row))
            change.record("allow", name, type_id=terms.type_id.hex(), terms=_text(terms))
        return True

    def disallow(self, name: str, type_id: bytes, action: str | None = None, *, by: str, now_ms: int) -> int:
        """Takes a role's rights to a type away, or only those to one action; how many it were."""
        with self._database.change(by, now_ms) as change:
            _check_exists(change, name)
            gone = [
                number
                for number, terms in _rights_of(change, name).items()
                if terms.type_id == type_id and (action is None or action in terms.actions)
            ]
            for number in gone:
                change.execute(delete(_rights).where((_rights.c.role == name) & (_rights.c.number == number)))
            if gone:
                change.record("disallow", name, type_id=type_id.hex(), rights=len(gone))
        return len(gone)

    def assign(self, name: str, holder: bytes, *, by: str, now_ms: int) -> bool:
        """Gives a key the role; False if it has it."""
        with self._database.change(by, now_ms) as change:
            _check_exists(change, name)
            if holder in _members_of(change, name):
                return False
            change.execute(insert(_members).values(role=name, holder=holder))
            change.record("assign role", name, holder=fingerprint(holder))
        return True

    def unassign(self, name: str, holder: bytes, *, by: str, now_ms: int) -> bool:
        """Takes the role from a key; False if it does not have it."""
        with self._database.change(by, now_ms) as change:
            _check_exists(change, name)
            if holder not in _members_of(change, name):
                return False
            change.execute(delete(_members).where((_members.c.role == name) & (_members.c.holder == holder)))
            change.record("unassign role", name, holder=fingerprint(holder))
        return True

    def all(self) -> list[Role]:
        """Every role, by name."""
        rights, members = defaultdict[str, list[RightTerms]](list), defaultdict[str, list[bytes]](list)
        with self._database.read() as connection:
            names = connection.scalars(select(_roles.c.name).order_by(_roles.c.name)).all()
            for row in connection.execute(select(_rights).order_by(_rights.c.number)).mappings():
                rights[row["role"]].append(_terms(row["type_id"], row["terms"]))
            for row in connection.execute(select(_members).order_by(_members.c.holder)).mappings():
                members[row["role"]].append(row["holder"])
        return [Role(name, tuple(rights[name]), tuple(members[name])) for name in names]


def _check_exists(change: Change, name: str) -> None:
    known = change.connection.scalars(select(_roles.c.name)).all()
    if name not in known:
        hint = did_you_mean(name, known) or "`tidings role ls` lists them, `tidings role create` makes one"
        raise InputError(f"the registry has no role {name[:100]!r}; {hint}")


def _rights_of(change: Change, name: str) -> dict[int, RightTerms]:
    query = select(_rights).where(_rights.c.role == name).order_by(_rights.c.number)
    rows = change.connection.execute(query).mappings()
    return {row["number"]: _terms(row["type_id"], row["terms"]) for row in rows}


def _members_of(change: Change, name: str) -> list[bytes]:
    return list(change.connection.scalars(select(_members.c.holder).where(_members.c.role == name)))


def _text(terms: RightTerms) -> str:
    said = {"actions": terms.actions, "attributes": terms.attributes, "where": terms.where, "depth": terms.depth}
    return json.dumps(said, sort_keys=True)


def _terms(type_id: bytes, text: str) -> RightTerms:
    said = json.loads(text)
    attributes = None if said["attributes"] is None else tuple(said["attributes"])
    return RightTerms(type_id, tuple(said["actions"]), attributes, tuple(said["where"]), said["depth"])
