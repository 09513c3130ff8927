"""The registry: the entry point to everything that an organisation stores about types, rights and keys."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

from tidings.store.audit import Audit, RegistryClock
from tidings.store.database import Database, Guard
from tidings.store.domains import Domains
from tidings.store.grants import Grants
from tidings.store.keys import Keys
from tidings.store.participants import Participants
from tidings.store.roles import RoleStore
from tidings.store.subscriptions import Subscriptions
from tidings.store.types import Types


class Registry:
    """An open registry. Several programs may have the same one open, and write to it.

        with Registry.open("tidings.db", now_ms=now) as registry:
            registry.types.declare(plates, by="police", now_ms=now)

    Every change takes its author (`by`, for the audit trail) and time; nothing here reads a clock.
    """

    def __init__(self, database: Database) -> None:
        self.where = database.where
        self.types = Types(database)
        self.domains = Domains(database)
        self.participants = Participants(database)
        self.grants = Grants(database)
        self.roles = RoleStore(database)
        self.subscriptions = Subscriptions(database)
        self.keys = Keys(database)
        self.audit = Audit(database)
        self.clock = RegistryClock(database)
        self.database = database

    @classmethod
    def open(cls, address: str | Path, *, now_ms: int, create: bool = True, guard: Guard | None = None) -> Registry:
        """The registry in a file, or at a `postgresql://` URL; created or migrated if necessary.

        Raises InputError for something that is no registry, or a newer one, and with `create=False` for one that
        does not exist; SetupError for a file or server that cannot be used. Each transaction that may write calls
        `guard` before it commits.
        """
        return cls(Database.open(address, now_ms, create=create, guard=guard))

    def close(self) -> None:
        self.database.close()

    def __enter__(self) -> Registry:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
