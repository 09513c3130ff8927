"""The registry: event types, domains, rights, subscriptions and keys of an organisation, with an audit trail.

`Registry.open` takes a file (SQLite) or a PostgreSQL URL. Its parts are `types`, `domains`, `participants`, `grants`,
`roles`, `subscriptions`, `keys`, `audit` and `clock`; they take and return the values of the packages below. Every
change is one transaction with one entry in the audit trail, and several programs may make changes at once.

In reading order:

    registry       `Registry`, which holds the parts
    database       connections, snapshots, changes; errors of SQLite and PostgreSQL as our own
    audit          the audit trail, a hash chain; and the check of a machine's clock against it
    types          event types, as their owners signed them
    domains        organisations and their keys
    participants   the organisation's own brokers and clients, and invitations to enrol
    grants         tokens and revocations
    roles          named sets of rights, and who has them
    issuer         signs rights in the organisation's name: granted, delegated, by role, renewed, revoked
    subscriptions  conditions, each with the right to it
    keys           durable state of key managers: sender ids, epochs, snapshots
    tables         the tables, for queries
    migrations     how the tables are created and changed
"""

from tidings.store.audit import AuditEntry, AuditHead
from tidings.store.domains import Domain
from tidings.store.grants import KnownGrant, Revocation, owner_of, refusal
from tidings.store.issuer import RIGHT_MS, IssuedChanges, Issuer
from tidings.store.keys import ManagerSnapshot, SealedEpoch
from tidings.store.participants import EnrolledParticipant
from tidings.store.registry import Registry
from tidings.store.roles import RightTerms, Role
from tidings.store.subscriptions import KeptSubscription, SubscriptionStatus

__all__ = [
    "RIGHT_MS",
    "AuditEntry",
    "AuditHead",
    "Domain",
    "EnrolledParticipant",
    "IssuedChanges",
    "Issuer",
    "KeptSubscription",
    "KnownGrant",
    "ManagerSnapshot",
    "Registry",
    "Revocation",
    "RightTerms",
    "Role",
    "SealedEpoch",
    "SubscriptionStatus",
    "owner_of",
    "refusal",
]
