"""`tidings org …`: an organisation, whom it trusts, and how it enrols its brokers and clients."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from tidings.cli.organisation.folder import check_stopped, organisation, report
from tidings.cli.registry.registry import OrgOption, local_and_utc, moment, now_ms, show_moment
from tidings.cli.terminal import Output, OutputOption, Row, show, tell, writing_to
from tidings.errors import InputError
from tidings.security import fingerprint

if TYPE_CHECKING:
    from tidings.net import Organisation
    from tidings.store import EnrolledParticipant

app = typer.Typer(
    name="org",
    no_args_is_help=True,
    rich_markup_mode=None,
    help="""Create an organisation, exchange public files with others, enrol brokers and clients.

    An organisation is a folder with a key. The key signs the certificates of its own brokers and clients, and the rights
    to its own event types. It never leaves the folder.

    \b
    Two organisations, from nothing (each on its own machine):
      tidings org create police
      tidings broker create police-1 --org police --listen 10.0.0.1:7401
      tidings org export --org police --out police.org            hand this public file to the other
      tidings org trust harbour.org --org police --fingerprint ed25519:…     theirs, compared by telephone
    """,
)


@app.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What the organisation is called, by others, too.")],
    folder: Annotated[
        Path | None, typer.Option("--folder", metavar="DIR", help="Where it is kept. [default: ./NAME]")
    ] = None,
    overlay: Annotated[
        str | None,
        typer.Option(
            "--overlay", metavar="NAME", help="The routing protocol; one for a whole network. [default: irbr]"
        ),
    ] = None,
    enrolment: Annotated[
        str | None,
        typer.Option(
            "--enrolment", metavar="HOST:PORT", help="Where `tidings org serve` enrols and renews, over HTTPS."
        ),
    ] = None,
    days: Annotated[
        float | None,
        typer.Option(
            "--certificate-days", metavar="N", help="How long its certificates last; they are renewed. [default: 7]"
        ),
    ] = None,
    registry: Annotated[
        str | None, typer.Option("--registry", metavar="URL", help="postgresql://… instead of a file in the folder.")
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Create an organisation: a folder with a new key, a certificate authority and a registry.

    Whoever can read the folder can act as the organisation: only you can. Running it again changes nothing.
    `tidings org delete` undoes it.

    \b
    Examples:
      tidings org create police
      tidings org create police --enrolment 10.0.0.1:7400       brokers and clients on other machines enrol there
    """
    from tidings.net import Organisation, OrganisationSettings, host_and_port
    from tidings.overlay import protocol

    if overlay:
        protocol(overlay)  # Raises for an unknown name.
    if enrolment:
        host_and_port(enrolment, "--enrolment: ")
    if days is not None and not 0 < days <= 365:
        raise InputError(f"--certificate-days: expected more than 0 and at most 365, got {days:g}")
    given = {"overlay": overlay, "enrolment": enrolment, "certificate_days": days, "registry": registry}
    asked = {word: value for word, value in given.items() if value is not None}
    settings = OrganisationSettings(name, **asked)  # type: ignore[arg-type]
    place = folder or Path(name)
    with writing_to(place):
        made, is_new = Organisation.create(place, settings)
    if not is_new:
        _check_as_asked(made, asked)
        tell(f"note: {name} is there already")
    key = fingerprint(made.authority.public_key)
    show([{"organisation": made.name, "folder": str(made.folder), "fingerprint": key}], output)
    if is_new:
        tell(f"next: tidings broker create {quote(f'{name}-1')} --org {quote(str(made.folder))} --listen HOST:PORT")


def _check_as_asked(found: Organisation, asked: Mapping[str, object]) -> None:
    """What is there stays as it is; raises InputError if something else was asked for."""
    for word, value in asked.items():
        if (there := getattr(found.settings, word)) != value:
            raise InputError(
                f"{found.name} is there already, with {word} = {there!r}, not {value!r}; nothing was changed, and "
                f"{found.folder / 'org.toml'} is where to change it"
            )


@app.command()
def delete(
    org: OrgOption = None,
    yes: Annotated[bool, typer.Option("--yes", help="Really: its keys cannot be brought back.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Delete an organisation's folder, with its key, registry, brokers and clients.

    Others still trust its key, and its rights hold until they end: leave the network first.

    \b
    Example:
      tidings org leave --org police && tidings org delete --org police --yes
    """
    if yes and org is not None and not org.exists():
        tell(f"note: {org} is gone already")
        show([], output, ("deleted", "folder"))
        return
    found = organisation(org)
    if not yes:
        raise InputError(f"this deletes {found.folder} with the only copy of its key; add --yes to do it")
    if found.folder.is_symlink():
        raise InputError(f"{found.folder} is a link; delete the folder that it leads to: {found.folder.resolve()}")
    check_stopped(found, sorted(found.folder.iterdir()))
    with found.lock.held():
        shutil.rmtree(found.folder)
    show([{"deleted": found.name, "folder": str(found.folder)}], output)


@app.command("show")
def show_org(org: OrgOption = None, output: OutputOption = Output.TABLE) -> None:
    """Show an organisation: its fingerprint, its brokers and clients, and whom it trusts.

    \b
    Example:
      tidings org show --org police
    """
    found = organisation(org)
    with found.registry() as registry:
        own = [_participant(one, output) for one in registry.participants.all()]
    others = [
        {"is": "trusted", "name": name, "key": fingerprint(found.trusted_keys(name)[-1]), "address": "", "until": ""}
        for name in found.trusts()
    ]
    me = {"is": "organisation", "name": found.name, "key": fingerprint(found.authority.public_key)}
    show([{**me, "address": found.settings.enrolment, "until": ""}, *own, *others], output)


def _participant(one: EnrolledParticipant, output: Output) -> Row:
    from tidings.net import certificate_end_ms

    ends = certificate_end_ms(one.certificate)
    return {
        "is": one.role,
        "name": one.name,
        "key": fingerprint(one.key),
        "address": one.address,
        "until": local_and_utc(ends) if output is Output.TABLE else show_moment(ends),
    }


# ── Other organisations ──


@app.command()
def export(
    org: OrgOption = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Where to write it. [default: ./NAME.org]")
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Write the organisation's public file: its certificate, its brokers' addresses and keys, and its types.

    There is no secret in it. Send it to the other organisation by any means, and tell them the fingerprint by
    another one. Export it again when brokers or types were added.

    \b
    Example:
      tidings org export --org police --out police.org
    """
    found = organisation(org)
    card = found.card()
    file = out or Path(f"{found.name}.org")
    file.write_bytes(found.sign(card))
    key = _card_key(file)
    row = {"organisation": found.name, "file": str(file), "fingerprint": fingerprint(key)}
    show([{**row, "brokers": len(card.brokers), "types": len(card.types)}], output)


def _card_key(file: Path) -> bytes:
    from tidings.net import OrganisationCard, read_document

    return read_document(file, OrganisationCard)[1]


@app.command()
def trust(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The other's public file, from `tidings org export`.")],
    expected: Annotated[
        str | None,
        typer.Option("--fingerprint", metavar="ed25519:…", help="Refuse it unless this is its fingerprint."),
    ] = None,
    only_rights: Annotated[
        bool,
        typer.Option("--only-rights", help="Use its types and rights, and do not connect: others relay between you."),
    ] = False,
    org: OrgOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Trust another organisation: your brokers connect to its brokers, and its types can be used.

    It gets no rights by that; `tidings grant` gives them. The other side does the same with your file. Compare the
    fingerprint with the other side by telephone, or give it with --fingerprint. Running brokers use the file within
    seconds. A newer file of an organisation that you trust replaces the older one; one of its next key is accepted if
    the present key has signed that. `tidings org distrust` undoes it.

    \b
    Example:
      tidings org trust harbour.org --org police --fingerprint ed25519:9f2c…
    """
    found = organisation(org)
    before = found.cards()
    card, key, changed = found.trust(file, expected, only_rights=only_rights)
    report(found.refresh())
    brokers = ", ".join(broker.address for broker in card.brokers)
    show([{"trusted": card.name, "fingerprint": fingerprint(key), "brokers": brokers}], output)
    if not changed:
        tell(f"note: {card.name} was trusted already")
    elif card.name in before:  # Only the key that was compared then, or one that it has signed, gets this far.
        tell(f"note: {card.name} was trusted already; this newer file replaces the older one")
    elif expected is None:
        undo = f"tidings org distrust {quote(card.name)}"
        tell(f"compare this fingerprint with {card.name} by telephone; if it differs: {undo}")


@app.command()
def distrust(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The organisation, as `tidings org show` lists it.")],
    org: OrgOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Trust an organisation no longer: your brokers close their connections to it, and its rights are revoked.

    \b
    Example:
      tidings org distrust harbour --org police
    """
    found = organisation(org)
    revoked = found.distrust(name)
    show([{"distrusted": name, "revoked": len(revoked)}], output)


@app.command()
def leave(org: OrgOption = None, output: OutputOption = Output.TABLE) -> None:
    """Leave the network: trust nobody else any longer, and revoke what others were given.

    Your brokers and clients go on among themselves. Drain the brokers first, if events are still to be delivered
    elsewhere: `tidings broker drain`. The others should `tidings org distrust` you as well.

    \b
    Example:
      tidings org leave --org harbour
    """
    found = organisation(org)
    others = found.trusts()
    show([{"distrusted": name, "revoked": len(found.distrust(name))} for name in others], output)
    tell(f"{found.name} trusts nobody else now" if others else f"note: {found.name} is in no network with others")


# ── Enrolment ──


@app.command()
def approve(
    file: Annotated[Path, typer.Argument(metavar="REQUEST", help="From `tidings broker request` or `client request`.")],
    key: Annotated[
        str | None, typer.Option("--key", metavar="ed25519:…", help="Refuse it unless this is the requested key.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Where to write it. [default: ./NAME.approval]")
    ] = None,
    admin: Annotated[
        bool | None,
        typer.Option("--admin/--no-admin", help="Whether it may administer your brokers. [default: as before]"),
    ] = None,
    org: OrgOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Approve the request of a broker or a client on another machine; its private key stays there.

    Writes an approval: a certificate, whom to trust, and its rights. There is no secret in it. The other machine takes
    it with `tidings broker accept` or `tidings client accept`. Compare the key first. Also renews, if it is enrolled.

    \b
    Example:
      tidings org approve desk.request --org police --out desk.approval
    """
    from tidings.net import read_request_file

    found, request = organisation(org), read_request_file(file)
    if key is not None and fingerprint(request.key) != key:
        raise InputError(f"{file}: the key is {fingerprint(request.key)}, not {key[:80]}; do not approve it")
    if admin and request.role != "client":
        raise InputError(f"{file}: only a client can be an administrator, and this is a {request.role}")
    approval = found.approve(request, administers=admin)
    place = out or Path(f"{request.name}.approval")
    place.write_bytes(found.sign(approval))
    found.refresh()
    row = {"approved": request.name, "role": request.role, "key": fingerprint(request.key), "file": str(place)}
    show([row], output)


@app.command()
def invite(
    role: Annotated[str, typer.Argument(metavar="broker|client", help="What is to be enrolled.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Under which name.")],
    ends: Annotated[str, typer.Option("--until", metavar="TIME", help="When the code expires.")] = "+1h",
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Instead: make the codes for this name void that nobody has used.")
    ] = False,
    org: OrgOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Print a one-time code with which one broker or client enrols itself over HTTPS.

    `tidings org serve` must be running, at the address that --enrolment of `tidings org create` has named. The code
    contains the organisation's fingerprint, so who uses it needs nothing else. It is a secret until it is used;
    --cancel makes it void before that.

    \b
    Example:
      tidings org invite client desk --org police
      tidings client create desk --code 10.0.0.1:7400/9f2c…/51ab…        on the other machine
    """
    if role not in ("broker", "client"):
        raise InputError(f"expected broker or client, got {role[:40]!r}")
    if cancel:
        show([{"role": role, "name": name, "cancelled": organisation(org).uninvite(name, role)}], output)
        return
    now = now_ms()
    expires = moment(ends, now, now)
    code = organisation(org).invite(name, role, expires_ms=expires)
    if output is Output.JSON:
        show([{"role": role, "name": name, "code": code, "until": show_moment(expires)}], output)
    else:
        print(code)
        tell(f"valid once, until {local_and_utc(expires)}")


@app.command()
def serve(
    org: OrgOption = None,
    listen: Annotated[
        str | None,
        typer.Option("--listen", metavar="HOST:PORT", help="Instead of the address in org.toml."),
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Enrol and renew brokers and clients over HTTPS, until Ctrl-C; and renew what ends, once a minute.

    Who enrols shows a code of `tidings org invite`. Who renews shows that it has the key that was enrolled, and gets a
    new certificate and new rights until you remove it. Other organisations renew here the rights that you granted them.

    \b
    Example:
      tidings org serve --org police
    """
    import asyncio

    from tidings.net import log_to_stderr, serve_enrolment

    found = organisation(org)
    address = listen or found.settings.enrolment
    if not address:
        raise InputError("expected --listen HOST:PORT, or enrolment in org.toml: tidings org create --enrolment")

    def listening(at: str) -> None:
        log_to_stderr()
        if output is Output.JSON:
            show([{"organisation": found.name, "state": "enrolling", "address": at}], output)
        else:
            print(f"{found.name} enrolling {at}", flush=True)

    asyncio.run(serve_enrolment(found.folder, address, listening))


@app.command()
def renew(
    org: OrgOption = None,
    everything: Annotated[bool, typer.Option("--all", help="Also what does not end soon.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Renew certificates and rights that end soon, of the brokers and clients whose folders are here.

    `tidings org serve` does so by itself; without it, run this once a day. Running brokers and clients notice.

    \b
    Example:
      tidings org renew --org police
    """
    found = organisation(org)
    renewed = found.renew_certificates(within_days=float("inf") if everything else None)
    changes = found.refresh(renew_all=everything)
    show([{"renewed": "certificate", "of": name} for name in renewed], output, ("renewed", "of"))
    if not renewed:
        tell("note: no certificate ends soon; --all renews them all")
    report(changes)


@app.command()
def rotate(
    org: OrgOption = None,
    finish: Annotated[bool, typer.Option("--finish", help="Use the next key, now that all others trust it.")] = False,
    retire: Annotated[bool, typer.Option("--retire", help="Trust the former keys no longer.")] = False,
    cancel: Annotated[bool, typer.Option("--cancel", help="Drop the next key, before --finish.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Change the organisation's key, in three steps, while everything runs.

    First, without an option: makes the next key, which the present one signs. Export the public file again; when the
    others have trusted it (no comparing: the present key vouches for it), go on. Then --finish: certificates are signed
    with the next key from now on, and those here are replaced. At last --retire, when all participants have
    new certificates: the former key is trusted no longer. It still owns the types that it has declared. Until --finish,
    --cancel undoes the first step. Each step may be repeated.

    \b
    Example:
      tidings org rotate --org police && tidings org export --org police
      tidings org rotate --org police --finish
      tidings org rotate --org police --retire
    """
    found = organisation(org)
    if finish + retire + cancel > 1:
        raise InputError("expected one of --finish, --retire and --cancel")
    if cancel:
        dropped = found.cancel_rotation()
        show([{"key": dropped, "state": "dropped"}] if dropped else [], output, ("key", "state"))
        tell("next: tidings org export, for those who trust it" if dropped else "note: there is no next key")
    elif finish:
        renewed = found.finish_rotation()
        report(organisation(org).refresh())
        key = fingerprint(organisation(org).authority.public_key)
        show([{"key": key, "state": "signs", "certified": ", ".join(renewed)}], output)
    elif retire:
        retired = found.retire()
        show([{"key": key, "state": "retired"} for key in retired], output, ("key", "state"))
        if not retired:
            tell("note: there is no former key; `tidings org rotate` begins to change the present one")
    else:
        show([{"key": fingerprint(found.rotate()), "state": "trusted, does not sign yet"}], output)
        tell("next: tidings org export, have the others trust the new file, then tidings org rotate --finish")
