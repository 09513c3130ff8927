"""Client subscriptions, and how the node advertises them to the overlay.

Each subscription is authorised, indexed for exact local matching, and advertised to the overlay as an interest: as it
is if the type is open or plain, otherwise sealed by attribute and signed. Every router that receives an advertisement
stores it and compares events with it; sealed ones it must verify as well, and the node seals all of them again when
keys change. So beyond `interests_max` subscriptions of one type the node advertises a *summary* instead: interest in
all events of the type.

    up to interests_max      one interest for each subscription
    one more                 the summary; once it is in place everywhere, the individual interests are withdrawn
    no subscription left     the summary is withdrawn

The summary costs messages if the subscriptions are narrow, never an event: the local index still decides who gets what.
It also tells other nodes less about them.

The methods return the router's effects; the node carries them out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from tidings.errors import Denied, InputError
from tidings.filters import Condition, parse
from tidings.node.client_authorization import Visibility
from tidings.node.credentials import HeldToken
from tidings.node.effects import Ended
from tidings.node.filter_encoding import UNREAD
from tidings.node.local_delivery import LocalSubscription
from tidings.node.type_registry import RegisteredType, TypeRegistry
from tidings.overlay import Completed, Effect, Everything, Interest, Peer, Sql, SubscriptionId, check_size
from tidings.security import SignedType

INTERESTS_MAX = 64  # Of one type, in a live broker: what a router compares with each event.
_ALL = "TRUE"


class InterestRouter(Protocol):
    """The part of a router that takes interests."""

    def subscribe(self, interest: Interest, now: float) -> list[Effect]: ...

    def unsubscribe(self, id: SubscriptionId, now: float) -> list[Effect]: ...


class SubscriberCheck(Protocol):
    """Who may subscribe (see `client_authorization`)."""

    def visibility_for(self, client: str, names: tuple[str, ...], signed: SignedType, now_ms: int) -> Visibility: ...

    def right_to_advertise(self, wanted: Condition, signed: SignedType, now_ms: int) -> HeldToken: ...

    def still_holds(self, held: HeldToken, now_ms: int) -> bool: ...


@dataclass(slots=True)
class InterestSummary:
    """Interest in all events of one type, advertised in the place of many subscriptions."""

    interest: Interest
    held: HeldToken | None
    """The broker's own right under which it is advertised; None for a type that is not sealed."""
    individual: dict[SubscriptionId, None]
    """The subscriptions advertised by themselves before, until the summary is in place."""
    version: int = 1
    waiting: list[SubscriptionId] = field(default_factory=list)
    """The subscriptions that are in place as soon as the summary is."""
    in_place: bool = False

    @property
    def id(self) -> SubscriptionId:
        return self.interest.id


class ClientSubscriptions:
    """All subscriptions of one node's clients."""

    def __init__(
        self,
        me: Peer,
        types: TypeRegistry,
        clients: SubscriberCheck,
        router: InterestRouter,
        *,
        blind: bool,
        interests_max: int | None,
    ) -> None:
        """`blind`: the router sees nothing of what is sealed. `interests_max`: None for no summaries."""
        self._me, self._types, self._clients, self._router = me, types, clients, router
        self._blind, self._interests_max = blind, interests_max
        self.all: dict[SubscriptionId, LocalSubscription] = {}
        self._summaries: dict[str, InterestSummary] = {}
        self._type_of_summary: dict[SubscriptionId, str] = {}
        self._withdrawn: set[SubscriptionId] = set()  # By the node and not by a client; never iterated.
        self._issued = 0

    def new_id(self) -> SubscriptionId:
        """An id that was not issued before in this incarnation of the node."""
        self._issued += 1
        return SubscriptionId(self._me.id, self._me.incarnation, self._issued)

    def summary(self, type: str) -> InterestSummary | None:
        """The summary advertised for the type with this wire name; None if there is none."""
        return self._summaries.get(type)

    # ── What clients ask for ──

    def subscribe(
        self, client: str, type: str, condition: str, now: float, now_ms: int
    ) -> tuple[SubscriptionId, list[Effect]]:
        """Add a subscription. Raises as `Node.subscribe` does, and then nothing has changed."""
        known = self._types.find(type)
        check_size(condition)
        if known.signed is not None:  # Whoever has no right to the type does not have its condition parsed.
            self._clients.visibility_for(client, (), known.signed, now_ms)
        one = LocalSubscription(self.new_id(), client, known.name, parse(condition, known.event_type), since=now)
        if known.signed is not None:
            one.visibility = self._clients.visibility_for(client, one.attributes, known.signed, now_ms)
            one.visible = one.visibility.at(now_ms)
        if known.keys is not None:
            known.keys.check_groups(one.attributes, now_ms)
        summary = self._summary_for(known, now_ms) if one.condition.boxes else None
        interest = None if summary is not None else self._interest(one, known, now_ms)
        known.local.add(one)
        self.all[one.id] = one
        if summary is not None:
            return one.id, self._summarise(summary, known, one.id, now)
        if interest is None:
            return one.id, [Completed("subscribe", one.id)]
        return one.id, self._router.subscribe(interest, now)

    def unsubscribe(self, id: SubscriptionId, now: float) -> list[Effect]:
        """Remove a subscription; removing an unknown one completes at once."""
        one = self.all.pop(id, None)
        if one is None:
            return [Completed("unsubscribe", id)]
        local = self._types[one.type].local
        local.remove(id)
        summary = self._summaries.get(one.type)
        if summary is None:
            return self._router.unsubscribe(id, now)
        self._withdrawn.discard(id)
        effects: list[Effect] = [Completed("unsubscribe", id)]
        if id in summary.individual:
            del summary.individual[id]
            effects = self._router.unsubscribe(id, now)
        return effects if len(local) else [*effects, *self._withdraw_summary(one.type, summary, now)]

    # ── What the overlay answers ──

    def confirmed(self, id: SubscriptionId, now: float) -> tuple[list[SubscriptionId], list[Effect]]:
        """An interest is in place everywhere: the subscriptions that are in place with it, and further effects."""
        if id in self._type_of_summary:
            return self._summary_in_place(self._summaries[self._type_of_summary[id]], now)
        one = self.all.get(id)
        if one is None or one.in_place:
            return [], []
        one.in_place = True
        return [id], []

    def failed(self, id: SubscriptionId) -> bool:
        """The overlay refused an interest: whether it was a new subscription, which is removed."""
        one = self.all.get(id)
        if one is None or one.in_place:
            return False
        del self.all[id]
        self._types[one.type].local.remove(id)
        return True

    def is_internal(self, id: SubscriptionId) -> bool:
        """Whether this withdrawal was the node's own and no client waits for it; asked once, when it completes."""
        if id not in self._withdrawn:
            return False
        self._withdrawn.discard(id)
        return True

    # ── What time and keys change ──

    def retry(self, id: SubscriptionId, now: float, now_ms: int) -> list[Effect]:
        """Advertise again what the overlay had refused."""
        one = self.all.get(id)
        type = one.type if one is not None else self._type_of_summary.get(id)
        return self.renew(type, now, now_ms) if type is not None else []

    def renew(self, name: str, now: float, now_ms: int) -> list[Effect]:
        """Seal the interests of a type again under the current keys, so that later members can open them."""
        known, effects, summary = self._types[name], list[Effect](), self._summaries.get(name)
        if summary is not None:
            effects += self._advertise_summary_again(summary, known, now, now_ms)
        for one in known.local.all() if summary is None else [self.all[id] for id in summary.individual]:
            effects += self._advertise_again(one, known, now, now_ms)
        return effects

    def expire(self, now: float, now_ms: int) -> tuple[list[Ended], list[Effect]]:
        """The subscriptions whose client's rights have ended, for the node to remove; and further effects.

        An interest whose advertising right (the broker's own) has ended is advertised under another right, if any.
        """
        ended, advertised = list[Ended](), list[LocalSubscription]()
        for one in self.all.values():
            if not one.still_permitted(now_ms):
                ended.append(one.end(now_ms))
            elif one.advertised_under is not None:
                advertised.append(one)
        return ended, self._move_to_other_rights(advertised, now, now_ms)

    def _move_to_other_rights(self, advertised: list[LocalSubscription], now: float, now_ms: int) -> list[Effect]:
        effects: list[Effect] = []
        for name, summary in self._summaries.items():
            if summary.held is not None and not self._clients.still_holds(summary.held, now_ms):
                effects += self._advertise_summary_again(summary, self._types[name], now, now_ms)
        # Checked once per right: thousands of subscriptions share one, and the node must not pause.
        holds: dict[bytes, bool] = {}
        for one in advertised:
            assert one.advertised_under is not None
            token = one.advertised_under.raw
            if token not in holds:
                holds[token] = self._clients.still_holds(one.advertised_under, now_ms)
            if not holds[token] and self._is_individual(one):
                effects += self._advertise_again(one, self._types[one.type], now, now_ms)
        return effects

    # ── Individual interests ──

    def _interest(self, one: LocalSubscription, known: RegisteredType, now_ms: int) -> Interest | None:
        """The interest to advertise; None for a condition that no event can match."""
        if not one.condition.boxes:
            return None
        wanted = Sql.of(one.condition)
        if known.keys is None or known.signed is None:
            return Interest(one.id, known.name, wanted)
        one.version += 1
        held = self._clients.right_to_advertise(one.condition, known.signed, now_ms)
        envelope = known.keys.seal_filter(one.id, one.condition, one.version, held, now_ms)
        one.advertised_under = held
        return Interest(one.id, known.name, wanted if envelope and not self._blind else UNREAD, envelope)

    def _advertise_again(self, one: LocalSubscription, known: RegisteredType, now: float, now_ms: int) -> list[Effect]:
        try:
            interest = self._interest(one, known, now_ms)
        except (Denied, InputError):
            return []  # The old advertisement stays: fewer nodes can open it, but all still forward its events.
        return self._router.subscribe(interest, now) if interest is not None else []

    def _is_individual(self, one: LocalSubscription) -> bool:
        """Whether the overlay has an interest for this subscription alone."""
        summary = self._summaries.get(one.type)
        return summary is None or one.id in summary.individual

    # ── Summaries ──

    def _summary_for(self, known: RegisteredType, now_ms: int) -> InterestSummary | None:
        """The summary that a new subscription falls under, made if needed; None below the limit. Raises as sealing does."""
        if self._interests_max is None:
            return None
        summary = self._summaries.get(known.name)
        if summary is None and len(known.local) >= self._interests_max:
            interest, held = self._summary_interest(self.new_id(), known, 1, now_ms)
            individual = {one.id: None for one in known.local.all() if one.condition.boxes}
            summary = InterestSummary(interest, held, individual)
        return summary

    def _summary_interest(
        self, id: SubscriptionId, known: RegisteredType, version: int, now_ms: int
    ) -> tuple[Interest, HeldToken | None]:
        if known.keys is None or known.signed is None:
            return Interest(id, known.name, Everything()), None
        everything = parse(_ALL, known.event_type)
        held = self._clients.right_to_advertise(everything, known.signed, now_ms)
        envelope = known.keys.seal_filter(id, everything, version, held, now_ms)
        return Interest(id, known.name, UNREAD, envelope), held

    def _summarise(
        self, summary: InterestSummary, known: RegisteredType, id: SubscriptionId, now: float
    ) -> list[Effect]:
        """Put a subscription under the summary, and advertise the summary if it is new."""
        if summary.in_place:
            return [Completed("subscribe", id)]
        summary.waiting.append(id)
        if known.name in self._summaries:
            return []
        self._summaries[known.name], self._type_of_summary[summary.id] = summary, known.name
        return self._router.subscribe(summary.interest, now)

    def _summary_in_place(self, summary: InterestSummary, now: float) -> tuple[list[SubscriptionId], list[Effect]]:
        """The overlay has the summary everywhere: withdraw the individual interests."""
        summary.in_place = True
        waiting, summary.waiting = summary.waiting, []
        individual, summary.individual = summary.individual, {}
        placed = [id for each in waiting for id in self.confirmed(each, now)[0]]
        effects: list[Effect] = []
        for id in individual:
            self._withdrawn.add(id)
            effects += self._router.unsubscribe(id, now)
        return placed, effects

    def _advertise_summary_again(
        self, summary: InterestSummary, known: RegisteredType, now: float, now_ms: int
    ) -> list[Effect]:
        try:
            interest, held = self._summary_interest(summary.id, known, summary.version + 1, now_ms)
        except Denied:
            return []  # The old advertisement stays, until there is a right or a key for a new one.
        summary.held, summary.interest, summary.version = held, interest, summary.version + 1
        return self._router.subscribe(interest, now)

    def _withdraw_summary(self, name: str, summary: InterestSummary, now: float) -> list[Effect]:
        del self._summaries[name], self._type_of_summary[summary.id]
        self._withdrawn.add(summary.id)
        return self._router.unsubscribe(summary.id, now)
