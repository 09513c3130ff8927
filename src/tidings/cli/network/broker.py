"""`tidings broker …`: run, inspect and drain a broker."""

from __future__ import annotations

import asyncio
import enum
import json
import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidings.cli.lazy import LazyEntry, lazy_group
from tidings.cli.network.broker_options import (
    AcsOption,
    AdvertiseOption,
    AuthorityOption,
    CaptureOption,
    CertificateOption,
    DataOption,
    DomainOption,
    EnrolmentOption,
    GatewayCertificateOption,
    GatewayHostsOption,
    GatewayKeyOption,
    GatewayOption,
    GatewayOriginsOption,
    GatewaySinksOption,
    JournalOption,
    JournalPasswordOption,
    KeyOption,
    LimitsOption,
    ListenOption,
    ManagesOption,
    MetricsOption,
    NameOption,
    NetworkKeyOption,
    OverlayOption,
    PeersFileOption,
    PeersOption,
    RegistryOption,
    TokensOption,
    TracesOption,
    TracesRatioOption,
    TrustedOption,
    TypesOption,
)
from tidings.cli.network.session import AsOption, as_client, asked
from tidings.cli.network.status import in_words
from tidings.cli.terminal import Output, OutputOption, clear_screen, refusing_what_is_broken, show, tell

if TYPE_CHECKING:
    from tidings.net import Client

WATCH_S_MAX = 5.0  # How long --watch waits for an answer before it says that there is none.


class LogLevel(enum.StrEnum):
    """How much a broker logs."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


_PARTICIPANTS = "tidings.cli.organisation.participants"

app = typer.Typer(
    name="broker",
    cls=lazy_group(
        [
            LazyEntry("create", f"{_PARTICIPANTS}:create_broker", "Create a broker: key, certificate, broker.toml."),
            LazyEntry("request", f"{_PARTICIPANTS}:request_broker", "Make a key and a request for its certificate."),
            LazyEntry("accept", f"{_PARTICIPANTS}:accept_broker", "Take the approval of a request."),
            LazyEntry("renew", f"{_PARTICIPANTS}:renew_broker", "Renew its certificate and its rights now."),
            LazyEntry("remove", f"{_PARTICIPANTS}:remove_broker", "Remove a broker from its organisation."),
            LazyEntry(
                "rotate",
                "tidings.cli.organisation.rotate:rotate_broker",
                "Give a broker a new key: another takes its place.",
            ),
        ]
    ),
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Create a broker, run it, show its status, back it up, restore it, drain it.",
)


@app.command()
def run(
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="broker.toml",
            envvar="TIDINGS_BROKER_CONFIG",
            help="The broker, as `tidings init` writes it.",
        ),
    ] = None,
    name: NameOption = None,
    domain: DomainOption = None,
    listen: ListenOption = None,
    advertise: AdvertiseOption = None,
    key: KeyOption = None,
    certificate: CertificateOption = None,
    trusted: TrustedOption = None,
    data: DataOption = None,
    overlay: OverlayOption = None,
    network_key: NetworkKeyOption = None,
    token: TokensOption = None,
    type: TypesOption = None,
    manages: ManagesOption = None,
    acs: AcsOption = None,
    registry: RegistryOption = None,
    journal: JournalOption = None,
    journal_password: JournalPasswordOption = None,
    gateway: GatewayOption = None,
    gateway_certificate: GatewayCertificateOption = None,
    gateway_key: GatewayKeyOption = None,
    gateway_origin: GatewayOriginsOption = None,
    gateway_host: GatewayHostsOption = None,
    gateway_sink: GatewaySinksOption = None,
    metrics: MetricsOption = None,
    traces: TracesOption = None,
    traces_ratio: TracesRatioOption = None,
    peer: PeersOption = None,
    peers_file: PeersFileOption = None,
    enrolment: EnrolmentOption = None,
    authority: AuthorityOption = None,
    capture: CaptureOption = None,
    limit: LimitsOption = None,
    level: Annotated[LogLevel, typer.Option("--log", help="From which level on the log is written.")] = LogLevel.INFO,
    output: OutputOption = Output.TABLE,
) -> None:
    """Run a broker until Ctrl-C, SIGTERM or `tidings broker drain`.

    Its configuration comes from a file, from the environment (TIDINGS_BROKER_LISTEN, TIDINGS_LIMITS_BURST_S, …) and
    from options. An option counts more than a variable, and a variable more than the file. Options of the overlay can
    only be set in the file. Relative paths in the file start at its folder, others at the working folder.

    You may stop or kill it at any time: what it has acknowledged is on disk, and after a restart it continues. It
    prints on stdout when it listens and when it has joined the network; its log is on stderr, as JSON lines.

    With its journal in a PostgreSQL database (--journal), the same broker may be started on several hosts: one process
    serves, and the others wait until its lease ends, then take over. A process that has lost its lease writes nothing
    more, says so, and exits with 3.

    It refuses to start, and exits with 3 and the reason, if a type is not as its owner signed it, if the clock was
    set back, or if a key manager's state is older than one that it had before.

    \b
    Examples:
      tidings broker run --config police/police-1/broker.toml
      tidings broker run --config police/police-1/broker.toml --listen 0.0.0.0:7401 --metrics 127.0.0.1:9101
      tidings broker run --name police-1 --domain police --listen 0.0.0.0:7401 --data /var/lib/tidings \\
        --key police-1.pem --certificate police-1.crt --trusted trusted.pem --type Numberplate.toml
    """
    from tidings.net import broker_with, log_to_stderr, peer_at, prepare, serve

    log_to_stderr(level)
    one: dict[str, object] = {
        "name": name,
        "domain": domain,
        "listen": listen,
        "advertise": advertise,
        "key": key,
        "data": data,
    }
    one |= {"certificate": certificate, "trusted": trusted, "overlay": overlay, "network_key": network_key}
    one |= {"registry": registry, "metrics": metrics, "capture": capture, "acs": acs}
    one |= {"journal": journal, "journal_password": journal_password}
    one |= {"gateway": gateway, "gateway_certificate": gateway_certificate, "gateway_key": gateway_key}
    one |= {"traces": traces, "traces_ratio": traces_ratio}
    one |= {"peers_file": peers_file, "enrolment": enrolment, "authority": authority}
    many = {"tokens": token, "types": type, "manages": manages, "gateway_origins": gateway_origin}
    many |= {"gateway_hosts": gateway_host, "gateway_sinks": gateway_sink}
    peers = {"peers": [peer_at(each) for each in peer or ()]}
    described = broker_with(config, _given(one, {**many, **peers}), os.environ, limit or ())
    with refusing_what_is_broken():
        prepare()
        asyncio.run(serve(described, partial(_say, output)))


def _given(one: Mapping[str, object], many: Mapping[str, Sequence[object] | None]) -> dict[str, Any]:
    """The options that were given."""
    return {
        **{word: value for word, value in one.items() if value is not None},
        **{word: tuple(values) for word, values in many.items() if values},
    }


def _say(output: Output, row: dict[str, Any]) -> None:
    if output is Output.JSON:
        show([row], output)
    else:
        print(" ".join(str(value) for value in row.values()), flush=True)


@app.command()
def status(
    who: AsOption = None,
    watch: Annotated[bool, typer.Option("--watch", help="Show it again and again, until Ctrl-C.")] = False,
    every: Annotated[
        float, typer.Option("--every", metavar="SECONDS", help="How often --watch asks.", min=0.1, max=3600.0)
    ] = 2.0,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show a broker's status: its links, clients, types, and what waits to be delivered.

    Lines in capitals need attention. With -o json all numbers are there, one object on a line.

    \b
    Examples:
      tidings broker status --as police/camera/client.toml
      tidings broker status --watch --every 1
      tidings broker status -o json | jq .holdings
    """
    if watch:
        as_client(who, partial(_watch, every=every, output=output))
        return
    (found,) = asked(who, "status")
    show([found] if output is Output.JSON else in_words(found), output)


async def _watch(client: Client, *, every: float, output: Output) -> None:
    before: dict[str, Any] | None = None
    while True:
        try:
            (now,) = await asyncio.wait_for(client.ask("status"), WATCH_S_MAX)
        except TimeoutError:
            tell(f"the broker at {client.config.broker} does not answer; trying again")
            continue
        if output is Output.JSON:
            show([now], output)
        else:
            clear_screen()
            show(in_words(now, before))
        before = now
        await asyncio.sleep(every)


@app.command()
def backup(
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The backup, a new file.")],
    config: Annotated[
        Path,
        typer.Option(
            "--config",
            metavar="broker.toml",
            envvar="TIDINGS_BROKER_CONFIG",
            help="The broker that is backed up.",
        ),
    ] = Path("broker.toml"),
    data: DataOption = None,
    registry: RegistryOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Back a broker up while it runs: journal, registry, key managers, configuration, keys and rights in one file.

    Run it on the broker's host, as its user. What the broker has acknowledged before is in the file. The file holds
    private keys: keep it as you keep those. A registry on a PostgreSQL server is not in it; back it up with the server.
    Give --data, --registry and the environment as the broker has them.

    \b
    Examples:
      tidings broker backup --config police/police-1/broker.toml --out police-1.backup
    """
    from tidings.net import write_backup

    with refusing_what_is_broken():
        made = write_backup(config, out, _given({"data": data, "registry": registry}, {}), os.environ)
    row: dict[str, Any] = {"broker": made.manifest.broker, "file": str(made.file), "bytes": made.size}
    show([{**row, "files": len(made.manifest.files)}], output)
    if made.manifest.registry:
        tell("the registry is on a server and not in this file; back it up there, too")


@app.command()
def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="As `tidings broker backup` writes it.")],
    to: Annotated[Path, typer.Option("--to", metavar="FOLDER", help="A new folder for the broker.")],
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where it listens from now on.")] = "",
    advertise: Annotated[str, typer.Option(metavar="HOST:PORT", help="The address that others use.")] = "",
    registry: Annotated[
        str,
        typer.Option(metavar="URL", help="A registry that was not lost, instead of the one in the backup."),
    ] = "",
    output: OutputOption = Output.TABLE,
) -> None:
    """Restore a broker from a backup, into a new folder on this host or another. Then run it from there.

    The restored broker replaces the one that was backed up: as soon as another broker has spoken with it, the earlier
    copy is refused, stops, and does not start again. Before you run the restored one, see to it that the earlier copy
    has no clients any more: what they publish there is lost.

    Other brokers send again what the earlier copy acknowledged after the backup. What its own clients published after
    the backup is not there. A subscriber may be sent again what it read after the backup.

    \b
    Examples:
      tidings broker restore police-1.backup --to police-1
      tidings broker restore police-1.backup --to /var/lib/tidings/police-1 --advertise 10.0.0.7:7401
    """
    from tidings.net import restore_backup

    with refusing_what_is_broken():
        made = restore_backup(file, to, listen=listen, advertise=advertise, registry=registry)
    row: dict[str, Any] = {"broker": made.manifest.broker, "config": str(made.config), "copy": made.copy}
    show([{**row, "subscriptions": made.durables, "key_managers": made.managers}], output)
    tell(f"earlier copies of {made.manifest.broker} stop when they hear of this one; run it with")
    tell(f"  tidings broker run --config {made.config}")


@app.command()
def drain(who: AsOption = None, output: OutputOption = Output.TABLE) -> None:
    """Drain a broker: it accepts no new events, sends its pending deliveries, leaves the network and stops.

    \b
    Example:
      tidings broker drain --as police/camera/client.toml
    """
    asked(who, "drain")
    tell("the broker is draining; it stops by itself when no delivery is pending")


@app.command("openapi")
def describe_gateway() -> None:
    """Print the OpenAPI description of the HTTP gateway, as a running one serves it at /openapi.json.

    \b
    Example:
      tidings broker openapi > gateway.json
    """
    from tidings import __version__
    from tidings.net import openapi

    print(json.dumps(openapi(__version__), indent=2))
