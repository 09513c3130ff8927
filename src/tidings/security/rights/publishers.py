"""Who may publish events of a type, by key: for readers of tables, whom no network tells.

A signature says which key made an event; this says whether that key may. A right counts at the
time that the event was published, not when it is read: a table is read for years.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tidings.errors import Denied
from tidings.security.identity import fingerprint
from tidings.security.rights.reduction import AccessRequest, Right


@dataclass(frozen=True, slots=True)
class PublisherRights:
    """The rights to publish that a reader knows of. Rights that also need an online test count for nothing here."""

    rights: tuple[Right, ...]

    @classmethod
    def of(cls, rights: Iterable[Right]) -> PublisherRights:
        return cls(tuple(right for right in rights if "publish" in right.actions))

    def check(self, signer: bytes, type_id: bytes, attr_ids: tuple[bytes, ...], ts_ms: int) -> None:
        """Returns if one of the signer's rights is to publish these attributes at that time; raises Denied."""
        why = f"publisher: no right of {fingerprint(signer)} to publish is known"
        for right in self.rights:
            if right.holder == signer:
                try:
                    return right.check(AccessRequest(type_id, "publish", frozenset(attr_ids)), ts_ms, signer)
                except Denied as refused:
                    why = f"publisher: {refused}"
        raise Denied(why)
