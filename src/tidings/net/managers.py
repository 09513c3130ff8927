"""The broker's registry: types and revocations that come from it, and the key managers that keep their state in it.

A manager's state is on disk before anything that rests on it leaves the broker. It is sealed with a key
made of the manager's own, so the registry holds nothing that opens it. Revocations are read again and
again: a right taken back with `tidings grant revoke` ends in running sessions.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from tidings.errors import InputError
from tidings.net.config import BrokerConfig
from tidings.net.names import now_ms, read_identity
from tidings.net.types import KnownType, of_signed
from tidings.security import Identity, KeyManager, SignedType, fingerprint
from tidings.store import ManagerSnapshot, Registry


class Managers:
    """One broker's registry, and the key managers that run at this broker."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        where = config.registry or str(config.data / "registry.db")
        self._registry = Registry.open(where, now_ms=now_ms())
        self._running: dict[bytes, tuple[KeyManager, Identity]] = {}
        self._revoked = 0

    def types(self) -> list[KnownType]:
        """The types that the registry has."""
        return [of_signed(signed) for signed in self._registry.types.all()]

    def hosted(self, types: list[SignedType]) -> Iterator[KeyManager]:
        """The managers that run here: for each key in `manages`, those of the types that appoint it."""
        for file in self._config.manages:
            identity = read_identity(file)
            appointed = [signed for signed in types if signed.key_manager == identity.public_key and signed.group_ids]
            if not appointed:
                raise InputError(f"{file}: no type that this broker knows appoints {fingerprint(identity.public_key)}")
            for signed in appointed:
                yield self._manager(signed, identity)

    def _manager(self, signed: SignedType, identity: Identity) -> KeyManager:
        self._registry.types.declare(signed, by=self._config.name, now_ms=now_ms())
        manager = KeyManager(signed, identity, secrets.token_bytes, now_ms())
        kept = self._registry.keys.manager(signed.type_id)
        if kept is not None:
            manager.import_state(kept.sealed_state, _master(identity), generation=kept.generation)
        self._running[signed.type_id] = (manager, identity)
        return manager

    def keep(self, type_id: bytes, generation: int) -> None:
        """Write a manager's state down; when this returns it is on disk."""
        manager, identity = self._running[type_id]
        state = ManagerSnapshot(generation, manager.export_state(_master(identity)))
        self._registry.keys.save_manager(type_id, state, by=self._config.name, now_ms=now_ms())

    def revocations(self) -> list[str]:
        """What has been revoked since this was last asked."""
        found = self._registry.grants.revocations()
        if len(found) == self._revoked:
            return []
        self._revoked = len(found)
        return [each.revocation_id for each in found]

    def close(self) -> None:
        self._registry.close()


def _master(identity: Identity) -> bytes:
    return HKDFExpand(SHA256(), 32, b"tidings/manager/1").derive(identity.secret)
