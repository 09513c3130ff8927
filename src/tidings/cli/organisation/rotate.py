"""`tidings broker rotate`: a broker with a new key takes the place of another, and no event is lost."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from tidings.cli.organisation.folder import organisation
from tidings.cli.organisation.participants import AdvertiseOption, NameArgument, create_broker
from tidings.cli.registry.registry import OrgOption, now_ms
from tidings.cli.terminal import Output, OutputOption, show, tell
from tidings.errors import InputError, PeerError, SetupError
from tidings.security import fingerprint

if TYPE_CHECKING:
    from tidings.net import ClientConfig, Organisation
    from tidings.security import SignedType
    from tidings.store import EnrolledParticipant

DRAINED_S_MAX = 90.0  # A broker gives up waiting for acknowledgements after a minute.
LOOK_S = 0.2


class _Change(NamedTuple):
    """Who goes, who comes, and the clients whose folders are here, by name."""

    old: EnrolledParticipant
    new: EnrolledParticipant
    clients: dict[str, ClientConfig]


def rotate_broker(
    name: NameArgument,
    to: Annotated[str, typer.Option("--to", metavar="NAME", help="The broker that takes its place, with a new key.")],
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Where the new one listens; not with --finish.")
    ] = "",
    advertise: AdvertiseOption = "",
    finish: Annotated[
        bool, typer.Option("--finish", help="The new one runs: move the clients, drain the old one, remove it.")
    ] = False,
    unread: Annotated[
        bool, typer.Option("--unread", help="Finish although durable queues are not read to the end; use --from then.")
    ] = False,
    org: OrgOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Give a broker a new key. A broker is known by its key, so another one takes its place, in two steps.

    The first creates the new broker beside the old one. Run it, and let linked organisations trust your public file
    again. The second, with --finish, needs both brokers to run: it drains the old one, moves the clients whose folders
    are here, moves the key managers of your types to the new one, and removes the old one. Each step may be repeated. Clients then start again, and subscribe under the same
    durable names with --from and a time before the last event that they have read: nothing is lost, and what comes twice
    has the same id.

    \b
    Examples:
      tidings broker rotate police-1 --to police-2 --listen 10.0.0.1:7402 --org police
      tidings broker rotate police-1 --to police-2 --finish --org police
    """
    if name == to:
        raise InputError(f"--to {to}: a broker with a new key needs a name of its own")
    found = organisation(org)
    if finish:
        _finish(found, name, to, unread, output)
        return
    if not listen:
        raise InputError("expected --listen HOST:PORT for the new broker, or --finish if it runs")
    with found.registry() as registry:
        old = registry.participants.find(name)
    _managed(found, old)
    create_broker(to, listen, advertise, org=org, output=output)
    tell(f"then: tidings org export, for linked organisations; tidings broker rotate {name} --to {to} --finish")


def _finish(found: Organisation, name: str, to: str, unread: bool, output: Output) -> None:
    with found.registry() as registry:
        brokers = {one.name: one for one in registry.participants.all("broker")}
        new = brokers.get(to) or registry.participants.find(to)
    if name not in brokers:
        tell(f"note: {name} is gone already")
        _show_done(name, to, [], [], 0, output)
        return
    change = _Change(brokers[name], new, _clients(found))
    managed = _managed(found, change.old)
    if not change.clients:
        raise InputError(f"expected the folder of a client in {found.folder}, to ask {name} and {to} as; create one")
    import asyncio

    asyncio.run(_drain(found, change, unread))
    _hand_over(found, change, managed)
    old_key = fingerprint(change.old.key)
    moved = [one for one, config in change.clients.items() if config.broker_key == old_key]
    for one in moved:
        found.move_client(one, to)
    revoked = found.remove(name, "broker")
    _show_done(name, to, moved, managed, len(revoked), output)
    tell("next: start the clients again; tidings org export, for linked organisations")


def _show_done(name: str, to: str, moved: list[str], managed: list[SignedType], revoked: int, output: Output) -> None:
    lists = {"moved": moved, "manages": sorted({one.event_type.name for one in managed})}
    words = lists if output is Output.JSON else {word: ", ".join(names) for word, names in lists.items()}
    show([{"removed": name, "broker": to, **words, "revoked": revoked}], output)


def _clients(found: Organisation) -> dict[str, ClientConfig]:
    from tidings.net import read_client

    with found.registry() as registry:
        files = {one.name: found.folder / one.name / "client.toml" for one in registry.participants.all("client")}
    return {name: read_client(file) for name, file in files.items() if file.exists()}


def _managed(found: Organisation, old: EnrolledParticipant) -> list[SignedType]:
    """The types whose key manager runs at a broker; raises InputError if its key is on another machine."""
    from tidings.net import check_can_hand_over, managers_at

    folder, now = found.folder / old.name, now_ms()
    keys = {old.manager_key, *managers_at(folder)} - {None}
    with found.registry() as registry:
        types = [one for one in registry.types.all() if one.key_manager in keys and one.not_after > now]
    check_can_hand_over(types, old.name, folder)
    return types


def _hand_over(found: Organisation, change: _Change, managed: list[SignedType]) -> None:
    """The new broker distributes the keys of our types from now on."""
    from tidings.net import hand_over_managers

    if managed:
        hand_over_managers(managed, found.folder / change.old.name, found.folder / change.new.name)


async def _drain(found: Organisation, change: _Change, unread: bool) -> None:
    """Have the old broker deliver everything to others and stop, once the new one has joined."""
    from tidings.net import is_running

    old, new = change.old, change.new
    state = await _ask(change, new, "status")
    if state is None:
        file = found.folder / new.name / "broker.toml"
        raise SetupError(f"{new.name} does not answer at {new.address}; start it: tidings broker run --config {file}")
    if not state["joined"]:
        raise SetupError(f"{new.name} has not joined the network yet; `tidings broker status` says whom it waits for")
    before = await _ask(change, old, "status")
    if before is None and not is_running(found.folder / old.name):
        tell(f"note: {old.name} does not run; what it still had for others stays in its folder")
        return
    if before is not None and before["waiting"] and not unread:
        raise InputError(
            f"{old.name} has {before['waiting']} events that its clients have not read: read them with "
            "`tidings subscribe TYPE --durable NAME`, or add --unread, and have --from fetch them again"
        )
    import asyncio

    await _ask(change, old, "drain")
    try:
        async with asyncio.timeout(DRAINED_S_MAX):
            while is_running(found.folder / old.name) or await _ask(change, old, "status") is not None:  # noqa: ASYNC110
                await asyncio.sleep(LOOK_S)
    except TimeoutError:
        raise SetupError(
            f"{old.name} has not stopped after {DRAINED_S_MAX:g} s; look at its log, then repeat"
        ) from None


async def _ask(change: _Change, broker: EnrolledParticipant, what: str) -> dict[str, Any] | None:
    """A broker's answer, asked as an administrator of ours, or as any client; None if it does not run."""
    from tidings.net import Client, der, is_administrator

    clients = list(change.clients.values())
    config = next((one for one in clients if is_administrator(der(one.certificate.read_bytes()))), clients[0])
    try:
        async with await Client.connect(
            replace(config, broker=broker.address, broker_key=fingerprint(broker.key))
        ) as client:
            rows = await client.ask(what)
            return rows[0] if rows else {}
    except PeerError:
        return None
