"""Sender ids, key epochs and a manager's state: promises that no restart and no old backup breaks (SECURE-INV-8)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.security.london import CAMERA, MANAGER, NOW_MS, PLATES, source
from tests.unit.store.police import a_token, actions, declare_plates, tamper
from tidings.errors import Denied, InputError
from tidings.security import KeyManager, Persist, Reply, SealingKey, make_join, open_welcome, seal_to
from tidings.store import ManagerSnapshot, Registry, SealedEpoch
from tidings.store.keys import SENDER_ID_MAX

GID = PLATES.attr_id("plate")


@pytest.fixture(autouse=True)
def plates(registry: Registry) -> None:
    declare_plates(registry)


def new_ids(registry: Registry, count: int = 1) -> list[int]:
    return list(registry.keys.new_sender_ids(PLATES.type_id, count, by="manager", now_ms=NOW_MS))


def an_epoch(epoch: int = 1, **fields: object) -> SealedEpoch:
    start = NOW_MS + epoch * 1000
    return replace(SealedEpoch(PLATES.type_id, GID, epoch, start, None, b"sealed %d" % epoch), **fields)  # type: ignore[arg-type]


def add(registry: Registry, epoch: SealedEpoch) -> bool:
    return registry.keys.add_epoch(epoch, by="manager", now_ms=NOW_MS)


def test_sender_ids_are_never_given_twice(registry: Registry) -> None:
    assert new_ids(registry) + new_ids(registry, 3) + new_ids(registry) == [1, 2, 3, 4, 5]
    assert actions(registry) == ["declare type", *["give sender ids"] * 3]


def test_sender_ids_are_counted_for_each_type_and_only_for_known_ones(registry: Registry) -> None:
    new_ids(registry, 10)
    with pytest.raises(InputError, match="no event type with the id"):
        registry.keys.new_sender_ids(bytes(32), by="manager", now_ms=NOW_MS)
    for count in (0, -1, SENDER_ID_MAX + 1):
        with pytest.raises(InputError, match="sender ids"):
            new_ids(registry, count)


def test_when_all_sender_ids_are_used_the_type_needs_a_new_version(registry: Registry, address: str) -> None:
    new_ids(registry)
    tamper(address, f"UPDATE tidings_sender SET next_id = {SENDER_ID_MAX}")
    with pytest.raises(Denied, match="sender: all"):
        new_ids(registry, 2)
    assert new_ids(registry) == [SENDER_ID_MAX]
    with pytest.raises(Denied, match="sender: all"):
        new_ids(registry)


def test_an_epoch_ends_where_the_next_begins(registry: Registry) -> None:
    for epoch in (1, 2, 5):  # Epochs of a group need not all be kept here.
        assert add(registry, an_epoch(epoch))
    kept = registry.keys.epochs(PLATES.type_id, GID)
    assert [(one.epoch, one.start_ms - NOW_MS, one.end_ms) for one in kept] == [
        (1, 1000, NOW_MS + 2000),
        (2, 2000, NOW_MS + 5000),
        (5, 5000, None),
    ]
    assert registry.keys.epochs(PLATES.type_id, b"other") == []
    assert registry.keys.epochs(PLATES.type_id) == kept


def test_an_epoch_has_one_key_for_good(registry: Registry) -> None:
    add(registry, an_epoch(1))
    add(registry, an_epoch(2))
    assert not add(registry, an_epoch(1))
    for other in (an_epoch(2, sealed=b"another"), an_epoch(1, start_ms=NOW_MS), an_epoch(0)):
        with pytest.raises(Denied, match="epoch: group"):
            add(registry, other)
    with pytest.raises(Denied, match="not after epoch 2"):
        add(registry, an_epoch(3, start_ms=NOW_MS + 2000))
    with pytest.raises(InputError, match="sealed bytes"):
        add(registry, an_epoch(3, sealed=b""))


def test_a_key_comes_back_for_whoever_can_open_it(registry: Registry) -> None:
    at_rest, dek, context = SealingKey.make(source(1)), bytes(range(32)), b"archive" + GID + b"1"
    add(registry, an_epoch(1, sealed=seal_to(at_rest.public_key, dek, context, source(2))))
    (kept,) = registry.keys.epochs(PLATES.type_id)
    assert dek not in kept.sealed
    assert at_rest.open(kept.sealed, context) == dek


def test_a_manager_goes_on_from_its_kept_state_and_not_from_an_older_one(registry: Registry) -> None:
    master = bytes(range(32))
    manager = KeyManager(PLATES, MANAGER, source(1), NOW_MS)
    token, kex = a_token(CAMERA).to_bytes(), SealingKey.make(source(2))
    states = []
    for number in range(2):
        asked, _ = make_join(PLATES, [GID], token, CAMERA, kex, now_ms=NOW_MS, random=source(10 + number))
        first = manager.join(asked, NOW_MS)[0]
        assert isinstance(first, Persist)
        states.append(ManagerSnapshot(first.generation, manager.export_state(master)))
        registry.keys.save_manager(PLATES.type_id, states[-1], by="manager", now_ms=NOW_MS)
    kept = registry.keys.manager(PLATES.type_id)
    assert kept == states[1]
    again = KeyManager(PLATES, MANAGER, source(3), NOW_MS)
    again.import_state(kept.sealed_state, master, generation=kept.generation)
    assert again.generation == kept.generation
    with pytest.raises(Denied, match="state: an old snapshot"):
        again.import_state(states[0].sealed_state, master, generation=kept.generation)


def test_a_manager_that_runs_twice_is_noticed(registry: Registry) -> None:
    save = registry.keys.save_manager
    assert registry.keys.manager(PLATES.type_id) is None
    save(PLATES.type_id, ManagerSnapshot(1, b"sealed"), by="one", now_ms=NOW_MS)
    for generation in (1, 0):
        with pytest.raises(Denied, match="is not newer than the stored one, 1"):
            save(PLATES.type_id, ManagerSnapshot(generation, b"other"), by="another", now_ms=NOW_MS)
    save(PLATES.type_id, ManagerSnapshot(2, b"more"), by="one", now_ms=NOW_MS)
    assert registry.keys.manager(PLATES.type_id) == ManagerSnapshot(2, b"more")
    with pytest.raises(InputError, match="no event type"):
        save(bytes(32), ManagerSnapshot(1, b"sealed"), by="one", now_ms=NOW_MS)


def test_a_manager_and_a_table_job_share_one_counter_of_sender_ids(registry: Registry) -> None:
    manager = KeyManager(PLATES, MANAGER, source(1), NOW_MS, next_sender_id=lambda: new_ids(registry)[0])
    assert new_ids(registry, 2) == [1, 2]
    assert _welcomed_as(manager, 10) == 3
    registry.keys.save_manager(PLATES.type_id, ManagerSnapshot(1, b"sealed"), by="one", now_ms=NOW_MS)
    assert new_ids(registry) == [4]
    assert _welcomed_as(manager, 11) == 5


def test_a_manager_gives_no_id_twice_though_the_counter_went_back() -> None:
    counter = iter([7, 8, 2, 3])
    manager = KeyManager(PLATES, MANAGER, source(1), NOW_MS, next_sender_id=lambda: next(counter))
    given = [_welcomed_as(manager, number) for number in range(20, 24)]
    assert given == [7, 8, 9, 10]


def _welcomed_as(manager: KeyManager, seed: int) -> int:
    kex = SealingKey.make(source(seed))
    asked, nonce = make_join(PLATES, [GID], a_token(CAMERA).to_bytes(), CAMERA, kex, now_ms=NOW_MS, random=source(seed))
    reply = manager.join(asked, NOW_MS)[1]
    assert isinstance(reply, Reply)
    return open_welcome(PLATES, reply.message, nonce, CAMERA, kex).sender_id
