"""A folder is on every host once, and errors of Spark become our own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tidings.errors import InputError, SetupError, TidingsError
from tidings.pipeline import parse_settings
from tidings.pipeline.matching.index_distribution import KEPT_S_MAX, folder_digest, remove_stale, unpack
from tidings.pipeline.preflight import SMALL_BYTES, is_small
from tidings.pipeline.session import _java_options, spark_error, zipped_package

CONTENT = {"index/numbers.bin": b"\x00\x01", "subscribers.arrow": b"names"}


def test_a_host_unpacks_a_folder_whole_and_the_second_worker_finds_it(tmp_path: Path) -> None:
    for _ in range(2):
        unpack(CONTENT.items(), tmp_path / "abc")
        assert (tmp_path / "abc" / "index" / "numbers.bin").read_bytes() == b"\x00\x01"
    assert [path.name for path in tmp_path.iterdir()] == ["abc"]


def test_a_disk_that_refuses_leaves_no_half_of_a_folder(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="Is a directory"):
        unpack([("index/a", b""), ("index", b"a file where a folder is")], tmp_path / "abc")
    assert list(tmp_path.iterdir()) == []


def test_folders_that_nobody_opened_for_a_day_are_deleted(tmp_path: Path) -> None:
    for name, age_s in (("old", KEPT_S_MAX + 60), ("new", 60)):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (time.time() - age_s,) * 2)
    remove_stale(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


def test_equal_folders_have_equal_names_and_others_not(tmp_path: Path) -> None:
    for name, text in (("a", "x"), ("b", "x"), ("c", "y")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(text)
    a, b, c = (folder_digest(tmp_path / name) for name in "abc")
    assert a == b != c


def test_the_package_travels_in_a_zip_and_unpacks_itself_once(tmp_path: Path) -> None:
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import tidings, tidings.filters; print(tidings.filters.__file__)"
    )
    environment = {"TMPDIR": str(tmp_path), "PATH": os.environ["PATH"]}
    command = [sys.executable, "-c", program, str(zipped_package())]
    first, second = (subprocess.run(command, env=environment, capture_output=True, text=True, check=True) for _ in "12")
    assert first.stdout == second.stdout
    assert first.stdout.startswith(f"{tmp_path}/tidings-package-")
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    ("said", "error", "ours"),
    [
        ("x\njava.io.IOException: No space left on device", SetupError, "the disk is full"),
        ("java.io.FileNotFoundException: /out/x (Permission denied)", SetupError, "no permission"),
        ("[FAILED_READ_FILE.NO_HINT] Encountered error while reading file a.parquet", InputError, "damaged"),
        ("something else\nSomeException: odd", SetupError, "Spark failed: SomeException: odd"),
    ],
)
def test_what_spark_says_becomes_one_line_of_ours(said: str, error: type[TidingsError], ours: str) -> None:
    wrong = spark_error(RuntimeError(said))
    assert isinstance(wrong, error)
    assert ours in str(wrong)
    assert len(str(wrong).splitlines()) == 1


def test_settings_are_keys_of_spark_with_values() -> None:
    assert parse_settings(["spark.a=b=c"]) == {"spark.a": "b=c"}
    for wrong in ("spark.a", "a=b"):
        with pytest.raises(InputError, match="spark.key=value"):
            parse_settings([wrong])


def test_a_brief_job_has_a_java_that_compiles_quickly_unless_somebody_has_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARK_SUBMIT_OPTS", raising=False)
    with _java_options("-Xint"):
        assert os.environ["SPARK_SUBMIT_OPTS"] == "-Xint"
    assert "SPARK_SUBMIT_OPTS" not in os.environ
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-Xmx1g")
    with _java_options("-Xint"):
        assert os.environ["SPARK_SUBMIT_OPTS"] == "-Xmx1g"
    small, large = tmp_path / "small.jsonl", tmp_path / "large"
    small.write_text("{}")
    large.mkdir()
    with (large / "events.parquet").open("wb") as file:
        file.truncate(SMALL_BYTES)
    assert is_small(str(small))
    assert not is_small(str(small), str(large))
