"""Durable interest: which brokers have durable subscriptions, to what, and so need which events.

Every broker signs an advertisement of all its durable subscriptions, and of the types that it has live ones to, and
floods it. An advertisement has a version that
only grows, so that the newest wins however advertisements travel. The directory holds the newest of each broker and
answers, for each published event, which brokers need it.

Whoever advertises makes others store events for it and dial it. So an advertisement carries the membership and the
rights that it rests on. They are asked about again for each event; an advertisement that is not renewed expires; and one
organisation has a bounded share of the directory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from tidings.delivery.messages import InterestAdvertisement, InterestVersions
from tidings.errors import Denied, FilterError, FilterTooLarge, PeerError
from tidings.events import EventType, Value
from tidings.matching import Index
from tidings.overlay import NodeId, Peer, check_size
from tidings.security import Identity, verify_signature

INTERESTS_MAX = 200_000  # Of one broker; more makes its advertisement too large anyway.
LIVE_TYPES_MAX = 4096  # Of one broker; what it has live subscriptions to beyond them is not checked.
BROKERS_MAX = 4096
BROKERS_OF_ONE_MAX = 64  # Brokers with durable subscribers of one organisation; it chooses them.
LIVE_OF_ONE_MAX = 1024  # Brokers of one organisation with live ones only: as many as are members.
RIGHTS_MAX = 256  # Shown with one advertisement.
RENEW_S = 3600.0  # How often a broker advertises again, whether or not anything has changed.
EXPIRE_S = 30 * 24 * RENEW_S  # As long as a broker may be away and still be owed what it missed.
AHEAD_S_MAX = 300.0  # How far a version, which is a moment, may lie ahead of this broker's clock.

TypeNamed: TypeAlias = Callable[[str], EventType | None]
"""The event type of a name, if this broker knows it."""
BrokerIdOf: TypeAlias = Callable[[bytes], NodeId]
"""The id of the broker that has this public key."""


class DurableInterest(msgspec.Struct, frozen=True, array_like=True):
    """One durable subscription as other brokers know it. Without a condition, it needs all events of the type."""

    id: str
    type: str
    condition: str
    since_us: int


class BrokerInterests(msgspec.Struct, frozen=True, array_like=True):
    """The body of an advertisement: all durable subscriptions of one broker, and the version of this list."""

    who: Peer
    version: int
    interests: tuple[DurableInterest, ...]
    live: tuple[str, ...] = ()
    """The types that it has live subscriptions to (see `spot_checks`), and those of messages about keys."""


_BODY = msgspec.msgpack.Decoder(BrokerInterests)
_CONTEXT = b"tidings/wants/1\0"


Shown: TypeAlias = tuple[tuple[bytes, bytes], ...]
"""Rights as an advertisement carries them."""
OrganisationOf: TypeAlias = Callable[[bytes, Shown], bytes]
"""The organisation of the member with this key, whose rights are kept; raises Denied for anybody else."""


def sign_advertisement(body: BrokerInterests, identity: Identity, rights: Shown = ()) -> InterestAdvertisement:
    """The advertisement of a broker, signed so that no broker on the way can change it."""
    raw = msgspec.msgpack.encode(body)
    return InterestAdvertisement(raw, identity.public_key, identity.sign(_CONTEXT + raw), rights)


def read_advertisement(advertisement: InterestAdvertisement, broker_id_of: BrokerIdOf) -> BrokerInterests:
    """The body of an advertisement; raises PeerError unless the broker that it is about has signed it."""
    key, signature = advertisement.key, advertisement.signature
    verify_signature(key, signature, _CONTEXT + advertisement.body, "an interest advertisement")
    try:
        body = _BODY.decode(advertisement.body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as wrong:
        raise PeerError(f"interest: {wrong}") from None
    if body.who.id != broker_id_of(key) or len(body.interests) > INTERESTS_MAX or len(body.live) > LIVE_TYPES_MAX:
        raise PeerError("interest: not the signer's own, or too many")
    try:
        for interest in body.interests:
            check_size(interest.condition)
    except FilterTooLarge as wrong:
        raise PeerError(f"interest: {wrong}") from None
    return body


class InterestDirectory:
    """The newest advertisement of every broker, this one's included, and an index over those of the others."""

    def __init__(
        self,
        me: Peer,
        identity: Identity,
        type_named: TypeNamed,
        broker_id_of: BrokerIdOf,
        organisation_of: OrganisationOf,
        *,
        version: int = 0,
    ) -> None:
        """`version` is the last version of this broker's own advertisement, from disk."""
        self._organisation_of = organisation_of
        self._organisations: dict[NodeId, bytes] = {}
        self._me, self._identity, self._type_named, self._broker_id_of = me, identity, type_named, broker_id_of
        self.version = version
        self._advertisements: dict[NodeId, InterestAdvertisement] = {}
        self._known: dict[NodeId, BrokerInterests] = {}
        self._indexes: dict[str, Index] = {}
        self._unconditional: dict[str, dict[str, None]] = {}  # By type: interests without a condition.
        self._live: dict[str, dict[NodeId, None]] = {}

    # ── Advertisements ──

    def advertise(
        self, interests: Iterable[DurableInterest], now_us: int, rights: Shown, live: Sequence[str] = ()
    ) -> InterestAdvertisement:
        """This broker's own advertisement, in a new version; the caller persists `version` and sends it to all."""
        self.version = max(self.version + 1, now_us)  # Grows even where the journal was lost.
        body = BrokerInterests(self._me, self.version, tuple(interests), tuple(live[:LIVE_TYPES_MAX]))
        signed = self._advertisements[self._me.id] = sign_advertisement(body, self._identity, rights)
        return signed

    def restore(self, advertisement: InterestAdvertisement, now_us: int) -> None:
        """Takes up an advertisement of another broker from disk; raises Denied for one that does not hold any more."""
        body = read_advertisement(advertisement, self._broker_id_of)
        self.admit(body, advertisement, now_us)
        self.learn(body, advertisement)

    def versions(self) -> InterestVersions:
        """The versions that this broker has, for anti-entropy."""
        known = {broker: body.version for broker, body in self._known.items()}
        known[self._me.id] = self.version if self._me.id in self._advertisements else -1
        return InterestVersions(known)

    def newer_than(self, theirs: InterestVersions) -> list[InterestAdvertisement]:
        """What another broker lacks, going by the versions it has."""
        return [
            self._advertisements[broker]
            for broker, version in self.versions().known.items()
            if version > theirs.known.get(broker, -1) and broker in self._advertisements
        ]

    def verify(self, advertisement: InterestAdvertisement) -> BrokerInterests | None:
        """The body of a received advertisement if it is another broker's; raises PeerError if it is forged."""
        body = read_advertisement(advertisement, self._broker_id_of)
        if body.who.id == self._me.id:
            self.version = max(self.version, body.version)  # From before this broker's journal was lost.
            return None
        return body

    def admit(self, body: BrokerInterests, advertisement: InterestAdvertisement, now_us: int) -> None:
        """Raises Denied unless a member of the network, with room in its organisation's share, says this now."""
        if not (now_us - EXPIRE_S * 1e6 <= body.version <= now_us + AHEAD_S_MAX * 1e6):
            raise Denied("interest: advertised too long ago, or in the future")
        if len(advertisement.rights) > RIGHTS_MAX:
            raise Denied(f"interest: more than {RIGHTS_MAX} rights")
        organisation, broker = self._organisation_of(advertisement.key, advertisement.rights), body.who.id
        others = [id for id, of in self._organisations.items() if of == organisation and id != broker]
        if len(others) >= LIVE_OF_ONE_MAX:
            raise Denied(f"interest: one organisation has more than {LIVE_OF_ONE_MAX} brokers with subscribers")
        durable = sum(1 for id in others if id in self._known and self._known[id].interests)
        if body.interests and durable >= BROKERS_OF_ONE_MAX:
            raise Denied(
                f"interest: one organisation has more than {BROKERS_OF_ONE_MAX} brokers with durable subscribers"
            )
        self._organisations[broker] = organisation

    def expire(self, now_us: int) -> list[NodeId]:
        """Drops the brokers that have not renewed their advertisement; returns them."""
        gone = [id for id, body in self._known.items() if body.version < now_us - EXPIRE_S * 1e6]
        for id in gone:
            old = self._known.pop(id)
            for interest in old.interests:
                self._remove(id, interest)
            self._remove_live(id, old.live)
            self._advertisements.pop(id, None)
            self._organisations.pop(id, None)
        return gone

    def is_news(self, body: BrokerInterests) -> bool:
        """Whether this version is newer than the one in the directory."""
        known = self._known.get(body.who.id)
        return known is None or body.version > known.version

    def added_by(self, body: BrokerInterests) -> list[DurableInterest]:
        """The subscriptions that this version adds to the one in the directory."""
        known = self._known.get(body.who.id)
        ids = {interest.id for interest in known.interests} if known else set()
        return [interest for interest in body.interests if interest.id not in ids]

    def live_added_by(self, body: BrokerInterests) -> list[str]:
        """The types of live subscriptions that this version adds to the one in the directory."""
        known = self._known.get(body.who.id)
        return [type for type in body.live if known is None or type not in known.live]

    def learn(self, body: BrokerInterests, advertisement: InterestAdvertisement) -> None:
        """Replaces a broker's entry; the caller persists the advertisement."""
        broker = body.who.id
        old = self._known.get(broker)
        if old is None and len(self._known) >= BROKERS_MAX:
            raise PeerError(f"interest: more than {BROKERS_MAX} brokers")
        kept = {interest.id for interest in body.interests}
        for interest in old.interests if old else ():
            if interest.id not in kept:
                self._remove(broker, interest)
        for interest in self.added_by(body):
            self._add(broker, interest)
        if old is not None:
            self._remove_live(broker, old.live)
        for type in body.live:
            self._live.setdefault(type, {})[broker] = None
        self._known[broker], self._advertisements[broker] = body, advertisement

    def peers(self) -> list[Peer]:
        """The other brokers in the directory, and their addresses."""
        return [body.who for body in self._known.values()]

    # ── Lookup ──

    def has_interest_in(self, type: str) -> bool:
        """Whether any other broker may need events of this type."""
        return type in self._unconditional or type in self._indexes

    def brokers_for(self, type: str, values: Mapping[str, Value] | None) -> list[NodeId]:
        """The brokers that asked for such an event, each once; whether one may still have it is the caller's to know."""
        found: dict[NodeId, None] = {name.partition("/")[0]: None for name in self._unconditional.get(type, ())}
        index = self._indexes.get(type)
        if index is not None and len(index) and values is not None:
            found.update((name.partition("/")[0], None) for name in index.match_values(values))
        return list(found)

    def live_brokers(self, type: str) -> list[NodeId]:
        """The brokers with live subscriptions to a type; whether one may have it now is the caller's to know."""
        return list(self._live.get(type, ()))

    def _remove_live(self, broker: NodeId, types: Iterable[str]) -> None:
        for type in types:
            self._live.get(type, {}).pop(broker, None)
            if type in self._live and not self._live[type]:
                del self._live[type]

    def _add(self, broker: NodeId, interest: DurableInterest) -> None:
        name, index = f"{broker}/{interest.id}", self._index(interest.type) if interest.condition else None
        try:
            if index is not None:
                index.add(name, interest.condition)
                return
        except FilterError:  # Of a newer version of the language, say: better too much than too little.
            pass
        self._unconditional.setdefault(interest.type, {})[name] = None

    def _remove(self, broker: NodeId, interest: DurableInterest) -> None:
        name, index = f"{broker}/{interest.id}", self._indexes.get(interest.type)
        if self._unconditional.get(interest.type, {}).pop(name, 1) is not None and index is not None and name in index:
            index.remove(name)

    def _index(self, type: str) -> Index | None:
        event_type = self._type_named(type)
        if event_type is not None and type not in self._indexes:
            self._indexes[type] = Index(event_type)
        return self._indexes.get(type)


def matcher(interest: DurableInterest, event_type: EventType | None) -> Callable[[Mapping[str, Any] | None], bool]:
    """Whether an event with these values may match one subscription; True where that cannot be decided."""
    index = Index(event_type) if interest.condition and event_type is not None else None
    try:
        if index is not None:
            index.add("it", interest.condition)
    except FilterError:
        index = None
    known = index
    return lambda values: known is None or values is None or bool(known.match_values(values))


def may_match(interest: DurableInterest, event_type: EventType | None, values: Mapping[str, Any] | None) -> bool:
    """The same for one event."""
    return matcher(interest, event_type)(values)
