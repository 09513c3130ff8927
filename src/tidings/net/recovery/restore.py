"""Makes a folder that a broker can run from out of a backup; what must not be repeated is changed on the way."""

from __future__ import annotations

import os
import secrets
import shutil
import sqlite3
import tarfile
import tempfile
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from tidings.delivery import LogAncestor
from tidings.errors import Denied, InputError, SetupError
from tidings.net.broker.interest_sync import VERSION_META
from tidings.net.broker.journal import ANCESTORS, COPY, RENUMBERED, SCHEMA_VERSION, SUPERSEDED
from tidings.net.broker.key_managers import KeyManagers
from tidings.net.clock import now_ms
from tidings.net.config import BrokerConfig, files_in, host_and_port, read_broker, read_text
from tidings.net.recovery.backup import CONFIG, COPY_BYTES, FORMAT, JOURNAL, MANIFEST, BackupManifest, digest
from tidings.net.type_files import read_type
from tidings.security import show_ms

MANIFEST_BYTES_MAX = 16 << 20
FILES_MAX = 100_000
ANCESTORS_MAX = 16  # A receiver that slept through more restores than this may get some events again.
POSITIONS_PER_S = 1 << 20  # Positions begin at the time of the restore: no earlier copy can have got so far.
SENDER_IDS_SKIPPED = 1 << 16  # More than brokers and jobs can have got since the backup, and 65,000 times in all.


@dataclass(frozen=True, slots=True)
class Restored:
    """A broker that was restored, and is ready to run."""

    config: Path
    manifest: BackupManifest
    copy: int
    durables: int
    managers: int


def restore(backup: Path, folder: Path, *, listen: str = "", advertise: str = "", registry: str = "") -> Restored:
    """Restores a backup into a new folder. An earlier copy of the broker stops when it hears of the restored one.

    `listen` and `advertise` replace the addresses of the backup. `registry` is a registry that has outlived the broker,
    and is used instead of the one in the backup. Raises InputError for something that is no backup or is damaged, or
    if the folder is not empty; SetupError if the clock is behind the backup's.
    """
    for option, address in (("--listen: ", listen), ("--advertise: ", advertise)):
        if address:
            host_and_port(address, option)
    if not backup.is_file():
        raise InputError(f"there is no backup {backup}")
    if registry and "://" not in registry:
        if not Path(registry).exists():
            raise InputError(f"--registry: there is no {registry}; without the option, the one in the backup is used")
        registry = str(Path(registry).absolute())
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} is not empty; name a new folder with --to")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".restore-") as aside:
            made = Path(aside) / "broker"
            manifest = _unpack(backup, made)
            at_ms = _moment(manifest)
            _set_options(made / CONFIG, {"listen": listen, "advertise": advertise, "registry": registry})
            durables = continue_journal(made / JOURNAL, at_ms)
            managers = _skip_keys(read_broker(made / CONFIG), at_ms)
            if folder.exists():
                folder.rmdir()
            made.replace(folder)
    except OSError as wrong:
        raise SetupError(f"cannot restore into {folder}: {wrong.filename or ''} {wrong.strerror}") from None
    return Restored(folder / CONFIG, manifest, at_ms, durables, managers)


def _moment(manifest: BackupManifest) -> int:
    at_ms = now_ms()
    if at_ms <= manifest.created_ms:
        raise SetupError(
            f"clock: the backup is of {show_ms(manifest.created_ms)}, and it is {show_ms(at_ms)} here; set the clock"
        )
    return at_ms


# ── The archive ──


def _unpack(backup: Path, folder: Path) -> BackupManifest:
    """Nothing of the archive is used before its checksum is right."""
    try:
        with tarfile.open(backup, "r:") as archive:
            manifest = _read_manifest(archive, backup)
            folder.mkdir(mode=0o700)
            for name in manifest.empty_folders:
                (folder / name).mkdir(mode=0o700, parents=True, exist_ok=True)
            left = set(manifest.files)
            for entry in archive:
                if entry.name == MANIFEST:
                    continue
                if entry.name not in left or not entry.isfile():
                    raise InputError(f"{backup} is not a backup as this program writes it: {entry.name[:200]!r} in it")
                left.discard(entry.name)
                _extract(archive, entry, folder, manifest.files[entry.name], backup)
    except (tarfile.TarError, EOFError) as wrong:
        raise InputError(f"{backup} is not a backup of a broker, or was cut short: {wrong}") from None
    if left:
        raise InputError(f"{backup} was cut short: {min(left)} is not in it")
    return manifest


def _read_manifest(archive: tarfile.TarFile, backup: Path) -> BackupManifest:
    first = archive.next()
    stream = archive.extractfile(first) if first is not None and first.isfile() else None
    if first is None or stream is None or first.name != MANIFEST or first.size > MANIFEST_BYTES_MAX:
        raise InputError(f"{backup} is not a backup of a broker: it does not begin with {MANIFEST}")
    try:
        raw = stream.read()
        if (format := msgspec.json.decode(raw, type=dict[str, Any]).get("format")) != FORMAT:
            raise InputError(f"{backup} has format {str(format)[:40]}; this program reads {FORMAT}: use a newer one")
        manifest = msgspec.json.decode(raw, type=BackupManifest)
    except (msgspec.MsgspecError, RecursionError) as wrong:
        raise InputError(f"{backup}: its {MANIFEST} is damaged: {wrong}") from None
    names = (*manifest.files, *manifest.empty_folders)
    if len(names) > FILES_MAX or not all(map(_is_inside, names)):
        raise InputError(f"{backup} is not a backup as this program writes it: a file lies outside of the folder")
    return manifest


def _is_inside(name: str) -> bool:
    path = PurePosixPath(name)
    return bool(name) and not path.is_absolute() and ".." not in path.parts and "\0" not in name


def _extract(archive: tarfile.TarFile, entry: tarfile.TarInfo, folder: Path, expected: str, backup: Path) -> None:
    target = folder / entry.name
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    source = archive.extractfile(entry)
    assert source is not None
    with source, open(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as stream:
        shutil.copyfileobj(source, stream, COPY_BYTES)
        stream.flush()
        os.fsync(stream.fileno())
    if digest(target) != expected:
        raise InputError(f"{backup} is damaged: {entry.name} is not as it was written; use another backup")


def _set_options(config: Path, given: dict[str, str]) -> None:
    """Replaces entries of [broker], which this program has written: one on each line."""
    head, *lines = read_text(config).splitlines()
    chosen = {word: value for word, value in given.items() if value}
    kept = [line for line in lines if line.partition(" = ")[0] not in chosen]
    added = [f"{word} = {msgspec.json.encode(value).decode()}" for word, value in chosen.items()]
    config.write_text("\n".join([head, *added, *kept, ""]))


# ── What must not be repeated ──


def continue_journal(file: Path, at_ms: int) -> int:
    """Makes a copied journal one that continues the other; returns the number of its durable subscriptions."""
    try:
        with closing(sqlite3.connect(file, isolation_level=None)) as disk:
            ((version,),) = disk.execute("PRAGMA user_version")
            if version > SCHEMA_VERSION:
                raise InputError(f"the journal is of a newer version, {version}; restore it with a newer program")
            disk.execute("BEGIN IMMEDIATE")
            durables = _continue(disk, at_ms)
            disk.execute("COMMIT")
            return durables
    except sqlite3.DatabaseError as wrong:
        raise InputError(f"the journal in the backup cannot be used: {wrong}; use another backup") from None


def _continue(disk: sqlite3.Connection, at_ms: int) -> int:
    meta = dict(disk.execute("SELECT name, value FROM meta"))
    ancestors = msgspec.msgpack.decode(bytes(meta.get(ANCESTORS) or b"\x90"), type=list[LogAncestor])
    streams = dict(disk.execute("SELECT broker, next_number FROM streams"))
    ancestors.append(LogAncestor(bytes(meta["id"]), streams))
    interest = int.from_bytes(bytes(meta.get(VERSION_META) or b"\0"), "big")
    moved = _renumber(disk, at_ms // 1000 * POSITIONS_PER_S)
    new = {
        "id": secrets.token_bytes(16),
        "incarnation": max(int(meta["incarnation"]), at_ms),
        ANCESTORS: msgspec.msgpack.encode(ancestors[-ANCESTORS_MAX:]),
        COPY: at_ms.to_bytes(8, "big"),
        VERSION_META: max(interest, at_ms).to_bytes(8, "big"),
        RENUMBERED: msgspec.msgpack.encode(moved),
    }
    disk.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", new.items())
    disk.execute("DELETE FROM meta WHERE name = ?", (SUPERSEDED,))
    return len(moved)


def _renumber(disk: sqlite3.Connection, first: int) -> dict[str, tuple[int, int]]:
    """Moves the positions of all queues up to the present: by subscription, below which position, and by how much."""
    moved: dict[str, tuple[int, int]] = {}
    for id, next_position in disk.execute("SELECT id, next_position FROM durables").fetchall():
        shift = max(first - next_position, 0)
        moved[id] = (next_position, shift)
        disk.execute("UPDATE queue SET position = position + ? WHERE durable = ?", (shift, id))
        change = "UPDATE durables SET next_position = next_position + ?, acknowledged = acknowledged + ? WHERE id = ?"
        disk.execute(change, (shift, shift, id))
    return moved


def _skip_keys(config: BrokerConfig, at_ms: int) -> int:
    """Has the key managers of this broker give out nothing that an earlier copy may have given out; how many there are."""
    managers = KeyManagers(config)
    try:
        known = [*map(read_type, files_in(config.types, ".type")), *managers.types()]
        signed = list({each.signed.type_id: each.signed for each in known if each.signed}.values())
        return managers.skip_ahead(signed, SENDER_IDS_SKIPPED, at_ms)
    except Denied as refused:
        raise InputError(f"the key managers of the backup cannot go on: {refused}") from None
    finally:
        managers.close()
