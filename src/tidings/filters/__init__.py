"""What is wanted: conditions in SQL over an event's attributes, and how they relate.

`parse` gives a `Condition`: one tree with several meanings that all agree. `evaluate` is the
definition, `matches` the fast test, `to_spark` the text for Spark, `boxes` the normal form
that spaces, indexes and routers work on. `covers` and `overlaps` compare two conditions;
`may_match` answers for a node that cannot read every attribute.
"""

from tidings.filters.condition import Condition, parse
from tidings.filters.cover import covers, overlaps
from tidings.filters.evaluate import evaluate
from tidings.filters.functions import FUNCTIONS
from tidings.filters.intervals import DOMAIN, Intervals, anything, next_key
from tidings.filters.normal import BOXES_MAX, Box, boxes_of
from tidings.filters.parse import LENGTH_MAX, NESTING_MAX, guess_type, parse_tree, parse_value
from tidings.filters.syntax import Node, attributes_of, children, format_tree, quote_name, quote_string
from tidings.filters.view import View, may_match

__all__ = [
    "BOXES_MAX",
    "DOMAIN",
    "FUNCTIONS",
    "LENGTH_MAX",
    "NESTING_MAX",
    "Box",
    "Condition",
    "Intervals",
    "Node",
    "View",
    "anything",
    "attributes_of",
    "boxes_of",
    "children",
    "covers",
    "evaluate",
    "format_tree",
    "guess_type",
    "may_match",
    "next_key",
    "overlaps",
    "parse",
    "parse_tree",
    "parse_value",
    "quote_name",
    "quote_string",
]
