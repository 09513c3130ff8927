"""What a key manager must not forget: sender ids given out, keys in use, its own state.

Nothing secret is readable here: keys and state come sealed and leave sealed, and this room never
holds what opens them. What is kept are the promises that a restart or an old backup must not
break: a sender id is given out once, an epoch has one key, a state is only ever followed by a
newer one.

A type has one counter of sender ids, and it is here: a key manager that is made with
`next_sender_id` asks it too, so brokers and table jobs never get the same id, and with it the
same nonces.
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
    """The key of one group from `start_ms` to `end_ms` (None: still in use), sealed."""

    type_id: bytes
    gid: bytes
    epoch: int
    start_ms: int
    end_ms: int | None
    sealed: bytes


@dataclass(frozen=True, slots=True)
class ManagerSnapshot:
    """A key manager's sealed state, and the generation it is of, for `KeyManager.import_state`."""

    generation: int
    sealed_state: bytes


class Keys:
    """The keys and counters of one registry's types."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def new_sender_ids(self, type_id: bytes, count: int = 1, *, by: str, now_ms: int) -> range:
        """Sender ids that were never given out before for this type, and never will be again.

        They are on disk before this returns. Raises Denied when four bytes hold no more of them.
        """
        if not 1 <= count <= SENDER_ID_MAX:
            raise InputError(f"expected to give out 1 to {SENDER_ID_MAX} sender ids, got {count}")
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
        """Keeps the key of a group's next epoch, which ends the one before; False if this very one was there.

        Raises Denied for an epoch that has another key already, and for one that does not follow the last.
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
        """Keeps a key manager's state; once this returns, what the state says may leave the machine.

        Raises Denied unless the generation is newer than the kept one: a manager that runs twice, or
        that was restored from a backup, would give the same keys out again.
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
                raise Denied(f"manager: generation {new.generation} is not newer than the kept one, {kept}")
            change.record("save key manager", type_id.hex(), generation=new.generation)

    def manager(self, type_id: bytes) -> ManagerSnapshot | None:
        """The newest state of a type's key manager, if one was ever kept."""
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
    """Raises Denied unless the very epoch is there. Its end is the successor's to say, and is not compared."""
    row = connection.execute(select(tables.key_epochs).where(*_is(new))).mappings().one_or_none()
    if row is None or (row["start_ms"], row["sealed"]) != (new.start_ms, new.sealed):
        raise Denied(f"epoch: group {new.gid.hex()[:16]}… has had epoch {new.epoch} already, with another key")


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
