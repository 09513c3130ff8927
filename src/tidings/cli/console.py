"""`tidings console`: the web console, as one or more clients, on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidings.cli.network.session import chosen, complete_who
from tidings.cli.terminal import tell
from tidings.errors import InputError

if TYPE_CHECKING:
    from tidings.console import ConsoleSettings

FIGURES = Path("figures")


def console(
    who: Annotated[
        list[str] | None,
        typer.Option(
            "--as",
            metavar="CLIENT",
            help="Who you are: a client.toml, its folder, or a context; several for several organisations. "
            "[default: ./client.toml, or the selected context]",
            autocompletion=complete_who,
            show_default=False,
        ),
    ] = None,
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Where browsers find it; port 0 takes a free one.")
    ] = "127.0.0.1:7480",
    registry: Annotated[
        str,
        typer.Option(
            "--registry", metavar="FILE|URL", help="Of your organisation: its administrator then sees all its rights."
        ),
    ] = "",
    org: Annotated[
        Path | None,
        typer.Option("--org", metavar="DIR", help="Your organisation's folder: its administrator can change rights."),
    ] = None,
    figures: Annotated[
        Path | None, typer.Option("--figures", metavar="DIR", help="What `tidings lab run` wrote. [default: ./figures]")
    ] = None,
    pipeline: Annotated[
        list[Path] | None,
        typer.Option("--pipeline", metavar="PIPELINE.toml", help="A job of `tidings run` to show; as often as needed."),
    ] = None,
    allow_publish: Annotated[
        bool, typer.Option("--allow-publish", help="Let pages publish events, within the client's rights.")
    ] = False,
    allow_actions: Annotated[
        bool,
        typer.Option(
            "--allow-actions",
            help="Let pages replay past events and dead letters and, as an administrator, drain a broker.",
        ),
    ] = False,
    audit: Annotated[
        Path | None, typer.Option("--audit", metavar="FILE", help="Append a JSON line for each action to this file.")
    ] = None,
    certificate: Annotated[
        Path | None, typer.Option("--certificate", metavar="FILE", help="For TLS; needed unless it is on loopback.")
    ] = None,
    key: Annotated[Path | None, typer.Option("--key", metavar="FILE", help="The certificate's private key.")] = None,
    user: Annotated[
        list[str] | None,
        typer.Option(
            "--user",
            metavar="WHO=CLIENT",
            help="Let this user log in, and act as this client; WHO is a verified e-mail address, an OpenID Connect "
            "subject, or the common name of a certificate.",
        ),
    ] = None,
    user_authority: Annotated[
        Path | None,
        typer.Option("--user-authority", metavar="FILE", help="Users log in by client certificates of this authority."),
    ] = None,
    oidc: Annotated[
        str | None,
        typer.Option("--oidc", metavar="ISSUER", help="Users log in at this OpenID Connect provider."),
    ] = None,
    oidc_client: Annotated[
        str,
        typer.Option(
            "--oidc-client",
            metavar="ID",
            help="The console's client id there; TIDINGS_OIDC_SECRET has its secret, if it has one.",
        ),
    ] = "tidings-console",
    demo: Annotated[
        bool, typer.Option("--demo", help="Start a network of three organisations with made-up traffic, and show it.")
    ] = False,
    open_browser: Annotated[
        bool | None,
        typer.Option("--open/--no-open", help="Open it in a browser. [default: if there is a display]"),
    ] = None,
) -> None:
    """Show the network, events and rights in a browser, as far as your rights allow.

    It prints a URL with a login key. It acts as an ordinary client and only reads, unless --allow-publish is given.
    Ctrl-C ends it.

    \b
    Examples:
      tidings console --demo
      tidings console --as police/desk --as ccs/desk
      tidings console --as police/admin --registry police/tidings.db
      tidings console --as police/admin --org police
    """
    from tidings.console import ConsoleSettings, OidcSettings
    from tidings.net import log_to_stderr

    log_to_stderr("error" if demo else "info")  # Brokers that start one after the other miss each other at first.
    if demo and who:
        raise InputError("--demo brings its own clients; leave out --as")
    if (certificate is None) != (key is None):
        raise InputError("--certificate and --key go together")
    settings = ConsoleSettings(
        clients=_clients(who, demo=demo),
        listen=listen,
        registry=registry,
        org=org,
        figures=figures or (FIGURES if FIGURES.is_dir() else None),
        pipelines=pipeline or (),
        allow_publish=allow_publish or demo,
        allow_actions=allow_actions or demo,
        audit=audit,
        certificate=certificate,
        key=key,
        users=[_user(each) for each in user or ()],
        user_authority=user_authority,
        oidc=OidcSettings(oidc, oidc_client, os.environ.get("TIDINGS_OIDC_SECRET", "")) if oidc else None,
    )
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(settings, demo=demo, open_browser=open_browser))


def _user(text: str) -> tuple[str, str]:
    who, _, client = text.rpartition("=")
    if not who or not client:
        raise InputError(f"--user: expected WHO=CLIENT such as ada@police.example=police/desk, got {text!r}")
    return who, client


def _clients(who: Sequence[str] | None, *, demo: bool) -> list[Path]:
    """By the rule of all commands (see `session`), except that several may be named."""
    if demo:
        return []
    return [chosen(each).file for each in who] if who else [chosen(os.environ.get("TIDINGS_CLIENT")).file]


async def _serve(settings: ConsoleSettings, *, demo: bool, open_browser: bool | None) -> None:
    from dataclasses import replace

    from tidings.console import Console, London

    async with contextlib.AsyncExitStack() as stack:
        stopped = asyncio.Event()
        for each in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(each, stopped.set)
        if demo:
            spark = shutil.which("java") is not None
            tell(
                "starting five brokers of three organisations" + (", and a Spark job beside them …" if spark else " …")
            )
            if not spark:
                tell("note: no Java is installed, so no Spark job runs; `tidings doctor` says what helps")
            london = await stack.enter_async_context(London(spark=spark))
            shown = [*settings.pipelines, *([london.pipeline] if spark else [])]
            settings = replace(settings, clients=london.console_clients, org=london.organisation, pipelines=shown)
        console = await stack.enter_async_context(Console(settings))
        print(console.url, flush=True)
        tell("the URL lets whoever has it look; Ctrl-C ends the console")
        if open_browser if open_browser is not None else _has_display():
            import webbrowser

            await asyncio.to_thread(webbrowser.open, console.url)
        await stopped.wait()


def _has_display() -> bool:
    wanted: Sequence[str] = ("DISPLAY", "WAYLAND_DISPLAY")
    return sys.stdout.isatty() and (sys.platform == "darwin" or any(os.environ.get(name) for name in wanted))
