"""`tidings role …`: named sets of rights. Changing a role changes the rights of everybody who has it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from tidings.cli.organisation.folder import organisation, report
from tidings.cli.registry.registry import OrgOption, now_ms, show_key
from tidings.cli.registry.tokens import show_depth
from tidings.cli.terminal import Output, OutputOption, Row, show, tell
from tidings.errors import Denied, InputError
from tidings.security import ACTIONS, fingerprint

if TYPE_CHECKING:
    from tidings.net import Organisation
    from tidings.store import RightTerms, Role

app = typer.Typer(
    name="role",
    no_args_is_help=True,
    rich_markup_mode=None,
    help="""Roles: named sets of rights, in an organisation's registry.

    Who has a role has its rights, as tokens that are renewed by themselves. When a role changes, its members get what
    is new, and what is gone is revoked.

    \b
    Example:
      tidings role create analyst --org police
      tidings role allow analyst --type Numberplate --action subscribe --attribute plate --attribute speed
      tidings role assign analyst desk
      tidings role disallow analyst --type Numberplate
    """,
)

RoleArgument: TypeAlias = Annotated[str, typer.Argument(metavar="ROLE", help="The role's name.")]
WhoArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="WHO", help="A client or broker of yours, an organisation that you trust, or ed25519:…")
]
TypeOption: TypeAlias = Annotated[str, typer.Option("--type", metavar="NAME", help="The event type.")]


@app.command()
def create(name: RoleArgument, org: OrgOption = None, output: OutputOption = Output.TABLE) -> None:
    """Create a role, without rights and members yet. `tidings role delete` undoes it.

    \b
    Example:
      tidings role create analyst --org police
    """
    here = organisation(org)
    with here.registry() as opened:
        if not opened.roles.create(name, by=here.by, now_ms=now_ms()):
            tell(f"note: there is a role {name} already")
    _show(here, name, output)


@app.command()
def delete(name: RoleArgument, org: OrgOption = None, output: OutputOption = Output.TABLE) -> None:
    """Delete a role, and revoke what its members have by it.

    \b
    Example:
      tidings role delete analyst --org police
    """
    here = organisation(org)
    with here.registry() as opened:
        if not opened.roles.delete(name, by=here.by, now_ms=now_ms()):
            tell(f"note: the role {name} was deleted before")
    changes = here.refresh()
    report(changes)
    show([{"deleted": name, "revoked": len(changes.revoked)}], output)


@app.command()
def allow(
    name: RoleArgument,
    type: TypeOption,
    action: Annotated[
        list[str], typer.Option("--action", metavar="ACTION", help=f"One of {', '.join(ACTIONS[1:])}; may be repeated.")
    ],
    attribute: Annotated[
        list[str] | None,
        typer.Option("--attribute", metavar="NAME", help="Only this attribute; may be repeated. Without it, all."),
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option("--where", metavar="CONDITION", help="Only events of which this is TRUE; may be repeated."),
    ] = None,
    depth: Annotated[
        int, typer.Option("--depth", metavar="N", help="How many times members may delegate it.", min=0)
    ] = 0,
    org: OrgOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Add a right to a role; all members get it at once.

    \b
    Example:
      tidings role allow analyst --type Numberplate --action subscribe --attribute plate --org police
    """
    from tidings.filters import parse
    from tidings.store import RightTerms

    here = organisation(org)
    if unknown := sorted(set(action) - set(ACTIONS[1:])):
        raise InputError(f"expected an action of {', '.join(ACTIONS[1:])}, got {unknown[0][:40]!r}")
    with here.registry() as opened:
        signed = opened.types.find(type)
        for one in attribute or ():
            signed.attr_id(one)  # Raises for a name that the type does not have.
        conditions = tuple(str(parse(text, signed.event_type)) for text in where or ())
        attributes = tuple(sorted(set(attribute))) if attribute else None
        terms = RightTerms(signed.type_id, tuple(sorted(set(action))), attributes, conditions, depth)
        if not opened.roles.allow(name, terms, by=here.by, now_ms=now_ms()):
            tell(f"note: {name} has this right already")
    report(here.refresh())
    _show(here, name, output)


@app.command()
def disallow(
    name: RoleArgument,
    type: TypeOption,
    action: Annotated[
        str | None, typer.Option("--action", metavar="ACTION", help="Only the rights to this action.")
    ] = None,
    org: OrgOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Take a role's rights to a type away; they are revoked for all members at once.

    \b
    Example:
      tidings role disallow analyst --type Numberplate --org police
    """
    here = organisation(org)
    with here.registry() as opened:
        signed = opened.types.find(type)
        if not opened.roles.disallow(name, signed.type_id, action, by=here.by, now_ms=now_ms()):
            tell(f"note: {name} has no such right")
    report(here.refresh())
    _show(here, name, output)


@app.command()
def assign(name: RoleArgument, who: WhoArgument, org: OrgOption = None, output: OutputOption = Output.TABLE) -> None:
    """Give somebody a role: they get its rights, and whatever is added to it later. `unassign` undoes it.

    An organisation that you trust gets its tokens by `tidings org serve`, if it runs there and here; else with --out of
    `tidings grant`.

    \b
    Example:
      tidings role assign analyst desk --org police
    """
    here = organisation(org)
    with here.registry() as opened:
        if not opened.roles.assign(name, opened.domains.key_of(who), by=here.by, now_ms=now_ms()):
            tell(f"note: {who} has the role {name} already")
    changes = here.refresh()
    report(changes)
    _show(here, name, output)
    if changes.missing:
        raise Denied("issuer: not all rights of the role could be given; see above")


@app.command()
def unassign(name: RoleArgument, who: WhoArgument, org: OrgOption = None, output: OutputOption = Output.TABLE) -> None:
    """Take a role from somebody: the rights that they have by it are revoked.

    \b
    Example:
      tidings role unassign analyst desk --org police
    """
    here = organisation(org)
    with here.registry() as opened:
        if not opened.roles.unassign(name, opened.domains.key_of(who), by=here.by, now_ms=now_ms()):
            tell(f"note: {who} does not have the role {name}")
    report(here.refresh())
    _show(here, name, output)


@app.command("ls")
def list_roles(org: OrgOption = None, output: OutputOption = Output.TABLE) -> None:
    """List the roles, their rights and their members.

    \b
    Example:
      tidings role ls --org police
    """
    _show(organisation(org), None, output)


def _show(here: Organisation, name: str | None, output: Output) -> None:
    with here.registry() as opened:
        names, types = opened.domains.names(), {signed.type_id: signed for signed in opened.types.all()}
        roles = [role for role in opened.roles.all() if name in (None, role.name)]
    named = {id: signed.event_type.name for id, signed in types.items()}
    make = _rows if output is Output.TABLE else _json_rows
    rows = [row for role in roles for row in make(role, names, named)]
    show(rows, output, ("role", "type", "actions", "attributes", "where", "passes on", "members"))


def _rows(role: Role, names: dict[bytes, str], types: dict[bytes, str]) -> list[Row]:
    members = ", ".join(show_key(key, names) for key in role.members)
    rights = [_right(terms, types[terms.type_id]) for terms in role.rights] or [{"type": "no rights"}]
    return [{"role": role.name, **right, "members": members} for right in rights]


def _json_rows(role: Role, names: dict[bytes, str], types: dict[bytes, str]) -> list[Row]:
    members = [names.get(key, fingerprint(key)) for key in role.members]
    rights: list[dict[str, object]] = [
        {
            "type": types[terms.type_id],
            "actions": list(terms.actions),
            "attributes": None if terms.attributes is None else list(terms.attributes),
            "where": list(terms.where),
            "depth": terms.depth,
        }
        for terms in role.rights
    ]
    return [{"role": role.name, **right, "members": members} for right in rights or [{"type": None}]]


def _right(terms: RightTerms, type: str) -> dict[str, object]:
    return {
        "type": type,
        "actions": ", ".join(terms.actions),
        "attributes": "all" if terms.attributes is None else ", ".join(terms.attributes),
        "where": " AND ".join(terms.where),
        "passes on": show_depth(terms.depth),
    }
