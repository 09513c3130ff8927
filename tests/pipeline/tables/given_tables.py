"""Tables that others wrote, and how the tests open them.

`fixtures/delta` was written by Delta's own Spark connector: PySpark 4.1.0 with io.delta:delta-spark_4.1_2.13:4.1.0.
`vectors` has 150 rows of which 100 were deleted by deletion vectors; `mapped` has columns that were renamed, dropped
and added. `fixtures/iceberg` was written by Iceberg's: PySpark 4.1.0 with iceberg-spark-runtime-4.1_2.13:1.12.0, in
a warehouse `/warehouse`. `merged` (format 2) and `vectors` (format 3) have 150 rows of which 100 were deleted
without rewriting a file, a renamed column, an added one, and one row more. `make_fixtures.py` wrote them.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from tidings.pipeline.connectors.table_format import VersionedTable

FIXTURES = Path(__file__).parent / "fixtures"
WAREHOUSE = "/warehouse/db"
SCHEMA = pa.schema([("event_id", pa.int64()), ("area", pa.string()), ("speed", pa.float64())])
WANTED = [
    {"id": "s1", "subscriber": "police", "filter": "speed > 10"},
    {"id": "s2", "subscriber": "tolls", "filter": "area = 'WC1'"},
]


class MovedFileIO(PyArrowFileIO):
    """Iceberg's metadata has absolute paths. This finds the files where they are now."""

    def new_input(self, location: str) -> PyArrowFile:
        return super().new_input(location.replace(WAREHOUSE, str(FIXTURES / "iceberg")))


MOVED = {"py-io-impl": f"{__name__}.MovedFileIO"}


def delta_copy(name: str, folder: Path) -> str:
    """A copy that a test may change."""
    return str(shutil.copytree(FIXTURES / "delta" / name, folder / name))


def catalog_in(folder: Path, monkeypatch: Any) -> Catalog:
    """A catalog `lake` in SQLite, which the environment describes."""
    settings = {"TYPE": "sql", "URI": f"sqlite:///{folder}/catalog.db", "WAREHOUSE": f"file://{folder}/lake"}
    for key, value in settings.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__LAKE__{key}", value)
    catalog = load_catalog("lake", **{key.lower(): value for key, value in settings.items()})
    catalog.create_namespace_if_not_exists("db")
    return catalog


def events(first: int, count: int) -> pa.Table:
    """Made-up ones, by their numbers."""
    numbers = range(first, first + count)
    return pa.table([list(numbers), [f"WC{n % 3}" for n in numbers], [float(n) for n in numbers]], schema=SCHEMA)


def all_rows(table: VersionedTable, version: int | None = None) -> list[dict[str, Any]]:
    """The rows of a version, as workers read them."""
    read = table.reader()
    parts = table.parts(table.version() if version is None else version)
    return sorted(
        (row for part in parts for batch in read(part) for row in batch.to_pylist()), key=lambda r: r["event_id"]
    )
