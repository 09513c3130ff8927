"""The ring: which key seals, which opens, and when one is dropped."""

from __future__ import annotations

import pytest

from tests.unit.security.london import NOW_MS, PLATES, a_type
from tidings.errors import Denied, PeerError
from tidings.security import Keyring
from tidings.security.keys.keyring import EPOCHS_MAX, KEY_BLOCKS_MAX, KEY_MESSAGES_MAX

GID = PLATES.group_ids[0]
G, D = PLATES.grace_ms, 60_000


def three_epochs() -> Keyring:
    keyring = Keyring(PLATES)
    for epoch in (1, 2, 3):
        keyring.add(GID, epoch, NOW_MS + epoch * 100_000, bytes([epoch]) * 32)
    return keyring


def test_each_epoch_ends_where_the_next_one_starts_in_whatever_order_they_came() -> None:
    keyring = Keyring(PLATES)
    for epoch in (2, 3, 1):
        keyring.add(GID, epoch, NOW_MS + epoch * 100_000, bytes([epoch]) * 32)
    ends = [(key.epoch, key.end_ms) for key in keyring.epochs(GID)]
    assert ends == [(1, NOW_MS + 200_000), (2, NOW_MS + 300_000), (3, None)]


def test_a_window_reaches_the_grace_beyond_both_ends() -> None:
    key = three_epochs().epochs(GID)[0]
    assert three_epochs().window(key) == (NOW_MS + 100_000 - G, NOW_MS + 200_000 + G)


def test_a_key_is_dropped_when_no_event_in_time_can_need_it() -> None:
    keyring = three_epochs()
    changes = keyring.changes
    assert keyring.retire(NOW_MS + 200_000 + G + D - 1) == 0
    assert keyring.changes == changes
    assert keyring.retire(NOW_MS + 200_000 + G + D) == 1
    assert [key.epoch for key in keyring.epochs(GID)] == [2, 3]
    assert keyring.retire(2**60) == 1  # The newest has no end.


@pytest.mark.parametrize(
    ("epoch", "start", "dek", "why"),
    [
        (2, NOW_MS + 200_000, bytes(32), "announced with another key or start"),
        (2, NOW_MS + 200_001, b"\2" * 32, "announced with another key or start"),
        (4, NOW_MS + 300_000, bytes(32), "wrong side of epoch 3"),
        (4, NOW_MS + 250_000, bytes(32), "wrong side of epoch 3"),
        (0, NOW_MS + 100_000, bytes(32), "wrong side of epoch 1"),
    ],
)
def test_a_key_that_contradicts_the_others_is_refused(epoch: int, start: int, dek: bytes, why: str) -> None:
    keyring = three_epochs()
    with pytest.raises(PeerError, match=why):
        keyring.add(GID, epoch, start, dek)
    assert [key.epoch for key in keyring.epochs(GID)] == [1, 2, 3]


def test_a_second_copy_of_a_key_changes_nothing() -> None:
    keyring = three_epochs()
    changes = keyring.changes
    keyring.add(GID, 2, NOW_MS + 200_000, b"\2" * 32)
    assert keyring.changes == changes


def test_a_key_of_a_group_the_type_has_not_is_refused() -> None:
    with pytest.raises(PeerError, match="is no key group of this type"):
        Keyring(PLATES).add(bytes(32), 1, 0, bytes(32))


def test_a_ring_has_room_for_so_many_epochs_and_a_reader_of_history_asks_for_more() -> None:
    keyring, history = Keyring(PLATES), Keyring(PLATES, epochs_max=1000)
    for epoch in range(EPOCHS_MAX):
        keyring.add(GID, epoch, epoch, bytes(32))
        history.add(GID, epoch, epoch, bytes(32))
    keyring.add(GID, EPOCHS_MAX, EPOCHS_MAX, bytes(32))
    assert [key.epoch for key in keyring.epochs(GID)] == list(range(1, EPOCHS_MAX + 1))  # The oldest is gone.
    with pytest.raises(PeerError, match="older than the 512 that are held"):
        keyring.add(GID, 0, 0, bytes(32))
    history.add(GID, EPOCHS_MAX, EPOCHS_MAX, bytes(32))


@pytest.mark.parametrize(("messages", "blocks"), [(KEY_MESSAGES_MAX, 0), (0, KEY_BLOCKS_MAX)])
def test_a_key_that_has_sealed_enough_seals_no_more(messages: int, blocks: int) -> None:
    key = three_epochs().epochs(GID)[0]
    key.count(messages // 2, blocks // 2)
    with pytest.raises(Denied, match="limit: epoch 1 .* must be refreshed"):
        key.count(messages // 2, blocks // 2)


def test_a_short_suite_gets_a_short_key() -> None:
    signed_type = a_type(suite=0x02)
    keyring = Keyring(signed_type)
    keyring.add(signed_type.group_ids[0], 1, 0, bytes(32))
    assert len(keyring.epochs(signed_type.group_ids[0])[0].content_key("pub")) == 16


def test_a_ring_shows_no_key() -> None:
    keyring = three_epochs()
    shown = repr(keyring) + repr(keyring.epochs(GID))
    assert (b"\1" * 32).hex() not in shown
    assert repr(b"\1" * 32) not in shown
