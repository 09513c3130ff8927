"""The key manager: who is let in, what it persists first, and what it never gives out twice (SECURE-INV-8)."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from tests.unit.security.london import (
    CAMERA,
    CHARGE,
    DAY_MS,
    DETECTIVE,
    MANAGER,
    NOW_MS,
    OPEN,
    OWNER,
    PLATES,
    SIGHTING,
    STRANGER,
    WHOLE,
    a_grant,
    a_type,
    ids,
    source,
)
from tidings.errors import Denied, InputError, PeerError
from tidings.security import (
    Broadcast,
    GroupMember,
    Identity,
    JoinWelcome,
    KeyManager,
    Keyring,
    KeyUpdate,
    OnlineTest,
    Opener,
    Persist,
    Reply,
    Sealer,
    SealingKey,
    SignedType,
    grant,
    make_join,
    open_welcome,
)
from tidings.security.keys.group import signed_bytes
from tidings.security.keys.manager import JoinRequest, ManagerEffect

MASTER = bytes(range(32))


def a_manager(signed_type: SignedType = PLATES, **how: Any) -> KeyManager:
    return KeyManager(signed_type, MANAGER, source(5), NOW_MS, **how)


class Broker:
    """A holder that joins, listens and reads."""

    def __init__(self, who: Identity, signed_type: SignedType = PLATES, seed: int = 1, **fields: Any) -> None:
        self.who, self.type, self.random = who, signed_type, source(seed)
        self.token = grant(OWNER, a_grant(who, type_id=signed_type.type_id, **fields), self.random)
        self.kex = SealingKey.make(self.random)
        self.keyring = Keyring(signed_type)
        self.members: dict[bytes, GroupMember] = {}
        self.nonce = b""

    def ask(self, *gids: bytes, now: int = NOW_MS) -> bytes:
        raw, self.nonce = make_join(
            self.type,
            gids or self.type.group_ids,
            self.token.to_bytes(),
            self.who,
            self.kex,
            now_ms=now,
            random=self.random,
        )
        return raw

    def hear(self, effects: list[ManagerEffect], now: int = NOW_MS) -> JoinWelcome | None:
        welcome = None
        for effect in effects:
            if isinstance(effect, Reply) and effect.holder == self.who.public_key:
                welcome = open_welcome(self.type, effect.message, self.nonce, self.who, self.kex)
                self.take(welcome, now)
            if isinstance(effect, Broadcast) and isinstance(effect.message, KeyUpdate):
                self.members[effect.message.gid].apply(effect.message, now)
        return welcome

    def take(self, welcome: JoinWelcome, now: int) -> None:
        for share in welcome.shares:
            member = GroupMember(
                share.gid, self.who.public_key, self.kex, MANAGER.public_key, self.keyring, self.type.profile.key_tree
            )
            member.welcome(share, now)
            self.members[share.gid] = member

    def join(self, manager: KeyManager, *gids: bytes, now: int = NOW_MS, **how: Any) -> JoinWelcome:
        welcome = self.hear(manager.join(self.ask(*gids, now=now), now, **how), now)
        assert welcome is not None
        return welcome


@pytest.mark.parametrize("signed_type", [PLATES, WHOLE, a_type(suite=0x10)], ids=["attribute", "event", "paper"])
def test_a_camera_and_a_detective_join_and_the_one_reads_the_other(signed_type: SignedType) -> None:
    manager = a_manager(signed_type)
    camera, detective = Broker(CAMERA, signed_type, 1), Broker(DETECTIVE, signed_type, 2)
    sender_id = camera.join(manager).sender_id
    detective.join(manager)
    frame = Sealer(signed_type, camera.keyring, sender_id, publisher_key=CAMERA.public_key).seal(SIGHTING, NOW_MS)
    assert Opener(signed_type, detective.keyring).open_(frame, NOW_MS).values == SIGHTING


def test_who_may_see_plates_gets_the_key_of_plates() -> None:
    manager = a_manager()
    charge = Broker(CHARGE, attributes=ids(PLATES, "plate"))
    charge.join(manager, PLATES.attr_id("plate"))
    assert [gid for gid in PLATES.group_ids if charge.keyring.epochs(gid)] == [PLATES.attr_id("plate")]


def test_asking_for_one_group_too_many_gives_none() -> None:
    manager = a_manager()
    charge = Broker(CHARGE, attributes=ids(PLATES, "plate"))
    with pytest.raises(Denied, match="attributes: link 0"):
        manager.join(charge.ask(), NOW_MS)
    assert all(not group.members for group in manager.groups.values())


def test_the_group_of_a_whole_event_needs_every_attribute() -> None:
    """SECURE-GAP-21."""
    some = Broker(CHARGE, WHOLE, attributes=ids(WHOLE, "plate", "location"))
    with pytest.raises(Denied, match="attributes: link 0"):
        a_manager(WHOLE).join(some.ask(), NOW_MS)
    Broker(CHARGE, WHOLE, attributes=ids(WHOLE, *SIGHTING)).join(a_manager(WHOLE))


@pytest.mark.parametrize(
    ("fields", "how", "why"),
    [
        ({"actions": frozenset({"history"})}, {}, "action: link 0 subscribe is not allowed, only history"),
        ({"not_after": NOW_MS + 1}, {"now": NOW_MS + 1}, "validity: link 0"),
        ({"not_before": NOW_MS + 1}, {}, "validity: link 0"),
        ({"type_id": bytes(32)}, {}, "type: link 0"),
        ({"online": (OnlineTest("https://acs", 1000),)}, {}, "online: link 0"),
    ],
)
def test_who_has_no_right_is_not_let_in(fields: dict[str, Any], how: dict[str, int], why: str) -> None:
    manager, broker = a_manager(), Broker(DETECTIVE)
    broker.token = grant(OWNER, a_grant(DETECTIVE, **fields), source(1))
    with pytest.raises(Denied, match=why):
        manager.join(broker.ask(**how), how.get("now", NOW_MS))
    assert manager.generation == 0


def test_a_stolen_token_is_of_no_use() -> None:
    thief = Broker(STRANGER)
    thief.token = Broker(DETECTIVE).token
    with pytest.raises(Denied, match="holder: the right is"):
        a_manager().join(thief.ask(), NOW_MS)


def test_a_revoked_token_is_refused_and_its_holder_shut_out() -> None:
    manager, detective, camera = a_manager(), Broker(DETECTIVE, seed=1), Broker(CAMERA, seed=2)
    detective.join(manager)
    camera.join(manager)
    revoked = set(detective.token.revocation_ids)
    effects = manager.revoke(revoked, NOW_MS + 10)
    assert [type(effect).__name__ for effect in effects] == ["Persist", *["Broadcast"] * 3]
    assert all(list(group.members) == [CAMERA.public_key] for group in manager.groups.values())
    camera.hear(effects, NOW_MS + 10)
    with pytest.raises(Denied, match="revoked: link 0"):
        manager.join(detective.ask(now=NOW_MS + 20), NOW_MS + 20, revoked=revoked)


def test_a_join_is_taken_once_while_fresh_and_from_its_holder() -> None:
    manager, detective = a_manager(), Broker(DETECTIVE)
    raw = detective.ask()
    manager.join(raw, NOW_MS)
    with pytest.raises(PeerError, match="this very request was made before"):
        manager.join(raw, NOW_MS)
    with pytest.raises(PeerError, match="join: asked 65001 ms ago"):
        manager.join(detective.ask(now=NOW_MS), NOW_MS + 65_001)
    stolen = msgspec.structs.replace(
        msgspec.msgpack.decode(detective.ask(), type=JoinRequest), kex_key=bytes(31) + b"\x09"
    )
    with pytest.raises(PeerError, match="signature: the join is not signed"):
        manager.join(msgspec.msgpack.encode(stolen), NOW_MS)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"type_id": bytes(32)}, "join: for another type"),
        ({"nonce": b""}, "wrong length"),
        ({"kex_key": b"short"}, "wrong length"),
    ],
)
def test_a_join_that_is_not_in_order_is_refused(change: dict[str, Any], why: str) -> None:
    asked = msgspec.msgpack.decode(Broker(DETECTIVE).ask(), type=JoinRequest)
    with pytest.raises(PeerError, match=why):
        a_manager().join(msgspec.msgpack.encode(msgspec.structs.replace(asked, **change)), NOW_MS)


def test_a_group_the_type_has_not_is_refused() -> None:
    with pytest.raises(Denied, match="group: 0101"):
        a_manager().join(Broker(DETECTIVE).ask(b"\1" * 32), NOW_MS)


def test_a_join_that_asks_for_nothing_gets_no_sender_id() -> None:
    asked = msgspec.msgpack.decode(Broker(DETECTIVE).ask(), type=JoinRequest)
    bare = msgspec.structs.replace(asked, gids=(), signature=b"")
    signed = msgspec.structs.replace(bare, signature=DETECTIVE.sign(signed_bytes(bare)))
    with pytest.raises(Denied, match="group: a join asks for one group at least"):
        a_manager().join(msgspec.msgpack.encode(signed), NOW_MS)


def test_in_a_type_without_groups_a_join_gives_a_sender_id_to_who_may_publish() -> None:
    assert Broker(CAMERA, OPEN).join(a_manager(OPEN)).sender_id == 1
    thief = Broker(STRANGER, OPEN)
    thief.token = Broker(CAMERA, OPEN).token
    with pytest.raises(Denied, match="holder"):
        a_manager(OPEN).join(thief.ask(), NOW_MS)


def test_requests_that_are_not_covered_fill_no_memory() -> None:
    manager, thief = a_manager(), Broker(STRANGER)
    thief.token = Broker(DETECTIVE).token
    with pytest.raises(Denied, match="holder"):
        manager.join(thief.ask(), NOW_MS)
    assert manager.requests_remembered == 0


def test_no_repr_shows_a_key() -> None:
    manager = a_manager()
    welcome = Broker(CAMERA).join(manager)
    state = [group.to_state() for group in manager.groups.values()]
    shown = repr((welcome, state, manager.groups, manager.history, welcome.shares[0]))
    for group in manager.groups.values():
        assert repr(group.to_state().dek)[2:-1] not in shown
        assert group.to_state().dek.hex() not in shown
    assert "GroupKey(…)" in shown
    assert "GroupState(…)" in shown


def test_a_welcome_is_for_its_request_only() -> None:
    manager, detective = a_manager(), Broker(DETECTIVE)
    reply = next(e for e in manager.join(detective.ask(), NOW_MS) if isinstance(e, Reply))
    with pytest.raises(PeerError, match="seal"):
        open_welcome(PLATES, reply.message, bytes(16), DETECTIVE, detective.kex)
    with pytest.raises(PeerError, match="the answer to another request"):
        open_welcome(PLATES, reply.message, detective.nonce, STRANGER, detective.kex)
    elsewhere = a_type()
    object.__setattr__(elsewhere, "key_manager", STRANGER.public_key)
    with pytest.raises(PeerError, match="signature: the welcome"):
        open_welcome(elsewhere, reply.message, detective.nonce, DETECTIVE, detective.kex)


def test_only_the_appointed_manager_manages() -> None:
    with pytest.raises(Denied, match="manager: .* appoints"):
        KeyManager(PLATES, STRANGER, source(1), NOW_MS)


def test_history_needs_the_right_to_it() -> None:
    manager, gid = a_manager(), PLATES.group_ids[0]
    manager.groups[gid].refresh(NOW_MS + 1000, 0)
    reader = grant(OWNER, a_grant(CHARGE, actions=frozenset({"history"})), source(9)).to_bytes()
    keys = manager.history(reader, gid, now_ms=NOW_MS, proven_key=CHARGE.public_key)
    assert [key.epoch for key in keys] == [1, 2]
    with pytest.raises(Denied, match="action: link 0 history"):
        manager.history(Broker(CHARGE).token.to_bytes(), gid, now_ms=NOW_MS, proven_key=CHARGE.public_key)
    with pytest.raises(Denied, match="holder"):
        manager.history(reader, gid, now_ms=NOW_MS, proven_key=STRANGER.public_key)


# ── What is kept ─────────────────────────────────────────────────────────────


def test_every_answer_is_preceded_by_the_order_to_persist() -> None:
    manager, detective = a_manager(), Broker(DETECTIVE)
    assert manager.join(detective.ask(), NOW_MS)[0] == Persist(1)
    assert manager.leave(DETECTIVE.public_key, NOW_MS + 1)[0] == Persist(2)
    assert manager.tick(NOW_MS + 2) == []
    assert all(isinstance(effect, Broadcast) for effect in manager.beacons(NOW_MS))


@pytest.mark.parametrize("signed_type", [PLATES, WHOLE, a_type(suite=0x10)], ids=["attribute", "event", "paper"])
def test_a_manager_restarted_from_its_newest_state_goes_on(signed_type: SignedType) -> None:
    manager, camera, detective = (
        a_manager(signed_type),
        Broker(CAMERA, signed_type, 1),
        Broker(DETECTIVE, signed_type, 2),
    )
    camera.join(manager)
    kept = manager.export_state(MASTER)
    again = a_manager(signed_type)
    again.import_state(kept, MASTER, generation=manager.generation)
    assert detective.join(again).sender_id == 2
    for broker in (camera, detective):
        broker.hear(again.tick(NOW_MS + DAY_MS - 3000) or again.tick(NOW_MS + DAY_MS - 2999), NOW_MS)
    assert [g.epoch for g in again.groups.values()] == [g.epoch for g in manager.groups.values()]


def test_a_manager_restarted_from_an_old_state_is_refused() -> None:
    manager = a_manager()
    Broker(CAMERA, seed=1).join(manager)
    old = manager.export_state(MASTER)
    Broker(DETECTIVE, seed=2).join(manager)
    with pytest.raises(Denied, match="state: an old snapshot, of generation 1; 2 was reached before"):
        a_manager().import_state(old, MASTER, generation=manager.generation)


def test_keys_at_rest_are_sealed() -> None:
    manager = a_manager()
    Broker(CAMERA).join(manager)
    kept = manager.export_state(MASTER)
    for group in manager.groups.values():
        assert group.to_state().dek not in kept
    with pytest.raises(Denied, match="state: the master key does not open it"):
        a_manager().import_state(kept, bytes(32), generation=0)
    for at in range(0, len(kept), 37):
        broken = kept[:at] + bytes([kept[at] ^ 1]) + kept[at + 1 :]
        with pytest.raises((Denied, InputError), match="state"):
            a_manager().import_state(broken, MASTER, generation=0)
    with pytest.raises(InputError, match="master key of at least 32 bytes"):
        manager.export_state(b"short")


def test_two_exports_of_one_state_share_no_key_and_nonce() -> None:
    manager = a_manager()
    assert manager.export_state(MASTER)[80:] != manager.export_state(MASTER)[80:]


class Disk:
    """What survives a crash: the newest state written, and its generation."""

    def __init__(self) -> None:
        self.state: bytes | None = None
        self.generation = 0


def run_effects(manager: KeyManager, effects: list[ManagerEffect], disk: Disk, crash_after: int) -> list[ManagerEffect]:
    """Carries effects out in order, as told, until the machine dies."""
    done: list[ManagerEffect] = []
    for effect in effects[:crash_after]:
        if isinstance(effect, Persist):
            disk.state, disk.generation = manager.export_state(MASTER), effect.generation
        done.append(effect)
    return done


@pytest.mark.parametrize("seed", range(5))
def test_no_sender_id_gets_out_twice_however_often_the_manager_crashes(seed: int) -> None:
    """SECURE-INV-8: crashes before, between and after persisting and answering."""
    rng, disk = random.Random(seed), Disk()
    given_out: list[int] = []
    manager = a_manager()
    for step in range(40):
        broker = Broker(CAMERA, seed=seed * 1000 + step)
        effects = manager.join(broker.ask(), NOW_MS)
        crash_after = rng.choice([0, 1, 2, len(effects)])
        sent = [e.message for e in run_effects(manager, effects, disk, crash_after) if isinstance(e, Reply)]
        given_out += [open_welcome(PLATES, message, broker.nonce, CAMERA, broker.kex).sender_id for message in sent]
        if crash_after < len(effects):
            manager = KeyManager(PLATES, MANAGER, source(seed * 77 + step), NOW_MS)
            if disk.state is not None:
                manager.import_state(disk.state, MASTER, generation=disk.generation)
    assert len(given_out) > 10
    assert len(set(given_out)) == len(given_out)


def test_sender_ids_run_out_rather_than_come_again() -> None:
    manager = a_manager(next_sender_id=lambda: 2**32)
    with pytest.raises(Denied, match="all 4294967295 sender ids"):
        manager.join(Broker(CAMERA).ask(), NOW_MS)
