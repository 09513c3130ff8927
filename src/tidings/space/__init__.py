"""The space of events: each attribute an axis of cells, divided into zones by a K-D tree.

An axis is a range of small ints, the cells; an event is a point, a zone a box of cells. How values
become cells is up to the user: `matching` cuts axes at the constants of conditions, Spanhop
quantises them.

In reading order:

    zone   a box of cells, and how two boxes relate
    path   a zone by the cuts that lead to it, as Spanhop's brokers name theirs
    tree   a K-D tree over many points and boxes at once, as Spark partitions by it
"""

from tidings.space.path import Path, Space, halves, sibling, siblings, within
from tidings.space.tree import BalancedTree, KdTree, balance
from tidings.space.zone import Zone

__all__ = [
    "BalancedTree",
    "KdTree",
    "Path",
    "Space",
    "Zone",
    "balance",
    "halves",
    "sibling",
    "siblings",
    "within",
]
