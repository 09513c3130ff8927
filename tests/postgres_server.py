"""A real PostgreSQL for the tests: a cluster of our own, in a temporary folder, on a free loopback port.

It is Debian's server, started as a user other than root (which the server demands), with passwords on.
Where no server is installed, tests that ask for it are skipped, and say which package they miss.
"""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

PASSWORD = "right"
WHY_SKIPPED = "no PostgreSQL server here; on Debian: apt-get install postgresql"
PORTS_TRIED_MAX = 5  # Another process may take a free port before the server does.


@dataclass(frozen=True)
class PostgresServer:
    """A running server, and new databases on it."""

    port: int
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def url(self, database: str = "postgres", *, user: str = "tester", password: str = PASSWORD) -> str:
        return f"postgresql://{user}:{password}@127.0.0.1:{self.port}/{database}"

    def new_schema(self) -> str:
        """The URL of a schema with nothing in it, in a shared database: cheaper than a database by far."""
        name = f"registry_{next(self._numbers)}"
        self.run_sql(self.url(), f"CREATE SCHEMA {name}")
        return self.url() + f"?options=-csearch_path%3D{name}"

    def new_database(self) -> str:
        """The URL of a database with nothing in it."""
        name = f"registry_{next(self._numbers)}"
        self.run_sql(self.url(), f"CREATE DATABASE {name}")
        return self.url(name)

    @staticmethod
    def run_sql(url: str, statement: str) -> None:
        import psycopg

        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(statement.encode())


def programs() -> Path | None:
    """The folder of `initdb` and `pg_ctl`: Debian keeps them off the PATH."""
    found = shutil.which("initdb")
    folders = [Path(found).resolve().parent] if found else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((folder for folder in folders if (folder / "pg_ctl").exists() and (folder / "initdb").exists()), None)


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    folder = programs()
    assert folder is not None, WHY_SKIPPED
    home = Path(tempfile.mkdtemp(prefix="tidings-postgres-"))
    try:
        _give_to_its_user(home)
        _make_cluster(folder, home)
        port = _start(folder, home)
        try:
            yield PostgresServer(port)
        finally:
            _run(folder / "pg_ctl", "stop", "-D", home / "data", "-m", "immediate")
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _make_cluster(folder: Path, home: Path) -> None:
    (home / "password").write_text(PASSWORD)
    (home / "password").chmod(0o644)
    options = ("-U", "tester", "-A", "scram-sha-256", "--pwfile", home / "password", "--no-sync", "-E", "UTF8")
    _run(folder / "initdb", "-D", home / "data", "--locale", "C.UTF-8", *options)


def _start(folder: Path, home: Path) -> int:
    for _ in range(PORTS_TRIED_MAX):
        port = _free_port()
        settings = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories='' -c fsync=off"
        started = _run(
            folder / "pg_ctl", "start", "-w", "-D", home / "data", "-l", home / "log", "-o", settings, check=False
        )
        if started.returncode == 0:
            return port
    raise AssertionError((home / "log").read_text())


def _run(*command: str | Path, check: bool = True) -> subprocess.CompletedProcess[bytes]:
    user = _user()
    # Output goes nowhere: the server inherits it, and a pipe would stay open as long as the server runs.
    return subprocess.run(
        [str(word) for word in command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        check=check,
        user=user.pw_uid if user else None,
        group=user.pw_gid if user else None,
        extra_groups=[] if user else None,
    )


def _user() -> pwd.struct_passwd | None:
    """Whom the server runs as, when we are root: it refuses to run as root."""
    if os.getuid() != 0:
        return None
    known = {user.pw_name: user for user in pwd.getpwall()}
    return known.get("postgres") or known["nobody"]


def _give_to_its_user(home: Path) -> None:
    if (user := _user()) is not None:
        os.chown(home, user.pw_uid, user.pw_gid)


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port
