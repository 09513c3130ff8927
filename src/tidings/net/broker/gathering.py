"""Many subscriptions of one broker, gathered into few for the overlay.

A router keeps book of every interest of its own node, and of everybody's it hears of. That suits brokers with
tens of subscriptions. A broker with thousands wants most events of a type anyway, and its own index tells
in microseconds whom each is for. So beyond `APART_MAX` interests of one type the overlay is told one thing only:
this broker wants them all. It costs messages where the subscriptions are narrow, never an event.

What is sealed is left as it is here: what is said about it must be sealed and signed, so the node itself gathers
it (see `NodePolicy.apart_max`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tidings.overlay import (
    Completed,
    Effect,
    Everything,
    Failed,
    Interest,
    NodeId,
    Packet,
    Peer,
    Router,
    SubscriptionId,
)

APART_MAX = 64  # Interests of one type that the overlay is told one by one; what a router walks for each event.
_WIDE_FROM = 1 << 62  # Numbers of gathered interests: no broker makes so many subscriptions of its own.


@dataclass(slots=True)
class _Group:
    """This broker's interests in one type."""

    own: dict[SubscriptionId, Interest] = field(default_factory=dict)
    wide: SubscriptionId | None = None
    is_known: bool = False  # Whether the wide one is known wherever it must be.
    waiting: list[SubscriptionId] = field(default_factory=list)


class Gathering(Router[Any]):
    """A router that tells another one of its broker's interests, gathered."""

    def __init__(self, inner: Router[Any], me: Peer, *, apart_max: int = APART_MAX) -> None:
        self.inner, self._me, self._apart_max = inner, me, apart_max
        self._groups: dict[str, _Group] = {}
        self._of: dict[SubscriptionId, str] = {}
        self._wide: dict[SubscriptionId, str] = {}
        self._silent: set[SubscriptionId] = set()  # Taken back from the overlay only, and nobody asked; never walked.
        self._made = 0

    # ── Wanting ──

    def subscribe(self, interest: Interest, now: float) -> list[Effect]:
        if interest.envelope:
            return self._heard(self.inner.subscribe(interest, now), now)
        group = self._groups.setdefault(interest.type, _Group())
        group.own[interest.id] = interest
        self._of[interest.id] = interest.type
        if group.wide is not None:
            if group.is_known:
                return [Completed("subscribe", interest.id)]
            group.waiting.append(interest.id)
            return []
        if len(group.own) <= self._apart_max:
            return self._heard(self.inner.subscribe(interest, now), now)
        return self._widen(group, interest, now)

    def _widen(self, group: _Group, interest: Interest, now: float) -> list[Effect]:
        self._made += 1
        group.wide = SubscriptionId(self._me.id, self._me.incarnation, _WIDE_FROM + self._made)
        group.waiting.append(interest.id)
        self._wide[group.wide] = interest.type
        return self._heard(self.inner.subscribe(Interest(group.wide, interest.type, Everything()), now), now)

    def _is_wide(self, id: SubscriptionId, now: float) -> list[Effect]:
        """The overlay knows that everything is wanted: the single interests are needed there no more."""
        group = self._groups.get(self._wide[id])
        if group is None or group.is_known or group.wide != id:
            return []
        group.is_known = True
        waiting, group.waiting = group.waiting, []
        effects: list[Effect] = [Completed("subscribe", each) for each in waiting if each in group.own]
        for single in [each for each in group.own if each not in set(waiting)]:
            self._silent.add(single)
            effects += self._heard(self.inner.unsubscribe(single, now), now)
        return effects

    def unsubscribe(self, id: SubscriptionId, now: float) -> list[Effect]:
        type = self._of.pop(id, None)
        if type is None:
            return self._heard(self.inner.unsubscribe(id, now), now)
        group = self._groups[type]
        del group.own[id]
        if group.wide is None:
            return self._heard(self.inner.unsubscribe(id, now), now)
        effects: list[Effect] = [Completed("unsubscribe", id)]
        if not group.own:
            del self._groups[type]
            self._silent.add(group.wide)
            effects += self._heard(self.inner.unsubscribe(group.wide, now), now)
        return effects

    def _heard(self, effects: list[Effect], now: float) -> list[Effect]:
        """The inner router's effects, without its word on interests that are not the node's."""
        heard: list[Effect] = []
        for effect in effects:
            match effect:
                case Completed("subscribe", SubscriptionId() as id) if id in self._wide:
                    heard += self._is_wide(id, now)
                case Completed("unsubscribe", SubscriptionId() as id) | Failed(
                    "unsubscribe", _, SubscriptionId() as id
                ) if id in self._silent:
                    self._silent.discard(id)
                case _:
                    heard.append(effect)
        return heard

    # ── Everything else is the inner router's ──

    def start(self, now: float, memory: bytes = b"") -> list[Effect]:
        return self._heard(self.inner.start(now, memory), now)

    def join(self, via: Sequence[Peer], now: float) -> list[Effect]:
        return self._heard(self.inner.join(via, now), now)

    def leave(self, now: float) -> list[Effect]:
        return self._heard(self.inner.leave(now), now)

    def publish(self, packet: Packet, now: float) -> list[Effect]:
        return self.inner.publish(packet, now)

    def receive(self, sender: NodeId, message: Any, now: float) -> list[Effect]:
        return self._heard(self.inner.receive(sender, message, now), now)

    def wake(self, token: Any, now: float) -> list[Effect]:
        return self._heard(self.inner.wake(token, now), now)

    def unsent(self, to: NodeId, message: Any, now: float) -> list[Effect]:
        return self._heard(self.inner.unsent(to, message, now), now)

    def peer_down(self, peer: NodeId, now: float) -> list[Effect]:
        return self._heard(self.inner.peer_down(peer, now), now)

    def peer_up(self, peer: Peer, now: float) -> list[Effect]:
        return self._heard(self.inner.peer_up(peer, now), now)

    def links(self) -> tuple[NodeId, ...]:
        return self.inner.links()

    def holdings(self) -> dict[str, tuple[int, int]]:
        return self.inner.holdings()

    def memory(self) -> bytes:
        return self.inner.memory()
