"""Batches of files appear once, whole, whatever stops where: on a local disk and on S3, after any write of a commit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from tests.pipeline.s3_server import S3, serving, teach
from tidings.errors import InputError, SetupError
from tidings.pipeline.sinks.committed_folder import Commit, CommitLog, CommittedFolder, DataFile
from tidings.pipeline.storage import LocalStorage, Storage, storage_at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Stopped(Exception):
    """Nothing more is carried out: the process is dead."""


class StoppingStorage(LocalStorage):
    """A local disk below a process that is killed after so many writes."""

    def __init__(self, storage: Storage, writes: int) -> None:
        super().__init__(storage.root)
        self.left = writes

    def _spend(self) -> None:
        if self.left == 0:
            raise Stopped
        self.left -= 1

    def put(self, name: str, content: bytes) -> None:
        self._spend()
        super().put(name, content)

    def put_if_absent(self, name: str, content: bytes) -> bool:
        self._spend()
        return super().put_if_absent(name, content)

    def move(self, source: str, target: str) -> None:
        self._spend()
        super().move(source, target)

    def delete(self, name: str) -> None:
        self._spend()
        super().delete(name)


class Batches:
    """What a pipeline would put: a batch has two files of three lines each, under new names at every attempt."""

    def __init__(self, storage: Storage, **options: object) -> None:
        self.storage = storage
        self.folder = CommittedFolder(storage, **options)  # type: ignore[arg-type]
        self.attempts = 0

    def put(self, batch: int) -> None:
        self.folder.put(batch, lambda folder: self._write(batch, folder), self._count, 6)

    def _write(self, batch: int, folder: str) -> None:
        staged = folder.removeprefix(f"{self.storage.root}/")
        self.attempts += 1
        for part in range(2):
            lines = "".join(f"{batch}.{part}.{line}\n" for line in range(3))
            self.storage.put(f"{staged}/part-{part}-{id(self)}-{self.attempts}.txt", lines.encode())

    def _count(self, paths: list[str]) -> int:
        return len(lines_of(self.storage, [path.removeprefix(f"{self.storage.root}/") for path in paths]))


def lines_of(storage: Storage, files: list[str]) -> list[str]:
    return [line for name in files for line in (storage.read(name) or b"").decode().splitlines()]


def committed(storage: Storage) -> list[str]:
    """What a reader of the commit records finds. Every file that it names is there."""
    files = [file.name for file in CommitLog(storage).files()]
    assert all(storage.read(name) is not None for name in files)
    return sorted(lines_of(storage, files))


def listed(storage: Storage) -> list[str]:
    """What a reader finds who lists the folder and skips what begins with an underscore."""
    return sorted(lines_of(storage, [file.name for file in storage.list() if not file.name.startswith("_")]))


def expected(batches: int) -> list[str]:
    return sorted(f"{batch}.{part}.{line}" for batch in range(batches) for part in range(2) for line in range(3))


def stop_everywhere(storage: Storage, stopping: Callable[[int], Storage], steps_max: int) -> int:
    """Puts a batch, stopped after ever more writes; returns how many writes it took."""
    for writes in range(steps_max):
        process = Batches(stopping(writes))
        try:
            process.folder.prepare()
            process.put(0)
        except (Stopped, SetupError):
            is_done = False
        else:
            is_done = True
        survivor = stopping(-1)
        assert committed(survivor) in ([], expected(1)), f"the whole batch or nothing, after {writes} writes"
        early = listed(survivor)
        assert len(early) == len(set(early)), f"nothing twice, after {writes} writes"
        restarted = Batches(survivor)
        restarted.folder.prepare()
        restarted.put(0)
        assert committed(survivor) == listed(survivor) == expected(1), f"after {writes} writes"
        assert set(early) <= set(expected(1))
        assert {file.name.partition("/")[0] for file in survivor.list()} == {
            "_commits",
            "_format.json",
            "batch=000000000",
        }
        if is_done:
            return writes
        storage.delete("")
    raise AssertionError(f"more than {steps_max} writes for a batch")


def test_on_a_local_disk_a_kill_between_any_two_writes_loses_and_repeats_nothing(tmp_path: Path) -> None:
    storage = storage_at(str(tmp_path))
    assert stop_everywhere(storage, lambda writes: StoppingStorage(storage, writes), 20) >= 5


@pytest.fixture(scope="module")
def s3(spark: SparkSession) -> Iterator[S3]:
    with serving() as server:
        teach(spark, server)
        yield server


def test_on_s3_a_kill_between_any_two_requests_loses_and_repeats_nothing(spark: SparkSession, s3: S3) -> None:
    storage = storage_at(s3.at("killed"), spark)

    def stopping(writes: int) -> Storage:
        s3.faults.clear()
        s3.faults.stops_after = writes if writes >= 0 else None
        return storage

    assert stop_everywhere(storage, stopping, 60) >= 8


@pytest.mark.parametrize("fault", ["fails", "loses_answer_of"])
def test_on_s3_an_error_at_any_request_loses_and_repeats_nothing(spark: SparkSession, s3: S3, fault: str) -> None:
    storage = storage_at(s3.at(f"{fault}"), spark)
    s3.faults.clear()
    Batches(storage).put(0)
    writes = s3.faults.writes
    for number in range(1, writes + 1, 3):
        s3.faults.clear()
        storage.delete("")
        s3.faults.clear()
        setattr(s3.faults, fault, number)
        try:
            Batches(storage).put(0)
        except SetupError:
            assert committed(storage) in ([], expected(1))
            Batches(storage).put(0)
        assert committed(storage) == listed(storage) == expected(1), f"{fault} {number} of {writes}"
    s3.faults.clear()


def test_where_a_listing_lags_no_file_is_forgotten(spark: SparkSession, s3: S3) -> None:
    storage = storage_at(s3.at("lags"), spark)
    s3.faults.clear()
    s3.faults.lag_s = 3600.0
    with pytest.raises(SetupError, match="does not show all files"):
        Batches(storage).put(0)
    assert storage.read("_intents/000000000.json") is None
    s3.faults.clear()
    Batches(storage).put(0)
    assert committed(storage) == listed(storage) == expected(1)


def test_two_runs_that_put_the_same_batch_put_it_once(tmp_path: Path) -> None:
    storage = storage_at(str(tmp_path))
    first, second = Batches(storage), Batches(storage)
    second_put: list[int] = []

    def meanwhile() -> None:
        if not second_put:
            second_put.append(1)
            second.put(0)

    first.folder = CommittedFolder(storage, check=meanwhile)  # The other run works while this one checks its epoch.
    first.put(0)
    assert committed(storage) == listed(storage) == expected(1)
    assert not storage.list("_staging")


def test_a_stale_run_changes_nothing_that_others_see(tmp_path: Path) -> None:
    def stale() -> None:
        raise InputError("another run has taken over")

    storage = storage_at(str(tmp_path))
    with pytest.raises(InputError, match="taken over"):
        Batches(storage, check=stale).put(0)
    assert (committed(storage), listed(storage)) == ([], [])


def test_a_folder_with_batches_of_another_checkpoint_is_refused_and_not_taken_for_done(tmp_path: Path) -> None:
    storage = storage_at(str(tmp_path))
    Batches(storage, pipeline="first").put(0)
    with pytest.raises(InputError, match="another pipeline, or of a checkpoint that was deleted"):
        Batches(storage, pipeline="second").put(0)
    Batches(storage, pipeline="first").put(0)
    assert committed(storage) == expected(1)


def test_what_version_0_1_wrote_is_committed_as_it_is(tmp_path: Path) -> None:
    for part in range(2):
        old = tmp_path / "batch=000000000" / "to=police" / f"part-{part}.txt"
        old.parent.mkdir(parents=True, exist_ok=True)
        old.write_text("".join(f"0.{part}.{line}\n" for line in range(3)))
    storage = storage_at(str(tmp_path))
    batches = Batches(storage, pipeline="upgraded")
    batches.folder.prepare()
    batches.put(0)
    batches.put(1)
    assert batches.attempts == 1
    assert committed(storage) == listed(storage) == expected(2)


def test_on_an_object_store_the_last_batch_of_version_0_1_is_written_again_since_it_may_lack_files(
    spark: SparkSession, s3: S3
) -> None:
    storage = storage_at(s3.at("old"), spark)
    s3.faults.clear()
    storage.put("batch=000000000/a.txt", "\n".join(expected(1)).encode())
    storage.put("batch=000000001/a.txt", b"1.0.0\n")  # Its rename was cut short.
    batches = Batches(storage)
    batches.folder.prepare()
    batches.put(0)
    batches.put(1)
    assert committed(storage) == listed(storage) == expected(2)
    Batches(storage).folder.prepare()
    assert listed(storage) == expected(2)


def test_many_batches_have_few_records_and_replaced_files_are_gone_from_them(tmp_path: Path) -> None:
    storage = storage_at(str(tmp_path))
    batches = Batches(storage, records_max=4)
    for batch in range(20):
        batches.put(batch)
    assert committed(storage) == expected(20)
    assert len(storage.list("_commits")) < 14
    assert CommitLog(storage).batch(0) is not None, "merged, and still known"
    log, small = CommitLog(storage), [file.name for file in CommitLog(storage).files()][:6]
    storage.put("compacted/one.txt", "".join(f"{line}\n" for line in lines_of(storage, small)).encode())
    first = Commit(number=1, attempt="a", files=[DataFile("compacted/one.txt", 1)], removed=small)
    assert log.add_replacement(first) == first
    assert committed(storage) == expected(20)
    assert log.add_replacement(Commit(number=1, attempt="b", removed=small[:1])) == first, "the first one stays"
    assert committed(storage) == expected(20)


HOSTILE = {
    "../ours.txt": "names '../ours.txt', which is no data file",
    "/etc/passwd": "no data file",
    "batch=000000000/../../ours.txt": "no data file",
    "_commits/000000000.json": "no data file",
    "batch=000000000//x": "no data file",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_record_that_names_files_of_others_is_refused_before_any_is_read_moved_or_deleted(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / "ours.txt").write_text("ours")
    storage = storage_at(str(tmp_path / "out"))
    Batches(storage).put(0)
    for forged in (Commit(number=1, files=[DataFile(name, 1)]), Commit(number=1, attempt="a", removed=[name])):
        for file in ("_commits/000000001.json", "_commits/r000000001.json"):
            storage.put(file, msgspec.json.encode(forged))
            with pytest.raises(InputError, match=HOSTILE[name]):
                CommitLog(storage).files()
            storage.delete(file)
        storage.put("_intents/000000001.json", msgspec.json.encode(forged))
        with pytest.raises(InputError, match=HOSTILE[name]):
            Batches(storage).folder.prepare()
        storage.delete("_intents/000000001.json")
    assert (tmp_path / "ours.txt").read_text() == "ours"
    assert committed(storage) == expected(1)


@pytest.mark.parametrize("attempt", ["..", "../..", "_compaction/../..", "a/b", "batch=000000000", "/"])
def test_an_intent_whose_attempt_is_elsewhere_deletes_nothing(tmp_path: Path, attempt: str) -> None:
    storage = storage_at(str(tmp_path))
    Batches(storage).put(0)
    storage.put("_intents/000000001.json", msgspec.json.encode(Commit(number=1, attempt=attempt)))
    with pytest.raises(InputError, match="is no attempt"):
        Batches(storage).folder.prepare()
    assert committed(storage) == expected(1)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"\xff", b'{"number": "one"}', b'{"number": 1, "files": [{"name": "x", "bytes": -1}]}'],
)
def test_a_damaged_record_is_named(tmp_path: Path, content: bytes) -> None:
    storage = storage_at(str(tmp_path))
    Batches(storage).put(0)
    storage.put("_commits/000000001.json", content)
    with pytest.raises(InputError, match=r"_commits/000000001\.json is damaged"):
        CommitLog(storage).files()
    with pytest.raises(InputError, match=r"_commits/000000001\.json is damaged"):
        Batches(storage).put(1)


def test_what_others_put_beside_the_records_is_left_alone(tmp_path: Path) -> None:
    storage = storage_at(str(tmp_path))
    Batches(storage).put(0)
    for name in ("_commits/README", "_commits/a-b.json", "_commits/000000000 (1).json", "_intents/x", "_staging/x"):
        storage.put(name, b"not ours")
    again = Batches(storage)
    again.folder.prepare()
    again.put(1)
    assert CommitLog(storage).batch(7) is None
    assert committed(storage) == listed(storage) == expected(2)


def test_a_batch_without_rows_is_committed_without_files(tmp_path: Path) -> None:
    storage = storage_at(str(tmp_path))
    CommittedFolder(storage).put(0, lambda folder: None, lambda paths: 0, 0)
    assert [(commit.number, commit.files) for commit in CommitLog(storage).commits()] == [(0, [])]
    assert isinstance(CommitLog(storage).batch(0), Commit)
