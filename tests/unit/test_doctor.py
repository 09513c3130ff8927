"""Each check is shown a machine that really lacks the thing: a folder, a program or a variable, never a mock."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tidings import doctor
from tidings.doctor import Machine

READ_ONLY = Path("/proc")  # Nobody can make a file here, not even root.


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return replace(Machine.here(), work=tmp_path, temp=tmp_path)


def with_environ(machine: Machine, **changed: str) -> Machine:
    return replace(machine, environ={**machine.environ, **changed})


def program(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_a_machine_that_runs_the_tests_has_nothing_to_fix_but_options(machine: Machine) -> None:
    found = list(doctor.examine(replace(machine, memory_min=1, free_space_min=1), with_spark=False))
    assert [result for result in found if result.failed] == []
    assert len({result.name for result in found}) == len(found) == len(doctor.CHECKS)


def test_what_fails_says_why_and_what_fixes_it(machine: Machine) -> None:
    nothing_works = replace(
        machine,
        environ={"PATH": "/nonexistent", "JAVA_HOME": "/nonexistent", "NUMBA_CACHE_DIR": str(READ_ONLY)},
        python_version=(3, 9, 0),
        work=READ_ONLY,
        temp=READ_ONLY,
        memory_min=1 << 60,
    )
    failed = [result for result in doctor.examine(nothing_works) if result.failed]
    names = ["python", "JAVA_HOME", "java", "memory", "work folder", "temp folder", "numba cache", "spark"]
    assert [result.name for result in failed] == names
    assert all(result.message and result.fix for result in failed)
    assert not any("\n" in result.message + result.fix for result in failed)


def test_an_old_python_is_named(machine: Machine) -> None:
    found = doctor.python(replace(machine, python_version=(3, 10, 4)))
    assert found.failed
    assert found.message == "expected 3.11 or newer, found 3.10.4"


def test_a_java_home_without_java_is_a_fault_even_when_java_is_on_the_path(machine: Machine, tmp_path: Path) -> None:
    found = doctor.java_home(with_environ(machine, JAVA_HOME=str(tmp_path)))
    assert found.failed
    assert str(tmp_path) in found.message
    assert found.fix == "unset JAVA_HOME"


def test_java_home_comes_before_the_path(machine: Machine, tmp_path: Path) -> None:
    at_home = program(tmp_path / "bin" / "java", """echo 'openjdk version "21.0.2" 2024-01-16' >&2""")
    here = with_environ(machine, JAVA_HOME=str(tmp_path))
    assert doctor.java_home(here).ok
    assert doctor.java(here).message == f"21.0.2 at {at_home}"


def test_no_java_on_the_path_is_found_missing(machine: Machine, tmp_path: Path) -> None:
    found = doctor.java(replace(machine, environ={"PATH": str(tmp_path)}))
    assert found.failed
    assert "no java found" in found.message
    assert "openjdk-17" in found.fix


@pytest.mark.parametrize(("said", "major"), [('java version "1.8.0_392"', "8"), ('openjdk version "11.0.21"', "11")])
def test_a_java_too_old_for_spark_is_named(machine: Machine, tmp_path: Path, said: str, major: str) -> None:
    program(tmp_path / "java", f"echo '{said}' >&2")
    found = doctor.java(replace(machine, environ={"PATH": str(tmp_path)}))
    assert found.failed
    assert f"expected 17 or newer, found {major} " in found.message


def test_a_java_that_cannot_run_says_so(machine: Machine, tmp_path: Path) -> None:
    program(tmp_path / "java", "echo 'libjvm.so is missing' >&2; exit 127")
    found = doctor.java(replace(machine, environ={"PATH": str(tmp_path)}))
    assert found.failed
    assert "libjvm.so is missing" in found.message


def test_a_java_that_is_no_program_says_so(machine: Machine, tmp_path: Path) -> None:
    program(tmp_path / "java", "").write_bytes(b"\x7fELF but not really")
    assert doctor.java(replace(machine, environ={"PATH": str(tmp_path)})).failed


def test_too_little_memory_is_told_in_gibibytes(machine: Machine) -> None:
    found = doctor.memory(replace(machine, memory_min=1 << 50))
    assert found.failed
    assert found.message.startswith("expected 1048576.0 GiB free, found ")


def test_a_container_with_a_small_share_counts_as_a_small_machine(machine: Machine, tmp_path: Path) -> None:
    share = tmp_path / "sys/fs/cgroup"
    share.mkdir(parents=True)
    (share / "memory.max").write_text(f"{3 << 30}\n")
    (share / "memory.current").write_text(f"{1 << 30}\n")
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 99 kB\nMemAvailable:   67108864 kB\n")
    found = doctor.memory(replace(machine, memory_files=tmp_path))
    assert found.failed
    assert found.message == "expected 4.0 GiB free, found 2.0 GiB"


def test_a_container_without_a_limit_has_the_whole_machine(machine: Machine, tmp_path: Path) -> None:
    share = tmp_path / "sys/fs/cgroup"
    share.mkdir(parents=True)
    (share / "memory.max").write_text("max\n")
    (share / "memory.current").write_text("1\n")
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemAvailable:   67108864 kB\n")
    assert doctor.memory(replace(machine, memory_files=tmp_path)).message == "64.0 GiB free"


@pytest.mark.parametrize("folder", [READ_ONLY, Path("/nonexistent")])
def test_a_folder_that_cannot_be_written_is_found_out(machine: Machine, folder: Path) -> None:
    work, temp = (
        doctor.work_folder(replace(machine, work=folder)),
        doctor.temp_folder(replace(machine, temp=folder)),
    )
    assert work.failed
    assert temp.failed
    assert f"cannot write to {folder}" in work.message
    assert "TMPDIR" in temp.fix


def test_a_full_disk_is_found_out(machine: Machine) -> None:
    found = doctor.work_folder(replace(machine, free_space_min=1 << 60))
    assert found.failed
    assert "found" in found.message


def test_a_numba_cache_that_cannot_be_written_is_found_out(machine: Machine) -> None:
    found = doctor.numba_cache(with_environ(machine, NUMBA_CACHE_DIR=str(READ_ONLY / "cache")))
    assert found.failed
    assert "NUMBA_CACHE_DIR" in found.fix


def test_a_missing_maven_is_a_note_and_no_failure(machine: Machine, tmp_path: Path) -> None:
    found = doctor.maven(replace(machine, environ={"PATH": str(tmp_path)}))
    assert not found.ok
    assert not found.failed
    assert "Kafka" in found.message


def test_spark_is_not_tried_without_java(machine: Machine, tmp_path: Path) -> None:
    *_, last = doctor.examine(replace(machine, environ={"PATH": str(tmp_path)}))
    assert last.failed
    assert last.message == "not tried: it needs java"


def run_doctor(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """The real command, in the surroundings named."""
    command = [sys.executable, "-m", "tidings", "doctor", *arguments]
    return subprocess.run(command, env={**os.environ, **environ}, capture_output=True, text=True, check=False)


def line_of(name: str, output: str) -> str:
    return next(line for line in output.splitlines() if name in line.split()[1:2])


def test_a_pandas_that_spark_cannot_use_is_found_out(tmp_path: Path) -> None:
    newer = tmp_path / "pandas-3.0.1.dist-info"
    newer.mkdir()
    (newer / "METADATA").write_text("Metadata-Version: 2.1\nName: pandas\nVersion: 3.0.1\n")
    done = run_doctor("--no-spark", PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    assert line_of("pandas", done.stdout).startswith("FAIL")
    assert "pandas<3" in line_of("pandas", done.stdout)


def test_a_wrong_java_home_makes_the_command_fail_with_one_line_and_no_stack_trace() -> None:
    done = run_doctor("--no-spark", JAVA_HOME="/nonexistent")
    assert done.returncode == 1
    assert line_of("JAVA_HOME", done.stdout).endswith("to fix: unset JAVA_HOME")
    assert "Traceback" not in done.stdout + done.stderr
    assert len(done.stdout.splitlines()) == len(doctor.CHECKS)


@pytest.mark.spark
def test_spark_starts_and_answers(machine: Machine) -> None:
    found = doctor.spark(machine)
    assert found.ok, found.message


@pytest.mark.spark
def test_spark_workers_without_our_libraries_are_found_out_with_what_fixes_them(machine: Machine) -> None:
    found = doctor.spark(with_environ(machine, PYSPARK_PYTHON="/nonexistent/python"))
    assert found.failed
    assert "/nonexistent/python" in found.message
    assert found.fix == f"export PYSPARK_PYTHON={sys.executable}"
