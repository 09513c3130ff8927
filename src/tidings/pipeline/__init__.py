"""Big data: events and subscriptions as Spark tables, matched in batch or as a stream, and delivered exactly once.

`match` joins two tables. `Matching` is the same with a plan to look at and the rejected
subscriptions. `match_files` goes from files to files, `run` runs a pipeline that a file
describes until it is stopped or its sources are empty. `admit` opens sealed events, and `secure`
seals deliveries for their recipients, with keys from a `KeyFile`. `LiveNetwork` is the Spark data
source `tidings`, for who registers it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tidings.pipeline.matching.match import Matching, Plan, PlanName, match

# Loaded at once: they are named like their files, and a file that is loaded later takes its name here for itself.
from tidings.pipeline.security.decrypt import admit, genuine, refused
from tidings.pipeline.security.encrypt import secure
from tidings.pipeline.security.recipients import Rest

if TYPE_CHECKING:
    from tidings.pipeline.config import Pipeline, read_pipeline
    from tidings.pipeline.connectors.spark_datasource import LiveNetwork
    from tidings.pipeline.match_job import Outcome, match_files
    from tidings.pipeline.metrics import Metered
    from tidings.pipeline.security.keyfile import KeyFile, write_keys
    from tidings.pipeline.security.nonce_leases import Leases, stamp, stamp_files
    from tidings.pipeline.session import parse_settings, start
    from tidings.pipeline.state.batch_log import Counts, Ledger
    from tidings.pipeline.stream_job import BatchDone, run
    from tidings.pipeline.tables import delivery_id

__all__ = [
    "BatchDone",
    "Counts",
    "KeyFile",
    "Leases",
    "Ledger",
    "LiveNetwork",
    "Matching",
    "Metered",
    "Outcome",
    "Pipeline",
    "Plan",
    "PlanName",
    "Rest",
    "admit",
    "delivery_id",
    "genuine",
    "match",
    "match_files",
    "parse_settings",
    "read_pipeline",
    "refused",
    "run",
    "secure",
    "stamp",
    "stamp_files",
    "start",
    "write_keys",
]

# The registry's database, the live network and Spark's readers take a second to load. Every Python worker
# passes this door and has no use for them. So these names are loaded when they are asked for.
_HOMES = {
    "config": ("Pipeline", "read_pipeline"),
    "match_job": ("Outcome", "match_files"),
    "stream_job": ("BatchDone", "run"),
    "security.keyfile": ("KeyFile", "write_keys"),
    "security.nonce_leases": ("Leases", "stamp", "stamp_files"),
    "state.batch_log": ("Counts", "Ledger"),
    "connectors.spark_datasource": ("LiveNetwork",),
    "metrics": ("Metered",),
    "session": ("parse_settings", "start"),
    "tables": ("delivery_id",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
