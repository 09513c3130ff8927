"""The loops of the index over flat arrays, compiled by Numba and run without the GIL.

In reading order:

    columns     where the columns of a batch are
    cells       put values into cells, a column at a time
    build       file boxes under grid cells
    match       a batch of events against a segment
    match_one   one event against a segment
    match_few   a few events, from the batch to the matches in one call
    keys        keys as words and bytes: what columns and bounds become first
    words       all words of a set in one pass over a text
    pairs       sort and group pairs by counting
    texts       LIKE, parts of texts and numbers in them, for residual conditions
    cache       compile a kernel once, and load it from disk afterwards
    threads     run kernels on several threads
"""
