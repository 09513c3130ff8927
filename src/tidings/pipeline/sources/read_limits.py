"""How much of a stream a batch reads: Spark's interface for Python sources, which it has from 4.2 on."""

from __future__ import annotations

from pyspark import __version__

from tidings.errors import SetupError

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxFiles,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
except ImportError:
    raise SetupError(
        f"tables as streams, and brokers, need PySpark 4.2 or newer; this is {__version__}\n"
        "try: pip install 'pyspark>=4.2'"
    ) from None

__all__ = ["ReadAllAvailable", "ReadLimit", "ReadMaxFiles", "ReadMaxRows", "SupportsTriggerAvailableNow"]
