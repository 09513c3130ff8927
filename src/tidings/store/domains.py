"""Domains: organisations by name, with their public keys.

A name is local to a registry and proves nothing to anybody else. It saves typing fingerprints, and makes lists and
audit trails readable.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import delete, insert, select

from tidings.errors import InputError, did_you_mean
from tidings.security import fingerprint, from_fingerprint
from tidings.store import tables
from tidings.store.database import Change, Database
from tidings.store.tables import checked_name

_listed = tables.domain_keys.c


@dataclass(frozen=True, slots=True)
class Domain:
    """An organisation and its keys, in the order of their bytes."""

    name: str
    keys: tuple[bytes, ...]


class Domains:
    """The domains of one registry."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, name: str, keys: Iterable[bytes], *, by: str, now_ms: int) -> bool:
        """Adds keys to a domain, new or known; False if it had them all. A key belongs to one domain only."""
        checked_name(name, "a domain's name")
        if name.startswith("ed25519:"):
            raise InputError("a domain's name must not look like a key")
        with self._database.change(by, now_ms) as change:
            owners = {row.key: row.domain for row in change.connection.execute(select(_listed.key, _listed.domain))}
            new = _new_keys(name, keys, owners)
            if not new:
                return False
            if name not in change.connection.scalars(select(tables.domains.c.name)).all():
                _refuse_name_of_participant(change, name)
                change.execute(insert(tables.domains).values(name=name, added_ms=now_ms))
            change.execute(insert(tables.domain_keys).values([{"key": key, "domain": name} for key in new]))
            change.record("add domain", name, keys=[fingerprint(key) for key in new])
        return True

    def remove(self, name: str, *, by: str, now_ms: int) -> None:
        """Removes a domain and its keys; rights of the keys stay as they are."""
        checked_name(name, "a domain's name")
        with self._database.change(by, now_ms) as change:
            keys = change.connection.scalars(
                select(_listed.key).where(_listed.domain == name).order_by(_listed.key)
            ).all()
            change.execute(delete(tables.domain_keys).where(_listed.domain == name))
            if change.execute(delete(tables.domains).where(tables.domains.c.name == name)).rowcount == 0:
                raise InputError(f"the registry has no domain {name[:100]!r}")
            change.record("remove domain", name, keys=[fingerprint(key) for key in keys])

    def all(self) -> list[Domain]:
        """Every domain, by name."""
        keys = defaultdict(list)
        with self._database.read() as connection:
            for row in connection.execute(select(_listed.key, _listed.domain).order_by(_listed.key)):
                keys[row.domain].append(row.key)
        return [Domain(name, tuple(keys[name])) for name in sorted(keys)]

    def names(self) -> dict[bytes, str]:
        """The name of each known key, for display: a domain's, or that of a broker or client of this organisation."""
        return {**self._participants(), **{key: domain.name for domain in self.all() for key in domain.keys}}

    def _participants(self) -> dict[bytes, str]:
        table = tables.participants.c
        with self._database.read() as connection:
            return {row.key: row.name for row in connection.execute(select(table.key, table.name))}

    def key_of(self, name: str) -> bytes:
        """The key of a fingerprint, of a domain that has one key, or of a broker or client of this organisation."""
        if name.startswith("ed25519:"):
            return from_fingerprint(name)
        known = {domain.name: domain.keys for domain in self.all()}
        known = {**{own: (key,) for key, own in self._participants().items()}, **known}
        if name not in known:
            hint = did_you_mean(name, known) or (
                "`tidings org show` and `tidings domain ls` list them, `tidings org trust` adds an organisation"
            )
            raise InputError(
                f"expected ed25519:… or the name of a domain, a broker or a client, got {name[:100]!r}; {hint}"
            )
        if len(known[name]) > 1:
            raise InputError(
                f"{name} has {len(known[name])} keys; choose one: {', '.join(map(fingerprint, known[name]))}"
            )
        return known[name][0]


def _refuse_name_of_participant(change: Change, name: str) -> None:
    """Rights are given by name: an organisation must not get those that are meant for a client."""
    own = tables.participants.c.name
    if change.connection.scalar(select(own).where(own == name)) is not None:
        raise InputError(f"{name} is the name of a broker or a client of yours; no organisation can go by it, too")


def _new_keys(name: str, keys: Iterable[bytes], owners: dict[bytes, str]) -> list[bytes]:
    listed = sorted(set(keys))
    if not listed:
        raise InputError(f"expected one or more keys for {name!r}")
    for key in listed:
        if owners.get(key, name) != name:
            raise InputError(f"{fingerprint(key)} belongs to {owners[key]!r} already")
    return [key for key in listed if key not in owners]
