"""`tidings why …`: why somebody may or may not do something, check by check."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from tidings.cli.organisation.who import AtOption, QuestionArgument, question_of
from tidings.cli.registry.registry import (
    DEFAULT_REGISTRY,
    OrgOption,
    RegistryOption,
    local_and_utc,
    moment,
    now_ms,
    open_registry,
)
from tidings.cli.registry.tokens import newest_of_each, show_attributes, show_chain
from tidings.cli.terminal import EXIT_DENIED, Output, OutputOption, show, tell
from tidings.errors import Denied, TidingsError

if TYPE_CHECKING:
    from tidings.cli.organisation.who import Question
    from tidings.security import SignedType
    from tidings.store import EnrolledParticipant, KnownGrant, Registry


class RightCheck(NamedTuple):
    """One thing that has to hold, and whether it does."""

    check: str
    holds: bool
    says: str


def why(
    who: Annotated[str, typer.Argument(metavar="WHO", help="A client, a broker, an organisation, or ed25519:…")],
    words: QuestionArgument,
    at: AtOption = None,
    org: OrgOption = None,
    registry: RegistryOption = DEFAULT_REGISTRY,
    output: OutputOption = Output.TABLE,
) -> None:
    """Say why somebody may or may not do something: every check that a broker makes, in its order.

    Exits with 3 if they may not. It answers from this registry: a client of another organisation, and what that one has
    passed on, is known there.

    \b
    Examples:
      tidings why desk read speed of Numberplate --org harbour
      tidings why camera publish Numberplate --org police
    """
    asked, now = question_of(words), now_ms()
    with open_registry(registry) as opened:
        checks = _checks(opened, who, asked, moment(at, now, now))
    rows = [one._asdict() for one in checks]
    if output is Output.TABLE:
        rows = [{**row, "holds": "yes" if row["holds"] else "NO"} for row in rows]
    show(rows, output, ("check", "holds", "says"))
    may = all(one.holds for one in checks)
    what = f"{asked.verb} {asked.attribute + ' of ' if asked.attribute else ''}{asked.type}"
    tell(f"{who} {'may' if may else 'may not'} {what}")
    if not may:
        raise typer.Exit(EXIT_DENIED)


def _checks(opened: Registry, who: str, asked: Question, at_ms: int) -> list[RightCheck]:
    signed, key = opened.types.find(asked.type), opened.domains.key_of(who)
    if asked.attribute:
        signed.attr_id(asked.attribute)  # Raises for a name that the type does not have.
    checks = [_type(signed, at_ms)]
    one = opened.participants.with_key(key)
    if one is not None:
        checks.append(_certificate(one, at_ms))
    if key == signed.owner_key:
        return [*checks, RightCheck("right", True, f"{who} owns {signed.event_type.name}")]
    checks.append(_right(opened, f"right of {who}", key, signed, asked, at_ms))
    if one is not None and one.role == "client":
        checks.append(_broker(opened, signed, asked, at_ms))
    return checks


def _type(signed: SignedType, at_ms: int) -> RightCheck:
    try:
        signed.verify(at_ms)
    except TidingsError as wrong:
        return RightCheck("type", False, str(wrong))
    return RightCheck("type", True, f"{signed.event_type.name}@{signed.version} is as its owner signed it, and valid")


def _certificate(one: EnrolledParticipant, at_ms: int) -> RightCheck:
    from tidings.net import certificate_end_ms

    ends = certificate_end_ms(one.certificate)
    if at_ms >= ends:
        return RightCheck("certificate", False, f"of {one.name}: expired at {local_and_utc(ends)}; tidings org renew")
    return RightCheck("certificate", True, f"of {one.name}: valid until {local_and_utc(ends)}")


def _right(opened: Registry, name: str, key: bytes, signed: SignedType, asked: Question, at_ms: int) -> RightCheck:
    """The right that allows it; or, of those that do not, why each does not."""
    held = newest_of_each(opened.grants.all(type_id=signed.type_id, holder=key))
    refused = []
    for known in held:
        problem = _problem(known, signed, asked, at_ms)
        if problem is None:
            return RightCheck(name, True, _describe(known, signed, opened))
        refused.append(problem)
    if not held:
        how = f"tidings grant --type {signed.event_type.name} --to … --action {asked.action}"
        return RightCheck(name, False, f"none to {signed.event_type.name} is in this registry; {how}")
    return RightCheck(name, False, "; ".join(dict.fromkeys(refused)))


def _problem(known: KnownGrant, signed: SignedType, asked: Question, at_ms: int) -> str | None:
    right, what = known.right, show_attributes(known.right.attributes, signed)
    if asked.action not in right.actions:
        return f"action: a right is to {', '.join(sorted(right.actions))}, not to {asked.action}"
    if asked.attribute and not right.covers([signed.attr_id(asked.attribute)]):
        return f"attributes: a right shows {what}, not {asked.attribute}"
    if asked.action == "publish" and right.attributes is not None and not asked.attribute:
        return f"attributes: a right is to publish {what} only"
    if (refusal := known.refusal(at_ms)) is not None:
        return refusal
    try:
        right.conditions(signed.event_type)
    except Denied as wrong:
        return str(wrong)
    return None


def _describe(known: KnownGrant, signed: SignedType, opened: Registry) -> str:
    right = known.right
    by = show_chain(known.token, opened.domains.names())
    where = f", of events with {' AND '.join(right.constraints)}" if right.constraints else ""
    role = f", by the role {known.role}" if known.role else ""
    shows = "all attributes" if right.attributes is None else show_attributes(right.attributes, signed)
    return f"from {by}{role}: {shows}{where}, until {local_and_utc(right.not_after)}"


def _broker(opened: Registry, signed: SignedType, asked: Question, at_ms: int) -> RightCheck:
    """A broker acts for its clients, so it needs a right of its own."""
    brokers = opened.participants.all("broker")
    checks = [_right(opened, f"right of {one.name}", one.key, signed, asked, at_ms) for one in brokers]
    if not checks:
        return RightCheck("broker", False, "this organisation has no broker; tidings broker create")
    return next((check for check in checks if check.holds), checks[0])
