"""Iceberg tables that others wrote, read as their metadata says; and batches that are committed once."""

from __future__ import annotations

import datetime as dt
import pickle
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyspark.sql.types import LongType, StringType, StructField, StructType

from tests.pipeline.tables.given_tables import FIXTURES, MOVED, all_rows, catalog_in, events
from tidings.errors import InputError
from tidings.pipeline.connectors.iceberg import BATCH, PIPELINE, IcebergReader, IcebergWriter, metadata_file
from tidings.pipeline.connectors.table_format import BEFORE_FIRST

DELIVERIES = StructType([StructField("event_id", LongType()), StructField("subscriber", StringType())])


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Catalog:
    return catalog_in(tmp_path, monkeypatch)


def written(writer: IcebergWriter, *ids: int) -> list[bytes]:
    rows = pa.RecordBatch.from_pydict({"event_id": list(ids), "subscriber": [f"org{id}" for id in ids]})
    return list(pickle.loads(pickle.dumps(writer.open_for(DELIVERIES)))([rows]))


def ids_in(catalog: Catalog, name: str = "db.out") -> list[int]:
    return sorted(catalog.load_table(name).scan().to_arrow().column("event_id").to_pylist())


@pytest.mark.parametrize("name", ["merged", "vectors"])
def test_rows_that_delete_files_and_deletion_vectors_delete_stay_deleted(name: str) -> None:
    table = IcebergReader(str(FIXTURES / "iceberg" / name / "metadata/v6.metadata.json"), MOVED)
    rows = all_rows(table)
    assert [row["event_id"] for row in rows] == [*range(50), 200]
    assert rows[3]["seen_at"] == dt.datetime(2026, 1, 1, 0, 0, 3, tzinfo=dt.UTC)
    assert (rows[3]["speed"], rows[3]["zone"], rows[3]["extra"]) == (3.5, None, None)
    assert (rows[-1]["speed"], rows[-1]["zone"], rows[-1]["extra"]) == (99.0, "south", "new")
    first, deleted, last = table.versions_after(BEFORE_FIRST, table.version())
    assert len(table.appended(first, skip_changes=False)) == 2
    assert len(table.appended(last, skip_changes=False)) == 1
    assert table.appended(deleted, skip_changes=True) == []
    with pytest.raises(InputError, match='on_change = "skip"'):
        table.appended(deleted, skip_changes=False)


def test_a_table_is_read_by_its_folder_as_by_its_catalog(catalog: Catalog, tmp_path: Path) -> None:
    table = catalog.create_table("db.events", events(0, 0).schema)
    table.append(events(0, 10))
    table.delete("event_id < 4")
    by_catalog, by_path = IcebergReader("lake.db.events"), IcebergReader(str(tmp_path / "lake/db/events"))
    assert all_rows(by_catalog) == all_rows(by_path) == events(4, 6).to_pylist()
    assert by_catalog.plain_files(by_catalog.version()) is not None


def test_two_metadata_files_of_one_number_are_refused(catalog: Catalog, tmp_path: Path) -> None:
    catalog.create_table("db.events", events(0, 0).schema)
    folder = tmp_path / "lake/db/events"
    (first,) = (folder / "metadata").glob("*.metadata.json")
    first.with_name("00000-another.metadata.json").write_bytes(first.read_bytes())
    with pytest.raises(InputError, match="only its catalog knows"):
        metadata_file(str(folder), {})


def test_columns_are_found_by_their_ids_after_a_rename(catalog: Catalog) -> None:
    table = catalog.create_table("db.events", events(0, 0).schema)
    table.append(events(0, 2))
    with table.update_schema() as update:
        update.rename_column("speed", "mph")
    table.append(events(2, 1).rename_columns(["event_id", "area", "mph"]))
    reader = IcebergReader("lake.db.events")
    assert [row["mph"] for row in all_rows(reader)] == [0.0, 1.0, 2.0]
    assert reader.plain_files(reader.version()) is None


def test_an_expired_snapshot_is_named(catalog: Catalog) -> None:
    table = catalog.create_table("db.events", events(0, 0).schema)
    for start in (0, 1, 2):
        table.append(events(start, 1))
    first, second, _ = (snapshot.snapshot_id for snapshot in table.snapshots())
    table.maintenance.expire_snapshots().by_id(second).commit()
    reader = IcebergReader("lake.db.events")
    for read_up_to in (first, BEFORE_FIRST):
        with pytest.raises(InputError, match="snapshots between them have expired"):
            reader.versions_after(read_up_to, reader.version())
    with pytest.raises(InputError, match=f"snapshot {second} .* has expired"):
        reader.parts(second)


def test_a_table_that_does_not_exist_or_has_no_catalog_is_told(catalog: Catalog) -> None:
    with pytest.raises(InputError, match="no Iceberg table 'db.none' in the catalog 'lake'"):
        IcebergReader("lake.db.none")
    with pytest.raises(InputError, match="describe it in .pyiceberg.yaml"):
        IcebergReader("nowhere.db.none")
    with pytest.raises(InputError, match="written through its catalog"):
        IcebergWriter("/some/folder")


def test_a_batch_is_committed_once_however_often_it_is_put(catalog: Catalog) -> None:
    writer = IcebergWriter("lake.db.out")
    for ids, batch in (((1, 2), 0), ((1, 2), 0), ((3,), 1), ((1, 2), 0)):
        writer.commit(written(writer, *ids), batch=("p", batch))
    assert ids_in(catalog) == [1, 2, 3]
    assert (writer.last_batch("p"), writer.last_batch("another")) == (1, None)
    summary = catalog.load_table("db.out").snapshots()[-1].summary
    assert summary is not None
    assert (summary[PIPELINE], summary[BATCH]) == ("p", "1")


def test_the_last_batch_is_known_after_its_snapshot_has_expired(catalog: Catalog) -> None:
    writer = IcebergWriter("lake.db.out")
    writer.commit(written(writer, 1), batch=("p", 0))
    table = catalog.load_table("db.out")
    mine = table.snapshots()[-1].snapshot_id
    table.append(pa.table({"event_id": [9], "subscriber": ["x"]}))
    table.maintenance.expire_snapshots().by_id(mine).commit()
    writer.commit(written(writer, 1), batch=("p", 0))
    assert ids_in(catalog) == [1, 9]


def test_two_drivers_that_commit_the_same_batch_at_once_commit_it_once(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, fast = IcebergWriter("lake.db.out"), IcebergWriter("lake.db.out")
    files = written(slow, 1, 2)
    as_seen = slow.load()
    looks: list[int | None] = []

    def looked(pipeline: str) -> int | None:
        """The slow one looks, and before it commits to the table that it saw, the fast one does."""
        looks.append(fast.last_batch(pipeline))
        if len(looks) == 1:
            fast.commit(written(fast, 1, 2), batch=("p", 0))
            monkeypatch.setattr(slow, "load", lambda: as_seen)
        return looks[-1]

    monkeypatch.setattr(slow, "last_batch", looked)
    slow.commit(files, batch=("p", 0))
    assert looks == [None, 0]
    assert ids_in(catalog) == [1, 2]


def test_partitioned_tables_are_written_and_rows_replaced(catalog: Catalog) -> None:
    from pyiceberg.transforms import IdentityTransform

    table = catalog.create_table("db.out", pa.schema([("event_id", pa.int64()), ("subscriber", pa.string())]))
    with table.update_spec() as update:
        update.add_field("subscriber", IdentityTransform(), "subscriber")
    writer = IcebergWriter("lake.db.out")
    assert writer.is_empty()
    files = written(writer, 1, 2, 1)
    assert len(files) == 2
    writer.commit(files)
    assert not writer.is_empty()
    assert [row["subscriber"] for row in all_rows(IcebergReader("lake.db.out"))] == ["org1", "org1", "org2"]
    writer.commit(written(writer, 3), replace=True)
    assert ids_in(catalog) == [3]


class _Refusing(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        status, body = (401, b'{"error": {"message": "who are you", "type": "NotAuthorized", "code": 401}}')
        if self.path.startswith("/html"):
            status, body = (200, b"<html>some other server</html>")
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *given: object) -> None:
        pass


@pytest.mark.parametrize(("place", "said"), [("/", "who are you"), ("/html", "cannot open the catalog")])
def test_a_rest_catalog_that_refuses_or_is_none_is_named(
    monkeypatch: pytest.MonkeyPatch, place: str, said: str
) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("PYICEBERG_CATALOG__FAR__TYPE", "rest")
        monkeypatch.setenv("PYICEBERG_CATALOG__FAR__URI", f"http://127.0.0.1:{server.server_port}{place}")
        for opened in (IcebergReader, IcebergWriter):
            with pytest.raises(InputError, match=said):
                opened("far.db.events")
        server.shutdown()
