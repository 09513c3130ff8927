"""How a command becomes a client of a broker: who it acts as, the connection, and completions that ask the broker.

Every command of a client decides by one rule who it acts as. The first of these that is given counts:

    --as FILE or NAME      a client.toml, its folder, or the name of a context
    TIDINGS_CLIENT         likewise, in the environment
    TIDINGS_CONTEXT        the name of a context, in the environment
    ./client.toml          in the current folder
    the selected context   by `tidings context select`
"""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeAlias, TypeVar

import typer

from tidings.cli.network import contexts
from tidings.errors import Denied, ErrorCode, InputError, PeerError, TidingsError, did_you_mean

if TYPE_CHECKING:
    from tidings.net import Client

_T = TypeVar("_T")
CLIENT_FILE = "client.toml"
COMPLETION_S_MAX = 1.0  # A shell that waits longer for a Tab seems to hang.


def complete_who(incomplete: str) -> list[str]:
    """Names of contexts, and files and folders."""
    parent = Path(incomplete or ".") if incomplete.endswith("/") or not incomplete else Path(incomplete).parent
    names = [name for name in contexts.names() if name.startswith(incomplete)]
    found = [f"{each}/" if each.is_dir() else str(each) for each in _listed(parent)]
    return names + [each for each in found if each.startswith(incomplete)]


AsOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--as",
        metavar="CLIENT",
        envvar="TIDINGS_CLIENT",
        help="Who you are: a client.toml, its folder, or a context. [default: ./client.toml, or the selected context]",
        autocompletion=complete_who,
        show_default=False,
        show_envvar=True,
    ),
]


class Chosen(NamedTuple):
    """The client that a command acts as, and which of the rules chose it."""

    file: Path
    by: str


def chosen(who: str | None) -> Chosen:
    """The client by the rule above; raises InputError if nothing names one."""
    if who:
        return _named(who)
    if name := os.environ.get("TIDINGS_CONTEXT"):
        return Chosen(contexts.read(name).client, f"TIDINGS_CONTEXT={name}")
    if Path(CLIENT_FILE).is_file():
        return Chosen(Path(CLIENT_FILE), f"{CLIENT_FILE} in this folder")
    if name := contexts.selected():
        return Chosen(contexts.read(name).client, f"the selected context {name!r}")
    raise InputError(
        "no client is named; give --as client.toml, or select one with `tidings context create NAME client.toml`"
    )


def _named(who: str) -> Chosen:
    path = Path(who).expanduser()
    if path.is_dir():
        path = path / CLIENT_FILE
    known = contexts.names()
    if path.exists() or (who not in known and _looks_like_a_path(who)):
        return Chosen(path, f"the file {path}")
    if who not in known:
        hint = did_you_mean(who, known) or "`tidings context ls` lists contexts"
        raise InputError(f"{who!r} is neither a file nor a context; {hint}")
    return Chosen(contexts.read(who).client, f"the context {who!r}")


def _looks_like_a_path(who: str) -> bool:
    return "/" in who or who.endswith(".toml")


def as_client(
    who: str | None, work: Callable[[Client], Coroutine[Any, Any, _T]], *, within_s: float | None = None
) -> _T:
    """Connect as a client, do some work, and disconnect; raises TimeoutError if that takes longer than `within_s`."""
    import asyncio

    file = chosen(who).file

    async def connected() -> _T:
        from tidings.net import Client

        async with await Client.connect(file) as client:
            return await work(client)

    try:
        return asyncio.run(asyncio.wait_for(connected(), within_s))
    except (Denied, PeerError) as refused:
        raise _with_advice(refused, file) from None


_INSPECT = "`tidings grant inspect TOKEN` shows what a right is to, `tidings why` each check; {file} names the tokens"
_ADVICE = {
    ErrorCode.ACTION: _INSPECT,
    ErrorCode.ATTRIBUTES: _INSPECT,
    ErrorCode.RIGHT: _INSPECT,
    ErrorCode.CONSTRAINTS: _INSPECT,
    ErrorCode.VALIDITY: "compare this machine's clock, then ask the issuer for a new right; {file} names the tokens",
    ErrorCode.REVOKED: "ask the issuer for a new right; {file} names the tokens",
    ErrorCode.HELLO: "{file} names the broker's address and key",
    ErrorCode.DOMAIN: "{file} names the broker",
    ErrorCode.HANDSHAKE: "its organisation must trust the authority that signed the certificate that {file} names",
    ErrorCode.PROTOCOL: "all brokers of a network run the same overlay",
    ErrorCode.VERSION: "install the same version as the broker's",
}


def _with_advice(refused: Denied | PeerError, file: Path) -> Denied | PeerError:
    """The refusal, with what the caller can do about it."""
    advice = _ADVICE.get(refused.code)
    return type(refused)(f"{refused}; {advice.format(file=file)}", code=refused.code) if advice else refused


def asked(who: str | None, what: str, **options: Any) -> list[dict[str, Any]]:
    """A broker's answer to one query."""

    async def ask(client: Client) -> list[dict[str, Any]]:
        return await client.ask(what, **options)

    return as_client(who, ask)


# ── Completion ──


def complete_type(ctx: typer.Context, incomplete: str) -> list[str]:
    """The names of the types that the client's broker knows."""
    return _from_broker(ctx, "types", incomplete)


def complete_durable(ctx: typer.Context, incomplete: str) -> list[str]:
    """The names of the client's durable subscriptions."""
    return _from_broker(ctx, "durables", incomplete)


def _from_broker(ctx: typer.Context, what: str, incomplete: str) -> list[str]:
    """The broker's answer within a second; nothing if there is none, since a completion cannot report an error."""

    async def ask(client: Client) -> list[dict[str, Any]]:
        return await client.ask(what)

    try:
        rows = as_client(ctx.params.get("who"), ask, within_s=COMPLETION_S_MAX)
    except (TidingsError, OSError, TimeoutError):
        return []
    return sorted({str(row["name"]) for row in rows if str(row["name"]).startswith(incomplete)})


def _listed(folder: Path) -> Iterator[Path]:
    try:
        yield from sorted(folder.iterdir())
    except OSError:
        return
