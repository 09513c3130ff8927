"""How a registry comes to the newest schema: small steps, numbered, forward only.

A step that has been released is never edited; what it made is changed by a further step. All
the steps a registry lacks are one transaction, behind the lock that every writer takes, so
that of several programs that open it at once one migrates and the others find it done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, func, insert, inspect, select, text

from tidings.errors import InputError
from tidings.store import tables

NOTHING_BEFORE = bytes(32)  # What the first entry of the audit trail follows.

# "tidings", as the number under which programs that migrate one PostgreSQL database wait for each other.
_ADVISORY_LOCK = int.from_bytes(b"tidings", "big")


@dataclass(frozen=True, slots=True)
class Step:
    """One step: statements for both databases, then those for one of them, with blank lines between.

    `{bytes}` is what the database calls bytes, `{nothing}` how it writes NOTHING_BEFORE.
    """

    what: str
    sql: str
    sqlite: str = ""
    postgresql: str = ""

    def statements(self, dialect: str) -> list[str]:
        words = _WORDS[dialect]
        script = f"{self.sql}\n\n{getattr(self, dialect)}"
        for placeholder, word in words.items():
            script = script.replace(placeholder, word)
        return [statement for statement in script.split("\n\n") if statement.strip()]


_WORDS = {
    "sqlite": {"{bytes}": "BLOB", "{nothing}": f"x'{NOTHING_BEFORE.hex()}'"},
    "postgresql": {"{bytes}": "BYTEA", "{nothing}": f"decode('{NOTHING_BEFORE.hex()}', 'hex')"},
}

STEPS: tuple[Step, ...] = (
    Step(
        "an audit trail that is only added to",
        """
        CREATE TABLE tidings_audit_head (
            one BIGINT NOT NULL PRIMARY KEY CHECK (one = 1), position BIGINT NOT NULL, hash {bytes} NOT NULL)

        INSERT INTO tidings_audit_head VALUES (1, 0, {nothing})

        CREATE TABLE tidings_audit (
            position BIGINT NOT NULL PRIMARY KEY, at_ms BIGINT NOT NULL, actor TEXT NOT NULL, action TEXT NOT NULL,
            subject TEXT NOT NULL, details TEXT NOT NULL, hash {bytes} NOT NULL)
        """,
        sqlite="""
        CREATE TRIGGER tidings_audit_no_update BEFORE UPDATE ON tidings_audit
            BEGIN SELECT RAISE(ABORT, 'the audit trail is only added to'); END

        CREATE TRIGGER tidings_audit_no_delete BEFORE DELETE ON tidings_audit
            BEGIN SELECT RAISE(ABORT, 'the audit trail is only added to'); END
        """,
        postgresql="""
        CREATE FUNCTION tidings_audit_keep() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN RAISE EXCEPTION 'the audit trail is only added to'; END $$

        CREATE TRIGGER tidings_audit_only_added BEFORE UPDATE OR DELETE OR TRUNCATE ON tidings_audit
            FOR EACH STATEMENT EXECUTE FUNCTION tidings_audit_keep()
        """,
    ),
    Step(
        "event types, and domains with their keys",
        """
        CREATE TABLE tidings_type (
            type_id {bytes} NOT NULL PRIMARY KEY, name TEXT NOT NULL UNIQUE, owner_key {bytes} NOT NULL,
            local_name TEXT NOT NULL, version BIGINT NOT NULL, definition {bytes} NOT NULL,
            declared_ms BIGINT NOT NULL, UNIQUE (local_name, owner_key, version))

        CREATE TABLE tidings_domain (name TEXT NOT NULL PRIMARY KEY, added_ms BIGINT NOT NULL)

        CREATE TABLE tidings_domain_key (
            key {bytes} NOT NULL PRIMARY KEY, domain TEXT NOT NULL REFERENCES tidings_domain (name))
        """,
    ),
    Step(
        "rights given and taken back, and subscriptions",
        """
        CREATE TABLE tidings_grant (
            digest {bytes} NOT NULL PRIMARY KEY, type_id {bytes} REFERENCES tidings_type (type_id),
            owner_key {bytes} NOT NULL, holder {bytes} NOT NULL, not_before BIGINT NOT NULL,
            not_after BIGINT NOT NULL, token {bytes} NOT NULL, added_ms BIGINT NOT NULL)

        CREATE INDEX tidings_grant_holder ON tidings_grant (holder)

        CREATE TABLE tidings_revocation (
            revocation_id TEXT NOT NULL PRIMARY KEY, revoked_ms BIGINT NOT NULL, revoked_by {bytes} NOT NULL,
            reason TEXT NOT NULL)

        CREATE TABLE tidings_subscription (
            id TEXT NOT NULL PRIMARY KEY, type_id {bytes} NOT NULL REFERENCES tidings_type (type_id),
            subscriber TEXT NOT NULL, condition TEXT NOT NULL, holder {bytes} NOT NULL, token {bytes} NOT NULL,
            signature {bytes} NOT NULL, added_ms BIGINT NOT NULL)

        CREATE INDEX tidings_subscription_type ON tidings_subscription (type_id)
        """,
    ),
    Step(
        "what a key manager must not forget",
        """
        CREATE TABLE tidings_sender (
            type_id {bytes} NOT NULL PRIMARY KEY REFERENCES tidings_type (type_id), next_id BIGINT NOT NULL)

        CREATE TABLE tidings_key_epoch (
            type_id {bytes} NOT NULL REFERENCES tidings_type (type_id), gid {bytes} NOT NULL, epoch BIGINT NOT NULL,
            start_ms BIGINT NOT NULL, end_ms BIGINT, sealed {bytes} NOT NULL, PRIMARY KEY (type_id, gid, epoch))

        CREATE TABLE tidings_key_manager (
            type_id {bytes} NOT NULL PRIMARY KEY REFERENCES tidings_type (type_id), generation BIGINT NOT NULL,
            sealed_state {bytes} NOT NULL, saved_ms BIGINT NOT NULL)
        """,
    ),
)


def version_of(connection: Connection) -> int | None:
    """The number of the last step taken; None where there is no registry yet."""
    if not inspect(connection).has_table(tables.schema.name):
        return None
    last: int | None = connection.scalar(select(func.max(tables.schema.c.version)))
    return last


def migrate(connection: Connection, now_ms: int, where: str, steps: Sequence[Step] = STEPS) -> None:
    """Takes the steps this registry lacks, within the transaction that `connection` is in.

    Raises InputError for a registry that a newer Tidings has been at, and for a file of another program.
    """
    dialect = connection.dialect.name
    if dialect == "postgresql":
        connection.execute(select(func.pg_advisory_xact_lock(_ADVISORY_LOCK)))
    version = version_of(connection)
    if version is None:
        _refuse_another_programs(connection, where)
        connection.execute(
            text("CREATE TABLE tidings_schema (version BIGINT NOT NULL PRIMARY KEY, applied_ms BIGINT NOT NULL)")
        )
    check_not_newer(version, where, steps)
    for number, step in enumerate(steps[version or 0 :], (version or 0) + 1):
        for statement in step.statements(dialect):
            connection.exec_driver_sql(statement)
        connection.execute(insert(tables.schema).values(version=number, applied_ms=now_ms))


def check_not_newer(version: int | None, where: str, steps: Sequence[Step] = STEPS) -> None:
    if version is not None and version > len(steps):
        raise InputError(
            f"{where} is a registry of a newer Tidings: its schema is {version}, this one knows {len(steps)};"
            " upgrade Tidings, or name another registry"
        )


def _refuse_another_programs(connection: Connection, where: str) -> None:
    """A file is a registry's alone; a PostgreSQL database may be shared."""
    if connection.dialect.name != "sqlite":
        return
    if found := inspect(connection).get_table_names():
        raise InputError(
            f"{where} is another program's database, with a table {found[0]!r}; name another file for the registry"
        )
