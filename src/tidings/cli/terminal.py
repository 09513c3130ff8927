"""What every command shares: how rows are shown, how errors end, and which code the shell gets.

| exit code | means |
| --- | --- |
| 0 | done |
| 1 | done, but something was rejected or a check failed; or another node misbehaved |
| 2 | wrong usage, wrong input, or this machine lacks something |
| 3 | refused for lack of a right |
| 130 | stopped with Ctrl-C |

Data goes to stdout through `show`, everything else to stderr through `tell`. A stack trace
means a fault of ours, never of what the caller typed.
"""

from __future__ import annotations

import enum
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, TypeAlias

import typer
from rich.console import Console
from rich.table import Table

from tidings import __version__
from tidings.errors import Denied, InputError, PeerError, SetupError, TidingsError

EXIT_DONE, EXIT_REJECTS, EXIT_USAGE, EXIT_DENIED, EXIT_INTERRUPTED = 0, 1, 2, 3, 130

WIDTH_WITHOUT_TERMINAL = 10_000  # A file or a pipe has no edge: a row stays on one line.

Row: TypeAlias = Mapping[str, object]


class Output(enum.StrEnum):
    """How rows are printed."""

    TABLE = "table"
    JSON = "json"


OutputOption: TypeAlias = Annotated[
    Output, typer.Option("--output", "-o", help="A table to read, or JSON lines for a program.", show_default=True)
]


def new_app() -> typer.Typer:
    """The program without its commands: `--help`, `--version`, and no stack traces dressed up as help."""
    app = typer.Typer(
        name="tidings",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # Plain help: it reads the same in a terminal, a pipe and a log.
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_tidings)
    return app


def show(rows: Iterable[Row], output: Output = Output.TABLE, columns: Sequence[str] = ()) -> None:
    """Print rows on stdout: JSON lines as they come, or one table with `columns` (or the first row's keys)."""
    if output is Output.JSON:
        for row in rows:
            print(json.dumps(row, ensure_ascii=False, default=str), flush=True)
        return
    listed = list(rows)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns or (listed[0] if listed else ()):
        table.add_column(column, overflow="fold")
    for row in listed:
        table.add_row(*(_cell(row.get(str(column.header))) for column in table.columns))
    console().print(table)


def tell(text: str) -> None:
    """Print progress, a note or an error on stderr, where it is not mistaken for data."""
    print(text, file=sys.stderr, flush=True)


def console() -> Console:
    """Stdout with colours where a terminal wants them (NO_COLOR is honoured); prints text as it is."""
    width = None if sys.stdout.isatty() else WIDTH_WITHOUT_TERMINAL
    return Console(file=sys.stdout, width=width, markup=False, highlight=False, emoji=False)


def run(app: typer.Typer) -> None:
    """Run the command that the arguments name, and exit with the code its ending calls for."""
    _escape_what_cannot_be_encoded()
    try:
        _run_and_flush(app)
    except BrokenPipeError:
        _close_quietly()  # The reader, `head` perhaps, has seen enough: that is no fault.
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except TidingsError as error:
        tell(f"{type(error).__name__}: {error}")
        sys.exit(exit_code_of(error))
    except OSError as error:
        if error.filename is None:
            raise
        tell(f"InputError: cannot use {os.fsdecode(error.filename)!r}: {error.strerror}")
        sys.exit(EXIT_USAGE)


def exit_code_of(error: TidingsError) -> int:
    """The code the shell gets for an error, by whose fault it is.

    >>> exit_code_of(Denied("no right to read 'speed'"))
    3
    """
    match error:
        case Denied():
            return EXIT_DENIED
        case InputError() | SetupError():
            return EXIT_USAGE
        case PeerError():
            return EXIT_REJECTS
    return EXIT_USAGE


@contextmanager
def refusing_what_is_broken() -> Iterator[None]:
    """For reading what somebody else has signed: altered, cut short, of an unknown form or suite, it is refused.

    On a link such a thing is the sender's fault. In a file there is nobody to blame, only nothing to believe.
    """
    try:
        yield
    except PeerError as broken:
        raise Denied(str(broken)) from None


def _print_version(asked: bool) -> None:
    if asked:
        print(f"tidings {__version__}")
        raise typer.Exit


def _tidings(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")
    ] = False,
) -> None:
    """Content-based publish/subscribe across organisations.

    A publisher says what happened, as a typed event. A subscriber says what it wants, as
    an SQL condition over the event's attributes.

    \b
    Start here:
      tidings doctor                is this machine ready, and if not, what mends it
      tidings COMMAND --help        what a command does, with examples

    \b
    Exit codes: 0 done, 1 done with rejects or a failed check, 2 wrong usage or input,
    3 refused for lack of rights. Data is on stdout, everything else on stderr.
    """


def _cell(content: object) -> str:
    return "" if content is None else str(content)


def _run_and_flush(app: typer.Typer) -> None:
    try:
        app(prog_name="tidings")
    finally:
        sys.stdout.flush()  # Here, so that a reader who has gone away is noticed while we can still be quiet.


def _escape_what_cannot_be_encoded() -> None:
    """Bytes that were no UTF-8 in an argument, or signs a terminal lacks, are shown escaped instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _close_quietly() -> None:
    # What is still buffered goes nowhere; otherwise the interpreter complains about it on its way out.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(EXIT_DONE)
