"""The organisation that --org names, and what its commands share: times and changes as people read them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tidings.cli.terminal import tell

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
