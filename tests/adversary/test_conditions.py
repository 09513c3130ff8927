"""What others subscribe to costs a broker what it says it costs: long conditions fit into messages, many are not compared."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.live.test_liars import plates
from tests.live.together import Together
from tests.unit.node.pair import a_node
from tests.unit.overlay.harness import TYPE
from tidings.errors import Denied, PeerError
from tidings.net import DevNetwork, ReadAccess
from tidings.overlay import (
    Codec,
    EventId,
    Header,
    Interest,
    Packet,
    Peer,
    Sql,
    SubscriptionId,
    View,
    protocol,
)
from tidings.overlay.cbdlo.attribute_tree import Registration
from tidings.overlay.cbdlo.coordinator import GONE_MAX, _batches, _parts
from tidings.overlay.crowding import COMPARED_MAX, with_too_many
from tidings.overlay.hermes.messages import InterestRequest
from tidings.overlay.hermes.multicast_tree import COMPARED_BELOW_MAX, MulticastTrees
from tidings.overlay.irbr.filter_table import EntryState, FilterEntry, FilterTable
from tidings.overlay.irbr.messages import RoutineQuery, TableReply
from tidings.overlay.irbr.router import Irbr
from tidings.overlay.messages import FRAME_BYTES_MAX, in_messages
from tidings.overlay.spanhop.messages import Records, SubscriptionRecord, in_parts

WITHIN_S = 300.0  # A deadline for a busy machine; it takes seconds.
MANY = 36  # As many as a broker advertises by themselves, of the longest there may be: more than fits into a message.
PLATES = (("plate", "string"),)


def longest(number: int) -> Sql:
    return Sql(" OR ".join(f"plate = 'X{number}.{n}'" for n in range(1300)), PLATES)


def of_length(number: int, characters: int) -> Sql:
    return Sql(f"plate = '{number:0{characters}}'", PLATES)


def interest(origin: str, number: int, wanted: Sql) -> Interest:
    return Interest(SubscriptionId(origin, 0, number), TYPE, wanted)


def entry(origin: str, number: int, wanted: Sql) -> FilterEntry:
    said = interest(origin, number, wanted)
    return FilterEntry(said.id, Peer(origin), number, 0, EntryState.LIVE, said)


def test_records_are_told_in_as_many_messages_as_they_need() -> None:
    wanted = [interest("a", n, of_length(n, 30_000)) for n in range(MANY)]
    records = [SubscriptionRecord(each, Peer("a"), (0, 0), 1) for each in wanted]
    registrations = [Registration(Peer("a"), each) for each in wanted]
    spanhop = Codec[Any](protocol("spanhop").messages)
    for part in in_parts(records):
        assert len(spanhop.encode(Records(part))) < FRAME_BYTES_MAX // 2
    for parts, whole in ((in_parts(records), records), (_batches(registrations), registrations)):
        assert [each for part in parts for each in part] == whole
        assert len(parts) > 4
    assert in_messages([], 7) == []
    assert in_messages(range(20), 7) == [tuple(range(7)), tuple(range(7, 14)), tuple(range(14, 20))]
    gone = [each.id for each in wanted] * 200
    assert _parts(()) == [()]
    assert [id for part in _parts(gone) for id in part] == gone
    assert all(len(part) <= GONE_MAX for part in _parts(gone))


def test_a_table_of_long_conditions_is_told_in_parts() -> None:
    router: Any = Irbr(Peer("0" * 32), Random(0))
    codec, asker, after = Codec[Any](protocol("irbr").messages), Peer("3" * 32), None
    for number in range(1, 1 + MANY):
        router.table.merge(entry("5" * 32, number, of_length(number, 30_000)), 0.0)
    told: list[FilterEntry] = []
    more = True
    while more:
        query = RoutineQuery(asker, "", 0, after)
        (effect,) = router.anti_entropy.answer(asker.id, query, is_ready=True)
        reply: TableReply = effect.message
        assert len(codec.encode(reply)) < FRAME_BYTES_MAX
        told += reply.entries
        more, after = reply.more, reply.entries[-1].id
    assert [each.id.seq for each in told] == list(range(1, 1 + MANY))


def test_a_message_that_is_too_large_is_not_sent_and_ends_nothing() -> None:
    node = a_node("one", protocol_name="irbr")
    records = tuple(entry(node.me.id, n, of_length(n, 30_000)) for n in range(1, 1 + MANY))  # Its own: it may say them.
    message = TableReply("", records, (), False, True)
    with pytest.raises(PeerError, match="bytes"):
        Codec[Any](protocol("irbr").messages).encode(message)
    node.neighbours.is_ready = lambda neighbour: True  # type: ignore[method-assign]
    with pytest.raises(Denied):
        node.frame_for("3" * 32, message, 0.0)


def test_an_event_is_compared_with_so_many_interests_of_an_origin_and_then_goes_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared: list[Sql] = []
    true = Sql.matches

    def counted(self: Sql, view: View) -> bool:
        compared.append(self)
        return true(self, view)

    monkeypatch.setattr(Sql, "matches", counted)
    table, event = FilterTable("0" * 32), Packet(Header(EventId("7" * 32, 0, 1), TYPE), View({"plate": "AB1"}))
    trees = MulticastTrees(lambda _: "0" * 32, lambda one, other: False)
    tree = trees.get_or_create(TYPE)
    assert tree is not None
    for number in range(1, COMPARED_MAX + 2):
        table.merge(entry("5" * 32, number, of_length(number, 5)), 0.0)
    table.merge(entry("6" * 32, 1, Sql("plate = 'AB1'", PLATES)), 0.0)
    table.merge(entry("6" * 32, 2, Sql("plate = 'AB2'", PLATES)), 0.0)
    found = [each.id.origin[0] for entries in table.matching(event, 0).values() for each in entries]
    assert sorted(found) == ["5", "6"]
    assert len(compared) <= COMPARED_MAX + 2
    for number in range(1, COMPARED_BELOW_MAX + 2):
        tree.on_request("liar", InterestRequest(interest("5" * 32, number, of_length(number, 5)), number), 0.0)
    tree.on_request("honest", InterestRequest(interest("6" * 32, 1, Sql("plate = 'AB2'", PLATES)), 1), 0.0)
    compared.clear()
    assert tree.interested_children(event, lambda each, packet: each.matches(packet)) == ["liar"]
    assert len(compared) == 1


def test_a_long_condition_weighs_as_much_as_many_short_ones() -> None:
    assert [interest("a", 1, of_length(1, chars)).weight for chars in (5, 1023, 3000, 32_000)] == [1, 2, 3, 32]
    few = [("a", interest("a", n, of_length(n, 30_000))) for n in range(MANY)]
    assert with_too_many(few) == {"a"}
    assert with_too_many(few[:30]) == frozenset()
    assert with_too_many([*few[:30], *(("b", interest("b", n, of_length(n, 5))) for n in range(64))]) == frozenset()


def test_a_subscription_is_compared_with_so_many_of_an_origin_and_relies_on_none_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared: list[Sql] = []

    def counted(self: Sql, other: Any) -> bool:
        compared.append(self)
        return True

    monkeypatch.setattr(Sql, "covers", counted)
    table, mine = FilterTable("5" * 31 + "0"), interest("5" * 31 + "0", 1, Sql("plate = 'AB1'", PLATES))
    for number in range(1, COMPARED_MAX + 2):
        table.merge(entry("5" * 32, number, of_length(number, 5)), 0.0)
    table.merge(entry("5" * 31 + "6", 1, Sql("plate = 'AB1'", PLATES)), 0.0)
    assert len(table.covered_rows(mine)) == 1
    assert len(compared) == 1


@pytest.mark.live
@pytest.mark.slow
def test_a_client_with_many_long_conditions_does_not_keep_brokers_from_each_other(tmp_path: Path) -> None:
    """Brokers told each other more of them at once than fits into a message; what they had to say beside that was lost."""
    layout = DevNetwork(first_port=0, readers={"ccs": ReadAccess(), "yard": ReadAccess()})

    async def scenario() -> None:
        wrong: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: wrong.append(context))
        async with Together(tmp_path, layout) as network, asyncio.timeout(WITHIN_S):
            yard = await network.client("yard/desk")
            for placed in [yard.subscribe("Numberplate", longest(n).text) for n in range(MANY)]:
                await placed.ready()
            await network.stop("ccs-1")
            await network.start("ccs-1")
            live = await (await network.client("ccs/desk")).subscribe("Numberplate", "speed >= 0").ready()
            ids = await (await network.client("police/camera")).publish_many("Numberplate", plates(3))
            assert sorted([(await anext(live)).id for _ in ids]) == sorted(ids)
        assert wrong == []

    asyncio.run(scenario())
