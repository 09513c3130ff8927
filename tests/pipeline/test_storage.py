"""One storage, whatever it is on: a local disk, a Hadoop file system that renames, and S3 with conditional PUTs."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.pipeline.s3_server import S3, serving, teach
from tidings.errors import InputError, SetupError
from tidings.pipeline import match_files
from tidings.pipeline.storage import HadoopStorage, LocalStorage, Location, Storage, copy_folder, storage_at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


ODD = "új [1] {a} 50%25"  # Names are taken as they are: not as URIs, and not as patterns.


@pytest.fixture(scope="module")
def s3(spark: SparkSession) -> Iterator[S3]:
    with serving() as server:
        teach(spark, server)
        yield server


@pytest.fixture(params=["local", "hadoop", "s3"])
def storage(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Storage:
    match request.param:
        case "local":
            return storage_at(str(tmp_path / ODD))
        case "hadoop":  # As on HDFS: a complete file is renamed, unless the name is taken.
            return HadoopStorage(spark, Location(f"file://{tmp_path}/{ODD}"))
        case _:
            s3: S3 = request.getfixturevalue("s3")
            s3.faults.clear()
            return storage_at(s3.at(f"{tmp_path.name}/{ODD}"), spark)


def names(storage: Storage, folder: str = "") -> list[tuple[str, int]]:
    return [(file.name, file.size) for file in storage.list(folder)]


def test_files_are_put_read_listed_moved_copied_and_deleted(storage: Storage) -> None:
    assert storage.read("a/1") is None
    assert storage.list("a") == []
    storage.put("a/1", b"one")
    storage.put("a/b/2", b"second")
    storage.put("a/1", b"first")
    assert storage.read("a/1") == b"first"
    assert names(storage) == [("a/1", 5), ("a/b/2", 6)]
    assert names(storage, "a/b") == [("a/b/2", 6)]
    storage.move("a/b/2", "c/d/2")
    storage.copy("a/1", "e/1")
    copy_folder(storage, "c", "f")
    assert names(storage) == [("a/1", 5), ("c/d/2", 6), ("e/1", 5), ("f/d/2", 6)]
    storage.delete("c")
    storage.delete("a/1")
    storage.delete("none")
    assert names(storage) == [("e/1", 5), ("f/d/2", 6)]
    storage.delete("")
    assert storage.list() == []


def test_a_move_that_was_cut_short_is_completed_and_one_that_was_done_stays_done(storage: Storage) -> None:
    storage.put("source", b"same")
    storage.put("target", b"same")  # Copied, and the source not yet deleted.
    storage.move("source", "target")
    storage.move("source", "target")
    assert names(storage) == [("target", 4)]
    with pytest.raises(SetupError):
        storage.move("source", "elsewhere")


def test_of_many_writers_of_one_name_exactly_one_wins(storage: Storage) -> None:
    contents = [f"writer {number}".encode() for number in range(12)]
    with ThreadPoolExecutor(len(contents)) as pool:
        wins = list(pool.map(lambda content: storage.put_if_absent("claimed", content), contents))
    assert sum(wins) == 1
    assert storage.read("claimed") == contents[wins.index(True)]
    assert not storage.put_if_absent("claimed", b"late")
    assert storage.put_if_absent("claimed", contents[wins.index(True)]), "its own request again, after a lost answer"
    assert [file.name for file in storage.list()] == ["claimed"], "nothing is left beside it"


def test_a_lost_answer_to_a_conditional_put_is_no_lost_claim(spark: SparkSession, s3: S3) -> None:
    storage = storage_at(s3.at("lost"), spark)
    s3.faults.clear()
    s3.faults.loses_answer_of = 1
    assert storage.put_if_absent("claim", b"mine")
    assert storage.read("claim") == b"mine"
    s3.faults.clear()
    s3.faults.fails = 1
    assert storage.put_if_absent("second", b"mine"), "a 500 is tried again"
    s3.faults.clear()
    s3.faults.stops_after = 0
    with pytest.raises(SetupError, match="cannot write to 's3a://lake-.*/lost'"):
        storage.put_if_absent("third", b"mine")
    s3.faults.clear()


def test_a_location_is_a_path_or_a_uri_and_never_a_mixture() -> None:
    assert Location.of("s3a://b/x/").text == "s3a://b/x"
    assert Location.of("file:/data/a%20b").text == "/data/a b"
    assert Location.of("here").text == str(Path("here").absolute())
    assert (Location.of("hdfs:///x").scheme, Location.of("x").scheme) == ("hdfs", "file")
    assert isinstance(storage_at("x"), LocalStorage)
    for wrong in ("s3a:/bucket/x", "s3a:///x", "hdfs:x"):
        with pytest.raises(InputError, match="expected"):
            Location.of(wrong)
    with pytest.raises(InputError, match="needs a Spark session"):
        storage_at("s3a://b/x")


def test_a_store_that_cannot_create_exclusively_is_refused_as_state(spark: SparkSession) -> None:
    with pytest.raises(InputError, match="s3a://, gs://, abfss://"):
        storage_at("ftp://host/x", spark).put_if_absent("a", b"")


@pytest.mark.parametrize(("uri", "helps"), [("s3://b/x", "write s3a://"), ("nosuch://b/x", "give it its jars")])
def test_a_file_system_that_spark_does_not_know_is_told_with_what_helps(
    spark: SparkSession, tmp_path: Path, uri: str, helps: str
) -> None:
    with pytest.raises(SetupError, match=helps):
        storage_at(uri, spark).list()
    with pytest.raises(SetupError, match=helps):
        match_files(spark, uri, str(tmp_path), str(tmp_path / "out"))
