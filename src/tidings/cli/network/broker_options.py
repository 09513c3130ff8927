"""What `tidings broker run` is told by options, each in place of the same word in broker.toml."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

NameOption: TypeAlias = Annotated[str | None, typer.Option(help="What the broker is called.")]
DomainOption: TypeAlias = Annotated[
    str | None, typer.Option(help="Its organisation, whose authority has signed its certificate.")
]
ListenOption: TypeAlias = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="Where brokers and clients reach it.")
]
AdvertiseOption: TypeAlias = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="The address others reach it at, if it is another.")
]
KeyOption: TypeAlias = Annotated[Path | None, typer.Option(metavar="FILE", help="Its private key (Ed25519).")]
CertificateOption: TypeAlias = Annotated[Path | None, typer.Option(metavar="FILE", help="That key's certificate.")]
TrustedOption: TypeAlias = Annotated[
    Path | None, typer.Option(metavar="FILE", help="The authorities of all organisations that are linked.")
]
DataOption: TypeAlias = Annotated[
    Path | None, typer.Option(metavar="FOLDER", help="Where its journal and its registry are.")
]
OverlayOption: TypeAlias = Annotated[
    str | None, typer.Option(metavar="NAME", help="How events find their way; the same at all brokers (irbr).")
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
    typer.Option("--manages", metavar="FILE", help="Key of a key manager that runs here. May be repeated."),
]
RegistryOption: TypeAlias = Annotated[
    str | None, typer.Option(metavar="URL", help="The registry: a file or a PostgreSQL URL.")
]
GatewayOption: TypeAlias = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="Where the HTTP gateway listens.")
]
GatewayCertificateOption: TypeAlias = Annotated[
    Path | None, typer.Option(metavar="FILE", help="What the gateway shows to browsers, with --gateway-key.")
]
GatewayKeyOption: TypeAlias = Annotated[Path | None, typer.Option(metavar="FILE", help="That certificate's key.")]
GatewayOriginsOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--gateway-origin", metavar="URL", help="Whose pages may use the gateway, too. May be repeated."),
]
MetricsOption: TypeAlias = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="Where the Prometheus page is.")
]
PeersOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--peer", metavar="HOST:PORT=KEY", help="Another broker, and the key it has. May be repeated."),
]
CaptureOption: TypeAlias = Annotated[
    Path | None, typer.Option(metavar="FOLDER", help="Write down there what is sent to other brokers.")
]
