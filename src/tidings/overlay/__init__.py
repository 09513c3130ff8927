"""Which way: one node's part in each protocol, without clock, socket or keys.

`router` is the contract, `wire` what crosses a link, `interest` what a router knows of a
subscription; `liveness` and `seen` keep book for whoever needs it. Protocols are found by
name, with `protocol(name)`. Most are a chapter of their own, with parts they stand on:

    flooding, gossip     nothing
    immune               immune_neighbour, immune_core; backbone, pointers
    hermes, irbr         ring_router; ring with its places and lookup
    hermes               trees, grove, tending
    irbr                 ranges, announcing, custody, mourning, comparing
    spanhop              the space: claims, ancestors, tiling, quantise, neighbourhood, upkeep
                         the way through it: carrying, wayfinding, legs; mgnp and gnp
                         who wants what in it: planting, sowing, keeping, notifying
                         zones that change hands: moving, giving, taking
    cbdlo, tera, simple  graph_router; random_graph, sampling, access, crawl, courier
    cbdlo                errands, telling, cdm, cuts; topologies, membership, estate, attribute_tree, office, stewardship,
                         deputies

What a protocol says is in its `_messages`, and how a network of it begins that has stood for long in its `_settled`.
"""

from importlib import import_module

from tidings.errors import InputError, did_you_mean
from tidings.filters import View
from tidings.overlay.immune.global_construction import Graph, Roles, guarded, literal, spanning_tree
from tidings.overlay.interest import (
    AnyWanted,
    Box,
    Everything,
    Extent,
    Interest,
    InterestFilter,
    Ranges,
    Span,
    Sql,
    key_of,
)
from tidings.overlay.messages import (
    SEALED,
    Codec,
    EventId,
    Header,
    Message,
    NodeId,
    Packet,
    Peer,
    SubscriptionId,
    name_of,
    peers_in,
    rewritten,
    size_of,
)
from tidings.overlay.router import (
    Completed,
    Count,
    Deliver,
    Effect,
    Failed,
    Guarantee,
    Place,
    Protocol,
    Router,
    Send,
    Token,
    WakeAt,
)
from tidings.overlay.spanhop.next_hop import Hop, Standing, Trip, hops_max, next_hop
from tidings.overlay.spanhop.static_partition import Tiling

NAMES = ("flooding", "gossip", "immune", "hermes", "irbr", "cbdlo", "tera", "simple", "spanhop")
"""The protocols there are. `pastry` is not among them: hermes and irbr run on it."""
_BASELINES = frozenset({"flooding", "gossip", "simple", "tera"})


def protocol(name: str) -> Protocol:
    """The protocol of this name; raises InputError with the nearest name if there is none.

    >>> protocol("flooding").name
    'flooding'
    """
    if name not in NAMES:
        hint = did_you_mean(name, NAMES) or f"there are {', '.join(NAMES)}"
        raise InputError(f"there is no protocol {name!r}; {hint}")
    home = f"baselines.{name}" if name in _BASELINES else f"{name}.router"
    found = import_module(f"tidings.overlay.{home}").PROTOCOL  # On demand: a broker runs one of them.
    assert isinstance(found, Protocol)
    return found


__all__ = [
    "NAMES",
    "SEALED",
    "AnyWanted",
    "Box",
    "Codec",
    "Completed",
    "Count",
    "Deliver",
    "Effect",
    "EventId",
    "Everything",
    "Extent",
    "Failed",
    "Graph",
    "Guarantee",
    "Header",
    "Hop",
    "Interest",
    "InterestFilter",
    "Message",
    "NodeId",
    "Packet",
    "Peer",
    "Place",
    "Protocol",
    "Ranges",
    "Roles",
    "Router",
    "Send",
    "Span",
    "Sql",
    "Standing",
    "SubscriptionId",
    "Tiling",
    "Token",
    "Trip",
    "View",
    "WakeAt",
    "guarded",
    "hops_max",
    "key_of",
    "literal",
    "name_of",
    "next_hop",
    "peers_in",
    "protocol",
    "rewritten",
    "size_of",
    "spanning_tree",
]
