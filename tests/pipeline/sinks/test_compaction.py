"""`tidings compact`: fewer files, the same deliveries, however it is interrupted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.pipeline.commands import tidings
from tidings.errors import InputError
from tidings.pipeline import compact_deliveries, list_deliveries, read_deliveries
from tidings.pipeline.sinks.committed_folder import Commit, CommitLog, CommittedFolder, DataFile
from tidings.pipeline.sinks.compaction import Compaction
from tidings.pipeline.sinks.files import FileSink
from tidings.pipeline.storage import storage_at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def batch_of(number: int) -> pa.Table:
    names = [f"org{at % 3}" for at in range(6)]
    columns = {"delivery_id": [f"{number}-{at}" for at in range(6)], "event_id": [f"e{number}"] * 6}
    return pa.table({**columns, "subscription_id": ["s"] * 6, "subscriber": names})


def put_batches(folder: Path, count: int, first: int = 0) -> None:
    """Batches as the sink commits them, two files each, without a Spark job for each."""
    sink = CommittedFolder(storage_at(str(folder)))
    sink.prepare()
    for number in range(first, first + count):
        rows = batch_of(number)

        def write(to: str, rows: pa.Table = rows) -> None:
            Path(to).mkdir(parents=True)
            for at in range(2):
                pq.write_table(rows.slice(3 * at, 3), f"{to}/part-{at}-{rows.column(0)[0]}.parquet")

        sink.put(number, write, lambda paths: sum(pq.read_metadata(path).num_rows for path in paths), rows.num_rows)


def committed(folder: Path) -> Counter[str]:
    return Counter(read_deliveries(str(folder)).to_table().column("delivery_id").to_pylist())


def listed(folder: Path) -> Counter[str]:
    """What a reader sees that knows of no commits: all files but hidden ones."""
    files = [file for file in folder.glob("*/*.parquet") if not file.parent.name.startswith("_")]
    return Counter(id for file in files for id in pq.read_table(file).column("delivery_id").to_pylist())


def expected(count: int) -> Counter[str]:
    return Counter(f"{number}-{at}" for number in range(count) for at in range(6))


def test_small_files_are_merged_and_sorted_by_subscriber_and_large_ones_stay(
    spark: SparkSession, tmp_path: Path
) -> None:
    put_batches(tmp_path / "out", 5)
    done = tidings("compact", str(tmp_path / "out"), "-o", "json")
    assert done.code == 0, done.said
    assert '"files before": 10, "files after": 1' in done.out
    assert committed(tmp_path / "out") == listed(tmp_path / "out") == expected(5)
    (file,) = [file for file in (tmp_path / "out").glob("*/*.parquet") if not file.parent.name.startswith("_")]
    names = pq.read_table(file).column("subscriber").to_pylist()
    assert names == sorted(names)
    assert not list((tmp_path / "out/_compaction").iterdir())
    put_batches(tmp_path / "out", 2, first=5)
    later = compact_deliveries(spark, str(tmp_path / "out"), file_bytes=2 * file.stat().st_size - 2)
    assert later.after < later.before
    assert file.exists()
    assert committed(tmp_path / "out") == listed(tmp_path / "out") == expected(7)


@pytest.mark.parametrize(
    "attempt", ["", "a", "batch=000000000", "_staging", "_compaction", "_compaction/..", "_compaction/x"]
)
def test_an_intent_that_somebody_else_put_there_deletes_nothing(tmp_path: Path, attempt: str) -> None:
    put_batches(tmp_path / "out", 2)
    (tmp_path / "ours").write_text("ours")
    storage = storage_at(str(tmp_path / "out"))
    forged = Commit(number=1, attempt=attempt, removed=["../ours"])
    storage.put("_compaction/000000001.json", msgspec.json.encode(forged))
    with pytest.raises(InputError, match=r"_compaction/000000001\.json"):
        Compaction(None, storage).finish_others()  # type: ignore[arg-type]
    assert (tmp_path / "ours").exists()
    assert committed(tmp_path / "out") == expected(2)


class Killed(BaseException):
    """Ends a compaction where it stands."""


@pytest.mark.parametrize("step", range(9))
def test_a_compaction_that_is_killed_at_any_step_is_finished_by_the_next(
    spark: SparkSession, tmp_path: Path, step: int
) -> None:
    put_batches(tmp_path / "out", 3)
    storage = storage_at(str(tmp_path / "out"))
    compaction = Compaction(spark, storage)
    compaction.write = staged(compaction)  # type: ignore[method-assign,assignment]
    steps = 0

    def dying(name: str) -> Callable[..., Any]:
        real = getattr(storage, name)

        def call(*given: Any) -> Any:
            nonlocal steps
            if steps == step:
                raise Killed
            steps += 1
            return real(*given)

        return call

    for name in ("put_if_absent", "move", "delete"):
        setattr(storage, name, dying(name))
    with pytest.raises(Killed):
        compaction.run()
    assert committed(tmp_path / "out") == expected(3)
    put_batches(tmp_path / "out", 1, first=3)
    again = Compaction(spark, storage_at(str(tmp_path / "out")))
    again.write = staged(again)  # type: ignore[method-assign,assignment]
    again.run()
    assert committed(tmp_path / "out") == listed(tmp_path / "out") == expected(4)


def staged(compaction: Compaction) -> Callable[[Sequence[DataFile]], Commit]:
    """Merges as Spark does, without starting a job for each step of the test."""

    def write(files: Sequence[DataFile]) -> Commit:
        root = Path(compaction.storage.root.text)
        number = 1 + max((commit.number for commit in compaction.log.commits() if commit.removed), default=0)
        attempt = f"_compaction/{number:09}-test"
        (root / attempt).mkdir(parents=True, exist_ok=True)
        target = root / attempt / f"part-{number}.parquet"
        pq.write_table(pa.concat_tables(pq.read_table(root / file.name, partitioning=None) for file in files), target)
        last = max(file.name.partition("/")[0] for file in files)
        merged = DataFile(f"{last}/part-{number}.parquet", target.stat().st_size)
        return Commit(number=number, attempt=attempt, files=[merged], removed=[file.name for file in files])

    return write


def test_two_compactions_at_once_lose_and_double_nothing(spark: SparkSession, tmp_path: Path) -> None:
    put_batches(tmp_path / "out", 3)
    slow, fast = (Compaction(spark, storage_at(str(tmp_path / "out"))) for _ in range(2))
    merge = staged(fast)

    def overtaken(files: Sequence[DataFile]) -> Commit:
        """While the slow one writes, the fast one does it all."""
        intent = staged(slow)(files)
        fast.write = merge  # type: ignore[method-assign,assignment]
        fast.run()
        slow.write = staged(slow)  # type: ignore[method-assign,assignment]
        return intent

    slow.write = overtaken  # type: ignore[method-assign]
    slow.run()
    assert committed(tmp_path / "out") == listed(tmp_path / "out") == expected(3)
    files = [pq.read_table(file) for file in list_deliveries(str(tmp_path / "out"))]
    assert Counter(id for file in files for id in file.column("delivery_id").to_pylist()) == expected(3)


@pytest.mark.parametrize("format", ["json", "parquet"])
def test_folders_by_subscriber_stay_so_and_no_name_of_one_stops_a_batch(
    spark: SparkSession, tmp_path: Path, format: str
) -> None:
    hostile = [None, "", "__HIVE_DEFAULT_PARTITION__", "../é [1]/{*}", "x" * 300, "org0"]
    sink = FileSink(spark, str(tmp_path / "o [1]"), format, by_subscriber=True)
    sink.prepare()
    for number in range(2):
        rows = batch_of(number).set_column(3, "subscriber", pa.array(hostile))
        sink.put(spark.createDataFrame(rows), number)
    assert compact_deliveries(spark, str(tmp_path / "o [1]")).after == 4
    names = {file.name.split("/")[1] for file in CommitLog(storage_at(str(tmp_path / "o [1]"))).files()}
    long = "to=" + "x" * 30 + "~"
    assert {name[:34] for name in names} == {
        "to=__HIVE_DEFAULT_PARTITION__",
        "to=..%2Fé %5B1%5D%2F%7B%2A}",
        long,
        "to=org0",
    }
    rows = read_deliveries(spark, str(tmp_path / "o [1]")).collect()
    assert Counter(row.delivery_id for row in rows) == expected(2)
    assert {row.subscriber for row in rows} == set(hostile)


def test_a_folder_without_commit_records_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no commit records"):
        compact_deliveries(spark, str(tmp_path))
