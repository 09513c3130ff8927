"""Credentials: the capability tokens that one key has presented to this node, and whether they hold now.

The same class serves the node itself, its neighbours and its clients. A token is verified once, when it is
presented. Whether it holds is asked each time it is used, because rights begin, expire and are revoked while the
node runs. A token that cannot be verified is never stored.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tidings.errors import Denied, InputError
from tidings.security import ANY_TYPE, AccessRequest, BiscuitCapability, Right, fingerprint

TOKENS_MAX = 256  # Presented by one key; a broker serves tens of types.
REVOKED_MAX = 1_000_000  # Revoked links that have not expired, over all types that a node knows.

READING = ("publish", "subscribe")  # Either action opens the key groups, so its holder may have the plaintext.
NOTHING: frozenset[bytes] = frozenset()
_FOREVER = 2**63


@dataclass(slots=True)
class RevocationState:
    """What this node knows of rights beyond their tokens: revoked links, and online tests that succeeded.

    `changes` counts the updates; whoever caches a decision compares it before using that decision again.
    """

    revoked: dict[str, None] = field(default_factory=dict)
    online: dict[str, int] = field(default_factory=dict)
    changes: int = 0

    def revoke(self, ids: Iterable[str]) -> list[str]:
        """Mark these links as revoked and return those that are new. Raises InputError beyond REVOKED_MAX."""
        new = [id for id in dict.fromkeys(ids) if id not in self.revoked]
        if len(self.revoked) + len(new) > REVOKED_MAX:
            raise InputError(f"more than {REVOKED_MAX} revoked links at once")
        self.revoked.update(dict.fromkeys(new))
        self.changes += bool(new)
        return new

    def confirmed_online(self, url: str, at_ms: int) -> None:
        """The online test at `url` answered with yes."""
        self.online[url] = max(at_ms, self.online.get(url, at_ms))
        self.changes += 1


class HeldToken(NamedTuple):
    """One verified token, and the right that it grants."""

    token: BiscuitCapability
    right: Right
    raw: bytes
    links: tuple[str, ...]
    """The revocation ids of its links."""

    def refusal(self, state: RevocationState, now_ms: int) -> str | None:
        """Why the right does not hold now, whatever is requested; None if it holds."""
        for index, id in enumerate(self.links):
            if id in state.revoked:
                return f"revoked: link {index} ({id[:16]}…) has been revoked"
        if not self.right.not_before <= now_ms < self.right.not_after:
            return f"validity: valid from {self.right.not_before} to {self.right.not_after} ms, and it is {now_ms} ms"
        return self._offline(state.online, now_ms)

    def _offline(self, online: Mapping[str, int], now_ms: int) -> str | None:
        for test in self.right.online:
            confirmed = online.get(test.url)
            if confirmed is None or not 0 <= now_ms - confirmed <= test.max_age_ms:
                return f"online: no confirmation from {test.url} within {test.max_age_ms} ms"
        return None


class Credentials:
    """The tokens that one key has presented to this node."""

    def __init__(self, key: bytes, state: RevocationState) -> None:
        self.key, self._state = key, state
        self.changes = 0
        self._held: dict[bytes, HeldToken] = {}
        self._readable: dict[bytes | str, tuple[int, int, int, frozenset[bytes] | None]] = {}

    def add(self, token: BiscuitCapability) -> HeldToken:
        """Store a token. Raises Denied if another key holds it, if it grants nothing, or beyond TOKENS_MAX."""
        right = token.right()
        if right.holder != self.key:
            raise Denied(f"holder: the right is {fingerprint(right.holder)}'s, not {fingerprint(self.key)}'s")
        if len(self._held) >= TOKENS_MAX and token.digest not in self._held:
            raise Denied(f"token: more than {TOKENS_MAX} shown by one key")
        held = self._held[token.digest] = HeldToken(token, right, token.to_bytes(), token.revocation_ids)
        self._readable.clear()
        self.changes += 1
        return held

    def drop(self, ids: Collection[str]) -> None:
        """Remove every token that contains one of these links."""
        gone = [digest for digest, held in self._held.items() if any(id in ids for id in held.links)]
        for digest in gone:
            del self._held[digest]
        self._readable.clear()
        self.changes += 1

    def of(self, type_id: bytes | str) -> list[HeldToken]:
        """The tokens for one type, or for the network, in the order of presentation."""
        return [held for held in self._held.values() if held.right.type_id == type_id]

    def all(self) -> list[HeldToken]:
        return list(self._held.values())

    def right_for(self, request: AccessRequest, now_ms: int) -> HeldToken:
        """A token that covers the request now; raises Denied with the check that the last candidate failed."""
        refusals = []
        for held in self.of(request.type_id):
            refusal = held.refusal(self._state, now_ms)
            if refusal is None:
                try:
                    held.right.check(request, now_ms, self.key, self._state.online)
                except Denied as refused:
                    refusal = str(refused)
                else:
                    return held
            refusals.append(refusal)
        what = "for the network" if request.type_id == ANY_TYPE else "for this type"
        raise Denied(refusals[-1] if refusals else f"right: none {what} was shown by {fingerprint(self.key)}")

    def readable(self, type_id: bytes, now_ms: int) -> frozenset[bytes] | None:
        """The attributes of a type that this key may read now; None for all of them."""
        known = self._readable.get(type_id)
        if known is None or known[0] != self._state.changes or not known[1] <= now_ms < known[2]:
            known = self._readable[type_id] = self._compute(type_id, now_ms)
        return known[3]

    def _compute(self, type_id: bytes, now_ms: int) -> tuple[int, int, int, frozenset[bytes] | None]:
        """The readable attributes, and the interval (end excluded) for which this answer holds."""
        found: frozenset[bytes] | None = NOTHING
        shown = self.of(type_id)
        for held in shown:
            right = held.right
            if held.refusal(self._state, now_ms) is None and any(action in right.actions for action in READING):
                found = None if found is None or right.attributes is None else found | right.attributes
        since, until = validity_window([held.right for held in shown], self._state, now_ms)
        return self._state.changes, since, until, found


def validity_window(rights: Iterable[Right], state: RevocationState, now_ms: int) -> tuple[int, int]:
    """The interval around `now_ms` (end excluded) in which none of these rights begins or ends by itself."""
    moments = [-_FOREVER, _FOREVER]
    for right in rights:
        moments += (right.not_before, right.not_after)
        for test in right.online:
            if (confirmed := state.online.get(test.url)) is not None:
                moments += (confirmed, confirmed + test.max_age_ms + 1)
    return max(moment for moment in moments if moment <= now_ms), min(moment for moment in moments if moment > now_ms)
