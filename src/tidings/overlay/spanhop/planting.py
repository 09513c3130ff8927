"""This broker's own subscriptions, and which parts of their boxes are known to be covered.

A subscription is planted in every zone its boxes touch. It travels as pieces that are cut
along the split tree, so each zone gets exactly one; the zone stores it and tells the home
which part of the box that was. The home keeps what is still *missing* and, after a while,
plants that again. When nothing is missing the subscription is complete, whoever died on the way.

Taking one back is the same with a record that says so.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidings.overlay.interest import Interest
from tidings.overlay.messages import SubscriptionId
from tidings.overlay.router import Asked
from tidings.space import Zone

OWN_MAX = 65_536
AGAIN_MAX = 12  # Times that missing parts are planted again, ever more patiently: some two minutes.
MISSING_MAX = 4096  # Parts of one subscription; more than that and it is planted as a whole again.


@dataclass(slots=True)
class HomeSubscription:
    """One subscription of this broker. `asked` is what is waited for, None when it is done."""

    interest: Interest
    boxes: tuple[Zone, ...]
    version: int
    missing: list[Zone]
    asked: Asked | None = "subscribe"
    gone: bool = False
    tries: int = 0


class HomeSubscriptions:
    """The book of own subscriptions."""

    def __init__(self) -> None:
        self.own: dict[SubscriptionId, HomeSubscription] = {}

    def begin(self, interest: Interest, boxes: tuple[Zone, ...]) -> HomeSubscription:
        """Note a new subscription, or a new wish under an old id."""
        before = self.own.get(interest.id)
        own = HomeSubscription(interest, boxes, before.version + 2 if before else 1, list(boxes))
        self.own[interest.id] = own
        return own

    def end(self, id: SubscriptionId) -> HomeSubscription | None:
        """Note that one is to be taken back; None if there is nothing to do."""
        own = self.own.get(id)
        if own is None or own.gone:
            return None
        own.gone, own.asked, own.missing = True, "unsubscribe", list(own.boxes)
        own.version, own.tries = own.version + 1, 0
        return own

    def stored(self, id: SubscriptionId, version: int, part: Zone) -> HomeSubscription | None:
        """A part is covered; returns the subscription if that was the last."""
        own = self.own.get(id)
        if own is None or own.version != version or not own.missing:
            return None
        own.missing = [rest for zone in own.missing for rest in zone.without(part)]
        if len(own.missing) > MISSING_MAX:
            own.missing = list(own.boxes)
        return None if own.missing else own

    def finish(self, own: HomeSubscription) -> Asked | None:
        """What was waited for is done; one that was taken back is forgotten."""
        asked, own.asked = own.asked, None
        if own.gone:
            self.own.pop(own.interest.id, None)
        return asked
