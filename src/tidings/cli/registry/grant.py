"""`tidings grant …`: rights as tokens: issued, inspected, narrowed, revoked and listed."""

from __future__ import annotations

import base64
import re
import secrets
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from tidings.cli.registry.registry import (
    DEFAULT_REGISTRY,
    FromOption,
    KeyOption,
    RegistryOption,
    UntilOption,
    moment,
    now_ms,
    open_registry,
    read_key,
)
from tidings.cli.registry.tokens import (
    GRANT_COLUMNS,
    STDIN,
    TokenContext,
    grant_row,
    link_row,
    read_token,
    shown_moment,
    token_json,
    type_name,
)
from tidings.cli.terminal import Output, OutputOption, show, tell
from tidings.errors import Denied, InputError, TidingsError
from tidings.filters import parse
from tidings.security import (
    ACTIONS,
    ANY_TYPE,
    AccessRequest,
    BiscuitCapability,
    Grant,
    Identity,
    Right,
    SignedType,
    fingerprint,
)
from tidings.security import grant as new_token

DEFAULT_VALIDITY = "+30d"  # A right that expires soon needs no revocation.

app = typer.Typer(
    name="grant",
    no_args_is_help=True,
    rich_markup_mode=None,
    invoke_without_command=True,
    help="""Grant a right to an event type, as a token that its holder presents.

    Only the type's owner can. The token is bound to its holder's key and useless to others.
    It is verified offline, and can be narrowed and delegated, never widened.

    \b
    Examples:
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
    ends: UntilOption = DEFAULT_VALIDITY,
    depth: DepthOption = 0,
    key: Annotated[Path | None, typer.Option("--key", metavar="FILE", help="The owner's private key.")] = None,
    out: OutOption = None,
    registry: RegistryOption = DEFAULT_REGISTRY,
    output: OutputOption = Output.TABLE,
) -> None:
    if ctx.invoked_subcommand is not None:
        return
    if type is None or to is None or key is None or not action:
        raise InputError("expected --type, --to, --action and --key; `tidings grant --help` shows examples")
    now, owner = now_ms(), read_key(key)
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
    raw, now = read_token(token), now_ms()
    context = TokenContext.of(registry)
    found = context.read(raw, owner)
    refused = _refusal(found, context, moment(at, now, now), holder, action, attribute, type)
    if output is Output.JSON:
        show([token_json(found, context, refused)], output)
    else:
        show([link_row(found, index, context) for index in range(len(found.inspect()))])
    if refused is not None:
        raise refused


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


@app.command()
def revoke(
    token: Annotated[str, typer.Argument(metavar="TOKEN|DIGEST", help="The token's file, - for stdin, or its digest.")],
    key: KeyOption,
    link: Annotated[
        int | None, typer.Option("--link", metavar="N", help="Which link to revoke. [default: the last]")
    ] = None,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="For the audit trail.")] = "",
    owner: OwnerOption = None,
    registry: RegistryOption = DEFAULT_REGISTRY,
    output: OutputOption = Output.TABLE,
) -> None:
    """Revoke a right: no token that contains this link is accepted any more.

    The issuer of the link can do so, the issuer of any link before it, and its holder. Key managers
    and brokers that use this registry refuse the token from now on, and every token derived from it.

    \b
    Examples:
      tidings grant revoke ccs.token --key police.pem --reason "contract ended"
      tidings grant ls                          shows digests
      tidings grant revoke 3f9a --key police.pem
    """
    by_key, now = read_key(key).public_key, now_ms()
    with open_registry(registry) as opened:
        named = token == STDIN or Path(token).is_file() or not re.fullmatch("[0-9a-f]{4,64}", token)
        context = TokenContext.of_open(opened, registry)
        found = context.read(read_token(token), owner) if named else opened.grants.find(token).token
        id = opened.grants.revoke(found, by_key=by_key, now_ms=now, link=link, reason=reason)
    show([{"revoked": id}], output)


@app.command("ls")
def list_grants(
    type: Annotated[str | None, typer.Option("--type", metavar="NAME", help="Only rights to this type.")] = None,
    holder: Annotated[str | None, typer.Option("--holder", metavar="WHO", help="Only rights of this holder.")] = None,
    registry: RegistryOption = DEFAULT_REGISTRY,
    output: OutputOption = Output.TABLE,
) -> None:
    """List the rights in this registry, and their state.

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
    show([grant_row(one, context, now, output) for one in grants], output, GRANT_COLUMNS)


# ── Output ───────────────────────────────────────────────────────────────────


def _hand_out(token: BiscuitCapability, out: Path | None, output: Output) -> None:
    text = base64.urlsafe_b64encode(token.to_bytes()).decode()
    if out is not None:
        out.write_text(text + "\n")
    if output is Output.JSON:
        show([{"token": text, "digest": token.digest.hex(), "revocation_ids": list(token.revocation_ids)}], output)
    elif out is None:
        print(text)
    else:
        tell(f"wrote {out}")


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
    return tuple(str(parse(text, signed.event_type)) for text in texts)


def _refuse_wider(asked: Grant, right: Right) -> None:
    """A link may request more than the right allows, without effect; an error is more helpful."""
    if wider := sorted(asked.actions - right.actions):
        raise Denied(f"action: the token is not for {', '.join(wider)}")
    if asked.attributes is not None and not right.covers(sorted(asked.attributes)):
        raise Denied("attributes: the token does not cover every attribute asked for")
    if asked.not_before < right.not_before or asked.not_after > right.not_after:
        raise Denied(
            f"validity: the token is valid only from {shown_moment(right.not_before)} to {shown_moment(right.not_after)}"
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
