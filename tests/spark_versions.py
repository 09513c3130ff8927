"""The short suite on other releases of Spark than the one in requirements.lock.

    python -m tests.spark_versions            all of them
    python -m tests.spark_versions 4.1.4      one

Each release gets a virtual environment in `build`, in which only PySpark differs from the one that runs this. A run
after the first one installs nothing.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[1]
RELEASES = ("4.1.4", "4.2.1")  # The last of each line; 4.3 is in requirements.lock, and all tests run with it.
SUITE = (
    "tests/pipeline/matching/test_match.py::test_both_plans_give_every_pair_of_the_definition_once",
    "tests/pipeline/matching/test_match.py::test_a_stream_of_events_is_matched_the_same_way",
    "tests/pipeline/matching/test_match.py::test_a_column_of_another_type_than_declared_is_told_before_anything_runs",
    "tests/pipeline/matching/test_sql_functions.py",
    "tests/pipeline/test_run.py::test_every_pair_is_delivered_once_and_the_counts_add_up",
    "tests/pipeline/test_match_command.py::test_parquet_in_folders_with_a_declared_type",
    "tests/pipeline/test_match_command.py::test_csv_with_and_without_a_declared_type",
)


def prepared(release: str) -> Path:
    """The Python of the environment for a release."""
    folder = ROOT / "build" / f"spark-{release}"
    python, whole = folder / "bin" / "python", folder / "whole"
    if not whole.exists():
        venv.create(folder, clear=True, symlinks=True)
        (site,) = folder.glob("lib/python*/site-packages")
        (site / "ours.pth").write_text(sysconfig.get_path("purelib"))
        pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
        subprocess.run([*pip, "--no-deps", "--ignore-installed", f"pyspark=={release}"], check=True)
        whole.touch()
    return python


def tested(release: str, python: Path) -> bool:
    """Whether the suite passes."""
    print(f"Spark {release}", flush=True)
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    environment.pop("SPARK_HOME", None)
    check = f"import pyspark; assert pyspark.__version__ == {release!r}, pyspark.__version__"
    subprocess.run([str(python), "-c", check], check=True, env=environment)
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *SUITE]
    return subprocess.run(command, check=False, env=environment, cwd=ROOT).returncode == 0


def main() -> None:
    """Prepares all environments at once, and runs the suite in one after the other."""
    releases = sys.argv[1:] or list(RELEASES)
    with ThreadPoolExecutor() as at_once:
        pythons = list(at_once.map(prepared, releases))
    failed = [release for release, python in zip(releases, pythons) if not tested(release, python)]
    if failed:
        sys.exit(f"the suite fails on Spark {', '.join(failed)}")


if __name__ == "__main__":
    main()
