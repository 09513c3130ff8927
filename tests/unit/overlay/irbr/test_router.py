"""IRBR on a handful of nodes: the paper's figures, tables, covers, phases and custody."""

from __future__ import annotations

from itertools import permutations
from random import Random
from typing import Any

import pytest

from tests.unit.overlay.harness import QUIET, TYPE, Bench
from tidings.errors import InputError
from tidings.overlay import (
    Codec,
    Completed,
    Deliver,
    EventId,
    Everything,
    Failed,
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
    protocol,
)
from tidings.overlay.irbr.filter_table import EntryState, FailureNotice, FilterEntry, FilterTable, digest
from tidings.overlay.irbr.messages import (
    EVENT,
    UPDATE,
    CustodyAccepted,
    CustodyComplete,
    DeclaredDead,
    EventMulticast,
    FirstContactQuery,
    NodeArrival,
    RoutineQuery,
    TableQuery,
    TableReply,
    TaskId,
    UpdateMulticast,
    content_mark,
)
from tidings.overlay.irbr.router import PROTOCOL, Irbr, IrbrOptions
from tidings.overlay.messages import in_messages
from tidings.overlay.prefix.search import SearchResult

WIDE, NARROW = Ranges.of(x=(0, 100)), Ranges.of(x=(10, 20))
FIGURE_2 = ["213", "202", "201", "031", "023"]
FIGURE_3 = ["011", "201", "210", "211", "212", "213"]


def a_bench(ids: list[NodeId], **options: Any) -> Bench:
    return Bench(protocol("irbr"), ids, base=4, delay_s=0.0, **{**QUIET, **options})


def table_of(bench: Bench, id: NodeId) -> dict[str, list[NodeId]]:
    """Under which cell a node has whose live entries."""
    table = bench.routers[id].table
    live = {cell: [e.origin.id for e in table.under(cell) if e.state is EntryState.LIVE] for cell in table.cells()}
    return {cell: origins for cell, origins in live.items() if origins}


def carried(bench: Bench) -> list[tuple[NodeId, NodeId, str]]:
    """Who sent an event to whom, for which range."""
    return [(a, b, b[: message.range_len]) for a, b, message in bench.sent if isinstance(message, EventMulticast)]


def spread_count(bench: Bench) -> int:
    return sum(isinstance(message, UpdateMulticast) for _, _, message in bench.sent)


def prefer(bench: Bench, id: NodeId, cell: str, first: NodeId) -> None:
    """Have a node's table begin a cell with this node, as in the paper's drawing."""
    peers = bench.routers[id].ring.table[cell]
    peers.sort(key=lambda peer: peer.id != first)


# ── The paper's figures ──────────────────────────────────────────────────────


def figure_2(**options: Any) -> Bench:
    bench = a_bench(FIGURE_2, **options)
    for id, cell, first in (("213", "0", "031"), ("213", "20", "202")):
        prefer(bench, id, cell, first)
    bench.subscribe("023", Ranges.of(x=(0, 10)))
    bench.run()
    bench.subscribe("201", Ranges.of(x=(5, 20)))
    bench.run()
    return bench


def test_filter_tables_are_those_of_figure_2() -> None:
    bench = figure_2()
    assert table_of(bench, "213") == {"0": ["023"], "20": ["201"]}
    assert table_of(bench, "202") == {"0": ["023"], "201": ["201"]}
    assert table_of(bench, "031") == {"02": ["023"], "2": ["201"]}
    assert table_of(bench, "023") == {"2": ["201"]}


def test_an_event_goes_the_way_of_figure_2() -> None:
    bench = figure_2(mode="paper")
    bench.publish("213", x=7)
    bench.run()
    assert sorted(carried(bench)) == [
        ("031", "023", "02"),
        ("202", "201", "201"),
        ("213", "031", "0"),
        ("213", "202", "20"),
    ]
    assert sorted(id for id, _ in bench.delivered) == ["023", "201"]


def test_in_interest_mode_it_goes_straight_to_who_wants_it() -> None:
    bench = figure_2(mode="interest")
    bench.publish("213", x=7)
    bench.run()
    assert sorted(carried(bench)) == [("213", "023", "0"), ("213", "201", "20")]


def test_a_covered_interest_stays_within_its_range_as_in_figure_3() -> None:
    bench = a_bench(FIGURE_3)
    bench.subscribe("210", WIDE)
    bench.run()
    assert table_of(bench, "011") == {"2": ["210"]}
    assert table_of(bench, "201") == {"21": ["210"]}
    assert table_of(bench, "213") == {"210": ["210"]}
    before = spread_count(bench)
    covered = bench.subscribe("213", NARROW)
    bench.run()
    assert bench.routers["213"].own[covered].scope_row == 2
    assert spread_count(bench) - before == 3
    assert [table_of(bench, id)["213"] for id in ("210", "211", "212")] == [["213"]] * 3
    assert "21" in table_of(bench, "201")
    assert table_of(bench, "201")["21"] == ["210"]
    bench.publish("011", x=15)
    bench.run()
    assert sorted(id for id, _ in bench.delivered) == ["210", "213"]


# ── Tables ───────────────────────────────────────────────────────────────────


def entry(
    origin: NodeId,
    clock: int,
    state: EntryState = EntryState.LIVE,
    *,
    scope_row: int = 0,
    seq: int = 1,
    incarnation: int = 0,
) -> FilterEntry:
    interest = Interest(SubscriptionId(origin, incarnation, seq), TYPE, WIDE)
    live = FilterEntry(interest.id, Peer(origin), clock, scope_row, EntryState.LIVE, interest)
    return {0: live, 1: live.retired(clock), 2: live.gone(clock)}[int(state)]


@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_any_order_and_repetition_of_words_gives_the_same_table_IRBR_P5(order: tuple[int, ...]) -> None:
    words = [
        entry("201", 1),
        entry("201", 2, EntryState.RETIRING),
        entry("201", 3, EntryState.GONE),
        entry("201", 2, EntryState.RETIRING),
    ]
    table = FilterTable("213")
    for index in order:
        table.merge(words[index], now=0.0)
    assert [(e.clock, e.state) for e in table.under("20")] == [(3, EntryState.GONE)]


def test_an_older_word_never_replaces_a_newer_one_IRBR_I3() -> None:
    table = FilterTable("213")
    table.merge(entry("201", 5), now=0.0)
    assert table.merge(entry("201", 4, EntryState.GONE), now=0.0) is None
    assert table.under("20")[0].state is EntryState.LIVE


def test_every_entry_stands_under_the_cell_of_its_origin_IRBR_I2() -> None:
    table = FilterTable("213")
    for origin in ("001", "113", "201", "210", "300"):
        table.merge(entry(origin, 1), now=0.0)
    assert {e.origin.id: cell for cell in table.cells() for e in table.under(cell)} == {
        "001": "0",
        "113": "1",
        "201": "20",
        "210": "210",
        "300": "3",
    }


def test_an_entry_announced_only_further_in_is_left_out() -> None:
    table = FilterTable("213")
    table.merge(entry("201", 1, scope_row=2), now=0.0)
    assert len(table) == 0


def test_an_obituary_ends_what_was_said_before_it_and_nothing_after() -> None:
    table = FilterTable("213")
    table.merge(entry("201", 3, seq=1), now=0.0)
    table.merge(entry("201", 9, seq=2), now=0.0)
    lost = table.apply_notice(FailureNotice("201", 0, 5, final=True), now=0.0)
    assert [e.id.seq for e in lost] == [1]
    assert [e.state for e in table.under("20")] == [EntryState.GONE, EntryState.LIVE]


def test_a_late_word_of_the_dead_is_void_and_a_newer_one_refutes_the_obituary() -> None:
    table = FilterTable("213")
    table.merge(entry("201", 5), now=0.0)
    table.apply_notice(FailureNotice("201", 0, 1 << 61, final=True), now=0.0)  # No later than what was heard.
    table.merge(entry("201", 3), now=0.0)
    assert [e.state for e in table.under("20")] == [EntryState.GONE]
    table.merge(entry("201", 7), now=0.0)
    assert [e.state for e in table.under("20")] == [EntryState.LIVE]


def test_each_life_counts_for_itself_in_an_obituary() -> None:
    table = FilterTable("213")
    table.merge(entry("201", 25, seq=1, incarnation=1), now=0.0)
    table.merge(entry("201", 2, seq=2, incarnation=2), now=0.0)
    table.apply_notice(FailureNotice("201", 2, 25, final=True), now=0.0)
    assert [e.state for e in table.under("20")] == [EntryState.GONE, EntryState.GONE]
    table.merge(entry("201", 3, seq=2, incarnation=2), now=0.0)  # It is alive, and says so for the third time.
    assert [e.state for e in table.under("20")] == [EntryState.GONE, EntryState.LIVE]


def test_an_obituary_for_lives_to_come_ends_none_of_them() -> None:
    table = FilterTable("213")
    table.merge(entry("201", 5, incarnation=1), now=0.0)
    table.apply_notice(FailureNotice("201", 1 << 61, 1 << 61, final=True), now=0.0)
    table.merge(entry("201", 1, seq=2, incarnation=2), now=0.0)
    assert [e.state for e in table.under("20")] == [EntryState.GONE, EntryState.LIVE]


def test_the_gone_are_forgotten_in_time_and_the_table_never_overflows() -> None:
    table = FilterTable("213", entries_max=2, gone_s=10.0)
    for seq in (1, 2, 3):
        table.merge(entry("201", 1, seq=seq), now=0.0)
    assert len(table) == 2
    table.merge(entry("201", 2, EntryState.GONE, seq=1), now=0.0)
    table.expire(now=9.0)
    assert len(table) == 2
    table.expire(now=10.0)
    assert len(table) == 1


def test_digests_agree_whatever_the_order_and_differ_for_different_words() -> None:
    words = [entry("201", 1), entry("001", 2), entry("301", 3)]
    assert digest(iter(words)) == digest(iter(words[::-1]))
    assert digest(iter(words)) != digest(iter([*words[:2], entry("301", 4)]))


# ── Covers and phases ────────────────────────────────────────────────────────


def test_the_covered_interest_is_announced_before_its_cover_is_gone() -> None:
    bench = a_bench(FIGURE_3)
    cover = bench.subscribe("210", WIDE)
    bench.run()
    bench.subscribe("213", NARROW)
    bench.run()
    bench.unsubscribe(cover)
    for _ in bench.steps():
        for id in ("011", "201"):
            interests = [
                e.interest for cell in bench.routers[id].table.cells() for e in bench.routers[id].table.under(cell)
            ]
            assert any(i is not None and i.wanted.covers(NARROW) for i in interests)
    assert table_of(bench, "011") == {"2": ["213"]}
    assert bench.completed[-1] == ("210", "unsubscribe", cover)


def test_two_equal_interests_do_not_hide_each_other_when_their_cover_goes_IRBR_G5() -> None:
    bench = a_bench(FIGURE_3)
    cover = bench.subscribe("210", WIDE)
    bench.run()
    for id in ("212", "213"):
        bench.subscribe(id, NARROW)
        bench.run()
    bench.unsubscribe(cover)
    bench.run()
    bench.publish("011", x=15)
    bench.run()
    assert sorted(id for id, _ in bench.delivered) == ["212", "213"]


def test_an_interest_covered_by_an_own_one_is_stable_at_once_and_costs_nothing() -> None:
    bench = a_bench(FIGURE_3)
    bench.subscribe("213", WIDE)
    bench.run()
    before = len(bench.sent)
    covered = bench.subscribe("213", NARROW)
    assert bench.completed[-1] == ("213", "subscribe", covered)
    assert len(bench.sent) == before


def test_an_equal_interest_in_the_deepest_range_costs_less_than_k_messages_IRBR_P10() -> None:
    bench = a_bench([a + b + c for a in "0123" for b in "0123" for c in "0123"])
    bench.subscribe("000", WIDE)
    bench.run()
    alone = spread_count(bench)
    assert alone == 63
    bench.subscribe("001", WIDE)
    bench.run()
    assert spread_count(bench) - alone <= 3


def test_a_replaced_interest_is_the_only_one_left() -> None:
    bench = a_bench(FIGURE_2)
    id = bench.subscribe("201", Ranges.of(x=(0, 5)))
    bench.run()
    fresh = Interest(id, TYPE, Ranges.of(x=(50, 60)))
    bench.do("201", bench.routers["201"].subscribe(fresh, bench.now))
    bench.run()
    for x in (3, 55):
        bench.publish("031", x=x)
    bench.run()
    assert len(bench.delivered) == 1
    assert [e.interest for e in bench.routers["031"].table.under("2") if e.interest] == [fresh]


def test_taking_back_what_is_not_there_is_done_already() -> None:
    bench = a_bench(["213"])
    unknown = SubscriptionId("213", 0, 99)
    assert bench.routers["213"].unsubscribe(unknown, 0.0) == [Completed("unsubscribe", unknown)]


# ── Custody ──────────────────────────────────────────────────────────────────


def test_with_custody_a_publisher_is_told_when_everybody_has_it() -> None:
    bench = figure_2(reliability="R2")
    event = bench.publish("213", x=7)
    assert ("213", "publish", event) not in bench.completed
    bench.run()
    assert ("213", "publish", event) in bench.completed


def test_a_representative_that_dies_with_the_event_is_replaced() -> None:
    bench = figure_2(reliability="R2", mode="paper", answer_s=0.2)
    bench.subscribe("202", Ranges.of(x=(500, 501)))
    bench.run()
    del bench.routers["202"]  # It will have been handed the event for all of 20. and say nothing.
    bench.publish("213", x=7)
    bench.run()
    assert sorted(id for id, _ in bench.delivered) == ["023", "201"]


@pytest.mark.parametrize("reliability", ["R0", "R1", "R2"])
def test_a_message_that_bounces_goes_to_another_of_the_range(reliability: str) -> None:
    bench = figure_2(mode="paper", reliability=reliability)
    bench.publish("213", x=7)
    bounced = next(m for a, b, m in bench.sent if (a, b) == ("213", "202") and isinstance(m, EventMulticast))
    effects = bench.routers["213"].unsent("202", bounced, bench.now)
    assert [e.to for e in effects if isinstance(e, Send) and isinstance(e.message, EventMulticast)] == ["201"]


def test_a_node_that_only_ever_says_got_is_passed_over_in_the_end() -> None:
    bench = figure_2(mode="paper")
    event = bench.publish("213", x=7)
    router = bench.routers["213"]
    del bench.routers["202"]
    for _ in bench.steps():
        if bench.now < 300.0 and any(b == "202" for _, b, m in bench.sent[-3:] if isinstance(m, EventMulticast)):
            bench.do("213", router.receive("202", CustodyAccepted(TaskId(EVENT, *event), 2), bench.now))
    assert ("201", event) in bench.delivered
    assert ("213", "publish", event) in bench.completed


def test_a_repeated_event_is_delivered_once_and_answered_again() -> None:
    bench = figure_2()
    bench.publish("213", x=7)
    bench.run()
    again = next(m for a, b, m in bench.sent if (a, b) == ("213", "023") and isinstance(m, EventMulticast))
    effects = bench.routers["023"].receive("213", again, bench.now)
    assert [type(e) for e in effects] == [Send]
    assert isinstance(effects[0].message, CustodyComplete)


def test_an_interest_that_is_taken_back_is_no_longer_delivered_for() -> None:
    bench = figure_2()
    own = next(iter(bench.routers["023"].own))
    bench.unsubscribe(own)  # Not a step further: the others still believe in it.
    bench.publish("213", x=7)
    bench.run()
    assert [id for id, _ in bench.delivered] == ["201"]


# ── The dead ─────────────────────────────────────────────────────────────────


def test_who_was_thought_dead_says_again_what_it_wants() -> None:
    bench = figure_2()
    notice = FailureNotice("023", 0, bench.routers["213"].clock.time + 5, final=True)
    bench.routers["213"].table.apply_notice(notice, bench.now)
    bench.do("023", bench.routers["023"].receive("213", DeclaredDead(notice), bench.now))
    bench.run()
    assert table_of(bench, "213")["0"] == ["023"]


def test_the_clockwise_neighbour_mourns_and_the_covered_take_over() -> None:
    bench = a_bench(FIGURE_3, heartbeat_s=1.0)
    bench.subscribe("210", WIDE)
    bench.run(until=5.0)
    bench.subscribe("213", NARROW)
    bench.run(until=10.0)
    del bench.routers["210"]
    bench.run(until=60.0)
    assert table_of(bench, "011") == {"2": ["213"]}
    mourners = {
        a
        for a, _, m in bench.sent
        if isinstance(m, UpdateMulticast) and isinstance(m.update, FailureNotice) and m.task.origin == a
    }
    assert mourners == {"211"}


# ── Edges ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "options", [{"mode": "best"}, {"reliability": "R9"}, {"speed": 3}, {"base": 99}, {"heartbeat_s": -1}]
)
def test_impossible_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        PROTOCOL.build(Place(Peer("213"), (), Random(0)), **options)


def test_every_message_survives_its_journey_as_bytes() -> None:
    live = entry("201", 3)
    task = TaskId(UPDATE, "213", 0, 7)
    packet = Packet(Header(EventId("213", 0, 1), TYPE), View({"x": 1}))
    messages = [
        EventMulticast(packet, 2),
        UpdateMulticast(task, 1, live),
        UpdateMulticast(task, 1, live.gone(4)),
        UpdateMulticast(task, 1, FailureNotice("201", 0, 9, True)),
        UpdateMulticast(task, 1, NodeArrival(Peer("201", "host:1", 2))),
        CustodyAccepted(TaskId(EVENT, "213", 0, 7), 1),
        CustodyComplete(task, 1),
        TableQuery(Peer("213"), "", 17, live.id),
        RoutineQuery(Peer("213"), "20", 17),
        FirstContactQuery(Peer("213"), "20", 17, None, 18, 19),
        TableReply("20", (live,), (FailureNotice("201", 0, 9, False),), True),
        TableReply("", (), (), more=False, whole=False),
        DeclaredDead(FailureNotice("201", 0, 9, False)),
    ]
    codec = Codec[Any](PROTOCOL.messages)
    assert [codec.decode(codec.encode(message)) for message in messages] == messages


@pytest.mark.parametrize(
    "message",
    [
        EventMulticast(Packet(Header(EventId("9", 0, 1), TYPE), View({})), 99),
        UpdateMulticast(TaskId(7, "", -1, 0), -5, FailureNotice("not an id", 0, 1, True)),
        UpdateMulticast(
            TaskId(UPDATE, "x", 0, 1), 1, FilterEntry(SubscriptionId("x", 0, 1), Peer("x"), 1, 0, EntryState.LIVE)
        ),
        UpdateMulticast(TaskId(UPDATE, "x", 0, 1), 3, NodeArrival(Peer("zzz"))),
        TableQuery(Peer("201"), "not a range", 0),
        FirstContactQuery(Peer("201"), "not a range", 0, None, 1, 1),
        TableReply("???", (), (FailureNotice("4", 1, 1, True),), True),
        CustodyComplete(TaskId(EVENT, "201", 0, 1), 1000),
        CustodyAccepted(TaskId(EVENT, "201", 0, 1), -1),
        DeclaredDead(FailureNotice("somebody else", 0, 0, True)),
    ],
)
def test_nonsense_from_a_peer_neither_raises_nor_stays(message: Any) -> None:
    bench = figure_2()
    router = bench.routers["213"]
    entries = len(router.table)
    bench.do("213", router.receive("201", message, bench.now))
    bench.run()
    assert len(router.table) == entries


def test_a_node_has_only_so_many_subscriptions() -> None:
    bench = a_bench(["213"], own_max=1)
    bench.subscribe("213", WIDE)
    refused = bench.routers["213"].subscribe(Interest(SubscriptionId("213", 0, 5), TYPE, NARROW), 0.0)
    assert [type(effect) for effect in refused] == [Failed]


def test_before_a_node_is_ready_it_keeps_events_and_passes_them_on_after() -> None:
    router = Irbr(Peer("213"), Random(0), IrbrOptions(base=4, **QUIET))
    router.subscribe(Interest(SubscriptionId("213", 0, 1), TYPE, Everything()), 0.0)
    packet = Packet(Header(EventId("201", 0, 1), TYPE), View({}))
    got = [Send("201", CustodyAccepted(TaskId(EVENT, "201", 0, 1, content_mark(packet)), 2))]
    assert [router.receive("201", EventMulticast(packet, 2), now) for now in (0.0, 0.5)] == [got, got]
    effects = router.start(1.0)
    assert effects.count(Deliver(packet)) == 1
    assert Send("201", CustodyComplete(TaskId(EVENT, "201", 0, 1, content_mark(packet)), 2)) in effects


def test_a_newcomer_without_contacts_is_the_first_of_its_network() -> None:
    router = Irbr(Peer("213"), Random(0), IrbrOptions(base=4, **QUIET))
    assert Completed("join") in router.join([], 0.0)


def test_what_a_search_of_an_unknown_range_finds_changes_nothing() -> None:
    assert a_bench(["213"]).routers["213"].on_search_ended("0", SearchResult.EMPTY, 0.0) == []


def test_two_networks_that_began_apart_become_one_when_a_link_joins_them() -> None:
    bench = a_bench([], heartbeat_s=1.0, sync_s=2.0)
    options = {"base": 4, **QUIET, "heartbeat_s": 1.0, "sync_s": 2.0}
    for first, second in (("213", "031"), ("120", "302")):
        bench.enter(protocol("irbr"), first, None, **options)
        bench.enter(protocol("irbr"), second, first, **options)
    bench.run(until=20.0)
    bench.subscribe("031", NARROW)
    bench.subscribe("302", WIDE)
    bench.run(until=40.0)
    bench.do("213", bench.routers["213"].peer_up(Peer("120"), bench.now))
    bench.run(until=80.0)
    events = [bench.publish(id, x=15) for id in ("213", "120")]
    bench.run(until=100.0)
    assert sorted(bench.delivered) == sorted((id, event) for event in events for id in ("031", "302"))


def test_a_page_of_a_large_table_costs_no_more_than_its_own_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[int] = []

    def counted(records: Any, at_most: int) -> Any:
        measured.append(len(records))
        return in_messages(records, at_most)

    monkeypatch.setattr("tidings.overlay.irbr.anti_entropy.in_messages", counted)
    router, ids = a_bench(["000", "001", "333"]).routers["000"], [SubscriptionId("333", 1, n) for n in range(1, 1001)]
    for id in ids:
        interest = Interest(id, TYPE, Ranges.of(x=(0, 1)))
        router.table.merge(FilterEntry(id, Peer("333"), id.seq, 0, EntryState.LIVE, interest), 0.0)
    told: list[SubscriptionId] = []
    more = True
    while more:
        query = RoutineQuery(Peer("001"), "", 0, told[-1] if told else None)
        (reply,) = router.anti_entropy.answer("001", query, is_ready=True)
        told += [each.id for each in reply.message.entries]
        more = reply.message.more
    assert told == ids
    assert sum(measured) == len(ids)
