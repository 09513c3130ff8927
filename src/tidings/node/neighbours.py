"""Neighbours: the handshake on a new link, and the credentials that a neighbour has presented.

    link up              → LinkHello, both ways: key, nonce, versions
    both hellos received → LinkCreds, both ways: tokens, and a signature over this session
    creds verified       → LinkAck; the link is ready if the neighbour is a member of the network
    later                → LinkCreds again (the next counter), LinkRevoke

The signature covers both certificates, both nonces, the signer's role and its tokens: it proves that the holder of the
key is at the other end of this TLS session and no other. An invalid token counts as not presented; an invalid
signature ends the link. A neighbour without credentials may read nothing.

A neighbour's organisation is not what it claims but who admitted it: the key that delegated its membership.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, TypeAlias

import msgspec

from tidings.errors import Denied, ErrorCode, PeerError
from tidings.node.credentials import (
    NOTHING,
    TOKENS_MAX,
    Credentials,
    MemberDirectory,
    MemberProof,
    RevocationState,
    node_id_of,
    organisation_of,
)
from tidings.node.effects import LinkReady, NodeEffect, Rejected
from tidings.overlay import Message, NodeId, Peer, Send
from tidings.security import (
    ANY_TYPE,
    SUITES,
    AccessRequest,
    BiscuitCapability,
    Identity,
    RandomBytes,
    Verifier,
    verify_signature,
)

VERSION = 1
NONCE_BYTES = 32
NEIGHBOURS_MAX = 4096  # Links at once; as many as a router supports.
UNVERIFIED_MAX = 64  # Tokens of one neighbour whose type is not known here yet: a megabyte at most.
UNVERIFIED_BYTES_MAX = 16 * 1024
PROOF_BYTES = 48  # Of a proof, beside its token.
PROOFS_MAX = 256  # In one message; more are asked for. Each is a chain of signatures, which takes half a millisecond.
MEMBERSHIPS_MAX = 8  # Of a node that is not linked: its present one, and some that it had before.
REASONS_MAX = 16  # Refusals sent to a neighbour; the first ones suffice to find the mistake.
_MEMBERSHIP = b""

Shown: TypeAlias = tuple[tuple[bytes, bytes], ...]
"""Tokens on the wire: the id of the type each is for (empty for membership), and the token."""


class LinkHello(Message, frozen=True):
    """The first message on a link."""

    key: bytes
    domain: str
    nonce: bytes
    versions: tuple[int, ...]
    suites: tuple[int, ...]


class LinkCreds(Message, frozen=True):
    """Tokens, bound to this session. A later message adds more."""

    shown: Shown
    counter: int
    signature: bytes


class LinkAck(Message, frozen=True):
    """How many tokens were accepted, and why others were not."""

    accepted: int
    rejected: tuple[str, ...]


class LinkRevoke(Message, frozen=True):
    """The sender withdraws its own tokens that contain these links. Nobody can revoke another's tokens this way."""

    ids: tuple[str, ...]


class LinkMembers(Message, frozen=True):
    """Proofs of the members whose records are in the message that follows in it, sent once on each link."""

    proofs: tuple[MemberProof, ...]
    message: bytes = b""


class LinkStrangers(Message, frozen=True):
    """The sender has no proof of these nodes' membership, and could not use a message that had records of theirs."""

    ids: tuple[NodeId, ...]


LinkMessage: TypeAlias = LinkHello | LinkCreds | LinkAck | LinkRevoke


@dataclass(slots=True, eq=False)
class LinkedNeighbour:
    """One end of one link."""

    peer: Peer
    my_nonce: bytes
    my_cert: bytes
    their_cert: bytes
    dialled: bool
    hello: LinkHello | None = None
    credentials: Credentials | None = None
    organisation: bytes = b""
    admitted_at: int = -1
    ready: bool = False
    counter_in: int = 0
    counter_out: int = 0
    shown: dict[NodeId, None] = field(default_factory=dict)
    """The members whose proof was sent on this link."""
    unverified: dict[bytes, bytes] = field(default_factory=dict)
    """Tokens for types this node does not know yet, by token."""

    def status(self) -> dict[str, Any]:
        """Its state for operators, as JSON values."""
        held = self.credentials.all() if self.credentials else []
        return {
            "id": self.peer.id,
            "domain": self.hello.domain if self.hello else "",
            "ready": self.ready,
            "rights": sum(1 for one in held if one.right.type_id != ANY_TYPE),
        }

    def transcript(self, *, mine: bool, counter: int, shown: Shown) -> bytes:
        """What one end signs: the session, its role in it, and the tokens."""
        assert self.hello is not None
        certs, nonces = [self.my_cert, self.their_cert], [self.my_nonce, self.hello.nonce]
        if not self.dialled:
            certs.reverse()
            nonces.reverse()
        role = b"A" if mine == self.dialled else b"B"
        digests = [sha256(part).digest() for part in (*certs, *nonces, msgspec.msgpack.encode(shown))]
        return b"ps/hs/1\0" + b"".join(digests) + role + counter.to_bytes(8, "big")


class NeighbourTable:
    """All links of one node, with the credentials presented over each."""

    def __init__(
        self,
        identity: Identity,
        domain: str,
        state: RevocationState,
        random: RandomBytes,
        *,
        network_key: bytes | None,
        owner_of: Callable[[bytes], bytes | None],
        open_links: bool,
        bind_ids: bool,
    ) -> None:
        self.mine = Credentials(identity.public_key, state)
        self._identity, self._domain, self._state, self._random = identity, domain, state, random
        self._network_key, self._owner_of = network_key, owner_of
        self._open_links, self._bind_ids = open_links, bind_ids
        self._verifier = Verifier()
        membership = None if network_key is None else lambda token: self.verify(_MEMBERSHIP, token)
        self.members = MemberDirectory(membership, state)
        self._near: dict[NodeId, LinkedNeighbour] = {}
        self._own_organisation: tuple[int, bytes] = (-1, b"")

    # ── Queries ──

    def get(self, neighbour: NodeId) -> LinkedNeighbour | None:
        return self._near.get(neighbour)

    def all(self) -> list[LinkedNeighbour]:
        return list(self._near.values())

    def is_ready(self, neighbour: NodeId) -> bool:
        near = self._near.get(neighbour)
        return self._open_links if near is None else near.ready

    def readable(self, neighbour: NodeId, type_id: bytes, now_ms: int) -> frozenset[bytes] | None:
        """The attributes of a type that this neighbour may see now; None for all. A stranger may see none."""
        near = self._near.get(neighbour)
        if near is None or near.credentials is None or not near.ready or not self._is_member(near.credentials, now_ms):
            return NOTHING
        return near.credentials.readable(type_id, now_ms)

    def shown_by(self, key: bytes) -> Credentials | None:
        """The credentials that a neighbour with this key has presented, or this node's own; None for a stranger."""
        if key == self.mine.key:
            return self.mine
        return next((n.credentials for n in self._near.values() if n.credentials and n.credentials.key == key), None)

    def is_same_organisation(self, neighbour: NodeId) -> bool:
        """Whether the same organisation admitted this neighbour and this node."""
        near, revoked = self._near.get(neighbour), self._state.changes
        if self._own_organisation[0] != self.mine.changes + revoked:
            self._own_organisation = self.mine.changes + revoked, self._organisation(self.mine)
        mine = self._own_organisation[1]
        if near is None or near.credentials is None or not near.ready or not mine:
            return False
        if near.admitted_at != near.credentials.changes + revoked:  # Both only grow.
            near.admitted_at = near.credentials.changes + revoked
            near.organisation = self._organisation(near.credentials)
        return near.organisation == mine

    # ── Life cycle of a link ──

    def up(self, peer: Peer, my_cert: bytes, their_cert: bytes, dialled: bool) -> list[NodeEffect]:
        """TLS is established: send the hello. An earlier link to the same peer is dropped with its credentials."""
        if len(self._near) >= NEIGHBOURS_MAX and peer.id not in self._near:
            return [Rejected(peer.id, f"link: more than {NEIGHBOURS_MAX} neighbours", cut=True)]
        near = LinkedNeighbour(peer, self._random(NONCE_BYTES), my_cert, their_cert, dialled)
        self._near[peer.id] = near
        if self._open_links:
            near.ready = True
            return [LinkReady(peer.id, "")]
        hello = LinkHello(self._identity.public_key, self._domain, near.my_nonce, (VERSION,), tuple(SUITES))
        return [Send(peer.id, hello)]

    def down(self, neighbour: NodeId) -> None:
        self._near.pop(neighbour, None)

    def receive(self, sender: NodeId, message: LinkMessage, now_ms: int) -> list[NodeEffect]:
        """Take a handshake message; raises PeerError or Denied if the link must end."""
        near = self._near.get(sender)
        if near is None:
            raise PeerError("link: a message on a link that is not there")
        match message:
            case LinkHello():
                return self._hello(near, message)
            case LinkCreds():
                return self._creds(near, message, now_ms)
            case LinkAck():
                return []
            case LinkRevoke(ids):
                if near.credentials is not None:
                    near.credentials.drop(ids)
                return self._expire(near, now_ms)

    def present(self, held: Sequence[bytes] | None = None) -> list[NodeEffect]:
        """Present tokens (those given, or all) to every neighbour that has sent its hello."""
        return [self._show(near, held) for near in self._near.values() if near.hello is not None]

    def shown(self, held: Sequence[bytes] | None = None) -> Shown:
        """This node's own tokens (those given, or all) as they travel."""
        listed = [one for one in self.mine.all() if held is None or one.raw in held]
        return tuple((_type_id(one.right.type_id), one.raw) for one in listed)

    def credentials_of(self, key: bytes, shown: Shown, now_ms: int) -> Credentials:
        """What a node that is not linked has shown, as far as it can be verified; raises Denied unless it is a member."""
        held = Credentials(key, self._state)
        for type_id, token in memberships_first(shown):
            if type_id != _MEMBERSHIP and not self._is_member(held, now_ms):
                break  # Anybody can sign this, and show as many chains of signatures as fit.
            with suppress(Denied):
                held.add(self.verify(type_id, token))
        if not self._is_member(held, now_ms):
            raise Denied("member: no valid membership was shown")
        return held

    def is_member(self, credentials: Credentials, now_ms: int) -> bool:
        """Whether its holder is a member of the network now."""
        return self._is_member(credentials, now_ms)

    def withdraw(self, ids: Sequence[str]) -> list[NodeEffect]:
        """Withdraw this node's tokens that contain these links, here and at every neighbour."""
        self.mine.drop(ids)
        return [Send(near.peer.id, LinkRevoke(tuple(ids))) for near in self._near.values() if near.ready]

    def expire(self, now_ms: int) -> list[NodeEffect]:
        """End the links to neighbours whose membership has expired."""
        return [effect for near in self.all() for effect in self._expire(near, now_ms)]

    def verify_pending(self) -> None:
        """A type has become known: verify the tokens that waited for it."""
        for near in self._near.values():
            waiting, near.unverified = near.unverified, {}
            for token, type_id in waiting.items():
                self._accept(near, type_id, token)

    def verify(self, type_id: bytes, token: bytes) -> BiscuitCapability:
        """Verify a token for a type (with an empty id: for membership); raises Denied unless its owner granted it."""
        owner = self._network_key if type_id == _MEMBERSHIP else self._owner_of(type_id)
        if owner is None:
            raise Denied("type: the type of this right is not known here")
        read = self._verifier.read(token, owner)
        if read.inspect()[0].type_id != (ANY_TYPE if type_id == _MEMBERSHIP else type_id):
            raise Denied("type: the right is for another type than it was shown for")
        return read

    def verify_any(self, token: bytes, owners: Iterable[bytes]) -> BiscuitCapability:
        """Verify a token for membership or for any type of these owners; raises the Denied of the last that fits best."""
        refusal = Denied("signature: no owner known here has issued this right", code=ErrorCode.SIGNATURE)
        known = [] if self._network_key is None else [self._network_key]
        for owner in dict.fromkeys((*known, *owners)):
            try:
                return self._verify_of(token, owner)
            except Denied as refused:
                refusal = refusal if refused.code is ErrorCode.SIGNATURE else refused
        raise refusal

    def _verify_of(self, token: bytes, owner: bytes) -> BiscuitCapability:
        read = self._verifier.read(token, owner)
        type_id = read.inspect()[0].type_id
        if (self._network_key if type_id == ANY_TYPE else self._owner_of(_type_id(type_id))) != owner:
            raise Denied("type: the type of this right is not known here")
        return read

    # ── Members ──

    def unshown(self, to: NodeId, speakers: Iterable[NodeId], room: int, now_ms: int) -> tuple[MemberProof, ...]:
        """The proofs that this neighbour needs to verify records of these members and was not sent before."""
        near, found = self._near.get(to), list[MemberProof]()
        if near is None or self._open_links:
            return ()
        for id in speakers:
            if id in near.shown or id == to:
                continue
            proof = self.own_proof(now_ms) if id == node_id_of(self._identity.public_key) else self.members.proof(id)
            if proof is None or len(found) >= PROOFS_MAX or (room := room - len(proof.token) - PROOF_BYTES) < 0:
                continue
            near.shown[id] = None
            found.append(proof)
        return tuple(found)

    def own_proof(self, now_ms: int) -> MemberProof:
        """The proof of this node's own membership."""
        return self._proof(self._identity.public_key, self.mine, now_ms)

    def show_again(self, to: NodeId, ids: Iterable[NodeId]) -> None:
        """This neighbour has no proof of these members: a message was lost."""
        near = self._near.get(to)
        for id in ids if near is not None else ():
            near.shown.pop(id, None)  # type: ignore[union-attr]

    # ── Steps ──

    def _hello(self, near: LinkedNeighbour, hello: LinkHello) -> list[NodeEffect]:
        if near.hello is not None:
            raise PeerError("link: a second hello")
        if VERSION not in hello.versions:
            raise PeerError(f"version: the neighbour speaks {list(hello.versions)[:8]}; expected {VERSION}")
        if len(hello.nonce) != NONCE_BYTES or len(hello.key) != len(self._identity.public_key):
            raise PeerError("link: a key or nonce of the wrong length")
        if self._bind_ids and node_id_of(hello.key) != near.peer.id:
            raise PeerError(f"link: {near.peer.id} is not the node of that key")
        near.hello = hello
        return [self._show(near, None)]

    def _show(self, near: LinkedNeighbour, held: Sequence[bytes] | None) -> NodeEffect:
        shown = self.shown(held)
        near.counter_out += 1
        signed = near.transcript(mine=True, counter=near.counter_out, shown=shown)
        return Send(near.peer.id, LinkCreds(shown, near.counter_out, self._identity.sign(signed)))

    def _creds(self, near: LinkedNeighbour, creds: LinkCreds, now_ms: int) -> list[NodeEffect]:
        if near.hello is None or creds.counter != near.counter_in + 1 or len(creds.shown) > TOKENS_MAX:
            raise PeerError("link: credentials before the hello, out of turn or too many")
        signed = near.transcript(mine=False, counter=creds.counter, shown=creds.shown)
        verify_signature(near.hello.key, creds.signature, signed, "the credentials")
        near.counter_in = creds.counter
        if near.credentials is None:
            near.credentials = Credentials(near.hello.key, self._state)
        rejected = [why for type_id, token in creds.shown if (why := self._accept(near, type_id, token))]
        ack = Send(near.peer.id, LinkAck(len(creds.shown) - len(rejected), tuple(rejected[:REASONS_MAX])))
        return [ack, *self._admit(near, now_ms)]

    def _accept(self, near: LinkedNeighbour, type_id: bytes, token: bytes) -> str:
        """Store one token, and return an empty string; otherwise the reason why not."""
        assert near.credentials is not None
        if type_id != _MEMBERSHIP and self._owner_of(type_id) is None:
            if len(near.unverified) < UNVERIFIED_MAX and len(token) <= UNVERIFIED_BYTES_MAX:
                near.unverified[token] = type_id
            return "type: unknown here; the right waits until it is known"
        try:
            near.credentials.add(self.verify(type_id, token))
        except Denied as refused:
            return str(refused)
        return ""

    def _admit(self, near: LinkedNeighbour, now_ms: int) -> list[NodeEffect]:
        assert near.credentials is not None
        assert near.hello is not None
        if near.ready:
            return self._expire(near, now_ms)
        if self._network_key is not None:
            near.credentials.right_for(AccessRequest(ANY_TYPE, "join-net"), now_ms)
        self.members.learn(self._proof(near.hello.key, near.credentials, now_ms), now_ms)
        near.ready = True
        return [LinkReady(near.peer.id, near.hello.domain)]

    def _proof(self, key: bytes, credentials: Credentials, now_ms: int) -> MemberProof:
        valid = [held for held in credentials.of(ANY_TYPE) if held.refusal(self._state, now_ms) is None]
        return MemberProof(key, valid[0].raw if valid else b"")

    def _expire(self, near: LinkedNeighbour, now_ms: int) -> list[NodeEffect]:
        if not near.ready or self._open_links:
            return []
        if near.credentials is not None and self._is_member(near.credentials, now_ms):
            return []
        near.ready = False
        return [Rejected(near.peer.id, "link: the neighbour is no longer a member of the network", cut=True)]

    def _is_member(self, credentials: Credentials, now_ms: int) -> bool:
        if self._network_key is None:
            return True
        return any(held.refusal(self._state, now_ms) is None for held in credentials.of(ANY_TYPE))

    def _organisation(self, credentials: Credentials) -> bytes:
        """The key that delegated the membership; empty if the network's own key granted it."""
        revoked = self._state.revoked
        held = [one for one in credentials.of(ANY_TYPE) if not any(id in revoked for id in one.links)]
        return next((found for one in held if (found := organisation_of(one))), b"")


def memberships_first(shown: Shown) -> Shown:
    """What is looked at of shown tokens: a few memberships, as one will do, and then the rights."""
    memberships = [each for each in shown if each[0] == _MEMBERSHIP][-MEMBERSHIPS_MAX:]  # The newest come last.
    return (*memberships, *(each for each in shown if each[0] != _MEMBERSHIP))[:TOKENS_MAX]


def _type_id(type_id: bytes | str) -> bytes:
    return type_id if isinstance(type_id, bytes) else _MEMBERSHIP
