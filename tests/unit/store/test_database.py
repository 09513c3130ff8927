"""Opening a registry, changing it, and everything that can be wrong with a file or a server."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import subprocess
import sys
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from sqlalchemy import delete, insert
from sqlalchemy.exc import IntegrityError

from tests.postgres_server import PostgresServer
from tests.unit.security.london import NOW_MS, PLATES
from tests.unit.store.police import actions, declare_plates
from tidings.errors import InputError, SetupError, TidingsError
from tidings.store import Registry, tables
from tidings.store.database import Database

# ── Changes ──


@pytest.fixture
def database(registry: Registry) -> Database:
    return registry.database


def test_a_change_that_fails_leaves_no_trace(registry: Registry, database: Database) -> None:
    def change_and_fail() -> None:
        with database.change("me", NOW_MS) as change:
            change.execute(insert(tables.domains).values(name="ccs", added_ms=NOW_MS))
            change.record("add domain", "ccs")
            raise KeyError

    with pytest.raises(KeyError):
        change_and_fail()
    assert registry.domains.all() == []
    assert actions(registry) == []


@pytest.mark.parametrize("recorded", [0, 2])
def test_a_change_without_its_one_audit_entry_does_not_happen(
    registry: Registry, database: Database, recorded: int
) -> None:
    def change_and_record() -> None:
        with database.change("me", NOW_MS) as change:
            change.execute(insert(tables.domains).values(name="ccs", added_ms=NOW_MS))
            for number in range(recorded):
                change.record("add domain", str(number))

    with pytest.raises(AssertionError):
        change_and_record()
    assert registry.audit.verify().position == 0


def test_an_audit_entry_without_a_change_does_not_happen(registry: Registry, database: Database) -> None:
    with pytest.raises(AssertionError, match="nothing else is"), database.change("me", NOW_MS) as change:
        change.record("add domain", "ccs")
    assert registry.audit.verify().position == 0


def test_readers_see_one_moment_while_a_writer_works(registry: Registry, address: str) -> None:
    with closing(Database.open(address, NOW_MS)) as database, database.read() as connection:
        before = connection.execute(tables.types.select()).all()
        declare_plates(registry)
        assert connection.execute(tables.types.select()).all() == before == []
    assert registry.types.all() == [PLATES]


def test_who_waits_too_long_for_another_writer_is_told_so(address: str) -> None:
    with ExitStack() as stack:
        one, other = (stack.enter_context(closing(Database.open(address, NOW_MS, wait_s_max=0.05))) for _ in range(2))
        stack.enter_context(one.change("one", NOW_MS))
        with (
            pytest.raises(SetupError, match="was locked for 0.05 s by another program; try again"),
            other.change("other", NOW_MS),
        ):
            pass


def test_what_others_refer_to_cannot_be_removed(registry: Registry, database: Database) -> None:
    declare_plates(registry)
    registry.keys.new_sender_ids(PLATES.type_id, by="manager", now_ms=NOW_MS)
    with pytest.raises(IntegrityError, match="(?i)foreign key"), database.change("me", NOW_MS) as change:
        change.execute(delete(tables.types))


def test_a_commit_is_on_disk_before_it_is_answered(address: str) -> None:
    with closing(Database.open(address, NOW_MS)) as database, database.transaction() as connection:
        if address.startswith("postgresql"):
            assert connection.exec_driver_sql("SHOW synchronous_commit").scalar() == "on"
        else:
            full = 2
            assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == full
            assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"


# ── Files ──


def test_a_registry_is_a_file_that_only_its_owner_reads(tmp_path: Path) -> None:
    for name, address in (("a.db", str(tmp_path / "a.db")), ("b.db", f"sqlite:///{tmp_path / 'b.db'}")):
        with Registry.open(address, now_ms=NOW_MS) as registry:
            declare_plates(registry)
            kept = sorted(file.name for file in tmp_path.glob(f"{name}*"))
            assert [stat.S_IMODE((tmp_path / file).stat().st_mode) for file in kept] == [0o600] * len(kept)
            assert kept[0] == name


def test_reading_makes_no_registry(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no registry .*; `tidings type declare` creates one"):
        Registry.open(tmp_path / "none.db", now_ms=NOW_MS, create=False)
    (tmp_path / "empty.db").touch()
    with pytest.raises(InputError, match="holds no registry yet"):
        Registry.open(tmp_path / "empty.db", now_ms=NOW_MS, create=False)
    assert [file.name for file in tmp_path.iterdir()] == ["empty.db"]


def test_an_empty_file_becomes_a_registry(tmp_path: Path) -> None:
    (tmp_path / "empty.db").touch()
    with Registry.open(tmp_path / "empty.db", now_ms=NOW_MS) as registry:
        declare_plates(registry)


def not_a_database(folder: Path) -> Path:
    (folder / "text.db").write_text("hello " * 1000)
    return folder / "text.db"


def cut_short(folder: Path) -> Path:
    Registry.open(folder / "whole.db", now_ms=NOW_MS).close()
    (folder / "cut.db").write_bytes((folder / "whole.db").read_bytes()[:10_000])
    return folder / "cut.db"


@pytest.mark.parametrize(
    ("make", "error", "why"),
    [
        (not_a_database, InputError, "is not a registry: it is no SQLite file"),
        (cut_short, InputError, "is damaged: restore it from a backup"),
        (lambda folder: folder, InputError, "is a folder; expected a file"),
        (
            lambda folder: folder / "no" / "such.db",
            InputError,
            "cannot create the registry .*: No such file or directory",
        ),
    ],
)
def test_what_is_no_registry_is_told_in_words(
    tmp_path: Path, make: object, error: type[TidingsError], why: str
) -> None:
    assert callable(make)
    with pytest.raises(error, match=why), Registry.open(make(tmp_path), now_ms=NOW_MS) as registry:
        registry.types.all()


def test_a_read_only_registry_can_be_read_and_says_that_it_cannot_be_written(tmp_path: Path) -> None:
    with Registry.open(tmp_path / "a.db", now_ms=NOW_MS) as registry:
        declare_plates(registry)
    with Registry.open(f"sqlite:///file:{tmp_path / 'a.db'}?mode=ro&uri=true", now_ms=NOW_MS) as registry:
        assert registry.types.all() == [PLATES]
        with pytest.raises(SetupError, match="is read-only: change the permissions"):
            registry.domains.add("ccs", [bytes(32)], by="me", now_ms=NOW_MS)


ADD_A_DOMAIN = """
import sys
from tidings.errors import TidingsError
from tidings.store import Registry
try:
    with Registry.open(sys.argv[1], now_ms=1) as registry:
        registry.domains.add("ccs", [bytes(32)], by="me", now_ms=1)
except TidingsError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize("what", ["file", "folder"])
def test_a_file_or_folder_without_the_right_to_write_is_told(tmp_path: Path, what: str) -> None:
    if os.getuid() == 0 and not shutil.which("setpriv"):
        pytest.skip("root may write everything, and there is no setpriv to give that up")
    file = tmp_path / "a.db"
    if what == "file":
        Registry.open(file, now_ms=NOW_MS).close()
        file.chmod(0o400)
    else:
        tmp_path.chmod(0o500)
    as_anybody = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.getuid() == 0 else []
    said = subprocess.run(
        [*as_anybody, sys.executable, "-c", ADD_A_DOMAIN, str(file)], capture_output=True, text=True, check=False
    )
    tmp_path.chmod(0o700)
    assert said.stderr == ""
    assert "is read-only: change the permissions" in said.stdout or "Permission denied" in said.stdout


def test_a_full_disk_loses_nothing_and_is_told(tmp_path: Path) -> None:
    with Registry.open(tmp_path / "a.db", now_ms=NOW_MS) as registry:
        with registry.database.read() as connection:
            raw = connection.connection.driver_connection
            assert isinstance(raw, sqlite3.Connection)
            (pages,) = raw.execute("PRAGMA page_count").fetchone()
            raw.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(SetupError, match="the disk is full"):
            fill(registry)
        assert registry.audit.verify().position == len(registry.domains.all())


def fill(registry: Registry) -> None:
    for number in range(1000):
        registry.domains.add(f"{number}" * 60, [number.to_bytes(32, "big")], by="me", now_ms=NOW_MS)


# ── Addresses ──


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("mysql://user:secret@host/db", "a registry is a file or a postgresql:// URL, not mysql://"),
        ("postgresql+asyncpg://user:secret@host/db", "not postgresql\\+asyncpg://"),
        ("postgresql://user:secret@host:port/db", "cannot be read; expected postgresql://user:password@host"),
        ("sqlite://", "expected the path of a file"),
        (":memory:", "expected the path of a file"),
        ("", "expected the path of a file"),
    ],
)
def test_addresses_that_lead_nowhere_are_told_without_their_password(address: str, why: str) -> None:
    with pytest.raises(InputError, match=why) as told:
        Registry.open(address, now_ms=NOW_MS)
    assert "secret" not in str(told.value)


def test_without_its_driver_postgresql_says_how_to_get_it() -> None:
    hidden = "import sys; sys.modules['psycopg'] = None\n" + ADD_A_DOMAIN
    said = subprocess.run(
        [sys.executable, "-c", hidden, "postgresql://me:secret@127.0.0.1:1/x"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.stdout == "SetupError PostgreSQL needs its driver: pip install 'tidings[postgres]'\n"


# ── Servers ──


def test_a_server_that_is_not_there_is_told_without_the_password() -> None:
    pytest.importorskip("psycopg", reason="no PostgreSQL driver here: pip install 'tidings[postgres]'")
    with pytest.raises(SetupError, match="cannot be reached: is the server running") as told:
        Registry.open("postgresql://me:secret@127.0.0.1:1/registry", now_ms=NOW_MS)
    assert "secret" not in str(told.value)
    with pytest.raises(SetupError, match="cannot be reached"):
        Registry.open("postgresql://me@no-such-host.invalid/registry", now_ms=NOW_MS)


@pytest.mark.live
def test_a_wrong_password_user_or_database_is_told(postgres: PostgresServer) -> None:
    for url, why in (
        (postgres.url(password="wr0ng"), "rejects this user or password"),
        (postgres.url(user="nobody-known"), "rejects this user or password"),
        (postgres.url("no_such_database"), "names a database that does not exist"),
        (f"postgresql://tester@127.0.0.1:{postgres.port}/postgres", "rejects this user or password"),
    ):
        with pytest.raises(InputError, match=why) as told:
            Registry.open(url, now_ms=NOW_MS)
        assert "wr0ng" not in str(told.value)
        assert "right@" not in str(told.value)


@pytest.mark.live
def test_a_user_without_rights_on_the_tables_is_told(postgres: PostgresServer) -> None:
    url = postgres.new_database()
    Registry.open(url, now_ms=NOW_MS).close()
    name = url.rpartition("/")[2]
    postgres.run_sql(url, f"CREATE USER guest_{name} PASSWORD 'guest'")
    with pytest.raises(SetupError, match="does not permit this user to do that"):
        Registry.open(postgres.url(name, user=f"guest_{name}", password="guest"), now_ms=NOW_MS)


@pytest.mark.live
def test_a_registry_outlives_a_lost_connection(postgres: PostgresServer) -> None:
    url = postgres.new_database()
    with Registry.open(url, now_ms=NOW_MS) as registry:
        declare_plates(registry)
        others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        postgres.run_sql(url, f"{others} WHERE datname = current_database() AND pid <> pg_backend_pid()")
        assert registry.types.all() == [PLATES]
