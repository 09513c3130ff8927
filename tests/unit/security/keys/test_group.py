"""Key groups: when a key changes, and when it need not (SECURE-INV-14)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.security.london import DAY_MS, MANAGER, PLATES, STRANGER, source
from tidings.errors import Denied, PeerError
from tidings.security import EpochBeacon, GroupMember, GroupPolicy, KeyGroup, Keyring, KeyUpdate, NeedResync, SealingKey
from tidings.security.keys.group import MEMBERS_OF_ONE_MAX, MemberStatus, signed_message

GID = PLATES.group_ids[0]
START = 1_000_000_000_000
HOUR_MS = DAY_MS // 24
ALICE, BOB, CAROL = (bytes([letter]) * 32 for letter in b"abc")


def a_policy(**settings: Any) -> GroupPolicy:
    given: dict[str, Any] = {"period_ms": DAY_MS, "grace_ms": 5_000, "max_lazy_ms": 12 * HOUR_MS}
    return GroupPolicy(**given | settings)


class Party:
    """A group and those who hear its updates."""

    def __init__(self, **settings: Any) -> None:
        self.random = source(3)
        self.group = KeyGroup(GID, a_policy(**settings), self.random, START)
        self.keyrings: dict[bytes, Keyring] = {}
        self.members: dict[bytes, GroupMember] = {}

    def join(self, holder: bytes, now: int, valid: tuple[int, int], **how: Any) -> list[KeyUpdate]:
        kex = SealingKey.make(self.random)
        updates = self.group.join(holder, kex.public_key, valid_from=valid[0], valid_to=valid[1], now_ms=now, **how)
        self.keyrings[holder] = Keyring(PLATES)
        member = GroupMember(GID, holder, kex, MANAGER.public_key, self.keyrings[holder], self.group.policy.tree)
        member.welcome(self.group.key_for(holder), now)
        self.members[holder] = member
        self.tell(updates, now)
        return updates

    def tell(self, updates: list[KeyUpdate], now: int) -> None:
        for update in updates:
            for holder, member in self.members.items():
                if holder in self.group.members:
                    member.apply(signed(update), now)

    def epochs(self, holder: bytes) -> list[int]:
        return [key.epoch for key in self.keyrings[holder].epochs(GID)]


def signed(message: KeyUpdate) -> KeyUpdate:
    made = signed_message(message, MANAGER)
    assert isinstance(made, KeyUpdate)
    return made


WHOLE_DAY = (START, START + DAY_MS)


# ── Joining ──────────────────────────────────────────────────────────────────


def test_who_was_entitled_when_the_key_began_joins_without_a_refresh() -> None:
    party = Party()
    assert party.join(ALICE, START + HOUR_MS, WHOLE_DAY) == []
    assert party.group.members[ALICE].status is MemberStatus.PENDING_LEAF
    assert party.epochs(ALICE) == [1]


def test_who_was_not_entitled_then_makes_the_key_change() -> None:
    party = Party()
    (update,) = party.join(BOB, START + 2 * HOUR_MS, (START + HOUR_MS, START + DAY_MS))
    assert (update.epoch, update.start_ms) == (2, START + 2 * HOUR_MS + 2_000)
    assert party.epochs(BOB) == [2]


def test_a_waiting_member_gets_its_leaf_at_the_next_refresh() -> None:
    party = Party()
    party.join(ALICE, START, WHOLE_DAY)
    party.join(BOB, START + HOUR_MS, (START + HOUR_MS - 1, START + DAY_MS))
    assert party.group.members[ALICE].status is MemberStatus.ACTIVE
    assert party.epochs(ALICE) == [1, 2]
    assert len(party.group.tree) == 2


@pytest.mark.parametrize(("since", "refreshes"), [(None, 1), (START + 1, 1), (START, 0)])
def test_a_right_with_an_online_test_counts_from_its_first_recorded_yes(since: int | None, refreshes: int) -> None:
    party = Party()
    assert len(party.join(ALICE, START + HOUR_MS, WHOLE_DAY, online=True, online_since=since)) == refreshes


@pytest.mark.parametrize(
    ("valid", "why"),
    [
        ((START + 11, START + DAY_MS), "validity: the right is not valid before .*T.*Z, and it is"),
        ((START - DAY_MS, START + 10), "validity: the right expired at .*T.*Z, and it is"),
        ((START, START + 2_010), "before a new key could start"),
    ],
)
def test_a_right_that_does_not_hold_now_and_for_the_next_key_is_refused(valid: tuple[int, int], why: str) -> None:
    party = Party()
    with pytest.raises(Denied, match=why):
        party.join(ALICE, START + 10, valid)
    assert party.group.members == {}


def test_a_member_that_comes_back_gets_the_keys_since_it_joined_and_none_from_before() -> None:
    party = Party()
    party.join(ALICE, START, WHOLE_DAY)
    party.join(BOB, START + HOUR_MS, (START + HOUR_MS, START + DAY_MS))
    party.tell([party.group.refresh(START + 2 * HOUR_MS, 0)], START + 2 * HOUR_MS)
    party.join(ALICE, START + 3 * HOUR_MS, WHOLE_DAY)
    party.join(BOB, START + 3 * HOUR_MS, (START + HOUR_MS, START + DAY_MS))
    assert (party.epochs(ALICE), party.epochs(BOB)) == ([1, 2, 3], [2, 3])
    party.group.revoke([BOB], START + 4 * HOUR_MS)
    party.join(BOB, START + 5 * HOUR_MS, (START + HOUR_MS, START + DAY_MS))
    assert party.epochs(BOB) == [4]  # It was not a member all the time.


def test_a_group_restored_from_a_backup_leaves_out_the_epochs_it_may_have_used_since() -> None:
    party = Party()
    party.join(ALICE, START, WHOLE_DAY)
    restored = KeyGroup.from_state(party.group.to_state(), party.group.policy, source(4))
    lost = party.group.refresh(START + HOUR_MS, 0)
    restored.skip_ahead(START + 2 * HOUR_MS, 100)
    assert restored.epoch == lost.epoch + 100
    assert restored.tree.version == lost.tree.version + 100
    party.tell([lost], START + HOUR_MS)
    party.group = restored
    party.members[ALICE].welcome(restored.key_for(ALICE), START + 2 * HOUR_MS)
    assert party.epochs(ALICE) == [1, lost.epoch, restored.epoch]


# ── Leaving ──────────────────────────────────────────────────────────────────


def test_who_leaves_while_entitled_is_only_marked() -> None:
    party = Party()
    party.join(ALICE, START, WHOLE_DAY)
    assert party.group.leave(ALICE, START + HOUR_MS) is None
    assert party.group.members[ALICE].status is MemberStatus.DEPARTED
    assert party.group.next_tick_ms == START + 13 * HOUR_MS  # max_lazy comes before the right's end.


def test_who_comes_back_in_time_is_taken_back_without_a_refresh() -> None:
    party = Party()
    party.join(ALICE, START, WHOLE_DAY)
    party.group.leave(ALICE, START + HOUR_MS)
    assert party.join(ALICE, START + 2 * HOUR_MS, WHOLE_DAY) == []
    assert party.group.members[ALICE].status is MemberStatus.PENDING_LEAF
    assert party.group.tick(START + 13 * HOUR_MS) is None
    assert party.group.refreshes == 0


def test_who_comes_back_after_its_right_has_ended_is_a_newcomer() -> None:
    """The manager's timer may be late; the gap must not be forgotten."""
    party = Party()
    party.join(ALICE, START, (START, START + HOUR_MS))
    updates = party.join(ALICE, START + 3 * HOUR_MS, (START + 2 * HOUR_MS, START + DAY_MS))
    assert [update.epoch for update in updates] == [2]
    assert party.epochs(ALICE) == [2]


def test_a_departed_member_never_gets_the_next_key() -> None:
    party = Party()
    party.join(ALICE, START, WHOLE_DAY)
    party.join(BOB, START, WHOLE_DAY)
    party.group.leave(ALICE, START + HOUR_MS)
    party.join(CAROL, START + 2 * HOUR_MS, (START + HOUR_MS, START + DAY_MS))
    assert ALICE not in party.group.members
    assert party.epochs(ALICE) == [1]
    assert party.epochs(BOB) == [1, 2]


@pytest.mark.parametrize("why", ["online", "revoked", "expired"])
def test_who_must_not_wait_is_shut_out_at_once(why: str) -> None:
    party = Party()
    party.join(ALICE, START, (START, START + HOUR_MS), online=why == "online", online_since=START)
    party.join(BOB, START, WHOLE_DAY)
    now = START + HOUR_MS if why == "expired" else START + 10
    update = party.group.revoke([ALICE], now) if why == "revoked" else party.group.leave(ALICE, now)
    assert update is not None
    assert update.start_ms == now  # No lead: every moment counts.
    assert ALICE not in party.group.members


def test_the_end_of_a_right_shuts_out_even_those_who_never_left() -> None:
    """SECURE-GAP-16."""
    party = Party()
    party.join(ALICE, START, (START, START + HOUR_MS))
    party.join(BOB, START, (START, START + HOUR_MS))
    party.join(CAROL, START, WHOLE_DAY)
    assert party.group.next_tick_ms == START + HOUR_MS
    update = party.group.tick(START + HOUR_MS)
    assert update is not None
    assert party.group.refreshes == 1  # One for both.
    assert list(party.group.members) == [CAROL]


def test_who_is_not_a_member_cannot_leave() -> None:
    with pytest.raises(Denied, match="member: .* is not in group"):
        Party().group.leave(ALICE, START)


# ── Refreshing ───────────────────────────────────────────────────────────────


def test_the_key_changes_when_its_period_is_over() -> None:
    party = Party()
    party.join(ALICE, START, (START, START + 3 * DAY_MS))
    assert party.group.tick(START + DAY_MS - 1) is None
    update = party.group.tick(START + DAY_MS)
    assert update is not None
    assert update.start_ms == START + DAY_MS + 2_000
    assert party.group.tick(START + DAY_MS + 1) is None


def test_epochs_start_in_order_whatever_the_clock_does() -> None:
    party = Party()
    party.join(ALICE, START, (START, START + 9 * DAY_MS))
    starts = []
    for now in (START + 10_000, START + 10_500, START + 9_000, START + 8_000):
        party.join(BOB, now, (START, START + DAY_MS))
        update = party.group.revoke([BOB], now)
        assert update is not None
        starts.append(update.start_ms)
    assert starts == sorted(set(starts))


def test_a_clock_that_steps_back_beyond_the_grace_stops_the_group() -> None:
    party = Party()
    party.group.tick(START + HOUR_MS)
    with pytest.raises(Denied, match="clock: 6000 ms behind"):
        party.group.tick(START + HOUR_MS - 6_000)


def test_figure_five_has_a_refresh_only_where_a_credential_ends_or_the_timer_ticks() -> None:
    """Fig. 5: two brokers with credentials for whole days come and go inside them; the classic way refreshes at each."""
    counts = {}
    for lazy in (True, False):
        party = Party(lazy=lazy)
        party.join(ALICE, START + 2 * HOUR_MS, WHOLE_DAY)
        party.join(BOB, START + 4 * HOUR_MS, WHOLE_DAY)
        party.group.leave(ALICE, START + 8 * HOUR_MS)
        party.group.leave(BOB, START + 10 * HOUR_MS)
        before = party.group.refreshes
        party.group.tick(START + DAY_MS)
        counts[lazy] = before, party.group.refreshes - before
    assert counts == {True: (0, 1), False: (4, 0)}


def test_a_lazy_member_that_departed_is_shut_out_when_max_lazy_is_over() -> None:
    party = Party(max_lazy_ms=HOUR_MS)
    party.join(ALICE, START, (START, START + 9 * DAY_MS))
    party.group.leave(ALICE, START)
    assert party.group.tick(START + HOUR_MS - 1) is None
    assert party.group.tick(START + HOUR_MS) is not None


def test_the_lead_stays_within_the_grace() -> None:
    with pytest.raises(AssertionError):
        a_policy(lead_ms=5_001)


# ── What members accept ──────────────────────────────────────────────────────


def test_an_update_that_the_manager_did_not_sign_is_refused() -> None:
    party = Party()
    party.join(ALICE, START, WHOLE_DAY)
    update = party.group.refresh(START + 1, 0)
    forged = signed_message(update, STRANGER)
    assert isinstance(forged, KeyUpdate)
    for message in (update, forged):
        with pytest.raises(PeerError, match="signature: a KeyUpdate is not signed by"):
            party.members[ALICE].apply(message, START)
    party.members[ALICE].apply(signed(update), START)
    party.members[ALICE].apply(signed(update), START)  # A second copy does nothing.
    assert party.epochs(ALICE) == [1, 2]


def test_a_member_that_missed_an_update_is_told_so_by_the_next_one_and_by_a_beacon() -> None:
    party = Party()
    party.join(ALICE, START, WHOLE_DAY)
    party.join(BOB, START, (START, START + HOUR_MS))
    first = party.group.refresh(START + 1, 0)
    party.members[ALICE].apply(signed(first), START)
    party.group.tick(START + HOUR_MS)
    third = party.group.refresh(START + HOUR_MS + 1, 0)
    with pytest.raises(NeedResync, match="tree"):
        party.members[ALICE].apply(signed(third), START)
    beacon = signed_message(party.group.beacon(START + HOUR_MS), MANAGER)
    assert isinstance(beacon, EpochBeacon)
    with pytest.raises(NeedResync, match="beacon: epoch 4 is announced, 2 is held"):
        party.members[ALICE].receive_beacon(beacon, START + HOUR_MS)
    party.members[ALICE].welcome(party.group.key_for(ALICE), START + HOUR_MS)
    party.members[ALICE].receive_beacon(beacon, START + HOUR_MS)
    assert party.epochs(ALICE) == [1, 2, 3, 4]


def test_a_beacon_of_another_time_or_from_the_past_is_refused() -> None:
    party = Party()
    party.join(ALICE, START, WHOLE_DAY)
    old = signed_message(party.group.beacon(START), MANAGER)
    party.members[ALICE].apply(signed(party.group.refresh(START + 1, 0)), START)
    assert isinstance(old, EpochBeacon)
    with pytest.raises(PeerError, match="not of this time"):
        party.members[ALICE].receive_beacon(old, START + 5_001)
    with pytest.raises(PeerError, match="the manager went back from epoch 2 to 1"):
        party.members[ALICE].receive_beacon(old, START)


def test_a_beacon_that_was_held_up_vouches_from_when_it_was_sent() -> None:
    party = Party()
    party.join(ALICE, START, WHOLE_DAY)
    keyring = Keyring(PLATES, beacons=True)
    share = party.group.key_for(ALICE)
    keyring.add(share.gid, share.epoch, share.start_ms, share.dek)
    member = GroupMember(share.gid, ALICE, SealingKey.make(party.random), MANAGER.public_key, keyring, "lkh")
    beacon = signed_message(party.group.beacon(START), MANAGER)
    assert isinstance(beacon, EpochBeacon)
    member.receive_beacon(beacon, START + 4_000)
    keyring.for_sealing(share.gid, START + 5_000, START + 5_000)
    with pytest.raises(Denied, match="beacon"):
        keyring.for_sealing(share.gid, START + 5_001, START + 5_001)


# ── History ──────────────────────────────────────────────────────────────────


def test_history_gives_the_keys_of_epochs_that_overlap_a_right() -> None:
    party = Party()
    for hour in (1, 2, 3):
        party.group.refresh(START + hour * HOUR_MS, 0)
    given = party.group.history(START + HOUR_MS + 5, START + 2 * HOUR_MS + 5)
    assert [key.epoch for key in given] == [2, 3]
    assert [key.epoch for key in party.group.history(0, 2**62)] == [1, 2, 3, 4]
    assert party.group.history(0, START) == ()


# ── Keys that change too often ───────────────────────────────────────────────


def test_rights_that_end_one_after_the_other_do_not_push_out_the_keys_of_events_on_their_way() -> None:
    party = Party()
    party.join(ALICE, START, WHOLE_DAY)
    ends = [START + 10_000 + 10 * n for n in range(1_000)]
    for n, end in enumerate(ends):
        party.group.join(n.to_bytes(32, "big"), ALICE, valid_from=START, valid_to=end, now_ms=START)
    used = party.group.epoch
    while (now := party.group.next_tick_ms) < ends[-1] + 1_000:
        update = party.group.tick(now)
        party.tell([update] if update else [], now)
    assert used in party.epochs(ALICE)
    assert party.group.refreshes <= 3 + (ends[-1] - ends[0]) // 500
    assert list(party.group.members) == [ALICE]


def test_who_is_revoked_right_after_another_cannot_read_longer_than_the_grace() -> None:
    party = Party()
    for holder in (ALICE, BOB, CAROL):
        party.join(holder, START, WHOLE_DAY)
    assert party.group.revoke([BOB], START + HOUR_MS) is not None
    assert party.group.revoke([CAROL], START + HOUR_MS + 1) is None
    due = party.group.next_tick_ms
    assert due <= START + HOUR_MS + 5_000
    assert party.group.tick(due) is not None
    assert list(party.group.members) == [ALICE]


def test_one_grantee_has_only_so_many_delegates_in_a_group() -> None:
    group = KeyGroup(GID, a_policy(), source(3), START)
    for n in range(MEMBERS_OF_ONE_MAX):
        holder = n.to_bytes(32, "big")
        group.check_room(holder, BOB)
        group.join(holder, ALICE, valid_from=START, valid_to=START + DAY_MS, now_ms=START, grantee=BOB)
    with pytest.raises(Denied, match="group: more than 1024 members by rights of"):
        group.check_room(CAROL, BOB)
    group.check_room(bytes(32), BOB)  # A member asks again.
    group.check_room(CAROL, ALICE)
    group = KeyGroup.from_state(group.to_state(), group.policy, source(4))
    with pytest.raises(Denied, match="group"):
        group.check_room(CAROL, BOB)
    group.revoke([bytes(32)], START + HOUR_MS)
    group.check_room(CAROL, BOB)
