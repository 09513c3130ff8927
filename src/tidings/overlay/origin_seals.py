"""Origin seals: what a node says about itself, signed by it once and checked by everybody who hears of it.

Routers pass on what others have said: where a node is, what it subscribes to, which zones it owns. Whoever passes it on
could change it, or make it up. So each `OriginRecord` that leaves a node is sealed by its speaker, and a message that
comes in is refused unless every record in it is. A router carries seals along and knows nothing else of them.

    out   own records are signed; what this node merely concluded about others (that one has failed, say) stays here
    in    each record is verified, or was verified before: the last ones are kept by hash

Signing and verifying are given: the live broker's are Ed25519 with keys that node ids are made of.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import Any, Protocol, TypeAlias

import msgspec

from tidings.errors import ErrorCode, PeerError
from tidings.overlay.messages import Message, NodeId, OriginRecord, Peer, encoded, holds_records

VERIFIED_MAX = 65_536  # Seals known to be good, 100 bytes each; one that was pushed out is verified again.
NEW_AT_ONCE = 2048  # Seals in one message that are not known yet: ours have some hundreds of records, of all kinds.
SIGNED_MAX = 16_384  # Own records: a broker has about as many subscriptions.
PEERS_MAX = 16_384  # As their nodes last described them.
NUMBER_MAX = (1 << 62) - 1  # Clocks, versions and incarnations: honest ones count single steps or microseconds.
_CONTEXT = b"tidings/record/1\0"

Sign: TypeAlias = Callable[[bytes], bytes]
Verify: TypeAlias = Callable[[NodeId, bytes, bytes], None]
"""Takes the speaker, the seal and what it covers. Raises PeerError for a false one, UnknownSpeaker for a stranger's."""


class UnknownSpeaker(PeerError):
    """A record of a node whose membership has not been shown here."""

    def __init__(self, speakers: tuple[NodeId, ...]) -> None:
        super().__init__(f"record: no proof of membership of {', '.join(speakers[:3])}", code=ErrorCode.SIGNATURE)
        self.speakers = speakers


class Statement(Protocol):
    """What can be sealed."""

    @property
    def seal(self) -> bytes: ...

    def statement(self) -> tuple[Any, ...]: ...


class OriginSeals:
    """One node's seals: those it makes, and those of others that it has verified."""

    def __init__(self, me: NodeId, sign: Sign, verify: Verify) -> None:
        self._me, self._sign, self._verify = me, sign, verify
        self._signed: OrderedDict[bytes, bytes] = OrderedDict()
        self._verified: OrderedDict[bytes, None] = OrderedDict()
        self._peers: OrderedDict[NodeId, Peer] = OrderedDict()
        self.verifications = 0

    # ── In ──

    def check(self, message: Message) -> None:
        """Raises PeerError unless the speaker of each record in the message has sealed it."""
        if not holds_records(message.__class__):
            return
        strangers: dict[NodeId, None] = {}
        verified_max = self.verifications + NEW_AT_ONCE
        for record in _records(message):
            if self.verifications > verified_max:
                raise PeerError(f"record: more than {NEW_AT_ONCE} new ones in one message", code=ErrorCode.MESSAGE)
            try:
                self.check_record(record)
            except UnknownSpeaker as unknown:
                strangers.update(dict.fromkeys(unknown.speakers))
        if strangers:
            raise UnknownSpeaker(tuple(strangers))

    def check_record(self, record: Any) -> None:
        """Raises PeerError unless its speaker has sealed this record. Of a bare peer only the id counts."""
        if record.__class__ is Peer:
            if record == Peer(record.id) or self._peers.get(record.id) == record:
                return
        elif any(part.__class__ is int and not -1 <= part <= NUMBER_MAX for part in record.statement()):
            raise PeerError(f"record: a number of {record.__class__.__name__} is out of bounds", code=ErrorCode.MESSAGE)
        self.check_statement(record.speaker(), record)
        if record.__class__ is Peer:
            self.keep_peer(record)

    def check_statement(self, speaker: NodeId, record: Statement) -> None:
        """Raises PeerError unless `speaker` has sealed this."""
        body = _body(record)
        name = blake2b(speaker.encode() + record.seal + body, digest_size=16).digest()
        if name in self._verified:
            self._verified.move_to_end(name)
            return
        self.verifications += 1
        self._verify(speaker, record.seal, body)
        self._verified[name] = None
        if len(self._verified) > VERIFIED_MAX:
            self._verified.popitem(last=False)

    def keep_peer(self, peer: Peer) -> None:
        """A peer as it has described itself; its newest description is passed on."""
        known = self._peers.get(peer.id)
        if peer.seal and (known is None or known.incarnation <= peer.incarnation):
            self._peers[peer.id] = peer
            self._peers.move_to_end(peer.id)
            if len(self._peers) > PEERS_MAX:
                self._peers.popitem(last=False)

    def forget(self) -> None:
        """Memberships have changed: verify everything again when it next comes."""
        self._verified.clear()
        self._peers.clear()

    # ── Out ──

    def sealed(self, message: Any) -> Any:
        """The message with this node's own records sealed, and without what only others may say and have not said."""
        return self._sealed(message) if holds_records(message.__class__) else message

    def seal_of(self, record: Statement) -> bytes:
        """This node's seal of a record of its own."""
        body = _body(record)
        seal = self._signed.get(body)
        if seal is None:
            seal = self._signed[body] = self._sign(body)
            if len(self._signed) > SIGNED_MAX:
                self._signed.popitem(last=False)
        return seal

    def _sealed(self, part: Any) -> Any:
        if isinstance(part, msgspec.Struct):
            fields = [(name, getattr(part, name)) for name in part.__struct_fields__]
            fresh = {name: new for name, old in fields if (new := self._sealed(old)) is not old}
            part = msgspec.structs.replace(part, **fresh) if fresh else part
            return self._with_seal(part) if isinstance(part, OriginRecord) and not part.seal else part  # type: ignore[attr-defined]
        if part.__class__ is tuple:
            items = tuple(self._sealed(each) for each in part if not self._is_conclusion(each))
            return items if len(items) != len(part) or any(map(_differ, items, part)) else part
        if part.__class__ is dict:
            return {key: self._sealed(each) for key, each in part.items() if not self._is_conclusion(each)}
        return part

    def _with_seal(self, record: OriginRecord) -> OriginRecord:
        if record.speaker() == self._me:
            return msgspec.structs.replace(record, seal=self.seal_of(record))  # type: ignore[arg-type]
        if record.__class__ is Peer:
            return self._peers.get(record.speaker()) or Peer(record.speaker())
        raise PeerError(f"record: {record.__class__.__name__} is not this node's to say")

    def _is_conclusion(self, part: Any) -> bool:
        """Whether this is something about another node that it has not said itself. Peers are named without a seal."""
        if not isinstance(part, OriginRecord) or part.__class__ is Peer:
            return False
        return not part.seal and part.speaker() != self._me  # type: ignore[attr-defined]

    def holdings(self) -> dict[str, tuple[int, int]]:
        return {"seals": (len(self._verified), VERIFIED_MAX), "described": (len(self._peers), PEERS_MAX)}


def speakers_in(message: Message) -> list[NodeId]:
    """The nodes whose sealed records are in a message, each once."""
    if not holds_records(message.__class__):
        return []
    return list(dict.fromkeys(record.speaker() for record in _records(message) if record.seal))  # type: ignore[attr-defined]


def _body(record: Statement) -> bytes:
    return _CONTEXT + record.__class__.__name__.encode() + b"\0" + encoded(record.statement())


def _differ(new: Any, old: Any) -> bool:
    return new is not old


def _records(part: Any) -> Iterator[OriginRecord]:
    if isinstance(part, msgspec.Struct):
        if isinstance(part, OriginRecord):
            yield part
        for name in part.__struct_fields__:
            yield from _records(getattr(part, name))
    elif isinstance(part, tuple | list):
        for each in part:
            yield from _records(each)
    elif part.__class__ is dict:
        for each in part.values():
            yield from _records(each)
