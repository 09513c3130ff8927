"""`tidings doctor`: is this machine ready, and if not, which command fixes it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

from tidings.cli.terminal import EXIT_REJECTS, Output, OutputOption, Row, console, show, tell
from tidings.doctor import CheckResult, Machine, examine


def doctor(
    no_spark: Annotated[bool, typer.Option("--no-spark", help="Skip starting Spark, which takes the longest.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Check that this machine can run Tidings; prints one line for each check.

    A line that begins with FAIL says what is wrong, and the command that fixes it. Exits
    with 0 if all required checks pass (optional parts may be missing), and with 1 otherwise.

    \b
    Examples:
      tidings doctor                        everything, with a real start of Spark
      tidings doctor --no-spark             without it, in about a second
      tidings doctor -o json | jq .fix      for a program
    """
    failed = [found for found in _shown(examine(Machine.here(), with_spark=not no_spark), output) if found.failed]
    if failed:
        tell(f"not ready: {', '.join(found.name for found in failed)}")
        raise typer.Exit(EXIT_REJECTS)


def _shown(results: Iterator[CheckResult], output: Output) -> Iterator[CheckResult]:
    """Prints each result at once: the check of Spark is slow, and the lines before it need not wait."""
    for found in results:
        if output is Output.JSON:
            show([_row(found)], output)
        else:
            console().print(_line(found), style=_STYLE[_mark(found)], soft_wrap=True)
        yield found


def _row(found: CheckResult) -> Row:
    """As JSON; `mend` is what `fix` was called in version 0.1."""
    row = {"name": found.name, "ok": found.ok, "says": found.message, "fix": found.fix, "mend": found.fix}
    return {**row, "required": found.required}


_STYLE = {"ok": "", "FAIL": "bold red", "note": "yellow"}


def _mark(found: CheckResult) -> str:
    return "ok" if found.ok else "FAIL" if found.required else "note"


def _line(found: CheckResult) -> str:
    fix = f"; to fix: {found.fix}" if found.fix else ""
    return f"{_mark(found):<5} {found.name:<15} {found.message}{fix}"
