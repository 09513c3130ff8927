"""Who wants this: which of many conditions does an event match?

`Index` is the one to use. `boxes_table` turns conditions into a table that other processes
can make and hand over; `NaiveIndex` is what matching means, and the measure of the rest.
"""

from tidings.matching.boxes import BOXES_SCHEMA, boxes_table
from tidings.matching.explain import Explanation
from tidings.matching.index import Index, Matches
from tidings.matching.naive import NaiveIndex
from tidings.matching.stats import Grid, PartStats, Stats

__all__ = [
    "BOXES_SCHEMA",
    "Explanation",
    "Grid",
    "Index",
    "Matches",
    "NaiveIndex",
    "PartStats",
    "Stats",
    "boxes_table",
]
