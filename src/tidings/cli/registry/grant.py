"""`tidings grant …`: rights as tokens: issued, inspected, narrowed, revoked and listed."""

from __future__ import annotations

import base64
import re
import secrets
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple, TypeAlias

import typer

from tidings.cli.organisation.folder import organisation, organisation_here, report
from tidings.cli.registry.registry import (
    DEFAULT_REGISTRY,
    FromOption,
    OrgOption,
    RegistryOption,
    UntilOption,
    actor,
    local_and_utc,
    moment,
    now_ms,
    open_registry,
    read_key,
    show_key,
    show_moment,
)
from tidings.cli.registry.tokens import (
    GRANT_COLUMNS,
    STDIN,
    TokenContext,
    grant_row,
    link_row,
    newest_of_each,
    read_token,
    read_tokens,
    token_json,
    type_name,
)
from tidings.cli.terminal import Output, OutputOption, Row, show, tell
from tidings.errors import Denied, InputError, TidingsError
from tidings.security import ACTIONS, ANY_TYPE, fingerprint

if TYPE_CHECKING:
    from tidings.net import Client, Organisation
    from tidings.security import BiscuitCapability, Grant, Identity, OnlineTest, Right, SignedType
    from tidings.store import KnownGrant, Registry

RIGHT_MS = 7 * 86_400_000  # Of one's own brokers and clients; renewed by itself.
ORGANISATION_RIGHT_MS = 30 * 86_400_000  # Of another organisation, likewise.
HEARD_S_MAX, HEARD_PAUSE_S = 5.0, 0.2  # How long a revocation's way through the network is watched.
ONLINE_CHARS_MAX = 128
DEFAULT_VALIDITY = "+30d"  # A right that expires soon needs no revocation.

app = typer.Typer(
    name="grant",
    no_args_is_help=True,
    rich_markup_mode=None,
    invoke_without_command=True,
    help="""Grant a right to an event type, as a token that its holder presents.

    The type's owner can; and an organisation passes on what it was granted. The token is bound to its holder's key and
    useless to others. It is verified offline, and can be narrowed and delegated, never widened.

    In an organisation's folder, or with --org, its key signs and its registry is used. A right for one of its own
    brokers or clients is put into their folder; one for another organisation goes into a file, which the other takes
    with `tidings grant accept`. Without --until a right is renewed by itself until it is revoked.

    \b
    Examples:
      tidings grant --org police --type Numberplate --to camera --action publish
      tidings grant --org police --type Numberplate --to harbour --action subscribe --attribute plate
      tidings grant accept police-Numberplate.right --org harbour --for desk
      tidings grant --type Numberplate --to ccs --action subscribe --attribute plate --key police.pem > ccs.token
      tidings grant --type Numberplate --to yard --action subscribe --where "plate = 'AB12CDE'" --until +7d --key police.pem
      tidings grant --type '*' --to ccs --action join-net --key police.pem        membership of the network
      tidings grant inspect ccs.token
    """,
)

TokenArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="TOKEN", help="The token's file; - reads stdin.", show_default=False)
]
ActionsOption: TypeAlias = Annotated[
    list[str] | None, typer.Option("--action", metavar="ACTION", help=f"One of {', '.join(ACTIONS)}; may be repeated.")
]
AttributesOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--attribute", metavar="NAME", help="Only this attribute; may be repeated. Without it, all."),
]
WhereOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--where", metavar="CONDITION", help="Only events of which this is TRUE; may be repeated."),
]
DepthOption: TypeAlias = Annotated[
    int, typer.Option("--depth", metavar="N", help="How many times it may be delegated; 0: never.")
]
OnlineOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--online",
        metavar="NAME",
        help="Only while the broker that manages the type's keys says that NAME holds (its `acs` file).",
    ),
]
OnlineAgeOption: TypeAlias = Annotated[
    float, typer.Option("--online-age", metavar="SECONDS", help="How old such an answer may be.", min=5.0)
]
IssueDepthOption: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--depth", metavar="N", help="How many times it may be delegated. [default: 0; for an organisation 1]"
    ),
]
OutOption: TypeAlias = Annotated[
    Path | None, typer.Option("--out", metavar="FILE", help="Write the token here instead of to stdout.")
]
OwnerOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--owner", metavar="WHO", help="Who issued the right: ed25519:… or a domain. Default: as in the registry."
    ),
]


@app.callback()
def issue(
    ctx: typer.Context,
    type: Annotated[
        str | None, typer.Option("--type", metavar="NAME", help="The event type; '*' for join-net.")
    ] = None,
    to: Annotated[str | None, typer.Option("--to", metavar="WHO", help="The holder: ed25519:… or a domain.")] = None,
    action: ActionsOption = None,
    attribute: AttributesOption = None,
    where: WhereOption = None,
    begins: FromOption = None,
    ends: UntilOption = None,
    depth: IssueDepthOption = None,
    online: OnlineOption = None,
    online_age: OnlineAgeOption = 30.0,
    key: Annotated[Path | None, typer.Option("--key", metavar="FILE", help="The owner's private key.")] = None,
    out: OutOption = None,
    org: OrgOption = None,
    registry: RegistryOption = DEFAULT_REGISTRY,
    output: OutputOption = Output.TABLE,
) -> None:
    if ctx.invoked_subcommand is not None:
        return
    found = organisation_here(org) if key is None else None
    if type is None or to is None or not action or (key is None and found is None):
        raise InputError("expected --type, --to, --action and --key; `tidings grant --help` shows examples")
    if online is not None and key is None:
        raise InputError("a right with --online is not renewed by itself: sign it with --key, and hand out the token")
    if key is None:
        assert found is not None, "checked above"
        terms = _Wanted(type, to, tuple(sorted(set(action))), tuple(attribute or ()), tuple(where or ()), depth)
        _grant_in_its_name(found, terms, (begins, ends), out, output)
        return
    from tidings.security import Grant
    from tidings.security import grant as new_token

    now, owner, ends, depth = now_ms(), read_key(key), ends or DEFAULT_VALIDITY, depth or 0
    with open_registry(registry, create=type == ANY_TYPE) as opened:
        signed = None if type == ANY_TYPE else opened.types.find(type)
        if signed is not None:
            _check_may_grant(signed, owner, now)
        given = Grant(
            type_id=signed.type_id if signed else ANY_TYPE,
            actions=frozenset(action),
            holder=opened.domains.key_of(to),
            attributes=_attribute_ids(attribute, signed),
            not_before=moment(begins, now, now),
            not_after=moment(ends, now, now),
            delegate=depth > 0,
            max_depth=depth,
            constraints=_constraints(where, signed),
            online=_online(online, online_age, signed),
        )
        token = new_token(owner, given, secrets.token_bytes)
        opened.grants.add(token, by=fingerprint(owner.public_key), now_ms=now)
    _hand_out(token, out, output)


@app.command()
def inspect(
    token: TokenArgument,
    holder: Annotated[
        str | None,
        typer.Option("--holder", metavar="WHO", help="Check it for this holder: ed25519:… or a domain."),
    ] = None,
    action: Annotated[str | None, typer.Option("--action", metavar="ACTION", help="Check it for this action.")] = None,
    type: Annotated[
        str | None, typer.Option("--type", metavar="NAME", help="Check it for this event type; '*' is membership.")
    ] = None,
    attribute: Annotated[
        list[str] | None,
        typer.Option("--attribute", metavar="NAME", help="Check it for this attribute; may be repeated."),
    ] = None,
    at: Annotated[
        str | None, typer.Option("--at", metavar="TIME", help="Check it at this time instead of now.")
    ] = None,
    owner: OwnerOption = None,
    org: OrgOption = None,
    registry: RegistryOption = DEFAULT_REGISTRY,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show a token's links and its resulting right; exit with 3, and the reason, if it cannot be used.

    A token is refused if it is expired, not yet valid, revoked, delegated too often, truncated
    or altered; and, with --holder, --action, --type and --attribute, if it does not cover that.

    \b
    Examples:
      tidings grant inspect ccs.token
      tidings grant inspect ccs.token --holder ccs --action subscribe --type Numberplate --attribute plate
      tidings grant inspect ccs.token --at 2027-01-01T00:00:00Z -o json
    """
    (raws, types), now = read_tokens(token), now_ms()
    context = TokenContext.of(registry).knowing(types)
    found = [context.read(raw, owner) for raw in raws]
    refused = [_refusal(one, context, moment(at, now, now), holder, action, attribute, type) for one in found]
    if output is Output.JSON:
        show((token_json(one, context, why) for one, why in zip(found, refused, strict=True)), output)
    else:
        show([link_row(one, index, context) for one in found for index in range(len(one.inspect()))])
    for why in refused:
        if why is not None:
            raise why


@app.command()
def accept(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="From `tidings grant --to`, at the other organisation.")],
    holders: Annotated[
        list[str] | None,
        typer.Option("--for", metavar="NAME", help="Also pass it on to this client of yours; may be repeated."),
    ] = None,
    org: OrgOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Take a right that another organisation has granted to yours, and pass it on to your brokers and clients.

    Your brokers get it by themselves: they act for your clients. A client gets it with --for, later with
    `tidings grant --to NAME`, or by a role. Only a right of an organisation that you trust is taken.

    \b
    Example:
      tidings grant accept police-Numberplate.right --org harbour --for desk
    """
    from tidings.net import RightBundle, read_document

    here = organisation(org)
    with here.registry() as opened:
        for name in holders or ():
            opened.domains.key_of(name)  # Raises for a name that nobody has, before anything is passed on.
    taken = here.accept(*read_document(file, RightBundle))
    report(here.refresh())
    for name in holders or ():
        for right in taken:
            _pass_on(here, right, name)
    with here.registry() as opened:
        here.hand_out(opened)
        context = TokenContext.of_open(opened, here.registry_address)
        known = {one.token.digest: one for one in opened.grants.all()}
    show([grant_row(known[one.digest], context, now_ms(), output) for one in taken], output, GRANT_COLUMNS)


@app.command()
def narrow(
    token: TokenArgument,
    to: Annotated[str | None, typer.Option("--to", metavar="WHO", help="Delegate it to ed25519:… or a domain.")] = None,
    key: Annotated[Path | None, typer.Option("--key", metavar="FILE", help="The holder's key, to delegate it.")] = None,
    action: ActionsOption = None,
    attribute: AttributesOption = None,
    where: WhereOption = None,
    begins: FromOption = None,
    ends: UntilOption = None,
    depth: DepthOption = 0,
    owner: OwnerOption = None,
    out: OutOption = None,
    org: OrgOption = None,
    registry: RegistryOption = DEFAULT_REGISTRY,
    output: OutputOption = Output.TABLE,
) -> None:
    """Derive a narrower token: for yourself, or with --to and your --key for somebody else.

    What you leave out stays as it is in the token, except --depth, which is then 0. More than
    the token allows is refused. This works offline, and the type's owner accepts the result.

    \b
    Examples:
      tidings grant narrow ccs.token --until +1h > errand.token
      tidings grant narrow ccs.token --to auditors --key ccs.pem --attribute plate > auditors.token
    """
    from tidings.security import Grant

    now, context = now_ms(), TokenContext.of(registry)
    found = context.read(read_token(token), owner)
    if (refused := _refusal(found, context, now)) is not None:
        raise refused
    right, signed = found.right(), context.type_of(found)
    asked = Grant(
        type_id=right.type_id,
        actions=frozenset(action) if action else right.actions,
        holder=context.key_of(to) if to else None,
        attributes=_attribute_ids(attribute, signed, needs_type=True) if attribute else None,
        not_before=moment(begins, right.not_before, now),
        not_after=moment(ends, right.not_after, now),
        delegate=depth > 0,
        max_depth=depth,
        constraints=_constraints(where, signed),
    )
    _refuse_wider(asked, right)
    _hand_out(found.narrow(asked, _signer(to, key, right)), out, output)


def _online(name: str | None, age_s: float, signed: SignedType | None) -> tuple[OnlineTest, ...]:
    from tidings.security import OnlineTest, online_url

    if name is None:
        return ()
    if signed is None or "/" in name or not 0 < len(name.strip()) <= ONLINE_CHARS_MAX:
        raise InputError("--online: expected a name without /, for a right to one event type")
    return (OnlineTest(online_url(signed.key_manager, name.strip()), round(age_s * 1000)),)


@app.command()
def revoke(
    token: Annotated[
        str | None, typer.Argument(metavar="TOKEN|DIGEST", help="The token's file, - for stdin, or its digest.")
    ] = None,
    key: Annotated[
        Path | None, typer.Option("--key", metavar="FILE", help="Your private key; not needed with --org.")
    ] = None,
    holder: Annotated[
        str | None, typer.Option("--holder", metavar="WHO", help="Instead of TOKEN: all rights of this holder.")
    ] = None,
    type: Annotated[
        str | None, typer.Option("--type", metavar="NAME", help="With --holder: only those to this type.")
    ] = None,
    link: Annotated[
        int | None, typer.Option("--link", metavar="N", help="Which link to revoke. [default: the last]")
    ] = None,
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="For the audit trail, and other brokers.")
    ] = "",
    who: Annotated[
        str | None,
        typer.Option("--as", metavar="CLIENT", help="A client of yours, whose broker is asked who has heard of it."),
    ] = None,
    owner: OwnerOption = None,
    org: OrgOption = None,
    registry: RegistryOption = DEFAULT_REGISTRY,
    output: OutputOption = Output.TABLE,
) -> None:
    """Revoke a right: no token that contains this link is accepted any more.

    The issuer of the link can do so, the issuer of any link before it, and its holder. Brokers and key managers that
    use this registry refuse the token within a second, and every token derived from it, also by others; they tell all
    other brokers of the network. With --as it says which have heard of it. With --org, what renewals have made of it
    goes, too.

    \b
    Examples:
      tidings grant revoke --org police --holder harbour --type Numberplate --reason "contract ended"
      tidings grant revoke ccs.token --key police.pem --reason "contract ended"
      tidings grant ls                          shows digests
      tidings grant revoke 3f9a --key police.pem
    """
    found_org = organisation_here(org) if key is None else None
    if found_org is not None and link is None:
        _tell_who_has_heard(_revoke_in_its_name(found_org, token, owner, (holder, type), reason, output), who)
        return
    if token is None or key is None:
        raise InputError("expected a token and --key, or in an organisation's folder a token or --holder")
    signer, now = read_key(key), now_ms()
    with open_registry(registry) as opened:
        named = token == STDIN or Path(token).is_file() or not re.fullmatch("[0-9a-f]{4,64}", token)
        context = TokenContext.of_open(opened, registry)
        found = context.read(read_token(token), owner) if named else opened.grants.find(token).token
        id = opened.grants.revoke(found, by_key=signer.public_key, now_ms=now, link=link, reason=reason, signer=signer)
    show([{"revoked": id}], output)
    _tell_who_has_heard([id], who)


@app.command("ls")
def list_grants(
    type: Annotated[str | None, typer.Option("--type", metavar="NAME", help="Only rights to this type.")] = None,
    holder: Annotated[str | None, typer.Option("--holder", metavar="WHO", help="Only rights of this holder.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Also those that were renewed since.")] = False,
    org: OrgOption = None,
    registry: RegistryOption = DEFAULT_REGISTRY,
    output: OutputOption = Output.TABLE,
) -> None:
    """List the rights in this registry, whoever granted them, and their state.

    \b
    Examples:
      tidings grant ls --holder ccs
      tidings grant ls -o json | jq 'select(.refused == null)'
    """
    with open_registry(registry) as opened:
        context = TokenContext.of_open(opened, registry)
        type_id = opened.types.find(type).type_id if type else None
        grants = opened.grants.all(type_id=type_id, holder=opened.domains.key_of(holder) if holder else None)
    now = now_ms()
    shown = grants if everything else newest_of_each(grants)
    show([grant_row(one, context, now, output) for one in shown], output, GRANT_COLUMNS)


# ── In an organisation's name ────────────────────────────────────────────────


class _Wanted(NamedTuple):
    """What is to be granted, as it was typed."""

    type: str
    to: str
    actions: tuple[str, ...]
    attributes: tuple[str, ...]
    where: tuple[str, ...]
    depth: int | None


def _grant_in_its_name(
    here: Organisation, wanted: _Wanted, when: tuple[str | None, str | None], out: Path | None, output: Output
) -> None:
    from tidings.store import RightTerms

    now = now_ms()
    begins, ends = when
    others = here.cards()
    with here.registry() as opened:
        signed = opened.types.find(wanted.type)
        holder = opened.domains.key_of(wanted.to)
        _note_hidden_conditions(wanted, signed)
        is_other = wanted.to in others
        depth = wanted.depth if wanted.depth is not None else int(is_other)
        attributes = tuple(sorted(set(wanted.attributes))) or None
        terms = RightTerms(signed.type_id, wanted.actions, attributes, _constraints(wanted.where, signed), depth)
        token, is_new = here.issuer(opened).issue_once(
            terms,
            holder,
            now_ms=now,
            not_before=moment(begins, now, now) if begins else None,
            not_after=moment(ends, now, now) if ends else None,
            lasts_ms=None if ends else ORGANISATION_RIGHT_MS if is_other else RIGHT_MS,
        )
        here.hand_out(opened)
        context = TokenContext.of_open(opened, here.registry_address)
        known = opened.grants.find(token.digest.hex())
        is_own = opened.participants.with_key(holder) is not None
    file = out or (Path(f"{here.name}-{signed.event_type.name}.right") if is_other else None)
    if file is not None:
        file.write_bytes(here.bundle([token]) if is_other else f"{_text(token)}\n".encode())
    if not is_new:
        tell(f"note: {wanted.to} has this right already")
    row = grant_row(known, context, now, output)
    show([{**row, **({"token": _text(token)} if output is Output.JSON else {})}], output, GRANT_COLUMNS)
    if file is not None:
        tell(f"wrote {file}" + (f"; there: tidings grant accept {file.name}" if is_other else ""))
    elif not is_own:
        tell(f"note: {wanted.to} is neither of {here.name} nor trusted; --out FILE writes the token")


def _note_hidden_conditions(wanted: _Wanted, signed: SignedType) -> None:
    """A right whose condition names an attribute that it does not show applies to no event."""
    if not wanted.attributes:
        return
    from tidings.filters import parse

    named = {name for text in wanted.where for name in parse(text, signed.event_type).attributes}
    if hidden := sorted(named - set(wanted.attributes)):
        raise InputError(
            f"--where names {', '.join(hidden)}, which the right does not show, so nobody could tell whether an event "
            f"meets it; add --attribute {hidden[0]}"
        )


def _pass_on(here: Organisation, right: BiscuitCapability, name: str) -> None:
    from tidings.store import RightTerms

    with here.registry() as opened:
        held = right.right()
        assert isinstance(held.type_id, bytes), "accepted rights are to types"
        names = opened.types.with_id(held.type_id).attributes_by_id
        attributes = None if held.attributes is None else tuple(sorted(names[id].name for id in held.attributes))
        terms = RightTerms(held.type_id, tuple(sorted(held.actions)), attributes, held.constraints)
        here.issuer(opened).issue_once(terms, opened.domains.key_of(name), now_ms=now_ms(), lasts_ms=RIGHT_MS)


def _revoke_in_its_name(
    here: Organisation,
    token: str | None,
    owner: str | None,
    of: tuple[str | None, str | None],
    reason: str,
    output: Output,
) -> list[str]:
    now, (holder, type) = now_ms(), of
    with here.registry() as opened:
        context = TokenContext.of_open(opened, here.registry_address)
        type_id = opened.types.find(type).type_id if type else None
        if token is not None:
            found = [_known_grant(opened, context, token, owner)]
        elif holder is not None:
            found = opened.grants.all(type_id=type_id, holder=opened.domains.key_of(holder))
        else:
            raise InputError("expected a token or its digest, or --holder WHO")
        revoked = [(known, id) for known in found for id in here.issuer(opened).revoke(known, now, reason)]
        rows = [_revoked_row(known, context, id, now, output) for known, id in revoked]
        if output is Output.TABLE:  # A right and its renewals are one to the reader.
            rows = list({tuple(row.values()): row for row in rows}.values())
        here.hand_out(opened)
    show(rows, output, ("revoked", "type", "by", "at"))
    if not rows:
        tell("note: there was nothing to revoke that still held")
    return [id for _, id in revoked]


def _tell_who_has_heard(ids: list[str], who: str | None) -> None:
    """Asks a broker, until all have heard of it, or for a while."""
    if not ids or who is None:
        return
    import asyncio

    from tidings.cli.network.session import as_client

    async def ask(client: Client) -> dict[str, bool]:
        heard: dict[str, bool] = {}
        deadline = time.monotonic() + HEARD_S_MAX
        while True:
            rows = [row for id in ids for row in await client.ask("heard", revocation=id)]
            heard = {row["broker"]: all(r["heard"] for r in rows if r["broker"] == row["broker"]) for row in rows}
            if all(heard.values()) or time.monotonic() > deadline:
                return heard
            await asyncio.sleep(HEARD_PAUSE_S)

    try:
        heard = as_client(who, ask, within_s=3 * HEARD_S_MAX)
    except (TidingsError, TimeoutError) as wrong:
        tell(f"note: it is revoked, and the broker did not say who has heard of it: {str(wrong) or 'no answer'}")
        return
    for word, is_heard in (("heard by", True), ("not heard yet by", False)):
        if names := sorted(name for name, has in heard.items() if has is is_heard):
            tell(f"{word} {', '.join(names)}")
    if not all(heard.values()):
        tell("note: who is away hears of it when it connects again")


def _known_grant(opened: Registry, context: TokenContext, token: str, owner: str | None) -> KnownGrant:
    if re.fullmatch("[0-9a-f]{4,64}", token) and not Path(token).is_file():
        return opened.grants.find(token)
    found = context.read(read_token(token), owner)
    known = [one for one in opened.grants.all() if one.token.digest == found.digest]
    if known:
        return known[0]
    opened.grants.add(found, by=actor(), now_ms=now_ms())
    return opened.grants.find(found.digest.hex())


def _revoked_row(known: KnownGrant, context: TokenContext, id: str, now: int, output: Output) -> Row:
    if output is Output.JSON:
        row = token_json(known.token, context, None)
        return {"revoked": id, "type": row["type"], "holder": row["holder"], "at": show_moment(now)}
    return {
        "revoked": show_key(known.right.holder, context.names),
        "type": type_name(known.right.type_id, context.type_of(known.token)),
        "by": "every broker with this registry, within seconds",
        "at": local_and_utc(now),
    }


# ── Output ───────────────────────────────────────────────────────────────────


def _hand_out(token: BiscuitCapability, out: Path | None, output: Output) -> None:
    text = _text(token)
    if out is not None:
        out.write_text(text + "\n")
    if output is Output.JSON:
        show([{"token": text, "digest": token.digest.hex(), "revocation_ids": list(token.revocation_ids)}], output)
    elif out is None:
        print(text)
    else:
        tell(f"wrote {out}")


def _text(token: BiscuitCapability) -> str:
    return base64.urlsafe_b64encode(token.to_bytes()).decode()


# ── Requested rights ─────────────────────────────────────────────────────────


def _check_may_grant(signed: SignedType, owner: Identity, now: int) -> None:
    signed.verify(max(now, signed.not_before))
    if signed.owner_key != owner.public_key:
        raise Denied(f"issuer: {fingerprint(owner.public_key)} does not own {signed.name}")


def _attribute_ids(
    names: Sequence[str] | None, signed: SignedType | None, *, needs_type: bool = False
) -> frozenset[bytes] | None:
    if not names:
        return None
    if signed is None:
        why = "the registry does not know its type" if needs_type else "membership has no attributes"
        raise InputError(f"--attribute cannot be used: {why}")
    return frozenset(signed.attr_id(name) for name in names)


def _constraints(texts: Iterable[str] | None, signed: SignedType | None) -> tuple[str, ...]:
    """Conditions in canonical form, checked against the type."""
    if not texts:
        return ()
    if signed is None:
        raise InputError("--where cannot be used: the registry does not know the type")
    from tidings.filters import parse

    return tuple(str(parse(text, signed.event_type)) for text in texts)


def _refuse_wider(asked: Grant, right: Right) -> None:
    """A link may request more than the right allows, without effect; an error is more helpful."""
    if wider := sorted(asked.actions - right.actions):
        raise Denied(f"action: the token is not for {', '.join(wider)}")
    if asked.attributes is not None and not right.covers(sorted(asked.attributes)):
        raise Denied("attributes: the token does not cover every attribute asked for")
    if asked.not_before < right.not_before or asked.not_after > right.not_after:
        raise Denied(
            f"validity: the token is valid only from {local_and_utc(right.not_before)} to {local_and_utc(right.not_after)}"
        )
    left = right.depth - (asked.holder is not None)
    if left < asked.steps:
        raise Denied(f"depth: the token may be delegated {right.depth} more times")


def _signer(to: str | None, key: Path | None, right: Right) -> Identity | None:
    if to is None:
        return None
    if key is None:
        raise InputError("delegating a token needs the present holder's private key: --key FILE")
    signer = read_key(key)
    if signer.public_key != right.holder:
        raise Denied(f"holder: the right is {fingerprint(right.holder)}'s, not {fingerprint(signer.public_key)}'s")
    return signer


def _refusal(
    token: BiscuitCapability,
    context: TokenContext,
    at_ms: int,
    holder: str | None = None,
    action: str | None = None,
    attributes: Sequence[str] | None = None,
    type: str | None = None,
) -> TidingsError | None:
    """Why the token cannot be used; None if it can."""
    from tidings.security import AccessRequest
    from tidings.store import refusal

    try:
        right, revoked = token.right(), context.revoked(token)
        if (why := refusal(token, right, revoked, at_ms)) is not None:
            return Denied(why)
        if type is not None and context.type_id_of(type) != right.type_id:
            return Denied(
                f"type: the right is to {type_name(right.type_id, context.type_of(token))}, not to {type[:100]}"
            )
        proven = context.key_of(holder) if holder else right.holder
        for one in [action] if action else sorted(right.actions):
            request = AccessRequest(right.type_id, one, _requested(one, attributes, context.type_of(token), right))
            token.verify(request, now_ms=at_ms, proven_key=proven, revoked=revoked, online=_assumed_yes(right, at_ms))
    except Denied as refused:
        return refused
    return None


def _assumed_yes(right: Right, at_ms: int) -> dict[str, int]:
    """Online tests are for whoever enforces the token; here they count as passed."""
    return {test.url: at_ms for test in right.online}


def _requested(action: str, names: Sequence[str] | None, signed: SignedType | None, right: Right) -> frozenset[bytes]:
    if action == "join-net":
        return frozenset()
    if names:
        return _attribute_ids(names, signed, needs_type=True) or frozenset()
    if right.attributes is not None:
        return right.attributes
    return frozenset(signed.attr_ids.values()) if signed else frozenset((bytes(32),))  # Any: the right is to all.
