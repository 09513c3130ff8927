"""The contract: what a router takes, what it may answer, and how a protocol describes itself.

A `Router` is one node's part in a protocol. It has no clock, no socket, no thread and no
source of randomness of its own: time comes in as `now` (seconds, never backward),
randomness as a seeded `random.Random` given when it is made. It returns a list of effects,
which a simulated world or a live broker carries out in order.

    what happens to a node                  what it may answer
    start, join, leave                      Send       a message to a peer
    publish, subscribe, unsubscribe         Deliver    a packet that this node's own subscribers may want
    receive a message, wake up              WakeAt     a later moment
    unsent, peer_down, peer_up              Completed, Failed   something that was asked for
                                            Count      something worth counting

A router sees views and never keys. It chooses the next hop; after `Deliver` the node decides
whether a local subscription really matches, and what its reader may see. So a router may
deliver too much, never too little, and each packet at most once.

Rules for every protocol:

- The same calls in the same order give the same effects. No loop depends on the order of a set.
- All state is bounded; `holdings` says how much there is and how much there may be.
- A message from a peer may be late, repeated, out of order or a lie about the peer's own state.
  None of these may raise, loop or grow without bound.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Generic, Literal, TypeAlias, TypeVar

import msgspec

from tidings.errors import InputError
from tidings.overlay.interest import Interest
from tidings.overlay.messages import EventId, Message, NodeId, Packet, Peer, SubscriptionId

M = TypeVar("M", bound=Message)
T = TypeVar("T")
R = TypeVar("R", bound="Router[Any]")

Token: TypeAlias = Hashable  # What `wake` gives back to a router; a tuple of texts and numbers, say.
Asked: TypeAlias = Literal["join", "leave", "publish", "subscribe", "unsubscribe"]


# Effects are msgspec structs, not dataclasses: a simulated second makes a hundred thousand, at a fifth of the cost.


class Send(msgspec.Struct, frozen=True, gc=False):
    """Hand `message` to `to`. It may be lost, repeated or overtaken; what must arrive is acknowledged and sent again."""

    to: NodeId
    message: Any  # A Message; typed loosely here because each protocol has its own union.


class Deliver(msgspec.Struct, frozen=True, gc=False):
    """This node's own subscribers may want `packet`. At most once for each event."""

    packet: Packet


class WakeAt(msgspec.Struct, frozen=True, gc=False):
    """Call `wake(token, when)`, not before `when`. Cannot be cancelled: a router ignores a wake it no longer needs.

    `idle` marks a routine that never ends, such as the next heartbeat: a world in which
    only such wakes are left is quiet.
    """

    when: float
    token: Token
    idle: bool = False


class Completed(msgspec.Struct, frozen=True, gc=False):
    """A request is done: the subscription is known wherever it must be, or no node needs the leaver any more."""

    asked: Asked
    id: EventId | SubscriptionId | None = None  # None for join and leave.


class Failed(msgspec.Struct, frozen=True, gc=False):
    """A request could not be done, and why; nothing of it is left behind."""

    asked: Asked
    why: str
    id: EventId | SubscriptionId | None = None


class Count(msgspec.Struct, frozen=True, gc=False):
    """Add `by` to the counter `what` of this node."""

    what: str
    by: int = 1


Effect: TypeAlias = Send | Deliver | WakeAt | Completed | Failed | Count


@dataclass(frozen=True, slots=True)
class Place:
    """Where a router is built: its node, its links and its randomness."""

    me: Peer
    neighbours: tuple[Peer, ...]
    """The ends of this node's own links in overlays that are given as a graph; empty elsewhere."""
    rng: random.Random


class TreeEntry(msgspec.Struct, frozen=True):
    """A node's place in one tree of its overlay: of an event type, or of one attribute of it."""

    type: str = ""
    attribute: str = ""
    is_root: bool = False
    up: tuple[NodeId, ...] = ()
    """More than one only where a node has several places in the tree."""
    down: tuple[NodeId, ...] = ()


class MapEntry(msgspec.Struct, frozen=True):
    """What a map of the overlay shows of one node. It contains no value of an event or a condition."""

    role: str = ""
    zones: tuple[tuple[tuple[float, float], ...], ...] = ()
    """For each zone and each axis, from where to where, as shares of the axis."""
    axes: tuple[str, ...] = ()
    """The attributes that are the axes, where there are zones."""
    trees: tuple[TreeEntry, ...] = ()
    left_out: int = 0
    """Zones and trees beyond MAP_ENTRIES_MAX."""


MAP_ENTRIES_MAX = 64  # Zones or trees of one node on a map: a status answer stays small, and nobody reads more.
TREE_ENDS_MAX = 256  # Likewise, of one node in one tree.


class Router(ABC, Generic[M]):
    """One node's part in a protocol.

    Built, then started once, with `start` (a broker of a given graph, the first node of a
    network, a restart with memory) or with `join` (a newcomer to a network that exists). Calls of
    `publish` and `subscribe` before the join is completed wait, or work with what is known.
    """

    def start(self, now: float, memory: bytes = b"") -> list[Effect]:
        """Begin to take part. `memory` is what `memory()` gave in this node's last incarnation, or nothing."""
        return [Completed("join")]

    def join(self, via: Sequence[Peer], now: float) -> list[Effect]:
        """Join the network through any of these peers; Completed or Failed follows."""
        return self.start(now)

    def leave(self, now: float) -> list[Effect]:
        """Hand over what other nodes need and leave. The node keeps running until Completed or Failed."""
        return [Completed("leave")]

    @abstractmethod
    def publish(self, packet: Packet, now: float) -> list[Effect]:
        """Send `packet` to every interested node, this one included. Its id is new and its origin is this node."""

    def stays_here(self, type: str) -> bool:
        """Whether `publish` of an event of this type would now only deliver it here: no other node is to have it.

        Events that are published as a batch need not pass the router then. False where that is not known.
        """
        return False

    def subscribe(self, interest: Interest, now: float) -> list[Effect]:
        """Deliver matching packets here. Those published after Completed arrive; earlier ones may.

        Called again with the same id, it replaces the interest.
        """
        return [Completed("subscribe", interest.id)]

    def unsubscribe(self, id: SubscriptionId, now: float) -> list[Effect]:
        """Withdraw an interest of this node; Completed at once if there is none of this id."""
        return [Completed("unsubscribe", id)]

    @abstractmethod
    def receive(self, sender: NodeId, message: M, now: float) -> list[Effect]:
        """Handle a message. The driver has authenticated `sender`, and nothing in the message."""

    def wake(self, token: Token, now: float) -> list[Effect]:
        """The moment that a WakeAt asked for has come."""
        return []

    def unsent(self, to: NodeId, message: M, now: float) -> list[Effect]:
        """The driver knows that this message did not arrive: the peer refused it or is not there.

        Only a hint: drivers do not notice every loss. By default the peer counts as down.
        """
        return self.peer_down(to, now)

    def peer_down(self, peer: NodeId, now: float) -> list[Effect]:
        """The link to this peer is gone."""
        return []

    def peer_up(self, peer: Peer, now: float) -> list[Effect]:
        """There is a link to this peer: a new one, or one that was gone."""
        return []

    def links(self) -> tuple[NodeId, ...]:
        """The peers this node sends to, for drawing the overlay."""
        return ()

    def map_entry(self) -> MapEntry:
        """What a map of the overlay shows of this node beside its links."""
        return MapEntry()

    def status(self) -> dict[str, Any]:
        """What operators want to know beside the links and the sizes, as JSON values. Nothing in it is secret."""
        return {}

    def holdings(self) -> dict[str, tuple[int, int]]:
        """The size of this node's state: for each kind how many there are and how many there may be."""
        return {}

    def memory(self) -> bytes:
        """What a restart with memory begins from. It holds no local subscriptions: the node keeps those."""
        return b""


def built(name: str, make: Callable[..., T], *arguments: Any, **options: Any) -> T:
    """Calls `make` with options from a configuration; raises InputError for one it does not know."""
    try:
        return make(*arguments, **options)
    except TypeError as wrong:
        raise InputError(f"{name}: {wrong}") from None


def builder(name: str, make: Callable[..., R], options_class: Callable[..., Any] | None = None) -> Callable[..., R]:
    """A protocol's `build`, for a router made of its peer, its rng and its options.

    With `options_class`, a frozen dataclass, the router takes one instance of it; else each option is a keyword.
    """

    def build(place: Place, **options: Any) -> R:
        if options_class is None:
            return built(name, make, place.me, place.rng, **options)
        return make(place.me, place.rng, built(name, options_class, **options))

    return build


def remembered(memory: bytes) -> tuple[Peer, ...]:
    """The peers in the memory of a former incarnation; none if the bytes are damaged."""
    try:
        return msgspec.msgpack.decode(memory, type=tuple[Peer, ...]) if memory else ()
    except msgspec.MsgspecError:
        return ()


class Guarantee(Enum):
    """What a protocol guarantees beyond what all do: no duplicates, nothing unwanted, bounded state, quiet at the end."""

    REACHES_ALL = auto()  # Without faults, every interested node gets every event.
    SURVIVES_LOSS = auto()  # … also when messages are lost, repeated and overtaken.
    SURVIVES_CRASHES = auto()  # … all that are up do, some time after nodes have crashed or restarted.
    SURVIVES_SPLIT = auto()  # … some time after a split network has healed.
    JOINS_LIVE = auto()  # Nodes can come while the network runs, through any one contact.
    JOINS_BY_LINKS = auto()  # … likewise, by being given links to some nodes (`peer_up` on both ends).
    LEAVES_CLEANLY = auto()  # A node that leaves costs the others nothing.
    PRUNES = auto()  # Nodes that neither want an event nor lie on the way do not get it.


WHATEVER_HAPPENS = frozenset(
    {Guarantee.REACHES_ALL, Guarantee.SURVIVES_LOSS, Guarantee.SURVIVES_CRASHES, Guarantee.SURVIVES_SPLIT}
)
"""The guarantees of a protocol that reaches every subscriber in the end, whatever the fault."""


@dataclass(frozen=True, slots=True)
class Protocol:
    """A protocol as found by name: how to build a router, its messages, its guarantees.

    The `router` module of each protocol has one, called PROTOCOL.
    """

    name: str
    build: Callable[..., Router[Any]]
    """`build(place, **options)`; raises InputError for an option it does not know or cannot use."""
    messages: Any
    """The union of its message classes, as `Codec` takes it."""
    guarantees: frozenset[Guarantee]
    on_graph: bool = False
    """Whether it runs on links it is given (`Place.neighbours`) rather than making its own."""
    settle: Callable[[dict[NodeId, Router[Any]], float], None] | None = None
    """Gives the routers of a whole network, before they start, the state they would have once all had joined and
    traffic had died down, so that a world of thousands begins there. None: they exchange messages."""
    name_node: Callable[[int, random.Random], NodeId] | None = None
    """Makes the id of a world's n-th node, where ids mean something to the protocol. None: any will do."""
    content_in_packets_only: bool = False
    """Whether its messages hold content of events and filters only inside packets and interests. A protocol that places
    content (in a zone, on an axis) reveals it elsewhere, too; its routers see nothing of what is sealed, and route it by type."""
    options_telling_apart: Mapping[str, Any] = field(default_factory=dict)
    """Options on which brokers must agree before they talk, with their defaults: as if each value were another protocol."""
    options_naming_nodes: tuple[str, ...] = ()
    """Options that list nodes. A configuration may name them as it names brokers everywhere: by address or by key."""
    live_options: Mapping[str, Any] = field(default_factory=dict)
    """Options that suit a live network better than the defaults, which suit a simulated one."""

    def full_name(self, options: Mapping[str, Any]) -> str:
        """The name by which brokers see whether they run the same: with the options that tell networks apart, if changed."""
        apart = self.options_telling_apart
        changed = [f"{name}={options[name]}" for name in apart if options.get(name, apart[name]) != apart[name]]
        return " ".join([self.name, *changed])
