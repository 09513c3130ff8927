"""What the package and the workers load, and when."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pyarrow as pa

from tidings import pipeline
from tidings.pipeline.workers import LOADED

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_workers_are_forked_from_a_process_that_has_loaded_tidings(spark: SparkSession) -> None:
    def parent(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        command = Path(f"/proc/{os.getppid()}/cmdline").read_bytes().decode()
        missing = [name for name in LOADED if name not in sys.modules]
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"command": [command], "missing": [" ".join(missing)]})

    rows = spark.range(0, 2, 1, 2).mapInArrow(parent, "command string, missing string").collect()
    assert [row.missing for row in rows] == ["", ""]
    assert all("tidings.pipeline.workers" in row.command for row in rows)


def test_the_package_loads_the_database_and_the_network_at_first_use() -> None:
    program = (
        "import sys, tidings.pipeline; print(*({'sqlalchemy', 'tidings.net', 'tidings.store'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_every_public_name_is_an_object_and_not_a_module() -> None:
    found = {name: getattr(pipeline, name) for name in pipeline.__all__}
    assert [name for name, value in found.items() if isinstance(value, ModuleType)] == []


def test_the_names_of_version_0_1_keep_working() -> None:
    assert pipeline.Ledger is pipeline.BatchLog
    assert (pipeline.Leases, pipeline.Metered) == (pipeline.NonceLeases, pipeline.BatchMetrics)
