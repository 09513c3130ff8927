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

# Loaded at once: they are named like their files, and a file that is loaded later takes its name here for itself.
from tidings.pipeline.admit import admit, genuine, refused
from tidings.pipeline.match import Matching, Plan, PlanName, match
from tidings.pipeline.recipients import Rest
from tidings.pipeline.secure import secure

if TYPE_CHECKING:
    from tidings.pipeline.config import Pipeline, read_pipeline
    from tidings.pipeline.files import Outcome, match_files
    from tidings.pipeline.job import BatchDone, run
    from tidings.pipeline.keyfile import KeyFile, write_keys
    from tidings.pipeline.leases import Leases, stamp, stamp_files
    from tidings.pipeline.ledger import Counts, Ledger
    from tidings.pipeline.live import LiveNetwork
    from tidings.pipeline.metrics import Metered
    from tidings.pipeline.session import parse_settings, start
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
    "files": ("Outcome", "match_files"),
    "job": ("BatchDone", "run"),
    "keyfile": ("KeyFile", "write_keys"),
    "leases": ("Leases", "stamp", "stamp_files"),
    "ledger": ("Counts", "Ledger"),
    "live": ("LiveNetwork",),
    "metrics": ("Metered",),
    "session": ("parse_settings", "start"),
    "tables": ("delivery_id",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
