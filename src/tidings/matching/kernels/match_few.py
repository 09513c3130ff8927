"""A few events against a segment: from an exported batch to pairs in one call.

With few rows most of the time goes into calls: four kernels, each of which takes arrays one by one. So this one does
their work behind one address, with the address book of `match_one.py`.

Numba's cache looks only at this file: after a change in `match.py`, `cells.py` or `columns.py`, remove
`src/tidings/matching/kernels/__pycache__`.
"""

# mypy: disable-error-code="call-arg, no-untyped-def, no-untyped-call"
# Numba infers types itself; the plain twins of the kernels are fully checked.

from __future__ import annotations

import numpy as np
from numba import carray, types  # type: ignore[attr-defined]

from tidings.matching.kernels.cache import kernel
from tidings.matching.kernels.cells import COLUMN_SIZE, cells_of, pointer
from tidings.matching.kernels.columns import places_of
from tidings.matching.kernels.match import DOUBTFUL, MATCHES, match_cells
from tidings.matching.kernels.match_one import axes_at, layout_at

BOOK_SIZE = 2 * 18


@kernel(types.boolean(types.int64, types.int64, types.int64, types.uint64, types.uint64[::1], types.int64[::1]))
def match_few(book_at, batch_at, count, first, out, totals):
    """Writes the pairs that match, and behind them those in doubt, or returns False if there is no room for all.

    book_at         the address of `address_book` of the segment, for batches
    batch_at        where the batch is: a `struct ArrowArray` of so many rows, all read in place
    first, totals   as `match.match_events` says
    """
    book = carray(pointer(book_at), BOOK_SIZE, np.int64)
    axes, layout = axes_at(book), layout_at(book)
    attributes = carray(pointer(book[30]), book[31], np.int32)
    is_text = carray(pointer(book[32]), book[33], np.uint8)
    places = np.empty((len(attributes), COLUMN_SIZE), np.int64)
    places_of(batch_at, attributes, is_text, places)
    columns = np.empty((len(attributes) + 1, count), np.int32)
    cells_of(axes.kind, axes.rows, axes.keys, axes.table, axes.text_ptr, axes.text_bytes, places, columns)
    for i in range(count):
        columns[len(attributes), i] = 0
    matched, doubtful = match_cells(columns, False, layout, first, out, totals)
    matches, doubts = totals[MATCHES], totals[DOUBTFUL]
    if matches + doubts > len(out):
        return False
    for i in range(matches):
        out[i] = matched[i]  # Which is another array if there were more candidates than room.
    for i in range(doubts):
        out[matches + i] = doubtful[i]
    return True
