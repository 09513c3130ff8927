"""`tidings doctor`: is this machine ready, and if not, which command mends it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated

import typer

from tidings.cli.terminal import EXIT_REJECTS, Output, OutputOption, console, show, tell
from tidings.doctor import Finding, Machine, examine


def doctor(
    no_spark: Annotated[bool, typer.Option("--no-spark", help="Skip starting Spark, which takes the longest.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Check that this machine can run Tidings; one line for each thing looked at.

    A line that begins with FAIL says what is wrong and the command that mends it. Exits
    with 0 when all is well (what is optional may be missing), and with 1 otherwise.

    \b
    Examples:
      tidings doctor                        everything, with a real start of Spark
      tidings doctor --no-spark             without it, in about a second
      tidings doctor -o json | jq .mend     for a program
    """
    failed = [found for found in _shown(examine(Machine.here(), with_spark=not no_spark), output) if found.failed]
    if failed:
        tell(f"not ready: {', '.join(found.name for found in failed)}")
        raise typer.Exit(EXIT_REJECTS)


def _shown(findings: Iterator[Finding], output: Output) -> Iterator[Finding]:
    """Each finding, printed as it comes: Spark takes its time, and the lines before it need not wait."""
    for found in findings:
        if output is Output.JSON:
            show([asdict(found)], output)
        else:
            console().print(_line(found), style=_STYLE[_mark(found)], soft_wrap=True)
        yield found


_STYLE = {"ok": "", "FAIL": "bold red", "note": "yellow"}


def _mark(found: Finding) -> str:
    return "ok" if found.ok else "FAIL" if found.required else "note"


def _line(found: Finding) -> str:
    mend = f"; to mend: {found.mend}" if found.mend else ""
    return f"{_mark(found):<5} {found.name:<15} {found.says}{mend}"
