"""The index over millions of conditions: which of them does an event match?

`Index` is the one to use. `boxes_table` turns conditions into a table, and `parse_texts` their texts into columns,
so that many processes can parse and normalise for one index. `NaiveIndex` defines what matching means; the tests hold
`Index` to it.

In short: the constants of conditions cut each attribute's values into cells, so that values of
all types become small ints. A condition becomes boxes of cells. Each box is filed in a grid
over its two most selective axes. A batch of events visits the grids in the order of its cells,
compares two exact sides of a box with one subtraction, checks the boxes that are left on their
other sides, and evaluates last what is not an interval.

In reading order:

    index           adding, removing, matching, explaining: all that users call
    reference       the same written plainly, and what cells are
    box_table       conditions as columns of boxes
    bulk            texts by the hundred thousand into such columns
    axes            values into cells
    grid            where boxes are filed: selectivity, plan, memory layout
    segment         an immutable index of some subscriptions
    live_segment    a segment in use: residual conditions, removals
    compaction      several segments into one
    write_buffer    the latest additions
    event_packing   one event at a time
    batch           many events at a time, on several threads
    id_dictionary   ids by number, numbers by id
    storage         a saved index
    diagnostics     explanations and statistics
    residuals       what is not an interval, evaluated in columns
    kernels         the loops, compiled by Numba
"""

from tidings.matching.batch import Matches
from tidings.matching.box_table import BOXES_SCHEMA, BoxColumns, boxes_table, one_chunk, read_table, table_of
from tidings.matching.bulk import ParsedTexts, parse_texts
from tidings.matching.diagnostics import Effort, Explanation, Grid, PartStats, Stats
from tidings.matching.index import Index, IndexTuning
from tidings.matching.kernels.cache import load_kernels
from tidings.matching.kernels.keys import key_column
from tidings.matching.reference import NaiveIndex

__all__ = [
    "BOXES_SCHEMA",
    "BoxColumns",
    "Effort",
    "Explanation",
    "Grid",
    "Index",
    "IndexTuning",
    "Matches",
    "NaiveIndex",
    "ParsedTexts",
    "PartStats",
    "Stats",
    "boxes_table",
    "key_column",
    "load_kernels",
    "one_chunk",
    "parse_texts",
    "read_table",
    "table_of",
]
