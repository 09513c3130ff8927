"""Secrecy over time: an attacker who keeps all it ever received, in groups that come and go (SECURE-INV-1, 2, 14, 15).

A schedule is random: brokers with credentials of random validity join, leave, are revoked and
come back, and the manager's timers tick. Everybody hears every broadcast. A broker that is out
keeps its tree, its keys and all broadcasts, and goes on trying every secret on everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import event as note
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.security.london import MANAGER, PLATES, source
from tidings.errors import Denied
from tidings.security import (
    MEMBERS,
    TREES,
    GroupMember,
    GroupPolicy,
    KeyGroup,
    Keyring,
    KeyUpdate,
    NeedResync,
    SealingKey,
    TreeMember,
)
from tidings.security.keys.group import signed_message, wrap_aad, wrap_nonce
from tidings.security.keys.tree_member import climb
from tidings.security.keys.trees import TreeUpdate, entry_aad, entry_nonce, lock_under
from tidings.security.suites import expand

GID = PLATES.group_ids[0]
G = PLATES.grace_ms
START = 10**12
HOUR = 3_600_000
TREE_KINDS = tuple(TREES)


@dataclass
class Broker:
    """One broker: what it is entitled to, and everything it ever held."""

    name: int
    kex: SealingKey
    keyring: Keyring = field(default_factory=lambda: Keyring(PLATES, epochs_max=10_000))
    member: GroupMember | None = None
    valid: list[tuple[int, int]] = field(default_factory=list)

    @property
    def key(self) -> bytes:
        return self.name.to_bytes(32, "big")

    def secrets(self) -> set[bytes]:
        """Every tree secret it holds or can compute now: in OFT, the key of each node on its way up."""
        if self.member is None or not self.member.tree.path.leaf_key:
            return set()
        tree = self.member.tree
        found, key = {tree.path.leaf_key}, tree.path.leaf_key
        for level in tree.path.levels:
            if level.key is None:
                break
            key = level.key if tree.kind == "lkh" else climb(key, level)
            found |= {key, level.key}
        return found


class World:
    """A manager's group, its brokers, and the broadcasts so far."""

    def __init__(self, tree: str, seed: int, lazy: bool, period_ms: int) -> None:
        self.random, self.now = source(seed), START
        policy = GroupPolicy(period_ms=period_ms, grace_ms=G, max_lazy_ms=6 * HOUR, tree=tree, lazy=lazy)
        self.group = KeyGroup(GID, policy, self.random, START)
        self.brokers = [Broker(name, SealingKey.make(self.random)) for name in range(6)]
        self.updates: list[KeyUpdate] = []
        self.hoards: dict[int, set[bytes]] = {broker.name: set() for broker in self.brokers}

    def step(self, what: str, who: int, wait: int, length: int) -> None:
        self.pass_time(self.now + wait)
        broker = self.brokers[who]
        if what == "join":
            self._join(broker, (self.now - wait, self.now + length))
        elif broker.key in self.group.members and what == "leave":
            self._tell([self.group.leave(broker.key, self.now)])
        elif broker.key in self.group.members and what == "revoke":
            broker.valid[-1] = (broker.valid[-1][0], self.now)
            self._tell([self.group.revoke([broker.key], self.now)])

    def pass_time(self, until: int) -> None:
        while (due := self.group.next_tick_ms) <= until:
            self.now = max(self.now, due)
            self._tell([self.group.tick(self.now)])
        self.now = until

    def _join(self, broker: Broker, valid: tuple[int, int]) -> None:
        broker.kex = SealingKey.make(self.random)
        try:
            updates = self.group.join(
                broker.key, broker.kex.public_key, valid_from=valid[0], valid_to=valid[1], now_ms=self.now
            )
        except Denied:
            return
        broker.valid.append(valid)
        tree = self.group.policy.tree
        broker.member = GroupMember(GID, broker.key, broker.kex, MANAGER.public_key, broker.keyring, tree)
        share = self.group.key_for(broker.key)
        broker.member.welcome(share, self.now)
        self.hoards[broker.name] |= {share.dek} | broker.secrets()
        self._tell(updates)

    def _tell(self, updates: Sequence[KeyUpdate | None]) -> None:
        for update in updates:
            if update is None:
                continue
            signed = signed_message(update, MANAGER)
            assert isinstance(signed, KeyUpdate)
            self.updates.append(signed)
            for broker in self.brokers:
                self._hear(broker, signed)

    def _hear(self, broker: Broker, update: KeyUpdate) -> None:
        if broker.member is None:
            return
        if broker.key not in self.group.members:
            broker.member.tree.version = update.tree.version - 1  # Who is out need not play by the rules.
        try:
            broker.member.apply(update, self.now)
        except NeedResync:
            assert broker.key not in self.group.members, "a member could not follow"
        self.hoards[broker.name] |= broker.secrets()

    # ── What an attacker makes of it ──

    def deks(self) -> dict[int, tuple[int, bytes]]:
        return {key.epoch: (key.start_ms, key.dek) for key in self.group.history(0, 2**62)}

    def learned(self, *names: int) -> set[int]:
        """The epochs whose data key these brokers can get, together, of all they ever held and heard."""
        known = set().union(*(self.hoards[name] for name in names))
        known |= opened(self.group.policy.tree, known, [update.tree for update in self.updates])
        deks = {key.dek for broker in self.brokers if broker.name in names for key in broker.keyring.epochs(GID)}
        for update in self.updates:
            deks |= {dek for secret in sorted(known) if (dek := unwrapped(self.group.policy.tree, secret, update))}
        return {epoch for epoch, (_, dek) in self.deks().items() if dek in deks}


def unwrapped(kind: str, secret: bytes, update: KeyUpdate) -> bytes | None:
    box = AESGCM(expand(secret, kind.encode() + b"/kek"))
    aad = wrap_aad(GID, update.epoch, update.start_ms)
    try:
        return box.decrypt(wrap_nonce(update.epoch, update.tree.version), update.wrapped, aad)
    except (InvalidTag, ValueError):
        return None


def opened(kind: str, known: set[bytes], updates: list[TreeUpdate]) -> set[bytes]:
    """Every secret that follows: entries opened with what is known, and with what those held, and so on."""
    known = set(known)
    fresh = set(known)
    for _ in range(4):
        found: set[bytes] = set()
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
        known |= fresh
        if not fresh:
            break
    return known


schedules = st.lists(
    st.tuples(
        st.sampled_from(["join", "join", "join", "leave", "revoke", "wait"]),
        st.integers(0, 5),
        st.sampled_from([0, 1, 1000, 3000, HOUR, 5 * HOUR]),
        st.sampled_from([5_000, HOUR, 8 * HOUR, 40 * HOUR]),
    ),
    min_size=3,
    max_size=20,
)


def played(tree: str, plan: list[tuple[str, int, int, int]], lazy: bool = True, period_ms: int = 24 * HOUR) -> World:
    world = World(tree, len(plan), lazy, period_ms)
    for what, who, wait, length in plan:
        world.step(what, who, wait, length)
    world.pass_time(world.now + 50 * HOUR)
    return world


def merged(valid: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Credentials that overlap count as one."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted(valid):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        else:
            joined.append((start, end))
    return joined


@pytest.mark.parametrize("tree", TREE_KINDS)
@settings(max_examples=50)
@given(schedules)
def test_a_key_is_known_only_to_those_entitled_from_its_start_and_until_the_grace_after_its_end(
    tree: str, plan: list[tuple[str, int, int, int]]
) -> None:
    """SECURE-INV-1: whoever knows epoch e was entitled when it started. SECURE-INV-2: and, its right ended, reads G more at most."""
    world = played(tree, plan)
    deks = world.deks()
    note(f"{len(world.updates)} refreshes")
    for broker in world.brokers:
        for epoch in sorted(world.learned(broker.name)):
            start, end = deks[epoch][0], deks.get(epoch + 1, (2**62,))[0]
            assert any(
                valid_from <= start and (end <= valid_to + G or valid_to > world.now)
                for valid_from, valid_to in merged(broker.valid)
            ), f"broker {broker.name}, entitled {merged(broker.valid)}, reads epoch {epoch} from {start} to {end}"


@settings(max_examples=25)
@given(schedules)
def test_in_a_key_hierarchy_two_who_are_out_know_together_what_they_knew_apart(
    plan: list[tuple[str, int, int, int]],
) -> None:
    """SECURE-INV-17 on random schedules."""
    world = played("lkh", plan)
    for one, other in ((0, 1), (2, 3), (4, 5)):
        assert world.learned(one, other) == world.learned(one) | world.learned(other)


@pytest.mark.parametrize("tree", TREE_KINDS)
@settings(max_examples=40)
@given(schedules)
def test_members_hold_every_key_of_the_time_they_were_in(tree: str, plan: list[tuple[str, int, int, int]]) -> None:
    world = played(tree, plan)
    for broker in world.brokers:
        if broker.key in world.group.members:
            assert world.group.epoch in [key.epoch for key in broker.keyring.epochs(GID)]


@settings(max_examples=60)
@given(schedules)
def test_a_lazy_group_refreshes_exactly_when_the_rules_say(plan: list[tuple[str, int, int, int]]) -> None:
    """SECURE-INV-14, against the rules of lazy refresh written down once more, without keys or trees."""
    rules = Rules()
    for what, who, wait, length in plan:
        rules.step(what, who, wait, length)
    rules.pass_time(rules.now + 50 * HOUR)
    world = played("lkh", plan)
    assert [(update.epoch, update.start_ms) for update in world.updates] == rules.refreshes


@settings(max_examples=60)
@given(schedules)
def test_a_lazy_group_never_refreshes_more_often_than_a_classic_one(plan: list[tuple[str, int, int, int]]) -> None:
    """SECURE-INV-14, apart from the timer, which ticks after every quiet period and so more often in a quiet group."""
    lazy, classic = (played("lkh", plan, lazy=lazy, period_ms=10**12) for lazy in (True, False))
    note(f"saved {classic.group.refreshes - lazy.group.refreshes}")
    assert lazy.group.refreshes <= classic.group.refreshes


class Rules:
    """When a lazy group refreshes: only times and validity."""

    def __init__(self) -> None:
        self.now = self.start = self.last = self.next_eviction = START
        self.timers: dict[int, int] = {}
        self.gone: list[int] = []
        self.valid_to: dict[int, int] = {}
        self.refreshes: list[tuple[int, int]] = []

    def step(self, what: str, who: int, wait: int, length: int) -> None:
        self.pass_time(self.now + wait)
        if what == "join" and self.now + length > max(self.now + 2000, self.start + 1):
            newcomer, self.timers[who], self.valid_to[who] = who not in self.timers, *[self.now + length] * 2
            self.gone = [one for one in self.gone if one != who]
            if newcomer and self.now - wait > self.start:
                self.refresh(lead=2000)
        elif what == "leave" and who in self.timers and who not in self.gone:
            self.gone.append(who)
            self.timers[who] = min(self.valid_to[who], self.now + 6 * HOUR)
        elif what == "revoke" and who in self.timers:
            self.evict([who])

    def pass_time(self, until: int) -> None:
        while (due := min([*self.timers.values(), self.last + 24 * HOUR])) <= until:
            self.now = max(self.now, due)
            over = [who for who, when in self.timers.items() if when <= self.now]
            if (not over or not self.evict(over)) and self.now >= self.last + 24 * HOUR:
                self.refresh(lead=2000)
        self.now = until

    def evict(self, over: list[int]) -> bool:
        """At once, or together with others that follow within half a second."""
        self.gone += over
        if self.now < self.next_eviction:
            self.timers.update(dict.fromkeys(over, self.next_eviction))
            return False
        self.next_eviction = self.now + 500
        self.refresh(lead=0)
        return True

    def refresh(self, lead: int) -> None:
        for who in self.gone:
            self.timers.pop(who, None)
        self.gone, self.last, self.start = [], self.now, max(self.now + lead, self.start + 1)
        self.refreshes.append((len(self.refreshes) + 2, self.start))


# ── Trees by themselves (SECURE-INV-15) ─────────────────────────────────────────────

moves = st.lists(
    st.tuples(
        st.integers(0, 12), st.integers(0, 12), st.sampled_from(["batch", "batch", "batch", "rotate", "rebuild"])
    ),
    min_size=1,
    max_size=15,
)


@pytest.mark.parametrize("kind", TREE_KINDS)
@settings(max_examples=25)
@given(moves, st.integers(0, 1000))
def test_after_each_update_all_members_agree_and_nobody_else_does(
    kind: str, plan: list[tuple[int, int, str]], seed: int
) -> None:
    random = source(seed)
    tree, count = TREES[kind](GID, random), 0
    members: dict[bytes, TreeMember] = {}
    outside: list[TreeMember] = []
    for joining, leaving, how in plan:
        joins: list[tuple[bytes, bytes]] = []
        leaves = list(members)[:: max(1, len(members) // max(1, leaving))][:leaving] if how == "batch" else []
        for _ in range(joining if how == "batch" else 0):
            count += 1
            kex, name = SealingKey.make(random), count.to_bytes(32, "big")
            joins.append((name, kex.public_key))
            members[name] = MEMBERS[kind](GID, name, kex)
        update = tree.batch(joins, leaves) if how == "batch" else tree.rotate() if how == "rotate" else tree.rebuild()
        outside += [members.pop(name) for name in leaves]
        assert {member.apply(update) for member in members.values()} == ({tree.root_kek()} if members else set())
        for former in outside:
            assert not members or _follows(former, update) != tree.root_kek()


def _follows(former: TreeMember, update: TreeUpdate) -> bytes | None:
    former.version = update.version - 1
    try:
        return former.apply(update)
    except NeedResync:
        return None


@pytest.mark.parametrize("kind", TREE_KINDS)
def test_two_hundred_and_fifty_six_members_agree(kind: str) -> None:
    random = source(9)
    tree = TREES[kind](GID, random)
    members: dict[bytes, TreeMember] = {}
    for first in range(0, 256, 64):
        joins = []
        for number in range(first, first + 64):
            kex, name = SealingKey.make(random), number.to_bytes(32, "big")
            joins.append((name, kex.public_key))
            members[name] = MEMBERS[kind](GID, name, kex)
        update = tree.batch(joins)
        assert {member.apply(update) for member in members.values()} == {tree.root_kek()}
    assert tree.height == 8
    for name in list(members)[::37]:
        del members[name]
        update = tree.leave(name)
        assert {member.apply(update) for member in members.values()} == {tree.root_kek()}
        assert len(update.entries) <= (8 if kind == "oft" else 15)
