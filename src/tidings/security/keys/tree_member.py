"""A member's side of a key tree: a path, and how updates change it.

A member learns from updates alone, and applies them in order. Of each it takes first the notices
of nodes that moved, then what is sealed to the member itself, then the entries on its path from
the leaf up. If one of these steps fails it changes nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal, TypeAlias

import msgspec
from cryptography.exceptions import InvalidTag
from msgspec.structs import replace

from tidings.errors import PeerError
from tidings.security.identity import SealingKey
from tidings.security.keys.trees import (
    LeafSplit,
    MemberPath,
    NeedResync,
    NewLeafKey,
    PathLevel,
    SealedForMember,
    SealedKey,
    SiblingPromotion,
    TreeUpdate,
    blind,
    context_of,
    entry_aad,
    entry_nonce,
    lock_under,
    mix,
)
from tidings.security.suites import expand

_Entries: TypeAlias = dict[tuple[int, int], tuple[int, SealedKey]]
_PERSONAL = msgspec.msgpack.Decoder(MemberPath | NewLeafKey)


class TreeMember(ABC):
    """One member: its path, and nothing else of the tree."""

    kind: Literal["oft", "lkh"]

    def __init__(self, gid: bytes, member: bytes, kex: SealingKey) -> None:
        self.gid, self.member, self._kex = gid, member, kex
        self.version = -1
        self._leaf, self._leaf_key = 0, b""
        self._levels: list[PathLevel] = []

    @property
    def path(self) -> MemberPath:
        """Everything that this member holds; without a leaf key before it has a leaf."""
        return MemberPath(self.version, self._leaf, self._leaf_key, tuple(self._levels))

    @property
    def key_count(self) -> int:
        """How many keys this member stores."""
        return 1 + len(self._levels)

    def kek(self) -> bytes:
        """The root's key; raises NeedResync before there is one."""
        if not self._leaf_key:
            raise NeedResync("tree: no path yet")
        return expand(self._root_key(), self.kind.encode() + b"/kek")

    def resync(self, personal: SealedForMember, version: int) -> bytes:
        """Takes over a whole path of this version; gives the root's key."""
        message = self._open(personal, version)
        if not isinstance(message, MemberPath) or message.version != version:
            raise PeerError("tree: expected a whole path")
        if version < self.version:
            raise PeerError(f"tree: version {version} after {self.version}; the manager went back")
        self._take(message)
        return self.kek()

    def await_path(self, version: int) -> None:
        """Follows updates from this version on, with no leaf yet; the update that adds its leaf brings its path."""
        self.version = max(self.version, version)

    def apply(self, update: TreeUpdate) -> bytes:
        """Follows one update; gives the root's key. Raises NeedResync and changes nothing if one was missed."""
        mine = [personal for personal in update.personal if personal.member == self.member]
        message = self._open(mine[0], update.version) if mine else None
        if isinstance(message, MemberPath) and message.version == update.version > self.version:
            self._take(message)
            return self.kek()
        if update.gid != self.gid or update.version != self.version + 1 or not self._leaf_key:
            raise NeedResync(f"tree: at version {self.version}, the update is {update.version}")
        before = self._leaf_key, self._levels
        try:
            self._levels = self._moved(update.notices)
            if isinstance(message, NewLeafKey):
                self._leaf_key = message.leaf_key
                self._levels = self._after_leaf_key(message)
            self._follow({(entry.target, entry.under): (n, entry) for n, entry in enumerate(update.entries)}, update)
        except (InvalidTag, NeedResync):
            self._leaf_key, self._levels = before
            raise NeedResync(f"tree: update {update.version} cannot be followed") from None
        self.version = update.version
        return self.kek()

    @abstractmethod
    def _root_key(self) -> bytes: ...

    @abstractmethod
    def _follow(self, entries: _Entries, update: TreeUpdate) -> None:
        """Opens those entries that concern the path, bottom-up; raises NeedResync if a key is then missing."""

    def _after_leaf_key(self, message: NewLeafKey) -> list[PathLevel]:
        """The levels after a personal message; LKH learns only its leaf key from one."""
        return self._levels

    def _take(self, path: MemberPath) -> None:
        self._leaf, self._leaf_key, self._levels = path.leaf, path.leaf_key, list(path.levels)
        self.version = path.version

    def _open(self, personal: SealedForMember, version: int) -> MemberPath | NewLeafKey:
        raw = self._kex.open(personal.sealed, context_of(self.gid, version))
        try:
            message: MemberPath | NewLeafKey = _PERSONAL.decode(raw)
        except msgspec.DecodeError:
            raise PeerError("tree: a personal message that is none") from None
        return message

    def _moved(self, notices: Sequence[LeafSplit | SiblingPromotion]) -> list[PathLevel]:
        levels = self._levels
        for notice in notices:
            levels = self._split(levels, notice) if isinstance(notice, LeafSplit) else _promoted(levels, notice)
        return levels

    def _split(self, levels: list[PathLevel], notice: LeafSplit) -> list[PathLevel]:
        renamed = [_renamed(level, notice.leaf, notice.parent) for level in levels]
        if notice.leaf == self._leaf:
            return [PathLevel(notice.leaf, True, notice.joined, notice.parent, None), *renamed]
        return renamed

    def _unlock(self, entries: _Entries, update: TreeUpdate, target: int, under: int, key: bytes) -> bytes | None:
        found = entries.get((target, under))
        if found is None:
            return None
        index, entry = found
        aad = entry_aad(self.gid, update.version, target, under)
        return lock_under(self.kind, key).decrypt(entry_nonce(update.version, index), entry.sealed, aad)


class OneWayMember(TreeMember):
    """OFT: knows the blinded keys beside its path, and computes the path."""

    kind = "oft"

    def _root_key(self) -> bytes:
        key = self._leaf_key
        for level in self._levels:
            key = climb(key, level)
        return key

    def _after_leaf_key(self, message: NewLeafKey) -> list[PathLevel]:
        if message.sibling_key is None or not self._levels:
            return self._levels
        return [replace(self._levels[0], key=message.sibling_key), *self._levels[1:]]

    def _follow(self, entries: _Entries, update: TreeUpdate) -> None:
        key, levels = self._leaf_key, []
        for level in self._levels:
            blinded = self._unlock(entries, update, level.sibling, level.node, key)
            if blinded is not None:
                level = replace(level, key=blinded)
            key = climb(key, level)
            levels.append(level)
        self._levels = levels


class HierarchyMember(TreeMember):
    """LKH: knows the keys on its path."""

    kind = "lkh"

    def _root_key(self) -> bytes:
        return _need(self._levels[-1].key) if self._levels else self._leaf_key

    def _follow(self, entries: _Entries, update: TreeUpdate) -> None:
        below, levels = self._leaf_key, []
        for level in self._levels:
            key = self._unlock(entries, update, level.parent, level.node, below)
            if key is None and level.key is not None:
                key = self._unlock(entries, update, level.parent, level.parent, level.key)
            below = key or _need(level.key)
            levels.append(replace(level, key=below))
        self._levels = levels


# ── Pure steps ───────────────────────────────────────────────────────────────


def climb(key: bytes, level: PathLevel) -> bytes:
    """A parent's key, from the key of the node below it and what the member holds for that level (OFT)."""
    mine, beside = blind(key), _need(level.key)
    return mix(mine, beside) if level.is_left else mix(beside, mine)


def _need(key: bytes | None) -> bytes:
    if key is None:
        raise NeedResync("tree: a key of the path is missing")
    return key


def _renamed(level: PathLevel, old: int, new: int) -> PathLevel:
    if old not in (level.node, level.sibling, level.parent):
        return level
    node, sibling, parent = (new if id == old else id for id in (level.node, level.sibling, level.parent))
    return PathLevel(node, level.is_left, sibling, parent, level.key)


def _promoted(levels: list[PathLevel], notice: SiblingPromotion) -> list[PathLevel]:
    kept = [level for level in levels if not (level.node == notice.raised and level.sibling == notice.left)]
    return [_renamed(level, notice.parent, notice.raised) for level in kept]


MEMBERS: dict[str, type[TreeMember]] = {"oft": OneWayMember, "lkh": HierarchyMember}
