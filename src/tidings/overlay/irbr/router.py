"""One node's part in IRBR: its options, and its life from `start` to `leave`. The package says how the protocol works."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from tidings.errors import InputError
from tidings.overlay.dedup import SEEN_MAX, SeenIds
from tidings.overlay.interest import Interest
from tidings.overlay.irbr.anti_entropy import AntiEntropy
from tidings.overlay.irbr.custody_transfer import TASKS_MAX, CustodyTask, CustodyTransfer, RangeBranch
from tidings.overlay.irbr.failure_notices import FailureNotices
from tidings.overlay.irbr.filter_table import (
    ENTRIES_MAX,
    GONE_S,
    EntryState,
    FailureNotice,
    FilterEntry,
    FilterTable,
    OriginClock,
)
from tidings.overlay.irbr.messages import (
    EVENT,
    UPDATE,
    CustodyAccepted,
    CustodyComplete,
    DeclaredDead,
    EventMulticast,
    IrbrMessage,
    NodeArrival,
    RangeUpdate,
    TableQuery,
    TableReply,
    TaskId,
    UpdateMulticast,
    content_mark,
)
from tidings.overlay.irbr.subscription_propagation import OWN_MAX, OwnSubscription, SubscriptionPropagator
from tidings.overlay.messages import EventId, Message, NodeId, Packet, Peer, SubscriptionId
from tidings.overlay.pastry.ring import PastryOptions, Ring
from tidings.overlay.prefix.messages import Heartbeat
from tidings.overlay.prefix.network import NetworkApplication, PrefixNetwork
from tidings.overlay.prefix.router import HELD_MAX, PrefixRouter, on_a_prefix_network
from tidings.overlay.prefix.routing_state import shared
from tidings.overlay.prefix.search import SearchResult
from tidings.overlay.router import Completed, Deliver, Effect, Send, Token, WakeAt, remembered
from tidings.overlay.tapestry.mesh import Mesh

SYNC_S = 30.0
ALONE_S = 5.0  # How long a node that restarts without memory waits to be found before it goes on alone.
LEAVE_S = 10.0  # How long a leaver waits for the tasks in its custody.
ROUNDS_MAX = 8  # How often a newcomer asks all it knows for a whole table before it makes do with what it has.

# Brokers that start in the same second may miss each other's first messages, keys among them. They compare their tables
# often, which costs nothing as long as the tables agree.
LIVE_SYNC_S = 2.0

NetworkName: TypeAlias = Literal["pastry", "tapestry"]
Mode: TypeAlias = Literal["interest", "paper"]
Reliability: TypeAlias = Literal["R0", "R1", "R2"]


@dataclass(frozen=True, slots=True, kw_only=True)
class IrbrOptions(PastryOptions):
    """How a network of IRBR runs; the same for all its nodes."""

    network: NetworkName = "pastry"
    """The prefix network it runs on: `pastry`, a ring with leaf sets (`leaf_count`), or `tapestry`, whose nodes keep the
    nearest by network of each cell."""
    mode: Mode = "interest"
    """The node through which a range is entered: an interested one, or, as in the paper, any."""
    reliability: Reliability = "R2"
    """How an event is forwarded: once (R0), acknowledged hop by hop (R1), or with custody transfer (R2)."""
    covering: bool = True
    """An interest that another one in its range covers is not announced outside that range."""
    two_phase: bool = True
    """A withdrawn interest first retires, so that covered ones are announced before it ends."""
    obituaries: bool = True
    """Multicast failure notices. Without, failed nodes are only avoided, for networks that end soon after a disaster."""
    sync_s: float = SYNC_S
    """Between two comparisons of one cell with a node in it. 0: none, for big networks in which nothing fails."""
    gone_s: float = GONE_S
    """How long tombstones and failure notices are kept."""
    entries_max: int = ENTRIES_MAX
    """Entries of a filter table."""
    own_max: int = OWN_MAX
    """Subscriptions of one node."""

    def __post_init__(self) -> None:
        PastryOptions.__post_init__(self)
        if self.network not in NETWORKS:
            raise InputError(f"expected network {' or '.join(NETWORKS)}, got {self.network!r}")
        if self.mode not in ("interest", "paper") or self.reliability not in ("R0", "R1", "R2"):
            raise InputError(
                f"expected mode interest or paper and reliability R0, R1 or R2, got {self.mode}, {self.reliability}"
            )

    @classmethod
    def paper(cls) -> IrbrOptions:
        """As published: any node stands for its range, events are sent once, failures and lost updates are not handled."""
        return cls(mode="paper", reliability="R0", two_phase=False, obituaries=False, sync_s=0)

    @classmethod
    def robust(cls) -> IrbrOptions:
        """For networks that lose messages and nodes: the defaults."""
        return cls()


NETWORKS: Mapping[str, Callable[[Peer, NetworkApplication, Random, IrbrOptions], PrefixNetwork]] = MappingProxyType(
    {"pastry": Ring, "tapestry": Mesh}
)


class Irbr(PrefixRouter[IrbrMessage, PrefixNetwork]):
    """One node's part in IRBR."""

    def __init__(self, me: Peer, rng: Random, options: IrbrOptions | None = None) -> None:
        self.options = options = options or IrbrOptions()
        super().__init__(me, rng, lambda application: NETWORKS[options.network](me, application, rng, options))
        self.clock = OriginClock()
        self.custody = CustodyTransfer(self.ring, self)
        self.table = FilterTable(me.id, entries_max=options.entries_max, gone_s=options.gone_s)
        self.propagation = SubscriptionPropagator(
            self.ring,
            self.clock,
            self.table,
            self.custody,
            covering=options.covering,
            two_phase=options.two_phase,
            own_max=options.own_max,
        )
        self.failure_notices = FailureNotices(
            self.ring, self.clock, self.table, self.custody, self.propagation, two_phase=options.two_phase
        )
        self.anti_entropy = AntiEntropy(self.ring, self.table, self.propagation.known_to)
        self._stage: Literal["outside", "pulling", "arriving", "settling", "ready", "leaving"] = "outside"
        self._seen = SeenIds[TaskId](SEEN_MAX)
        self._joining_too: dict[NodeId, None] = {}  # Nodes without a whole table, as they are joining as well.
        self._rounds = 0
        self._asked: tuple[NodeId, int] = ("", 0)  # Whose table this node waits for, and the number of the query.

    # ── Joining ──────────────────────────────────────────────────────────────

    def start(self, now: float, memory: bytes = b"") -> list[Effect]:
        contacts = remembered(memory)
        if contacts:
            return self.join(contacts, now)
        routine: list[Effect] = self._next_sync(now)
        if self.me.incarnation > 0 and not self.ring.nearest():
            # Others may still take this node for its former incarnation; it must ask them before it serves anybody.
            return [*self.ring.start(now), *routine, WakeAt(now + ALONE_S, ("alone",))]
        return [*self.ring.start(now), *routine]

    def join(self, via: Sequence[Peer], now: float) -> list[Effect]:
        if not via:
            return self.start(now)
        self._joined = True
        return [*self.ring.join(via, now), *self._next_sync(now)]

    def on_joined(self, now: float) -> list[Effect]:
        if self._joined and self.ring.nearest():
            return self._pull(now)
        if self.me.incarnation > 0 and not self.ring.nearest():
            return []
        return self._make_ready(now)

    def _pull(self, now: float) -> list[Effect]:
        """Ask the node that shares most digits: what it knows, and its own interests, are all this node must know."""
        self._stage, self._rounds = "pulling", 0
        self._joining_too.clear()
        return self._query_table(now)

    def _query_table(self, now: float, after: SubscriptionId | None = None) -> list[Effect]:
        """Ask the nearest node that may have a whole table for it, or for the rest of it."""
        if not self.ring.nearest():
            return self._make_ready(now)
        peer = next((each for each in self.ring.by_nearness() if each.id not in self._joining_too), None)
        if peer is None:
            return self._query_later(now)
        query = TableQuery(self.me, "", self.anti_entropy.digest("") if after is None else 0, after)
        return [Send(peer.id, query), self._wait_for(peer.id, now)]

    def _query_later(self, now: float) -> list[Effect]:
        """All nodes that this one knows are joining at the same time: one of them will be first."""
        self._joining_too.clear()
        self._rounds += 1
        if self._rounds >= ROUNDS_MAX:
            return self._on_table_complete(now)
        return [self._wait_for("", now)]

    def _wait_for(self, peer: NodeId, now: float) -> WakeAt:
        self._asked = (peer, self._asked[1] + 1)
        return WakeAt(now + 2 * self.ring.answer_s, ("compared", *self._asked))

    def _on_table_complete(self, now: float) -> list[Effect]:
        """This node has learnt all that it can at this stage."""
        if self._stage == "pulling":
            self._stage = "arriving"
            return self._announce_arrival(now)
        return self._make_ready(now)

    def _announce_arrival(self, now: float) -> list[Effect]:
        """Tell the nodes that thought this node's cell empty: they share as many digits as any node did before."""
        first = min(shared(self.me.id, self._asked[0]), self.ring.depth() - 1) if self._asked[0] else 0
        task = self.custody.new_update(NodeArrival(self.me), ("arrived",))
        return self.custody.multicast(task, self.custody.rows_from(first), now)

    def _make_ready(self, now: float) -> list[Effect]:
        if self._stage == "ready":
            return []
        self._stage = "ready"
        effects: list[Effect] = [Completed("join"), *self.failure_notices.on_ready(now)]
        effects += self.propagation.announce_new(now)
        return [*effects, *self._catch_up(now)]

    # ── Subscribing ──────────────────────────────────────────────────────────

    def subscribe(self, interest: Interest, now: float) -> list[Effect]:
        return self.propagation.subscribe(interest, now, is_ready=self._stage == "ready")

    def unsubscribe(self, id: SubscriptionId, now: float) -> list[Effect]:
        return self.propagation.unsubscribe(id, now)

    @property
    def own(self) -> dict[SubscriptionId, OwnSubscription]:
        """This node's own subscriptions."""
        return self.propagation.own

    # ── Publishing ───────────────────────────────────────────────────────────

    def publish(self, packet: Packet, now: float) -> list[Effect]:
        if self._stage != "ready":
            return self._publish_later(packet)
        return self._forward(packet, 0, [], now, then=("published", packet.header.id))

    def stays_here(self, type: str) -> bool:
        """Whether this node knows no interest of another: all of that is in its table, whatever the type."""
        return self._stage == "ready" and not self.table.cells()

    def _forward(
        self, packet: Packet, range_len: int, parents: list[NodeId], now: float, then: tuple[Any, ...] = ()
    ) -> list[Effect]:
        effects: list[Effect] = []
        id = _event_task(packet)
        if self._seen.add(id) and self.propagation.is_interested(packet):
            effects.append(Deliver(packet))
        is_kept = self.options.reliability != "R0"
        task = CustodyTask(id, range_len, packet, parents, then=then, is_kept=is_kept)
        for cell in self.table.matching(packet, range_len):
            task.branches[cell] = RangeBranch()
        return [*effects, *self.custody.take(task, now)]

    # ── Receiving ────────────────────────────────────────────────────────────

    def receive(self, sender: NodeId, message: IrbrMessage, now: float) -> list[Effect]:
        if message.__class__ is Heartbeat:
            return self.ring.receive(sender, message, now)  # Most messages are heartbeats: checked first.
        match message:
            case EventMulticast(range_len=length) | UpdateMulticast(range_len=length):
                return self._on_task(sender, message, now) if 0 <= length <= self.ring.length else []
            case CustodyAccepted():
                return self.custody.on_accepted(message, sender, now)
            case CustodyComplete():
                return self.custody.on_complete(message, sender, now)
            case TableQuery():
                return self.anti_entropy.answer(sender, message, is_ready=self._stage in ("ready", "leaving"))
            case TableReply():
                return self._on_table(sender, message, now)
            case DeclaredDead(notice=notice):
                return self.failure_notices.refute(notice, now)
            case _:
                return self.ring.receive(sender, message, now)

    def _on_task(self, sender: NodeId, message: EventMulticast | UpdateMulticast, now: float) -> list[Effect]:
        is_event = isinstance(message, EventMulticast)
        if self._stage == "outside" or (self._stage not in ("ready", "leaving") and is_event):
            return self._hold(sender, message)
        if isinstance(message, EventMulticast) and self.options.reliability != "R2":
            return self._on_event_without_custody(sender, message, now)
        id = _event_task(message.packet) if isinstance(message, EventMulticast) else message.task
        if isinstance(message, UpdateMulticast) and (id.kind, id.mark) != (UPDATE, content_mark(message.update)):
            return []  # Named after something else, so that this would pass for a copy of it.
        answer = self.custody.answer_if_known((id, message.range_len), sender)
        if answer is not None:
            return answer
        if isinstance(message, EventMulticast):
            return self._forward(message.packet, message.range_len, [sender], now)
        return self._on_update(sender, message, now)

    def _hold(self, sender: NodeId, message: EventMulticast | UpdateMulticast) -> list[Effect]:
        """Keep it until this node is ready: with half a table it would prune what other nodes need."""
        if (sender, message) not in self._held:
            if len(self._held) >= HELD_MAX or self.ring.has_failed:
                return []
            self._held.append((sender, message))
        if isinstance(message, UpdateMulticast):
            return [Send(sender, CustodyAccepted(message.task, message.range_len))]
        if self.options.reliability != "R2":
            return []
        return [Send(sender, CustodyAccepted(_event_task(message.packet), message.range_len))]

    def _on_event_without_custody(self, sender: NodeId, message: EventMulticast, now: float) -> list[Effect]:
        """Acknowledge at once, if at all, and forward unless it is a duplicate."""
        id = _event_task(message.packet)
        is_acknowledged = self.options.reliability == "R1"
        effects: list[Effect] = [Send(sender, CustodyComplete(id, message.range_len))] if is_acknowledged else []
        if self.custody.is_first((id, message.range_len)):
            effects += self._forward(message.packet, message.range_len, [], now)
        return effects

    def _on_update(self, sender: NodeId, message: UpdateMulticast, now: float) -> list[Effect]:
        """Apply an update, and forward it in the range."""
        task = CustodyTask(message.task, message.range_len, message.update, [sender])
        effects = self._apply(message.update, now, task)
        if _may_void_a_cover(message.update):
            self.propagation.delay_until_announced(task)
        return [*effects, *self.custody.multicast(task, self.custody.rows_from(message.range_len), now)]

    def _apply(self, update: RangeUpdate, now: float, task: CustodyTask | None = None) -> list[Effect]:
        match update:
            case FilterEntry():
                return self._apply_entry(update, now)
            case FailureNotice():
                return self.failure_notices.on_notice(update, now, task)
            case NodeArrival(peer=peer):
                return self.ring.check(peer, now)

    def _apply_entry(self, entry: FilterEntry, now: float) -> list[Effect]:
        if entry.origin.id == self.me.id:
            return self.failure_notices.on_former_entry(entry, now, is_ready=self._stage == "ready")
        if not self.ring.is_id(entry.origin.id) or entry.id.origin != entry.origin.id:
            return []
        lost = self.table.merge(entry, now)
        return self.propagation.reconsider([lost], now) if lost else []

    # ── Custody transfer: who gets what, and what follows ────────────────────

    def candidates(self, task: CustodyTask, cell: str) -> Iterator[NodeId]:
        """Nodes of the cell that may take custody: first those that are interested in the event themselves."""
        tried, ring = task.branches[cell].tried, self.ring
        if isinstance(task.cargo, Packet) and self.options.mode == "interest":
            yield from (id for id in self._interested(task.cargo, cell) if id not in tried and ring.is_usable(id))
        yield from (peer.id for peer in ring.in_range(cell) if peer.id not in tried)
        for entry in self.table.under(cell):
            if (
                entry.origin.id not in tried
                and entry.state is not EntryState.GONE
                and self.ring.is_usable(entry.origin.id)
            ):
                yield entry.origin.id

    def _interested(self, packet: Packet, cell: str) -> list[NodeId]:
        interested = (
            e.origin.id for e in self.table.under(cell) if e.interest is not None and e.interest.matches(packet)
        )
        return sorted(interested)

    def packed(self, task: CustodyTask, cell: str) -> Message:
        cargo = task.cargo
        if isinstance(cargo, Packet):
            return EventMulticast(cargo, len(cell))
        return UpdateMulticast(task.id, len(cell), cargo)

    def on_search_ended(self, prefix: str, what: Peer | SearchResult, now: float) -> list[Effect]:
        return self.custody.on_search_ended(prefix, what, now)

    def on_task_done(self, task: CustodyTask, now: float) -> list[Effect]:
        return [*self._continue(task.then, now), *self._leave_if_done()]

    def _continue(self, then: tuple[Any, ...], now: float) -> list[Effect]:
        """What the origin of a task does when every node has it."""
        match then:
            case ("published", EventId() as event):
                return [Completed("publish", event)] if self.options.reliability == "R2" else []
            case ("arrived",):
                self._stage = "settling"
                return [WakeAt(now + 2 * self.ring.answer_s, ("settled",))]
            case ("mourned", FailureNotice() as notice):
                return self.failure_notices.on_completed(notice, now)
        return self.propagation.on_completed(then, now)

    # ── Nodes that come and go ───────────────────────────────────────────────

    def on_node_up(self, peer: Peer, now: float) -> list[Effect]:
        effects: list[Effect] = []
        notice = self.table.notice(peer.id)
        if notice is not None and notice.incarnation >= peer.incarnation:
            effects.append(Send(peer.id, DeclaredDead(notice)))
        if self._stage == "outside" and self.ring.is_in:
            self.ring.is_in, self._joined = False, True
            return [*effects, *self.ring.join([peer], now)]
        if self._stage == "ready":
            effects.append(self.anti_entropy.first_contact(peer))
        return effects

    def on_node_failed(self, peer: Peer, now: float) -> list[Effect]:
        is_next = self.options.obituaries and self._stage == "ready" and self.ring.is_next_after(peer.id)
        notices = self.failure_notices.declare_failed(peer, now) if is_next else []
        decided = self.failure_notices.on_node_failed(peer.id, now)
        return [*self.custody.redirect(peer.id, now), *decided, *notices]

    def on_node_left(self, peer: Peer, now: float) -> list[Effect]:
        return self.custody.redirect(peer.id, now)

    def unsent(self, to: NodeId, message: IrbrMessage, now: float) -> list[Effect]:
        effects = self.ring.unsent(to, message, now)
        if isinstance(message, EventMulticast) and self.options.reliability == "R0":
            return [*effects, *self._send_elsewhere(to, message, now)]
        return [*effects, *self.custody.redirect(to, now)]

    def _send_elsewhere(self, to: NodeId, message: EventMulticast, now: float) -> list[Effect]:
        """Nothing was kept of an event sent once, but the bounced message says which range it was for."""
        cell = to[: message.range_len]
        if self.ring.cell(to) != cell:
            return []
        task = CustodyTask(_event_task(message.packet), message.range_len - 1, message.packet, is_kept=False)
        return self.custody.send_elsewhere(task, cell, to, now)

    # ── Anti-entropy ─────────────────────────────────────────────────────────

    def _on_table(self, sender: NodeId, reply: TableReply, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for entry in reply.entries:
            effects += self._apply(entry, now)
        for notice in reply.notices:  # Afterwards: a notice says which of the entries to doubt.
            effects += self._apply(notice, now)
        if self._stage in ("pulling", "settling"):
            is_asked = not reply.prefix and sender == self._asked[0]
            return [*effects, *self._on_asked_table(reply, now)] if is_asked else effects
        return [*effects, *self.anti_entropy.query_rest(sender, reply)]

    def _on_asked_table(self, reply: TableReply, now: float) -> list[Effect]:
        if not reply.whole:
            self._joining_too[self._asked[0]] = None
            return self._query_table(now)
        if reply.more and reply.entries:
            return self._query_table(now, after=reply.entries[-1].id)
        return self._on_table_complete(now)

    def _next_sync(self, now: float) -> list[Effect]:
        return [WakeAt(now + self.options.sync_s, ("sync",), idle=True)] if self.options.sync_s else []

    def _sync(self, now: float) -> list[Effect]:
        """On schedule: drop what has expired, check origins that nobody declared failed, compare one cell."""
        self.table.expire(now)
        effects: list[Effect] = []
        cells = [cell for cell in self.table.cells() if self.ring.in_range(cell)]
        for entry in [e for cell in self.table.cells() for e in self.table.under(cell)]:
            if entry.state is EntryState.LIVE and self.ring.is_next_after(entry.origin.id):
                effects += self.ring.check(entry.origin, now)
        cells += [self.ring.cell(peer.id) for peer in self.ring.known()]
        if cells:
            cell = self._rng.choice(cells)
            effects += [self.anti_entropy.routine_query(peer, cell) for peer in self.ring.in_range(cell)[:1]]
        return [*effects, *self._next_sync(now)]

    # ── Waking ───────────────────────────────────────────────────────────────

    def wake(self, token: Token, now: float) -> list[Effect]:
        match token:
            case ("leg", TaskId() as id, int(length), str(cell), int(attempt)):
                return self.custody.on_overdue((id, length), cell, attempt, now)
            case ("sync",):
                return self._sync(now)
            case ("settled",) if self._stage == "settling":
                return self._query_table(now)
            case ("compared", *asked) if tuple(asked) == self._asked and self._stage in ("pulling", "settling"):
                silent = self._asked[0]
                return [*(self.ring.doubt(silent, now) if silent else ()), *self._query_table(now)]
            case ("alone",) if self._stage == "outside":
                return self._make_ready(now) if self.ring.is_in else []
            case ("suspect", str(id)):
                return self.failure_notices.look(id, now)
            case ("refute",):
                return self.failure_notices.refute_again(now)
            case ("leave",) if self._stage == "leaving":
                return self._go()
        return self.ring.wake(token, now)

    # ── Leaving ──────────────────────────────────────────────────────────────

    def leave(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for id in list(self.own):
            effects += self.unsubscribe(id, now)
        self._stage = "leaving"
        return [*effects, WakeAt(now + LEAVE_S, ("leave",)), *self._leave_if_done()]

    def _leave_if_done(self) -> list[Effect]:
        return self._go() if self._stage == "leaving" and not len(self.custody) and not self.own else []

    def _go(self) -> list[Effect]:
        self._stage = "outside"
        return [*self.ring.leave(0.0), Completed("leave")]

    # ── Inspection ───────────────────────────────────────────────────────────

    def links(self) -> tuple[NodeId, ...]:
        return tuple(peer.id for peer in self.ring.known())

    def status(self) -> dict[str, Any]:
        return {"network": self.options.network}

    def holdings(self) -> dict[str, tuple[int, int]]:
        return {
            **super().holdings(),
            **self.table.holdings(),
            "own": (len(self.own), self.options.own_max),
            "tasks": (len(self.custody), TASKS_MAX + 1),
            "seen": (len(self._seen), SEEN_MAX),
        }


def _event_task(packet: Packet) -> TaskId:
    return TaskId(EVENT, *packet.header.id, content_mark(packet))


def _may_void_a_cover(update: RangeUpdate) -> bool:
    """Whether other nodes may have relied on what this takes back. A live entry must not wait for others of its kind."""
    if isinstance(update, FilterEntry):
        return update.state is EntryState.RETIRING
    return isinstance(update, FailureNotice)


PROTOCOL = on_a_prefix_network(
    "irbr",
    Irbr,
    IrbrOptions,
    IrbrMessage,
    live_options={"sync_s": LIVE_SYNC_S},
    options_telling_apart={"network": "pastry"},
)
