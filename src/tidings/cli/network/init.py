"""`tidings init`: a development network of three organisations, in one folder."""

from __future__ import annotations

import enum
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidings.cli.terminal import Output, OutputOption, show, tell, writing_to
from tidings.errors import InputError

if TYPE_CHECKING:
    from tidings.net import DevNetwork


class SealingMode(enum.StrEnum):
    """What of an event is sealed between organisations."""

    PLAIN = "plain"
    EVENT = "event"
    ATTRIBUTE = "attribute"


def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new or an empty folder.")],
    overlay: Annotated[str, typer.Option("--overlay", metavar="NAME", help="The routing protocol.")] = "irbr",
    overlay_option: Annotated[
        list[str] | None,
        typer.Option(
            "--overlay-option",
            metavar="NAME=VALUE",
            help="An option of the routing protocol, such as network=tapestry or proximity=vivaldi; repeatable.",
        ),
    ] = None,
    mode: Annotated[
        SealingMode,
        typer.Option("--mode", help="What is encrypted: nothing, an event as one, or each attribute by itself."),
    ] = SealingMode.ATTRIBUTE,
    first_port: Annotated[
        int,
        typer.Option(
            "--port", metavar="N", help="Port of the first broker; the others get the next ones.", min=1, max=65000
        ),
    ] = 7401,
    output: OutputOption = Output.TABLE,
) -> None:
    """Create keys, certificates, an event type, rights and configuration for three organisations.

    The police owns the type Numberplate and publishes; the congestion charge (ccs) may read plates (with --mode
    event, whole events), the yard everything about one car. Run each broker in a terminal of its own, then subscribe and publish. For
    development only: all secrets are in one folder.

    \b
    Example:
      tidings init london && tidings broker run --config london/police/police-1/broker.toml
    """
    from tidings.net import DevNetwork, lay_out
    from tidings.overlay import protocol
    from tidings.security import Mode

    protocol(overlay)  # Raises for an unknown name.
    options = dict(map(_option, overlay_option or ()))
    network = DevNetwork(
        overlay=overlay, overlay_options=options, mode=Mode[mode.name], first_port=first_port, registry=True
    )
    with writing_to(folder):
        laid = lay_out(folder, _network(mode, network))
    rows = [{"is": "broker", "name": name, "file": str(file)} for name, file in laid.brokers.items()]
    rows += [{"is": "client", "name": name, "file": str(file)} for name, file in laid.clients.items()]
    show(rows, output)
    if mode is SealingMode.EVENT:
        tell(
            "an event is encrypted as one, so ccs may read all of it: who may read single attributes only reads nothing"
        )
    tell(f"next: tidings broker run --config {laid.brokers['police-1']}")


def _option(described: str) -> tuple[str, Any]:
    """A name and a value as TOML has it; a bare word is a text."""
    name, equals, text = described.partition("=")
    if not equals or not name.isidentifier():
        raise InputError(f"--overlay-option: expected NAME=VALUE, got {described[:100]!r}")
    try:
        return name, tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return name, text
    except RecursionError:
        raise InputError(f"--overlay-option {name}: its value is nested too deeply") from None


def _network(mode: SealingMode, network: DevNetwork) -> DevNetwork:
    """A right to some attributes opens no event that is encrypted as one."""
    if mode is not SealingMode.EVENT:
        return network
    return replace(network, readers={name: replace(reader, attributes=()) for name, reader in network.readers.items()})
