"""Issues rights in an organisation's name, renews them, and takes them back.

A right to a type of its own the organisation grants with its key. A right to a type of another organisation it
delegates, from a right that it was granted itself. Rights are short; those with `lasts_ms` are renewed before they end,
for as long as nobody has revoked them and, for delegated ones, the other organisation renews its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from tidings.errors import Denied, InputError
from tidings.security import ANY_TYPE, BiscuitCapability, Grant, Identity, RandomBytes, Right, SignedType, fingerprint
from tidings.security import grant as new_token
from tidings.store.grants import KnownGrant
from tidings.store.registry import Registry
from tidings.store.roles import RightTerms

RIGHT_MS = 7 * 86_400_000
"""How long a right lasts that the organisation gives its own brokers, clients and roles, before it is renewed."""
RENEW_AT = 3  # A right is renewed when a third of its time is left: two more attempts, were the first to fail.
BACKDATED_MS = 60_000  # Clocks differ by seconds; a right that was just given should hold at once.


@dataclass(frozen=True, slots=True)
class IssuedChanges:
    """What a change of roles, or a renewal, came to."""

    issued: tuple[BiscuitCapability, ...] = ()
    revoked: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    """Rights that could not be issued, and why."""

    def __add__(self, other: IssuedChanges) -> IssuedChanges:
        return IssuedChanges(self.issued + other.issued, self.revoked + other.revoked, self.missing + other.missing)


class Issuer:
    """One organisation's hand that signs rights: its keys, newest first, and its registry."""

    def __init__(self, registry: Registry, keys: Sequence[Identity], random: RandomBytes) -> None:
        self._registry, self._keys, self._random = registry, {key.public_key: key for key in keys}, random

    def issue(
        self,
        terms: RightTerms,
        holder: bytes,
        *,
        now_ms: int,
        not_before: int | None = None,
        not_after: int | None = None,
        role: str | None = None,
        lasts_ms: int | None = None,
    ) -> BiscuitCapability:
        """Gives `holder` a right, and stores it; raises Denied without the right to do so.

        A delegated right ends with the one that it comes from, whatever `not_after` says.
        """
        begins = now_ms - BACKDATED_MS if not_before is None else not_before
        ends = now_ms + (lasts_ms or RIGHT_MS) if not_after is None else not_after
        signed = self._registry.types.with_id(terms.type_id)
        attributes = None if terms.attributes is None else frozenset(map(signed.attr_id, terms.attributes))
        wanted = Grant(
            type_id=terms.type_id,
            actions=frozenset(terms.actions),
            holder=holder,
            attributes=attributes,
            not_before=begins,
            not_after=ends,
            delegate=terms.depth > 0,
            max_depth=terms.depth,
            constraints=terms.where,
        )
        owner = self._keys.get(signed.owner_key)
        token = new_token(owner, wanted, self._random) if owner else self._delegated(signed, wanted, now_ms)
        by = fingerprint((owner or next(iter(self._keys.values()))).public_key)
        self._registry.grants.add(token, by=by, now_ms=now_ms, role=role, lasts_ms=lasts_ms)
        return token

    def issue_once(
        self,
        terms: RightTerms,
        holder: bytes,
        *,
        now_ms: int,
        not_before: int | None = None,
        not_after: int | None = None,
        lasts_ms: int | None = None,
    ) -> tuple[BiscuitCapability, bool]:
        """As `issue`; but a right that was given on these terms, and need not be renewed yet, is not given again.

        Also returns whether the right is a new one.
        """
        for known in self._live(self._registry.grants.all(type_id=terms.type_id, holder=holder), now_ms):
            begins, ends = known.right.not_before, known.right.not_after
            lasts = ends - now_ms > (lasts_ms or 0) // RENEW_AT if not_after is None else ends == not_after
            same = known.role is None and known.lasts_ms == lasts_ms and not_before in (None, begins)
            if same and lasts and _issued_terms(known, self._registry) == terms:
                return known.token, False
        new = self.issue(terms, holder, now_ms=now_ms, not_before=not_before, not_after=not_after, lasts_ms=lasts_ms)
        return new, True

    def _delegated(self, signed: SignedType, wanted: Grant, now_ms: int) -> BiscuitCapability:
        """From the right that covers it, adds no condition if there is one that does not, and lasts longest."""
        held = [
            known
            for known in self._registry.grants.all(type_id=signed.type_id)
            if known.right.holder in self._keys and known.refusal(now_ms) is None
        ]
        fit = [known for known in held if _covers(known.right, wanted)]
        if not fit:
            raise Denied(_why_not(signed, wanted, held))
        meant = set(wanted.constraints)
        best = max(fit, key=lambda known: (meant.issuperset(known.right.constraints), known.right.not_after))
        ends = min(wanted.not_after, best.right.not_after)
        begins = max(wanted.not_before, best.right.not_before)
        if begins >= ends:
            raise Denied("validity: the right that this one comes from ends before this one begins")
        asked = Grant(
            type_id=wanted.type_id,
            actions=wanted.actions,
            holder=wanted.holder,
            attributes=wanted.attributes,
            not_before=begins,
            not_after=ends,
            delegate=wanted.delegate,
            max_depth=wanted.max_depth,
            constraints=wanted.constraints,
        )
        return best.token.narrow(asked, self._keys[best.right.holder])

    # ── What the organisation's own brokers need ──

    def equip_brokers(self, now_ms: int) -> IssuedChanges:
        """Gives each broker what its clients may ever need: its organisation's own types, and what others granted it."""
        changes = IssuedChanges()
        wanted = self._broker_terms(now_ms)
        for broker in self._registry.participants.all("broker"):
            live = self._live(self._registry.grants.all(holder=broker.key), now_ms)
            for terms in wanted:
                alike = [known for known in live if known.right.type_id == terms.type_id]
                if not any(_issued_terms(known, self._registry) == terms for known in alike):
                    changes += self._try(terms, broker.key, now_ms)
        return changes

    def _broker_terms(self, now_ms: int) -> list[RightTerms]:
        own = [
            RightTerms(signed.type_id, ("publish", "subscribe"))
            for signed in self._registry.types.all()
            if signed.owner_key in self._keys
        ]
        granted = [
            _terms(known.right, self._registry, depth=0)
            for known in self._live(self._registry.grants.all(), now_ms)
            if known.right.holder in self._keys and known.right.depth > 0 and known.right.type_id != ANY_TYPE
        ]
        return list(dict.fromkeys([*own, *granted]))

    # ── Roles ──

    def apply_roles(self, now_ms: int) -> IssuedChanges:
        """Issues what members of roles lack, and revokes what a role no longer gives them."""
        changes = IssuedChanges()
        issued = [known for known in self._live(self._registry.grants.all(), now_ms) if known.role is not None]
        wanted = {
            (role.name, member, terms)
            for role in self._registry.roles.all()
            for member in role.members
            for terms in role.rights
        }
        have: set[tuple[str, bytes, RightTerms]] = set()
        for known in issued:
            of = (str(known.role), known.right.holder, _issued_terms(known, self._registry))
            if of in wanted:
                have.add(of)
            else:
                changes += IssuedChanges(revoked=self.revoke(known, now_ms, f"role {known.role} has changed"))
        for role, member, terms in sorted(wanted - have, key=repr):
            changes += self._try(terms, member, now_ms, role)
        return changes

    def _try(self, terms: RightTerms, holder: bytes, now_ms: int, role: str | None = None) -> IssuedChanges:
        try:
            return IssuedChanges((self.issue(terms, holder, now_ms=now_ms, role=role, lasts_ms=RIGHT_MS),))
        except (Denied, InputError) as refused:
            return IssuedChanges(missing=(str(refused),))

    # ── Renewal and revocation ──

    def renew(self, now_ms: int, holder: bytes | None = None, *, within_ms: int | None = None) -> IssuedChanges:
        """Renews the rights that end soon and are to be renewed; optionally those of one holder only.

        Soon is when a third of their time is left, or less than `within_ms`.
        """
        changes = IssuedChanges()
        for known in self._newest_of_each(self._registry.grants.all(holder=holder)):
            lasts = known.lasts_ms
            if lasts is None or known.refusal(known.right.not_after - 1) is not None or self._is_orphan(known):
                continue
            if known.right.not_after - now_ms <= (lasts // RENEW_AT if within_ms is None else within_ms):
                terms = _issued_terms(known, self._registry)
                changes += self._again(terms, known, lasts, now_ms)
        return changes

    def _again(self, terms: RightTerms, known: KnownGrant, lasts_ms: int, now_ms: int) -> IssuedChanges:
        holder = known.right.holder
        try:
            token = self.issue(terms, holder, now_ms=now_ms, role=known.role, lasts_ms=lasts_ms)
        except (Denied, InputError) as refused:
            return IssuedChanges(missing=(str(refused),))
        return IssuedChanges((token,) if token.right().not_after > known.right.not_after else ())

    def revoke(self, known: KnownGrant, now_ms: int, reason: str = "") -> tuple[str, ...]:
        """Revokes a right, with every token that renewals have made of it; the revocation ids."""
        revoked = []
        for other in self._registry.grants.all(holder=known.right.holder):
            if other.series == known.series and other.may_hold(now_ms):
                by_key = next((key for key in self._keys if _may_revoke(other.token, key)), b"")
                signer = self._keys.get(by_key)
                revoked.append(
                    self._registry.grants.revoke(
                        other.token, by_key=by_key, now_ms=now_ms, reason=reason, signer=signer
                    )
                )
        return tuple(revoked)

    def _is_orphan(self, known: KnownGrant) -> bool:
        """A right of this organisation's own that another one granted: only that one renews it."""
        return known.owner_key not in self._keys and known.right.holder in self._keys

    def _live(self, all_known: Iterable[KnownGrant], now_ms: int) -> list[KnownGrant]:
        return [known for known in all_known if known.refusal(now_ms) is None]

    def _newest_of_each(self, all_known: Iterable[KnownGrant]) -> list[KnownGrant]:
        newest: dict[object, KnownGrant] = {}
        for known in all_known:
            there = newest.get(known.series)
            if there is None or known.right.not_after > there.right.not_after:
                newest[known.series] = known
        return list(newest.values())


def _terms(right: Right, registry: Registry, *, depth: int | None = None) -> RightTerms:
    assert isinstance(right.type_id, bytes)
    names = registry.types.with_id(right.type_id).attributes_by_id
    attributes = None if right.attributes is None else tuple(sorted(names[id].name for id in right.attributes))
    actions = tuple(sorted(right.actions))
    return RightTerms(right.type_id, actions, attributes, right.constraints, right.depth if depth is None else depth)


def _issued_terms(known: KnownGrant, registry: Registry) -> RightTerms:
    """What was asked for when a right to a type was issued.

    A delegated right amounts to less: the right that it comes from has conditions and attributes of its own.
    """
    link = known.token.inspect()[-1]
    if link.holder is None:
        return _terms(known.right, registry)
    asked = replace(known.right, actions=link.actions, attributes=link.attributes, constraints=link.constraints)
    return _terms(asked, registry, depth=link.steps)


def _covers(right: Right, wanted: Grant) -> bool:
    enough = wanted.attributes is None or right.covers(sorted(wanted.attributes))
    return enough and wanted.actions <= right.actions and right.depth > wanted.steps


def _why_not(signed: SignedType, wanted: Grant, held: Sequence[KnownGrant]) -> str:
    name, owner = signed.event_type.name, fingerprint(signed.owner_key)
    if not held:
        return f"issuer: {name} is {owner}'s, who has granted this organisation no right to it that holds now"
    if not any(known.right.depth for known in held):
        return f"depth: the right to {name} may not be delegated; ask {owner} for one with --depth 1"
    actions = sorted(set().union(*(known.right.actions for known in held)))
    if wanted.actions - set(actions):
        return f"action: the right to {name} is to {', '.join(actions)}, not to {', '.join(sorted(wanted.actions))}"
    return f"attributes: no right to {name} that this organisation holds covers all of what was asked for"


def _may_revoke(token: BiscuitCapability, key: bytes) -> bool:
    return any(key in (link.issuer, link.holder) for link in token.inspect())
