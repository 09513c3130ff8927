"""Big data: events and subscriptions as Spark tables, matched in batch or as a stream, and delivered exactly once.

`match` joins two tables. `Matching` is the same with a plan to look at and the rejected
subscriptions. `match_files` goes from files to files, `run` runs a pipeline that a file
describes until it is stopped or its sources are empty. `admit` opens sealed events, and `secure`
seals deliveries for their recipients, with keys from a `KeyFile`. `LiveNetwork` is the Spark data
source `tidings`, for who registers it.
"""

from tidings.pipeline.admit import admit, genuine, refused
from tidings.pipeline.config import Pipeline, read_pipeline
from tidings.pipeline.files import Outcome, match_files
from tidings.pipeline.job import BatchDone, run
from tidings.pipeline.keyfile import KeyFile, write_keys
from tidings.pipeline.leases import Leases, stamp, stamp_files
from tidings.pipeline.ledger import Counts, Ledger
from tidings.pipeline.live import LiveNetwork
from tidings.pipeline.match import Matching, Plan, PlanName, match
from tidings.pipeline.metrics import Metered
from tidings.pipeline.secure import Rest, secure
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
