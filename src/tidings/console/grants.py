"""Rights changed from a page: granted, passed on, narrowed and revoked in an organisation's name.

Only with the organisation's folder (`--org`), which has its key, and only for its administrators: the client that a
page acts as must be listed in the organisation's registry, with a certificate that makes it one. Each change is shown
before it is made: what would end, and for whom. Whoever confirms it sends back the mark of that preview, so that
nothing ends that was not shown. Changes are in the registry's audit trail and in the console's own log.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidings.console.audit import ACTOR, OPERATOR
from tidings.console.participants import ConsoleClient
from tidings.errors import Denied, InputError
from tidings.events import EventType
from tidings.filters import parse
from tidings.net import Organisation, der, is_administrator
from tidings.security import fingerprint
from tidings.store import KnownGrant, Registry, RightTerms

KINDS = ("grant", "narrow", "revoke")
ACTIONS = ("publish", "subscribe")
DAY_MS = 86_400_000
DAYS_MAX = 3650
RENEWED_MS = 7 * DAY_MS  # A right without an end is renewed by itself, as with `tidings grant`.
CONDITION_CHARACTERS_MAX = 10_000
REASON_CHARACTERS_MAX = 300
TEXTS_MAX = 256  # Attributes of one right.


@dataclass(frozen=True, slots=True)
class RightsChange:
    """What is to be done: the right that ends, if one does, and the terms of the one that begins, if one does."""

    kind: str
    ends: KnownGrant | None
    terms: RightTerms | None
    holder: bytes
    not_after: int | None
    lasts_ms: int | None
    reason: str


class RightsDesk:
    """Changes rights in the name of one organisation."""

    def __init__(self, folder: Path) -> None:
        """Raises InputError for a folder without an organisation in it."""
        self._organisation = Organisation(folder)

    @property
    def registry(self) -> str:
        return self._organisation.registry_address

    def serves(self, client: ConsoleClient) -> bool:
        """Whether a page that acts as this client may change rights here."""
        try:
            with self._organisation.registry() as registry:
                self._check(registry, client)
        except Denied:
            return False
        return True

    def preview(self, client: ConsoleClient, asked: Mapping[str, Any]) -> dict[str, Any]:
        """What the change would come to, and its mark; raises Denied or InputError if it cannot be made."""
        with self._organisation.registry() as registry:
            self._check(registry, client)
            return self._preview(registry, self._read(registry, asked))

    def carry_out(self, client: ConsoleClient, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Makes the change if it is still what the preview showed."""
        here, now = self._organisation, _now_ms()
        with here.lock.held(), here.registry() as registry:
            self._check(registry, client)
            change = self._read(registry, asked)
            seen = self._preview(registry, change)
            if seen["mark"] != asked.get("mark"):
                raise InputError("what this would change is not what was shown; look at the preview again")
            actor = ACTOR.get()
            by = client.name if actor in ("", OPERATOR) else f"{actor} as {client.name}"
            issuer, reason = here.issuer(registry), f"{change.reason or change.kind} (by {by}, in the console)"
            given: dict[str, Any] = {}
            if change.terms is not None:
                token = issuer.issue(
                    change.terms, change.holder, now_ms=now, not_after=change.not_after, lasts_ms=change.lasts_ms
                )
                given = {"digest": token.digest.hex()[:16]}
                if registry.participants.with_key(change.holder) is None:  # Of another organisation, which takes it.
                    given |= {"file": f"{here.name}.right", "text": here.bundle([token]).decode()}
            revoked = issuer.revoke(change.ends, now, reason[:REASON_CHARACTERS_MAX]) if change.ends else ()
            here.hand_out(registry)
        return {**seen, **given, "revoked": list(revoked)}

    def _check(self, registry: Registry, client: ConsoleClient) -> None:
        """By the registry as it is now: an administrator who was removed is none any more."""
        known = registry.participants.with_key(client.key)
        if client.config.domain != self._organisation.name or known is None:
            raise Denied(f"administer: {client.name} is not enrolled in {self._organisation.name}")
        if known.role != "client" or not is_administrator(der(known.certificate)):
            raise Denied(f"administer: {client.name} does not administer {self._organisation.name}")

    # ── What is asked ──

    def _read(self, registry: Registry, asked: Mapping[str, Any]) -> RightsChange:
        match asked.get("kind"):
            case "grant":
                return self._grant(registry, asked)
            case "narrow":
                return self._narrow(registry, asked)
            case "revoke":
                known = self._found(registry, asked)
                return RightsChange("revoke", known, None, known.right.holder, None, None, _text(asked, "reason"))
        raise InputError(f"expected one of {', '.join(KINDS)}")

    def _grant(self, registry: Registry, asked: Mapping[str, Any]) -> RightsChange:
        signed = registry.types.find(_text(asked, "type"))
        attributes = _texts(asked, "attributes")
        if unknown := sorted(set(attributes) - _names_of(signed.event_type)):
            raise InputError(f"{signed.event_type.name} has no attribute {unknown[0][:80]}")
        where = _condition(_text(asked, "where"), signed.event_type, attributes)
        actions = _actions(asked)
        depth = 1 if asked.get("may_pass_on") is True else 0
        holder = _holder(registry, _text(asked, "to"), self._organisation.name)
        terms = RightTerms(signed.type_id, actions, tuple(sorted(attributes)) or None, where, depth)
        not_after = _end(asked)
        return RightsChange(
            "grant", None, terms, holder, not_after, None if not_after else RENEWED_MS, _text(asked, "reason")
        )

    def _narrow(self, registry: Registry, asked: Mapping[str, Any]) -> RightsChange:
        known = self._found(registry, asked)
        right = known.right
        if known.role is not None:
            raise InputError(f"this right comes from the role {known.role}; change the role with `tidings role`")
        assert isinstance(right.type_id, bytes), "only rights to types are listed"
        signed = registry.types.with_id(right.type_id)
        names = signed.attributes_by_id
        had = _names_of(signed.event_type) if right.attributes is None else {names[id].name for id in right.attributes}
        attributes = _texts(asked, "attributes")
        if wider := sorted(set(attributes) - had):
            raise Denied(f"attributes: the right does not show {wider[0][:80]}; narrowing cannot add it")
        actions = _actions(asked)
        if wider := sorted(set(actions) - right.actions):
            raise Denied(f"action: the right is not to {wider[0]}; narrowing cannot add it")
        kept = tuple(sorted(attributes)) if attributes and set(attributes) != had else None
        if kept is None and right.attributes is not None:
            kept = tuple(sorted(had))
        where = _condition(_text(asked, "where"), signed.event_type, kept or ())
        not_after = _end(asked)
        if known.lasts_ms is None:
            not_after = min(right.not_after, not_after or right.not_after)
        terms = RightTerms(right.type_id, actions, kept, (*right.constraints, *where), right.depth)
        lasts_ms = None if not_after else known.lasts_ms
        return RightsChange("narrow", known, terms, right.holder, not_after, lasts_ms, _text(asked, "reason"))

    def _found(self, registry: Registry, asked: Mapping[str, Any]) -> KnownGrant:
        digest = _text(asked, "digest")
        if len(digest) < 16 or not set(digest) <= set("0123456789abcdef"):
            raise InputError("expected the digest of a right")
        known = registry.grants.find(digest)
        if not known.may_hold(_now_ms()):
            raise InputError("this right has ended already")
        return known

    # ── What it comes to ──

    def _preview(self, registry: Registry, change: RightsChange) -> dict[str, Any]:
        now, names = _now_ms(), _names(registry, self._organisation.name)
        known = registry.grants.all() if change.ends is not None else []
        # Renewals of one right are one series, and go together.
        gone = [each for each in known if change.ends and _is_of(each, change.ends) and each.may_hold(now)]
        links = {each.token.revocation_ids[-1] for each in gone}
        derived = [
            each for each in known if each not in gone and links & set(each.token.revocation_ids) and each.may_hold(now)
        ]
        seen = {
            "kind": change.kind,
            "who": names.get(change.holder, fingerprint(change.holder)),
            "ends": sorted({names.get(each.right.holder, fingerprint(each.right.holder)) for each in derived}),
            "tokens": len(gone) + len(derived),
            "begins": _shown(registry, change) if change.terms is not None else None,
        }
        concerned = sorted(each.token.digest.hex() for each in (*gone, *derived))
        marked = json.dumps([seen, concerned, change.holder.hex()], sort_keys=True, default=str)
        return {**seen, "mark": hashlib.sha256(marked.encode()).hexdigest()}

    def holders(self) -> list[str]:
        """Whom a right can be given to, by name."""
        with self._organisation.registry() as registry:
            return sorted(set(_names(registry, self._organisation.name).values()))


def _is_of(one: KnownGrant, other: KnownGrant) -> bool:
    return one.series == other.series


def _shown(registry: Registry, change: RightsChange) -> dict[str, Any]:
    terms = change.terms
    assert terms is not None
    event_type = registry.types.with_id(terms.type_id).event_type
    return {
        "type": event_type.name,
        "actions": list(terms.actions),
        "attributes": list(terms.attributes or sorted(_names_of(event_type))),
        "where": list(terms.where),
        "may_pass_on": terms.depth > 0,
        "until_ms": change.not_after,
        "is_renewed": change.lasts_ms is not None,
    }


def _names(registry: Registry, organisation: str) -> dict[bytes, str]:
    names = registry.domains.names()
    return names | {one.key: f"{organisation}/{one.name}" for one in registry.participants.all()}


def _holder(registry: Registry, name: str, organisation: str) -> bytes:
    found = [key for key, known in _names(registry, organisation).items() if known == name]
    return found[0] if len(found) == 1 else registry.domains.key_of(name)


def _names_of(event_type: EventType) -> set[str]:
    return {each.name for each in event_type}


def _condition(text: str, event_type: EventType, attributes: Iterable[str]) -> tuple[str, ...]:
    """In canonical form; raises InputError if it names what the right does not show, for then nobody could tell."""
    if not text.strip():
        return ()
    wanted = parse(text, event_type)
    if (shown := set(attributes)) and (hidden := sorted(set(wanted.attributes) - shown)):
        raise InputError(f"the condition names {hidden[0]}, which the right would not show; show it, or leave it out")
    return (str(wanted),)


def _text(asked: Mapping[str, Any], name: str) -> str:
    value = asked.get(name, "")
    if not isinstance(value, str) or len(value) > CONDITION_CHARACTERS_MAX:
        raise InputError(f"{name}: expected a text of at most {CONDITION_CHARACTERS_MAX} characters")
    return value


def _texts(asked: Mapping[str, Any], name: str) -> list[str]:
    values = asked.get(name, [])
    if not isinstance(values, list) or len(values) > TEXTS_MAX or not all(isinstance(each, str) for each in values):
        raise InputError(f"{name}: expected a list of at most {TEXTS_MAX} names")
    return list(dict.fromkeys(values))


def _actions(asked: Mapping[str, Any]) -> tuple[str, ...]:
    actions = tuple(sorted(set(_texts(asked, "actions"))))
    if not actions or not set(actions) <= set(ACTIONS):
        raise InputError(f"actions: expected one or both of {', '.join(ACTIONS)}")
    return actions


def _end(asked: Mapping[str, Any]) -> int | None:
    """When a right is to end, given in days from now; None if it is to be renewed."""
    days = asked.get("days")
    if days is None or days == "":
        return None
    if not isinstance(days, int | float) or isinstance(days, bool) or not 0 < days <= DAYS_MAX:
        raise InputError(f"days: expected more than 0, up to {DAYS_MAX}")
    # Whole hours, so that a preview and its confirmation some seconds later mean the same moment.
    return (_now_ms() + round(days * DAY_MS)) // 3_600_000 * 3_600_000 + 3_600_000


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
