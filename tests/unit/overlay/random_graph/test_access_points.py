"""The table of access points, and what a full table keeps."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from tidings.errors import InputError
from tidings.overlay import Peer
from tidings.overlay.random_graph.access_points import AGE_MAX, AccessPoint, AccessTable, Policy, TreeId, hashed_rank
from tidings.overlay.random_graph.partition import AttributeAxis

ME, TREE, OTHER = Peer("me"), TreeId(Peer("s"), 1), TreeId(Peer("t"), 1)


def point(name: str, peer: str = "p", tree: TreeId = TREE, age: int = 0) -> AccessPoint:
    return AccessPoint(AttributeAxis("Event", name), Peer(peer), tree, age)


def a_table(size: int = 3, policy: Policy = "balanced") -> AccessTable:
    return AccessTable(ME, Random(0), size=size, policy=policy)


def names(table: AccessTable) -> list[str]:
    return [axis.name for axis in table.axes()]


def rare_share(policy: Policy) -> float:
    """The share of rare attributes among the entries: nine advertisements in ten are of five attributes in twenty."""
    seen: Counter[bool] = Counter()
    for seed in range(30):
        table, rng = AccessTable(ME, Random(seed), size=5, policy=policy), Random(seed)
        for _ in range(600):
            popular = rng.random() < 0.9
            table.add(point(f"popular{rng.randrange(5)}" if popular else f"rare{rng.randrange(15)}"))
        seen.update(entry.axis.name.startswith("rare") for entry in table.sample(5))
    return seen[True] / seen.total()


def test_a_balanced_table_has_one_entry_for_an_attribute_and_keeps_the_youngest() -> None:
    table = a_table()
    for age, peer in ((5, "old"), (1, "new"), (3, "between")):
        table.add(point("x", peer, age=age))
    assert [each.peer.id for each in table.at(AttributeAxis("Event", "x"))] == ["new"]


def test_a_table_has_two_entries_while_an_attribute_has_two_topologies() -> None:
    table = a_table()
    table.add(point("x"))
    table.add(point("x", tree=OTHER))
    assert len(table.at(AttributeAxis("Event", "x"))) == 2
    table.drop_tree(AttributeAxis("Event", "x"), OTHER)
    assert [each.tree for each in table.at(AttributeAxis("Event", "x"))] == [TREE]


@pytest.mark.parametrize("policy", ["naive", "balanced", "hashed"])
def test_a_table_never_exceeds_its_size(policy: Policy) -> None:
    """CBDLO-INV-S6."""
    table, rng = a_table(5, policy), Random(1)
    for _ in range(500):
        table.add(point(f"a{rng.randrange(50)}"))
        assert len(table) <= 5
    assert len(table) == 5


def test_only_a_balanced_table_has_rare_attributes_as_often_as_popular_ones() -> None:
    naive, balanced = rare_share("naive"), rare_share("balanced")
    assert naive < 0.2, "one advertisement in ten is of a rare attribute"
    assert 0.65 < balanced < 0.85, "three attributes in four are rare"


def test_tables_that_get_the_same_gossip_keep_different_attributes() -> None:
    """Forty tables, one gossip: every attribute is in about a fifth of them."""
    tables = [AccessTable(ME, Random(seed), size=4) for seed in range(40)]
    for turn in range(200):
        for table in tables:
            table.add(point(f"a{turn * 7 % 20}"))
    kept = Counter(name for table in tables for name in names(table))
    assert len(kept) == 20
    assert max(kept.values()) < 20, "eight on average"
    assert len({frozenset(names(table)) for table in tables}) > 35


def test_a_table_keeps_its_attributes_however_often_others_are_advertised() -> None:
    table = a_table()
    for turn in range(60):
        table.add(point(f"a{turn % 20}"))
    chosen = names(table)
    for turn in range(200):
        table.add(point(f"a{turn % 5}"))
    assert sorted(names(table)) == sorted(chosen)


def test_an_entry_that_is_not_confirmed_expires() -> None:
    table = a_table()
    table.add(point("x"))
    for _ in range(AGE_MAX):
        table.increase_ages()
    assert names(table) == ["x"]
    table.increase_ages()
    assert names(table) == []


def test_a_peer_that_has_left_the_topology_is_dropped() -> None:
    table = a_table()
    table.add(point("x", "p"))
    table.add(point("y", "p"))
    table.drop(AttributeAxis("Event", "x"), "p")
    assert names(table) == ["y"]
    table.drop_peer("p")
    assert names(table) == []


def test_a_table_takes_neither_its_own_node_nor_expired_entries() -> None:
    table = a_table()
    table.add(point("x", "me"))
    table.add(point("y", age=AGE_MAX + 1))
    assert len(table) == 0


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(InputError, match="naive or balanced"):
        AccessTable(ME, Random(0), policy="best")  # type: ignore[arg-type]


def test_anybody_can_tell_what_a_full_hashed_table_keeps() -> None:
    table, attributes = a_table(5, "hashed"), [AttributeAxis("Event", f"a{number}") for number in range(40)]
    for axis in Random(1).sample(attributes, 40):
        table.add(point(axis.name))
    kept = sorted(attributes, key=lambda axis: hashed_rank(ME.id, axis))[:5]
    assert sorted(table.axes()) == sorted(kept)


def test_the_nodes_that_are_asked_first_differ_from_attribute_to_attribute() -> None:
    nodes, axes = (
        [f"n{number}" for number in range(50)],
        [AttributeAxis("Event", f"a{number}") for number in range(500)],
    )
    asked = Counter(min(nodes, key=lambda node: hashed_rank(node, axis)) for axis in axes)
    assert len(asked) > 45
    assert max(asked.values()) < 40, "four times the mean"
