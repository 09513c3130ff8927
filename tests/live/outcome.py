"""What came of a run of chaos, in numbers and in words."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

KINDS_SHOWN_MAX = 12  # Of what the brokers have logged as errors.


@dataclass
class Outcome:
    """What came of it; `wrong` is empty if all is well."""

    wrong: list[str] = field(default_factory=list)
    events: int = 0
    refused_and_said_again: int = 0
    intrusions_refused: int = 0
    delivered: dict[str, int] = field(default_factory=dict)
    faults: dict[str, int] = field(default_factory=dict)
    searched_mb: float = 0.0
    published_in_s: float = 0.0
    settled_in_s: float = 0.0
    took_s: float = 0.0

    def summary(self) -> str:
        """The numbers, for people."""
        rows = {
            "acknowledged": f"{self.events:,} events within {self.published_in_s:.0f} s;"
            f" {self.refused_and_said_again:,} times one was refused, and said again",
            "delivered": f"{sum(self.delivered.values()):,}: {listed(self.delivered)};"
            f" the last {self.settled_in_s:.0f} s after the last fault",
            "faults": f"{sum(self.faults.values()):,}: {listed(self.faults)}",
            "intruder": f"{self.intrusions_refused:,} attempts to subscribe without a right, refused",
            "searched": f"{self.searched_mb:,.0f} MB that reached the yard, for what it may not see",
            "took": clock(self.took_s),
        }
        return "\n".join(f"  {name:<13} {text}" for name, text in rows.items())

    def failure(self, seed: int, command: str, folder: Path) -> str:
        """What is wrong, what the brokers have logged as errors, where all of it is kept, and what plays it again."""
        errors = errors_in(sorted(folder.glob("network/*/*/log.jsonl")))
        return "\n".join(
            [
                f"WRONG, with seed {seed}:",
                *(f"  - {why}" for why in self.wrong),
                "Errors in the logs, of which those of a full disk are meant to be there:",
                *(f"  - {error}" for error in errors or ["none"]),
                f"Logs of all brokers: {folder}/network/*/*/log.jsonl",
                f"What they said of themselves in the end: {folder}/network/status.json",
                f"Perhaps again with: {command}",
            ]
        )


def listed(counts: Mapping[str, int]) -> str:
    """`2 kill, 1 split`, in one order always."""
    return ", ".join(f"{count:,} {name}" for name, count in sorted(counts.items()) if count) or "none"


def clock(seconds: float) -> str:
    """`9:05`, as on a clock."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02}"


def leaves(failed: BaseExceptionGroup[Exception]) -> list[Exception]:
    """The single failures in a group of groups."""
    found: list[Exception] = []
    for each in failed.exceptions:
        found += leaves(each) if isinstance(each, BaseExceptionGroup) else [each]
    return found


def described(fault: BaseException) -> str:
    return str(fault) if isinstance(fault, AssertionError) else f"{type(fault).__name__}: {fault}"


def errors_in(logs: Iterable[Path]) -> list[str]:
    """What brokers have logged as errors, each with its number, most frequent first."""
    found = Counter(what for log in logs if log.exists() for line in log.open() if (what := _error_in(line)))
    return [f"{count:,} × {what}" for what, count in found.most_common(KINDS_SHOWN_MAX)]


def _error_in(line: str) -> str:
    try:
        row = json.loads(line)
    except ValueError:  # Not a log line: a warning of a library, or the trace of a crash.
        return line.strip()[:200] if "Error" in line else ""
    if row.get("level") != "error":
        return ""
    *_, last = str(row.get("error", "")).strip().split("\n")
    return ": ".join(part for part in (row["what"], last[:200]) if part)
