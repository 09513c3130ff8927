"""Where a pipeline keeps its files: a local disk, HDFS or an object store, behind one small interface.

`Storage` reads, lists, puts, moves and deletes files below a root. Everything that must survive a crash goes through
it: the batch log, subscription versions, Kafka's marks, leases, epochs and the commit records of file sinks. What all
of them build on is `put_if_absent`: of several writers of one name exactly one wins, on every store.

    local disk     os.link of a complete, synced file
    HDFS, ABFS     rename without overwrite of a complete file, which the name node decides
    S3 (s3a)       a conditional PUT (If-None-Match), which Hadoop has from 3.4.2 on
    GCS (gs)       a conditional insert, by the connector's create without overwrite

Remote stores are reached through the Hadoop file systems of Spark's own JVM. They have the credentials already that
Spark reads and writes with, and they are the same code that Spark's checkpoint goes through.

A location is a local path or a URI. `Location` keeps the two apart: a URI never becomes a `Path`.
"""

from __future__ import annotations

import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import unquote, urlsplit

import msgspec
from py4j.protocol import Py4JError, Py4JJavaError

from tidings.errors import InputError, SetupError
from tidings.pipeline.session import is_connect, missing_file_system

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REQUESTS_AT_ONCE = 16  # Requests to a store that wait for its answers, not for our processor.
READ_BYTES_MAX = 1 << 30  # A file of state; the largest are snapshots of subscriptions.
REASON_LENGTH_MAX = 300

_CONDITIONAL_CREATE = "fs.option.create.conditional.overwrite"  # Of Hadoop's S3A.
_RENAMED = ("hdfs", "viewfs", "webhdfs", "abfs", "abfss", "file")  # A file is renamed atomically, or not at all.
_CONDITIONAL = ("s3a", "gs")
_PATTERN_SIGNS = re.compile(r"[\\{}\[\]*?]")  # Of Hadoop's file systems.
_FOLDERS_RENAMED = ("hdfs", "viewfs", "webhdfs", "abfs", "abfss")  # A whole folder, too.


@dataclass(frozen=True, slots=True)
class Location:
    """A file or folder: an absolute local path, or a URI of a file system that Spark knows.

    >>> Location.of("s3a://bucket/out/").below("part-0.parquet").text
    's3a://bucket/out/part-0.parquet'
    >>> Location.of("file:///data/in").is_local
    True
    """

    text: str

    @classmethod
    def of(cls, text: str | os.PathLike[str]) -> Location:
        """The location that a user wrote. Raises InputError for a URI without a path or with a slash missing."""
        written = os.fspath(text)
        scheme, colon, _ = written.partition(":")
        if scheme == "file" and colon:
            return cls(unquote(urlsplit(written).path).rstrip("/") or "/")
        if "://" not in written:
            if colon and scheme in (*_CONDITIONAL, *_RENAMED):
                raise InputError(f"{written!r}: expected {scheme}://…, with two slashes")
            return cls(str(Path(written).absolute()))
        if scheme in _CONDITIONAL and not urlsplit(written).netloc:
            raise InputError(f"{written!r}: expected a bucket or host after {scheme}://")
        return cls(written.rstrip("/"))

    @classmethod
    def of_uri(cls, uri: str) -> Location:
        """The location of a file as Spark names it, with blanks and all but ASCII written as `%20`.

        >>> Location.of_uri("s3a://bucket/New%20York/1.parquet").text
        's3a://bucket/New York/1.parquet'
        """
        return cls.of(uri) if uri.startswith("file:") else cls.of(unquote(uri))

    @property
    def is_local(self) -> bool:
        return "://" not in self.text

    @property
    def literal(self) -> str:
        r"""The location for Spark's readers, which take `*?[]{}` for patterns unless they are escaped.

        >>> print(Location.of("s3a://bucket/draft [1]").literal)
        s3a://bucket/draft \[1\]
        """
        return _PATTERN_SIGNS.sub(r"\\\g<0>", self.text)

    @property
    def scheme(self) -> str:
        return "file" if self.is_local else self.text.partition("://")[0]

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.text.rpartition("/")[2]

    def below(self, name: str) -> Location:
        return Location(f"{self.text.rstrip('/')}/{name}")

    def beside(self, ending: str) -> Location:
        """The location with this ending after its name."""
        return Location(self.text + ending)

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file by its name below the storage's root, with `/` between folders, and its size."""

    name: str
    size: int


class Storage(Protocol):
    """Files below a root. Names have `/` between folders. Every method raises SetupError if the store fails."""

    root: Location

    @property
    def renames_folders(self) -> bool:
        """Whether `move` of a folder is one atomic step."""

    def read(self, name: str) -> bytes | None:
        """The content, or None if there is no such file."""

    def list(self, folder: str = "") -> list[StoredFile]:
        """All files below a folder, sorted by name, without hidden ones; none if it does not exist.

        On some stores a listing lags behind what was written; `read` does not.
        """

    def put(self, name: str, content: bytes) -> None:
        """Creates or replaces a file. Readers see the old content or the new, and it survives a power failure."""

    def put_if_absent(self, name: str, content: bytes) -> bool:
        """Creates a file, and returns whether it has this content now; False if another content was there first.

        Of several writers one wins. True after a repeated request: give each writer's content something of its own.
        """

    def move(self, source: str, target: str) -> None:
        """Moves a file or folder whose content the target's name stands for: a target that is there is complete."""

    def copy(self, source: str, target: str) -> None:
        """Copies a file, if it is still there."""

    def delete(self, name: str) -> None:
        """Deletes a file, or a folder with all it holds, if it is there."""

    def make_folder(self, name: str = "") -> None:
        """Creates a folder where a store has folders, and so finds out whether it can be written."""


def storage_at(location: str | Location, spark: SparkSession | None = None) -> Storage:
    """The storage with this root. Only a local one does without Spark."""
    root = location if isinstance(location, Location) else Location.of(location)
    if root.is_local:
        return LocalStorage(root)
    if spark is None:
        raise InputError(f"{root}: a remote folder needs a Spark session, which knows its file system")
    if is_connect(spark):
        raise InputError(f"{root}: over Spark Connect expected a local folder, which the server sees too")
    return HadoopStorage(spark, root)


def read_all(storage: Storage, names: Iterable[str]) -> dict[str, bytes | None]:
    """The contents of many files by name, read at once: a store far away takes as long for each as for one."""
    wanted = list(names)
    with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
        return dict(zip(wanted, pool.map(storage.read, wanted)))


_T = TypeVar("_T")


def decoded(storage: Storage, name: str, content: bytes, kind: type[_T], *, packed: bool = False) -> _T:
    """A record of our own, as JSON or, `packed`, as MessagePack. Raises InputError for one that somebody has damaged."""
    decode: Callable[..., _T] = msgspec.msgpack.decode if packed else msgspec.json.decode
    try:
        return decode(content, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as wrong:
        raise InputError(
            f"{storage.root.below(name)} is damaged, and nothing was done with it ({str(wrong)[:REASON_LENGTH_MAX]}); "
            "restore it from a backup or an earlier version of the object"
        ) from None


def copy_folder(storage: Storage, source: str, target: str) -> None:
    """Copies every file, folder by folder in the order of their names."""
    by_folder: dict[str, list[str]] = {}
    for file in storage.list(source):
        inner = file.name.removeprefix(f"{source}/")
        by_folder.setdefault(inner.partition("/")[0] if "/" in inner else "", []).append(inner)
    with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
        for _, names in sorted(by_folder.items()):
            list(pool.map(lambda name: storage.copy(f"{source}/{name}", f"{target}/{name}"), names))


# ── A local disk ─────────────────────────────────────────────────────────────


class LocalStorage:
    """A folder of a local disk, or of one that is mounted as if it were. Hadoop's own is not atomic."""

    renames_folders = True

    def __init__(self, root: Location) -> None:
        self.root = root
        self._folder = Path(root.text)

    def read(self, name: str) -> bytes | None:
        try:
            return (self._folder / name).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as wrong:
            raise _failed(self.root, "read", wrong.strerror) from None

    def list(self, folder: str = "") -> list[StoredFile]:
        found = []
        for path, _, names in os.walk(self._folder / folder):
            for name in names:
                if name.startswith("."):  # Being written, or a checksum.
                    continue
                file = Path(path) / name
                try:
                    found.append(StoredFile(file.relative_to(self._folder).as_posix(), file.stat().st_size))
                except FileNotFoundError:  # Deleted since.
                    continue
        return sorted(found, key=lambda file: file.name)

    def put(self, name: str, content: bytes) -> None:
        with self._temporary(name, content) as temporary:
            temporary.replace(self._folder / name)

    def put_if_absent(self, name: str, content: bytes) -> bool:
        try:
            with self._temporary(name, content) as temporary:
                os.link(temporary, self._folder / name)
        except FileExistsError:
            return self.read(name) == content
        return True

    def move(self, source: str, target: str) -> None:
        place = self._folder / target
        try:
            if place.exists():
                return self.delete(source)
            place.parent.mkdir(parents=True, exist_ok=True)
            (self._folder / source).rename(place)
            return _sync(place.parent)
        except OSError as wrong:
            raise _failed(self.root, "write", wrong.strerror) from None

    def copy(self, source: str, target: str) -> None:
        try:
            (self._folder / target).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self._folder / source, self._folder / target)
        except FileNotFoundError:  # Deleted since it was listed.
            return
        except OSError as wrong:
            raise _failed(self.root, "write", wrong.strerror) from None

    def delete(self, name: str) -> None:
        place = self._folder / name
        try:
            shutil.rmtree(place) if place.is_dir() and not place.is_symlink() else place.unlink(missing_ok=True)
        except FileNotFoundError:
            return
        except OSError as wrong:
            raise _failed(self.root, "write", wrong.strerror) from None

    def make_folder(self, name: str = "") -> None:
        try:
            (self._folder / name).mkdir(parents=True, exist_ok=True)
        except OSError as wrong:
            raise _failed(self.root, "write", wrong.strerror) from None

    @contextmanager
    def _temporary(self, name: str, content: bytes) -> Iterator[Path]:
        """A complete file on disk beside the place of `name`; when the block has put it there, the folder is synced."""
        target = self._folder / name
        temporary = target.with_name(f".{target.name}-{uuid.uuid4().hex}")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("wb") as out:
                out.write(content)
                out.flush()
                os.fsync(out.fileno())
            yield temporary
            _sync(target.parent)
        except FileExistsError:
            raise
        except OSError as wrong:
            raise _failed(self.root, "write", wrong.strerror) from None
        finally:
            if temporary.parent.is_dir():
                temporary.unlink(missing_ok=True)


def _sync(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


# ── Hadoop's file systems ────────────────────────────────────────────────────


class HadoopStorage:
    """A folder of any file system that Spark knows and that can create a file only if it is absent."""

    def __init__(self, spark: SparkSession, root: Location) -> None:
        self.root = root
        self._spark = spark

    @property
    def renames_folders(self) -> bool:
        return self.root.scheme in _FOLDERS_RENAMED

    @cached_property
    def _jvm(self) -> Any:
        return self._spark.sparkContext._jvm

    @cached_property
    def _files(self) -> Any:
        java: Any = self._spark.sparkContext._jsc
        with self._told("open"):
            return self._jvm.org.apache.hadoop.fs.Path(self.root.text).getFileSystem(java.hadoopConfiguration())

    @cached_property
    def _context(self) -> Any:
        java: Any = self._spark.sparkContext._jsc
        uri = self._at("").toUri()  # Which escapes blanks and the like.
        with self._told("open"):
            return self._jvm.org.apache.hadoop.fs.FileContext.getFileContext(uri, java.hadoopConfiguration())

    def read(self, name: str) -> bytes | None:
        with self._told("read"):
            try:
                stream = self._files.open(self._at(name))
                try:
                    return bytes(stream.readNBytes(READ_BYTES_MAX))
                finally:
                    stream.close()
            except Py4JJavaError as wrong:
                if _is(wrong, "FileNotFoundException"):
                    return None
                raise

    def list(self, folder: str = "") -> list[StoredFile]:
        found, start = [], len(self._at("").toUri().getPath().rstrip("/")) + 1
        with self._told("list"):
            try:
                files = self._files.listFiles(self._at(folder), True)
                while files.hasNext():
                    status = files.next()
                    if not status.getPath().getName().startswith("."):
                        found.append(StoredFile(status.getPath().toUri().getPath()[start:], status.getLen()))
            except Py4JJavaError as wrong:
                if not _is(wrong, "FileNotFoundException"):
                    raise
        return sorted(found, key=lambda file: file.name)

    def put(self, name: str, content: bytes) -> None:
        with self._told("write"):
            if self.root.scheme in _CONDITIONAL:  # An object is there as a whole, or not at all.
                return self._write(self._files.create(self._at(name), True), content)
            return self._put_by_rename(name, content, overwrite=True)

    def put_if_absent(self, name: str, content: bytes) -> bool:
        if self.root.scheme not in (*_RENAMED, *_CONDITIONAL):
            known = ", ".join(f"{scheme}://" for scheme in ("hdfs", "s3a", "gs", "abfss"))
            raise InputError(
                f"{self.root}: expected a local path or one of {known}, which can create a file exclusively"
            )
        with self._told("write"):
            try:
                if self.root.scheme in _CONDITIONAL:
                    self._write(self._create_if_absent(name), content)
                else:
                    self._put_by_rename(name, content, overwrite=False)
                return True
            except Py4JJavaError as wrong:
                if not _is(wrong, "FileAlreadyExistsException", "RemoteFileChangedException"):
                    raise
        # The store may have carried out a request whose answer was lost, and refused its repetition.
        return self.read(name) == content

    def move(self, source: str, target: str) -> None:
        with self._told("write"):
            place, origin = self._at(target), self._at(source)
            if self._files.exists(place):  # An object store copies, then deletes; it was killed between the two.
                self._files.delete(origin, True)
                return
            if self.root.scheme not in _CONDITIONAL:
                self._files.mkdirs(place.getParent())
            if not self._files.rename(origin, place):
                raise _failed(self.root, "move", f"{source} to {target}")

    def copy(self, source: str, target: str) -> None:
        with self._told("write"):
            utility, settings = self._jvm.org.apache.hadoop.fs.FileUtil, self._files.getConf()
            try:
                utility.copy(self._files, self._at(source), self._files, self._at(target), False, True, settings)
            except Py4JJavaError as wrong:
                if not _is(wrong, "FileNotFoundException"):  # Deleted since it was listed.
                    raise

    def delete(self, name: str) -> None:
        with self._told("write"):
            self._files.delete(self._at(name), True)

    def make_folder(self, name: str = "") -> None:
        with self._told("write"):
            self._files.mkdirs(self._at(name))

    def _at(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self.root.below(name).text if name else self.root.text)

    def _create_if_absent(self, name: str) -> Any:
        if self.root.scheme != "s3a":
            return self._files.create(self._at(name), False)
        building = self._files.createFile(self._at(name)).recursive().overwrite(False)
        try:
            return building.must(_CONDITIONAL_CREATE, "true").build()
        except Py4JJavaError as wrong:
            if not _is(wrong, "IllegalArgumentException"):
                raise
            raise SetupError(
                f"{self.root}: S3 as storage needs hadoop-aws 3.4.2 or later, for conditional PUTs"
            ) from None

    def _put_by_rename(self, name: str, content: bytes, *, overwrite: bool) -> None:
        target = self._at(name)
        temporary = self._at(f"{name}-{uuid.uuid4().hex}")
        temporary = self._jvm.org.apache.hadoop.fs.Path(temporary.getParent(), f".{temporary.getName()}")
        self._write(self._files.create(temporary, True), content)
        how = self._jvm.org.apache.hadoop.fs.Options.Rename
        options = self._spark.sparkContext._gateway.new_array(how, 1)  # type: ignore[union-attr]
        options[0] = how.OVERWRITE if overwrite else how.NONE
        try:
            self._context.rename(temporary, target, options)
        except Py4JJavaError:
            self._files.delete(temporary, False)
            raise

    def _write(self, stream: Any, content: bytes) -> None:
        try:
            stream.write(bytearray(content))
        finally:
            stream.close()

    @contextmanager
    def _told(self, doing: str) -> Iterator[None]:
        try:
            yield
        except Py4JError as wrong:
            raise _failed(self.root, doing, _cause(wrong)) from None


def _is(wrong: Py4JJavaError, *names: str) -> bool:
    """Whether the Java exception is of one of these classes, or was caused by one."""
    java = wrong.java_exception
    while java is not None:
        if java.getClass().getSimpleName() in names:
            return True
        java = java.getCause()
    return False


def _cause(wrong: Py4JError) -> str:
    java = getattr(wrong, "java_exception", None)
    if java is None:
        return (str(wrong).splitlines() or ["no reason given"])[0][:REASON_LENGTH_MAX]
    text = str(java.getMessage() or java.getClass().getSimpleName())
    return missing_file_system(str(wrong)) or text.splitlines()[0][:REASON_LENGTH_MAX]


def _failed(root: Location, doing: str, why: str | None) -> SetupError:
    return SetupError(f"cannot {doing} {'to ' if doing == 'write' else ''}{root.text!r}: {why or 'no reason given'}")
