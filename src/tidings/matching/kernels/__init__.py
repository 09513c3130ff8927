"""The loops of the index over flat arrays, compiled by Numba and run without the GIL.

In reading order:

    cells       put values into cells, a column at a time
    build       file boxes under grid cells
    match       a batch of events against a segment
    match_one   one event against a segment
    cache       compile a kernel once, and load it from disk afterwards
    threads     run kernels on several threads
"""
