"""What is kept: the registry of event types, domains, rights, subscriptions and keys, with its audit trail.

`Registry.open` takes a file (SQLite) or a PostgreSQL URL. Its parts, `types`, `domains`, `grants`,
`subscriptions`, `keys`, `audit` and `clock`, are small and speak in the values of the rooms below. Every
change is one transaction with one entry in the audit trail; several programs may make them at once.
"""

from tidings.store.audit import AuditEntry, Head
from tidings.store.domains import Domain
from tidings.store.grants import KnownGrant, Revocation, owner_of, refusal
from tidings.store.keys import ManagerSnapshot, SealedEpoch
from tidings.store.registry import Registry
from tidings.store.subscriptions import KeptSubscription, Standing

__all__ = [
    "AuditEntry",
    "Domain",
    "Head",
    "KeptSubscription",
    "KnownGrant",
    "ManagerSnapshot",
    "Registry",
    "Revocation",
    "SealedEpoch",
    "Standing",
    "owner_of",
    "refusal",
]
