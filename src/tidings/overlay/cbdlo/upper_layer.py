"""The upper layer of CBDLO at one node, which may play all roles at once.

    subscriber     registers the interests of the node (`subscriber`)
    owner          stores the interests that cover its partitions, and monitors its neighbours (`owned_partitions`)
    replica        stores the registrations of a topology, and takes over from a failed coordinator (`replicas`)
    coordinator    of topologies that it has founded or taken over (`coordinator`)

An attribute may have two topologies: when two nodes found one at once, when the network was split, or when a
coordinator was wrongly taken for failed. A node that learns of both notifies the coordinator of the later one, which
then merges into the earlier.
"""

from __future__ import annotations

from random import Random
from typing import Any, Protocol

from tidings.overlay.cbdlo.coordinator import Coordinator, Coordinators
from tidings.overlay.cbdlo.messages import (
    AbsorbTopology,
    AssignPartition,
    DuplicateTopology,
    LeaseRenewed,
    NotCoordinator,
    OperationDone,
    OperationRefused,
    PartitionRef,
    PeerSuspected,
    Ping,
    Pong,
    Probe,
    Register,
    Registered,
    RenewLease,
    Replicate,
    RevokePartition,
    TakeOver,
    TopologyMoved,
    Unregister,
)
from tidings.overlay.cbdlo.options import CbdloOptions
from tidings.overlay.cbdlo.owned_partitions import PARTITIONS_MAX, OwnedPartition, OwnedPartitions
from tidings.overlay.cbdlo.replicas import SILENT_PERIODS, ReplicaStore, RetiredTopologies
from tidings.overlay.cbdlo.subscriber import INTERESTS_MAX, NAMED_MAX, SEARCH_S, SubscriberRole, TopologySearch
from tidings.overlay.interest import Interest
from tidings.overlay.messages import Message, NodeId, Packet, Peer, SubscriptionId
from tidings.overlay.random_graph.access_points import AccessPoint, TreeId
from tidings.overlay.random_graph.partition import BOTTOM, AttributeAxis, Cut
from tidings.overlay.retransmit import Pending, Requests
from tidings.overlay.router import Count, Effect, Send, WakeAt

RENEW_PERIODS = 5  # Periods between two renewals of a member's lease.
TRUST_S = 4.0  # How long a founder waits for news of an older topology before it confirms anything.
PROBE_TRIES = 4  # Some seven seconds, for a coordinator that is said to have failed.
TREE_TRIES = 3  # How often an event is routed along the tree before the coordinator routes it.

_BY_COORDINATORS = (AssignPartition, RevokePartition, Replicate, TakeOver, LeaseRenewed)
"""What only the coordinator of the topology that it names may say."""


class LowerLayer(TopologySearch, Protocol):
    """What the upper layer asks of the lower."""

    @property
    def is_ready(self) -> bool:
        """Whether the node has joined the network."""

    def announce(self, point: AccessPoint) -> list[Effect]:
        """Announce a new topology to all nodes."""


class UpperLayer:
    """All roles that one node plays in the topologies of attributes."""

    def __init__(self, me: Peer, lower: LowerLayer, requests: Requests, rng: Random, options: CbdloOptions) -> None:
        self.me, self._lower, self._requests = me, lower, requests
        self.owned = OwnedPartitions(fingers=options.fingers)
        self.replicas = ReplicaStore()
        self._retired = RetiredTopologies()
        self.subscriber = SubscriberRole(
            me, lower, requests, rng, self.owned, self._retired,
            coordinates=self._coordinates, options=options,
        )  # fmt: skip
        self.coordinators = Coordinators(me, requests, self._retired, self.subscriber, fingers=options.fingers)
        self._silent: dict[NodeId, int] = {}  # Periods since each neighbour last answered.
        self._periods = rng.randrange(RENEW_PERIODS)

    # ── Subscribing ──────────────────────────────────────────────────────────

    def subscribe(self, interest: Interest, now: float) -> list[Effect]:
        return self.subscriber.subscribe(interest, now)

    def unsubscribe(self, id: SubscriptionId, now: float) -> list[Effect]:
        return self.subscriber.unsubscribe(id, now)

    def matches(self, packet: Packet) -> bool:
        """Whether any interest of this node matches."""
        return self.subscriber.matches(packet)

    def axes_of(self, id: SubscriptionId) -> list[AttributeAxis]:
        """The attributes that an interest of this node is indexed under; none if it has been withdrawn."""
        indexed = self.subscriber.interests.get(id)
        return indexed.axes if indexed else []

    def is_member(self, axis: AttributeAxis) -> bool:
        """Whether this node can route in the attribute's topology: as owner, as coordinator, or by an anchor."""
        membership = self.subscriber.memberships.get(axis)
        has_anchor = membership is not None and membership.anchor is not None
        return bool(self.owned.trees(axis)) or axis in self.coordinators or has_anchor

    def adverts(self) -> list[AccessPoint]:
        """This node as an access point to each topology that it is a member of."""
        return [
            AccessPoint(axis, self.me, membership.tree)
            for axis, membership in self.subscriber.memberships.items()
            if membership.tree is not None and self.is_member(axis)
        ]

    def is_idle(self) -> bool:
        """Whether no other node depends on this one."""
        coordinators = self.coordinators.by_axis.values()
        return not self.subscriber.is_withdrawing and not len(self.owned) and all(c.is_empty for c in coordinators)

    # ── Routing ──────────────────────────────────────────────────────────────

    def route(
        self, axis: AttributeAxis, position: Cut | None, *, tries: int = 0
    ) -> OwnedPartition | PartitionRef | Coordinator | None:
        """The partition that contains a position if this node owns it, else the next hop; None if it is no member.

        Only the coordinator can route an event whose position is unknown. An event that was lost is routed without
        fingers, which may be stale, and after TREE_TRIES by the coordinator.
        """
        coordinator, membership = self.coordinators.by_axis.get(axis), self.subscriber.memberships.get(axis)
        tree = membership.tree if membership is not None and self.is_member(axis) else None
        to_coordinator = None if tree is None or coordinator is not None else PartitionRef(BOTTOM, tree.coordinator)
        if position is None:
            return coordinator or to_coordinator
        trees = self.owned.trees(axis)
        best = tree if tree in trees else (trees[0] if trees else None)
        found = self.owned.route(axis, best, position, fingers=tries == 0) if best is not None else None
        if isinstance(found, OwnedPartition) or (found is not None and tries < TREE_TRIES):
            return found
        if coordinator is not None:
            return coordinator.owner_of(position)
        anchor = membership.anchor if membership is not None and tries == 0 else None
        return anchor if anchor is not None and anchor.owner.id != self.me.id else to_coordinator

    # ── Messages ─────────────────────────────────────────────────────────────

    def receive(self, sender: NodeId, message: Message, now: float) -> list[Effect] | None:
        """Handle a message of the upper layer; None if it is of another."""
        self._silent.pop(sender, None)
        if isinstance(message, _BY_COORDINATORS) and message.tree.coordinator.id != sender:
            return []  # Only a coordinator decides about its topology.
        match message:
            case AssignPartition(request):
                assigned = self.owned.has_room_for(message) and self.owned.assign(message)
                return [Send(sender, OperationDone(request) if assigned else OperationRefused(request))]
            case RevokePartition(request):
                self.owned.revoke(message)
                return [Send(sender, OperationDone(request))]
            case Register() | Unregister() | AbsorbTopology():
                return self.coordinators.on_request(sender, message, now)
            case Replicate(request, axis, tree):
                applied = self._retired.successor(axis, tree) is None and self.replicas.apply(message)
                return [Send(sender, OperationDone(request) if applied else OperationRefused(request))]
            case TakeOver(request, axis, tree):
                return [Send(sender, OperationDone(request)), *self._take_over(axis, tree, now)]
            case TopologyMoved(request, axis, old, new):
                return [Send(sender, OperationDone(request)), *self._on_moved(sender, axis, old, new, now)]
            case RenewLease(me=me):
                return self.coordinators.on_renew_lease(sender, message, now) if me.id == sender else []
            case PeerSuspected():
                return self.coordinators.on_peer_suspected(message, now)
            case LeaseRenewed():
                return self.subscriber.lease_renewed(message, now)
            case DuplicateTopology(axis, tree):
                return self._on_duplicate(sender, axis, tree, now)
            case Pong(incarnation):
                return self._on_pong(sender, incarnation, now)
        return None

    def answered(self, request: Pending[int], answer: Message, now: float) -> list[Effect]:
        """A request of the upper layer has been answered."""
        match request.about, answer:
            case ("register", SubscriptionId() as id, axis, tree), Registered(_, anchor):
                return self.subscriber.registered(id, axis, tree, anchor)
            case ("register", SubscriptionId(), axis, tree), NotCoordinator(_, _, _, new):
                if new is None:
                    return self.subscriber.coordinator_lost(axis, tree, now)
                return self._move(axis, tree, new, now)
            case ("unregister", SubscriptionId() as id, axis, _), NotCoordinator(_, _, _, new):
                return self.subscriber.unregister_elsewhere(id, axis, new, now)
            case ("unregister", SubscriptionId() as id, axis, _), _:
                return self.subscriber.unregistered(id, axis)
            case ("round", axis, tree, low), _:
                refused = low if isinstance(answer, OperationRefused) else None
                return self.coordinators.acknowledged(axis, tree, refused, now)
            case ("absorb", axis, tree, int(merger)), OperationDone():
                effects, winner = self.coordinators.batch_absorbed(axis, tree, merger, now)
                return [*effects, *(self._move(axis, tree, winner, now) if winner is not None else ())]
            case ("absorb", axis, tree, int(merger)), _:
                return self.coordinators.merger_failed(axis, tree, merger, now)
            case ("probe", axis, tree, peer), OperationRefused():
                return self.coordinators.suspect(axis, tree, peer, now)
            case ("replaced", axis, old, new), OperationRefused():
                return self._move(axis, old, new, now)
            case ("replaced", axis, old, new), OperationDone():  # It is alive: the two topologies merge.
                return [Send(new.coordinator.id, DuplicateTopology(axis, old))]
        return []

    def unanswered(self, request: Pending[int], now: float) -> list[Effect]:
        """A request of the upper layer is given up."""
        match request.about:
            case ("register", SubscriptionId(), axis, tree):
                return self.subscriber.coordinator_lost(axis, tree, now)
            case ("unregister", SubscriptionId() as id, axis, _):
                return self.subscriber.unregistered(id, axis)
            case ("round", axis, tree, _):
                effects = self.coordinators.suspect(axis, tree, request.to, now)
                return [*effects, *self.coordinators.acknowledged(axis, tree, None, now)]
            case ("absorb", axis, tree, int(merger)):
                return self.coordinators.merger_failed(axis, tree, merger, now)
            case ("probe", axis, tree, peer):
                return self.coordinators.suspect(axis, tree, peer, now)
            case ("replaced", axis, old, new):
                return self._move(axis, old, new, now)
        return []

    def wake(self, token: Any, now: float) -> list[Effect]:
        """A wake of the upper layer."""
        match token:
            case ("trusted", axis):
                return self.coordinators.run(self.coordinators.by_axis.get(axis), now)
            case ("found", axis, int(attempt)):
                return self._found_topology(axis, attempt, now) if self.subscriber.should_found(axis, attempt) else []
            case ("orphan", axis, tree, int(attempt)):
                return self.subscriber.search_again(axis, tree, attempt, now)
        return []

    def on_access_point(self, point: AccessPoint, now: float) -> list[Effect]:
        """Join the topology if this node searches for one; if it knows another one, have the two merge."""
        axis, tree = point.axis, point.tree
        if self._retired.is_retired(axis, tree, now) or tree.coordinator.id == self.me.id:
            return []
        membership = self.subscriber.memberships.get(axis)
        if membership is not None and membership.tree is None:
            return self.subscriber.adopt(axis, tree, now)
        if axis in self.coordinators:
            return self._on_duplicate("", axis, tree, now)
        if membership is not None and membership.tree is not None and membership.tree != tree:
            early, late = sorted((membership.tree, tree), key=lambda each: each.order)
            return [Send(late.coordinator.id, DuplicateTopology(axis, early))]
        return []

    def is_retired(self, axis: AttributeAxis, tree: TreeId, now: float) -> bool:
        """Whether a topology has ended or does not answer."""
        return self._retired.is_retired(axis, tree, now)

    def report_suspect(self, axis: AttributeAxis, peer: NodeId) -> list[Effect]:
        """A subscriber does not answer: have the coordinator probe it."""
        return [Send(tree.coordinator.id, PeerSuspected(axis, tree, peer)) for tree in self.owned.trees(axis)]

    def drop_fingers(self, peer: NodeId) -> None:
        """A peer does not answer: take no shortcuts through it."""
        self.owned.drop_fingers(peer)

    # ── Periodic work, leaving ───────────────────────────────────────────────

    def run_period(self, now: float) -> list[Effect]:
        """Renew leases, monitor the nodes this one depends on, expire the leases of others."""
        self._periods += 1
        effects: list[Effect] = []
        if self._periods % RENEW_PERIODS == 0:
            effects += self.subscriber.renew_leases(now)
        effects += self._monitor_neighbours()
        effects += self._monitor_coordinators(now)
        for coordinator in list(self.coordinators.by_axis.values()):
            coordinator.expire_leases(now)
            effects += self.coordinators.run(coordinator, now)
            self._retire_if_unused(coordinator)
        return effects

    def leave(self, now: float) -> list[Effect]:
        """Withdraw all interests, and have replicas take over the topologies that this node coordinates."""
        effects: list[Effect] = []
        for id in list(self.subscriber.interests):
            effects += self.unsubscribe(id, now)
        for coordinator in self.coordinators.by_axis.values():
            axis, tree = coordinator.axis, coordinator.tree
            for replica in list(coordinator.replicas)[:1]:
                make = lambda n, axis=axis, tree=tree: TakeOver(n, axis, tree)  # noqa: E731
                effects += self._requests.send(replica, make, ("inherit", axis, tree), now)
        return effects

    def holdings(self) -> dict[str, tuple[int, int]]:
        held: dict[str, tuple[int, int]] = {
            "own interests": (len(self.subscriber.interests), INTERESTS_MAX),
            "sub-spaces": (len(self.owned), PARTITIONS_MAX),
            **self.replicas.holdings(),
            **self._retired.holdings(),
        }
        for axis, coordinator in self.coordinators.by_axis.items():
            name = f"{axis.name} {axis.number}" if axis.number else axis.name
            held |= {f"{kind} of {name}": counts for kind, counts in coordinator.holdings().items()}
        return held

    # ── Founding, taking over, moving ────────────────────────────────────────

    def _coordinates(self, axis: AttributeAxis) -> bool:
        return axis in self.coordinators

    def _found_topology(self, axis: AttributeAxis, attempt: int, now: float) -> list[Effect]:
        """No node knows of a topology: become the coordinator of a new one, and announce it."""
        if not self._lower.is_ready:
            return [WakeAt(now + SEARCH_S, ("found", axis, attempt))]
        coordinator = self.coordinators.found(axis, now + TRUST_S)
        return [
            Count("topologies founded"),
            WakeAt(coordinator.trusted_from, ("trusted", axis)),
            *self._lower.announce(AccessPoint(axis, self.me, coordinator.tree)),
            *self.subscriber.adopt(axis, coordinator.tree, now),
        ]

    def _take_over(self, axis: AttributeAxis, old: TreeId, now: float) -> list[Effect]:
        """Replace a failed coordinator, with all registrations that it replicated here."""
        registrations = self.replicas.release(axis, old)
        if registrations is None:
            return []
        coordinator = self.coordinators.by_axis.get(axis) or self.coordinators.found(axis, now)
        self.coordinators.register_all(coordinator, registrations, now)
        coordinator.suspect(old.coordinator.id)
        self._retired.unreachable(axis, old, now)
        effects: list[Effect] = [Count("topologies taken over"), *self.coordinators.run(coordinator, now)]
        effects += self._lower.announce(AccessPoint(axis, self.me, coordinator.tree))
        for peer in {each.peer.id: None for each in registrations}:
            make = lambda n: TopologyMoved(n, axis, old, coordinator.tree)  # noqa: E731
            effects += self._requests.send(peer, make, ("moved",), now)
        return effects

    def _move(self, axis: AttributeAxis, old: TreeId, new: TreeId, now: float) -> list[Effect]:
        """Another topology has replaced one."""
        if self.coordinators.of(axis, old) is not None:
            return []
        self._lower.table.drop_tree(axis, old)
        self._retired.merged(axis, old, new)
        self.replicas.release(axis, old)
        self.owned.leave(axis, old)
        return self.subscriber.moved(axis, old, new, now)

    def _on_moved(self, sender: NodeId, axis: AttributeAxis, old: TreeId, new: TreeId, now: float) -> list[Effect]:
        """A topology is said to have been replaced: its coordinator knows. Of any other, that is asked first."""
        coordinator = self.coordinators.of(axis, old)
        if coordinator is not None:  # Whoever took this node for failed merges into it, or has the earlier topology.
            return self.coordinators.on_duplicate(coordinator, new, sender, now)
        if sender == old.coordinator.id:
            return self._move(axis, old, new, now)
        about = ("replaced", axis, old, new)
        if sender != new.coordinator.id or not self._is_concerned(axis, old) or about in self._requests.about():
            return []
        if self._retired.is_retired(axis, old, now):
            return self._move(axis, old, new, now)
        incarnation = old.coordinator.incarnation
        return self._requests.send(old.coordinator.id, lambda n: Probe(n, incarnation), about, now, PROBE_TRIES)

    def _is_concerned(self, axis: AttributeAxis, tree: TreeId) -> bool:
        """Whether this node has anything to do with a topology."""
        return (
            self.subscriber.topology_of(axis) in (tree, None)
            or tree in self.owned.trees(axis)
            or (axis, tree) in self.replicas.topologies()
        )

    def _on_duplicate(self, sender: NodeId, axis: AttributeAxis, other: TreeId, now: float) -> list[Effect]:
        """There is another topology: a coordinator merges the two, a member whose coordinator is silent moves there."""
        coordinator = self.coordinators.by_axis.get(axis)
        if coordinator is not None:
            return self.coordinators.on_duplicate(coordinator, other, sender, now)
        membership = self.subscriber.memberships.get(axis)
        if membership is None or membership.tree in (None, other) or not membership.missed:
            return []
        return [] if self._retired.is_retired(axis, other, now) else self.subscriber.adopt(axis, other, now)

    def _retire_if_unused(self, coordinator: Coordinator) -> None:
        """End a topology without members, unless this node is about to become one."""
        axis, tree = coordinator.axis, coordinator.tree
        if not coordinator.is_empty or self.subscriber.is_indexed(axis):
            return
        del self.coordinators.by_axis[axis]
        self.owned.leave(axis, tree)
        if self.subscriber.topology_of(axis) == tree:
            del self.subscriber.memberships[axis]

    # ── Failure detection ────────────────────────────────────────────────────

    def _monitor_neighbours(self) -> list[Effect]:
        """Ping the owners of neighbouring partitions, and report those that are silent to the coordinator."""
        near = {ref.owner.id: (axis, tree) for axis, tree, ref in self.owned.neighbours() if ref.owner.id != self.me.id}
        self._silent = {id: self._silent.get(id, 0) + 1 for id in near}
        effects: list[Effect] = []
        for id, (axis, tree) in near.items():
            effects.append(Send(id, Ping()))
            if self._silent[id] > SILENT_PERIODS:
                effects.append(Send(tree.coordinator.id, PeerSuspected(axis, tree, id)))
        return effects

    def _monitor_coordinators(self, now: float) -> list[Effect]:
        """As a replica: ping the coordinator, and take over from one that has been silent for too long."""
        effects: list[Effect] = []
        for axis, tree, has_failed in self.replicas.count_period():
            effects.append(Send(tree.coordinator.id, Ping()))
            if has_failed:
                effects += self._take_over(axis, tree, now)
        return effects

    def _on_pong(self, sender: NodeId, incarnation: int, now: float) -> list[Effect]:
        """A neighbour or a coordinator is alive; if it has restarted, it has lost its state and counts as failed."""
        effects: list[Effect] = []
        for axis, tree, ref in list(self.owned.neighbours()) if incarnation else []:
            if ref.owner.id == sender and ref.owner.incarnation < incarnation:
                effects.append(Send(tree.coordinator.id, PeerSuspected(axis, tree, sender)))
        self.replicas.coordinator_alive(sender)
        for axis, tree in self.replicas.topologies():
            if tree.coordinator.id == sender and tree.coordinator.incarnation < incarnation:
                effects += self._take_over(axis, tree, now)
        return list(dict.fromkeys(effects)) if len(effects) < NAMED_MAX else effects
