"""A folder of data files that grows by whole batches, each exactly once, on any store.

    FOLDER/batch=000000012/part-….parquet      data files under their final, unique names
    FOLDER/_commits/000000012.json             the commit record: which files belong to the batch
    FOLDER/_commits/000000000-000000499.json   older records, merged
    FOLDER/_commits/r000000001.json            a replacement: these files instead of those (compaction)
    FOLDER/_intents/000000012.json             the attempt that was chosen, until its files are in place
    FOLDER/_staging/000000012-…/               files of an attempt; readers skip names with an underscore
    FOLDER/_format.json                        says that there are records

A batch goes through five steps, and a run may be killed between any two of them, or within one:

    write     Spark writes the files of an attempt to a staging folder of its own
    intent    a record with their names, put if absent: this attempt, and no other, becomes the batch
    publish   the files move to their final names; on local disks and HDFS as one folder, in one step
    commit    the same record among the commits, put if absent: the batch is there
    clean up  what is left in staging goes

Killed before the intent, nothing has happened: the batch is written again, and the remains are deleted. Killed after
it, the next run moves the rest of the same files. So what a reader can see is, at every moment:

    by the commit records (`read_deliveries`)  whole batches, each once
    by listing the folder                      on local disks and HDFS the same. On an object store some files of one
                                               batch may be missing while it is published, or until the run that was
                                               killed within these seconds is started again. Never a file that will
                                               not belong to the result, never a row twice, never a file that goes

Two runs may work on the same batch (see `tidings.pipeline.state.epoch`). They have the same rows and either may win:
the other finds the intent, and publishes those files. Names are listed by `Storage.list`, which may lag, so the rows
of an attempt are counted by its names before it is chosen.

A record is checked before it is used: it may name data files below the folder, and nothing else. What else somebody
has put beside the records is left alone.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated

import msgspec

from tidings.errors import InputError, SetupError
from tidings.pipeline.storage import REQUESTS_AT_ONCE, Storage, decoded, read_all

COMMITS, INTENTS, STAGING = "_commits", "_intents", "_staging"
FORMAT = "_format.json"  # Not in folders that version 0.1 wrote.
RECORDS_MAX = 1_000  # Single records; beyond this, the oldest half of them are merged into one file.
READS_MAX = 5  # Of all records, while another process merges them.
ATTEMPTS_MAX = 3  # A store whose listing lags shows all files of one of them, or the run stops and is started again.

_BATCH, _MERGED, _REPLACEMENT = (re.compile(rf"{COMMITS}/{name}\.json") for name in (r"(\d+)", r"(\d+)-(\d+)", r"r\d+"))
_INTENT = re.compile(rf"{INTENTS}/\d+\.json")
_ATTEMPT = re.compile(r"(_compaction/)?\w[\w-]*")

CountRows = Callable[[list[str]], int]
"""The number of rows in these files, by their full paths."""


class DataFile(msgspec.Struct, frozen=True):
    """A data file by its name below the folder."""

    name: str
    bytes: Annotated[int, msgspec.Meta(ge=0)]


class Commit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one batch, or one replacement, adds to and removes from the files of the folder."""

    number: int
    pipeline: str = ""
    epoch: int = 0
    attempt: str = ""
    rows: int = 0
    files: list[DataFile] = []
    removed: list[str] = []


class CommitLog:
    """The commit records of a folder. Any reader may open it; it changes nothing by itself."""

    def __init__(self, storage: Storage, *, records_max: int = RECORDS_MAX) -> None:
        self.storage = storage
        self._records_max = records_max

    def exists(self) -> bool:
        return bool(self._names())

    def files(self) -> list[DataFile]:
        """The files of all committed batches, without those that were replaced, sorted by name."""
        found: dict[str, DataFile] = {}
        removed: set[str] = set()
        for commit in self.commits():
            found |= {file.name: file for file in commit.files}
            removed.update(commit.removed)
        return sorted((file for name, file in found.items() if name not in removed), key=lambda file: file.name)

    def commits(self) -> list[Commit]:
        """All records, batches and replacements."""
        contents: dict[str, bytes | None] = {}
        for _ in range(READS_MAX):
            contents = read_all(self.storage, self._names())
            if None not in contents.values():
                break  # Otherwise some were merged between the listing and the reading.
        found = [
            commit
            for name, content in contents.items()
            if content is not None
            for commit in self._decode(name, content)
        ]
        return list({(bool(commit.removed), commit.number): commit for commit in found}.values())

    def batch(self, number: int) -> Commit | None:
        """The record of one batch, if it is committed."""
        single = read_commit(self.storage, _record(COMMITS, number))
        if single is not None:
            return single
        for name in self._names():
            merged = _MERGED.fullmatch(name)
            if (
                merged
                and int(merged[1]) <= number <= int(merged[2])
                and (content := self.storage.read(name)) is not None
            ):
                return next((commit for commit in self._decode(name, content) if commit.number == number), None)
        return None

    def add(self, commit: Commit) -> None:
        """Commits a batch whose files are in place."""
        self.storage.put_if_absent(_record(COMMITS, commit.number), msgspec.json.encode(commit))

    def replacement(self, number: int) -> Commit | None:
        """The record of one replacement, if it is committed."""
        return read_commit(self.storage, _replacement(number))

    def add_replacement(self, commit: Commit) -> Commit:
        """Commits that `files`, which are in place, stand for those `removed` from now on; returns who was first."""
        self.storage.put_if_absent(_replacement(commit.number), msgspec.json.encode(commit))
        return self.replacement(commit.number) or commit

    def merge(self) -> None:
        """Merges the oldest half of the records if there are many. The merged record is there before they go."""
        single = [name for name in self._names() if _BATCH.fullmatch(name)]
        if len(single) <= self._records_max:
            return
        old = single[: -self._records_max // 2]
        contents = read_all(self.storage, old)
        commits = [
            commit
            for name, content in contents.items()
            if content is not None
            for commit in self._decode(name, content)
        ]
        name = f"{COMMITS}/{commits[0].number:09}-{commits[-1].number:09}.json"
        self.storage.put_if_absent(name, msgspec.json.encode(commits))
        for record in old:
            self.storage.delete(record)

    def _names(self) -> list[str]:
        names = (file.name for file in self.storage.list(COMMITS))
        return [name for name in names if any(kind.fullmatch(name) for kind in (_BATCH, _MERGED, _REPLACEMENT))]

    def _decode(self, name: str, content: bytes) -> list[Commit]:
        """The records of a file: one, or many that were merged."""
        if _MERGED.fullmatch(name):
            commits = decoded(self.storage, name, content, list[Commit])
        else:
            commits = [decoded(self.storage, name, content, Commit)]
        for commit in commits:
            _check(self.storage, name, commit)
        return commits


def read_commit(storage: Storage, name: str) -> Commit | None:
    """A record, or an intent to make one. Raises InputError if it is damaged, or names what is no data file here."""
    content = storage.read(name)
    if content is None:
        return None
    commit = decoded(storage, name, content, Commit)
    _check(storage, name, commit)
    return commit


def _check(storage: Storage, name: str, commit: Commit) -> None:
    """Whoever may write records could otherwise have the driver, or a reader, open or delete files of others."""
    for file in (*(file.name for file in commit.files), *commit.removed):
        if not _is_data(file):
            raise InputError(f"{storage.root.below(name)} names {file[:100]!r}, which is no data file below the folder")
    if commit.attempt and not _ATTEMPT.fullmatch(commit.attempt):
        raise InputError(f"{storage.root.below(name)} names {commit.attempt[:100]!r}, which is no attempt")


class CommittedFolder:
    """The writer's side: batches go in once. `pipeline` names the checkpoint that the batch numbers belong to.

    `check` is called before every step that other runs see, and raises if this run is stale.
    """

    def __init__(
        self,
        storage: Storage,
        *,
        prefix: str = "batch",
        pipeline: str = "",
        epoch: int = 0,
        check: Callable[[], None] = lambda: None,
        records_max: int = RECORDS_MAX,
    ) -> None:
        self.storage, self.log = storage, CommitLog(storage, records_max=records_max)
        self._prefix, self._pipeline, self._epoch, self._check = prefix, pipeline, epoch, check

    def prepare(self) -> None:
        """Finishes the batch that an earlier run was publishing, and deletes other remains. Raises SetupError."""
        self.storage.make_folder()
        self._adopt()
        for name in (file.name for file in self.storage.list(INTENTS) if _INTENT.fullmatch(file.name)):
            intent = read_commit(self.storage, name)
            if intent is not None:
                self._publish(intent)
        # A stale run may still choose an attempt at a batch that nobody has committed, so such an attempt stays.
        staged = {file.name.split("/")[1].partition("-")[0] for file in self.storage.list(STAGING)}
        for number in sorted(int(number) for number in staged if number.isdigit()):
            if self.log.batch(number) is not None:
                self._clean_up(number)

    def put(self, number: int, write: Callable[[str], None], count: CountRows, rows: int) -> None:
        """Makes a batch, of `rows` rows that `write` writes to the folder it is given, unless the batch is there.

        Raises InputError if the folder has a batch of this number from another pipeline.
        """
        if self._is_there(number):
            return
        chosen = self._chosen(number) or self._choose(number, write, count, rows)
        self._check()
        self._publish(chosen)

    def _is_there(self, number: int) -> bool:
        commit = self.log.batch(number)
        return commit is not None and bool(self._own(commit))

    def _chosen(self, number: int) -> Commit | None:
        intent = read_commit(self.storage, _record(INTENTS, number))
        return self._own(intent) if intent is not None else None

    def _own(self, commit: Commit) -> Commit:
        if commit.pipeline not in ("", self._pipeline):
            raise InputError(
                f"{self.storage.root} has batch {commit.number} of another pipeline, or of a checkpoint that was deleted; "
                "choose another folder, or delete this one"
            )
        return commit

    def _choose(self, number: int, write: Callable[[str], None], count: CountRows, rows: int) -> Commit:
        for _ in range(ATTEMPTS_MAX):
            attempt = f"{number:09}-{uuid.uuid4().hex}"
            staged = f"{STAGING}/{attempt}"
            write(self.storage.root.below(staged).text)
            written = [file for file in self.storage.list(staged) if _is_data(file.name.removeprefix(f"{staged}/"))]
            if count([self.storage.root.below(file.name).text for file in written]) == rows:
                break
        else:
            raise SetupError(f"{self.storage.root} does not show all files that were written to it; start again later")
        files = [DataFile(f"{self._folder(number)}/{f.name.removeprefix(f'{staged}/')}", f.size) for f in written]
        commit = Commit(
            number=number, pipeline=self._pipeline, epoch=self._epoch, attempt=attempt, rows=rows, files=files
        )
        self._check()
        if self.storage.put_if_absent(_record(INTENTS, number), msgspec.json.encode(commit)):
            return commit
        chosen = self._chosen(number) or self.log.batch(number)  # Another run's, which may be committed by now.
        assert chosen is not None, "an intent goes only after its commit"
        return chosen

    def _publish(self, commit: Commit) -> None:
        """Moves the files of an intent to their places and commits; continues where an earlier run was killed."""
        if self.log.batch(commit.number) is None:
            self._move(commit)
            self.log.add(commit)
        self.storage.delete(f"{STAGING}/{commit.attempt}")  # By its name: an empty folder has no files to list.
        self._clean_up(commit.number)
        self.log.merge()

    def _move(self, commit: Commit) -> None:
        staged, folder = f"{STAGING}/{commit.attempt}", self._folder(commit.number)
        if self.storage.renames_folders and commit.files:
            return self.storage.move(staged, folder)
        with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
            moves = [(f"{staged}/{file.name.removeprefix(f'{folder}/')}", file.name) for file in commit.files]
            list(pool.map(lambda move: self.storage.move(*move), moves))
        return None

    def _clean_up(self, number: int) -> None:
        """Deletes the intent of a committed batch and every attempt at it."""
        self.storage.delete(_record(INTENTS, number))
        for attempt in sorted({file.name.split("/")[1] for file in self.storage.list(STAGING)}):
            if attempt.startswith(f"{number:09}-"):
                self.storage.delete(f"{STAGING}/{attempt}")

    def _adopt(self) -> None:
        """Commits, once, what version 0.1 has written: it renamed a folder per batch, and had no records."""
        if self.storage.read(FORMAT) is not None:
            return
        batches = self._batches_0_1()
        last = max(batches, default=-1)
        for number, files in sorted(batches.items()):
            if number < last or self.storage.renames_folders:
                self.log.add(Commit(number=number, files=files))
        if last >= 0 and self.log.batch(last) is None:
            # On this store its rename was no single step: the last batch may lack files, and is written again.
            self.storage.delete(self._folder(last))
        self.storage.put(FORMAT, b'{"version": 1}')

    def _batches_0_1(self) -> dict[int, list[DataFile]]:
        batches: dict[int, list[DataFile]] = {}
        for file in self.storage.list():
            prefix, _, number = file.name.partition("/")[0].partition("=")
            if prefix == self._prefix and number.isdigit() and _is_data(file.name):
                batches.setdefault(int(number), []).append(DataFile(file.name, file.size))
        return batches

    def _folder(self, number: int) -> str:
        return f"{self._prefix}={number:09}"


def _is_data(name: str) -> bool:
    return not any(not part or part.startswith(("_", ".")) for part in name.split("/"))


def _record(folder: str, number: int) -> str:
    return f"{folder}/{number:09}.json"


def _replacement(number: int) -> str:
    return f"{COMMITS}/r{number:09}.json"
