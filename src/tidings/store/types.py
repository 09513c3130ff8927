"""Event types in the registry: every version, as its owner signed it.

A definition is never replaced: events and rights refer to it by an id that is derived from its name, so a changed type
is a new version. The signature is verified when a type is stored and each time it is read, so a row that was
altered in the database is detected.
"""

from __future__ import annotations

from operator import attrgetter

from sqlalchemy import Connection, RowMapping, Select, insert, or_, select

from tidings.errors import InputError, PeerError, did_you_mean
from tidings.security import SignedType, fingerprint
from tidings.store import tables
from tidings.store.database import Database

_COLUMNS = (tables.types.c.type_id, tables.types.c.name, tables.types.c.definition)


class Types:
    """The event types of one registry."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.own_keys: frozenset[bytes] = frozenset()
        """Of the organisation whose registry this is: its types are meant before those of others with the same name."""

    def declare(self, signed: SignedType, *, by: str, now_ms: int) -> bool:
        """Stores a type; False if this definition was stored already.

        Raises PeerError if its owner did not sign it, Denied if it has expired, and InputError if the same name and
        version is stored with another definition.
        """
        signed.verify(max(now_ms, signed.not_before))  # A type that becomes valid next week may be declared today.
        with self._database.change(by, now_ms) as change:
            kept = change.connection.execute(_named(signed.name)).mappings().one_or_none()
            if kept is not None:
                _refuse_another(signed, kept)
                return False
            change.execute(insert(tables.types).values(declared_ms=now_ms, **_row(signed)))
            change.record("declare type", signed.name, type_id=signed.type_id.hex(), mode=signed.mode.name.lower())
        return True

    def all(self) -> list[SignedType]:
        """Every type, by local name, owner and version."""
        order = (tables.types.c.local_name, tables.types.c.owner_key, tables.types.c.version)
        with self._database.read() as connection:
            return [_checked(row) for row in connection.execute(select(*_COLUMNS).order_by(*order)).mappings()]

    def with_id(self, type_id: bytes) -> SignedType:
        """The type with this id; raises InputError if there is none."""
        with self._database.read() as connection:
            return type_with_id(connection, type_id)

    def find(self, name: str) -> SignedType:
        """A type by any of its names: `Numberplate` (its newest version), `Numberplate@1`, the full name, or the id.

        The organisation's own type is meant if it has one of that name. Raises InputError if there is none, or if two
        other owners use the name; the error then lists the full names.
        """
        with self._database.read() as connection:
            rows = connection.execute(_meant(name)).mappings().all() if name.isprintable() else []
            known = () if rows else connection.scalars(select(tables.types.c.local_name).distinct()).all()
        found = [_checked(row) for row in rows]
        if not found:
            hint = did_you_mean(name, known) or "`tidings type ls` lists them"
            raise InputError(f"the registry has no event type {name[:100]!r}; {hint}")
        found = [type for type in found if type.owner_key in self.own_keys] or found
        if len({type.owner_key for type in found}) > 1:
            names = ", ".join(type.name for type in found[:5])
            raise InputError(f"several owners have a type {name[:100]!r}; choose one: {names}")
        return max(found, key=attrgetter("version"))


def type_with_id(connection: Connection, type_id: bytes) -> SignedType:
    row = connection.execute(select(*_COLUMNS).where(tables.types.c.type_id == type_id)).mappings().one_or_none()
    if row is None:
        raise InputError(f"the registry has no event type with the id {type_id.hex()[:64]}; declare or import it first")
    return _checked(row)


def _named(name: str) -> Select[tuple[bytes, str, bytes]]:
    return select(*_COLUMNS).where(tables.types.c.name == name)


def _meant(name: str) -> Select[tuple[bytes, str, bytes]]:
    names = tables.types.c
    local, _, version = name.rpartition("@")
    ways = [names.name == name, names.local_name == name]
    if version.isascii() and version.isdecimal() and len(version) <= 10:
        ways.append((names.local_name == local) & (names.version == int(version)))
    try:
        ways.append(names.type_id == bytes.fromhex(name))
    except ValueError:
        pass
    return select(*_COLUMNS).where(or_(*ways))


def _row(signed: SignedType) -> dict[str, object]:
    return {
        "type_id": signed.type_id,
        "name": signed.name,
        "owner_key": signed.owner_key,
        "local_name": signed.event_type.name,
        "version": signed.version,
        "definition": signed.to_bytes(),
    }


def _refuse_another(signed: SignedType, kept: RowMapping) -> None:
    if kept["definition"] != signed.to_bytes():
        raise InputError(
            f"{signed.event_type.name}@{signed.version} of {fingerprint(signed.owner_key)} is already declared with"
            f" another definition; a changed type is a new version: --version {signed.version + 1}"
        )


def _checked(row: RowMapping) -> SignedType:
    """The definition, if its owner signed it and the row's other columns agree with it."""
    signed = SignedType.from_bytes(row["definition"])
    signed.verify(signed.not_before)  # Verifies the signature; callers check whether the type is valid now.
    if (signed.name, signed.type_id) != (row["name"], row["type_id"]):
        raise PeerError(f"type: the registry's row {row['name'][:200]!r} holds another type, {signed.name!r}")
    return signed
