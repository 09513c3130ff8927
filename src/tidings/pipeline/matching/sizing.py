"""How many tasks a step is cut into, and how large an index may be.

Where the cores are known and stay, they decide. With dynamic allocation Spark may begin with no executor at all, and
over Spark Connect a client does not learn the cores: there the size of the work decides, and Spark asks for executors
by the number of tasks that wait.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from tidings.errors import InputError
from tidings.pipeline.session import is_connect, is_local

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TEXT_BYTES_PER_TASK = 4 << 20  # Conditions as text: some seconds of parsing.
FILE_BYTES_PER_PARSE = 16 << 20  # Of a table of conditions in a file, where they may be packed ten times as dense.
UNKNOWN_BYTES = 1 << 50  # Spark's estimate where it has none is larger.
FILE_BYTES_PER_TASK = 128 << 20
BOXES_PER_PARTITION = 250_000  # About 60 MB of index.
EVENTS_PER_PARTITION = 1_000_000
TASKS_MAX = 4_096

INDEX_BOXES_SETTING = "spark.tidings.indexBoxesMax"
INDEX_BOXES_MAX = 4_000_000  # Where an executor's memory does not say less: about a gigabyte of index.
BOX_BYTES = 256  # Of an index, with the subscription's id and subscriber.
INDEX_SHARE = 0.5  # Of an executor's memory: all its workers map one copy, beside Spark and their own batches.
_OVERHEAD_SHARE, _OVERHEAD_MIN = 0.1, 384 << 20  # What Spark adds to an executor's memory, by default.


@dataclass(frozen=True, slots=True)
class IndexLimit:
    """How many boxes one index may have, and what says so."""

    boxes: int
    by: str

    def __str__(self) -> str:
        return f"{self.boxes:,} at most, by {self.by}"


def index_limit(spark: SparkSession) -> IndexLimit:
    """What an executor can hold; the setting `spark.tidings.indexBoxesMax` counts more."""
    given = spark.conf.get(INDEX_BOXES_SETTING, None)
    if given is not None:
        if not given.isdigit() or given == "0":
            raise InputError(f"{INDEX_BOXES_SETTING}: expected a number of boxes, got {given!r}")
        return IndexLimit(int(given), INDEX_BOXES_SETTING)
    if is_local(spark):  # Executor and driver are one process, and the machine's memory is theirs.
        return IndexLimit(INDEX_BOXES_MAX, "default")
    memory = str(spark.conf.get("spark.executor.memory", "1g"))
    overhead = spark.conf.get("spark.executor.memoryOverhead", None)
    return IndexLimit(boxes_within(memory, overhead), f"executors of {memory}")


def boxes_within(memory: str, overhead: str | None = None) -> int:
    """The boxes that an executor of this memory should hold, in Spark's notation.

    >>> boxes_within("1g"), boxes_within("512m", "128m"), boxes_within("16g")
    (2883584, 1310720, 4000000)
    """
    heap = bytes_of(memory, 1)
    beside = bytes_of(overhead, 1 << 20) if overhead else max(int(_OVERHEAD_SHARE * heap), _OVERHEAD_MIN)
    return max(1, min(INDEX_BOXES_MAX, int(INDEX_SHARE * (heap + beside)) // BOX_BYTES))


def bytes_of(size: str, unit: int) -> int:
    """A size as Spark writes it; a number without a unit counts in `unit` bytes. What nobody understands is a gigabyte.

    >>> bytes_of("2g", 1), bytes_of("384", 1 << 20), bytes_of("1 TB", 1)
    (2147483648, 402653184, 1099511627776)
    """
    found = re.fullmatch(r"\s*(\d+)\s*([kmgtp]?)i?b?\s*", size.lower())
    if found is None:
        return 1 << 30
    return int(found[1]) * (1 << 10 * (" kmgtp".index(found[2])) if found[2] else unit)


def fixed_cores(spark: SparkSession) -> int | None:
    """The cores of all executors; None if their number changes or is not known."""
    if is_connect(spark) or spark.sparkContext.getConf().get("spark.dynamicAllocation.enabled", "false") == "true":
        return None
    return spark.sparkContext.defaultParallelism


def tasks_of(amount: int, per_task: int) -> int:
    """One at least, and a bounded number however large the work is.

    >>> tasks_of(0, 10), tasks_of(31, 10), tasks_of(10**12, 10)
    (1, 4, 4096)
    """
    return max(1, min(math.ceil(amount / per_task), TASKS_MAX))


def zone_partitions(spark: SparkSession, boxes: int, events: int, per_core: int) -> int:
    """Partitions of the plan "meet in zones": enough for every core, and none too large for a worker."""
    by_size = max(tasks_of(boxes, BOXES_PER_PARTITION), tasks_of(events, EVENTS_PER_PARTITION))
    return max(by_size, per_core * (fixed_cores(spark) or 1))


def parse_tasks(subscriptions: DataFrame) -> int:
    """How many tasks parse conditions: one for each core, where these are fixed, and more where the table is large.

    Elsewhere the bytes of the conditions decide, which one pass over them adds up.
    """
    cores = fixed_cores(subscriptions.sparkSession)
    if cores:
        return max(cores, tasks_of(_estimated_bytes(subscriptions), FILE_BYTES_PER_PARSE))
    total = subscriptions.agg(f.sum(f.octet_length(f.col("filter").cast("string")))).collect()[0][0]
    return tasks_of(total or 0, TEXT_BYTES_PER_TASK)


def _estimated_bytes(rows: DataFrame) -> int:
    """What Spark's optimiser says of the size: of files the bytes on disk. Where it knows nothing, nothing."""
    found = int(str(rows._jdf.queryExecution().optimizedPlan().stats().sizeInBytes()))
    return found if found < UNKNOWN_BYTES else 0
