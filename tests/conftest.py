"""What all tests share: how Hypothesis runs, one Spark session for those that need Spark, and who runs which file."""

from __future__ import annotations

import functools
import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

from tests import java_classes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# No deadline: a shared machine stalls at will, and a slow example is no wrong one. A failure
# prints the line that replays it. CI takes the same examples each time; new ones are found by people at work.
hypothesis.settings.register_profile("tidings", deadline=None, print_blob=True, derandomize=bool(os.environ.get("CI")))
hypothesis.settings.register_profile("quick", hypothesis.settings.get_profile("tidings"), max_examples=15)
hypothesis.settings.load_profile("tidings")


# Started in the background by a script, tests would hand down that Ctrl-C is ignored to the programs they interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# For every Java that tests start, by whatever command.
for _options in ("SPARK_SUBMIT_OPTS", "SPARK_DAEMON_JAVA_OPTS"):
    os.environ.setdefault(_options, java_classes.options())


SLOW_FOLDERS = {"simulation", "lab", "store", "security"}
SLOW_FILES = {  # Each of their tests is short, but there are many.
    "matching/test_adversarial.py",
    "cli/test_grant.py",
    "cli/test_refusals.py",
    "cli/test_subscription.py",
    "cli/test_type.py",
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what uses the `spark` fixture, and worlds and sweeps as slow, before `-m` chooses.

    What takes long comes first, above all what one process has to run alone: then all of them end at about the same time.
    """
    for item in items:
        if "/".join(item.path.parts[-2:]) in SLOW_FILES or not SLOW_FOLDERS.isdisjoint(item.path.parts):
            item.add_marker("slow")
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker("spark")
    long = {item.path for item in items if any(map(item.get_closest_marker, ("spark", "live", "slow")))}
    items.sort(key=lambda item: (not shares_spark(item.path), item.path not in long))


def pytest_collection_finish() -> None:
    """Thousands of tests and all modules stay to the end: the garbage collector need not look at them again and again."""
    gc.freeze()


@functools.cache
def shares_spark(path: Path) -> bool:
    """Whether a file's tests use the `spark` fixture, as far as its text tells."""
    return path.suffix == ".py" and "spark: SparkSession" in path.read_text()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """As `--dist loadfile` has it, but that all files that share the Spark session go to one process.

    A second session is a second Java, which loads and compiles all of Spark once more: a minute of a core.
    """
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    scheduler = LoadFileScheduling(config, log)
    file_of = scheduler._split_scope
    scheduler._split_scope = lambda test: "spark" if shares_spark(config.rootpath / file_of(test)) else file_of(test)
    return scheduler


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Embedded Spark with two cores, ANSI mode and UTC: the oracle that conditions are held against."""
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # Else workers are whichever python3 is on PATH.
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master("local[2]").appName("tidings tests")
    for key, value in _SPARK_CONFIG.items():
        builder = builder.config(key, value)
    session = builder.config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse"))).getOrCreate()
    yield session
    session.stop()


_SPARK_CONFIG = {
    "spark.driver.memory": "1g",
    "spark.log.level": "ERROR",
    "spark.python.daemon.module": "tidings.pipeline.workers",  # As `start` has it.
    "spark.sql.ansi.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.timeType.enabled": "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
