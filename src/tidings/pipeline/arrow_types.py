"""Spark's schemas as Arrow's and back, alike in every release of Spark that we support.

PySpark 4.1 names the arguments otherwise than 4.2 and takes times without a zone for times with one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import __version__
from pyspark.sql.pandas import types

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

_UTC: dict[str, Any] = {"timestamp_utc": True} if __version__.startswith("4.1.") else {"timezone": "UTC"}


def to_arrow_schema(schema: StructType) -> pa.Schema:
    """Times with a zone are in UTC."""
    return types.to_arrow_schema(schema, **_UTC)


def to_arrow_type(kind: DataType) -> pa.DataType:
    """The same for one type."""
    return types.to_arrow_type(kind, **_UTC)


def from_arrow_type(kind: pa.DataType) -> DataType:
    """Times without a zone stay without one."""
    return types.from_arrow_type(kind, prefer_timestamp_ntz=True)


def from_arrow_schema(schema: pa.Schema) -> StructType:
    """The same for a schema."""
    return types.from_arrow_schema(schema, prefer_timestamp_ntz=True)
