"""What all tests share: how Hypothesis runs, and one Spark session for those that need Spark."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import hypothesis
import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# No deadline: a shared machine stalls at will, and a slow example is no wrong one. A failure
# prints the line that replays it. CI takes the same examples each time; new ones are found by people at work.
hypothesis.settings.register_profile("tidings", deadline=None, print_blob=True, derandomize=bool(os.environ.get("CI")))
hypothesis.settings.register_profile("quick", hypothesis.settings.get_profile("tidings"), max_examples=15)
hypothesis.settings.load_profile("tidings")


# For every Java that tests start, by whatever command: they end before its second compiler pays.
for _options in ("SPARK_SUBMIT_OPTS", "SPARK_DAEMON_JAVA_OPTS"):
    os.environ.setdefault(_options, "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


SLOW_FOLDERS = {"simulation", "lab", "store", "security"}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what uses the `spark` fixture, and worlds and sweeps as slow, before `-m` chooses.

    What takes long comes first, for then the two processes that share the files end at about the same time.
    """
    for item in items:
        if not SLOW_FOLDERS.isdisjoint(item.path.parts):
            item.add_marker("slow")
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker("spark")
    long = {item.path for item in items if any(map(item.get_closest_marker, ("spark", "live", "slow")))}
    items.sort(key=lambda item: item.path not in long)


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
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
