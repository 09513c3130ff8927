"""Messages on their way to the next hop: each is answered, or sent again, or sent another way.

A hop that answers `HopAck` has taken over. One that does not is tried a few times, more
patiently each time, and then counts as gone for a while; what to do instead is up to whoever
sent it. Where there is no way at all, because a zone has lost its holder, a message is held
and tried again: somebody takes the zone over.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from tidings.overlay.messages import NodeId
from tidings.overlay.router import Count, Effect, Send, WakeAt

TRIES_MAX = 4  # For one hop, with waits of 1, 2, 4 and 8 times `answer_s`.
ROUNDS_MAX = 4  # Hops given up, or holes waited for, before a message is.
LEGS_MAX = 65_536  # Messages not answered yet; the oldest are given up.


@dataclass(slots=True)
class Leg:
    """A message that has to reach the next hop. `to` is empty while it is held."""

    message: Any
    to: NodeId
    tries: int
    rounds: int  # How often another way was sought.


class Legs:
    """All legs of one broker, by the number of their message."""

    def __init__(self, *, answer_s: float, first: int, keeps: bool = True) -> None:
        self.answer_s, self.keeps = answer_s, keeps
        self._legs: OrderedDict[int, Leg] = OrderedDict()
        self._number = first

    def __len__(self) -> int:
        return len(self._legs)

    def number(self) -> int:
        """A number no other message of this broker has."""
        self._number += 1
        return self._number

    def send(self, to: NodeId, message: Any, now: float, rounds: int = 0) -> list[Effect]:
        """Send a numbered message and see to it that it arrives."""
        if not self.keeps:
            return [Send(to, message)]
        self._keep(Leg(message, to, 1, rounds))
        return [Send(to, message), WakeAt(now + self.answer_s, ("leg", message.number, 1))]

    def hold(self, message: Any, now: float, rounds: int) -> list[Effect]:
        """There is no way now: try again later, or give up after too many rounds."""
        if rounds >= ROUNDS_MAX or not self.keeps:
            return [Count("given up")]
        self._keep(Leg(message, "", 0, rounds))
        return [Count("held"), WakeAt(now + 2 * self.answer_s * 2**rounds, ("leg", message.number, 0))]

    def got(self, number: int, sender: NodeId) -> bool:
        """An answer came; whether anything waited for it."""
        leg = self._legs.get(number)
        if leg is None or leg.to != sender:
            return False
        del self._legs[number]
        return True

    def overdue(self, number: int, tries: int, now: float) -> tuple[list[Effect], Leg | None]:
        """No answer in time: once more, or the leg that has failed and is to be sent another way."""
        leg = self._legs.get(number)
        if leg is None or leg.tries != tries:
            return [], None
        if leg.to and leg.tries < TRIES_MAX:
            leg.tries += 1
            wait_s = self.answer_s * 2 ** (leg.tries - 1)
            return [Send(leg.to, leg.message), WakeAt(now + wait_s, ("leg", number, leg.tries))], None
        return [], self._legs.pop(number)

    def to_peer(self, id: NodeId) -> list[Leg]:
        """Take back all that is on its way to somebody who is not there."""
        numbers = [number for number, leg in self._legs.items() if leg.to == id]
        return [self._legs.pop(number) for number in numbers]

    def bounced(self, to: NodeId, message: Any) -> Leg | None:
        """Take back one message that did not get through; one that was not kept gets its first round."""
        if not self.keeps:
            return Leg(message, to, 1, 0)
        leg = self._legs.get(message.number)
        return self._legs.pop(message.number) if leg is not None and leg.to == to else None

    def _keep(self, leg: Leg) -> None:
        if len(self._legs) >= LEGS_MAX:
            self._legs.popitem(last=False)
        self._legs[leg.message.number] = leg
