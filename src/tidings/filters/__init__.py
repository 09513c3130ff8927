"""Conditions in SQL over an event's attributes: what they mean, and how two of them relate.

`parse` returns a `Condition`: one syntax tree with several forms that agree. `evaluate` is the
definition, `matches` the fast test, `to_spark` the text for Spark, and `boxes` the normal form
that indexes and routers work on. `covers` and `overlaps` compare two conditions; `may_match`
answers for a node that cannot read every attribute.

In reading order:

    condition   a parsed condition and all that can be asked of it
    syntax      the nodes of the syntax tree, and its canonical text
    parse       from text to a typed tree
    evaluate    three-valued evaluation: the definition
    like        LIKE in linear time
    functions   the functions that conditions can call
    decimals    arithmetic of decimals
    intervals   sets of values of one attribute
    normal      the normal form: a union of boxes
    compile     the boxes as a closure
    templates   conditions that differ only in their constants
    cover       covering and overlap
    view        conditions over attributes that cannot all be read
    spark       the same as Spark SQL
    cesql       CESQL as its specification has it, with casts and errors, beside all of the above
"""

from tidings.filters import syntax
from tidings.filters.cesql import CesqlErrorKind, CesqlExpression, CesqlResult, parse_cesql
from tidings.filters.condition import Condition, parse
from tidings.filters.cover import covers, overlaps
from tidings.filters.evaluate import evaluate
from tidings.filters.functions import FUNCTIONS, INT_LENGTH_MAX, WHITESPACE
from tidings.filters.intervals import DOMAIN, Intervals, anything, next_key
from tidings.filters.like import LikeSegment, like_segments
from tidings.filters.normal import BOXES_MAX, Box, boxes_of
from tidings.filters.parse import LENGTH_MAX, NESTING_MAX, guess_type, parse_tree, parse_value, plain_names
from tidings.filters.syntax import (
    Node,
    attributes_of,
    children,
    format_tree,
    format_value,
    quote_name,
    quote_string,
)
from tidings.filters.view import View, may_match

__all__ = [
    "BOXES_MAX",
    "DOMAIN",
    "FUNCTIONS",
    "INT_LENGTH_MAX",
    "LENGTH_MAX",
    "NESTING_MAX",
    "WHITESPACE",
    "Box",
    "CesqlErrorKind",
    "CesqlExpression",
    "CesqlResult",
    "Condition",
    "Intervals",
    "LikeSegment",
    "Node",
    "View",
    "anything",
    "attributes_of",
    "boxes_of",
    "children",
    "covers",
    "evaluate",
    "format_tree",
    "format_value",
    "guess_type",
    "like_segments",
    "may_match",
    "next_key",
    "overlaps",
    "parse",
    "parse_cesql",
    "parse_tree",
    "parse_value",
    "plain_names",
    "quote_name",
    "quote_string",
    "syntax",
]
