"""`tidings subscription …`: conditions in the registry, each with the right to it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from tidings.cli.registry.registry import (
    DEFAULT_REGISTRY,
    KeyOption,
    OrgOption,
    RegistryOption,
    now_ms,
    open_registry,
    read_key,
    show_key,
)
from tidings.cli.registry.tokens import read_token
from tidings.cli.terminal import Output, OutputOption, Row, show, tell
from tidings.security import fingerprint

if TYPE_CHECKING:
    from tidings.security import SignedType
    from tidings.store import SubscriptionStatus

app = typer.Typer(
    name="subscription",
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Subscriptions in the registry: conditions, each with the right to it.",
)

IdArgument: TypeAlias = Annotated[str, typer.Argument(metavar="ID", help="The subscription's id.")]


@app.command()
def add(
    id: IdArgument,
    condition: Annotated[str, typer.Argument(metavar="CONDITION", help='SQL, as after WHERE: "speed > 20".')],
    type: Annotated[str, typer.Option("--type", metavar="NAME", help="The event type, as `tidings type ls` shows it.")],
    key: KeyOption,
    token: Annotated[
        Path | None, typer.Option("--token", metavar="FILE", help="Your right to it. The type's owner needs none.")
    ] = None,
    subscriber: Annotated[
        str | None,
        typer.Option("--subscriber", metavar="NAME", help="Who receives events. [default: your domain's name]"),
    ] = None,
    org: OrgOption = None,
    registry: RegistryOption = DEFAULT_REGISTRY,
    output: OutputOption = Output.TABLE,
) -> None:
    """Add a subscription under an id of your choice, or replace your own with that id.

    The condition is checked against the type, and you need a right to subscribe that covers
    every attribute it mentions. You sign it with your key.

    \b
    Example:
      tidings subscription add ccs-1 "plate LIKE 'A%'" --type Numberplate --key ccs.pem --token ccs.token
    """
    from tidings.store import KeptSubscription, SubscriptionStatus

    now, holder = now_ms(), read_key(key)
    with open_registry(registry) as opened:
        signed, names = opened.types.find(type), opened.domains.names()
        wanted = KeptSubscription.make(
            holder,
            signed,
            condition,
            id=id,
            subscriber=subscriber if subscriber is not None else show_key(holder.public_key, names),
            token=read_token(str(token)) if token else b"",
        )
        if not opened.subscriptions.add(wanted, now_ms=now):
            tell("note: the registry already has this subscription")
    show([_row(SubscriptionStatus(wanted), signed)], output)


@app.command("ls")
def list_subscriptions(
    type: Annotated[str | None, typer.Option("--type", metavar="NAME", help="Only those to this type.")] = None,
    active: Annotated[bool, typer.Option("--active", help="Only those whose right is valid now.")] = False,
    org: OrgOption = None,
    registry: RegistryOption = DEFAULT_REGISTRY,
    output: OutputOption = Output.TABLE,
) -> None:
    """List subscriptions, and whether the right to each is still valid.

    \b
    Examples:
      tidings subscription ls --type Numberplate
      tidings subscription ls --active -o json > wanted.jsonl     for `tidings match`
    """
    with open_registry(registry) as opened:
        type_id = opened.types.find(type).type_id if type else None
        types = {signed.type_id: signed for signed in opened.types.all()}
        statuses = opened.subscriptions.with_status(now_ms=now_ms(), type_id=type_id)
    rows = [_row(one, types[one.subscription.type_id]) for one in statuses if not (active and one.refused)]
    show(rows, output, ("id", "subscriber", "type", "filter", "refused"))


@app.command("rm")
def remove(id: IdArgument, key: KeyOption, org: OrgOption = None, registry: RegistryOption = DEFAULT_REGISTRY) -> None:
    """Remove a subscription. Its holder can do so, and the owner of its type.

    \b
    Example:
      tidings subscription rm ccs-1 --key ccs.pem
    """
    by_key = read_key(key).public_key
    with open_registry(registry) as opened:
        opened.subscriptions.remove(id, by_key=by_key, now_ms=now_ms())


def _row(one: SubscriptionStatus, signed: SignedType) -> Row:
    kept = one.subscription
    return {
        "id": kept.id,
        "subscriber": kept.subscriber,
        "filter": kept.condition,
        "type": signed.event_type.name,
        "holder": fingerprint(kept.holder),
        "refused": one.refused,
    }
