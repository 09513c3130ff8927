"""Which keys may publish events of a type: for readers of tables, which are not connected to the network.

A signature shows which key published an event; `PublisherRights` tells whether that key had the right
to. What counts is the time of publication, not of reading: a table is read for years.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tidings.errors import Denied
from tidings.security.identity import fingerprint
from tidings.security.rights.reduction import AccessRequest, Right


@dataclass(frozen=True, slots=True)
class PublisherRights:
    """The rights to publish that a reader knows of. Rights that also need an online test are ignored here."""

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
