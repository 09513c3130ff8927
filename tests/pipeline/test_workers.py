"""What the door and the workers load, and when."""

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


def test_the_door_leaves_the_database_and_the_network_until_they_are_asked_for() -> None:
    program = (
        "import sys, tidings.pipeline; print(*({'sqlalchemy', 'tidings.net', 'tidings.store'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_every_name_of_the_door_is_what_it_names_and_not_a_file() -> None:
    found = {name: getattr(pipeline, name) for name in pipeline.__all__}
    assert [name for name, value in found.items() if isinstance(value, ModuleType)] == []
    assert set(pipeline._HOME_OF) <= set(pipeline.__all__)
