"""The schema's steps: taken once, in order, forward only."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import inspect, select, text

from tests.unit.security.london import NOW_MS, PLATES
from tests.unit.store.police import declare_plates
from tidings.errors import InputError
from tidings.store import Registry, tables
from tidings.store.database import Database
from tidings.store.migrations import STEPS, MigrationStep, version_of

ONE_MORE = MigrationStep("a further step", "CREATE TABLE tidings_extra (id BIGINT NOT NULL PRIMARY KEY)")


def versions(database: Database) -> list[int]:
    with database.read() as connection:
        return list(connection.scalars(select(tables.schema.c.version).order_by(tables.schema.c.version)))


def test_a_new_registry_takes_every_step(address: str) -> None:
    with closing(Database.open(address, NOW_MS)) as database:
        assert versions(database) == list(range(1, len(STEPS) + 1))


def test_the_tables_are_those_the_code_speaks_of(address: str) -> None:
    with closing(Database.open(address, NOW_MS)) as database, database.read() as connection:
        found = inspect(connection)
        assert sorted(found.get_table_names()) == sorted(tables.metadata.tables)
        for name, table in tables.metadata.tables.items():
            columns = {column["name"]: column["nullable"] for column in found.get_columns(name)}
            assert columns == {column.name: column.nullable for column in table.columns}, name
            keys = found.get_pk_constraint(name)["constrained_columns"]
            assert set(keys) == {column.name for column in table.primary_key}, name
            refers = {(key["constrained_columns"][0], key["referred_table"]) for key in found.get_foreign_keys(name)}
            assert refers == {(key.parent.name, key.column.table.name) for key in table.foreign_keys}, name


@pytest.mark.parametrize("taken", range(1, len(STEPS)))
def test_an_older_registry_is_brought_up_to_date_when_opened(address: str, taken: int) -> None:
    Database.open(address, NOW_MS, steps=STEPS[:taken]).close()
    with Registry.open(address, now_ms=NOW_MS + 1, create=False) as registry:
        declare_plates(registry)
        assert registry.keys.new_sender_ids(PLATES.type_id, by="manager", now_ms=NOW_MS) == range(1, 2)


def test_what_an_older_registry_holds_stays(address: str) -> None:
    with Registry.open(address, now_ms=NOW_MS) as registry:
        declare_plates(registry)
    with closing(Database.open(address, NOW_MS, steps=(*STEPS, ONE_MORE))) as database:
        again = Registry(database)
        assert again.types.all() == [PLATES]
        assert again.audit.verify().position == 1


def test_a_registry_of_a_newer_tidings_is_left_alone(address: str) -> None:
    Database.open(address, NOW_MS, steps=(*STEPS, ONE_MORE)).close()
    newer = f"newer Tidings: its schema version is {len(STEPS) + 1}, this one has {len(STEPS)}; upgrade Tidings"
    with pytest.raises(InputError, match=newer):
        Registry.open(address, now_ms=NOW_MS)


def test_a_step_that_fails_leaves_the_registry_as_it_was(address: str) -> None:
    Database.open(address, NOW_MS).close()
    half = MigrationStep("half", "CREATE TABLE tidings_half (id BIGINT)\n\nINSERT INTO no_such_table VALUES (1)")
    with pytest.raises(Exception, match="no_such_table"):
        Database.open(address, NOW_MS, steps=(*STEPS, half))
    with closing(Database.open(address, NOW_MS)) as database, database.read() as connection:
        assert version_of(connection) == len(STEPS)
        assert not inspect(connection).has_table("tidings_half")


def test_another_programs_file_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "bookmarks.db"
    with closing(sqlite3.connect(file)) as theirs:
        theirs.execute("CREATE TABLE bookmarks (url TEXT)")
    before = file.read_bytes()
    with pytest.raises(InputError, match="another program's database, with a table 'bookmarks'"):
        Registry.open(file, now_ms=NOW_MS)
    assert file.read_bytes() == before


@pytest.mark.live
def test_a_postgresql_database_may_be_shared(request: pytest.FixtureRequest) -> None:
    url = request.getfixturevalue("postgres").new_database()
    request.getfixturevalue("postgres").run_sql(url, "CREATE TABLE bookmarks (url TEXT)")
    with closing(Database.open(url, NOW_MS)) as database, database.read() as connection:
        assert connection.scalar(text("SELECT count(*) FROM bookmarks")) == 0
