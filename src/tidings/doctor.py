"""Checks whether this machine can run Tidings, and says how to fix what is missing.

Every check is a function from a `Machine` to a `CheckResult`. It tries the real thing (runs `java`, writes a file,
starts Spark) and never raises.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path
from typing import TypeAlias

PYTHON_MIN = (3, 11)
JAVA_MIN = 17  # What Spark 4 requires.
PANDAS_BELOW = 3
MEMORY_MIN = 4 << 30  # Spark's driver, its Python workers and the tests side by side.
FREE_SPACE_MIN = 1 << 30  # Spark spills shuffles to disk; the examples stay below a tenth of this.
JAVA_ANSWER_S_MAX = 30
SPARK_START_S_MAX = 180  # A cold start on a slow disk takes a third of this.


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check: `message` says what was found or is wrong, `fix` is the command that fixes it."""

    name: str
    ok: bool
    message: str
    fix: str = ""
    required: bool = True

    @property
    def failed(self) -> bool:
        """Whether Tidings cannot work because of this; an optional check never fails."""
        return self.required and not self.ok


@dataclass(frozen=True, slots=True)
class Machine:
    """What the checks look at: the environment of one process."""

    environ: Mapping[str, str]
    python_version: tuple[int, int, int]
    work: Path
    temp: Path
    memory_files: Path = Path("/")  # The folder that holds `proc` and `sys`.
    memory_min: int = MEMORY_MIN
    free_space_min: int = FREE_SPACE_MIN

    @classmethod
    def here(cls) -> Machine:
        """The environment of this process."""
        temp = Path(os.environ.get("TMPDIR") or tempfile.gettempdir())
        return cls(dict(os.environ), sys.version_info[:3], Path.cwd(), temp)


Check: TypeAlias = Callable[[Machine], CheckResult]


def examine(machine: Machine, *, with_spark: bool = True) -> Iterator[CheckResult]:
    """Runs every check; the slow one, a real start of Spark, comes last and only with `with_spark`."""
    found = {}
    for check in CHECKS:
        result = found[check] = check(machine)
        yield result
    if with_spark:
        unmet = [found[need].name for need in SPARK_NEEDS if found[need].failed]
        yield _not_tried(unmet) if unmet else spark(machine)


def python(machine: Machine) -> CheckResult:
    version = ".".join(map(str, machine.python_version))
    if machine.python_version[:2] >= PYTHON_MIN:
        return CheckResult("python", True, version)
    wanted = ".".join(map(str, PYTHON_MIN))
    fix = "sudo apt-get install -y python3.11 python3.11-venv && rm -rf .venv && make run"
    return CheckResult("python", False, f"expected {wanted} or newer, found {version}", fix)


def java_home(machine: Machine) -> CheckResult:
    """JAVA_HOME, if set, is where Spark looks for Java, whatever else is installed."""
    home = machine.environ.get("JAVA_HOME", "")
    if not home:
        return CheckResult("JAVA_HOME", True, "not set, so Spark uses the java on PATH")
    if _is_program(Path(home, "bin", "java")):
        return CheckResult("JAVA_HOME", True, home)
    return CheckResult("JAVA_HOME", False, f"is {home!r}, where there is no bin/java", "unset JAVA_HOME")


def java(machine: Machine) -> CheckResult:
    """The Java that Spark would start."""
    program = _java_program(machine)
    if program is None:
        return CheckResult("java", False, f"no java found; expected {JAVA_MIN} or newer", _INSTALL_JAVA)
    answer = _run([program, "-version"], machine, JAVA_ANSWER_S_MAX)
    version = re.search(r'version "(?:1\.)?(\d+)([^"]*)"', answer.said)
    if answer.code != 0 or version is None:
        return CheckResult("java", False, f"{program} does not run: {_last_line(answer.said)}", _INSTALL_JAVA)
    if int(version[1]) < JAVA_MIN:
        fix = f"{_INSTALL_JAVA} && export JAVA_HOME=/usr/lib/jvm/java-{JAVA_MIN}-openjdk-$(dpkg --print-architecture)"
        return CheckResult("java", False, f"expected {JAVA_MIN} or newer, found {version[1]} at {program}", fix)
    return CheckResult("java", True, f"{version[1]}{version[2]} at {program}")


def pyspark(machine: Machine) -> CheckResult:
    return _installed("pyspark")


def pandas(machine: Machine) -> CheckResult:
    result = _installed("pandas")
    if result.ok and int(result.message.split(".")[0]) >= PANDAS_BELOW:
        fix = f"{sys.executable} -m pip install 'pandas<{PANDAS_BELOW}'"
        return CheckResult(
            "pandas", False, f"expected below {PANDAS_BELOW}, as Spark does; found {result.message}", fix
        )
    return result


def memory(machine: Machine) -> CheckResult:
    """Free memory, or what is left of the container's limit if that is less."""
    free = _free_memory(machine.memory_files)
    if free is None:
        return CheckResult("memory", True, "unknown on this system", required=False)
    if free >= machine.memory_min:
        return CheckResult("memory", True, f"{_gib(free)} free")
    fix = "close other programs, or give the container more: docker run --memory 6g"
    return CheckResult("memory", False, f"expected {_gib(machine.memory_min)} free, found {_gib(free)}", fix)


def work_folder(machine: Machine) -> CheckResult:
    return _folder("work folder", machine.work, machine.free_space_min, 'cd "$HOME"')


def temp_folder(machine: Machine) -> CheckResult:
    return _folder(
        "temp folder", machine.temp, machine.free_space_min, 'mkdir -p "$HOME/tmp" && export TMPDIR="$HOME/tmp"'
    )


def numba_cache(machine: Machine) -> CheckResult:
    """Numba caches compiled kernels between runs, next to the source or in the user's cache folder."""
    chosen = machine.environ.get("NUMBA_CACHE_DIR")
    home = Path(machine.environ.get("HOME", "/nonexistent"))
    places = (
        [Path(chosen)] if chosen else [Path(__file__).parent / "matching" / "kernels" / "__pycache__", home / ".cache"]
    )
    for place in places:
        if _why_unwritable(_nearest_existing(place)) is None:
            return CheckResult("numba cache", True, str(place))
    message = f"cannot write to {' or '.join(map(str, places))}"
    return CheckResult("numba cache", False, message, 'export NUMBA_CACHE_DIR="$(mktemp -d)"')


def maven(machine: Machine) -> CheckResult:
    program = shutil.which("mvn", path=machine.environ.get("PATH", ""))
    if program:
        return CheckResult("mvn", True, program, required=False)
    return CheckResult("mvn", False, "not found; only Kafka needs it", "sudo apt-get install -y maven", required=False)


def delta(machine: Machine) -> CheckResult:
    return _table_library("delta", "deltalake")


def iceberg(machine: Machine) -> CheckResult:
    return _table_library("iceberg", "pyiceberg")


def _table_library(format: str, library: str) -> CheckResult:
    """The library that reads and commits tables on every Spark; and Spark's own connector, which is optional."""
    found = _installed(library)
    if not found.ok:
        fix = f"{sys.executable} -m pip install 'tidings[{format}]'"
        return CheckResult(format, False, f"{library} is not installed; only such tables need it", fix, required=False)
    return CheckResult(format, True, f"{library} {found.message}; {_spark_connector(format)}", required=False)


def _spark_connector(format: str) -> str:
    try:
        from tidings.pipeline import TableFormat, connector_for

        version = metadata.version("pyspark")
    except ImportError:
        return "Spark is not installed"
    jar = connector_for(TableFormat(format), version)
    return f"Spark {version} can also take {jar}" if jar else f"Spark's own connector does not work on {version} yet"


def spark(machine: Machine) -> CheckResult:
    """Starts Spark in a process of its own, and runs a job that needs a Python worker, too."""
    answer = _run([sys.executable, "-c", _TINY_JOB], machine, SPARK_START_S_MAX)
    if answer.code == 0 and "answer=499500" in answer.said:
        return CheckResult("spark", True, "starts and answers")
    fix = next((fix for sign, fix in _SPARK_FIXES if re.search(sign, answer.said)), "rm -rf .venv && make doctor")
    return CheckResult("spark", False, f"does not start: {_reason(answer.said)}", fix)


CHECKS: tuple[Check, ...] = (
    python,
    java_home,
    java,
    pyspark,
    pandas,
    memory,
    work_folder,
    temp_folder,
    numba_cache,
    maven,
    delta,
    iceberg,
)
SPARK_NEEDS: tuple[Check, ...] = (java_home, java, pyspark, temp_folder)

_INSTALL_JAVA = f"sudo apt-get install -y openjdk-{JAVA_MIN}-jre-headless"

_TINY_JOB = """
import os, sys
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
from pyspark.sql import SparkSession
spark = (SparkSession.builder.master("local[1]").appName("tidings doctor")
         .config("spark.ui.enabled", "false").config("spark.log.level", "ERROR").getOrCreate())
rows = spark.range(1000).mapInArrow(lambda batches: batches, "id long")
print("answer=%d" % rows.groupBy().sum("id").first()[0])
spark.stop()
"""


# Signs in the output of a failed start, and the fix for each; the first sign found counts.
_SPARK_FIXES = (
    (r"ModuleNotFoundError|PYTHON_VERSION_MISMATCH|Cannot run program", f"export PYSPARK_PYTHON={sys.executable}"),
    (r"UnknownHostException|BindException|Can't assign requested address", "export SPARK_LOCAL_IP=127.0.0.1"),
    (r"OutOfMemoryError|insufficient memory", "export SPARK_DRIVER_MEMORY=1g"),
)


@dataclass(frozen=True, slots=True)
class _Answer:
    code: int
    said: str


def _run(command: list[str], machine: Machine, seconds_max: int) -> _Answer:
    """A program's output on both streams; if it cannot run, the reason instead."""
    try:
        done = subprocess.run(
            command,
            env=dict(machine.environ),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            timeout=seconds_max,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return _Answer(-1, f"no answer in {seconds_max} s")
    except OSError as error:
        return _Answer(-1, str(error.strerror))
    return _Answer(done.returncode, done.stdout.decode(errors="replace"))


def _java_program(machine: Machine) -> str | None:
    home_java = Path(machine.environ.get("JAVA_HOME", ""), "bin", "java")
    if machine.environ.get("JAVA_HOME") and _is_program(home_java):
        return str(home_java)
    return shutil.which("java", path=machine.environ.get("PATH", ""))


def _is_program(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _installed(package: str) -> CheckResult:
    """Whether the package can be found and imported, by its installed version."""
    try:
        version = metadata.version(package)
        if util.find_spec(package) is None:
            raise metadata.PackageNotFoundError(package)
    except metadata.PackageNotFoundError:
        fix = f"{sys.executable} -m pip install --require-hashes -r requirements.lock"
        return CheckResult(package, False, "not installed for this Python", fix)
    return CheckResult(package, True, version)


def _not_tried(unmet: list[str]) -> CheckResult:
    return CheckResult(
        "spark", False, f"not tried: it needs {', '.join(unmet)}", "fix that first, then: tidings doctor"
    )


def _free_memory(root: Path) -> int | None:
    free = [bytes_free for bytes_free in (_machine_memory(root), _container_memory(root)) if bytes_free is not None]
    return min(free, default=None)


def _machine_memory(root: Path) -> int | None:
    try:
        found = re.search(r"^MemAvailable:\s+(\d+) kB", (root / "proc/meminfo").read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) << 10 if found else None


def _container_memory(root: Path) -> int | None:
    try:
        limit, used = ((root / "sys/fs/cgroup" / name).read_text().strip() for name in ("memory.max", "memory.current"))
    except OSError:
        return None
    return None if limit == "max" else int(limit) - int(used)


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB"


def _folder(name: str, folder: Path, free_min: int, fix: str) -> CheckResult:
    reason = _why_unwritable(folder)
    if reason is not None:
        return CheckResult(name, False, f"cannot write to {folder}: {reason}", fix)
    free = shutil.disk_usage(folder).free
    if free < free_min:
        return CheckResult(name, False, f"expected {_gib(free_min)} free in {folder}, found {_gib(free)}", fix)
    return CheckResult(name, True, f"{folder}, {_gib(free)} free")


def _why_unwritable(folder: Path) -> str | None:
    """Tries with a real file: permission bits do not show read-only mounts, and do not stop root."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"tidings")
    except OSError as error:
        return error.strerror or str(error)
    return None


def _nearest_existing(path: Path) -> Path:
    return next(p for p in (path, *path.parents) if p.exists())


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no output"


def _reason(text: str) -> str:
    """The most informative line of a Spark log: the first error that is not a heading, else the last line."""
    errors = re.findall(r"^[\w.]*(?:Error|Exception)\b: .*(?<!last\):)$", text, re.MULTILINE)
    return errors[0].strip() if errors else _last_line(text)
