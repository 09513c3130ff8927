"""Key trees: everybody in agrees, everybody out is out, and who may collude (SECURE-INV-15, 17; SECURE-GAP-8)."""

from __future__ import annotations

import pytest

from tests.unit.security.london import source
from tidings.errors import InputError, PeerError
from tidings.security import MEMBERS, TREES, KeyTree, NeedResync, SealingKey, TreeMember
from tidings.security.keys.tree_member import OneWayMember
from tidings.security.keys.trees import (
    LeafSplit,
    OneWayTree,
    TreeUpdate,
    blind,
    entry_aad,
    entry_nonce,
    lock_under,
    mix,
)
from tidings.security.suites import expand

KINDS = tuple(TREES)
GID = bytes(32)


class Group:
    """A tree and its members, who hear every update and nothing else."""

    def __init__(self, kind: str, seed: int = 1) -> None:
        self.kind, self.random = kind, source(seed)
        self.tree: KeyTree = TREES[kind](GID, self.random)
        self.members: dict[bytes, TreeMember] = {}
        self.updates: list[TreeUpdate] = []

    def join(self, *names: int) -> TreeUpdate:
        return self.batch(joins=names)

    def leave(self, *names: int) -> TreeUpdate:
        return self.batch(leaves=names)

    def batch(self, joins: tuple[int, ...] = (), leaves: tuple[int, ...] = ()) -> TreeUpdate:
        newcomers = []
        for name in joins:
            kex = SealingKey.make(self.random)
            newcomers.append((key(name), kex.public_key))
            self.members[key(name)] = MEMBERS[self.kind](GID, key(name), kex)
        for name in leaves:
            del self.members[key(name)]
        return self.hear(self.tree.batch(newcomers, [key(name) for name in leaves]))

    def hear(self, update: TreeUpdate) -> TreeUpdate:
        self.updates.append(update)
        keks = {member.apply(update) for member in self.members.values()}
        assert keks == ({self.tree.root_kek()} if self.members else set())
        return update


def key(name: int) -> bytes:
    return name.to_bytes(32, "big")


def a_group(kind: str, size: int) -> Group:
    group = Group(kind)
    for name in range(size):
        group.join(name)
    return group


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 2, 3, 7, 32, 33])
def test_all_members_agree_while_a_group_grows_and_shrinks(kind: str, size: int) -> None:
    group = a_group(kind, size)
    for name in range(size):
        group.leave(name)
    assert len(group.tree) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_all_members_agree_after_many_moves_at_once(kind: str) -> None:
    group = a_group(kind, 20)
    group.batch(joins=(30, 31, 32, 33, 34), leaves=(0, 1, 2, 3, 19))
    group.batch(leaves=tuple(range(4, 19)))
    group.batch(joins=tuple(range(40, 60)))
    group.batch(joins=(61,), leaves=tuple(range(40, 60)))


@pytest.mark.parametrize("kind", KINDS)
def test_a_rotation_and_a_rebuild_change_the_key_and_keep_the_members(kind: str) -> None:
    group = a_group(kind, 9)
    keks = {group.tree.root_kek()}
    for _ in range(10):
        group.hear(group.tree.rotate())
        keks.add(group.tree.root_kek())
    group.hear(group.tree.rebuild())
    keks.add(group.tree.root_kek())
    assert len(keks) == 12
    assert group.tree.height == 4


@pytest.mark.parametrize("kind", KINDS)
def test_every_change_of_members_changes_the_key(kind: str) -> None:
    group = a_group(kind, 5)
    keks = {group.tree.root_kek()}
    for step in range(5):
        group.join(100 + step)
        keks.add(group.tree.root_kek())
        group.leave(step)
        keks.add(group.tree.root_kek())
    assert len(keks) == 11


@pytest.mark.parametrize(("kind", "leave_entries"), [("oft", 1), ("lkh", 2)])
@pytest.mark.parametrize("height", [1, 3, 5, 7])
def test_updates_are_as_long_as_the_tree_is_high(kind: str, leave_entries: int, height: int) -> None:
    group = a_group(kind, 2**height)
    assert group.tree.height == height
    joined = group.join(1000)
    assert len(joined.entries) <= height + 1
    left = group.leave(0)
    assert len(left.entries) <= leave_entries * (height + 1)
    assert all(member.key_count <= height + 2 for member in group.members.values())


def test_a_one_way_update_is_opened_at_most_once_by_each_member() -> None:
    """Exactly the members below the sibling need an entry, and exactly they can open it."""
    group = a_group("oft", 16)
    update = group.leave(5)
    for member in group.members.values():
        nodes = {level.node for level in member.path.levels}
        siblings = {level.sibling for level in member.path.levels}
        mine = [entry for entry in update.entries if entry.under in nodes and entry.target in siblings]
        assert len(mine) <= 1


def test_the_one_way_formulas_are_the_published_ones() -> None:
    """On the smallest tree that has them all (McGrew and Sherman, 2003)."""
    group = a_group("oft", 2)
    one, other = (group.members[key(name)] for name in range(2))
    root = mix(blind(one.path.leaf_key), blind(other.path.leaf_key))
    assert group.tree.root_kek() == expand(root, b"oft/kek")


def test_a_new_leaf_goes_to_the_shallowest_place_with_the_lowest_number() -> None:
    group = a_group("lkh", 8)
    group.leave(7)
    group.join(8)
    assert group.tree.height == 3
    first = a_group("lkh", 4)
    leaves = {node.id: node.member for node in first.tree.to_state().nodes if node.member is not None}
    (split,) = first.tree.join(key(4), SealingKey.make(source(4)).public_key).notices
    assert isinstance(split, LeafSplit)
    assert split.leaf == min(leaves)


@pytest.mark.parametrize("kind", KINDS)
def test_a_tree_that_leaves_have_made_lopsided_is_balanced_by_a_rebuild(kind: str) -> None:
    group = Group(kind)
    group.join(*range(128))
    nodes = {node.id: node for node in group.tree.to_state().nodes}

    def some_member_below(node: int) -> bytes:
        while nodes[node].member is None:
            node = nodes[node].left
        return nodes[node].member or b""

    kept = {key(0), *(some_member_below(level.sibling) for level in group.members[key(0)].path.levels)}
    group.leave(*(name for name in range(128) if key(name) not in kept))
    assert (len(group.tree), group.tree.height, group.tree.is_lopsided) == (8, 7, True)
    group.hear(group.tree.rebuild())
    assert (group.tree.height, group.tree.is_lopsided) == (3, False)


# ── Missed and forged updates ────────────────────────────────────────────────


@pytest.mark.parametrize("kind", KINDS)
def test_a_member_that_missed_an_update_says_so_and_is_helped(kind: str) -> None:
    group = a_group(kind, 6)
    behind = group.members.pop(key(2))
    group.leave(4)
    update = group.join(50)
    with pytest.raises(NeedResync, match="tree: at version 6, the update is 8"):
        behind.apply(update)
    assert behind.resync(group.tree.resync(key(2)), group.tree.version) == group.tree.root_kek()
    group.members[key(2)] = behind
    group.leave(1)


@pytest.mark.parametrize("kind", KINDS)
def test_an_update_that_cannot_be_followed_changes_nothing(kind: str) -> None:
    group = a_group(kind, 6)
    member = group.members[key(0)]
    kek, version = member.kek(), member.version
    real = group.tree.leave(key(5))
    del group.members[key(5)]
    broken = TreeUpdate(
        real.gid,
        real.version,
        real.notices,
        tuple(type(entry)(entry.target, entry.under, bytes(48)) for entry in real.entries),
        real.personal,
    )
    followed = []
    for other in group.members.values():
        try:
            other.apply(broken)
            followed.append(other)
        except NeedResync:
            pass
    assert member not in followed
    assert (member.kek(), member.version) == (kek, version)
    assert member.apply(real) == group.tree.root_kek()


@pytest.mark.parametrize("kind", KINDS)
def test_a_path_of_an_older_version_is_refused(kind: str) -> None:
    group = a_group(kind, 3)
    old, version = group.tree.resync(key(1)), group.tree.version
    group.join(9)
    with pytest.raises(PeerError, match="the manager went back"):
        group.members[key(1)].resync(old, version)


@pytest.mark.parametrize("kind", KINDS)
def test_nobody_joins_twice_or_leaves_without_being_there(kind: str) -> None:
    group = a_group(kind, 2)
    with pytest.raises(InputError, match="in the tree already"):
        group.tree.join(key(1), SealingKey.make(source(1)).public_key)
    with pytest.raises(InputError, match="is not in the tree"):
        group.tree.leave(key(7))


@pytest.mark.parametrize("kind", KINDS)
def test_a_tree_at_rest_goes_on_as_if_nothing_had_been(kind: str) -> None:
    group = a_group(kind, 11)
    group.leave(4)
    restored = TREES[kind](GID, group.random)
    restored.restore(group.tree.to_state())
    assert restored.to_state() == group.tree.to_state()
    group.tree = restored
    group.batch(joins=(20, 21), leaves=(3, 9))
    group.hear(group.tree.rotate())


# ── Attackers ────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", KINDS)
def test_an_evicted_members_path_opens_no_later_update(kind: str) -> None:
    group = a_group(kind, 16)
    evicted = group.members[key(6)]
    leaving = iter((6, 7, 0, 5, 4, 15, 1, 2, 3, 8))
    for step in range(20):
        update = group.join(100 + step) if step % 2 else group.leave(next(leaving))
        evicted.version = update.version - 1  # It need not play by the rules.
        try:
            kek = evicted.apply(update)
        except NeedResync:
            continue
        assert kek != group.tree.root_kek()


def test_in_a_one_way_tree_an_evicted_and_a_later_member_together_learn_the_key_between() -> None:
    """SECURE-GAP-8, and SECURE-INV-17's second half: the published weakness is there, which is why OFT is not the default.

    A, evicted from the left half, knows the right half's blinded key. C, who joins on the right
    later, is told the left half's blinded key as it has been since A went. Mixed, they are the
    root of the time between, when neither was a member.
    """
    group = a_group("oft", 4)  # 0 and 2 on the left, 1 and 3 on the right.
    group.leave(3)
    evicted = group.members[key(0)]
    group.leave(0)
    between = group.tree.root_kek()
    group.join(4)
    joined = group.members[key(4)]
    assert evicted.path.levels[-1].is_left
    assert not joined.path.levels[-1].is_left
    right, left = evicted.path.levels[-1].key, joined.path.levels[-1].key
    assert expand(mix(left or b"", right or b""), b"oft/kek") == between
    assert evicted.kek() != between
    assert joined.kek() != between


def test_in_a_key_hierarchy_an_evicted_and_a_later_member_together_learn_nothing_between() -> None:
    """SECURE-INV-17: every key either ever held is tried on every entry between, and what opens is tried again."""
    group = a_group("lkh", 8)
    evicted = group.members[key(2)]
    known = {evicted.path.leaf_key, *(level.key for level in evicted.path.levels if level.key)}
    group.leave(2)
    start = len(group.updates) - 1
    between = [group.tree.root_kek()]
    group.leave(5)
    between.append(group.tree.root_kek())
    group.hear(group.tree.rotate())
    between.append(group.tree.root_kek())
    group.join(77)
    later = group.members[key(77)]
    known |= {later.path.leaf_key, *(level.key for level in later.path.levels if level.key)}
    known = all_that_follows("lkh", known, group.updates[start:])
    assert not {expand(secret, b"lkh/kek") for secret in known} & set(between)
    assert group.tree.root_kek() in {expand(secret, b"lkh/kek") for secret in known}  # The newcomer's own.


def all_that_follows(kind: str, known: set[bytes], updates: list[TreeUpdate]) -> set[bytes]:
    """Every secret that can be opened with these, and with those, and so on."""
    from cryptography.exceptions import InvalidTag

    fresh = set(known)
    while fresh:
        found = set()
        for update in updates:
            for index, entry in enumerate(update.entries):
                aad = entry_aad(update.gid, update.version, entry.target, entry.under)
                for secret in sorted(fresh):
                    try:
                        found.add(
                            lock_under(kind, secret).decrypt(entry_nonce(update.version, index), entry.sealed, aad)
                        )
                    except InvalidTag:
                        continue
        fresh = found - known
        known = known | fresh
    return known


def test_members_and_trees_of_one_kind_belong_together() -> None:
    assert (OneWayTree.kind, OneWayMember.kind) == ("oft", "oft")
    assert {kind: tree.kind for kind, tree in TREES.items()} == {kind: m.kind for kind, m in MEMBERS.items()}
