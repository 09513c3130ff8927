"""The options of `tidings broker run`; each overrides the entry of the same name in broker.toml."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

NameOption: TypeAlias = Annotated[str | None, typer.Option(help="The broker's name.")]
DomainOption: TypeAlias = Annotated[
    str | None, typer.Option(help="Its organisation, whose authority has signed its certificate.")
]
ListenOption: TypeAlias = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="Where brokers and clients reach it.")
]
AdvertiseOption: TypeAlias = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="The address that others use, if it is not --listen.")
]
KeyOption: TypeAlias = Annotated[Path | None, typer.Option(metavar="FILE", help="Its private key (Ed25519).")]
CertificateOption: TypeAlias = Annotated[Path | None, typer.Option(metavar="FILE", help="That key's certificate.")]
TrustedOption: TypeAlias = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Certificates of the authorities of all linked organisations.")
]
DataOption: TypeAlias = Annotated[
    Path | None, typer.Option(metavar="FOLDER", help="Where its journal and its registry are.")
]
OverlayOption: TypeAlias = Annotated[
    str | None, typer.Option(metavar="NAME", help="The routing protocol; the same at all brokers. [default: irbr]")
]
NetworkKeyOption: TypeAlias = Annotated[
    str | None, typer.Option(metavar="ed25519:…", help="Whose join-net tokens make a broker a member.")
]
TokensOption: TypeAlias = Annotated[
    list[Path] | None,
    typer.Option("--token", metavar="FILE", help="A right of its own, as `tidings grant` writes it. May be repeated."),
]
TypesOption: TypeAlias = Annotated[
    list[Path] | None,
    typer.Option(
        "--type",
        metavar="FILE",
        help="An event type, in TOML or JSON or as `tidings type show --out` writes it. May be repeated.",
    ),
]
ManagesOption: TypeAlias = Annotated[
    list[Path] | None,
    typer.Option("--manages", metavar="FILE", help="Private key of a key manager that runs here. May be repeated."),
]
AcsOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Names of rights with an online test that hold now, one to a line."),
]
RegistryOption: TypeAlias = Annotated[
    str | None, typer.Option(metavar="URL", help="The registry: a file or a PostgreSQL URL.")
]
JournalOption: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Keep the journal in this PostgreSQL database, postgresql://user@host/name."),
]
JournalPasswordOption: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="WHERE", help="Where that database's password is: env:VARIABLE or file:PATH."),
]
GatewayOption: TypeAlias = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="Where the HTTP gateway listens.")
]
GatewayCertificateOption: TypeAlias = Annotated[
    Path | None, typer.Option(metavar="FILE", help="The gateway's certificate for browsers, with --gateway-key.")
]
GatewayKeyOption: TypeAlias = Annotated[Path | None, typer.Option(metavar="FILE", help="That certificate's key.")]
GatewayOriginsOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--gateway-origin",
        metavar="URL",
        help="A site, as https://host, whose pages may use the gateway. May be repeated.",
    ),
]
GatewayHostsOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--gateway-host",
        metavar="HOST:PORT",
        help="How clients name the gateway. May be repeated. [default: its address, its certificate's names]",
    ),
]
GatewaySinksOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--gateway-sink", metavar="URL", help="Below which address clients may have webhooks. May be repeated."
    ),
]
MetricsOption: TypeAlias = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="Where Prometheus scrapes its metrics.")
]
TracesOption: TypeAlias = Annotated[
    str | None, typer.Option(metavar="URL", help="The OpenTelemetry collector for its spans, http://host:4318.")
]
TracesRatioOption: TypeAlias = Annotated[
    float | None,
    typer.Option(metavar="SHARE", help="The share of events that are traced. [default: 1]", min=0.0, max=1.0),
]
PeersOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--peer", metavar="HOST:PORT=KEY", help="Another broker, and its public key. May be repeated."),
]
PeersFileOption: TypeAlias = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Further brokers, in [[peer]] tables.")
]
EnrolmentOption: TypeAlias = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="Where its certificate and rights are renewed.")
]
AuthorityOption: TypeAlias = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Whose certificate must answer there.")
]
CaptureOption: TypeAlias = Annotated[
    Path | None, typer.Option(metavar="FOLDER", help="Record here what is sent to other brokers.")
]
LimitsOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--limit", metavar="NAME=VALUE", help="An entry of [limits], such as burst_s=2. May be repeated."),
]
