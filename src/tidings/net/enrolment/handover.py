"""Key managers that change their broker: the key and what it has reached move from one broker's folder to another's.

A type names its key manager by a key, and that key is not the broker's own. Members reach the manager over the overlay,
under the type's name, so it does not matter at which broker it runs. Its state is in the organisation's registry,
sealed under its key. What moves is the key's file, once the broker that had it has stopped; a running broker looks into
its folder `managers` whenever the registry changes.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from tidings.errors import InputError
from tidings.net.broker.key_managers import GenerationFiles
from tidings.net.config import BrokerConfig, files_in, read_broker
from tidings.net.enrolment.participant import CONFIG, MANAGERS, make_folder
from tidings.net.ids import read_identity
from tidings.net.journal_storage.sqlite import is_locked, lock_journal
from tidings.security import SignedType

JOURNAL = "journal.db"


def managers_at(folder: Path) -> list[bytes]:
    """The public keys of the key managers that a broker's folder names; none if it is not here."""
    file = folder / CONFIG["broker"]
    keys = files_in(read_broker(file).manages, ".pem") if file.exists() else []
    return [key for one in keys if (key := _public_key(one))]


def is_running(folder: Path) -> bool:
    """Whether the broker of this folder runs on this machine, or still is about to end."""
    file = folder / CONFIG["broker"]
    return file.exists() and is_locked(read_broker(file).data / JOURNAL)


def check_can_hand_over(types: Sequence[SignedType], broker: str, folder: Path) -> None:
    """Raises InputError if these types, whose managers run at that broker, would lose them: its folder is elsewhere."""
    kept = sorted({one.event_type.name for one in types if one.group_ids})
    if kept and not (folder / CONFIG["broker"]).exists():
        raise InputError(
            f"{broker} gives out the keys of {', '.join(kept)} and is on another machine: only a broker whose folder is "
            f"in {folder.parent} can hand that over; let it keep its key, and move its clients"
        )


def hand_over_managers(types: Sequence[SignedType], old: Path, new: Path) -> list[str]:
    """Moves the key managers of a broker that has stopped to another one of the organisation; the names of their types.

    Idempotent: what has moved stays. Raises SetupError while the old one still runs, and InputError for brokers that do
    not share a registry: the managers' state would not be found.
    """
    before, after = read_broker(old / CONFIG["broker"]), read_broker(new / CONFIG["broker"])
    appointed = {one.key_manager: one for one in types if one.group_ids}
    keys = {file: key for file in files_in(before.manages, ".pem") if (key := _public_key(file)) in appointed}
    if not keys:
        return []
    for one in (before, after):
        if one.journal:
            raise InputError(
                f"the journal of {one.name} is in a database, with what its key managers have reached; a key manager can"
                " only be moved between brokers with journals in files"
            )
    _check_place(before, after, new)
    with closing(lock_journal(before.data / JOURNAL)):
        moved = [one for one in types if one.key_manager in keys.values()]
        _copy_reached(moved, before.data, after.data)
        for file, key in keys.items():
            _move(file, new / MANAGERS / f"{key.hex()[:16]}.pem", old)
    return sorted({one.event_type.name for one in moved})


def _public_key(file: Path) -> bytes:
    return read_identity(file).public_key if file.exists() else b""


def _check_place(before: BrokerConfig, after: BrokerConfig, new: Path) -> None:
    file = new / CONFIG["broker"]
    if not before.registry or _same(before.registry) != _same(after.registry):
        raise InputError(
            f"{file} must name the registry of {before.name}, which has what its key managers know; then start it again"
        )
    if new / MANAGERS not in after.manages:
        raise InputError(f'{file}: add "{MANAGERS}" to manages, and start the broker again')


def _same(registry: str) -> str:
    return registry if "://" in registry else str(Path(registry).resolve())


def _copy_reached(types: Sequence[SignedType], before: Path, after: Path) -> None:
    """The new broker, too, refuses a registry that is older than what was reached."""
    reached, there = GenerationFiles(before / "managers"), GenerationFiles(after / "managers")
    for signed in types:
        if (generation := reached.read(signed.type_id)) > there.read(signed.type_id):
            there.write(signed.type_id, generation)


def _move(file: Path, to: Path, old: Path) -> None:
    """A key in the old broker's folder leaves it; one elsewhere, as of an organisation that manages itself, stays."""
    make_folder(to.parent)
    if not file.resolve().is_relative_to(old.resolve()):
        if not to.exists():
            to.symlink_to(os.path.relpath(file.resolve(), to.parent.resolve()))
        return
    aside = to.with_suffix(".new")
    shutil.copyfile(file, aside)
    aside.chmod(0o600)
    aside.replace(to)
    file.unlink()
