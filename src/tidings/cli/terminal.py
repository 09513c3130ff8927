"""What every command shares: how it prints rows, how it reports errors, and its exit code.

| exit code | means |
| --- | --- |
| 0 | done |
| 1 | done, but something was rejected or a check failed; or another node misbehaved |
| 2 | wrong usage, wrong input, or this machine lacks something |
| 3 | refused for lack of a right |
| 130 | stopped with Ctrl-C |

`show` prints data on stdout, `tell` everything else on stderr. A stack trace means a bug of ours, never wrong input.
"""

from __future__ import annotations

import enum
import errno
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from tidings import __version__
from tidings.cli.lazy import LazyEntry, lazy_group
from tidings.errors import Denied, InputError, PeerError, SetupError, TidingsError

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

EXIT_DONE, EXIT_REJECTS, EXIT_USAGE, EXIT_DENIED, EXIT_INTERRUPTED = 0, 1, 2, 3, 130

WIDTH_WITHOUT_TERMINAL = 10_000  # In a file or a pipe, a row stays on one line.

_STDERR = 2

Row: TypeAlias = Mapping[str, object]


class Output(enum.StrEnum):
    """How rows are printed."""

    TABLE = "table"
    JSON = "json"


OutputOption: TypeAlias = Annotated[
    Output, typer.Option("--output", "-o", help="A table to read, or JSON lines for a program.", show_default=True)
]


def new_app(commands: Sequence[LazyEntry] = ()) -> typer.Typer:
    """The program with these commands, `--help`, `--version`, completion, and plain stack traces."""
    app = typer.Typer(
        name="tidings",
        cls=lazy_group(commands),
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # Plain help: it reads the same in a terminal, a pipe and a log.
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_tidings)
    return app


def show(rows: Iterable[Row], output: Output = Output.TABLE, columns: Sequence[str] = ()) -> None:
    """Print rows on stdout: as JSON lines, one at a time, or as a table with `columns` (or the first row's keys)."""
    if output is Output.JSON:
        for row in rows:
            print(json.dumps(row, ensure_ascii=False, default=str), flush=True)
        return
    listed = list(rows)
    if not listed and not columns:
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns or (listed[0] if listed else ()):
        table.add_column(column, overflow="fold")
    for row in listed:
        table.add_row(*(_cell(row.get(str(column.header))) for column in table.columns))
    console().print(table)
    sys.stdout.flush()  # Whoever reads a pipe sees each table when it is made.


def clear_screen() -> None:
    """Begin at the top of an empty screen, if stdout is a terminal; an empty line otherwise."""
    print("\x1b[H\x1b[2J" if sys.stdout.isatty() else "", end="" if sys.stdout.isatty() else "\n", flush=True)


def tell(text: str) -> None:
    """Print progress, a note or an error on stderr, separate from data. Without a reader it is lost, as intended."""
    with suppress(OSError):
        print(printable(text, but="\n\t"), file=sys.stderr, flush=True)


def printable(text: str, *, but: str = "") -> str:
    r"""The text with what steers a terminal, or turns its lines around, as escapes: others may have written it.

    >>> printable("\x1b[2Jmünchen\u202e")
    '\\x1b[2Jmünchen\\u202e'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in but else c.encode("unicode_escape").decode() for c in text)


@contextmanager
def progress_bar(what: str, total_bytes: int | None) -> Iterator[Callable[[int], None]]:
    """A bar on stderr that grows by the bytes its caller adds; nothing without a terminal."""
    if not sys.stderr.isatty():
        yield lambda more: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    # On the same terminal, data appears above the bar; in a pipe it must stay what it is.
    mixed, on = sys.stdout.isatty(), Console(file=sys.stderr)
    with Progress(*columns, TimeRemainingColumn(), console=on, redirect_stdout=mixed) as bar:
        task = bar.add_task(what, total=total_bytes)
        yield lambda more: bar.advance(task, more)


def console() -> Console:
    """Stdout, in colour on a terminal (unless NO_COLOR is set); prints text without markup."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else WIDTH_WITHOUT_TERMINAL
    return Console(file=sys.stdout, width=width, markup=False, highlight=False, emoji=False)


def run(app: typer.Typer) -> None:
    """Run the command that the arguments name, and exit with its code."""
    _open_what_is_closed()
    _escape_what_cannot_be_encoded()
    try:
        _run_and_flush(app)
    except BrokenPipeError:
        _close_quietly()  # The reader, `head` perhaps, has seen enough: that is no error.
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except TidingsError as error:
        tell(f"{type(error).__name__}: {error}")
        sys.exit(exit_code_of(error))
    except OSError as error:
        tell(_about_system(error))
        sys.exit(EXIT_USAGE)
    except Exception as error:
        if not _comes_of_ctrl_c(error):
            raise
        sys.exit(EXIT_INTERRUPTED)


def _comes_of_ctrl_c(error: BaseException | None) -> bool:
    """In the middle of an import, or of a callback from C, Ctrl-C becomes another error."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__cause__ or error.__context__
    return False


def _about_system(error: OSError) -> str:
    """What the system refuses is the caller's or this machine's matter: a line, and never a stack trace."""
    reason = error.strerror or str(error) or type(error).__name__
    advice = _SYSTEM_ADVICE.get(error.errno or 0, "")
    where = (
        f"InputError: cannot use {os.fsdecode(error.filename)!r}: " if error.filename is not None else "SetupError: "
    )
    return f"{where}{reason}{advice}"


_SYSTEM_ADVICE = {
    errno.ENOSPC: "; free some space, or write to another disk",
    errno.EDQUOT: "; free some space, or write to another disk",
    errno.EACCES: "; the file and its folder must be open to the user who runs this (`ls -ld` shows to whom they are)",
    errno.EPERM: "; the file and its folder must be open to the user who runs this (`ls -ld` shows to whom they are)",
    errno.EROFS: "; write to another disk",
    errno.EMFILE: "; `ulimit -n` allows too few open files",
}


@contextmanager
def writing_to(place: Path) -> Iterator[None]:
    """Says where the system refused to write: on a full disk it does not say so itself."""
    try:
        yield
    except OSError as refused:
        if refused.filename is None and refused.errno is not None:
            refused.filename = str(place)
        raise


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
    """For reading what another party has signed: refuses what was altered or truncated, or has an unknown format.

    On a connection such input is the peer's fault (PeerError). In a file it is simply not to be trusted (Denied).
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

    A publisher sends typed events. A subscriber registers an SQL condition over the
    event's attributes, and receives the events for which it is TRUE.

    \b
    Start here:
      tidings doctor                is this machine ready, and if not, what fixes it
      tidings COMMAND --help        what a command does, with examples

    \b
    Exit codes: 0 done, 1 done with rejects or a failed check, 2 wrong usage or input,
    3 refused for lack of rights. Data is on stdout, everything else on stderr.
    """


def _cell(content: object) -> str:
    """Data as a person reads it.

    >>> [_cell(each) for each in (None, True, ["plate", "speed"], 3.5)]
    ['', 'yes', 'plate, speed', '3.5']
    """
    match content:
        case None:
            return ""
        case bool():
            return "yes" if content else "no"
        case list() | tuple():
            return ", ".join(map(_cell, content))
    return printable(str(content))


def _run_and_flush(app: typer.Typer) -> None:
    try:
        app(prog_name="tidings")
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):  # Typer calls this a failure.
            raise ended.__context__ from None
        raise
    finally:
        sys.stdout.flush()  # Here, so that a broken pipe raises where `run` can handle it.


def _open_what_is_closed() -> None:
    """Without stdin, stdout or stderr (`>&-`), the next file to be opened would take its place, and Python has None."""
    while (opened := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        pass
    os.close(opened)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - as long as the process


def _escape_what_cannot_be_encoded() -> None:
    """Escapes invalid UTF-8 of arguments, and characters that the terminal lacks, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _close_quietly() -> None:
    # Discards what is still buffered; otherwise the interpreter reports it at exit.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(EXIT_DONE)
