"""How many tasks a step is cut into.

Where the cores are known and stay, they decide. With dynamic allocation Spark may begin with no executor at all, and
over Spark Connect a client does not learn the cores: there the size of the work decides, and Spark asks for executors
by the number of tasks that wait.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from tidings.pipeline.session import is_connect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TEXT_BYTES_PER_TASK = 4 << 20  # Conditions as text: some seconds of parsing.
FILE_BYTES_PER_TASK = 128 << 20
BOXES_PER_PARTITION = 250_000  # About 60 MB of index.
EVENTS_PER_PARTITION = 1_000_000
TASKS_MAX = 4_096


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


def parse_tasks(subscriptions: DataFrame) -> int | None:
    """How many tasks parse conditions, by their bytes, which one pass over them adds up; None if the cores decide."""
    if fixed_cores(subscriptions.sparkSession):
        return None
    total = subscriptions.agg(f.sum(f.octet_length(f.col("filter").cast("string")))).collect()[0][0]
    return tasks_of(total or 0, TEXT_BYTES_PER_TASK)
