"""What all benchmarks show alike: promises with their verdicts, tables on a terminal and in a page, results as a file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGES = ROOT / "docs" / "benchmarks"


@dataclass(frozen=True, slots=True)
class Target:
    """A promise and the number measured for it."""

    what: str
    wanted: float
    measured: float
    at_most: bool = False

    @property
    def met(self) -> bool:
        return self.measured < self.wanted if self.at_most else self.measured >= self.wanted


def target_rows(found: Sequence[Target]) -> list[tuple[str, ...]]:
    return [
        (t.what, f"{'<' if t.at_most else '≥'} {t.wanted:g}", f"{t.measured:,.2f}", "met" if t.met else "MISSED")
        for t in found
    ]


def save(name: str, report: dict[str, Any], targets: Sequence[Target]) -> Path:
    """Writes a report with its verdicts; a quick run has a file of its own."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / (f"{name}-quick.json" if report["quick"] else f"{name}.json")
    verdicts = [asdict(target) | {"met": target.met} for target in targets]
    path.write_text(json.dumps(report | {"targets": verdicts}, indent=1) + "\n")
    return path


def print_table(rows: Sequence[tuple[str, ...]]) -> None:
    # A reason why something did not run may be long; it has no numbers beside it to be aligned with.
    full = [row for row in rows if len(row) < 3 or any(row[2:])]
    widths = [max(len(row[i]) for row in full) for i in range(len(rows[0]))]
    names = max(len(row[0]) for row in rows)
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:])] if any(row[2:]) else [row[1]]
        print("  " + "  ".join([row[0].ljust(names), *cells]).rstrip())


def print_targets(found: Sequence[Target]) -> None:
    print("\ntargets")
    print_table([("what", "wanted", "measured", ""), *target_rows(found)])


def markdown_table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    header, *body = ["| " + " | ".join(row) + " |" for row in rows]
    rule = "| --- |" + " ---: |" * (len(rows[0]) - 1)
    return [header, rule, *body]


def markdown_targets(found: Sequence[Target]) -> list[str]:
    return ["", "### Targets", "", *markdown_table([("what", "wanted", "measured", "verdict"), *target_rows(found)])]


def put_between(page: Path, mark: str, content: str) -> None:
    """Writes into a page of the documentation between the marks of this name; the words around them stay."""
    begin, end = f"<!-- {mark}: begin -->", f"<!-- {mark}: end -->"
    text = page.read_text()
    before, after = text.split(begin, 1)[0], text.split(end, 1)[1]
    page.write_text(f"{before}{begin}\n{content}\n{end}{after}")
