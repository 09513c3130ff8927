"""Writes the backup of a broker to one file, while the broker runs or not.

The file is a tar archive with `manifest.json` first: the checksum of every other file, so that a restore finds what was
cut short or damaged. It holds private keys, and is readable by its owner only. Paths of the configuration become names
beside broker.toml, wherever the files were.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sqlite3
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import msgspec

from tidings import __version__
from tidings.errors import InputError, SetupError
from tidings.net.clock import now_ms
from tidings.net.config import BrokerConfig, Limits, broker_with, files_in, read_peers
from tidings.net.enrolment.participant import table
from tidings.net.gateway.webhooks import FILE as WEBHOOKS
from tidings.net.ids import broker_id, read_identity

FORMAT = 1
MANIFEST, CONFIG = "manifest.json", "broker.toml"
JOURNAL, REGISTRY, MANAGERS = "data/journal.db", "data/registry.db", "data/managers"
COPY_BYTES = 1 << 20
_SUFFIX = {"tokens": ".token", "types": ".type", "manages": ".pem"}


class BackupManifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a backup is of, when it was made, and the SHA-256 of every file in it."""

    format: int
    version: str
    broker: str
    domain: str
    id: str
    created_ms: int
    registry: str
    """Where the registry is, if it is not in the backup: the URL of a server."""
    files: dict[str, str]
    empty_folders: tuple[str, ...] = ()
    """Folders that the configuration names and that had nothing in them."""


@dataclass(frozen=True, slots=True)
class Backup:
    """A backup that was written."""

    file: Path
    manifest: BackupManifest
    size: int


def write_backup(
    config_file: Path, out: Path, given: Mapping[str, Any] | None = None, environment: Mapping[str, str] | None = None
) -> Backup:
    """Backs the broker of a configuration up into a new file; the broker may run meanwhile.

    `given` and `environment` are settings over the file's, as the broker runs with them (see `broker_with`).
    What the broker has acknowledged before the call is in it. Raises InputError if the file is there already or the
    broker has never run, SetupError if a disk refuses.
    """
    config = broker_with(config_file, given or {}, environment)
    if config.journal:
        raise InputError(
            f"the journal of {config.name} is in a database, which is backed up as a whole: with pg_basebackup and archived"
            " WAL, or as your provider does it; keep a copy of the broker's folder, which has its keys and rights"
        )
    if out.exists():
        raise InputError(f"{out} is there already; name another file with --out")
    if not (config.data / "journal.db").exists():
        raise InputError(f"{config.data} has no journal: {config.name} has not run yet, or with another --data")
    with _translated(out), tempfile.TemporaryDirectory(dir=out.parent, prefix=".backup-") as aside:
        folder = Path(aside) / "content"
        manifest = _collect(config, folder)
        file = Path(aside) / "backup"
        _pack(folder, manifest, file)
        file.replace(out)
        _sync(out.parent)
    return Backup(out, manifest, out.stat().st_size)


def _collect(config: BrokerConfig, folder: Path) -> BackupManifest:
    """Copies everything into a folder. In this order: what is copied later may be newer, and must not be older."""
    (folder / "data").mkdir(mode=0o700, parents=True)
    created = now_ms()
    copy_database(config.data / "journal.db", folder / JOURNAL)
    if (config.data / WEBHOOKS).exists():
        shutil.copyfile(config.data / WEBHOOKS, folder / "data" / WEBHOOKS)
    if (config.data / "managers").is_dir():
        shutil.copytree(config.data / "managers", folder / MANAGERS)
    registry = config.registry or str(config.data / "registry.db")
    if "://" not in registry and Path(registry).exists():
        copy_database(Path(registry), folder / REGISTRY)
    names = _copy_files(config, folder)
    (folder / CONFIG).write_text(_configuration(config, names, "" if "://" not in registry else registry))
    return BackupManifest(
        format=FORMAT,
        version=__version__,
        broker=config.name,
        domain=config.domain,
        id=broker_id(read_identity(config.key).public_key),
        created_ms=created,
        registry=registry if "://" in registry else "",
        files={str(file.relative_to(folder)): digest(file) for file in sorted(folder.rglob("*")) if file.is_file()},
        empty_folders=tuple(
            str(each.relative_to(folder))
            for each in sorted(folder.rglob("*"))
            if each.is_dir() and not any(each.iterdir())
        ),
    )


def copy_database(source: Path, target: Path) -> None:
    """Copies a SQLite database as of one moment, whoever writes to it meanwhile, and checks the copy."""
    with (
        closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)) as reading,
        closing(sqlite3.connect(target)) as writing,
    ):
        reading.backup(writing)  # In one step: a reader of a WAL neither waits for writers nor holds them up.
        writing.execute("PRAGMA journal_mode = DELETE")
        ((verdict, *_), *_) = writing.execute("PRAGMA quick_check(1)").fetchall()
    if verdict != "ok":
        raise SetupError(f"{source} is damaged: {verdict}; restore an earlier backup")


def _copy_files(config: BrokerConfig, folder: Path) -> dict[str, Any]:
    """Copies the files that the configuration names; by its keys, what they are called in the backup."""
    taken: dict[str, Path] = {}
    names: dict[str, Any] = {}
    for each in fields(BrokerConfig):
        value = getattr(config, each.name)
        if each.name in ("data", "capture") or not value:
            continue
        if isinstance(value, Path) and value.exists():
            names[each.name] = _copy(value, folder, each.name, taken)
        elif isinstance(value, tuple) and all(isinstance(path, Path) for path in value):
            names[each.name] = [_copy(path, folder, each.name, taken) for path in value]
    return names


def _copy(path: Path, folder: Path, key: str, taken: dict[str, Path]) -> str:
    name = (
        path.name if taken.get(path.name, path) == path and path.name != CONFIG else f"{key}-{len(taken)}-{path.name}"
    )
    taken[name] = path
    if path.is_dir():
        (folder / name).mkdir(exist_ok=True)
        for file in files_in([path], _SUFFIX.get(key, "")):
            shutil.copyfile(file, folder / name / file.name)
    else:
        shutil.copyfile(path, folder / name)
    return name


def _configuration(config: BrokerConfig, names: dict[str, Any], registry: str) -> str:
    """broker.toml as it is in the backup; peers of a file of their own stay there."""
    words: dict[str, Any] = {"data": "data"}
    for each in fields(BrokerConfig):
        value = getattr(config, each.name)
        if each.name in names:
            words[each.name] = names[each.name]
        elif (isinstance(value, float) or (isinstance(value, str) and value)) and each.name != "registry":
            words[each.name] = value
        elif isinstance(value, tuple) and value and all(isinstance(one, str) for one in value):
            words[each.name] = list(value)
    if registry:
        words["registry"] = registry
    parts = [table("[broker]", words)]
    defaults = Limits()
    limits = {each.name: getattr(config.limits, each.name) for each in fields(Limits)}
    if changed := {name: value for name, value in limits.items() if value != getattr(defaults, name)}:
        parts.append(table("[limits]", changed))
    if config.overlay_options:
        parts.append(table("[overlay]", config.overlay_options))
    shared = {peer.key for peer in read_peers(config.peers_file)}
    own = [peer for peer in config.peers if peer.key not in shared]
    parts += [table("[[peer]]", {"address": peer.address, "key": peer.key}) for peer in own]
    return "\n".join(parts)


def _pack(folder: Path, manifest: BackupManifest, file: Path) -> None:
    (folder / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(manifest)))
    with open(os.open(file, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600), "wb") as stream:
        with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for name in (MANIFEST, *manifest.files):
                archive.add(folder / name, name, filter=_anonymous)
        stream.flush()
        os.fsync(stream.fileno())


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Users of this host mean nothing on another."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mode = 0o600
    return entry


def digest(file: Path) -> str:
    """The SHA-256 of a file's content."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _sync(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


@contextmanager
def _translated(out: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as wrong:
        raise SetupError(f"cannot copy a database for {out}: {wrong}") from None
    except OSError as wrong:
        raise SetupError(f"cannot write {out}: {wrong.filename or ''} {wrong.strerror}") from None
