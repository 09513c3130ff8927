"""Files as Python workers open them: local ones, and objects in S3, without passing through Spark's JVM.

A worker has no JVM to ask, so it opens objects with Arrow's own S3 client. `WorkerFiles` says how (`s3_settings`).
Where it cannot say what Spark was told, as with a credentials provider of the user's own or with keys for encryption,
the work goes through Spark instead.

Keys travel to the workers with the task, as they do in the configuration that Spark itself sends with every task. Roles
of a machine and keys in the environment stay where they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq

from tidings.errors import InputError
from tidings.pipeline.s3_settings import S3Settings
from tidings.pipeline.storage import REQUESTS_AT_ONCE, Location

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# By default, Arrow takes the timestamps of INT96 for nanoseconds, of which 64 bits end in 2262: the year 9999, which
# often stands for "never", becomes 1816 without a word.
AS_SPARK: Mapping[str, Any] = {"coerce_int96_timestamp_unit": "us"}


@dataclass(frozen=True, slots=True)
class WorkerFiles:
    """How to open the files of these buckets; local files need nothing. Small to pickle."""

    buckets: tuple[tuple[str, tuple[tuple[str, Any], ...]], ...] = ()

    @classmethod
    def of(cls, spark: SparkSession, locations: Iterable[Location]) -> WorkerFiles | None:
        """For files below these locations; None if a worker cannot open all of them."""
        remote = {location.text.split("/")[2]: location.scheme for location in locations if not location.is_local}
        found = {bucket: _arrow_options(spark, bucket) for bucket, scheme in remote.items() if scheme == "s3a"}
        if len(found) < len(remote) or None in found.values():
            return None
        return cls(tuple((bucket, tuple(sorted((options or {}).items()))) for bucket, options in found.items()))

    def footers(self, files: list[Location]) -> list[Any]:
        """The metadata of Parquet files. Raises InputError for a damaged one."""
        with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
            return list(pool.map(self._footer, files))

    def open_parquet(self, file: Location) -> pq.ParquetFile:
        if file.is_local:
            return pq.ParquetFile(file.text, memory_map=True, **AS_SPARK)
        system, path = self._system(file)
        return pq.ParquetFile(path, filesystem=system, pre_buffer=True, **AS_SPARK)

    def create(self, file: Location) -> Any:
        """A new file, to be written from its beginning. An object appears when it is closed."""
        system, path = self._system(file)
        return system.open_output_stream(path)

    def _footer(self, file: Location) -> Any:
        try:
            with self.open_parquet(file) as opened:
                return opened.metadata
        except (pa.ArrowInvalid, OSError) as wrong:
            raise damaged(file, wrong) from None

    def _system(self, file: Location) -> tuple[Any, str]:
        if file.is_local:
            return pa.fs.LocalFileSystem(), file.text
        path = file.text.partition("://")[2]
        return _s3(dict(self.buckets)[path.partition("/")[0]]), path


def damaged(file: Location, wrong: Exception) -> InputError:
    return InputError(f"{file}: the file is damaged, or no Parquet: {str(wrong).splitlines()[0][:200]}")


@lru_cache(maxsize=16)
def _s3(options: tuple[tuple[str, Any], ...]) -> Any:
    """One client for all buckets of the same settings, in each worker process."""
    return pa.fs.S3FileSystem(**dict(options))


def _arrow_options(spark: SparkSession, bucket: str) -> Mapping[str, Any] | None:
    """Options of Arrow's client for this bucket; None if it has no word for one of Spark's settings."""
    settings = S3Settings.from_spark(spark, bucket)
    if not settings.is_whole:
        return None
    options = settings.arrow()
    if not settings.region and not settings.endpoint:
        options["region"] = _region_of(bucket)
    return {name: value for name, value in options.items() if value}


def _region_of(bucket: str) -> str:
    try:
        return str(pa.fs.resolve_s3_region(bucket))
    except OSError:
        return ""
