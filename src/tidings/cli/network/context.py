"""`tidings context …`: names for the clients that one acts as, and which of them is selected."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from tidings.cli.network import contexts
from tidings.cli.network.contexts import Context
from tidings.cli.network.session import CLIENT_FILE, AsOption, chosen
from tidings.cli.terminal import Output, OutputOption, Row, show, tell
from tidings.errors import InputError

app = typer.Typer(
    name="context",
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Name the clients that you act as, and select the one that commands use without --as.",
)


def _complete(incomplete: str) -> list[str]:
    return [name for name in contexts.names() if name.startswith(incomplete)]


NameArgument: TypeAlias = Annotated[str, typer.Argument(metavar="NAME", autocompletion=_complete)]


@app.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Letters, digits, '.', '_' and '-'.")],
    client: Annotated[Path, typer.Argument(metavar="client.toml", help="The client's file, or its folder.")],
    description: Annotated[str, typer.Option("--description", metavar="TEXT", help="For `tidings context ls`.")] = "",
    select: Annotated[bool, typer.Option("--select", help="Select it, even if another one is selected.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Replace a context of this name.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Name a client. The first context is selected by itself.

    A context holds the path of the client's file, no key and no right.

    \b
    Examples:
      tidings context create camera london/police/camera/client.toml
      tidings context create desk london/ccs/desk --select
    """
    from tidings.net import read_client

    file = (client / CLIENT_FILE if client.is_dir() else client).absolute()
    read_client(file)
    known = contexts.read(name) if name in contexts.names() and not replace else None
    if known is not None and known.client == file:
        description = description or known.description
    elif known is not None:
        raise InputError(
            f"there is a context {name!r} already, for {known.client}; --replace puts this one in its place"
        )
    made = Context(name, file, description)
    contexts.write(made)
    if select or not contexts.selected():
        contexts.select(name)
    _show([made], output)


@app.command("select")
def select_context(name: NameArgument, output: OutputOption = Output.TABLE) -> None:
    """Select the context that commands use without --as.

    \b
    Example:
      tidings context select camera
    """
    contexts.select(name)
    _show([contexts.read(name)], output)


@app.command("ls")
def list_contexts(output: OutputOption = Output.TABLE) -> None:
    """List the contexts; the selected one is marked.

    \b
    Examples:
      tidings context ls
      tidings context ls -o json | jq -r 'select(.selected).client'
    """
    _show([contexts.read(name) for name in contexts.names()], output)


@app.command("show")
def show_context(who: AsOption = None, output: OutputOption = Output.TABLE) -> None:
    """Show which client a command would act as, and which rule chose it.

    The first of these that is given counts: --as, the environment's TIDINGS_CLIENT, its TIDINGS_CONTEXT, a
    client.toml in the current folder, the selected context.

    \b
    Examples:
      tidings context show
      tidings context show --as camera
    """
    from tidings.net import read_client

    file, by = chosen(who)
    config = read_client(file)
    row = {"client": f"{config.domain}/{config.name}", "broker": config.broker, "file": str(file), "chosen by": by}
    if output is Output.JSON:
        show([row], output)
    else:
        show([{"what": what, "is": shown} for what, shown in row.items()], output)


@app.command()
def rm(name: NameArgument, output: OutputOption = Output.TABLE) -> None:
    """Remove a context. The client's own files stay.

    \b
    Example:
      tidings context rm camera
    """
    was_selected = contexts.selected() == name
    contexts.remove(name)
    if was_selected:
        tell("no context is selected now; `tidings context select NAME` selects one")


def _show(found: list[Context], output: Output) -> None:
    selected = contexts.selected()
    show((_row(each, each.name == selected, output) for each in found), output, ("", "name", "client", "description"))


def _row(context: Context, is_selected: bool, output: Output) -> Row:
    mark: Row = {"selected": is_selected} if output is Output.JSON else {"": "*" if is_selected else ""}
    return {**mark, "name": context.name, "client": str(context.client), "description": context.description}
