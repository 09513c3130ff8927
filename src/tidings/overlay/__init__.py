"""Routing protocols: one node's part in each, sans-IO, without clock, socket or keys.

A router takes what happens to its node (a message, a wake, a subscription) and returns effects, which a live broker or
the simulator carries out. Protocols are found by name, with `protocol(name)`.

What all protocols share, in reading order:

    messages           identities, packets and messages; their encoding
    interest           what a router knows of a subscription
    origin_seals       what a node says about itself, signed by it and passed on by others
    router             the contract: `Router`, effects, `Protocol` and its `Guarantee`s
    dedup              ids already handled
    crowding           which entry of a full table makes way
    failure_detector   peers that have been silent for too long
    retransmit         messages that are sent again until they are acknowledged

One package per protocol, each with its theory of operation:

    baselines          flooding, gossip, TERA and a simple random walk, to compare with
    prefix             what prefix networks share: cells of identifiers, liveness, searches
    pastry             one with a ring and leaf sets, below hermes and irbr
    tapestry           one whose nodes keep the nearest by network, below irbr
    irbr               from range to range of the identifier space
    hermes             a rendezvous and a multicast tree for each event type
    immune             a small connected core that forwards for a scale-free network
    spanhop            zones of the content space
    random_graph       a random graph with access points, below cbdlo, tera and simple
    cbdlo              one overlay per attribute, partitioned by value
"""

from importlib import import_module

from tidings.errors import InputError, did_you_mean
from tidings.filters import View
from tidings.overlay.dedup import SeenIds
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
    check_size,
    key_of,
)
from tidings.overlay.messages import (
    MESSAGE_NAMES,
    SEALED,
    Codec,
    EventId,
    Header,
    Message,
    NodeId,
    Packet,
    Peer,
    SubscriptionId,
    encoded,
    peers_in,
    rewritten,
    size_of,
)
from tidings.overlay.origin_seals import OriginSeals, UnknownSpeaker, speakers_in
from tidings.overlay.router import (
    Completed,
    Count,
    Deliver,
    Effect,
    Failed,
    Guarantee,
    MapEntry,
    Place,
    Protocol,
    Router,
    Send,
    Token,
    TreeEntry,
    WakeAt,
)
from tidings.overlay.spanhop.next_hop import Hop, RouteHeader, RoutingState, hops_max, next_hop
from tidings.overlay.spanhop.static_partition import Kept, Tiling

NAMES = ("flooding", "gossip", "immune", "hermes", "irbr", "cbdlo", "tera", "simple", "spanhop")
"""The protocols there are. `pastry` and `tapestry` are not among them: hermes and irbr run on them."""
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
    "MESSAGE_NAMES",
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
    "Kept",
    "MapEntry",
    "Message",
    "NodeId",
    "OriginSeals",
    "Packet",
    "Peer",
    "Place",
    "Protocol",
    "Ranges",
    "Roles",
    "RouteHeader",
    "Router",
    "RoutingState",
    "SeenIds",
    "Send",
    "Span",
    "Sql",
    "SubscriptionId",
    "Tiling",
    "Token",
    "TreeEntry",
    "UnknownSpeaker",
    "View",
    "WakeAt",
    "check_size",
    "encoded",
    "guarded",
    "hops_max",
    "key_of",
    "literal",
    "next_hop",
    "peers_in",
    "protocol",
    "rewritten",
    "size_of",
    "spanning_tree",
    "speakers_in",
]
