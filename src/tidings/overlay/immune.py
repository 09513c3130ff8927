"""Immune: nodes with few links listen, a small connected core of well-linked ones forwards.

On a scale-free graph most nodes have few links and some have many. Those with at most
`delta` links are *immune*: they never forward, and elect one neighbour in the *core* as
their *upper*, which forwards to them as one of its *lowers*. Members of the core that
nobody elected become immune too, if the core holds together without them. What is spread
reaches everyone in about one copy each; flooding takes about five.

    role      sends what it gets first to
    immune    nobody; what it publishes itself, to its upper
    core      its lowers, and the core by `forward`:
              core_flood   all core neighbours but the sender
              core_elim    … except those that the sender reaches itself
              core_tree    its links of a tree that spans the core
    unsure    all neighbours, and whoever gets it does the same: a flood, until things are clear again

How the roles come about (`backbone.guarded` is the same thing seen from above):

    Hello        everyone to all neighbours, each heartbeat: links, role, upper, root
    Promote      an immune node without a core neighbour makes its best neighbour join the core
    Elect        an immune node to the best of its core neighbours; ElectOk or ElectNo comes back
    Beacon       from the best-ranked node of the core through the core: who hears none is cut off
    Repair       a flood from a piece of the core to find a better-ranked one; RepairPath comes
                 back the way it went, and Bridge promotes the nodes in between
    DemoteAsk    a core node without lowers asks the core within two hops to stay as it is while it
                 looks whether they hold together without it; worst rank goes first

Every step keeps the core connected and everyone next to it, so a new *epoch* (links have
changed, the ranks are taken anew) only opens the questions again. Steps that wait for a
lost message run out and are taken again; giving up always means staying in the core.

Events are spread to everyone (`traverse`) or follow reverse pointers (`advertise`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tidings.errors import InputError
from tidings.overlay import backbone
from tidings.overlay.immune_messages import (
    Ack,
    Advertise,
    Adverts,
    Beacon,
    Bridge,
    Bye,
    DemoteAsk,
    DemoteDeny,
    DemoteEnd,
    DemoteGrant,
    Elect,
    ElectNo,
    ElectOk,
    Foreign,
    ForEveryone,
    Hello,
    ImmuneMessage,
    Promote,
    Pull,
    Release,
    Renew,
    Repair,
    RepairPath,
    Role,
    Spread,
    Status,
    key_of,
)
from tidings.overlay.interest import Interest
from tidings.overlay.liveness import Liveness, Unanswered
from tidings.overlay.pointers import (
    Advert,
    Confirm,
    Forward,
    Forwarded,
    Pointers,
    Sub,
    Unsub,
)
from tidings.overlay.router import (
    Completed,
    Count,
    Deliver,
    Effect,
    Place,
    Promise,
    Protocol,
    Router,
    Send,
    Token,
    WakeAt,
)
from tidings.overlay.seen import SeenIds
from tidings.overlay.wire import EventId, NodeId, Parcel, Peer, SubscriptionId

NEIGHBOURS_MAX = 4096  # Four times the largest hub in the lab.
PATH_MAX = 32  # Nodes on a repair's way; the core is next to everyone, so three would do while all is well.
RESENDS_MAX = 6  # With the wait doubling: half a minute at the usual heartbeat.
ASKS_MAX = 12  # Times a core node tries to be let go in one epoch; then it stays.
UNACKED_MAX = 65_536  # Copies on their way; one pushed out is not sent again.

# In heartbeats. A beacon every other one; three missed beacons, as three missed heartbeats, are too many.
BEACON_EVERY, BEACON_LOST_AFTER, SETTLED_AFTER, REPAIR_AFTER, ASK_WITHIN, PROMISE_FOR = 2, 6, 4, 3, 2, 5

FORWARD_MODES = ("core_flood", "core_elim", "core_tree")


@dataclass(frozen=True, slots=True)
class Settings:
    """How a network of this protocol is run; the same for all its nodes."""

    delta: int = 3
    heartbeat_s: float = 1.0
    """0: no heartbeats, for a network that never changes."""
    forward: str = "core_elim"
    mode: str = "traverse"
    demotion: str = "guarded"
    check: str = "global"
    """How far a whole network settled at once looks (see `backbone.guarded`); nodes by themselves look two hops far."""
    epoch_s: float = 300.0
    lowers_max: int = NEIGHBOURS_MAX
    acks: bool = True

    def __post_init__(self) -> None:
        for name, allowed in (
            ("forward", FORWARD_MODES),
            ("mode", ("traverse", "advertise")),
            ("demotion", ("literal", "guarded")),
            ("check", ("local", "global")),
        ):
            if getattr(self, name) not in allowed:
                raise InputError(f"expected {name} to be one of {', '.join(allowed)}, got {getattr(self, name)!r}")
        if self.delta < 0 or self.heartbeat_s < 0 or self.epoch_s < 0 or self.lowers_max < 1:
            raise InputError(f"expected no negative settings and room for at least one lower, got {self}")


@dataclass(slots=True)
class _Ask:
    """A question to the core within two hops, ours or one that we relay: who has yet to answer, and who is there."""

    round: int
    waiting: dict[NodeId, None]
    seen: dict[NodeId, tuple[NodeId, ...]] = field(default_factory=dict)
    asked: tuple[NodeId, ...] = ()


class Immune(Router[ImmuneMessage]):
    """One node of the network: its role, its neighbours as it knows them, and what it forwards to whom."""

    def __init__(self, place: Place, settings: Settings | None = None) -> None:
        self.me, self.settings, self._chance = place.me, settings or Settings(), place.chance
        self.id = place.me.id
        self.wires: dict[NodeId, None] = {peer.id: None for peer in place.neighbours}
        """All links there are, also those nobody answers on: they are kept, for the day somebody does."""
        self.near: dict[NodeId, Status] = {}
        self.degree, self.epoch = len(self.wires), 0
        self.decided = self.core = self.kept = self.leaving = False
        self.upper: NodeId = ""
        self.lowers: dict[NodeId, float] = {}
        self.root, self.root_degree, self.parent = self.id, self.degree, ""
        beat = self.settings.heartbeat_s or 1.0
        self._beat = beat
        self._alive = Liveness(beat)
        self._begun = self._beacon_at = self._changed_at = self._epoch_at = 0.0
        self._beacon_seq = 0
        self._shaky_until = -math.inf
        self._foreign_since: float | None = None
        self._repaired_at = -math.inf
        self._round = self._asks = self._bridged = 0
        self._ask: _Ask | None = None
        self._relays: dict[tuple[NodeId, int], _Ask] = {}
        self._promises: dict[NodeId, float] = {}
        self._children: dict[NodeId, float] = {}
        self._electing: tuple[NodeId, int] = ("", 0)
        self._repairs_seen = SeenIds[tuple[NodeId, int]](4096)
        self._seen = SeenIds[str]()
        self._seen_safe = SeenIds[str]()
        self._delivered = SeenIds[EventId]()
        self._unacked = Unanswered[tuple[str, NodeId]](wait_s=beat / 2, tries_max=RESENDS_MAX, at_most=UNACKED_MAX)
        self.pointers = Pointers(self.id, self.me.incarnation, wait_s=beat, settle_s=5 * beat)
        self._renewals = 0
        self._losses: dict[NodeId, int] = {}  # By wire.

    @classmethod
    def build(cls, place: Place, **options: Any) -> Immune:
        """A node that stands where `place` says."""
        try:
            return cls(place, Settings(**options))
        except TypeError as wrong:
            raise InputError(f"immune: {wrong}") from None

    # ── Coming and going ───────────────────────────────────────────────────────

    def start(self, now: float, memory: bytes = b"") -> list[Effect]:
        self._begun = self._beacon_at = self._changed_at = self._epoch_at = now
        for peer in self.near:
            self._alive.watch(peer, now)
        effects: list[Effect] = [Completed("join")]
        if self.settings.heartbeat_s:
            effects.append(WakeAt(now + self._chance.uniform(0, self._beat), "tick", idle=True))
        if self.decided:
            return effects
        effects += [Send(peer, Role(self._status(), asking=True)) for peer in self.wires]
        return [*effects, WakeAt(now + 3 * self._beat, "greeted"), *self._decide_if_all_greeted(now)]

    def leave(self, now: float) -> list[Effect]:
        self.leaving = True
        if not self.core or not self.near:
            return self._go()
        self._shaky_until = math.inf  # From now on this node only floods.
        return self._tell_all()

    def peer_up(self, peer: Peer, now: float) -> list[Effect]:
        if len(self.wires) >= NEIGHBOURS_MAX:
            return []
        self.wires[peer.id] = None
        return [Send(peer.id, Role(self._status(), asking=True))]

    def peer_down(self, peer: NodeId, now: float) -> list[Effect]:
        self.pointers.hang_up(peer)
        return self._lose(peer, now)

    # ── Publish and subscribe ──────────────────────────────────────────────────

    def publish(self, parcel: Parcel, now: float) -> list[Effect]:
        self._delivered.add(parcel.head.id)
        effects: list[Effect] = [Deliver(parcel)]
        if self.settings.mode == "advertise":
            advert = self.pointers.advert_for(parcel, now)
            if advert is not None:
                effects += self._spread(Advertise(advert), None, now)
            elif self.pointers.settled(parcel, now) and not self._unsure(now):
                return effects + self.pointers.down(parcel, self.pointers.ours_for(parcel), None, now)
        return effects + self._spread(Spread(parcel), None, now)

    def subscribe(self, interest: Interest, now: float) -> list[Effect]:
        if self.settings.mode == "advertise":
            return self.pointers.subscribe(interest, now)
        return [Completed("subscribe", interest.id)]

    def unsubscribe(self, id: SubscriptionId, now: float) -> list[Effect]:
        if self.settings.mode == "advertise":
            return self.pointers.unsubscribe(id, now)
        return [Completed("unsubscribe", id)]

    # ── Messages ───────────────────────────────────────────────────────────────

    def receive(self, sender: NodeId, message: ImmuneMessage, now: float) -> list[Effect]:
        self._alive.heard(sender, now)
        match message:
            case Spread() | Advertise() | Renew():
                return self._on_spread(sender, message, now)
            case Ack(key):
                self._unacked.answered((key, sender))
                return []
            case Hello(status):
                return self._on_status(sender, status, now)
            case Role(status, asking):
                answer: list[Effect] = [Send(sender, Role(self._status()))] if asking else []
                return answer + self._on_status(sender, status, now)
        if sender not in self.near and not isinstance(message, Forward | Forwarded):
            return []  # A stranger, or one whose greeting was lost; it will greet again.
        if isinstance(message, Sub | Confirm | Unsub | Forward | Forwarded | Pull | Adverts):
            return self._on_pointed(sender, message, now)
        return self._on_structure(sender, message, now)

    def _on_structure(self, sender: NodeId, message: Any, now: float) -> list[Effect]:
        match message:
            case Elect() | ElectOk() | ElectNo() | Release() | Promote() | Bye():
                return self._on_election(sender, message, now)
            case Beacon():
                return self._on_beacon(sender, message, now)
            case Foreign():
                return self._repair(now) if self.core else []
            case Repair():
                return self._on_repair(sender, message, now)
            case RepairPath(round, path):
                return self._on_repair_path(round, path)
            case Bridge(path):
                return self._on_bridge(path, now)
            case DemoteAsk():
                return self._on_ask(sender, message, now)
            case DemoteGrant():
                return self._on_grant(sender, message, now)
            case DemoteDeny(candidate, round):
                return self._on_deny(candidate, round)
            case DemoteEnd(candidate, relayed):
                return self._on_end(sender, candidate, relayed)
        return []

    def wake(self, token: Token, now: float) -> list[Effect]:
        match token:
            case "tick":
                return self._tick(now)
            case "greeted":
                return self._decide(now)
            case ("asked", round):
                return self._stop_asking() if self._ask and self._ask.round == round else []
            case ("resend", str(key), str(to)):
                return self._resend(key, to, now)
            case ("pointers", (str(kind), what, str(to))):
                return self.pointers.call_again((kind, what, to), now)
        return []

    def links(self) -> tuple[NodeId, ...]:
        if not self.core:
            return (self.upper,) if self.upper else ()
        return (*self.lowers, *self._core_near())

    def holdings(self) -> dict[str, tuple[int, int]]:
        return {
            "wires": (len(self.wires), NEIGHBOURS_MAX),
            "lowers": (len(self.lowers), NEIGHBOURS_MAX),
            "seen": (len(self._seen), self._seen.at_most),
            "unacked": (len(self._unacked), UNACKED_MAX),
            "relays": (len(self._relays), NEIGHBOURS_MAX),
            "promises": (len(self._promises), NEIGHBOURS_MAX),
            **self.pointers.holdings(),
        }

    # ── Spreading to everyone ──────────────────────────────────────────────────

    def _on_spread(self, sender: NodeId, message: ForEveryone, now: float) -> list[Effect]:
        effects: list[Effect] = [Send(sender, Ack(key_of(message)))] if self.settings.acks else []
        new = key_of(message) not in self._seen
        onward = self._spread(message, sender, now)
        match message:
            case Spread(parcel):
                effects += [Deliver(parcel)] if self._delivered.add(parcel.head.id) else []
            case Advertise(advert) if new:
                effects += self.pointers.learn(advert, sender, now)
            case Renew(advert) if new and self.pointers.ours(advert.id):
                effects += self._renew_own(advert, now)
        return effects + onward

    def _spread(self, message: ForEveryone, sender: NodeId | None, now: float) -> list[Effect]:
        """Pass on what is new here. What was passed on by role comes once more if others are unsure: to all."""
        key, safe = key_of(message), message.safe or self._unsure(now)
        if not self._seen.add(key) and not (safe and key not in self._seen_safe):
            return []
        if not safe:
            return self._send_all(message, self._onward(sender), now)
        self._seen_safe.add(key)
        onward = message if message.safe else msgspec.structs.replace(message, safe=True)
        # To all links, also those that seem dead: that one does is often why this node is unsure.
        return self._send_all(onward, [peer for peer in self.wires if peer != sender], now)

    def _onward(self, sender: NodeId | None) -> list[NodeId]:
        """Whom this node's role says to send to."""
        if not self.core:
            return [self.upper] if sender is None and self.upper else []
        lowers = [peer for peer in self.lowers if peer != sender]
        return lowers + [peer for peer in self._core_onward(sender) if peer not in self.lowers]

    def _core_onward(self, sender: NodeId | None) -> list[NodeId]:
        others = [peer for peer in self._core_near() if peer != sender]
        if self.settings.forward == "core_tree":
            return [peer for peer in others if peer == self.parent or peer in self._children]
        status = self.near.get(sender) if sender else None
        if self.settings.forward == "core_elim" and status and status.core and status.epoch == self.epoch:
            return [peer for peer in others if peer not in status.core_neighbours]
        return others

    def _unsure(self, now: float) -> bool:
        if self.settings.demotion == "literal" and self.decided:
            return False
        return not self.decided or now < self._shaky_until or not (self.core or self.upper)

    def _send_all(self, message: ForEveryone, to: list[NodeId], now: float) -> list[Effect]:
        if not self.settings.acks:
            return [Send(peer, message) for peer in to]
        effects: list[Effect] = []
        for peer in to:
            due = self._unacked.add((key_of(message), peer), peer, message, now)
            effects += [Send(peer, message), WakeAt(due, ("resend", key_of(message), peer))]
        return effects

    def _resend(self, key: str, to: NodeId, now: float) -> list[Effect]:
        waiting = self._unacked.get((key, to))
        if waiting is None or now < waiting.due:
            return []
        due = self._unacked.again((key, to), now)
        if due is None:
            return [Count("gave up")]
        return [Send(to, waiting.message), WakeAt(due, ("resend", key, to))]

    # ── Neighbours ─────────────────────────────────────────────────────────────

    def _on_status(self, sender: NodeId, status: Status, now: float) -> list[Effect]:
        if sender not in self.wires and len(self.wires) >= NEIGHBOURS_MAX:
            return []
        known = self.near.get(sender)
        effects: list[Effect] = []
        if known and (known.me.incarnation != status.me.incarnation or self._forgotten_by(known, status)):
            self._losses[sender] = self._losses.get(sender, 0) - 1  # Its mistake, not to be answered with ours.
            effects += self._lose(sender, now)
            known = None
        self.wires[sender] = None
        self._alive.watch(sender, now)
        self.near[sender] = status
        if known is None or (known.core, known.leaving) != (status.core, status.leaving):
            self._changed_at = now
            effects += self._tell_all() if self.core and self.decided else []
        effects += self._on_new_neighbour(sender, now) if known is None else []
        effects += self._on_their_role(sender, status, now)
        return effects + (self._stand(now) if self.decided else self._decide_if_all_greeted(now))

    def _forgotten_by(self, known: Status, status: Status) -> bool:
        """Whether a neighbour that knew us took us for dead since; perhaps it knows us again by now."""
        return self.id in known.neighbours and status.neighbours.get(self.id) != known.neighbours[self.id]

    def _on_their_role(self, sender: NodeId, status: Status, now: float) -> list[Effect]:
        """Agree with a neighbour on who is whose upper, lower and child."""
        if status.parent == self.id:
            self._children[sender] = math.inf
        elif self._children.get(sender) == math.inf:
            self._children[sender] = now + 2 * self._beat  # For what the new parent does not send it yet.
        if sender == self.upper and (not status.core or status.leaving):
            self.upper = ""
        if status.core:
            self.lowers.pop(sender, None)
        elif status.upper == self.id:
            return [] if self._take_lower(sender, now) else [Send(sender, ElectNo(self._status()))]
        elif now > self.lowers.get(sender, now) + 2 * self._beat:
            del self.lowers[sender]
        return []

    def _lose(self, peer: NodeId, now: float) -> list[Effect]:
        """A neighbour is gone. What it had not taken is flooded, for it may have been the way to others."""
        status = self.near.pop(peer, None)
        if status is None:
            return []
        self._alive.forget(peer)
        self._losses[peer] = self._losses.get(peer, 0) + 1
        if peer in (self.upper, *self.lowers) or (status.core and self.core):
            self._shaky_until = max(self._shaky_until, now + SETTLED_AFTER * self._beat)
        self.lowers.pop(peer, None)
        self._children.pop(peer, None)
        self.upper = "" if self.upper == peer else self.upper
        if self.parent == peer:
            self.parent = ""
            self._beacon_at = min(self._beacon_at, now - (BEACON_LOST_AFTER - BEACON_EVERY - 1) * self._beat)
        effects: list[Effect] = []
        for key in self._unacked.to_peer(peer):
            waiting = self._unacked.answered(key)
            if waiting is not None and self._seen_safe.add(key[0]):
                again = msgspec.structs.replace(waiting.message, safe=True)
                effects += self._send_all(again, [other for other in self.wires if other != peer], now)
        return effects + self._pointers_lost(peer, now) + self._tell_all() + self._stand(now)

    def _status(self) -> Status:
        return Status(
            self.me, self.epoch, self.degree, self.decided, self.core, self.leaving, bool(self.lowers), self._is_idle(), self.upper,
            self.root, self.root_degree, self.parent, {peer: self._losses.get(peer, 0) for peer in self.near},
            tuple(self._core_near()), self.pointers.fingerprint(),
        )  # fmt: skip

    def _core_near(self) -> list[NodeId]:
        return [peer for peer, status in self.near.items() if status.core and not status.leaving]

    def _tell_all(self) -> list[Effect]:
        news = Role(self._status())
        return [Send(peer, news) for peer in self.near]

    def _rank(self, peer: NodeId) -> tuple[int, NodeId]:
        return (-self.near[peer].degree, peer)

    # ── Roles ──────────────────────────────────────────────────────────────────

    def _decide_if_all_greeted(self, now: float) -> list[Effect]:
        return self._decide(now) if all(peer in self.near for peer in self.wires) else []

    def _decide(self, now: float) -> list[Effect]:
        """Take the first role: by the number of links when all begin together, else that of a listener."""
        if self.decided:
            return []
        self.decided, self._changed_at = True, now
        newcomer = self.me.incarnation > 0 or any(status.epoch > 0 for status in self.near.values())
        self.degree = len(self.wires)
        if not self.near or (self.degree > self.settings.delta and not newcomer):
            self._enter_core(now)
        if newcomer:
            self.epoch = max((status.epoch for status in self.near.values()), default=0)
        return self._tell_all() + self._stand(now)

    def _stand(self, now: float) -> list[Effect]:
        """See to it that this node is in the core or has an upper."""
        if not self.decided or self.core or self.upper or self.leaving:
            return []
        if not all(status.decided for status in self.near.values()) and now < self._changed_at + 3 * self._beat:
            return []  # Somebody is still greeting and may be the better choice.
        best = self._best_upper()
        if best and self._electing == (best, round(now / self._beat)):
            return []  # Asked within this heartbeat.
        if best:
            self._electing = (best, round(now / self._beat))
            return [Send(best, Elect())]
        standing = [peer for peer, status in self.near.items() if not status.leaving]
        if not standing:
            return self._join_core(now)
        return [Send(min(standing, key=self._rank), Promote())]

    def _best_upper(self) -> NodeId:
        return min(self._core_near(), key=self._rank, default="")

    def _enter_core(self, now: float) -> None:
        self.core, self.kept, self.upper, self._asks = True, False, "", 0
        self._changed_at = self._beacon_at = now
        self.root, self.root_degree, self.parent = self.id, self.degree, ""
        best = min(self._core_near(), key=lambda peer: self._root_rank(self.near[peer]), default="")
        if best and self._root_rank(self.near[best]) < (-self.degree, self.id):
            self.root, self.root_degree, self.parent = self.near[best].root, self.near[best].root_degree, best

    def _join_core(self, now: float) -> list[Effect]:
        if self.core:
            return self._tell_all()
        self._enter_core(now)
        return self._tell_all()

    def _on_election(self, sender: NodeId, message: Any, now: float) -> list[Effect]:
        match message:
            case Elect():
                return [Send(sender, ElectOk() if self._take_lower(sender, now) else ElectNo(self._status()))]
            case ElectOk():
                return self._on_elected(sender, now)
            case ElectNo(status):
                self.near[sender] = status
                self.upper = "" if self.upper == sender else self.upper
                return self._stand(now)
            case Release():
                self.lowers.pop(sender, None)
            case Promote():
                return self._join_core(now) if self.decided and not self.leaving else []
            case Bye():
                del self.wires[sender]
                self._losses.pop(sender, None)
                return self._lose(sender, now)
        return []

    def _take_lower(self, peer: NodeId, now: float) -> bool:
        if not self.core or self.leaving or (peer not in self.lowers and len(self.lowers) >= self.settings.lowers_max):
            return False
        self.lowers[peer] = now
        return True

    def _on_elected(self, upper: NodeId, now: float) -> list[Effect]:
        if self.core or self.leaving:
            return [Send(upper, Release())]
        release: list[Effect] = [Send(self.upper, Release())] if self.upper and self.upper != upper else []
        self.upper = upper
        return release + self._tell_all()

    # ── Each heartbeat ─────────────────────────────────────────────────────────

    def _tick(self, now: float) -> list[Effect]:
        effects: list[Effect] = [WakeAt(now + self._beat, "tick", idle=True)]
        for peer in self._alive.silent(now):
            effects += self._lose(peer, now)
        for child, until in list(self._children.items()):
            if until < now:
                del self._children[child]
        for candidate, until in list(self._promises.items()):
            if until < now:
                del self._promises[candidate]
        if not self.decided:
            return effects + [Send(peer, Role(self._status(), asking=True)) for peer in self.wires]
        effects += (
            self._stand(now) + self._keep_root(now) + self._look_for_others(now) + self._consider_leaving_core(now)
        )
        effects += (
            self.pointers.fade(now) + self._compare_adverts() + self._ask_to_renew(self.pointers.broken(now), now)
        )
        if self.leaving and self.core:
            effects += self._go_if_replaced(now)
        hello = Hello(self._status())
        return effects + [Send(peer, hello) for peer in self.wires]

    def _keep_root(self, now: float) -> list[Effect]:
        """In the core: send the beacon on if it is ours, and notice when it no longer comes."""
        if not self.core:
            return self._follow_upper(now)
        if self.leaving:
            return []
        effects: list[Effect] = []
        if self.root != self.id and now > self._beacon_at + BEACON_LOST_AFTER * self._beat:
            self.root, self.root_degree, self.parent = self.id, self.degree, ""
            self._shaky_until = now + SETTLED_AFTER * self._beat
            effects += self._tell_all()
        if self.root == self.id and now >= self._beacon_at + BEACON_EVERY * self._beat:
            effects += self._send_beacon(now)
        return effects

    def _follow_upper(self, now: float) -> list[Effect]:
        """An immune node's root and epoch are its upper's. In a new epoch it looks for a better upper."""
        upper = self.near.get(self.upper)
        self.root, self.root_degree = (upper.root, upper.root_degree) if upper else (self.id, self.degree)
        if upper is None or upper.epoch <= self.epoch:
            return []
        self._enter_epoch(upper.epoch, now)
        best = self._best_upper()
        change: list[Effect] = [Send(best, Elect())] if not self.core and best not in ("", self.upper) else []
        return self._tell_all() + change

    def _send_beacon(self, now: float) -> list[Effect]:
        self._beacon_at = now
        self._beacon_seq += 1
        if self.settings.epoch_s and now >= self._epoch_at + self.settings.epoch_s:
            self._enter_epoch(self.epoch + 1, now)
        beacon = Beacon(self.id, self.degree, self._beacon_seq, self.epoch)
        return [Send(peer, beacon) for peer in self._core_near()]

    def _on_beacon(self, sender: NodeId, beacon: Beacon, now: float) -> list[Effect]:
        if not self.core or self.leaving or not self.near[sender].core:
            return []
        theirs, ours = (-beacon.root_degree, beacon.root), (-self.root_degree, self.root)
        if theirs > ours or beacon.root == self.id or (theirs == ours and beacon.seq <= self._beacon_seq):
            return []
        news = (self.root, self.parent) != (beacon.root, sender)
        if theirs < ours:
            self._shaky_until = max(self._shaky_until, now + self._beat)
        self.parent = sender  # Whoever brings a beacon first: those of one beacon form a tree, whatever has changed.
        self.root, self.root_degree, self._beacon_seq, self._beacon_at = (
            beacon.root,
            beacon.root_degree,
            beacon.seq,
            now,
        )
        if beacon.epoch > self.epoch:
            self._enter_epoch(beacon.epoch, now)
        onward: list[Effect] = [Send(peer, beacon) for peer in self._core_near() if peer != sender]
        return onward + (self._tell_all() if news else [])

    def _enter_epoch(self, epoch: int, now: float) -> None:
        """Take the ranks anew, and ask again who is needed in the core."""
        grown = self.degree <= self.settings.delta < len(self.near)
        self.epoch, self._epoch_at, self.degree = epoch, now, len(self.near)
        self.kept, self._asks, self._changed_at = False, 0, now
        if grown and not self.core and self.upper:
            self._enter_core(now)

    # ── Pieces of the core that lost each other ────────────────────────────────

    def _root_rank(self, status: Status) -> tuple[int, NodeId]:
        return (-status.root_degree, status.root)

    def _look_for_others(self, now: float) -> list[Effect]:
        """A neighbour that follows a better root than ours for long is in another piece of the core."""
        ours = (-self.root_degree, self.root)
        others = [s for s in self.near.values() if s.decided and not s.leaving and (s.core or s.upper)]
        if not any(self._root_rank(status) < ours for status in others):
            self._foreign_since = None
            return []
        if self._foreign_since is None:
            self._foreign_since = now
        if now < self._foreign_since + REPAIR_AFTER * self._beat:
            return []
        if self.core:
            self._shaky_until = max(self._shaky_until, now + SETTLED_AFTER * self._beat)
            return self._repair(now)
        return [Send(self.upper, Foreign())] if self.upper else []

    def _repair(self, now: float) -> list[Effect]:
        """Start looking for a better-ranked piece, unless somebody has just done so."""
        if now < self._repaired_at + SETTLED_AFTER * self._beat or self.leaving:
            return []
        self._repaired_at = now
        self._round += 1
        search = Repair(self.root, self.root_degree, self._round, (self.id,))
        self._repairs_seen.add((self.id, self._round))
        return [Count("repair"), *(Send(peer, search) for peer in self.near)]

    def _on_repair(self, sender: NodeId, search: Repair, now: float) -> list[Effect]:
        path = search.path
        if not path or path[-1] != sender or len(path) >= PATH_MAX:
            return []
        if not self._repairs_seen.add((path[0], search.round)):
            return []
        theirs, ours = (-search.root_degree, search.root), (-self.root_degree, self.root)
        if theirs == ours:
            self._repaired_at = now
        if self.core and not self.leaving and ours < theirs:
            return [Send(sender, RepairPath(search.round, (*path, self.id)))]
        onward = Repair(search.root, search.root_degree, search.round, (*path, self.id))
        return [Send(peer, onward) for peer in self.near if peer not in path] if not self.leaving else []

    def _on_repair_path(self, round: int, path: tuple[NodeId, ...]) -> list[Effect]:
        if self.id not in path:
            return []
        at = path.index(self.id)
        if at > 0:
            return [Send(path[at - 1], RepairPath(round, path))]
        if round <= self._bridged or not self.core or len(path) < 2:
            return []
        self._bridged = round
        return [Send(path[1], Bridge(path))]

    def _on_bridge(self, path: tuple[NodeId, ...], now: float) -> list[Effect]:
        if self.id not in path or self.leaving:
            return []
        rest = path[path.index(self.id) + 1 :]
        onward: list[Effect] = [Send(rest[0], Bridge(path))] if rest else []
        return (self._join_core(now) if not self.core else []) + onward

    # ── Leaving the core ───────────────────────────────────────────────────────

    def _is_idle(self) -> bool:
        """Whether nobody needs this core node for itself, and it has not been found to be needed by the core."""
        return self.core and not self.lowers and not self.kept and not self.leaving

    def _consider_leaving_core(self, now: float) -> list[Effect]:
        if not self._is_idle() or self._ask or self._promises or not self._core_near():
            return []
        if any(self.near[peer].idle and self._rank(peer) > (-self.degree, self.id) for peer in self._core_near()):
            return []  # It goes first, and would only deny.
        settled = now >= self._changed_at + SETTLED_AFTER * self._beat and now >= self._shaky_until
        agreed = all(self.near[peer].root == self.root for peer in self._core_near())
        if not settled or not agreed or not all(status.decided for status in self.near.values()):
            return []
        if self.settings.demotion == "literal":
            return self._leave_core(self._core_near(), now)
        self._asks += 1
        if self._asks > ASKS_MAX:
            self.kept = True
            return [Count("kept")]
        return self._start_asking(now)

    def _start_asking(self, now: float) -> list[Effect]:
        self._round += 1
        near = self._core_near()
        self._ask = _Ask(self._round, dict.fromkeys(near), asked=tuple(near))
        ask = DemoteAsk(self.id, self.degree, self._round, relayed=False)
        within = WakeAt(now + ASK_WITHIN * self._beat, ("asked", self._round))
        return [*(Send(peer, ask) for peer in self._ask.waiting), within]

    def _on_ask(self, sender: NodeId, ask: DemoteAsk, now: float) -> list[Effect]:
        candidate, round = ask.candidate, ask.round
        if not self.core or self.leaving:
            return [Send(sender, DemoteGrant(candidate, round, ()))]
        if candidate == self.id or (not ask.relayed and candidate != sender):
            return []
        if self._is_idle() and (-self.degree, self.id) > (-ask.degree, candidate):
            return [Send(sender, DemoteDeny(candidate, round))]
        effects = self._stop_asking() if self._ask else []
        if len(self._promises) >= NEIGHBOURS_MAX or len(self._relays) >= NEIGHBOURS_MAX:
            return [*effects, Send(sender, DemoteDeny(candidate, round))]
        self._promises[candidate] = now + PROMISE_FOR * self._beat
        others = [peer for peer in self._core_near() if peer != candidate]
        if ask.relayed or not others:
            return [*effects, Send(sender, DemoteGrant(candidate, round, (self._seen_here(),)))]
        self._relays = {key: relay for key, relay in self._relays.items() if key[0] != candidate}
        self._relays[candidate, round] = _Ask(round, dict.fromkeys(others))
        onward = DemoteAsk(candidate, ask.degree, round, relayed=True)
        return effects + [Send(peer, onward) for peer in others]

    def _on_grant(self, sender: NodeId, grant: DemoteGrant, now: float) -> list[Effect]:
        candidate, round = grant.candidate, grant.round
        ask = self._ask if candidate == self.id else self._relays.get((candidate, round))
        if ask is None or ask.round != round or sender not in ask.waiting:
            return []
        del ask.waiting[sender]
        ask.seen.update(grant.seen)
        if ask.waiting:
            return []
        if candidate == self.id:
            return self._decide_on_leaving_core(ask, now)
        del self._relays[candidate, round]
        seen = (self._seen_here(), *ask.seen.items()) if self.core else ()
        return [Send(candidate, DemoteGrant(candidate, round, seen))]

    def _seen_here(self) -> tuple[NodeId, tuple[NodeId, ...]]:
        return self.id, tuple(self._core_near())

    def _on_deny(self, candidate: NodeId, round: int) -> list[Effect]:
        if candidate == self.id:
            if self._ask and self._ask.round == round:
                self._asks -= 1  # Being told to wait is no failure.
                return self._stop_asking()
            return []
        return [Send(candidate, DemoteDeny(candidate, round))] if self._relays.pop((candidate, round), None) else []

    def _decide_on_leaving_core(self, ask: _Ask, now: float) -> list[Effect]:
        """All within two hops stand still. Leave if those next to us are joined by what they have just confirmed."""
        seen = {peer: theirs for peer, theirs in ask.seen.items() if peer != self.id}
        near = [peer for peer in ask.asked if peer in self.near and peer in seen]
        edges = {peer: [third for third in theirs if third in seen] for peer, theirs in seen.items()}
        if not self._is_idle() or self._promises or now < self._shaky_until:
            return self._stop_asking()
        if near and backbone.stay_connected(near, edges):
            return self._leave_core(near, now)
        self.kept = True
        return [Count("kept"), *self._stop_asking()]

    def _leave_core(self, near: list[NodeId], now: float) -> list[Effect]:
        upper = min(near, key=lambda peer: (not self.near[peer].has_lowers, self._rank(peer)))
        self.core, self.parent, self._changed_at = False, "", now
        self.root, self.root_degree = self.near[upper].root, self.near[upper].root_degree
        return [Count("demoted"), Send(upper, Elect()), *self._tell_all(), *self._stop_asking()]

    def _stop_asking(self) -> list[Effect]:
        asked, self._ask = self._ask, None
        end = DemoteEnd(self.id, relayed=False)
        return [Send(peer, end) for peer in asked.asked] if asked else []

    def _on_end(self, sender: NodeId, candidate: NodeId, relayed: bool) -> list[Effect]:
        self._promises.pop(candidate, None)
        self._relays = {key: relay for key, relay in self._relays.items() if key[0] != candidate}
        if relayed or sender != candidate:
            return []
        onward = DemoteEnd(candidate, relayed=True)
        return [Send(peer, onward) for peer in self._core_near() if peer != candidate]

    # ── Leaving the network ────────────────────────────────────────────────────

    def _go_if_replaced(self, now: float) -> list[Effect]:
        """A leaver of the core goes when no neighbour needs it: all have another way, to one and the same root."""
        others = [s for s in self.near.values() if not s.leaving]
        roots = {status.root for status in others}
        served = all(status.core or (status.upper and status.upper != self.id) for status in others)
        return self._go() if served and len(roots) <= 1 and now > self._changed_at + REPAIR_AFTER * self._beat else []

    def _go(self) -> list[Effect]:
        return [*(Send(peer, Bye()) for peer in self.near), Completed("leave")]

    # ── Pointers ───────────────────────────────────────────────────────────────

    def _on_pointed(self, sender: NodeId, message: Any, now: float) -> list[Effect]:
        match message:
            case Forward(parcel, advert):
                return [Send(sender, Forwarded(parcel.head.id)), *self._on_forward(parcel, advert, sender, now)]
            case Pull():
                known = self.pointers.known()
                return [Send(sender, Adverts(known))] if known else []
            case Adverts(adverts):
                return [effect for advert in adverts for effect in self._on_news_of(advert, sender, now)]
        return self.pointers.receive(sender, message, now)

    def _on_forward(self, parcel: Parcel, advert: Advert, sender: NodeId, now: float) -> list[Effect]:
        """Deliver and pass down. If the tree was laid anew since the event set out, nobody is sure who wants it: to all."""
        if not self._delivered.add(parcel.head.id):
            return []
        if self.pointers.advert(advert.id) == advert:
            return [Deliver(parcel), *self.pointers.down(parcel, advert, sender, now)]
        return [Deliver(parcel), *self._spread(Spread(parcel, safe=True), None, now)]

    def _on_news_of(self, advert: Advert, sender: NodeId, now: float) -> list[Effect]:
        """A neighbour knew of an advert. If it is new here, it is new to others behind this node as well."""
        learned = self.pointers.learn(advert, sender, now)
        return learned + self._spread(Advertise(advert, safe=True), sender, now)

    def _on_new_neighbour(self, peer: NodeId, now: float) -> list[Effect]:
        """Perhaps this link joins what was split: ask for adverts, and once more for trees that broke."""
        if self.settings.mode != "advertise":
            return []
        return [Send(peer, Pull()), *self._ask_to_renew(self.pointers.broken(now, at_once=True), now)]

    def _compare_adverts(self) -> list[Effect]:
        """Ask one neighbour, another each time, for what it knows, if it does not know just the same."""
        if self.settings.mode != "advertise" or not self.near:
            return []
        peer = self._chance.choice(list(self.near))
        return [Send(peer, Pull())] if self.near[peer].adverts != self.pointers.fingerprint() else []

    def _pointers_lost(self, peer: NodeId, now: float) -> list[Effect]:
        self.pointers.lost(peer, now)
        return self._ask_to_renew(self.pointers.broken(now), now)

    def _ask_to_renew(self, broken: list[Advert], now: float) -> list[Effect]:
        effects: list[Effect] = []
        for advert in broken:
            self._renewals += 1
            effects += self._spread(Renew(advert, self.id, self._renewals, safe=True), None, now)
        return effects

    def _renew_own(self, advert: Advert, now: float) -> list[Effect]:
        known = self.pointers.advert(advert.id)
        if known is None or advert.seq != known.seq:
            return []  # One new tree serves all who noticed that the old one is broken.
        return self._spread(Advertise(self.pointers.renew(advert.id, now), safe=True), None, now)


def settle(routers: dict[NodeId, Router[Any]], now: float) -> None:
    """Give a whole network the roles that the construction, seen from above, gives it."""
    nodes = {id: router for id, router in routers.items() if isinstance(router, Immune)}
    graph = {id: list(node.wires) for id, node in nodes.items()}
    settings = next(iter(nodes.values())).settings
    if settings.demotion == "literal":
        roles = backbone.literal(graph, settings.delta)
    else:
        roles = backbone.guarded(graph, settings.delta, check=settings.check)
    parents = backbone.spanning_tree(graph, roles.core)
    lowers = roles.lowers()
    for id, node in nodes.items():
        node.decided, node.core, node.kept = True, id in lowers, id in roles.kept
        node.upper = roles.upper.get(id) or ""
        node.lowers = dict.fromkeys(lowers.get(id, ()), now)
        node.parent = parents.get(id) or ""
        node.root = _root(parents, id if node.core else node.upper)
        node.root_degree = len(graph[node.root]) if node.root else 0
    _introduce(nodes)


def _root(parents: dict[NodeId, NodeId | None], node: NodeId) -> NodeId:
    while parent := parents.get(node):
        node = parent
    return node


def _introduce(nodes: dict[NodeId, Immune]) -> None:
    """Let everyone know how its neighbours stand, and how those see theirs."""
    for _ in range(2):  # The second time round a status names the core neighbours that the first has made known.
        statuses = {id: node._status() for id, node in nodes.items()}
        for node in nodes.values():
            node.near = {peer: statuses[peer] for peer in node.wires}
    for id, node in nodes.items():
        node._children = {peer: math.inf for peer in node.wires if nodes[peer].parent == id}


def roles_of(routers: Sequence[Immune]) -> backbone.Roles:
    """The roles that these nodes have now."""
    core = tuple(node.id for node in routers if node.core)
    upper = {node.id: node.upper or None for node in routers if not node.core}
    return backbone.Roles(core, upper, tuple(node.id for node in routers if node.core and not node.lowers))


PROTOCOL = Protocol(
    name="immune",
    build=Immune.build,
    messages=ImmuneMessage,
    promises=frozenset(
        {
            Promise.REACHES_ALL,
            Promise.SURVIVES_LOSS,
            Promise.SURVIVES_CRASHES,
            Promise.SURVIVES_SPLIT,
            Promise.JOINS_BY_LINKS,
            Promise.LEAVES_CLEANLY,
        }
    ),
    on_graph=True,
    settle=settle,
)
