"""Who may what, as this node has seen it proven: the rights that one key has shown.

The same class serves the node itself, its neighbours and its clients. Tokens are read and checked
once, when they are shown; what they come to is asked anew each time, because rights begin, end and
are revoked while everything goes on. What cannot be verified is not there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tidings.errors import Denied, InputError
from tidings.security import ANY_TYPE, AccessRequest, BiscuitCapability, Right, fingerprint

TOKENS_MAX = 256  # Shown by one key; a broker serves tens of types.
REVOKED_MAX = 1_000_000  # Links taken back and not yet expired, over all types a node knows.

READING = ("publish", "subscribe")  # Either one opens the key groups, so either one may have plaintext.
NOTHING: frozenset[bytes] = frozenset()
_FOREVER = 2**63


@dataclass(slots=True)
class Truth:
    """What has become known of rights since they were given: links revoked, online tests that said yes.

    `changes` counts; whoever worked something out from it looks there before using that again.
    """

    revoked: dict[str, None] = field(default_factory=dict)
    online: dict[str, int] = field(default_factory=dict)
    changes: int = 0

    def revoke(self, ids: Iterable[str]) -> list[str]:
        """Books these links as revoked; those that are new. Raises InputError beyond REVOKED_MAX."""
        new = [id for id in dict.fromkeys(ids) if id not in self.revoked]
        if len(self.revoked) + len(new) > REVOKED_MAX:
            raise InputError(f"more than {REVOKED_MAX} revoked links at once")
        self.revoked.update(dict.fromkeys(new))
        self.changes += bool(new)
        return new

    def said_yes(self, url: str, at_ms: int) -> None:
        """An online test was answered with yes."""
        self.online[url] = max(at_ms, self.online.get(url, at_ms))
        self.changes += 1


class Held(NamedTuple):
    """One token, and what it comes to."""

    token: BiscuitCapability
    right: Right
    raw: bytes
    links: tuple[str, ...]
    """The ids by which its links are revoked."""

    def refusal(self, truth: Truth, now_ms: int) -> str | None:
        """Why the right does not hold now, whatever is asked of it; None if it does."""
        for index, id in enumerate(self.links):
            if id in truth.revoked:
                return f"revoked: link {index} ({id[:16]}…) has been revoked"
        if not self.right.not_before <= now_ms < self.right.not_after:
            return f"validity: holds from {self.right.not_before} to {self.right.not_after} ms, and it is {now_ms} ms"
        return self._offline(truth.online, now_ms)

    def _offline(self, online: Mapping[str, int], now_ms: int) -> str | None:
        for test in self.right.online:
            said_yes = online.get(test.url)
            if said_yes is None or not 0 <= now_ms - said_yes <= test.max_age_ms:
                return f"online: no yes from {test.url} within {test.max_age_ms} ms"
        return None


class Credentials:
    """The tokens one key has shown to this node."""

    def __init__(self, key: bytes, truth: Truth) -> None:
        self.key, self._truth = key, truth
        self.changes = 0
        self._held: dict[bytes, Held] = {}
        self._readable: dict[bytes | str, tuple[int, int, int, frozenset[bytes] | None]] = {}

    def add(self, token: BiscuitCapability) -> Held:
        """Takes a token up; raises Denied for one that is another's, comes to nothing or is one too many."""
        right = token.right()
        if right.holder != self.key:
            raise Denied(f"holder: the right is {fingerprint(right.holder)}'s, not {fingerprint(self.key)}'s")
        if len(self._held) >= TOKENS_MAX and token.digest not in self._held:
            raise Denied(f"token: more than {TOKENS_MAX} shown by one key")
        held = self._held[token.digest] = Held(token, right, token.to_bytes(), token.revocation_ids)
        self._readable.clear()
        self.changes += 1
        return held

    def drop(self, ids: Collection[str]) -> None:
        """Forgets every token with one of these links in it."""
        gone = [digest for digest, held in self._held.items() if any(id in ids for id in held.links)]
        for digest in gone:
            del self._held[digest]
        self._readable.clear()
        self.changes += 1

    def of(self, type_id: bytes | str) -> list[Held]:
        """The tokens for one type, or for the network, in the order they were shown."""
        return [held for held in self._held.values() if held.right.type_id == type_id]

    def all(self) -> list[Held]:
        return list(self._held.values())

    def right_for(self, request: AccessRequest, now_ms: int) -> Held:
        """A token that covers the request now; raises Denied naming the check at which the nearest one failed."""
        refusals = []
        for held in self.of(request.type_id):
            refusal = held.refusal(self._truth, now_ms)
            if refusal is None:
                try:
                    held.right.check(request, now_ms, self.key, self._truth.online)
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
        if known is None or known[0] != self._truth.changes or not known[1] <= now_ms < known[2]:
            known = self._readable[type_id] = self._work_out(type_id, now_ms)
        return known[3]

    def _work_out(self, type_id: bytes, now_ms: int) -> tuple[int, int, int, frozenset[bytes] | None]:
        """What may be read, and from when until before when that is so."""
        found: frozenset[bytes] | None = NOTHING
        shown = self.of(type_id)
        for held in shown:
            right = held.right
            if held.refusal(self._truth, now_ms) is None and any(action in right.actions for action in READING):
                found = None if found is None or right.attributes is None else found | right.attributes
        since, until = window([held.right for held in shown], self._truth, now_ms)
        return self._truth.changes, since, until, found


def window(rights: Iterable[Right], truth: Truth, now_ms: int) -> tuple[int, int]:
    """From when until before when none of these rights begins or ends, unless something becomes known of them."""
    moments = [-_FOREVER, _FOREVER]
    for right in rights:
        moments += (right.not_before, right.not_after)
        for test in right.online:
            if (said_yes := truth.online.get(test.url)) is not None:
                moments += (said_yes, said_yes + test.max_age_ms + 1)
    return max(moment for moment in moments if moment <= now_ms), min(moment for moment in moments if moment > now_ms)
