"""`tidings broker create …` and `tidings client create …`: how brokers and clients are enrolled, renewed and removed."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from tidings.cli.organisation.folder import check_stopped, organisation, report
from tidings.cli.registry.registry import OrgOption, local_and_utc, show_moment
from tidings.cli.terminal import Output, OutputOption, show, tell, writing_to
from tidings.errors import Denied, InputError
from tidings.security import fingerprint

if TYPE_CHECKING:
    from tidings.net import Approval, Organisation

NameArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="NAME", help="Its name in the organisation, and its folder's.")
]
ListenOption: TypeAlias = Annotated[
    str, typer.Option("--listen", metavar="HOST:PORT", help="Where it listens, and others reach it.")
]
AdvertiseOption: TypeAlias = Annotated[
    str, typer.Option("--advertise", metavar="HOST:PORT", help="Where others reach it, if that is not --listen.")
]
CodeOption: TypeAlias = Annotated[
    str, typer.Option("--code", metavar="CODE", help="From `tidings org invite`: enrol over HTTPS, on any machine.")
]
FolderOption: TypeAlias = Annotated[
    Path | None, typer.Option("--folder", metavar="DIR", help="Its folder on this machine. [default: ./NAME]")
]
OrganisationOption: TypeAlias = Annotated[
    str, typer.Option("--organisation", metavar="NAME", help="The name of the organisation to ask.")
]
OutOption: TypeAlias = Annotated[
    Path | None, typer.Option("--out", metavar="FILE", help="Where to write it. [default: ./NAME.request]")
]
BrokerOption: TypeAlias = Annotated[
    str, typer.Option("--broker", metavar="NAME", help="Its broker. [default: the organisation's first]")
]
AdminOption: TypeAlias = Annotated[
    bool | None,
    typer.Option("--admin/--no-admin", help="Whether it may administer your brokers. [default: as before, or not]"),
]
ApprovalArgument: TypeAlias = Annotated[
    Path, typer.Argument(metavar="APPROVAL", help="From `tidings org approve`, on the authority's machine.")
]
FingerprintOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--fingerprint", metavar="ed25519:…", help="Refuse it unless this is the organisation's."),
]
PurgeOption: TypeAlias = Annotated[
    bool, typer.Option("--purge", help="Delete its folder, too, with its key and what it has stored.")
]

client_app = typer.Typer(
    name="client",
    no_args_is_help=True,
    rich_markup_mode=None,
    help="""Enrol a client of your organisation: who publishes and subscribes at one of its brokers.

    \b
    Examples:
      tidings client create desk --org police                 the organisation's folder is on this machine
      tidings client create desk --code 10.0.0.1:7400/…       on another machine, with a code of `tidings org invite`
      tidings client request desk --organisation police       on another machine, with files
    """,
)


# ── Brokers ──


def create_broker(
    name: NameArgument,
    listen: ListenOption,
    advertise: AdvertiseOption = "",
    code: CodeOption = "",
    folder: FolderOption = None,
    org: OrgOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Create a broker: its key, its certificate and its broker.toml. Its key never leaves this machine.

    Without --code, the organisation's folder is on this machine, and signs. Running it again changes nothing, or
    completes what was interrupted. `tidings broker remove` undoes it.

    \b
    Examples:
      tidings broker create police-1 --org police --listen 127.0.0.1:7401
      tidings broker create police-2 --listen 10.0.0.2:7401 --code 10.0.0.1:7400/9f2c…/51ab…
    """
    if code:
        _enrol(folder or Path(name), name, "broker", code, listen, advertise, output)
    else:
        _create_here(org, name, "broker", listen, advertise, output)


def request_broker(
    name: NameArgument,
    listen: ListenOption,
    organisation: OrganisationOption,
    advertise: AdvertiseOption = "",
    folder: FolderOption = None,
    out: OutOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Make a broker's key and a request for its certificate, on a machine without the organisation's key.

    Take the request to the organisation, where `tidings org approve` makes an approval of it; then
    `tidings broker accept`. There is no secret in the request.

    \b
    Example:
      tidings broker request police-2 --organisation police --listen 10.0.0.2:7401
    """
    _request(folder or Path(name), organisation, name, "broker", advertise or listen, out, output)


def accept_broker(
    approval: ApprovalArgument,
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Where it listens. [default: as requested]")
    ] = "",
    fingerprint: FingerprintOption = None,
    folder: FolderOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Take an approval into the broker's folder, beside its key; the broker can then run.

    \b
    Example:
      tidings broker accept police-2.approval --fingerprint ed25519:9f2c…
    """
    _accept(approval, "broker", listen, fingerprint, folder, output)


def renew_broker(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Its folder on this machine.")],
    output: OutputOption = Output.TABLE,
) -> None:
    """Renew its certificate and its rights now, at its organisation's `tidings org serve`.

    A running broker does so by itself when a third of the time is left.

    \b
    Example:
      tidings broker renew police-2
    """
    _renew(folder, "broker", output)


def remove_broker(
    name: NameArgument, purge: PurgeOption = False, org: OrgOption = None, output: OutputOption = Output.TABLE
) -> None:
    """Remove a broker from its organisation: its rights are revoked, and nothing of it is renewed any more.

    Drain it first, if it still has events to deliver: `tidings broker drain`.

    \b
    Example:
      tidings broker remove police-2 --org police
    """
    _remove(name, "broker", purge, org, output)


# ── Clients ──


@client_app.command("create")
def create_client(
    name: NameArgument,
    broker: BrokerOption = "",
    admin: AdminOption = None,
    code: CodeOption = "",
    folder: FolderOption = None,
    org: OrgOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Create a client: its key, its certificate and its client.toml. Its key never leaves this machine.

    It has no rights yet: `tidings grant --to NAME`, or a role; with --admin it may drain your brokers. Running it again
    changes nothing, or completes what was interrupted. `tidings client remove` undoes it.

    \b
    Examples:
      tidings client create camera --org police
      tidings client create operator --admin --org police
      tidings client create desk --code 10.0.0.1:7400/9f2c…/51ab…
    """
    if code and admin is not None:
        raise InputError("--admin is for the machine with the organisation's key; there: `tidings org approve --admin`")
    if code:
        _enrol(folder or Path(name), name, "client", code, "", "", output)
    else:
        _create_here(org, name, "client", "", "", output, broker, admin)


@client_app.command("request")
def request_client(
    name: NameArgument,
    organisation: OrganisationOption,
    folder: FolderOption = None,
    out: OutOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Make a client's key and a request for its certificate, on a machine without the organisation's key.

    \b
    Example:
      tidings client request desk --organisation police
    """
    _request(folder or Path(name), organisation, name, "client", "", out, output)


@client_app.command("accept")
def accept_client(
    approval: ApprovalArgument,
    fingerprint: FingerprintOption = None,
    folder: FolderOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Take an approval into the client's folder, beside its key.

    \b
    Example:
      tidings client accept desk.approval --fingerprint ed25519:9f2c…
    """
    _accept(approval, "client", "", fingerprint, folder, output)


@client_app.command("move")
def move_client(
    name: NameArgument,
    broker: Annotated[str, typer.Option("--broker", metavar="NAME", help="Another broker of your organisation.")],
    org: OrgOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Have a client use another broker, from its next start on.

    Its durable subscriptions stay at the former broker. Read their queues to the end first, then subscribe at the new one
    under the same names with --from and a time before that: nothing is lost, and what came twice has the same id.

    \b
    Example:
      tidings client move desk --broker police-2 --org police
    """
    if not organisation(org).move_client(name, broker):
        tell(f"note: {name} uses {broker} already")
    show([{"client": name, "broker": broker}], output)


@client_app.command("renew")
def renew_client(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Its folder on this machine.")],
    output: OutputOption = Output.TABLE,
) -> None:
    """Renew its certificate and its rights now; a running client does so by itself when a third of the time is left.

    \b
    Example:
      tidings client renew desk
    """
    _renew(folder, "client", output)


@client_app.command("remove")
def remove_client(
    name: NameArgument, purge: PurgeOption = False, org: OrgOption = None, output: OutputOption = Output.TABLE
) -> None:
    """Remove a client from its organisation: its rights are revoked, and nothing of it is renewed any more.

    \b
    Example:
      tidings client remove desk --org police
    """
    _remove(name, "client", purge, org, output)


# ── Both ──


def _create_here(
    org: Path | None,
    name: str,
    role: str,
    listen: str,
    advertise: str,
    output: Output,
    broker: str = "",
    admin: bool | None = None,
) -> None:
    from tidings.net import checked_file_name, prepare_participant

    found = organisation(org)
    folder = found.folder / checked_file_name(name)
    if role == "broker":
        _check_address(found, name, listen, advertise or listen)
    else:
        _check_broker(found, folder, broker)
    with writing_to(folder), found.lock.held():
        request = prepare_participant(folder, found.name, name, role, advertise or listen)
        approval = found.approve(request, administers=admin)
        changed = found.install_here(approval, listen=listen, broker=broker)
        report(found.refresh())
    _show_made(approval, folder, output)
    if not changed:
        tell(f"note: {name} is there already")


def _check_address(found: Organisation, name: str, listen: str, address: str) -> None:
    """Who is there keeps its address, and no two brokers have one."""
    with found.registry() as opened:
        brokers = {one.name: one.address for one in opened.participants.all() if one.role == "broker"}
    if brokers.get(name, address) != address:
        raise InputError(
            f"{name} is there already, at {brokers[name]}; for another address make another broker with `tidings broker "
            f"rotate {name} --to NAME --listen {listen}`, or remove this one with `tidings broker remove {name} --purge`"
        )
    for other, taken in brokers.items():
        if other != name and taken == address:
            raise InputError(f"{other} has the address {address} already; choose another port with --listen")


def _check_broker(found: Organisation, folder: Path, broker: str) -> None:
    """Before a client is enrolled: there is a broker for it, and who is there keeps its own."""
    from tidings.net import read_client

    with found.registry() as opened:
        brokers = {one.name: fingerprint(one.key) for one in opened.participants.all("broker")}
    if not brokers or broker not in ("", *brokers):
        lacks = f"no broker {broker!r}" if broker else "no broker yet that a client could use"
        raise InputError(f"{found.name} has {lacks}; make one: tidings broker create")
    file = folder / "client.toml"
    if broker and file.exists() and read_client(file).broker_key != brokers[broker]:
        raise InputError(
            f"{folder.name} is there already, and uses another broker; `tidings client move {quote(folder.name)} "
            f"--broker {quote(broker)}` has it use this one"
        )


def _enrol(folder: Path, name: str, role: str, code: str, listen: str, advertise: str, output: Output) -> None:
    from tidings.net import enrol_with_code

    approval = enrol_with_code(folder, name, role, code, listen=listen, advertise=advertise)
    _show_made(approval, folder, output)


def _show_made(approval: Approval, folder: Path, output: Output) -> None:
    from tidings.net import certificate_end_ms

    ends = certificate_end_ms(approval.certificate.encode())
    file = str(folder / f"{approval.role}.toml")
    row = {"is": approval.role, "name": approval.name, "organisation": approval.organisation, "file": file}
    show([{**row, "until": show_moment(ends) if output is Output.JSON else local_and_utc(ends)}], output)
    if approval.role == "broker":
        tell(f"next: tidings broker run --config {quote(file)}")


def _request(folder: Path, org: str, name: str, role: str, address: str, out: Path | None, output: Output) -> None:
    from tidings.net import prepare_participant

    request = prepare_participant(folder, org, name, role, address)
    place = out or Path(f"{name}.request")
    place.write_bytes(request.pem)
    key = fingerprint(request.key)
    show([{"request": str(place), "name": name, "organisation": org, "key": key}], output)
    tell(f"next, on the machine of {org}: tidings org approve {quote(place.name)}")


def _accept(file: Path, role: str, listen: str, expected: str | None, folder: Path | None, output: Output) -> None:
    from tidings.net import Approval, install_approval, read_document

    approval, key = read_document(file, Approval)
    if expected is not None and fingerprint(key) != expected:
        raise Denied(f"holder: the approval is from {fingerprint(key)}, not from {expected[:80]}; do not accept it")
    if approval.role != role:
        raise InputError(f"{file} is for a {approval.role}; use `tidings {approval.role} accept`")
    place = folder or Path(approval.name)
    if not (place / "key.pem").exists():
        raise InputError(f"{place} has no key; `tidings {role} request` makes one, --folder names another folder")
    install_approval(place, approval, key, listen=listen)
    _show_made(approval, place, output)
    if expected is None:
        tell(f"compare with {approval.organisation} by telephone: {fingerprint(key)}")


def _renew(folder: Path, role: str, output: Output) -> None:
    from tidings.net import renew_participant

    _show_made(renew_participant(folder, role), folder, output)


def _remove(name: str, role: str, purge: bool, org: Path | None, output: Output) -> None:
    from tidings.net import checked_file_name

    found = organisation(org)
    if purge:
        check_stopped(found, [found.folder / checked_file_name(name)])
    with found.registry() as opened:
        if opened.participants.was_removed(name):
            tell(f"note: {name} was removed before")
    revoked = found.remove(name, role, purge=purge)
    show([{"removed": name, "revoked": len(revoked)}], output)
