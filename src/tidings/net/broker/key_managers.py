"""The broker's registry: its types and revocations, and the key managers that store their state in it.

A manager's state is on disk before anything that depends on it leaves the broker. It is encrypted with a key
derived from the manager's own, so the registry holds nothing that opens it. The broker reads revocations
regularly: a right revoked with `tidings grant revoke` ends in running sessions.

The broker also records, apart from the registry, the generation that its managers have reached. It does not start with a
registry that was restored from an old backup: the managers would assign the same sender ids, and so the same nonces,
again. Nor does it start with a clock that is behind the registry's last change. A restore of the registry together with the
broker's own folder goes unnoticed, unless `net.recovery` makes it: that skips what may have been assigned since.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from tidings.errors import Denied, InputError, PeerError, SetupError
from tidings.net.clock import now_ms
from tidings.net.config import BrokerConfig, files_in
from tidings.net.ids import read_identity
from tidings.net.journal_storage.postgres import LeaseElsewhere, PostgresStorage
from tidings.net.journal_storage.session import SCHEMES
from tidings.net.type_files import TypeDefinition, of_signed
from tidings.security import Identity, KeyManager, RevocationRecord, SignedType, fingerprint
from tidings.store import ManagerSnapshot, Registry, Revocation

OWN_MANAGER = "manager.pem"  # As `tidings broker create` calls it; types that appoint it may be declared later.


class KeyManagers:
    """One broker's registry, and the key managers that run at this broker."""

    def __init__(self, config: BrokerConfig, database: PostgresStorage | None = None) -> None:
        """With the journal in a database, what is reached is noted there, and each change is by who holds the lease."""
        self._config = config
        if database is None:
            self._registry = Registry.open(config.registry or str(config.data / "registry.db"), now_ms=now_ms())
            self._reached: _Reached = GenerationFiles(config.data / "managers")
        else:
            self._registry = _in_database(config.registry, database)
            self._reached = GenerationRows(database)
        self._registry.clock.check(now_ms())
        self._running: dict[bytes, tuple[KeyManager, Identity]] = {}
        self._revoked = self._position = 0
        self.removed: frozenset[bytes] = frozenset()
        """The keys of participants that the organisation has removed, as of the last look into the registry."""

    def types(self) -> list[TypeDefinition]:
        """The types in the registry."""
        return [of_signed(signed) for signed in self._registry.types.all()]

    def new_types(self) -> list[TypeDefinition]:
        """The types in the registry, if anything in it has changed since the last call."""
        position = self._registry.audit.head().position
        if position == self._position:
            return []
        self._position = position
        self.removed = self._registry.participants.removed()
        return self.types()

    def hosted(self, types: list[SignedType]) -> Iterator[KeyManager]:
        """The managers that run here: for each key in `manages`, or in its folders, those of the types that appoint it."""
        for file in files_in(self._config.manages, ".pem"):
            identity = read_identity(file)
            appointed = [signed for signed in types if signed.key_manager == identity.public_key and signed.group_ids]
            if not appointed and file.name != OWN_MANAGER and file in self._config.manages:
                raise InputError(f"{file}: no type that this broker knows appoints {fingerprint(identity.public_key)}")
            for signed in appointed:
                if signed.type_id not in self._running:
                    yield self._manager(signed, identity)

    def _manager(self, signed: SignedType, identity: Identity) -> KeyManager:
        self._registry.types.declare(signed, by=self._config.name, now_ms=now_ms())
        sender_id = partial(self._new_sender_id, signed.type_id)
        manager = KeyManager(signed, identity, secrets.token_bytes, now_ms(), next_sender_id=sender_id)
        self._restore(manager, identity)
        self._running[signed.type_id] = (manager, identity)
        return manager

    def _new_sender_id(self, type_id: bytes) -> int:
        """From the registry's counter, which jobs on Spark use, too: two senders with one id would use one nonce."""
        try:
            return self._registry.keys.new_sender_ids(type_id, by=self._config.name, now_ms=now_ms())[0]
        except SetupError as wrong:
            raise PeerError(f"sender: the registry cannot count: {wrong}") from wrong  # Unanswered; members ask again.

    def _restore(self, manager: KeyManager, identity: Identity) -> None:
        """Restores the manager from its stored state; raises Denied if that is not the newest."""
        signed = manager.signed_type
        kept, reached = self._registry.keys.manager(signed.type_id), self._reached.read(signed.type_id)
        try:
            if kept is not None:
                newest = max(kept.generation, reached)
                manager.import_state(kept.sealed_state, _master(identity), generation=newest)
            elif reached:
                raise Denied(f"state: the registry has none; generation {reached} was reached before")
        except (Denied, InputError) as refused:
            raise Denied(f"{refused} ({signed.event_type.name}@{signed.version}); {_WAY_OUT}") from None

    def keep(self, type_id: bytes, generation: int) -> None:
        """Stores a manager's state; when this returns it is on disk."""
        manager, identity = self._running[type_id]
        state = ManagerSnapshot(generation, manager.export_state(_master(identity)))
        self._registry.keys.save_manager(type_id, state, by=self._config.name, now_ms=now_ms())
        self._reached.write(type_id, generation)

    def skip_ahead(self, types: list[SignedType], sender_ids: int, at_ms: int) -> int:
        """For a broker restored from a backup: see `KeyManager.skip_ahead`; returns how many managers run here."""
        for signed in types:
            if signed.group_ids:
                self._registry.types.declare(signed, by=self._config.name, now_ms=at_ms)
                self._registry.keys.new_sender_ids(signed.type_id, sender_ids, by=self._config.name, now_ms=at_ms)
        managers = list(self.hosted(types))
        for manager in managers:
            manager.skip_ahead(at_ms)
            self.keep(manager.signed_type.type_id, manager.generation)
        return len(managers)

    def revocations(self) -> list[Revocation]:
        """All that is revoked, if there is more than at the last call."""
        found = self._registry.grants.revocations()
        if len(found) == self._revoked:
            return []
        self._revoked = len(found)
        return found

    def look_again(self) -> None:
        """Has the next call of `revocations` and `new_types` return everything: what they returned could not be used."""
        self._revoked = self._position = 0

    def keep_revocations(self, records: Sequence[RevocationRecord]) -> None:
        """Stores what other brokers have told, for the next start, and for jobs that use this registry."""
        self._registry.grants.learn(records, by=self._config.name, now_ms=now_ms())

    def close(self) -> None:
        self._registry.close()


_WAY_OUT = "put the newest registry back, or, if it is lost, make a new version of the type with another key manager"


def _in_database(registry: str, database: PostgresStorage) -> Registry:
    """The registry, every change of which checks the lease; so it must be where the lease is."""
    elsewhere = InputError(
        "registry: it must be in the database of the journal, in any schema: only there a process that was frozen can"
        " be kept from writing to it"
    )
    if registry and not registry.startswith(SCHEMES):
        raise elsewhere
    try:
        where = database.database.with_password(registry) if registry else database.database.registry
        return Registry.open(where, now_ms=now_ms(), guard=database.check_lease)
    except LeaseElsewhere:
        raise elsewhere from None


class _Reached(Protocol):
    def read(self, type_id: bytes) -> int: ...

    def write(self, type_id: bytes, generation: int) -> None: ...


class GenerationRows:
    """The same in the journal's database."""

    def __init__(self, database: PostgresStorage) -> None:
        self._database = database

    def read(self, type_id: bytes) -> int:
        """0 for a manager that never stored anything here."""
        rows = self._database.read_now("SELECT value FROM meta WHERE name = ?", [self._name(type_id)])
        return int.from_bytes(rows[0][0], "big") if rows else 0

    def write(self, type_id: bytes, generation: int) -> None:
        """On disk when this returns."""
        row = [self._name(type_id), generation.to_bytes(8, "big")]
        self._database.write_now(lambda to: to.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", row))

    @staticmethod
    def _name(type_id: bytes) -> str:
        return f"generation {type_id.hex()}"


class GenerationFiles:
    """The highest generation that each manager has reached at this broker, each in a file of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, type_id: bytes) -> int:
        """0 for a manager that never stored anything here."""
        file = self._file(type_id)
        try:
            return int(file.read_text() or 0) if file.exists() else 0
        except (OSError, ValueError) as wrong:
            raise SetupError(f"{file} does not say which generation was reached: {wrong}") from None

    def write(self, type_id: bytes, generation: int) -> None:
        """On disk when this returns. In place: so few bytes are written whole or not at all."""
        file = self._file(type_id)
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            opened = os.open(file, os.O_WRONLY | os.O_CREAT, 0o600)
            try:
                os.write(opened, f"{generation:020d}\n".encode())
                os.fsync(opened)
            finally:
                os.close(opened)
        except OSError as wrong:
            raise SetupError(f"cannot write {file}: {wrong.strerror}") from None

    def _file(self, type_id: bytes) -> Path:
        return self._folder / f"{type_id.hex()}.generation"


def _master(identity: Identity) -> bytes:
    return HKDFExpand(SHA256(), 32, b"tidings/manager/1").derive(identity.secret)
