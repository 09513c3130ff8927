"""Starts Spark as Tidings needs it: this Python in the workers, UTC, a quiet log, our package on every host.

Also turns errors of Spark into our own, in one line and without a Java stack trace.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
import threading
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

import tidings
from tidings.errors import InputError, SetupError, TidingsError

LINE_MAX = 300  # Characters of an error of Spark that are shown.
OWN_LINE_MAX = 1_000  # Of an error of ours, which comes through Spark.
DEFAULT_MASTER = "local[*]"
REMOTE = "sc://"
GATEWAY = "PYSPARK_GATEWAY_PORT"  # `spark-submit` sets it for the program that it starts.

_SETTINGS = {
    "spark.log.level": "ERROR",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",  # Times without a zone are UTC, in conditions as in files.
    "spark.sql.ansi.enabled": "true",
    "spark.sql.timeType.enabled": "true",  # Or Spark refuses files that have a column of them.
    # One Arrow batch is one round of the matching kernel, which is fastest from about this size on.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "16384",
    # Zstandard, Spark's alternative, costs more time here than it saves space.
    "spark.sql.parquet.compression.codec": "snappy",
    # Spark's INT96 has no zone and no statistics, and other readers take it for nanoseconds.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}

_LOCAL_SETTINGS = {
    "spark.sql.shuffle.partitions": "8",  # Spark's default of 200 is meant for a cluster.
    "spark.python.daemon.module": "tidings.pipeline.workers",
}


def start(
    name: str, master: str | None = None, settings: Mapping[str, str] | None = None, *, is_brief: bool = False
) -> SparkSession:
    """A Spark session; `settings` override ours. Raises SetupError if Spark does not start.

    `is_brief` says that there is little to do: then a local Spark starts a Java that compiles quickly and not well.
    A master `sc://host:port` is a Spark Connect server. Under `spark-submit`, what that was told holds: its master,
    its log level, its web interface.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # Otherwise workers run the python3 on PATH.
    master = master or os.environ.get("TIDINGS_MASTER") or os.environ.get("SPARK_REMOTE")
    if master and master.startswith(REMOTE):
        return _connect(master, settings or {})
    submitted = _submitted()
    master = master or submitted.get("spark.master") or DEFAULT_MASTER
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    local = _LOCAL_SETTINGS if master.startswith("local[") else {}
    whole = {**_SETTINGS, **local, "spark.app.name": name, **submitted, **(settings or {}), "spark.master": master}
    builder = SparkSession.builder
    for key, value in whole.items():
        builder = builder.config(key, value)
    try:
        _start_java(whole, _BRIEF if is_brief and local else "")
        session = builder.getOrCreate()
    except Exception as error:  # noqa: BLE001  Py4J wraps whatever the JVM threw.
        raise SetupError(
            f"Spark does not start with master {master!r}: {_first_line(error)}\ntry: tidings doctor"
        ) from None
    send_package(session)
    return session


def _submitted() -> dict[str, str]:
    """What `spark-submit` was told, if it started this program."""
    if GATEWAY not in os.environ:
        return {}
    SparkContext._ensure_initialized()
    return dict(SparkConf().getAll())


def _connect(url: str, settings: Mapping[str, str]) -> SparkSession:
    """A session of a Spark Connect server. Raises SetupError, and InputError for settings that only its start can set."""
    try:
        session: SparkSession = SparkSession.builder.remote(url).getOrCreate()
        for key, value in _SETTINGS.items():
            if key.startswith("spark.sql."):
                session.conf.set(key, value)
    except ImportError as wrong:
        raise SetupError(
            f"Spark Connect needs more libraries: {_first_line(wrong)}\ntry: pip install 'tidings[connect]'"
        ) from None
    except Exception as wrong:  # noqa: BLE001  gRPC has errors of its own.
        raise SetupError(f"the Spark Connect server {url!r} does not answer: {_first_line(wrong)}") from None
    for key, value in settings.items():
        try:
            session.conf.set(key, value)
        except PySparkException as wrong:
            raise InputError(f"{key} is set where the Spark Connect server starts: {_first_line(wrong)}") from None
    send_package(session)
    return session


def is_connect(session: SparkSession) -> bool:
    """Whether the driver is elsewhere, behind Spark Connect: there is no JVM to ask, and no SparkContext."""
    return type(session).__module__.startswith("pyspark.sql.connect.")


@contextmanager
def described(session: SparkSession, step: str) -> Iterator[None]:
    """Names the jobs that this thread starts within, for Spark's web interface and its event log.

    Over Spark Connect a step is a tag of its operations instead: a client cannot describe jobs.
    """
    if is_connect(session):
        tag = re.sub(r"[^A-Za-z0-9]+", "-", step)
        session.addTag(tag)
        try:
            yield
        finally:
            session.removeTag(tag)
        return
    context = session.sparkContext
    before = context.getLocalProperty(_DESCRIPTION)
    context.setLocalProperty(_DESCRIPTION, f"{before}: {step}" if before else f"tidings: {step}")
    try:
        yield
    finally:
        context.setLocalProperty(_DESCRIPTION, before)  # type: ignore[arg-type]


_DESCRIPTION = "spark.job.description"


def activate(session: SparkSession) -> None:
    """Makes it the session of this thread: Spark checks queries by the settings of that one, or by its defaults."""
    if is_connect(session):
        return
    SparkSession._get_j_spark_session_class(session._jvm).setActiveSession(session._jsparkSession)


# Java's second compiler takes half of the processor time of a short job, and ends when the job does.
_BRIEF = "-XX:TieredStopAtLevel=1"
_JAVA_OPTIONS = "SPARK_SUBMIT_OPTS"  # Of Spark's start; `spark.driver.extraJavaOptions` come beside them.


@contextmanager
def _java_options(options: str) -> Iterator[None]:
    """Adds options for a Java that is started within; who has given some of their own has thought about it."""
    if not options or _JAVA_OPTIONS in os.environ:
        yield
        return
    os.environ[_JAVA_OPTIONS] = options
    try:
        yield
    finally:
        del os.environ[_JAVA_OPTIONS]


def _start_java(settings: Mapping[str, str], options: str) -> None:
    """Starts the JVM that Spark would start, without what a JVM and Spark's loggers always say on stderr."""
    if SparkContext._gateway is not None:
        return
    ours, javas = os.pipe()
    threading.Thread(target=_pass_on, args=(ours,), daemon=True, name="stderr of Spark").start()
    try:
        conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
        with _java_options(options):
            gateway = launch_gateway(conf, {"stderr": javas})  # type: ignore[no-untyped-call]
        SparkContext._ensure_initialized(gateway=gateway)
    finally:
        os.close(javas)


def _pass_on(source: int) -> None:
    """Copies what comes to stderr, except for noise."""
    with os.fdopen(source, "rb") as lines:
        for line in lines:
            if not _NOISE.search(line):
                os.write(2, line)


# What every start says, and no user can do anything about. The level of Spark's loggers is set only after it has begun.
_NOISE = re.compile(
    rb"^WARNING: (Using incubator modules|A terminally deprecated method|A restricted method|Please consider reporting"
    rb"|Use --enable-native-access|Restricted methods will|sun\.misc\.Unsafe|java\.lang\.|.* has been called by)"
    rb"|^Using Spark's default log4j profile|^Setting (default|Spark) log level|^To adjust logging level"
    rb"| WARN (NativeCodeLoader|Utils|MetricsConfig|SparkContext|S3ABlockOutputStream|S3AInstrumentation)\b"
)


def parse_settings(pairs: list[str]) -> dict[str, str]:
    """`key=value` options as settings.

    >>> parse_settings(["spark.executor.memory=2g"])
    {'spark.executor.memory': '2g'}
    """
    settings = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.startswith("spark."):
            raise InputError(f"expected a setting as spark.key=value, got {pair!r}")
        settings[key] = value
    return settings


def is_local(session: SparkSession) -> bool:
    """Whether executors run in the driver's own process."""
    if is_connect(session):
        return False
    master = session.sparkContext.master or ""
    return master == "local" or master.startswith("local[")


def spark_error(error: Exception) -> TidingsError:
    """An error of Spark as our own, in one line: a file that cannot be read, a full disk."""
    text = str(error)
    if helps := missing_file_system(text):
        return SetupError(helps)
    for sign, kind, what in _SIGNS:
        if sign in text:
            return kind(f"{what}: {_line_with(text, sign)}")
    own = re.findall(r"\btidings\.errors\.(InputError|SetupError): (.+)$", text, re.MULTILINE)
    if own:  # Raised in a Python process of Spark's, and meant for whoever reads it.
        return (InputError if own[-1][0] == "InputError" else SetupError)(own[-1][1][:OWN_LINE_MAX])
    from_python = re.findall(r"^(?!py4j\.)[\w.]*[A-Z]\w*(?:Error|Invalid): .+$", text, re.MULTILINE)
    causes = from_python or re.findall(r"^\s*Caused by: (.+)$", text, re.MULTILINE)
    return SetupError(f"Spark failed: {causes[-1][:LINE_MAX] if causes else _line_with(text, 'Exception')}")


_SIGNS: tuple[tuple[str, type[TidingsError], str], ...] = (
    ("No space left on device", SetupError, "the disk is full"),
    ("Permission denied", SetupError, "no permission to read or write there"),
    ("Mkdirs failed", SetupError, "cannot create a folder"),
    ("Not a directory", SetupError, "cannot create a folder"),
    ("ParentNotDirectoryException", SetupError, "cannot create a folder"),
    ("the file is damaged, or no Parquet", InputError, "a file is damaged or not what its name says"),
    ("FAILED_READ_FILE", InputError, "a file is damaged or not what its name says"),
    ("is not a Parquet file", InputError, "a file is damaged or not what its name says"),
    ("CANNOT_READ_FILE_FOOTER", InputError, "a file is damaged or not what its name says"),
    ("PATH_NOT_FOUND", InputError, "no such file"),
    ("Relative path in absolute URI", InputError, "Spark reads no local file with a colon in its name; rename it"),
    ("MALFORMED", InputError, "a file is damaged or not what its name says"),
    ("EventError: ", InputError, "an event does not fit its type"),
)


def missing_file_system(text: str) -> str:
    """What helps where Spark's error says that it knows no file system for a URI; empty for another error.

    >>> missing_file_system('No FileSystem for scheme "s3"')
    "Spark calls S3 by the scheme of Hadoop's client; write s3a://BUCKET/…"
    """
    if re.search(r"""scheme:? "?s3n?"?\b""", text):
        return "Spark calls S3 by the scheme of Hadoop's client; write s3a://BUCKET/…"
    if "S3AFileSystem not found" in text:
        return "Spark has no file system for s3a:// yet; give it hadoop-aws as --conf spark.jars=… (docs/guide/object-stores.md)"
    if (
        re.search(r"Class \S+FileSystem not found|No FileSystem for scheme", text)
        or "UnsupportedFileSystemException" in text
    ):
        return "Spark has no file system for such URIs; give it its jars as --conf spark.jars=… (docs/guide/object-stores.md)"
    return ""


def _line_with(text: str, sign: str) -> str:
    lines = [line.strip() for line in text.splitlines() if sign in line]
    return (lines or [text.strip().splitlines()[0] if text.strip() else "no reason given"])[0][:LINE_MAX]


def send_package(session: SparkSession) -> None:
    """Sends this installation of Tidings to executors on other hosts, which then need only its dependencies."""
    if is_local(session) or getattr(session, "_tidings_sent", False):
        return
    if is_connect(session):
        session.addArtifacts(str(zipped_package()), pyfile=True)
    else:
        session.sparkContext.addPyFile(str(zipped_package()))
    session._tidings_sent = True  # type: ignore[attr-defined]


def zipped_package() -> Path:
    """The package as a zip file that unpacks itself where it is first imported (see `_UNPACK`)."""
    source = Path(tidings.__file__).parent
    files = sorted(source.rglob("*.py"))
    digest = hashlib.blake2b(b"".join(file.read_bytes() for file in files), digest_size=8).hexdigest()
    target = Path(tempfile.mkdtemp(prefix="tidings-package-")) / "tidings.zip"
    atexit.register(shutil.rmtree, target.parent, ignore_errors=True)
    with zipfile.ZipFile(target, "w") as archive:
        archive.writestr("tidings/__init__.py", _UNPACK.replace("DIGEST", digest))
        # Numba's cache is sent along. Numba trusts it only if the sources have the same modification times.
        for file in (*files, *sorted(source.rglob("*.nb[ci]"))):
            archive.write(file, Path("package/tidings") / file.relative_to(source))
        times = {str(file.relative_to(source)): file.stat().st_mtime_ns for file in files}
        archive.writestr("package/times.json", json.dumps(times))
    return target


# A package that is imported from a zip has no folder for compiled kernels, so every worker would compile them again,
# which takes minutes. The zip therefore holds this code, which unpacks the package into a folder that all workers
# of the host share, now and in later jobs, and imports it from there.
_UNPACK = """
import json, os, shutil, tempfile, zipfile

_archive = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_folder = os.path.join(tempfile.gettempdir(), f"tidings-package-DIGEST-{os.getuid()}")
if not os.path.isdir(_folder):
    _aside = tempfile.mkdtemp(prefix="tidings-package-")
    with zipfile.ZipFile(_archive) as _zip:
        _zip.extractall(_aside, [name for name in _zip.namelist() if name.startswith("package/")])
    with open(os.path.join(_aside, "package", "times.json")) as _times:
        for _name, _time in json.load(_times).items():
            os.utime(os.path.join(_aside, "package", "tidings", _name), ns=(_time, _time))
    try:
        os.rename(_aside, _folder)
    except OSError:  # Another worker was faster.
        shutil.rmtree(_aside, ignore_errors=True)
if os.stat(_folder).st_uid != os.getuid():
    raise ImportError(f"{_folder} belongs to another user; remove it, or set TMPDIR to a folder of your own")
__path__ = [os.path.join(_folder, "package", "tidings")]
__file__ = os.path.join(__path__[0], "__init__.py")
with open(__file__) as _source:
    exec(compile(_source.read(), __file__, "exec"))
"""


def _first_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    named = [line for line in lines if "Exception" in line or "Error" in line]
    return (named or lines or [type(error).__name__])[0].strip()[:LINE_MAX]
