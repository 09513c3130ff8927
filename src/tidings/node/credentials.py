"""Credentials: the capability tokens that one key has presented to this node, and whether they hold now.

The same class serves the node itself, its neighbours and its clients. A token is verified once, when it is
presented. Whether it holds is asked each time it is used, because rights begin, expire and are revoked while the
node runs. A token that cannot be verified is never stored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import NamedTuple

import msgspec

from tidings.errors import Denied, ErrorCode, InputError, PeerError
from tidings.overlay import NodeId, UnknownSpeaker
from tidings.security import (
    ANY_TYPE,
    AccessRequest,
    BiscuitCapability,
    Right,
    fingerprint,
    verify_signature,
    why_not_valid,
)

TOKENS_MAX = 256  # Presented by one key; a broker serves tens of types.
REVOKED_MAX = 1_000_000  # Revoked links that have not expired, over all types that a node knows.

MEMBERS_MAX = 16_384  # Brokers whose membership this node has seen, some 2 kB each.
MEMBERS_OF_ONE_MAX = 1024  # … of one organisation: a hundred times what a large one runs.

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
        if why := why_not_valid(self.right.not_before, self.right.not_after, now_ms):
            return f"validity: the right {why}"
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


def node_id_of(public_key: bytes) -> NodeId:
    """The node id of a key: 128 bits that nobody can choose.

    >>> node_id_of(bytes(32))
    'ae185a076fe96e12e1f15c3a1044e355'
    """
    return sha256(b"tidings/node/1\0" + public_key).hexdigest()[:32]


def organisation_of(held: HeldToken) -> bytes:
    """The key that delegated a membership; empty if the network's own key granted it."""
    hands = [link for link in held.token.inspect() if link.holder is not None]
    return (hands[-1].issuer or b"") if len(hands) > 1 else b""


class MemberProof(msgspec.Struct, frozen=True, array_like=True):
    """A node's key, of which its id is made, and the token that makes it a member of the network."""

    key: bytes
    token: bytes = b""


class _Member(NamedTuple):
    proof: MemberProof
    held: HeldToken | None
    organisation: bytes


class MemberDirectory:
    """The members of the network whose proof this node has seen: linked ones, and those that records speak of.

    A proof is verified when it comes; whether the membership holds is asked whenever a seal is verified.
    """

    def __init__(self, verify: Callable[[bytes], BiscuitCapability] | None, state: RevocationState) -> None:
        """`verify` reads a membership token, or raises Denied; None: any key is a member's."""
        self._verify, self._state = verify, state
        self._members: dict[NodeId, _Member] = {}
        self._by_organisation: Counter[bytes] = Counter()

    def __len__(self) -> int:
        return len(self._members)

    def learn(self, proof: MemberProof, now_ms: int) -> NodeId:
        """Takes up a proof; raises Denied for one that does not hold, or beyond what an organisation may have."""
        id = node_id_of(proof.key)
        known = self._members.get(id)
        if known is not None and known.proof == proof:
            return id
        held = self._held(proof)
        if held is not None and (why := held.refusal(self._state, now_ms)) is not None:
            raise Denied(why)
        organisation = organisation_of(held) if held is not None else b""
        if known is not None:
            self._drop(id)
        elif held is not None and self._by_organisation[organisation] >= MEMBERS_OF_ONE_MAX:
            raise Denied(f"member: one organisation has more than {MEMBERS_OF_ONE_MAX} brokers")
        if len(self._members) >= MEMBERS_MAX:
            self._drop(next(iter(self._members)))
        self._members[id] = _Member(proof, held, organisation)
        self._by_organisation[organisation] += 1
        return id

    def proof(self, id: NodeId) -> MemberProof | None:
        known = self._members.get(id)
        return known.proof if known is not None else None

    def organisation(self, id: NodeId) -> bytes | None:
        """The organisation that admitted this member; None for one without a proof."""
        known = self._members.get(id)
        return known.organisation if known is not None else None

    def verify(self, id: NodeId, signature: bytes, body: bytes, now_ms: int) -> None:
        """Raises PeerError unless this member has signed this and is one now; UnknownSpeaker without its proof."""
        known = self._members.get(id)
        if known is None:
            raise UnknownSpeaker((id,))
        if known.held is not None and (why := known.held.refusal(self._state, now_ms)) is not None:
            raise PeerError(f"record: {id} is not a member: {why}", code=ErrorCode.SIGNATURE)
        verify_signature(known.proof.key, signature, body, "a record")

    def expire(self, now_ms: int) -> bool:
        """Drops members whose membership no longer holds; whether there were any."""
        gone = [id for id, one in self._members.items() if one.held and one.held.refusal(self._state, now_ms)]
        for id in gone:
            self._drop(id)
        return bool(gone)

    def holdings(self) -> dict[str, tuple[int, int]]:
        return {"members": (len(self._members), MEMBERS_MAX)}

    def _held(self, proof: MemberProof) -> HeldToken | None:
        if self._verify is None:
            return None
        token = self._verify(proof.token)
        right = token.right()
        if right.holder != proof.key or right.type_id != ANY_TYPE or "join-net" not in right.actions:
            raise Denied("member: not a membership of this key")
        return HeldToken(token, right, proof.token, token.revocation_ids)

    def _drop(self, id: NodeId) -> None:
        self._by_organisation[self._members.pop(id).organisation] -= 1
