"""`tidings who can …`: who may read an attribute, or publish, and until when; from the rights in the registry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, NamedTuple, TypeAlias

import typer

from tidings.cli.registry.registry import (
    DEFAULT_REGISTRY,
    OrgOption,
    RegistryOption,
    local_and_utc,
    moment,
    now_ms,
    open_registry,
    show_key,
    show_moment,
)
from tidings.cli.registry.tokens import newest_of_each, show_attributes, show_chain, show_depth
from tidings.cli.terminal import Output, OutputOption, Row, show, tell
from tidings.cli.units import count
from tidings.errors import InputError
from tidings.security import fingerprint

if TYPE_CHECKING:
    from tidings.security import SignedType
    from tidings.store import KnownGrant

app = typer.Typer(
    name="who",
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Ask who may read what, or publish, and until when.",
)

VERBS = {"read": "subscribe", "subscribe": "subscribe", "publish": "publish", "history": "history"}
COLUMNS = ("who", "attributes", "where", "until", "by", "passes on")

QuestionArgument: TypeAlias = Annotated[
    list[str], typer.Argument(metavar="read [ATTRIBUTE of] TYPE | publish TYPE", help="What is asked about.")
]
AtOption: TypeAlias = Annotated[
    str | None, typer.Option("--at", metavar="TIME", help="At this time instead of now: 2026-12-01T00:00:00Z, +2h.")
]


class Question(NamedTuple):
    """What is asked about: an action on a type, and perhaps on one of its attributes."""

    verb: str
    attribute: str
    type: str

    @property
    def action(self) -> str:
        return VERBS[self.verb]


def question_of(words: Sequence[str]) -> Question:
    """The question in these words; raises InputError for any others.

    >>> question_of(["read", "plate", "of", "Numberplate"])
    Question(verb='read', attribute='plate', type='Numberplate')
    >>> question_of(["publish", "Numberplate"])
    Question(verb='publish', attribute='', type='Numberplate')
    """
    match list(words):
        case [verb, attribute, "of", type] if verb in VERBS:
            return Question(verb, attribute, type)
        case [verb, type] if verb in VERBS:
            return Question(verb, "", type)
    raise InputError(
        f"expected: read ATTRIBUTE of TYPE, read TYPE, publish TYPE or history TYPE; got {' '.join(words)[:100]!r}"
    )


@app.command("can")
def who_can(
    words: QuestionArgument,
    at: AtOption = None,
    org: OrgOption = None,
    registry: RegistryOption = DEFAULT_REGISTRY,
    output: OutputOption = Output.TABLE,
) -> None:
    """List who can read an attribute of a type, or publish events of it, and until when.

    It answers from the rights in this registry: those that were granted here, by `tidings init`, and by others to
    yours. What another organisation has passed on is known there; "passes on" says whether it may.

    \b
    Examples:
      tidings who can read plate of Numberplate --org police
      tidings who can publish Numberplate --org police --at +30d
    """
    asked, now = question_of(words), now_ms()
    when = moment(at, now, now)
    with open_registry(registry) as opened:
        signed, names = opened.types.find(asked.type), opened.domains.names()
        wanted = [signed.attr_id(asked.attribute)] if asked.attribute else []
        grants = [
            known
            for known in newest_of_each(opened.grants.all(type_id=signed.type_id))
            if known.refusal(when) is None and asked.action in known.right.actions and known.right.covers(wanted)
        ]
    rows = [_owner(signed, names, output), *(_row(known, signed, names, output) for known in grants)]
    show(rows, output, COLUMNS)
    tell(f"{count(len(grants), 'right')} besides the owner's" if grants else "nobody but the owner")


def _owner(signed: SignedType, names: dict[bytes, str], output: Output) -> Row:
    who = show_key(signed.owner_key, names)
    if output is Output.JSON:
        return {"who": who, "key": fingerprint(signed.owner_key), "attributes": None, "where": [], "until": None}
    return {"who": who, "attributes": "all", "until": "no limit", "by": "owns the type", "passes on": "as it likes"}


def _row(known: KnownGrant, signed: SignedType, names: dict[bytes, str], output: Output) -> Row:
    right = known.right
    attributes = show_attributes(right.attributes, signed)
    if output is Output.JSON:
        return {
            "who": show_key(right.holder, names),
            "key": fingerprint(right.holder),
            "attributes": None if right.attributes is None else attributes.split(", "),
            "where": list(right.constraints),
            "until": show_moment(right.not_after),
            "renewed": known.lasts_ms is not None,
        }
    return {
        "who": show_key(right.holder, names),
        "attributes": attributes,
        "where": " AND ".join(right.constraints),
        "until": local_and_utc(right.not_after) + (", renewed" if known.lasts_ms else ""),
        "by": show_chain(known.token, names) + (f", role {known.role}" if known.role else ""),
        "passes on": show_depth(right.depth),
    }
