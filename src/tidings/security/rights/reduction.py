"""Reduction: the right that a chain of grants allows, as a plain function.

A chain starts with a grant by the type's owner. Each further link is either a delegation,
signed by the previous holder, or a restriction that the holder put on itself. No link ever adds
anything: `reduce` intersects. This module knows no token format; the tokens of `biscuit` must
agree with it on every chain, and a property test checks that they do.

Times are milliseconds since 1970 and half-open: a right is valid from `not_before` up to, and
not including, `not_after`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeVar

from tidings.errors import Denied, FilterError, InputError
from tidings.events import EventType
from tidings.filters import Condition, parse
from tidings.security.identity import KEY_BYTES, fingerprint
from tidings.security.rights.actions import ACTIONS, ANY_TYPE
from tidings.security.signed_type import I64_MAX, I64_MIN
from tidings.security.validity import why_not_valid

DEPTH_MAX = 255
CONSTRAINT_BYTES_MAX = 4096  # As long as a condition may sensibly be.
LIST_MAX = 4096  # Attributes, constraints or online tests in one link: as many as a type has attributes.

_T = TypeVar("_T")

AttributeSet: TypeAlias = frozenset[bytes] | None
"""Which attributes, by id; None is all of them, whichever the type has."""


@dataclass(frozen=True, slots=True, order=True)
class OnlineTest:
    """A right that also needs a positive answer from `url`, no older than `max_age_ms`."""

    url: str
    max_age_ms: int


@dataclass(frozen=True, slots=True)
class Grant:
    """One link of a chain. `holder` None narrows for the present holder; `issuer` None is not signed by anybody."""

    type_id: bytes | str
    actions: frozenset[str]
    holder: bytes | None = None
    issuer: bytes | None = None
    attributes: AttributeSet = None
    not_before: int = 0
    not_after: int = I64_MAX
    delegate: bool = False
    max_depth: int = 0
    online: tuple[OnlineTest, ...] = ()
    constraints: tuple[str, ...] = ()
    id: bytes = b""

    def __post_init__(self) -> None:
        _check_grant(self)

    @property
    def steps(self) -> int:
        """How many more delegations this link allows."""
        return self.max_depth if self.delegate else 0


@dataclass(frozen=True, slots=True)
class AccessRequest:
    """What a holder asks to do. Only membership of the network names no attributes."""

    type_id: bytes | str
    action: str
    attributes: frozenset[bytes] = frozenset()

    def __post_init__(self) -> None:
        if self.action not in ACTIONS:
            raise InputError(f"expected an action of {', '.join(ACTIONS)}, got {self.action!r}")
        if (self.action == "join-net") != (self.type_id == ANY_TYPE) or (self.action != "join-net") != bool(
            self.attributes
        ):
            raise InputError(f"{self.action} needs {'no type and no' if self.action == 'join-net' else 'a'} attribute")


@dataclass(frozen=True, slots=True)
class Right:
    """The right that a whole chain reduces to: the remaining 5-tuple."""

    holder: bytes
    type_id: bytes | str
    actions: frozenset[str]
    attributes: AttributeSet
    not_before: int
    not_after: int
    depth: int
    online: tuple[OnlineTest, ...] = ()
    constraints: tuple[str, ...] = ()

    def check(
        self, request: AccessRequest, now_ms: int, proven_key: bytes, online: Mapping[str, int] | None = None
    ) -> None:
        """Returns if the request is covered; raises Denied naming the first check that fails.

        `proven_key` is the key the other side proved to hold; `online` is when each url last answered yes.
        """
        if proven_key != self.holder:
            raise Denied(f"holder: the right is {fingerprint(self.holder)}'s, not {fingerprint(proven_key)}'s")
        if request.type_id != self.type_id:
            raise Denied(f"type: the right is for {show_type(self.type_id)}, not {show_type(request.type_id)}")
        if request.action not in self.actions:
            raise Denied(
                f"action: {request.action} is not allowed by this right, only {' and '.join(sorted(self.actions))}"
            )
        if missing := sorted(request.attributes - (request.attributes if self.attributes is None else self.attributes)):
            raise Denied(f"attributes: no right to {', '.join(id.hex()[:16] for id in missing[:5])}")
        if why := why_not_valid(self.not_before, self.not_after, now_ms):
            raise Denied(f"validity: the right {why}")
        for test in self.online:
            if (said_yes := (online or {}).get(test.url)) is None or not 0 <= now_ms - said_yes <= test.max_age_ms:
                raise Denied(f"online: no confirmation from {test.url} within {test.max_age_ms} ms")

    def conditions(self, event_type: EventType) -> tuple[Condition, ...]:
        """The value constraints, parsed; an event may be shown to the holder if it matches every one of them.

        Each by itself: glued together as text, one could close another's bracket. Raises Denied
        where one does not fit the type, for then nobody knows what it was to forbid.
        """
        try:
            return tuple(parse(text, event_type) for text in self.constraints)
        except FilterError as wrong:
            raise Denied(f"constraints: {wrong}") from None

    def covers(self, attributes: Sequence[bytes]) -> bool:
        """Whether every one of these attributes may be seen."""
        return self.attributes is None or all(id in self.attributes for id in attributes)


def reduce(chain: Sequence[Grant], owner_key: bytes) -> Right:
    """The right that `chain`, root first, reduces to; raises Denied naming the link and the check that fails."""
    if not chain or chain[0].issuer != owner_key or chain[0].holder is None:
        raise Denied(f"issuer: link 0 is not granted by the owner {fingerprint(owner_key)}")
    root = chain[0]
    right = Right(
        root.holder or b"",
        root.type_id,
        root.actions,
        root.attributes,
        root.not_before,
        root.not_after,
        root.steps,
        _merged(root.online),
        _merged(root.constraints),
    )
    for index, link in enumerate(chain[1:], 1):
        right = _step(right, link, index)
    _refuse_empty(right)
    return right


def _step(right: Right, link: Grant, index: int) -> Right:
    if link.type_id != right.type_id:
        raise Denied(f"type: link {index} is for {show_type(link.type_id)}, not {show_type(right.type_id)}")
    depth = right.depth
    if link.holder is not None:
        if link.issuer != right.holder:
            signer = fingerprint(link.issuer) if link.issuer else "nobody"
            raise Denied(f"issuer: link {index} is signed by {signer}, not by the holder {fingerprint(right.holder)}")
        if depth < 1:
            raise Denied(f"depth: link {index} delegates a right that may not be delegated further")
        depth -= 1
    return replace(
        right,
        holder=link.holder or right.holder,
        actions=right.actions & link.actions,
        attributes=_both(right.attributes, link.attributes),
        not_before=max(right.not_before, link.not_before),
        not_after=min(right.not_after, link.not_after),
        depth=min(depth, link.steps),
        online=_merged(right.online + link.online),
        constraints=_merged(right.constraints + link.constraints),
    )


def _refuse_empty(right: Right) -> None:
    if not right.actions:
        raise Denied("action: the links of the chain have no action in common")
    if right.attributes is not None and not right.attributes:
        raise Denied("attributes: the links of the chain have no attribute in common")
    if right.not_before >= right.not_after:
        raise Denied("validity: the links of the chain are never valid at the same time")


def _both(one: AttributeSet, other: AttributeSet) -> AttributeSet:
    return other if one is None else one if other is None else one & other


def _merged(listed: tuple[_T, ...]) -> tuple[_T, ...]:
    return tuple(dict.fromkeys(listed))


def show_type(type_id: bytes | str) -> str:
    return type_id if isinstance(type_id, str) else f"type {type_id.hex()[:16]}…"


def _check_grant(grant: Grant) -> None:
    if grant.type_id != ANY_TYPE and not isinstance(grant.type_id, bytes):
        raise InputError(f"expected a type id or {ANY_TYPE!r}, got {grant.type_id!r}")
    unknown = sorted(grant.actions.difference(ACTIONS))
    if unknown or not grant.actions:
        raise InputError(f"expected one or more actions of {', '.join(ACTIONS)}, got {', '.join(unknown) or 'none'}")
    for_network = grant.type_id == ANY_TYPE
    if for_network != ("join-net" in grant.actions) or (for_network and len(grant.actions) > 1):
        raise InputError("join-net is for the network, not for a type; grant it without other actions")
    for what, key in (("holder", grant.holder), ("issuer", grant.issuer)):
        if key is not None and len(key) != KEY_BYTES:
            raise InputError(f"expected {KEY_BYTES} bytes as {what}, got {len(key)}")
    _check_reach(grant)
    _check_lists(grant)


def _check_reach(grant: Grant) -> None:
    if not I64_MIN <= grant.not_before < grant.not_after <= I64_MAX:
        raise InputError(f"a right from {grant.not_before} to {grant.not_after} ms is never valid")
    if not 0 <= grant.max_depth <= DEPTH_MAX:
        raise InputError(f"expected a delegation depth from 0 to {DEPTH_MAX}, got {grant.max_depth}")
    if grant.attributes is not None and (not grant.attributes or grant.type_id == ANY_TYPE):
        raise InputError("expected one or more attributes, or all of them; membership has none")


def _check_lists(grant: Grant) -> None:
    if max(len(grant.attributes or ()), len(grant.online), len(grant.constraints)) > LIST_MAX:
        raise InputError(f"a grant lists at most {LIST_MAX} attributes, tests or constraints")
    for text in (*grant.constraints, *(test.url for test in grant.online)):
        if not text or len(text.encode(errors="surrogatepass")) > CONSTRAINT_BYTES_MAX:
            raise InputError(f"expected a constraint or address of 1 to {CONSTRAINT_BYTES_MAX} bytes")
    for test in grant.online:
        if not 0 <= test.max_age_ms <= I64_MAX:
            raise InputError(f"expected an age from 0 ms, got {test.max_age_ms}")
