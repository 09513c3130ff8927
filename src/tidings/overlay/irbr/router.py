"""IRBR: an event is handed from range to range of the identifier space (identifier-range-based routing).

There is no rendezvous node and no tree that could break. A node sees all others in cells
(see `places`) and knows for each cell who in it wants what (see `ranges`). To publish, it
sends the event to one node of each cell where somebody wants it; that node does the same
with the cells inside its own, and so on. Any node of a cell will do, so a neighbour that
has gone is simply replaced by another, and as the cells are disjoint nobody hears twice.

    213 publishes, 023 and 201 want it       213 → 031 [0..] → 023      213 → 202 [20.] → 201
    mode "interest": straight to who wants   213 → 023                  213 → 201

Interests go to everybody the same way, with two savings and one safety. One that is
covered by another in the same range need not be announced outside that range (its
`scope_row`). It is announced outermost row first, each row acknowledged before the next,
so whoever sees an interest and relies on it can be sure that the rows outside know it.
And one that is taken back first *retires*: whoever relied on it announces its own first.

    R0   send once; if that bounces, to another node of the range
    R1   each hop acknowledged
    R2   custody: a node answers only when everybody it is responsible for has the event

Interests always travel in custody. Who dies is mourned by its clockwise neighbour, whose
obituary retires and ends all it had subscribed to; who was thought dead says it all again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any, Literal, TypeAlias

from tidings.errors import InputError
from tidings.overlay.dedup import SEEN_MAX, SeenIds
from tidings.overlay.interest import Interest
from tidings.overlay.irbr.anti_entropy import Comparer
from tidings.overlay.irbr.custody_transfer import EVENT, TASKS_MAX, Custody, Done, Got, Leg, Task, TaskId
from tidings.overlay.irbr.failure_notices import Mourner
from tidings.overlay.irbr.filter_table import ENTRIES_MAX, GONE_S, Entry, FilterTable, Obituary, Standing
from tidings.overlay.irbr.messages import Arrival, Carry, Compare, IrbrMessage, Mourned, News, Spread, Table
from tidings.overlay.irbr.subscription_propagation import OWN_MAX, Announcer, Own
from tidings.overlay.messages import EventId, Message, NodeId, Packet, Peer, SubscriptionId
from tidings.overlay.pastry.lookup import Found
from tidings.overlay.pastry.messages import Heartbeat
from tidings.overlay.pastry.ring import ANSWER_S, HEARTBEAT_S
from tidings.overlay.pastry.router import HELD_MAX, RingRouter, on_a_ring
from tidings.overlay.pastry.routing_table import ALTERNATES, LEAF_COUNT, shared
from tidings.overlay.router import Completed, Deliver, Effect, Send, Token, WakeAt, remembered

SYNC_S = 30.0  # How often a node compares one cell of its table with somebody in that cell.
ALONE_S = 5.0  # How long a node that comes back without memory waits to be found before it goes on alone.
LEAVE_S = 10.0  # How long a leaver waits for what is in its custody.
ROUNDS_MAX = 8  # How often a newcomer asks all it knows for a whole table before it makes do with what it has.


Mode: TypeAlias = Literal["interest", "paper"]
Reliability: TypeAlias = Literal["R0", "R1", "R2"]


class Irbr(RingRouter[IrbrMessage]):
    """One node's part in IRBR."""

    def __init__(
        self,
        me: Peer,
        rng: Random,
        *,
        mode: Mode = "interest",
        reliability: Reliability = "R2",
        covering: bool = True,
        two_phase: bool = True,
        obituaries: bool = True,
        base: int = 16,
        leaf_count: int = LEAF_COUNT,
        alternates: int = ALTERNATES,
        heartbeat_s: float = HEARTBEAT_S,
        answer_s: float = ANSWER_S,
        sync_s: float = SYNC_S,
        gone_s: float = GONE_S,
        entries_max: int = ENTRIES_MAX,
    ) -> None:
        """`heartbeat_s=0` and `sync_s=0` do without routine talk, for big worlds in which nothing happens by itself.

        Without `obituaries` the dead are only avoided, never mourned, for worlds that end soon after a disaster.
        """
        if mode not in ("interest", "paper") or reliability not in ("R0", "R1", "R2"):
            raise InputError(f"expected mode interest or paper and reliability R0, R1 or R2, got {mode}, {reliability}")
        self.mode, self.reliability, self.obituaries, self.sync_s = mode, reliability, obituaries, sync_s
        super().__init__(
            me,
            rng,
            base=base,
            leaf_count=leaf_count,
            alternates=alternates,
            heartbeat_s=heartbeat_s,
            answer_s=answer_s,
        )
        self.custody = Custody(self.ring, self)
        self.table = FilterTable(me.id, entries_max=entries_max, gone_s=gone_s)
        self.announcer = Announcer(me, self.ring, self.table, self.custody, covering=covering, two_phase=two_phase)
        self.mourner = Mourner(me, self.ring, self.table, self.custody, self.announcer, two_phase=two_phase)
        self.comparer = Comparer(me, self.ring, self.table, self.announcer)
        self._stage: Literal["outside", "pulling", "arriving", "settling", "ready", "leaving"] = "outside"
        self._seen = SeenIds[EventId](SEEN_MAX)
        self._on_their_way: dict[NodeId, None] = {}  # Who cannot say more than this node, as it comes in just now, too.
        self._rounds = 0
        self._asked: tuple[NodeId, int] = ("", 0)  # Whose table is waited for, and which question that is.

    # ── Coming ───────────────────────────────────────────────────────────────

    def start(self, now: float, memory: bytes = b"") -> list[Effect]:
        contacts = remembered(memory)
        if contacts:
            return self.join(contacts, now)
        routine: list[Effect] = self._next_sync(now)
        if self.me.incarnation > 0 and not self.ring.nearest():
            # Others may still take this node for its former life; it cannot serve them before it has asked them.
            return [*self.ring.start(now), *routine, WakeAt(now + ALONE_S, ("alone",))]
        return [*self.ring.start(now), *routine]

    def join(self, via: Sequence[Peer], now: float) -> list[Effect]:
        if not via:
            return self.start(now)
        self._joined = True
        return [*self.ring.join(via, now), *self._next_sync(now)]

    def entered(self, now: float) -> list[Effect]:
        if self._joined and self.ring.nearest():
            return self._pull(now)
        if self.me.incarnation > 0 and not self.ring.nearest():
            return []
        return self._make_ready(now)

    def _pull(self, now: float) -> list[Effect]:
        """Ask the node that shares most digits: what it knows, and is, is all this node needs to know."""
        self._stage, self._rounds = "pulling", 0
        self._on_their_way.clear()
        return self._compare(now)

    def _compare(self, now: float, after: SubscriptionId | None = None) -> list[Effect]:
        """Ask the nearest that may have a whole table for it, or for the rest of it."""
        if not self.ring.nearest():
            return self._make_ready(now)
        peer = next((each for each in self.ring.by_nearness() if each.id not in self._on_their_way), None)
        if peer is None:
            return self._compare_later(now)
        question = Compare(self.me, "", self.comparer.digest("") if after is None else 0, after)
        return [Send(peer.id, question), self._wait_for(peer.id, now)]

    def _compare_later(self, now: float) -> list[Effect]:
        """All that this node knows come in at the same time: one of them will be first."""
        self._on_their_way.clear()
        self._rounds += 1
        if self._rounds >= ROUNDS_MAX:
            return self._compared(now)
        return [self._wait_for("", now)]

    def _wait_for(self, peer: NodeId, now: float) -> WakeAt:
        self._asked = (peer, self._asked[1] + 1)
        return WakeAt(now + 2 * self.ring.answer_s, ("compared", *self._asked))

    def _compared(self, now: float) -> list[Effect]:
        """All that could be learnt at this stage is."""
        if self._stage == "pulling":
            self._stage = "arriving"
            return self._arrive(now)
        return self._make_ready(now)

    def _arrive(self, now: float) -> list[Effect]:
        """Tell those who thought the cell of this node empty: they share as many digits as anybody did before."""
        first = min(shared(self.me.id, self._asked[0]), self.ring.depth() - 1) if self._asked[0] else 0
        task = self.custody.news(Arrival(self.me), ("arrived",))
        return self.custody.spread(task, self.custody.rows_from(first), now)

    def _make_ready(self, now: float) -> list[Effect]:
        if self._stage == "ready":
            return []
        self._stage = "ready"
        effects: list[Effect] = [Completed("join"), *self.mourner.make_ready(now)]
        effects += self.announcer.announce_new(now)
        return [*effects, *self._catch_up(now)]

    # ── Wanting ──────────────────────────────────────────────────────────────

    def subscribe(self, interest: Interest, now: float) -> list[Effect]:
        return self.announcer.subscribe(interest, now, is_ready=self._stage == "ready")

    def unsubscribe(self, id: SubscriptionId, now: float) -> list[Effect]:
        return self.announcer.unsubscribe(id, now)

    @property
    def own(self) -> dict[SubscriptionId, Own]:
        """This node's own subscriptions."""
        return self.announcer.own

    # ── Publishing ───────────────────────────────────────────────────────────

    def publish(self, packet: Packet, now: float) -> list[Effect]:
        if self._stage != "ready":
            return self._publish_later(packet)
        return self._handle(packet, 0, [], now, then=("published", packet.header.id))

    def _handle(
        self, packet: Packet, range_len: int, parents: list[NodeId], now: float, then: tuple[Any, ...] = ()
    ) -> list[Effect]:
        effects: list[Effect] = []
        if self._seen.add(packet.header.id) and self.announcer.wants(packet):
            effects.append(Deliver(packet))
        task = Task(_event_task(packet), range_len, packet, parents, then=then, is_kept=self.reliability != "R0")
        for cell in self.table.matching(packet, range_len):
            task.legs[cell] = Leg()
        return [*effects, *self.custody.take(task, now)]

    # ── Being told ───────────────────────────────────────────────────────────

    def receive(self, sender: NodeId, message: IrbrMessage, now: float) -> list[Effect]:
        if message.__class__ is Heartbeat:
            return self.ring.receive(sender, message, now)  # Most of all messages: asked first.
        match message:
            case Carry(range_len=length) | Spread(range_len=length):
                return self._receive_task(sender, message, now) if 0 <= length <= self.ring.length else []
            case Got():
                return self.custody.got(message, sender, now)
            case Done():
                return self.custody.done(message, sender, now)
            case Compare():
                return self.comparer.answer(sender, message, is_ready=self._stage in ("ready", "leaving"))
            case Table():
                return self._learn(sender, message, now)
            case Mourned(obituary=obituary):
                return self.mourner.refute(obituary, now)
            case _:
                return self.ring.receive(sender, message, now)

    def _receive_task(self, sender: NodeId, message: Carry | Spread, now: float) -> list[Effect]:
        if self._stage == "outside" or (self._stage not in ("ready", "leaving") and isinstance(message, Carry)):
            return self._hold(sender, message)
        if isinstance(message, Carry) and self.reliability != "R2":
            return self._receive_once(sender, message, now)
        id = _event_task(message.packet) if isinstance(message, Carry) else message.task
        answer = self.custody.known((id, message.range_len), sender)
        if answer is not None:
            return answer
        if isinstance(message, Carry):
            return self._handle(message.packet, message.range_len, [sender], now)
        return self._hear(sender, message, now)

    def _hold(self, sender: NodeId, message: Carry | Spread) -> list[Effect]:
        """Keep it until this node is ready: with half a table it would prune what others want."""
        if (sender, message) not in self._held:
            if len(self._held) >= HELD_MAX or self.ring.has_failed:
                return []
            self._held.append((sender, message))
        if isinstance(message, Spread):
            return [Send(sender, Got(message.task, message.range_len))]
        is_kept = self.reliability == "R2"
        return [Send(sender, Got(_event_task(message.packet), message.range_len))] if is_kept else []

    def _receive_once(self, sender: NodeId, message: Carry, now: float) -> list[Effect]:
        """Without custody: acknowledged at once, if at all, and passed on unless it is a repeated message."""
        id = _event_task(message.packet)
        effects: list[Effect] = [Send(sender, Done(id, message.range_len))] if self.reliability == "R1" else []
        if self.custody.is_first((id, message.range_len)):
            effects += self._handle(message.packet, message.range_len, [], now)
        return effects

    def _hear(self, sender: NodeId, message: Spread, now: float) -> list[Effect]:
        """Take news, act on it, and pass it on in the range."""
        task = Task(message.task, message.range_len, message.news, [sender])
        effects = self._take_news(message.news, now)
        if _unsettles(message.news):
            self.announcer.hold_up(task)
        return [*effects, *self.custody.spread(task, self.custody.rows_from(message.range_len), now)]

    def _take_news(self, news: News, now: float) -> list[Effect]:
        match news:
            case Entry():
                return self._take_entry(news, now)
            case Obituary():
                return self.mourner.hear(news, now)
            case Arrival(peer=peer):
                return self.ring.check(peer, now)

    def _take_entry(self, entry: Entry, now: float) -> list[Effect]:
        self.announcer.hear(entry.clock)
        if entry.origin.id == self.me.id:
            return self.mourner.meet_former_life(entry, now, is_ready=self._stage == "ready")
        if not self.ring.is_id(entry.origin.id) or entry.id.origin != entry.origin.id:
            return []
        lost = self.table.merge(entry, now)
        return self.announcer.reconsider([lost], now) if lost else []

    # ── Spreading ────────────────────────────────────────────────────────────

    def candidates(self, task: Task, cell: str) -> Iterator[NodeId]:
        """Nodes of the cell that may see to it: first those who want the event themselves."""
        tried, ring = task.legs[cell].tried, self.ring
        if isinstance(task.cargo, Packet) and self.mode == "interest":
            yield from (id for id in self._wanting(task.cargo, cell) if id not in tried and self.ring.is_usable(id))
        yield from (peer.id for peer in ring.in_range(cell) if peer.id not in tried)
        for entry in self.table.under(cell):
            if (
                entry.origin.id not in tried
                and entry.standing is not Standing.GONE
                and self.ring.is_usable(entry.origin.id)
            ):
                yield entry.origin.id

    def _wanting(self, packet: Packet, cell: str) -> list[NodeId]:
        wanting = (e.origin.id for e in self.table.under(cell) if e.interest is not None and e.interest.matches(packet))
        return sorted(wanting)

    def packed(self, task: Task, cell: str) -> Message:
        cargo = task.cargo
        return Carry(cargo, len(cell)) if isinstance(cargo, Packet) else Spread(task.id, len(cell), cargo)

    def found(self, prefix: str, what: Peer | Found, now: float) -> list[Effect]:
        return self.custody.found(prefix, what, now)

    def finished(self, task: Task, now: float) -> list[Effect]:
        return [*self._go_on(task.then, now), *self._check_leaving(now)]

    def _go_on(self, then: tuple[Any, ...], now: float) -> list[Effect]:
        """What the origin of a task does when everybody has it."""
        match then:
            case ("published", EventId() as event):
                return [Completed("publish", event)] if self.reliability == "R2" else []
            case ("arrived",):
                self._stage = "settling"
                return [WakeAt(now + 2 * self.ring.answer_s, ("settled",))]
            case ("mourned", Obituary() as obituary):
                return self.mourner.go_on(obituary, now)
        return self.announcer.go_on(then, now)

    # ── The dead, the late and the lost ──────────────────────────────────────

    def came(self, peer: Peer, now: float) -> list[Effect]:
        effects: list[Effect] = []
        obituary = self.table.obituary(peer.id)
        if obituary is not None and obituary.incarnation >= peer.incarnation:
            effects.append(Send(peer.id, Mourned(obituary)))
        if self._stage == "outside" and self.ring.is_in:
            self.ring.is_in, self._joined = False, True
            return [*effects, *self.ring.join([peer], now)]
        if self._stage == "ready":
            effects.append(self.comparer.acquaint(peer))
        return effects

    def died(self, peer: Peer, now: float) -> list[Effect]:
        is_next = self.obituaries and self._stage == "ready" and self.ring.is_next_after(peer.id)
        mourning = self.mourner.mourn(peer, now) if is_next else []
        return [*self.custody.redirect(peer.id, now), *mourning]

    def left(self, peer: Peer, now: float) -> list[Effect]:
        return self.custody.redirect(peer.id, now)

    def unsent(self, to: NodeId, message: IrbrMessage, now: float) -> list[Effect]:
        effects = self.ring.unsent(to, message, now)
        if isinstance(message, Carry) and self.reliability == "R0":
            return [*effects, *self._send_elsewhere(to, message, now)]
        return [*effects, *self.custody.redirect(to, now)]

    def _send_elsewhere(self, to: NodeId, message: Carry, now: float) -> list[Effect]:
        """Nothing was kept of an event sent once, but what bounced says where it was to go."""
        cell = to[: message.range_len]
        if self.ring.cell(to) != cell:
            return []
        task = Task(_event_task(message.packet), message.range_len - 1, message.packet, is_kept=False)
        return self.custody.send_elsewhere(task, cell, to, now)

    # ── Comparing tables ─────────────────────────────────────────────────────

    def _learn(self, sender: NodeId, answer: Table, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for obituary in answer.obituaries:
            effects += self._take_news(obituary, now)
        for entry in answer.entries:
            effects += self._take_news(entry, now)
        if self._stage in ("pulling", "settling"):
            is_asked = not answer.prefix and sender == self._asked[0]
            return [*effects, *self._answered(answer, now)] if is_asked else effects
        return [*effects, *self.comparer.go_on(sender, answer)]

    def _answered(self, answer: Table, now: float) -> list[Effect]:
        if not answer.whole:
            self._on_their_way[self._asked[0]] = None
            return self._compare(now)
        if answer.more and answer.entries:
            return self._compare(now, after=answer.entries[-1].id)
        return self._compared(now)

    def _next_sync(self, now: float) -> list[Effect]:
        return [WakeAt(now + self.sync_s, ("sync",), idle=True)] if self.sync_s else []

    def _sync(self, now: float) -> list[Effect]:
        """Once in a while: forget the long gone, look after origins that nobody mourned, compare one cell."""
        self.table.expire(now)
        effects: list[Effect] = []
        cells = [cell for cell in self.table.cells() if self.ring.in_range(cell)]
        for entry in [e for cell in self.table.cells() for e in self.table.under(cell)]:
            if entry.standing is Standing.LIVE and self.ring.is_next_after(entry.origin.id):
                effects += self.ring.check(entry.origin, now)
        cells += [self.ring.cell(peer.id) for peer in self.ring.known()]
        if cells:
            cell = self._rng.choice(cells)
            effects += [self.comparer.question(peer, cell) for peer in self.ring.in_range(cell)[:1]]
        return [*effects, *self._next_sync(now)]

    # ── Later ────────────────────────────────────────────────────────────────

    def wake(self, token: Token, now: float) -> list[Effect]:
        match token:
            case ("leg", TaskId() as id, int(length), str(cell), int(attempt)):
                return self.custody.overdue((id, length), cell, attempt, now)
            case ("sync",):
                return self._sync(now)
            case ("settled",) if self._stage == "settling":
                return self._compare(now)
            case ("compared", *asked) if tuple(asked) == self._asked and self._stage in ("pulling", "settling"):
                silent = self._asked[0]
                return [*(self.ring.doubt(silent, now) if silent else ()), *self._compare(now)]
            case ("alone",) if self._stage == "outside":
                return self._make_ready(now) if self.ring.is_in else []
            case ("refute",):
                return self.mourner.refute_again(now)
            case ("leave",) if self._stage == "leaving":
                return self._go()
        return self.ring.wake(token, now)

    def leave(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for id in list(self.own):
            effects += self.unsubscribe(id, now)
        self._stage = "leaving"
        return [*effects, WakeAt(now + LEAVE_S, ("leave",)), *self._check_leaving(now)]

    def _check_leaving(self, now: float) -> list[Effect]:
        return self._go() if self._stage == "leaving" and not len(self.custody) and not self.own else []

    def _go(self) -> list[Effect]:
        self._stage = "outside"
        return [*self.ring.leave(0.0), Completed("leave")]

    # ── Being looked at ──────────────────────────────────────────────────────

    def links(self) -> tuple[NodeId, ...]:
        return tuple(peer.id for peer in self.ring.known())

    def holdings(self) -> dict[str, tuple[int, int]]:
        return {
            **super().holdings(),
            **self.table.holdings(),
            "own": (len(self.own), OWN_MAX),
            "tasks": (len(self.custody), TASKS_MAX + 1),
            "seen": (len(self._seen), SEEN_MAX),
        }


def _event_task(packet: Packet) -> TaskId:
    return TaskId(EVENT, *packet.header.id)


def _unsettles(news: News) -> bool:
    """Whether others may have relied on what this takes back. A live entry must not wait for others of its kind."""
    return isinstance(news, Obituary) or (isinstance(news, Entry) and news.standing is Standing.RETIRING)


# Brokers that start in the same second may miss each other's first messages, keys among them. They compare their tables
# often, which costs nothing as long as the tables agree.
PROTOCOL = on_a_ring("irbr", Irbr, IrbrMessage, live_options={"sync_s": 2.0})
