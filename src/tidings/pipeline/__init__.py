"""Content-based matching on Spark: events and subscriptions as tables, in batch or as a stream, exactly once.

`match` joins two tables. `Matching` does the same, and also has the plan and the rejected subscriptions. `register`
gives SQL functions that do. `match_files` goes from files to files. `run` runs a pipeline that a file describes,
until it is stopped or its sources are empty, and `read_deliveries` reads what it has committed to files. `admit`
decrypts events, and `secure` encrypts deliveries for their recipients, with keys from a `KeyFile`. `LiveNetwork` is
the Spark data source `tidings`, to be registered with a session.

In reading order:

    tables       the tables that steps pass to one another, by their columns
    arrow_types  schemas of Spark as Arrow's, in all releases of Spark
    session      starts Spark; errors of Spark as our own
    storage      files on local disks, HDFS and object stores; what is put only if it is absent
    s3_settings  Spark's settings of S3, for the other clients that open the same buckets
    worker_files files and objects as Python workers open them
    preflight    mistakes that are found before Spark starts
    workers      Python workers that are forked with Tidings already loaded
    match_job    from files to files (`tidings match`)
    config       the file that describes a pipeline
    stream_job   the streaming job (`tidings run`), and its metrics
    sources/     where events and subscriptions come from
    matching/    the match itself: plans, index, batches
    parquet/     result files that the workers write themselves
    security/    decrypting events, encrypting deliveries
    sinks/       where deliveries go
    connectors/  Kafka, and the Spark data source `tidings`
    state/       the checkpoint: epochs, batch log and subscription versions
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tidings.pipeline.matching.match import Matching, Plan, PlanName, match
from tidings.pipeline.security.decrypt import admit, genuine, refused
from tidings.pipeline.security.encrypt import secure
from tidings.pipeline.security.recipients import Rest

if TYPE_CHECKING:
    from tidings.pipeline.config import Pipeline, read_pipeline
    from tidings.pipeline.connectors.spark_datasource import LiveNetwork
    from tidings.pipeline.connectors.table_format import TableFormat, compact_table, connector_for
    from tidings.pipeline.match_job import Outcome, match_files
    from tidings.pipeline.matching.sql_functions import register
    from tidings.pipeline.preflight import check_files, check_pipeline, is_small
    from tidings.pipeline.security.keyfile import KeyFile, write_keys
    from tidings.pipeline.security.nonce_leases import NonceLeases, stamp, stamp_files
    from tidings.pipeline.session import parse_settings, start
    from tidings.pipeline.sinks.compaction import check_deliveries, compact_deliveries
    from tidings.pipeline.sinks.files import list_deliveries, read_deliveries
    from tidings.pipeline.state.batch_log import BatchLog, BatchRecords, Counts
    from tidings.pipeline.storage import storage_at
    from tidings.pipeline.stream_job import BatchDone, BatchMetrics, run, totals
    from tidings.pipeline.tables import delivery_id

    # Names of version 0.1, which keep working.
    Ledger = BatchLog
    Leases = NonceLeases
    Metered = BatchMetrics

__all__ = [
    "BatchDone",
    "BatchLog",
    "BatchMetrics",
    "BatchRecords",
    "Counts",
    "KeyFile",
    "Leases",
    "Ledger",
    "LiveNetwork",
    "Matching",
    "Metered",
    "NonceLeases",
    "Outcome",
    "Pipeline",
    "Plan",
    "PlanName",
    "Rest",
    "TableFormat",
    "admit",
    "check_deliveries",
    "check_files",
    "check_pipeline",
    "compact_deliveries",
    "compact_table",
    "connector_for",
    "delivery_id",
    "genuine",
    "is_small",
    "list_deliveries",
    "match",
    "match_files",
    "parse_settings",
    "read_deliveries",
    "read_pipeline",
    "refused",
    "register",
    "run",
    "secure",
    "stamp",
    "stamp_files",
    "start",
    "storage_at",
    "totals",
    "write_keys",
]

# The registry's database, the live network and Spark's readers take a second to load. Every Python worker imports
# this package and does not need them, so these names are loaded at first use.
_MODULES = {
    "config": ("Pipeline", "read_pipeline"),
    "connectors.table_format": ("TableFormat", "compact_table", "connector_for"),
    "sinks.compaction": ("check_deliveries", "compact_deliveries"),
    "preflight": ("check_files", "check_pipeline", "is_small"),
    "matching.sql_functions": ("register",),
    "match_job": ("Outcome", "match_files"),
    "stream_job": ("BatchDone", "BatchMetrics", "run", "totals"),
    "security.keyfile": ("KeyFile", "write_keys"),
    "security.nonce_leases": ("NonceLeases", "stamp", "stamp_files"),
    "state.batch_log": ("BatchLog", "BatchRecords", "Counts"),
    "storage": ("storage_at",),
    "connectors.spark_datasource": ("LiveNetwork",),
    "sinks.files": ("list_deliveries", "read_deliveries"),
    "session": ("parse_settings", "start"),
    "tables": ("delivery_id",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}
_OLD_NAMES = {"Ledger": "BatchLog", "Leases": "NonceLeases", "Metered": "BatchMetrics"}


def __getattr__(name: str) -> Any:
    current = _OLD_NAMES.get(name, name)
    if current not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULE_OF[current]}"), current)
