"""Key trees: how a manager changes the key of a thousand members with a dozen messages.

Members are the leaves of a binary tree. What a member holds lets it compute the key of the root.
When a member joins or leaves, only the path above its leaf changes, and each change is sent once,
sealed under a key that exactly the intended half of the members has.

| | OFT, one-way function tree | LKH, logical key hierarchy |
| --- | --- | --- |
| a node's key | mixed from its children's blinded keys | drawn at random |
| a member holds | its leaf key, and the blinded sibling of each node on its path | the keys on its path |
| leave, broadcast | at most h entries | at most 2h − 1 entries |
| an evicted and a later member together | **learn the keys between** (Horng 2002; Ku and Chen 2003) | learn nothing |

So LKH is the default; OFT is kept because the paper is built on it.

A tree's `join`, `leave`, `batch`, `rotate` and `rebuild` return a `TreeUpdate`: notices of nodes that
moved, keys sealed for many members, and a few messages sealed to single members. A `TreeMember`
applies updates in order and returns the root's key, or raises NeedResync when it missed one. A
member learns from updates alone; the manager's tree and the member's path share no object.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tidings.errors import InputError, PeerError
from tidings.security.identity import RandomBytes, seal_to
from tidings.security.suites import expand, extract

KEY_BYTES = 32
MEMBERS_MAX = 2**20  # A path of twenty keys; a larger group should be split, rather than have a taller tree.


def without_keys(message: object) -> str:
    """The repr of a message with keys in it: its name alone, so that no log ever shows a key."""
    return f"{type(message).__name__}(…)"


class NeedResync(PeerError):
    """An update is missing or does not fit; the member must ask the manager for its path."""


class LeafSplit(msgspec.Struct, frozen=True, tag="split", array_like=True):
    """Leaf `leaf` became the left child of the new node `parent`, whose right child is `joined`."""

    leaf: int
    parent: int
    joined: int


class SiblingPromotion(msgspec.Struct, frozen=True, tag="promote", array_like=True):
    """`left` was removed, and its sibling `raised` took the place of their parent `parent`."""

    raised: int
    parent: int
    left: int


class SealedKey(msgspec.Struct, frozen=True, array_like=True):
    """A key of node `target`, sealed under a key of node `under`."""

    target: int
    under: int
    sealed: bytes


class SealedForMember(msgspec.Struct, frozen=True, array_like=True):
    """A message for one member alone, sealed to its own key."""

    member: bytes
    sealed: bytes


class TreeUpdate(msgspec.Struct, frozen=True, array_like=True):
    """One change of a tree, from `version` − 1 to `version`."""

    gid: bytes
    version: int
    notices: tuple[LeafSplit | SiblingPromotion, ...] = ()
    entries: tuple[SealedKey, ...] = ()
    personal: tuple[SealedForMember, ...] = ()


class PathLevel(msgspec.Struct, frozen=True, array_like=True):
    """One step of a path, bottom-up: a node, its sibling, their parent, and the key a member holds for this step.

    OFT: the sibling's blinded key. LKH: the parent's key.
    """

    node: int
    is_left: bool
    sibling: int
    parent: int
    key: bytes | None

    __repr__ = without_keys


class MemberPath(msgspec.Struct, frozen=True, tag="path", array_like=True):
    """Everything that a member holds."""

    version: int
    leaf: int
    leaf_key: bytes
    levels: tuple[PathLevel, ...]

    __repr__ = without_keys


class NewLeafKey(msgspec.Struct, frozen=True, tag="leaf", array_like=True):
    """A new key for a member's leaf and, where its sibling is new, that one's blinded key."""

    leaf_key: bytes
    sibling_key: bytes | None

    __repr__ = without_keys


class NodeState(msgspec.Struct, frozen=True, array_like=True):
    """One node of a tree, as it is stored; 0 is no child."""

    id: int
    key: bytes
    member: bytes | None
    left: int
    right: int

    __repr__ = without_keys


class TreeState(msgspec.Struct, frozen=True, array_like=True):
    """A whole tree, as it is stored."""

    version: int
    root: int
    nodes: tuple[NodeState, ...]
    kex: dict[bytes, bytes]
    members: tuple[bytes, ...]
    next_id: int
    turn: int

    __repr__ = without_keys


class _Node:
    __slots__ = ("height", "id", "key", "left", "member", "nearest", "parent", "right")

    def __init__(self, id: int, key: bytes, member: bytes | None = None) -> None:
        self.id, self.key, self.member = id, key, member
        self.parent: _Node | None = None
        self.left: _Node | None = None
        self.right: _Node | None = None
        self.height = 0
        self.nearest = (0, id)  # How far down the shallowest leaf is, and its id.

    @property
    def sibling(self) -> _Node | None:
        if self.parent is None:
            return None
        return self.parent.right if self.parent.left is self else self.parent.left

    @property
    def children(self) -> tuple[_Node, ...]:
        return () if self.left is None or self.right is None else (self.left, self.right)

    def upward(self) -> Iterator[_Node]:
        """The node itself and every one above it."""
        node: _Node | None = self
        while node is not None:
            yield node
            node = node.parent

    def resize(self) -> None:
        """Recomputes height and nearest leaf, here and above."""
        for node in self.upward():
            if node.left is not None and node.right is not None:
                node.height = 1 + max(node.left.height, node.right.height)
                distance, leaf = min(node.left.nearest, node.right.nearest)
                node.nearest = distance + 1, leaf


class _Work:
    """The nodes that one batch has touched so far."""

    def __init__(self) -> None:
        self.notices: list[LeafSplit | SiblingPromotion] = []
        self.joined: dict[int, _Node] = {}
        self.split: dict[int, _Node] = {}
        self.raised: dict[int, _Node] = {}
        self.rekeyed: dict[int, _Node] = {}


class KeyTree(ABC):
    """The manager's side of a tree. Members are known by their signing key, reached by their sealing key."""

    kind: Literal["oft", "lkh"]

    def __init__(self, gid: bytes, random: RandomBytes) -> None:
        self.gid, self.version = gid, 0
        self._random = random
        self._root: _Node | None = None
        self._leaves: dict[bytes, _Node] = {}
        self._by_id: dict[int, _Node] = {}
        self._kex: dict[bytes, bytes] = {}
        self._next_id = 1
        self._turn = 0

    # ── Members and keys ──

    def __len__(self) -> int:
        return len(self._leaves)

    def __contains__(self, member: bytes) -> bool:
        return member in self._leaves

    @property
    def height(self) -> int:
        return self._root.height if self._root else 0

    @property
    def members(self) -> tuple[bytes, ...]:
        """In the order in which they joined."""
        return tuple(self._leaves)

    def root_kek(self) -> bytes:
        """The key that all members, and nobody else, can compute."""
        assert self._root is not None, "an empty tree has no key"
        return expand(self._root.key, self.kind.encode() + b"/kek")

    def join(self, member: bytes, kex_key: bytes) -> TreeUpdate:
        return self.batch(joins=[(member, kex_key)])

    def leave(self, member: bytes) -> TreeUpdate:
        return self.batch(leaves=[member])

    def batch(self, joins: Sequence[tuple[bytes, bytes]] = (), leaves: Sequence[bytes] = ()) -> TreeUpdate:
        """Many changes at once: first removals, then additions, then one change of keys."""
        work = _Work()
        for member in leaves:
            self._remove_leaf(member, work)
        for member, kex_key in joins:
            self._add_leaf(member, kex_key, work)
        for node in work.raised.values():
            if self._by_id.get(node.id) is node:
                leaf = self._by_id[node.nearest[1]]
                work.rekeyed[leaf.id] = leaf
        return self._rekey(work)

    def rotate(self) -> TreeUpdate:
        """Gives one leaf a new key, the next one in turn each time: this limits the harm of a leaked leaf key."""
        work = _Work()
        if self._leaves:
            members = self.members
            leaf = self._leaves[members[self._turn % len(members)]]
            self._turn += 1
            work.rekeyed[leaf.id] = leaf
        return self._rekey(work)

    @property
    def is_lopsided(self) -> bool:
        """Whether leaves have made the tree more than twice as tall as it need be."""
        return self.height > 2 * max(1, (len(self) - 1).bit_length())

    def rebuild(self) -> TreeUpdate:
        """The same members in a balanced tree with all keys new; every member is sent its path."""
        members = [(member, self._kex[member]) for member in self.members]
        self._root, self._leaves, self._by_id, self._kex = None, {}, {}, {}
        return self.batch(joins=members)

    def resync(self, member: bytes, kex_key: bytes | None = None) -> SealedForMember:
        """The member's whole path, sealed to it; with `kex_key`, to its new sealing key."""
        if kex_key is not None:
            self._kex[member] = kex_key
        return self._seal(member, self._path(self._leaves[member]))

    # ── Storage ──

    def to_state(self) -> TreeState:
        """Everything, keys included: for sealing at rest."""
        nodes = tuple(
            NodeState(n.id, n.key, n.member, n.left.id if n.left else 0, n.right.id if n.right else 0)
            for n in self._by_id.values()
        )
        root = self._root.id if self._root else 0
        return TreeState(self.version, root, nodes, dict(self._kex), self.members, self._next_id, self._turn)

    def restore(self, state: TreeState) -> None:
        """Restores the tree from `state`."""
        self.version, self._next_id, self._turn = state.version, state.next_id, state.turn
        self._by_id = {node.id: _Node(node.id, node.key, node.member) for node in state.nodes}
        self._kex = dict(state.kex)
        by_member = {node.member: node for node in self._by_id.values() if node.member is not None}
        self._leaves = {member: by_member[member] for member in state.members}
        self._root = self._by_id.get(state.root)
        for kept in state.nodes:
            if kept.left:
                node, left, right = (self._by_id[id] for id in (kept.id, kept.left, kept.right))
                node.left, node.right, left.parent, right.parent = left, right, node, node
        for leaf in self._leaves.values():
            leaf.resize()

    # ── Adding and removing leaves ──

    def _add_leaf(self, member: bytes, kex_key: bytes, work: _Work) -> None:
        if member in self._leaves or len(self) >= MEMBERS_MAX:
            raise InputError(f"member {member.hex()[:16]}… is in the tree already, or the tree is full")
        leaf = self._new_node(member)
        self._leaves[member], self._kex[member] = leaf, kex_key
        work.joined[leaf.id] = leaf
        if self._root is None:
            self._root = leaf
            return
        beside = self._by_id[self._root.nearest[1]]
        parent = self._new_node()
        self._replace(beside, parent)
        self._adopt(parent, beside, leaf)
        work.split[beside.id] = beside
        work.notices.append(LeafSplit(beside.id, parent.id, leaf.id))

    def _remove_leaf(self, member: bytes, work: _Work) -> None:
        leaf = self._leaves.pop(member, None)
        if leaf is None:
            raise InputError(f"member {member.hex()[:16]}… is not in the tree")
        del self._kex[member], self._by_id[leaf.id]
        parent, sibling = leaf.parent, leaf.sibling
        if parent is None or sibling is None:
            self._root = None
            return
        self._replace(parent, sibling)
        del self._by_id[parent.id]
        if sibling.parent is not None:
            sibling.parent.resize()
        work.raised[sibling.id] = sibling
        work.notices.append(SiblingPromotion(sibling.id, parent.id, leaf.id))

    def _new_node(self, member: bytes | None = None) -> _Node:
        node = _Node(self._next_id, self._random(KEY_BYTES), member)
        self._by_id[node.id] = node
        self._next_id += 1
        return node

    def _replace(self, old: _Node, new: _Node) -> None:
        above = old.parent
        new.parent = above
        if above is None:
            self._root = new
        elif above.left is old:
            above.left = new
        else:
            above.right = new

    def _adopt(self, parent: _Node, left: _Node, right: _Node) -> None:
        parent.left, parent.right = left, right
        left.parent = right.parent = parent
        parent.resize()

    # ── Changing keys ──

    @abstractmethod
    def _rekey(self, work: _Work) -> TreeUpdate:
        """New keys wherever `work` requires them, and the update that carries them to the members."""

    @abstractmethod
    def _level_key(self, node: _Node, sibling: _Node, parent: _Node) -> bytes:
        """What a member below `node` holds for that step of its path."""

    def _path(self, leaf: _Node) -> MemberPath:
        levels = []
        for node in leaf.upward():
            if node.parent is not None and node.sibling is not None:
                key = self._level_key(node, node.sibling, node.parent)
                levels.append(PathLevel(node.id, node.parent.left is node, node.sibling.id, node.parent.id, key))
        return MemberPath(self.version, leaf.id, leaf.key, tuple(levels))

    def _seal(self, member: bytes, message: MemberPath | NewLeafKey) -> SealedForMember:
        context = context_of(self.gid, self.version)
        return SealedForMember(
            member, seal_to(self._kex[member], msgspec.msgpack.encode(message), context, self._random)
        )

    def _changed(self, leaves: Sequence[_Node]) -> list[_Node]:
        """Every node above these and they themselves, deepest first."""
        depths = {node.id: (depth, node) for leaf in leaves for depth, node in _depths(leaf)}
        return [node for _, node in sorted(depths.values(), key=lambda item: (-item[0], item[1].id))]

    def _sealed_entries(self, wanted: list[tuple[_Node, _Node, bytes, bytes]]) -> tuple[SealedKey, ...]:
        """One entry for each (target, under, key of under, secret of target)."""
        entries = []
        for index, (target, under, key, secret) in enumerate(wanted):
            aad = entry_aad(self.gid, self.version, target.id, under.id)
            sealed = lock_under(self.kind, key).encrypt(entry_nonce(self.version, index), secret, aad)
            entries.append(SealedKey(target.id, under.id, sealed))
        return tuple(entries)


class OneWayTree(KeyTree):
    """OFT, as published: a node's key is mixed from its children's blinded keys."""

    kind = "oft"

    def _level_key(self, node: _Node, sibling: _Node, parent: _Node) -> bytes:
        return blind(sibling.key)

    def _rekey(self, work: _Work) -> TreeUpdate:
        self.version += 1
        personal = {leaf.id: leaf for leaf in (*work.split.values(), *work.rekeyed.values())}
        personal = {id: leaf for id, leaf in personal.items() if id in self._by_id and id not in work.joined}
        for leaf in personal.values():
            leaf.key = self._random(KEY_BYTES)
        touched = [leaf for leaf in (*work.joined.values(), *personal.values()) if leaf.id in self._by_id]
        changed = self._changed(touched)
        for node in changed:
            if node.left is not None and node.right is not None:
                node.key = mix(blind(node.left.key), blind(node.right.key))
        informed = {*work.joined, *personal}  # Leaves that get a sealed message learn their sibling's key from it.
        entries = [
            (node, node.sibling, node.sibling.key, blind(node.key))
            for node in changed
            if node.sibling is not None and node.sibling.id not in informed
        ]
        fresh = {node.id for node in changed}
        messages = [self._seal(leaf.member or b"", self._path(leaf)) for leaf in work.joined.values()]
        messages += [self._seal(leaf.member or b"", self._new_leaf_key(leaf, fresh)) for leaf in personal.values()]
        return TreeUpdate(self.gid, self.version, tuple(work.notices), self._sealed_entries(entries), tuple(messages))

    def _new_leaf_key(self, leaf: _Node, fresh: set[int]) -> NewLeafKey:
        sibling = leaf.sibling
        return NewLeafKey(leaf.key, blind(sibling.key) if sibling is not None and sibling.id in fresh else None)


class HierarchyTree(KeyTree):
    """LKH: every node's key is drawn at random and sent to those below."""

    kind = "lkh"

    def _level_key(self, node: _Node, sibling: _Node, parent: _Node) -> bytes:
        return parent.key

    def _rekey(self, work: _Work) -> TreeUpdate:
        self.version += 1
        left = [node for node in work.raised.values() if self._by_id.get(node.id) is node]
        rotated = [] if work.raised else [leaf for leaf in work.rekeyed.values() if leaf.id not in work.joined]
        for leaf in rotated:
            leaf.key = self._random(KEY_BYTES)
        # A key that a leaver (or a thief of the leaf key) knew cannot carry the new one; below a split there is no old one.
        exposed = {node.id for start in (*left, *rotated) for node in start.upward() if node is not start}
        new = {notice.parent for notice in work.notices if isinstance(notice, LeafSplit)}
        starts = [*left, *rotated, *work.joined.values()]
        changed = self._changed([start.parent for start in starts if start.parent is not None])
        old = {node.id: node.key for node in changed}
        for node in changed:
            node.key = self._random(KEY_BYTES)
        wanted: list[tuple[_Node, _Node, bytes, bytes]] = []
        for node in changed:
            if node.id in exposed or node.id in new:
                below = [child for child in node.children if child.id not in work.joined]
                wanted += [(node, child, child.key, node.key) for child in below]
            else:
                wanted.append((node, node, old[node.id], node.key))
        messages = [self._seal(leaf.member or b"", self._path(leaf)) for leaf in work.joined.values()]
        messages += [self._seal(leaf.member or b"", NewLeafKey(leaf.key, None)) for leaf in rotated]
        return TreeUpdate(self.gid, self.version, tuple(work.notices), self._sealed_entries(wanted), tuple(messages))


TREES: dict[str, type[KeyTree]] = {"oft": OneWayTree, "lkh": HierarchyTree}


# ── Pure steps ───────────────────────────────────────────────────────────────


def blind(key: bytes) -> bytes:
    """What the members below a node's sibling may know of the node's key (OFT)."""
    return expand(key, b"oft/blind")


def mix(left: bytes, right: bytes) -> bytes:
    """A node's key from its children's blinded ones (OFT)."""
    return extract(b"oft/mix", left + right)


def _depths(node: _Node) -> Iterator[tuple[int, _Node]]:
    way = list(node.upward())
    return zip(range(len(way) - 1, -1, -1), way, strict=True)


def context_of(gid: bytes, version: int) -> bytes:
    return b"ps/tree/1\0" + gid + version.to_bytes(8, "big")


def lock_under(kind: str, key: bytes) -> AESGCM:
    return AESGCM(expand(key, kind.encode() + b"/enc"))


def entry_nonce(version: int, index: int) -> bytes:
    return version.to_bytes(8, "big") + index.to_bytes(4, "big")


def entry_aad(gid: bytes, version: int, target: int, under: int) -> bytes:
    return b"".join((gid, *(number.to_bytes(8, "big") for number in (version, target, under))))
