"""The registry's tables, as the newest migration leaves them, and what names in them may look like.

Table names have a prefix, so that a registry can share a PostgreSQL database. Keys, ids and tokens are raw bytes, and
times are milliseconds since 1970. `migrations` creates the tables; these definitions are for queries, and
a test compares the two.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, ForeignKey, LargeBinary, MetaData, Table, Text

from tidings.errors import InputError

NAME_CHARACTERS_MAX = 255  # As long as a file's name.
TEXT_CHARACTERS_MAX = 4096  # For a reason: a paragraph or two.

metadata = MetaData()


def checked_name(text: str, what: str, characters_max: int = NAME_CHARACTERS_MAX) -> str:
    """`text` unchanged; raises InputError unless it fits on one line and every database can store it.

    >>> checked_name("ccs", "a domain")
    'ccs'
    """
    if not 1 <= len(text) <= characters_max or not text.isprintable() or text != text.strip():
        shown = ascii(text[:60])
        raise InputError(f"expected {what} of 1 to {characters_max} printable characters, got {shown}")
    return text


def _type_id(*, primary_key: bool = False, nullable: bool = False) -> Column[bytes]:
    known = ForeignKey("tidings_type.type_id")
    return Column("type_id", LargeBinary, known, primary_key=primary_key, nullable=nullable)


schema = Table(
    "tidings_schema",
    metadata,
    Column("version", BigInteger, primary_key=True, autoincrement=False),
    Column("applied_ms", BigInteger, nullable=False),
)

audit_head = Table(
    "tidings_audit_head",
    metadata,
    Column("one", BigInteger, primary_key=True, autoincrement=False),
    Column("position", BigInteger, nullable=False),
    Column("hash", LargeBinary, nullable=False),
)

audit = Table(
    "tidings_audit",
    metadata,
    Column("position", BigInteger, primary_key=True, autoincrement=False),
    Column("at_ms", BigInteger, nullable=False),
    Column("actor", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("details", Text, nullable=False),
    Column("hash", LargeBinary, nullable=False),
)

types = Table(
    "tidings_type",
    metadata,
    Column("type_id", LargeBinary, primary_key=True),
    Column("name", Text, nullable=False),
    Column("owner_key", LargeBinary, nullable=False),
    Column("local_name", Text, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("definition", LargeBinary, nullable=False),
    Column("declared_ms", BigInteger, nullable=False),
)

domains = Table(
    "tidings_domain",
    metadata,
    Column("name", Text, primary_key=True),
    Column("added_ms", BigInteger, nullable=False),
)

domain_keys = Table(
    "tidings_domain_key",
    metadata,
    Column("key", LargeBinary, primary_key=True),
    Column("domain", Text, ForeignKey("tidings_domain.name"), nullable=False),
)

grants = Table(
    "tidings_grant",
    metadata,
    Column("digest", LargeBinary, primary_key=True),
    _type_id(nullable=True),  # Membership of the network has no type.
    Column("owner_key", LargeBinary, nullable=False),
    Column("holder", LargeBinary, nullable=False),
    Column("not_before", BigInteger, nullable=False),
    Column("not_after", BigInteger, nullable=False),
    Column("token", LargeBinary, nullable=False),
    Column("added_ms", BigInteger, nullable=False),
    Column("role", Text, nullable=True),  # The role that it was issued for.
    Column("lasts_ms", BigInteger, nullable=True),  # It is renewed for as long again; NULL: it is not renewed.
)

revocations = Table(
    "tidings_revocation",
    metadata,
    Column("revocation_id", Text, primary_key=True),
    Column("revoked_ms", BigInteger, nullable=False),
    Column("revoked_by", LargeBinary, nullable=False),
    Column("reason", Text, nullable=False),
    Column("record", LargeBinary),
)

subscriptions = Table(
    "tidings_subscription",
    metadata,
    Column("id", Text, primary_key=True),
    _type_id(),
    Column("subscriber", Text, nullable=False),
    Column("condition", Text, nullable=False),
    Column("holder", LargeBinary, nullable=False),
    Column("token", LargeBinary, nullable=False),
    Column("signature", LargeBinary, nullable=False),
    Column("added_ms", BigInteger, nullable=False),
)

senders = Table(
    "tidings_sender",
    metadata,
    _type_id(primary_key=True),
    Column("next_id", BigInteger, nullable=False),
)

key_epochs = Table(
    "tidings_key_epoch",
    metadata,
    _type_id(primary_key=True),
    Column("gid", LargeBinary, primary_key=True),
    Column("epoch", BigInteger, primary_key=True, autoincrement=False),
    Column("start_ms", BigInteger, nullable=False),
    Column("end_ms", BigInteger, nullable=True),
    Column("sealed", LargeBinary, nullable=False),
)

key_managers = Table(
    "tidings_key_manager",
    metadata,
    _type_id(primary_key=True),
    Column("generation", BigInteger, nullable=False),
    Column("sealed_state", LargeBinary, nullable=False),
    Column("saved_ms", BigInteger, nullable=False),
)

participants = Table(
    "tidings_participant",
    metadata,
    Column("name", Text, primary_key=True),
    Column("role", Text, nullable=False),
    Column("key", LargeBinary, nullable=False),
    Column("manager_key", LargeBinary, nullable=True),
    Column("address", Text, nullable=False),
    Column("certificate", LargeBinary, nullable=False),
    Column("added_ms", BigInteger, nullable=False),
)

invitations = Table(
    "tidings_invitation",
    metadata,
    Column("digest", LargeBinary, primary_key=True),
    Column("name", Text, nullable=False),
    Column("role", Text, nullable=False),
    Column("expires_ms", BigInteger, nullable=False),
    Column("used_by", LargeBinary, nullable=True),
)

roles = Table(
    "tidings_role",
    metadata,
    Column("name", Text, primary_key=True),
    Column("added_ms", BigInteger, nullable=False),
)

role_rights = Table(
    "tidings_role_right",
    metadata,
    Column("role", Text, ForeignKey("tidings_role.name"), primary_key=True),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    _type_id(),
    Column("terms", Text, nullable=False),
)

role_members = Table(
    "tidings_role_member",
    metadata,
    Column("role", Text, ForeignKey("tidings_role.name"), primary_key=True),
    Column("holder", LargeBinary, primary_key=True),
)
