"""Durable state of key managers: allocated sender ids, keys in use, and the manager's own state.

Nothing secret is readable here: keys and state arrive encrypted and leave encrypted, and this package never has the
key to them. The tables enforce what a restart or an old backup must not break: a sender id is allocated once, an
epoch has one key, and a state is replaced only by a newer one.

Each type has one counter of sender ids, here. A key manager with `next_sender_id` uses it, too, so brokers and Spark
jobs never get the same id, and so never the same nonces.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, insert, select, update

from tidings.errors import Denied, InputError
from tidings.store import tables
from tidings.store.database import Database
from tidings.store.types import type_with_id

SENDER_ID_MAX = 2**32 - 1  # Four bytes of a nonce.
SEALED_BYTES_MAX = 2**28  # A manager's whole state; a thousand members in a thousand groups fit.


@dataclass(frozen=True, slots=True)
class SealedEpoch:
    """The encrypted key of one group from `start_ms` to `end_ms` (None: still in use)."""

    type_id: bytes
    gid: bytes
    epoch: int
    start_ms: int
    end_ms: int | None
    sealed: bytes


@dataclass(frozen=True, slots=True)
class ManagerSnapshot:
    """A key manager's encrypted state and its generation, for `KeyManager.import_state`."""

    generation: int
    sealed_state: bytes


class Keys:
    """The keys and counters of one registry's types."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def new_sender_ids(self, type_id: bytes, count: int = 1, *, by: str, now_ms: int) -> range:
        """Allocates sender ids of this type, each of them only once.

        Writes them to disk before it returns. Raises Denied when all four-byte ids are used.
        """
        if not 1 <= count <= SENDER_ID_MAX:
            raise InputError(f"expected a count of 1 to {SENDER_ID_MAX} sender ids, got {count}")
        with self._database.change(by, now_ms) as change:
            first = _next_sender_id(change.connection, type_id)
            if first is None:
                type_with_id(change.connection, type_id)
                first = 1
                change.execute(insert(tables.senders).values(type_id=type_id, next_id=first))
            if first + count - 1 > SENDER_ID_MAX:
                raise Denied(f"sender: all {SENDER_ID_MAX} sender ids of this type are used; make a new version of it")
            change.execute(
                update(tables.senders).where(tables.senders.c.type_id == type_id).values(next_id=first + count)
            )
            change.record("give sender ids", type_id.hex(), first=first, count=count)
        return range(first, first + count)

    def add_epoch(self, new: SealedEpoch, *, by: str, now_ms: int) -> bool:
        """Stores the key of a group's next epoch, which ends the one before; False if it was stored already.

        Raises Denied for an epoch that already has another key, and for one that does not follow the last.
        """
        _check_sealed(new.sealed)
        with self._database.change(by, now_ms) as change:
            type_with_id(change.connection, new.type_id)
            last = _last_epoch(change.connection, new.type_id, new.gid)
            if last is not None and last.epoch >= new.epoch:
                _refuse_another(change.connection, new)
                return False
            if last is not None:
                _check_follows(new, last)
                change.execute(update(tables.key_epochs).where(*_is(last)).values(end_ms=new.start_ms))
            change.execute(insert(tables.key_epochs).values(**_row(new)))
            change.record(
                "add key epoch", new.gid.hex(), type_id=new.type_id.hex(), epoch=new.epoch, start=new.start_ms
            )
        return True

    def epochs(self, type_id: bytes, gid: bytes | None = None) -> list[SealedEpoch]:
        """The keys of a type's groups, or of one group, by group and age."""
        columns = tables.key_epochs.c
        query = select(tables.key_epochs).where(columns.type_id == type_id).order_by(columns.gid, columns.epoch)
        if gid is not None:
            query = query.where(columns.gid == gid)
        with self._database.read() as connection:
            return [SealedEpoch(**row) for row in connection.execute(query).mappings()]

    def save_manager(self, type_id: bytes, new: ManagerSnapshot, *, by: str, now_ms: int) -> None:
        """Stores a key manager's state. Once this returns, keys of that state may leave the machine.

        Raises Denied unless the generation is newer than the stored one: a manager that runs twice, or that was
        restored from a backup, would issue the same keys again.
        """
        _check_sealed(new.sealed_state)
        with self._database.change(by, now_ms) as change:
            kept = _generation(change.connection, type_id)
            values = {"generation": new.generation, "sealed_state": new.sealed_state, "saved_ms": now_ms}
            if kept is None:
                type_with_id(change.connection, type_id)
                change.execute(insert(tables.key_managers).values(type_id=type_id, **values))
            elif kept < new.generation:
                mine = tables.key_managers.c.type_id == type_id
                change.execute(update(tables.key_managers).where(mine).values(values))
            else:
                raise Denied(f"manager: generation {new.generation} is not newer than the stored one, {kept}")
            change.record("save key manager", type_id.hex(), generation=new.generation)

    def manager(self, type_id: bytes) -> ManagerSnapshot | None:
        """The newest state of a type's key manager; None if none was ever stored."""
        columns = tables.key_managers.c
        query = select(columns.generation, columns.sealed_state).where(columns.type_id == type_id)
        with self._database.read() as connection:
            row = connection.execute(query).one_or_none()
        return None if row is None else ManagerSnapshot(*row)


def _last_epoch(connection: Connection, type_id: bytes, gid: bytes) -> SealedEpoch | None:
    columns = tables.key_epochs.c
    query = select(tables.key_epochs).where(columns.type_id == type_id, columns.gid == gid)
    row = connection.execute(query.order_by(columns.epoch.desc()).limit(1)).mappings().one_or_none()
    return None if row is None else SealedEpoch(**row)


def _refuse_another(connection: Connection, new: SealedEpoch) -> None:
    """Raises Denied unless this epoch is stored as given. Its end is set by its successor, and is not compared."""
    row = connection.execute(select(tables.key_epochs).where(*_is(new))).mappings().one_or_none()
    if row is None or (row["start_ms"], row["sealed"]) != (new.start_ms, new.sealed):
        raise Denied(f"epoch: group {new.gid.hex()[:16]}… already had epoch {new.epoch}, with another key")


def _check_follows(new: SealedEpoch, last: SealedEpoch) -> None:
    if new.start_ms <= last.start_ms:
        raise Denied(
            f"epoch: epoch {new.epoch} starts at {new.start_ms} ms, not after epoch {last.epoch} at {last.start_ms} ms"
        )


def _is(one: SealedEpoch) -> tuple[ColumnElement[bool], ...]:
    columns = tables.key_epochs.c
    return (columns.type_id == one.type_id, columns.gid == one.gid, columns.epoch == one.epoch)


def _next_sender_id(connection: Connection, type_id: bytes) -> int | None:
    columns = tables.senders.c
    return connection.scalar(select(columns.next_id).where(columns.type_id == type_id))


def _generation(connection: Connection, type_id: bytes) -> int | None:
    columns = tables.key_managers.c
    return connection.scalar(select(columns.generation).where(columns.type_id == type_id))


def _row(one: SealedEpoch) -> dict[str, object]:
    return {name: getattr(one, name) for name in SealedEpoch.__slots__}


def _check_sealed(sealed: bytes) -> None:
    if not 1 <= len(sealed) <= SEALED_BYTES_MAX:
        raise InputError(f"expected 1 to {SEALED_BYTES_MAX} sealed bytes, got {len(sealed)}")
