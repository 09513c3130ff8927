"""Python workers that are ready when they begin: forked from a process that has loaded Tidings already.

Spark keeps one process per executor that forks its Python workers, and loads nothing into it,
so that each worker loads everything by itself. For Tidings with its libraries this takes two
seconds of a core, for every worker, and again when one has been idle for a minute. Here it is
loaded once, before the first fork, and workers share its memory.

What is loaded must be safe to fork: Arrow's allocators and NumPy's BLAS start threads of their own,
which mend themselves in the child; Numba's kernels have none.

Spark runs this module where `spark.python.daemon.module` names it. `start` sets that for executors in the
driver's own process, which find Tidings where the driver does; on other hosts, the package arrives
later than the process that would load it.
"""

from __future__ import annotations

from importlib import import_module

from pyspark.daemon import manager

LOADED = (
    "pyspark.worker",
    "pandas",  # Arrow asks for it with the first Python list that it is given.
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
