"""Schema migrations: small numbered steps, forward only.

A released step is never edited; a further step changes what it created. All steps that a registry lacks run in one
transaction, under the lock that every writer takes. So if several programs open the registry at once, one of them
migrates it and the others find it done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, func, insert, inspect, select, text

from tidings.errors import InputError
from tidings.store import tables

GENESIS_HASH = bytes(32)  # The previous hash of the first entry in the audit trail.

# "tidings" as a number: the advisory lock of programs that migrate the same PostgreSQL database.
_ADVISORY_LOCK = int.from_bytes(b"tidings", "big")


@dataclass(frozen=True, slots=True)
class MigrationStep:
    """One step: statements for both databases, then those for one of them, with blank lines between.

    `{bytes}` is the database's type for bytes, `{nothing}` its literal for GENESIS_HASH.
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
    "sqlite": {"{bytes}": "BLOB", "{nothing}": f"x'{GENESIS_HASH.hex()}'"},
    "postgresql": {"{bytes}": "BYTEA", "{nothing}": f"decode('{GENESIS_HASH.hex()}', 'hex')"},
}

STEPS: tuple[MigrationStep, ...] = (
    MigrationStep(
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
    MigrationStep(
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
    MigrationStep(
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
    MigrationStep(
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
    MigrationStep(
        "an organisation's own brokers and clients, invitations to enrol, and roles",
        """
        CREATE TABLE tidings_participant (
            name TEXT NOT NULL PRIMARY KEY, role TEXT NOT NULL, key {bytes} NOT NULL UNIQUE, manager_key {bytes},
            address TEXT NOT NULL, certificate {bytes} NOT NULL, added_ms BIGINT NOT NULL)

        CREATE TABLE tidings_invitation (
            digest {bytes} NOT NULL PRIMARY KEY, name TEXT NOT NULL, role TEXT NOT NULL, expires_ms BIGINT NOT NULL,
            used_by {bytes})

        CREATE TABLE tidings_role (name TEXT NOT NULL PRIMARY KEY, added_ms BIGINT NOT NULL)

        CREATE TABLE tidings_role_right (
            role TEXT NOT NULL REFERENCES tidings_role (name), number BIGINT NOT NULL,
            type_id {bytes} NOT NULL REFERENCES tidings_type (type_id), terms TEXT NOT NULL,
            PRIMARY KEY (role, number))

        CREATE TABLE tidings_role_member (
            role TEXT NOT NULL REFERENCES tidings_role (name), holder {bytes} NOT NULL, PRIMARY KEY (role, holder))

        ALTER TABLE tidings_grant ADD COLUMN role TEXT

        ALTER TABLE tidings_grant ADD COLUMN lasts_ms BIGINT
        """,
    ),
    MigrationStep(
        "revocations as signed records, which brokers pass on",
        """
        ALTER TABLE tidings_revocation ADD COLUMN record {bytes}
        """,
    ),
)


def version_of(connection: Connection) -> int | None:
    """The number of the last step that was applied; None if there is no registry yet."""
    if not inspect(connection).has_table(tables.schema.name):
        return None
    last: int | None = connection.scalar(select(func.max(tables.schema.c.version)))
    return last


def migrate(connection: Connection, now_ms: int, where: str, steps: Sequence[MigrationStep] = STEPS) -> None:
    """Applies the steps that this registry lacks, in the transaction of `connection`.

    Raises InputError for a registry of a newer Tidings, and for a file of another program.
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


def check_not_newer(version: int | None, where: str, steps: Sequence[MigrationStep] = STEPS) -> None:
    if version is not None and version > len(steps):
        raise InputError(
            f"{where} is a registry of a newer Tidings: its schema version is {version}, this one has {len(steps)};"
            " upgrade Tidings, or name another registry"
        )


def _refuse_another_programs(connection: Connection, where: str) -> None:
    """A registry does not share a file with other programs; a PostgreSQL database may be shared."""
    if connection.dialect.name != "sqlite":
        return
    if found := inspect(connection).get_table_names():
        raise InputError(
            f"{where} is another program's database, with a table {found[0]!r}; name another file for the registry"
        )
