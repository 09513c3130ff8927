"""A real PostgreSQL for the tests: a cluster of our own, in a temporary folder, on a free loopback port.

It is Debian's server, started as a user other than root (which the server demands), with passwords on.
Where no server is installed, tests that ask for it are skipped, and say which package they miss.

`PostgresCluster` is one that a test can kill, promote, fill and copy to a synchronous standby; `postgres_server` is one that
just runs.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
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
    home = new_home()
    cluster = PostgresCluster(home, fsync=False)
    try:
        cluster.make()
        cluster.start()
        try:
            yield PostgresServer(cluster.port)
        finally:
            cluster.stop()
    finally:
        shutil.rmtree(home, ignore_errors=True)


def new_home() -> Path:
    """A folder for a cluster, which the server's user may enter."""
    home = Path(tempfile.mkdtemp(prefix="tidings-postgres-"))
    _give_to_its_user(home)
    return home


class PostgresCluster:
    """One server's data, in a folder; it can be up or down."""

    def __init__(self, home: Path, *, fsync: bool = True) -> None:
        """Without `fsync` it is faster, and forgets what a test does not lose."""
        folder = programs()
        assert folder is not None, WHY_SKIPPED
        self._programs, self.home, self._fsync = folder, home, fsync
        self.port = 0

    @property
    def data(self) -> Path:
        return self.home / "data"

    def make(self) -> None:
        """Creates the cluster, with the user `tester`."""
        (self.home / "password").write_text(PASSWORD)
        (self.home / "password").chmod(0o644)
        options = ("-U", "tester", "-A", "scram-sha-256", "--pwfile", self.home / "password", "--no-sync", "-E", "UTF8")
        _run(self._programs / "initdb", "-D", self.data, "--locale", "C.UTF-8", *options)

    def start(self) -> None:
        """Starts the server; at the port that it had, if it was up before."""
        for _ in range(PORTS_TRIED_MAX):
            port = self.port or _free_port()
            settings = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories='' -c max_wal_size=128MB"
            settings += "" if self._fsync else " -c fsync=off"
            done = self._pg_ctl("start", "-w", "-l", self.home / "log", "-o", settings, check=False)
            if done.returncode == 0:
                self.port = port
                return
        raise AssertionError((self.home / "log").read_text())

    def stop(self) -> None:
        """At once; what was committed is there at the next start."""
        self._pg_ctl("stop", "-m", "immediate", check=False)

    def pids(self) -> list[int]:
        """The server's process, and those that it has started."""
        group = int((self.data / "postmaster.pid").read_text().split()[0])
        children = Path(f"/proc/{group}/task/{group}/children").read_text().split()
        return [group, *map(int, children)]

    def kill(self) -> None:
        """Kills the server and all its processes, as a power cut would."""
        for pid in self.pids():
            os.kill(pid, signal.SIGKILL)

    def revive(self) -> None:
        """Starts it again if it has ended by itself, as it does on a full disk."""
        if self._pg_ctl("status", check=False).returncode != 0:
            self.start()

    def lose_disk(self) -> None:
        """Removes the data of a server that is down."""
        shutil.rmtree(self.data)

    def add_standby(self, home: Path) -> PostgresCluster:
        """A copy that follows this server and that its commits wait for; up when this returns."""
        standby = PostgresCluster(home, fsync=self._fsync)
        at = f"host=127.0.0.1 port={self.port} user=tester password={PASSWORD} application_name=standby"
        _run(
            self._programs / "pg_basebackup",
            "-D",
            standby.data,
            "-R",
            "-X",
            "stream",
            "-c",
            "fast",
            "--no-sync",
            "-d",
            at,
        )
        standby.start()
        run_sql = PostgresServer.run_sql
        run_sql(self.url(), "ALTER SYSTEM SET synchronous_standby_names = 'standby'")
        run_sql(self.url(), "SELECT pg_reload_conf()")
        return standby

    def promote(self) -> None:
        """Makes a standby the primary; it waits for no standby of its own."""
        self._pg_ctl("promote", "-w")
        with (self.data / "postgresql.auto.conf").open("a") as settings:
            settings.write("synchronous_standby_names = ''\n")
        self._pg_ctl("reload")

    def url(self, database: str = "postgres") -> str:
        return PostgresServer(self.port).url(database)

    def _pg_ctl(self, what: str, *options: str | Path, check: bool = True) -> subprocess.CompletedProcess[bytes]:
        return _run(self._programs / "pg_ctl", what, "-D", self.data, *options, check=check)


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
