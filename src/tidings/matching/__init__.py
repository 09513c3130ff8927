"""Who wants this: which of many conditions does an event match?

`Index` is the one to use. `boxes_table` turns conditions into a table that other processes
can make and hand over; `NaiveIndex` is what matching means, and the measure of the rest.
"""

from tidings.matching.batch import Matches
from tidings.matching.box_table import BOXES_SCHEMA, boxes_table
from tidings.matching.explain import Explanation
from tidings.matching.index import Index
from tidings.matching.kernels.cache import load_kernels
from tidings.matching.reference import NaiveIndex
from tidings.matching.stats import Effort, Grid, PartStats, Stats

__all__ = [
    "BOXES_SCHEMA",
    "Effort",
    "Explanation",
    "Grid",
    "Index",
    "Matches",
    "NaiveIndex",
    "PartStats",
    "Stats",
    "boxes_table",
    "load_kernels",
]
