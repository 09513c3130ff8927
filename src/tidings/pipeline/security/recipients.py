"""Rights → recipients: which attributes a subscriber's frames contain, and for which events.

Several rights of one subscriber add up, event by event: it may read an attribute if any of its rights covers it and
the event meets that right's conditions. So a subscriber is one recipient for each set of its conditional rights
that an event can meet, and each event goes to exactly one of them.
"""

from __future__ import annotations

import enum
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TypeAlias

from tidings.errors import Denied
from tidings.pipeline.security.nonce_leases import EVERYBODY
from tidings.security import Mode, Right, SignedType, why_not_valid

# Different conditional rights of one subscriber: six have 64 combinations, and each needs a sender id.
CONDITIONAL_MAX = 6

Rights: TypeAlias = Mapping[str, Right | Sequence[Right]]
"""What each subscriber may read."""


class Rest(enum.StrEnum):
    """What happens to attributes that a recipient may not read."""

    LEFT_OUT = "left out"
    SEALED = "sealed"


@dataclass(frozen=True, slots=True)
class Recipient:
    """The attributes of one subscriber's frames, for the events that meet these conditions.

    An event meets every condition of `met`, and of each list in `unmet` it fails at least one.
    """

    name: str
    readable: tuple[str, ...]
    shown: tuple[str, ...]
    sender: str
    met: tuple[str, ...] = ()
    unmet: tuple[tuple[str, ...], ...] = ()


def recipients_of(signed_type: SignedType, rights: Rights, now_ms: int, rest: Rest) -> tuple[Recipient, ...]:
    """The recipients, by name. Raises Denied for a right to another type, at another time, or beyond the type's mode."""
    found: list[Recipient] = []
    for name in sorted(rights):
        given = rights[name]
        several = (given,) if isinstance(given, Right) else tuple(given)
        for right in several:
            _check(signed_type, name, right, now_ms)
        found += (_recipient(signed_type, name, combination, rest) for combination in _combinations(name, several))
    return tuple(found)


def _check(signed_type: SignedType, name: str, right: Right, now_ms: int) -> None:
    if right.type_id != signed_type.type_id:
        raise Denied(f"type: the right of {name!r} is for another type than {signed_type.event_type.name}")
    if "subscribe" not in right.actions:
        raise Denied(f"action: the right of {name!r} is not to subscribe")
    if why := why_not_valid(right.not_before, right.not_after, now_ms):
        raise Denied(f"validity: the right of {name!r} {why}")
    right.conditions(signed_type.event_type)  # Raises Denied for one that does not fit the type.


@dataclass(frozen=True, slots=True)
class _RightsMet:
    """A set of a subscriber's rights that an event can meet, and the conditions for it."""

    rights: tuple[Right, ...]
    met: tuple[str, ...]
    unmet: tuple[tuple[str, ...], ...]

    def covers(self, attr_id: bytes) -> bool:
        return any(right.covers((attr_id,)) for right in self.rights)


def _combinations(name: str, rights: Sequence[Right]) -> Iterator[_RightsMet]:
    always = tuple(right for right in rights if not right.constraints)
    lists = list(dict.fromkeys(right.constraints for right in rights if right.constraints and _adds(right, always)))
    if len(lists) > CONDITIONAL_MAX:
        raise Denied(f"rights: {name!r} has {len(lists)} different conditional ones; at most {CONDITIONAL_MAX}")
    for count in range(0 if always else 1, len(lists) + 1):
        for held_lists in combinations(lists, count):
            held = (*always, *(right for right in rights if right.constraints in held_lists))
            met = dict.fromkeys(condition for conditions in held_lists for condition in conditions)
            yield _RightsMet(
                held, tuple(met), tuple(conditions for conditions in lists if conditions not in held_lists)
            )


def _adds(right: Right, always: Iterable[Right]) -> bool:
    """Whether a conditional right covers anything that the unconditional ones do not."""
    together: set[bytes] = set()
    for other in always:
        if other.attributes is None:
            return False
        together |= other.attributes
    return right.attributes is None or not right.attributes <= together


def _recipient(signed_type: SignedType, name: str, combination: _RightsMet, rest: Rest) -> Recipient:
    event_type = signed_type.event_type
    readable = [a.name for a in event_type if combination.covers(signed_type.attr_id(a.name))]
    shown = [a.name for a in event_type if a.name in readable or a.required or rest is Rest.SEALED]
    if signed_type.mode is not Mode.ATTRIBUTE and len(shown) > len(readable):
        hidden = next(name for name in shown if name not in readable)
        raise Denied(f"attributes: {event_type.name} does not seal {hidden!r} separately, and {name!r} may not read it")
    if signed_type.mode is Mode.EVENT and len(readable) < len(event_type.attributes):
        raise Denied(f"attributes: {event_type.name} is sealed as one, and {name!r} may not read all of it")
    sender = EVERYBODY if rest is Rest.SEALED else _sender(name, shown)
    return Recipient(name, tuple(readable), tuple(shown), sender, combination.met, combination.unmet)


def _sender(name: str, shown: list[str]) -> str:
    """The lease's name for a recipient and its attributes, so that a changed right gets another sender id.

    An event that is encrypted again, with other attributes than before, must not reuse its nonce.
    """
    return f"{name}/{hashlib.sha256(json.dumps(shown).encode()).hexdigest()[:16]}"
