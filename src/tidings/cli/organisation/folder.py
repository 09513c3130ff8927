"""The organisation that --org names, and what its commands share: times and changes as people read them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from tidings.cli.terminal import tell
from tidings.errors import InputError, TidingsError

if TYPE_CHECKING:
    from tidings.net import Organisation
    from tidings.store import IssuedChanges


def organisation(org: Path | None) -> Organisation:
    """The organisation in a folder; raises InputError if there is none."""
    from tidings.net import Organisation  # Here, so that --help does not load it.

    return Organisation(org or Path())


def organisation_here(org: Path | None) -> Organisation | None:
    """The organisation that --org names or that is in this folder; None if neither."""
    return organisation(org) if org is not None or Path("authority.pem").exists() else None


def report(changes: IssuedChanges) -> None:
    """Tells what a change of rights came to."""
    if changes.issued:
        tell(f"issued {len(changes.issued)} right{'s' * (len(changes.issued) > 1)}")
    if changes.revoked:
        tell(f"revoked {len(changes.revoked)} right{'s' * (len(changes.revoked) > 1)}")
    for why in dict.fromkeys(changes.missing):
        tell(f"note: {why}")


def check_stopped(found: Organisation, folders: Iterable[Path]) -> None:
    """Raises InputError if a broker in one of these folders runs: its files must not go while it uses them."""
    running = ", ".join(folder.name for folder in folders if _runs(folder))
    if running:
        raise InputError(f"{running} of {found.name} runs; stop it first, with Ctrl-C or `tidings broker drain`")


def _runs(folder: Path) -> bool:
    from tidings.net import is_running

    try:
        return is_running(folder)
    except (TidingsError, OSError):
        return False  # A damaged one: nothing runs from there.
