"""`tidings broker …`: run, inspect and drain a broker; and what all commands of the live network share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar

import typer

from tidings.cli.network.broker_options import (
    AdvertiseOption,
    CaptureOption,
    CertificateOption,
    DataOption,
    DomainOption,
    GatewayCertificateOption,
    GatewayKeyOption,
    GatewayOption,
    GatewayOriginsOption,
    KeyOption,
    ListenOption,
    ManagesOption,
    MetricsOption,
    NameOption,
    NetworkKeyOption,
    OverlayOption,
    PeersOption,
    RegistryOption,
    TokensOption,
    TrustedOption,
    TypesOption,
)
from tidings.cli.terminal import Output, OutputOption, refusing_what_is_broken, show, tell

if TYPE_CHECKING:
    from tidings.net import Client

_T = TypeVar("_T")

AsOption: TypeAlias = Annotated[
    Path,
    typer.Option("--as", metavar="client.toml", envvar="TIDINGS_CLIENT", help="Who you are and which broker is yours."),
]

app = typer.Typer(
    name="broker",
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Run a broker of the live network, show its status, drain it.",
)


@app.command()
def run(
    config: Annotated[
        Path | None, typer.Option("--config", metavar="broker.toml", help="The broker, as `tidings init` writes it.")
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
    registry: RegistryOption = None,
    gateway: GatewayOption = None,
    gateway_certificate: GatewayCertificateOption = None,
    gateway_key: GatewayKeyOption = None,
    gateway_origin: GatewayOriginsOption = None,
    metrics: MetricsOption = None,
    peer: PeersOption = None,
    capture: CaptureOption = None,
    level: Annotated[str, typer.Option("--log", metavar="LEVEL", help="debug, info, warning or error.")] = "info",
    output: OutputOption = Output.TABLE,
) -> None:
    """Run a broker until Ctrl-C, SIGTERM or `tidings broker drain`.

    Its configuration comes from a file, from options, or from both: an option overrides the file. Limits and
    options of the overlay can only be set in the file. Relative paths in the file start at its folder.

    You may stop or kill it at any time: what it has acknowledged is on disk, and after a restart it continues. It
    prints on stdout when it listens and when it has joined the network; its log is on stderr, as JSON lines.

    It refuses to start, and exits with 3 and the reason, if a type is not as its owner signed it, if the clock was
    set back, or if a key manager's state is older than one that it had before.

    \b
    Examples:
      tidings broker run --config police/police-1/broker.toml
      tidings broker run --config police/police-1/broker.toml --listen 0.0.0.0:7401 --metrics 127.0.0.1:9101
      tidings broker run --name police-1 --domain police --listen 0.0.0.0:7401 --data /var/lib/tidings \\
        --key police-1.pem --certificate police-1.crt --trusted trusted.pem --type Numberplate.toml
    """
    from tidings.net import broker_with, log_to_stderr, peer_at, serve

    log_to_stderr(level)
    one = {"name": name, "domain": domain, "listen": listen, "advertise": advertise, "key": key, "data": data}
    one |= {"certificate": certificate, "trusted": trusted, "overlay": overlay, "network_key": network_key}
    one |= {"registry": registry, "metrics": metrics, "capture": capture}
    one |= {"gateway": gateway, "gateway_certificate": gateway_certificate, "gateway_key": gateway_key}
    many = {"tokens": token, "types": type, "manages": manages, "gateway_origins": gateway_origin}
    peers = {"peers": [peer_at(each) for each in peer or ()]}
    described = broker_with(config, _given(one, {**many, **peers}))
    with refusing_what_is_broken():
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
def status(who: AsOption, output: OutputOption = Output.TABLE) -> None:
    """Show a broker's status: its links, clients, types, pending deliveries and stored events.

    \b
    Examples:
      tidings broker status --as police/camera/client.toml
      tidings broker status --as police/camera/client.toml -o json | jq .holdings
    """
    (found,) = asked(who, "status")
    if output is Output.JSON:
        show([found], output)
    else:
        show([{"what": name, "is": _brief(value)} for name, value in found.items()], output)


@app.command()
def drain(who: AsOption, output: OutputOption = Output.TABLE) -> None:
    """Drain a broker: it accepts no new events, sends its pending deliveries, leaves the network and stops.

    \b
    Example:
      tidings broker drain --as police/camera/client.toml
    """
    asked(who, "drain")
    tell("the broker is draining; it stops by itself when no delivery is pending")


def asked(who: Path, what: str, **options: Any) -> list[dict[str, Any]]:
    """A broker's answer to one query."""

    async def ask(client: Client) -> list[dict[str, Any]]:
        return await client.ask(what, **options)

    return as_client(who, ask)


def as_client(who: Path, work: Callable[[Client], Coroutine[Any, Any, _T]]) -> _T:
    """Connect as a client, do some work, and disconnect."""
    from tidings.net import Client

    async def connected() -> _T:
        async with await Client.connect(who) as client:
            return await work(client)

    return asyncio.run(connected())


def _brief(value: object) -> str:
    if isinstance(value, list | dict) and len(str(value)) > 100:
        return f"{len(value)}; -o json shows them"
    return str(value)
