"""What this node's clients want, and what the overlay is told of it.

Each subscription is checked, kept to be matched here exactly, and told to the overlay as an interest: as it is where the
type is open or plain, otherwise sealed by attribute and signed. Sealing costs more than all else about a
subscription, every broker that hears of it has to check it, and all are sealed again when keys change. So
beyond `apart_max` subscriptions of one sealed type the overlay is told one thing only, sealed and signed likewise: this
broker wants all events of the type.

    up to apart_max     each is told by itself
    one more            everything is wanted; once that is known wherever it must be, the single ones are taken back
    none is left        everything is wanted no more

It costs messages where the subscriptions are narrow, never an event, and others learn less of what is wanted.

What comes out are the router's effects, for the node to look through.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tidings.errors import Denied, InputError
from tidings.filters import parse
from tidings.node.client_authorization import Clients
from tidings.node.credentials import Held
from tidings.node.effects import Ended
from tidings.node.filter_encoding import UNREAD
from tidings.node.local_subscriptions import LocalSubscription
from tidings.node.type_registry import Catalogue, Known
from tidings.overlay import Completed, Effect, Interest, Peer, Router, Sql, SubscriptionId

EVERYTHING = "TRUE"


@dataclass(slots=True)
class _Wide:
    """All events of one sealed type, wanted in the place of many subscriptions."""

    id: SubscriptionId
    held: Held
    """The right of this broker's own that it rests on."""
    interest: Interest
    version: int = 1
    apart: dict[SubscriptionId, None] = field(default_factory=dict)
    """What the overlay was told one by one, until it is known that everything is wanted."""
    waiting: list[SubscriptionId] = field(default_factory=list)
    is_known: bool = False


class Wanting:
    """All subscriptions of one node's clients."""

    def __init__(
        self,
        me: Peer,
        types: Catalogue,
        clients: Clients,
        router: Router[Any],
        *,
        blind: bool,
        apart_max: int | None,
    ) -> None:
        """`blind`: the router is shown nothing of what is sealed."""
        self._me, self._types, self._clients, self._router = me, types, clients, router
        self._blind, self._apart_max = blind, apart_max
        self.all: dict[SubscriptionId, LocalSubscription] = {}
        self._wide: dict[str, _Wide] = {}
        self._type_of_wide: dict[SubscriptionId, str] = {}
        self._made = 0

    def new_id(self) -> SubscriptionId:
        """One that was not given before in this life of the node."""
        self._made += 1
        return SubscriptionId(self._me.id, self._me.incarnation, self._made)

    # ── Wanting ──

    def subscribe(
        self, client: str, type: str, condition: str, now: float, now_ms: int
    ) -> tuple[SubscriptionId, list[Effect]]:
        """Takes a subscription up. Raises as `Node.subscribe` does; nothing has happened then."""
        known = self._types.find(type)
        one = LocalSubscription(self.new_id(), client, known.name, parse(condition, known.event_type))
        if known.signed is not None:
            self._clients.check_subscriber(one, known.signed, now_ms)
        if known.keys is not None:
            known.keys.check_groups(one.asks, now_ms)
        wide = self._wide_for(known, now_ms) if one.condition.boxes else None
        interest = None if wide is not None else self._interest(one, known, now_ms)
        known.local.add(one)
        self.all[one.id] = one
        if wide is not None:
            return one.id, self._wait_for(wide, known, one.id, now)
        if interest is None:
            return one.id, [Completed("subscribe", one.id)]
        return one.id, self._router.subscribe(interest, now)

    def unsubscribe(self, id: SubscriptionId, now: float) -> list[Effect]:
        """Takes a subscription back; one that is not there is taken back already."""
        one = self.all.pop(id, None)
        if one is None:
            return [Completed("unsubscribe", id)]
        local = self._types[one.type].local
        local.remove(id)
        wide = self._wide.get(one.type)
        if wide is None:
            return self._router.unsubscribe(id, now)
        effects: list[Effect] = [Completed("unsubscribe", id)]
        if id in wide.apart:
            del wide.apart[id]
            effects = self._router.unsubscribe(id, now)
        return effects if len(local) else [*effects, *self._narrow(one.type, wide, now)]

    def failed(self, id: SubscriptionId) -> bool:
        """The overlay does not take an interest: whether a new subscription is gone with it."""
        one = self.all.get(id)
        if one is None or one.stable:
            return False
        del self.all[id]
        self._types[one.type].local.remove(id)
        return True

    def known(self, id: SubscriptionId, now: float) -> tuple[list[SubscriptionId], list[Effect]]:
        """An interest is known wherever it must be: the subscriptions that are in place by that, and what else follows."""
        if id in self._type_of_wide:
            return self._is_wide(self._wide[self._type_of_wide[id]], now)
        one = self.all.get(id)
        if one is None or one.stable:
            return [], []
        one.stable = True
        return [id], []

    def again(self, id: SubscriptionId, now: float, now_ms: int) -> list[Effect]:
        """Tells the overlay once more of what it has not taken."""
        one = self.all.get(id)
        type = one.type if one is not None else self._type_of_wide.get(id)
        return self.renew(type, now, now_ms) if type is not None else []

    def renew(self, name: str, now: float, now_ms: int) -> list[Effect]:
        """Seals the subscriptions of a type again, under the keys of now, so that later members can read them."""
        known, effects, wide = self._types[name], list[Effect](), self._wide.get(name)
        if wide is not None:
            effects += self._seal_wide_again(wide, known, now, now_ms)
        for one in known.local.all() if wide is None else [self.all[id] for id in wide.apart]:
            effects += self._tell_again(one, known, now, now_ms)
        return effects

    def _tell_again(self, one: LocalSubscription, known: Known, now: float, now_ms: int) -> list[Effect]:
        try:
            interest = self._interest(one, known, now_ms)
        except (Denied, InputError):
            return []  # It stays as it was: readable for fewer, and wanted all the same.
        return self._router.subscribe(interest, now) if interest is not None else []

    def ended(self, now: float, now_ms: int) -> tuple[list[Ended], list[Effect]]:
        """The subscriptions that rights no longer answer, which are to be taken back; and what else follows.

        What was told by a right of this broker's own that is over is told by another one, if there is one.
        """
        ended, left = list[Ended](), list[LocalSubscription]()
        for one in self.all.values():
            if one.sight is not None and (seen := one.sight.at(now_ms)) is not one.seen and not one.look(seen):
                ended.append(Ended(one.id, one.client, one.sight.refusal(one.asks, now_ms)))
            elif one.told_by is not None:
                left.append(one)
        return ended, self._tell_by_others(left, now, now_ms)

    def _tell_by_others(self, told: list[LocalSubscription], now: float, now_ms: int) -> list[Effect]:
        effects: list[Effect] = []
        for name, wide in self._wide.items():
            if not self._clients.still_holds(wide.held, now_ms):
                effects += self._seal_wide_again(wide, self._types[name], now, now_ms)
        # By right, since thousands of subscriptions are told by one and a node must not pause.
        holds: dict[bytes, bool] = {}
        for one in told:
            assert one.told_by is not None
            if one.told_by.raw not in holds:
                holds[one.told_by.raw] = self._clients.still_holds(one.told_by, now_ms)
            if not holds[one.told_by.raw] and self._is_apart(one):
                effects += self._tell_again(one, self._types[one.type], now, now_ms)
        return effects

    def _is_apart(self, one: LocalSubscription) -> bool:
        """Whether the overlay knows of a subscription by itself."""
        wide = self._wide.get(one.type)
        return wide is None or one.id in wide.apart

    def _interest(self, one: LocalSubscription, known: Known, now_ms: int) -> Interest | None:
        """What the router is told of a subscription; nothing of one that no event can match."""
        if not one.condition.boxes:
            return None
        wanted = Sql.of(one.condition)
        if known.keys is None or known.signed is None:
            return Interest(one.id, known.name, wanted)
        one.version += 1
        held = self._clients.right_to_tell(one.condition, known.signed, now_ms)
        envelope = known.keys.seal_filter(one.id, one.condition, one.version, held, now_ms)
        one.told_by = held
        return Interest(one.id, known.name, wanted if envelope and not self._blind else UNREAD, envelope)

    # ── Wanting everything ──

    def _wide_for(self, known: Known, now_ms: int) -> _Wide | None:
        """What a new subscription is gathered in, made if need be; None where it is told by itself. Raises as sealing does."""
        if known.keys is None or self._apart_max is None:
            return None
        wide = self._wide.get(known.name)
        if wide is None and len(known.local) >= self._apart_max:
            wide = self._make_wide(known, now_ms)
        return wide

    def _make_wide(self, known: Known, now_ms: int) -> _Wide:
        assert known.signed is not None
        everything = parse(EVERYTHING, known.event_type)
        id, held = self.new_id(), self._clients.right_to_tell(everything, known.signed, now_ms)
        wide = _Wide(id, held, self._wide_interest(id, known, held, 1, now_ms))
        wide.apart = {one.id: None for one in known.local.all() if one.condition.boxes}
        return wide

    def _wide_interest(self, id: SubscriptionId, known: Known, held: Held, version: int, now_ms: int) -> Interest:
        assert known.keys is not None
        everything = parse(EVERYTHING, known.event_type)
        return Interest(id, known.name, UNREAD, known.keys.seal_filter(id, everything, version, held, now_ms))

    def _wait_for(self, wide: _Wide, known: Known, id: SubscriptionId, now: float) -> list[Effect]:
        if wide.is_known:
            return [Completed("subscribe", id)]  # The node hears it, and books it as known.
        wide.waiting.append(id)
        if known.name in self._wide:
            return []
        self._wide[known.name], self._type_of_wide[wide.id] = wide, known.name
        return self._router.subscribe(wide.interest, now)

    def _is_wide(self, wide: _Wide, now: float) -> tuple[list[SubscriptionId], list[Effect]]:
        """The overlay knows that everything is wanted: it need not know of the single ones any more."""
        wide.is_known = True
        waiting, wide.waiting = wide.waiting, []
        apart, wide.apart = wide.apart, {}
        placed = [id for each in waiting for id in self.known(each, now)[0]]
        return placed, [effect for id in apart for effect in self._router.unsubscribe(id, now)]

    def _seal_wide_again(self, wide: _Wide, known: Known, now: float, now_ms: int) -> list[Effect]:
        assert known.signed is not None
        try:
            held = self._clients.right_to_tell(parse(EVERYTHING, known.event_type), known.signed, now_ms)
            interest = self._wide_interest(wide.id, known, held, wide.version + 1, now_ms)
        except Denied:
            return []  # It stays as it was, until there is a right to it or a key for it.
        wide.held, wide.interest, wide.version = held, interest, wide.version + 1
        return self._router.subscribe(interest, now)

    def _narrow(self, name: str, wide: _Wide, now: float) -> list[Effect]:
        del self._wide[name], self._type_of_wide[wide.id]
        return self._router.unsubscribe(wide.id, now)
