"""The options of CBDLO, with the presets `paper` and `robust`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from tidings.errors import InputError, did_you_mean
from tidings.overlay.cbdlo.conjunction_counter import PARTIAL_MAX, PARTIAL_S
from tidings.overlay.random_graph.graph import GraphOptions
from tidings.overlay.random_graph.partition import INDEXED_MAX
from tidings.overlay.random_graph.random_walk import HOPS_MAX

Profile: TypeAlias = Literal["robust", "paper"]
Mode: TypeAlias = Literal["full", "count"]

COORDINATORS_MAX = 64  # Of one attribute: each event visits them all.


@dataclass(frozen=True, slots=True)
class CbdloOptions:
    """How a node of CBDLO behaves. The defaults are the preset `robust`.

    >>> CbdloOptions.of(profile="paper", walkers=3, table_size=20).graph.table_size
    20
    """

    graph: GraphOptions = field(default_factory=GraphOptions.robust)
    """The options of the lower layer."""
    reliable: bool = True
    """Whether a publisher first uses its own table, keeps an event until all subscribers have acknowledged it, and
    retries. If not, it starts one walk for each attribute and never learns what becomes of it."""
    mode: Mode = "full"
    """`full`: owners of partitions check the whole interest. `count`: subscribers count the attributes that match."""
    walkers: int = 2
    """Random walks for each attribute of an event, where the publisher is reliable."""
    retries: int = 2
    """How often a reliable publisher repeats walks that found no topology."""
    fingers: bool = True
    """Whether owners also know distant partitions, so that an event takes shortcuts through the tree."""
    coordinators: int = 1
    """Topologies, and so coordinators, of one attribute: the same number at all nodes of a network. A node registers in
    the one that the hash of its id says; an event visits all of them. So one node's share of a popular attribute
    shrinks, and an event takes more messages."""
    indexed_max: int = INDEXED_MAX
    """Attributes that an interest is indexed under in mode `full`; in mode `count` it is indexed under all."""
    trace_max: int = HOPS_MAX
    """Nodes that a walk remembers."""
    partial_s: float = PARTIAL_S
    """Seconds after which an incomplete count of matched attributes expires."""
    partial_max: int = PARTIAL_MAX
    """Incomplete counts that a node keeps."""

    def __post_init__(self) -> None:
        if self.mode not in ("full", "count"):
            raise InputError(f"expected mode full or count, got {self.mode}")
        if self.trace_max < 0 or self.indexed_max < 1:
            raise InputError(f"expected trace_max ≥ 0 and indexed_max ≥ 1, got {self.trace_max}, {self.indexed_max}")
        if not 1 <= self.coordinators <= COORDINATORS_MAX:
            raise InputError(f"expected coordinators from 1 to {COORDINATORS_MAX}, got {self.coordinators}")

    @classmethod
    def paper(cls) -> CbdloOptions:
        """As published: one unacknowledged walk for each attribute, counting subscribers, tree links only."""
        return cls(graph=GraphOptions.paper(), reliable=False, mode="count", walkers=1, fingers=False)

    @classmethod
    def robust(cls) -> CbdloOptions:
        """The defaults, which live networks use."""
        return cls()

    @classmethod
    def of(cls, profile: Profile = "robust", **named: Any) -> CbdloOptions:
        """The options that a config file names, and for the rest those of the profile."""
        if profile not in ("robust", "paper"):
            raise InputError(f"expected profile robust or paper, got {profile}")
        for name in named:
            if name not in _NAMES:
                raise InputError(f"cbdlo: unknown option {name!r}; {did_you_mean(name, _NAMES) or _KNOWN}")
        preset = cls.paper() if profile == "paper" else cls.robust()
        given = {name: value for name, value in named.items() if value is not None or name not in _BY_PROFILE}
        graph = replace(preset.graph, **{name: given.pop(name) for name in _GRAPH_NAMES if name in given})
        return replace(preset, graph=graph, **given)

    @property
    def indexed(self) -> int | None:
        """How many attributes an interest is indexed under; None for all."""
        return self.indexed_max if self.mode == "full" else None


_GRAPH_NAMES = ("view_size", "table_size", "hops_max", "period_s", "policy")
_BY_PROFILE = ("mode", "policy", "walkers", "retries", "fingers")  # None stands for the profile's value.
_OWN_NAMES = (
    "mode", "walkers", "retries", "fingers", "coordinators", "indexed_max", "trace_max", "partial_s", "partial_max",
)  # fmt: skip
_NAMES = ("profile", *_GRAPH_NAMES, *_OWN_NAMES)
_KNOWN = f"the options are {', '.join(_NAMES)}"
