"""Residual conditions in bulk: what is not an interval, decided for many pairs of event and condition at once.

A residual is evaluated only for the pairs that the boxes left in doubt, and without Python per row:

    residuals    the residual conditions of a segment, and how each is evaluated
    expression   conditions as expressions that share what is the same in them
    frame        the columns that expressions have over a batch's rows
    column       values with NULLs, three-valued logic
    operators    comparison and arithmetic
    decimals     decimals, with all their digits
    items        what is asked of arrays and maps
    functions    the functions that conditions call
    patterns     LIKE
    indexable    residuals that are intervals of texts read backwards
    words        boxes filed under the words that their residuals look for
"""
