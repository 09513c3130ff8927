"""Where it lives: each attribute an axis, cut into cells by the constants that conditions mention; zones; the K-D tree."""

from tidings.space.path import Path, Space, halves, sibling, siblings, within
from tidings.space.tree import Balanced, Tree, balance
from tidings.space.zone import Zone

__all__ = [
    "Balanced",
    "Path",
    "Space",
    "Tree",
    "Zone",
    "balance",
    "halves",
    "sibling",
    "siblings",
    "within",
]
