"""What one node says to a router, sans I/O: it changes nothing of another's, leaves it its place, and breaks no number.

Whatever is sealed by its origin is checked before a router sees it, and a router sees it as it would be here: the words
below are those that a member with genuine papers can say.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import msgspec
import pytest

from tests.unit.overlay.harness import TYPE, Bench
from tidings.overlay import (
    Codec,
    EventId,
    Everything,
    Header,
    Interest,
    NodeId,
    Packet,
    Peer,
    Place,
    Ranges,
    Send,
    SubscriptionId,
    View,
    WakeAt,
    protocol,
)
from tidings.overlay.cbdlo import coordinator as coordinators
from tidings.overlay.cbdlo.attribute_tree import Registration
from tidings.overlay.cbdlo.messages import (
    AbsorbTopology,
    AssignPartition,
    DuplicateTopology,
    LeaseRenewed,
    PartitionState,
    RenewLease,
    Replicate,
    RevokePartition,
    TakeOver,
    TopologyMoved,
)
from tidings.overlay.cbdlo.router import PROTOCOL as CBDLO
from tidings.overlay.crowding import CrowdedTable
from tidings.overlay.hermes import multicast_tree
from tidings.overlay.hermes.messages import InterestRequest
from tidings.overlay.immune.messages import Beacon, Hello, RoleChange
from tidings.overlay.immune.router import Immune
from tidings.overlay.irbr.filter_table import EntryState, FailureNotice, FilterEntry, FilterTable
from tidings.overlay.random_graph.access_points import TreeId
from tidings.overlay.random_graph.partition import BOTTOM, TOP, AttributeAxis
from tidings.overlay.spanhop import subscription_placement
from tidings.overlay.spanhop.messages import (
    AdvertisementRequest,
    AdvertisementUpdate,
    Handoff,
    Records,
    SubscriptionRecord,
    ZoneAdvertisement,
    ZoneClaim,
    ZoneDescriptor,
)
from tidings.overlay.spanhop.router import Spanhop
from tidings.overlay.spanhop.zone_ownership import EPOCH_MAX
from tidings.space import halves

MOST = (1 << 64) - 1
LIAR = "n5"
X = AttributeAxis(TYPE, "x")


# ── CBDLO: only a coordinator decides about its topology ─────────────────────


def a_network() -> tuple[Bench, TreeId]:
    """n1 coordinates; n2 and n3 have registered, own partitions and are replicas; the liar is any other node."""
    bench = Bench(CBDLO, [f"n{k}" for k in range(8)], delay_s=0.01, period_s=2.0)
    for id, until in (("n1", 20.0), ("n2", 40.0), ("n3", 60.0)):
        bench.subscribe(id, Ranges.of(x=(0, 50)))
        bench.run(until)
    return bench, bench.routers["n1"].upper.coordinators.by_axis[X].tree


def said_of(tree: TreeId, victim: SubscriptionId) -> dict[str, tuple[NodeId, list[Any]]]:
    """To whom a liar says what, about a topology and somebody's interest in it."""
    mine, state = TreeId(Peer(LIAR), 1), PartitionState(BOTTOM, TOP, BOTTOM, TOP, 1 << 40, 1 << 40)
    return {
        "a lease": ("n1", [RenewLease(X, tree, Peer(victim.origin), (), ())] * 4),
        "an empty partition": ("n2", [AssignPartition(9, X, tree, state, True, (), (victim,))]),
        "no partition": ("n2", [RevokePartition(9, X, tree, BOTTOM, 1 << 40)]),
        "no copies": ("n2", [Replicate(9, X, tree, 0, 1 << 40, 1 << 40, (), (victim,))]),
        "a takeover": ("n2", [TakeOver(9, X, tree)]),
        "a coordinator that is alive": ("n3", [LeaseRenewed(X, tree, (), None)] * 4),
        "another topology": ("n2", [TopologyMoved(9, X, tree, mine)]),
        "another topology to its coordinator": ("n1", [TopologyMoved(9, X, tree, TreeId(Peer("n6"), 1))]),
        "a rival that is none": ("n1", [DuplicateTopology(X, TreeId(Peer("n0"), n)) for n in range(1, 9)]),
        "an earlier version": (
            "n1",
            [
                AbsorbTopology(
                    9, X, mine, (Registration(Peer(victim.origin), Interest(victim, TYPE, Ranges.of(x=(900, 901)))),)
                )
            ],
        ),
    }


@pytest.mark.parametrize("lie", said_of(TreeId(Peer(""), 0), SubscriptionId("", 0, 0)))
def test_who_does_not_coordinate_a_topology_changes_nothing_in_it(lie: str) -> None:
    bench, tree = a_network()
    coordinator = bench.routers["n1"].upper.coordinators.by_axis[X]
    (victim,) = (each.interest.id for each in coordinator.registrations() if each.peer.id == "n2")
    to, messages = said_of(tree, victim)[lie]
    for message in messages:
        bench.do(to, bench.routers[to].receive(LIAR, message, bench.now))
    event = bench.publish("n7", x=7)  # At once: nothing has had the time to be repaired.
    bench.run(bench.now + 5.0)
    assert sorted(node for node, id in bench.delivered if id == event) == ["n1", "n2", "n3"]
    bench.run(bench.now + 60.0)
    assert bench.routers["n1"].upper.coordinators.by_axis[X] is coordinator
    assert coordinator.absorbed_by is None
    known = coordinator.plan.registration(victim)
    assert known is not None
    assert known.interest.wanted == Ranges.of(x=(0, 50))
    assert bench.routers["n2"].upper.subscriber.memberships[X].tree == tree


def test_a_topology_ends_where_its_coordinator_is_gone_and_a_replica_says_so() -> None:
    """The same word, and this time it is true."""
    bench, tree = a_network()
    del bench.routers["n1"]
    bench.run(bench.now + 120.0)
    event = bench.publish("n7", x=7)
    bench.run(bench.now + 60.0)
    assert sorted(node for node, id in bench.delivered if id == event) == ["n2", "n3"]
    assert bench.routers["n2"].upper.subscriber.memberships[X].tree != tree


# ── Hermes: nobody takes the place of another's interest ─────────────────────


def test_another_interest_under_somebodys_id_does_not_replace_it() -> None:
    """The liar announces it to the same parent, before and after its owner, and takes it back again."""
    ids = [a + b for a in "0123" for b in "0123"]
    bench = Bench(protocol("hermes"), ids, base=4, delay_s=0.0, leaf_count=2, heartbeat_s=0, refresh_s=0)
    key = bench.routers["00"].trees.key_of(TYPE)[:2]
    subscriber = next(id for id in ids if id[0] != key[0])
    parent = bench.routers[subscriber].ring.next_hop(key.ljust(2, "0"))
    assert parent is not None
    liar = next(id for id in ids if id not in (subscriber, parent, key))
    id = SubscriptionId(subscriber, 0, 1)
    narrow = Interest(id, TYPE, Ranges.of(x=(900, 901)))
    for _ in range(2):
        bench.do(parent, bench.routers[parent].receive(liar, InterestRequest(narrow, 1 << 40), bench.now))
        bench.run()
        if not bench.routers[subscriber].trees.all():
            assert bench.subscribe(subscriber, Ranges.of(x=(0, 50))) == id
            bench.run()
        event = bench.publish(liar, x=7)
        bench.run()
        assert (subscriber, event) in bench.delivered


def test_one_child_does_not_take_all_places_of_a_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multicast_tree, "INTERESTS_MAX", 20)
    monkeypatch.setattr(multicast_tree, "TREES_MAX", 10)
    router: Any = protocol("hermes").build(Place(Peer("00"), (), Random(0)), base=4, heartbeat_s=0, refresh_s=0)
    router.start(0.0)

    def asks(child: NodeId, type: str, number: int) -> None:
        interest = Interest(SubscriptionId(child, 0, number), type, Ranges.of(x=(number, number)))
        router.receive(child, InterestRequest(interest, number), 0.0)

    for number in range(1, 100):
        asks("33", TYPE, number)
    for number in range(1, 100):
        asks("33", f"made up {number}", 100 + number)
    asks("11", TYPE, 1)
    asks("11", "honest", 2)
    held = router.trees.holdings()
    assert all(count <= most for count, most in held.values())
    for type in (TYPE, "honest"):
        tree = router.trees.get(type)
        assert tree is not None
        assert "11" in tree.children


# ── Tables: whoever fills one pushes out its own ─────────────────────────────


def test_a_full_table_makes_room_at_the_cost_of_who_has_most() -> None:
    rng, table = Random(3), dict.fromkeys([("hostile", n) for n in range(90)])
    counts: dict[str, int] = {}
    crowded = CrowdedTable[tuple[str, int]](lambda key: key[0])
    for number in range(3000):
        who = rng.choice(("hostile", "hostile", "a", "b", "c"))
        new = who, 1000 + number
        victim = crowded.one_less_for(new, table) if len(table) >= 100 else None
        if victim is not None:
            del table[victim]
        if len(table) < 100:
            table[new] = None
        counts = {each: sum(1 for name, _ in table if name == each) for each in ("a", "b", "c")}
    assert len(table) == 100
    assert min(counts.values()) >= 20


def test_a_filter_table_has_room_for_every_origin() -> None:
    table = FilterTable("000", entries_max=20)

    def entry(origin: NodeId, number: int) -> FilterEntry:
        id = SubscriptionId(origin, 0, number)
        return FilterEntry(id, Peer(origin), number, 0, EntryState.LIVE, Interest(id, TYPE, Everything()))

    for number in range(1, 60):
        table.merge(entry("333", number), 0.0)
    lost = [table.merge(entry("111", number), 0.0) for number in range(1, 6)]
    assert [each.origin.id for each in lost if each is not None] == ["333"] * 5
    assert len(table) == 20
    assert sum(1 for id in table if id.origin == "111") == 5
    assert table.merge(entry("333", 99), 0.0) is None
    assert SubscriptionId("333", 0, 99) not in table


def an_entry(number: int, clock: int, state: EntryState, seal: bytes = b"of its origin") -> FilterEntry:
    id = SubscriptionId("333", 0, number)
    interest = None if state is EntryState.GONE else Interest(id, TYPE, Everything())
    return FilterEntry(id, Peer("333"), clock, 0, state, interest, seal)


def test_a_withdrawn_subscription_cannot_be_brought_back_by_who_has_kept_it() -> None:
    """Its origin's own words, said again when the tombstone has expired."""
    table, gone_s = FilterTable("000"), 600.0
    table.merge(an_entry(1, 5, EntryState.LIVE), 0.0)
    table.merge(an_entry(1, 6, EntryState.RETIRING), 1.0)
    table.merge(an_entry(1, 7, EntryState.GONE), 2.0)
    table.expire(3.0 + gone_s)
    for kept in (an_entry(1, 5, EntryState.LIVE), an_entry(1, 6, EntryState.RETIRING)):
        table.merge(kept, 4.0 + gone_s)
    assert len(table) == 0
    table.merge(an_entry(1, 8, EntryState.LIVE), 5.0 + gone_s)  # Its origin has subscribed under this id again.
    assert len(table) == 1


def test_a_node_that_was_only_unreachable_comes_back_with_the_entries_that_it_had() -> None:
    table, gone_s = FilterTable("000"), 600.0
    table.merge(an_entry(1, 5, EntryState.LIVE), 0.0)
    table.apply_notice(FailureNotice("333", 0, 5, True), 1.0)
    assert [entry.state for entry in table.under("3")] == [EntryState.GONE]
    table.expire(2.0 + gone_s)
    table.merge(an_entry(1, 5, EntryState.LIVE), 3.0 + gone_s)
    assert [entry.state for entry in table.under("3")] == [EntryState.LIVE]


def test_who_withdraws_without_end_has_nobody_elses_withdrawals_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscription_placement, "TOMBSTONES_MAX", 20)
    router = Spanhop(Peer("me"), Random(0))
    router.start(0.0)

    def record(home: NodeId, number: int, version: int, *, deleted: bool) -> SubscriptionRecord:
        interest = Interest(SubscriptionId(home, 0, number), TYPE, Everything())
        return SubscriptionRecord(interest, Peer(home), (0, 0), version, deleted)

    router.receive("liar", Records((record("honest", 1, 2, deleted=True),)), 1.0)
    router.receive("liar", Records(tuple(record("liar", n, 2, deleted=True) for n in range(1, 100))), 2.0)
    router.receive("liar", Records((record("honest", 1, 1, deleted=False),)), 3.0)
    (owned,) = router.zones.owned.values()
    assert not owned.records
    assert router.store.holdings()["graves"][0] == 20


def test_a_zone_has_room_for_the_records_of_every_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscription_placement, "RECORDS_MAX", 20)
    monkeypatch.setattr(subscription_placement, "REPLICAS_MAX", 20)
    router = Spanhop(Peer("me"), Random(0))
    router.start(0.0)

    def records(home: NodeId, count: int) -> tuple[SubscriptionRecord, ...]:
        return tuple(
            SubscriptionRecord(Interest(SubscriptionId(home, 0, n), TYPE, Everything()), Peer(home), (0, 0), 1)
            for n in range(1, count + 1)
        )

    router.receive("liar", Records(records("liar", 100)), 1.0)
    router.receive("honest", Records(records("honest", 5)), 1.0)
    router.store.store_replicas(records("liar", 100), 1.0)
    router.store.store_replicas(records("honest", 5), 1.0)
    (owned,) = router.zones.owned.values()
    for held in (owned.records, router.store.replicas):
        assert len(held) == 20
        assert sum(1 for id in held if id.origin == "honest") == 5


def test_an_attribute_has_room_for_the_registrations_of_every_member(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinators, "REGISTRATIONS_MAX", 20)
    axis = coordinators.Coordinator(Peer("me"), X, TreeId(Peer("me"), 1), trusted_from=0.0)

    def register(member: NodeId, count: int) -> None:
        for n in range(1, count + 1):
            interest = Interest(SubscriptionId(member, 0, n), TYPE, Ranges.of(x=(n, n + 1)))
            axis.register(Registration(Peer(member), interest), None, 0.0)

    register("liar", 100)
    register("honest", 5)
    axis.begin_round(lambda to, make, about: [], 0.0)
    by_member = [each.peer.id for each in axis.registrations()]
    assert (len(by_member), by_member.count("honest")) == (20, 5)


# ── Numbers: none can be counted on to where it cannot be written ────────────


def writable(overlay: str, effects: list[Any]) -> None:
    codec = Codec[Any](protocol(overlay).messages)
    for effect in effects:
        if isinstance(effect, Send):
            codec.encode(effect.message)


@pytest.mark.parametrize("epoch", [MOST, MOST - 1, 1 << 63, EPOCH_MAX + 1, EPOCH_MAX, -1])
@pytest.mark.parametrize("how", ["claimed and left", "given to be merged", "given"])
def test_a_claim_to_a_zone_can_always_be_followed_by_another(how: str, epoch: int) -> None:
    router = Spanhop(Peer("b"), Random(0))
    router.start(0.0)
    lower, upper = halves((), 4)
    router.zones.release(())
    router.zones.acquire(upper, 0)
    descriptor = ZoneDescriptor(ZoneClaim(lower, epoch), ((),), ())
    said: dict[str, Any] = {
        "claimed and left": AdvertisementUpdate(ZoneAdvertisement(Peer("a"), 1, (ZoneClaim(lower, epoch),)), ()),
        "given to be merged": Handoff(3, descriptor, (), True, 0, True),
        "given": Handoff(3, descriptor, (), False, 0, True),
    }
    writable("spanhop", router.receive("a", said[how], 1.0))
    effects = router.peer_down("a", 2.0)
    writable("spanhop", effects)
    for each in effects:
        if isinstance(each, WakeAt):
            writable("spanhop", router.wake(each.token, each.when))
    for now in range(10, 40):
        for token in (("beat",), ("upkeep",), ("refresh",), ("shed",)):
            writable("spanhop", router.wake(token, float(now)))
        writable("spanhop", router.receive("c", AdvertisementRequest(), float(now)))
    assert router.zones.owned
    assert all(0 <= owned.epoch <= EPOCH_MAX for owned in router.zones.owned.values())


@pytest.mark.parametrize("number", [MOST, 1 << 63, (1 << 61) + 1, 1 << 61])
def test_beacons_go_on_after_one_with_the_highest_numbers(number: int) -> None:
    peers = [Peer("a"), Peer("z")]
    router = Immune.build(Place(Peer("m"), tuple(peers), Random(0)), epoch_s=1.0)
    effects = router.start(0.0)
    status = router.state.status(0)

    def hello(id: NodeId, **changes: Any) -> Any:
        known = {"m": 0, **{each.id: 0 for each in peers if each.id != id}}
        fields = {"me": Peer(id), "decided": True, "core": True, "neighbours": known, "root": id, **changes}
        return msgspec.structs.replace(status, **fields)

    for id in ("a", "z"):
        effects += router.receive(id, RoleChange(hello(id, root_degree=number)), 0.1)
    router.state.in_core = router.state.decided = True
    effects += router.receive("a", Beacon("a", number, number, number), 0.2)
    effects += router.receive("a", Hello(hello("a", epoch=number, root_degree=number)), 0.3)
    effects += router.peer_down("a", 0.4)
    sent: list[Any] = []
    for now in range(1, 40):
        effects = router.wake("tick", float(now))
        writable("immune", effects)
        sent += [each.message for each in effects if isinstance(each, Send) and isinstance(each.message, Beacon)]
        effects = router.receive("z", Hello(hello("z")), now + 0.5)
        writable("immune", effects)
    assert sent
    assert sent[-1].seq < 1000
    assert sent[-1].epoch < 1 << 40


# ── What is made of an event by who brings it ────────────────────────────────


def a_packet(origin: NodeId, seq: int) -> Packet:
    return Packet(Header(EventId(origin, 0, seq), TYPE), View({"x": 1}))


@pytest.mark.parametrize("overlay", ["irbr", "hermes", "immune", "flooding", "spanhop", "cbdlo"])
def test_no_number_beside_an_event_stops_a_router(overlay: str) -> None:
    """Every message with an event, with each number at its ends: whatever follows can be written."""
    ids = ["0" * 31 + "1", "8" * 32]
    neighbours = (Peer(ids[1]),)
    router: Any = protocol(overlay).build(Place(Peer(ids[0]), neighbours, Random(0)))
    router.start(0.0)
    router.subscribe(Interest(SubscriptionId(ids[0], 0, 1), TYPE, Everything()), 0.0)
    kinds: Callable[[], tuple[Any, ...]] = lambda: getattr(protocol(overlay).messages, "__args__", ())  # noqa: E731
    for kind in kinds() or (protocol(overlay).messages,):
        fields = {field.name: field.type for field in msgspec.structs.fields(kind)}
        if "packet" not in fields or not all(type in (int, str, bool, Packet, Peer) for type in fields.values()):
            continue
        for number in (MOST, 1 << 63, -(1 << 63), 0):
            filled = {int: number, str: "", bool: True, Packet: a_packet(ids[1], number & 0xFFFF), Peer: Peer(ids[1])}
            message = kind(**{name: filled[type] for name, type in fields.items()})
            writable(overlay, router.receive(ids[1], message, 1.0))
