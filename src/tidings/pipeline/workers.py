"""The daemon that forks Spark's Python workers, with Tidings already loaded.

Spark runs one daemon process per executor, which forks the Python workers. Spark's own daemon loads no libraries,
so each worker has to load them by itself. For Tidings and its dependencies that takes two seconds of a core, for
every worker, and again after a worker has been idle for a minute. This daemon loads them once, before the first
fork, and workers share the memory.

What it loads must be safe to fork: Arrow's allocators and NumPy's BLAS have threads of their own, which
recover in the child process; Numba's kernels have none.

Spark runs this module if `spark.python.daemon.module` names it. `start` sets that for local executors, which find
Tidings where the driver does. On other hosts the package arrives after the daemon has started.
"""

from __future__ import annotations

from importlib import import_module

from pyspark.daemon import manager

LOADED = (
    "pyspark.worker",
    "pandas",  # Arrow imports it when it converts its first Python list.
    "pyarrow.parquet",
    "tidings.pipeline.matching.direct_parquet",
    "tidings.pipeline.security.step",
    "tidings.pipeline.matching.batch_step",
    "tidings.pipeline.matching.partitioned",
)

if __name__ == "__main__":
    for name in LOADED:
        import_module(name)
    manager()
