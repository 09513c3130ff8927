"""What the journal asks of its storage: durable transactions, reads, and what to tell operators."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from tidings.errors import Denied

_T = TypeVar("_T")


class LeaseLost(Denied):
    """Another process of this broker has taken over: this one may write nothing more, and ends."""


class Rows(Protocol):
    """What a query has found."""

    def fetchone(self) -> Any: ...

    def fetchall(self) -> list[Any]: ...


class Statements(Protocol):
    """What can be done within a transaction; statements are in SQLite's SQL, with `?` for arguments."""

    def execute(self, statement: str, arguments: Sequence[Any] = (), /) -> Rows: ...

    def executemany(self, statement: str, rows: Iterable[Sequence[Any]], /) -> object: ...


@dataclass(frozen=True, slots=True)
class JournalTables:
    """The tables of a journal, as statements that create them."""

    version: int
    first: str
    """Those of this version."""
    later: str
    """Those that were added without a new version; made where they are missing."""


@dataclass(frozen=True, slots=True)
class LeaseStatus:
    """How a process holds the lease of its journal."""

    epoch: int
    """How often the lease was taken: the fencing token of every write."""
    holder: str
    """The host and the process."""
    renewed_s_ago: float
    lease_s: float
    standbys: tuple[str, ...]
    """The processes that wait for it."""


class JournalStorage(Protocol):
    """The database of one journal. `write` and `read` block: each is called by one thread of the journal's."""

    @property
    def where(self) -> str:
        """The file, or the URL without its password."""

    @property
    def refusals(self) -> tuple[type[Exception], ...]:
        """What `write` raises while the database refuses or is away; the same can be tried again."""

    @property
    def unreachable(self) -> tuple[type[Exception], ...]:
        """What `read` raises while the database is away."""

    def write(self, work: Callable[[Statements], _T], *, is_group: bool = False) -> _T | None:
        """Does work in one transaction; what it has written is durable when this returns. Raises LeaseLost.

        Where a refused `is_group` is tried again, its work is not done a second time if it was written after all.
        """

    def read(self, query: str, arguments: Sequence[Any]) -> list[Any]:
        """What a query finds."""

    def read_now(self, query: str, arguments: Sequence[Any]) -> list[Any]:
        """The same for the event loop's thread, which must not wait for the reader's."""

    def usage(self) -> Mapping[str, int]:
        """Bytes taken and free, as far as that is known; does not block."""

    def lease(self) -> LeaseStatus | None:
        """The lease, where the storage has one; does not block."""

    def close(self, *, lost: bool = False) -> None:
        """Closes it; gives the lease back unless it is lost."""


def first_line(wrong: BaseException) -> str:
    """The first line of what a database said: PostgreSQL quotes the statement in the others."""
    return (str(wrong).strip().splitlines() or [type(wrong).__name__])[0]
