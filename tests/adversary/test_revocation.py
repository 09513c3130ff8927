"""Revocation arrives: every broker hears of it within seconds, and nothing is sent under a revoked right after that."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tests.live.together import Together
from tidings.errors import Denied, PeerError
from tidings.net import DevNetwork, ReadAccess, Subscription, read_client
from tidings.net.clock import now_ms
from tidings.net.ids import read_identity, read_token
from tidings.net.transport.frames import SignedRevocations
from tidings.security import (
    BiscuitCapability,
    Grant,
    Identity,
    RevocationTable,
    grant,
    sign_revocation,
    verify_revocation,
)
from tidings.store import Registry

WITHIN_S = 30.0  # A deadline for a busy machine; it takes a second.
THREE = DevNetwork(first_port=0, readers={"ccs": ReadAccess(), "yard": ReadAccess()}, overlay="flooding", registry=True)
NOW_MS = 1_000_000
OWNER, HOLDER, THIEF = (Identity.make(secrets.token_bytes) for _ in range(3))


def right_to(holder: Identity, *, delegate: bool = True) -> BiscuitCapability:
    given = Grant(
        type_id=bytes(32),
        actions=frozenset({"subscribe"}),
        holder=holder.public_key,
        not_before=0,
        not_after=2 * NOW_MS,
        delegate=delegate,
        max_depth=int(delegate),
    )
    return grant(OWNER, given, secrets.token_bytes)


# ── Records ──


def test_only_who_issued_or_holds_a_link_can_revoke_it() -> None:
    token = right_to(HOLDER)
    assert verify_revocation(sign_revocation(token, 0, OWNER, now_ms=NOW_MS).to_bytes()).id == token.revocation_ids[0]
    with pytest.raises(Denied, match="issuer"):
        sign_revocation(token, 0, THIEF, now_ms=NOW_MS)
    genuine = sign_revocation(token, 0, OWNER, now_ms=NOW_MS)
    forged = msgspec.structs.replace(genuine, by=THIEF.public_key)
    forged = msgspec.structs.replace(forged, signature=THIEF.sign(forged.signed_bytes()))
    with pytest.raises(PeerError, match="issuer"):
        verify_revocation(forged.to_bytes())
    mine = right_to(THIEF)
    other = sign_revocation(mine, 0, THIEF, now_ms=NOW_MS)
    renamed = msgspec.structs.replace(other, id=token.revocation_ids[0])
    renamed = msgspec.structs.replace(renamed, signature=THIEF.sign(renamed.signed_bytes()))
    with pytest.raises(PeerError, match="another link"):
        verify_revocation(renamed.to_bytes())


def test_delegates_that_one_holder_mints_and_revokes_leave_room_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidings.security.rights.revocation.SHARE_MAX", 8)
    table, held, owners = RevocationTable(), right_to(HOLDER), {OWNER.public_key}
    for number in range(20):
        to = Grant(
            type_id=bytes(32),
            actions=frozenset({"subscribe"}),
            holder=number.to_bytes(32, "big"),
            not_before=0,
            not_after=2 * NOW_MS,
        )
        delegate = held.narrow(to, HOLDER)
        table.take(sign_revocation(delegate, 1, HOLDER, now_ms=NOW_MS).to_bytes(), owners, NOW_MS)
    assert len(table) == 8
    owners_own = sign_revocation(held, 0, OWNER, now_ms=NOW_MS).to_bytes()
    assert table.take(owners_own, owners, NOW_MS) is not None
    table.drop_ended(3 * NOW_MS)
    assert len(table) == 0
    assert table.summary() == RevocationTable().summary()


def test_an_owner_that_gives_rights_to_made_up_holders_fills_its_own_share_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each holder revokes its own right. Every one of them has a share, and there are as many as the owner likes."""
    monkeypatch.setattr("tidings.security.rights.revocation.HOLDERS_MAX", 8)
    table, owners = RevocationTable(), {OWNER.public_key, THIEF.public_key}
    for _ in range(20):
        holder = Identity.make(secrets.token_bytes)
        theirs = grant(
            THIEF,
            Grant(bytes(32), frozenset({"subscribe"}), holder.public_key, not_before=0, not_after=2 * NOW_MS),
            secrets.token_bytes,
        )
        table.take(sign_revocation(theirs, 0, holder, now_ms=NOW_MS).to_bytes(), owners, NOW_MS)
    assert len(table) == 8
    for token, by in ((right_to(HOLDER), HOLDER), (right_to(HOLDER), OWNER)):
        assert table.take(sign_revocation(token, 0, by, now_ms=NOW_MS).to_bytes(), owners, NOW_MS) is not None


def test_rights_that_end_at_once_do_not_make_room_for_others_of_their_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was heard is kept on disk, so it is counted for a day, however short the right was."""
    monkeypatch.setattr("tidings.security.rights.revocation.SHARE_MAX", 4)
    table, owners, taken, day_ms, now = RevocationTable(), {OWNER.public_key}, 0, 24 * 3_600_000, NOW_MS
    for second in range(20):
        now = NOW_MS + 1000 * second
        short = Grant(bytes(32), frozenset({"subscribe"}), HOLDER.public_key, not_before=0, not_after=now + 500)
        raw = sign_revocation(grant(OWNER, short, secrets.token_bytes), 0, HOLDER, now_ms=now).to_bytes()
        taken += table.take(raw, owners, now) is not None
        table.drop_ended(now + 600)
    assert (taken, len(table)) == (4, 0)
    table.drop_ended(now + day_ms)
    later = Grant(bytes(32), frozenset({"subscribe"}), HOLDER.public_key, not_before=0, not_after=now + 2 * day_ms)
    raw = sign_revocation(grant(OWNER, later, secrets.token_bytes), 0, HOLDER, now_ms=now).to_bytes()
    assert table.take(raw, owners, now + day_ms) is not None


def test_few_large_revocations_fill_a_share_as_many_small_ones_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidings.security.rights.revocation.ABOUT_BYTES", 1)
    table, owners = RevocationTable(), {OWNER.public_key}
    for _ in range(20):
        table.take(sign_revocation(right_to(HOLDER), 0, HOLDER, now_ms=NOW_MS).to_bytes(), owners, NOW_MS)
    assert 0 < len(table) < 8
    table.drop_ended(3 * NOW_MS)
    assert len(table) == 0


def test_two_tables_that_differ_send_only_the_parts_that_differ() -> None:
    one, other, owners = RevocationTable(), RevocationTable(), {OWNER.public_key}
    records = [sign_revocation(right_to(HOLDER), 0, OWNER, now_ms=NOW_MS).to_bytes() for _ in range(5)]
    for raw in records:
        one.take(raw, owners, NOW_MS)
    for raw in records[1:]:
        other.take(raw, owners, NOW_MS)
    assert records[0] in [each.raw for each in one.lacking(other.summary())]
    for lacking in one.lacking(other.summary()):
        other.take(lacking.raw, owners, NOW_MS)
    assert one.lacking(other.summary()) == []


# ── Live ──


def revoke(network: Together, client: str, reason: str) -> str:
    """What `tidings grant revoke` does at the owner: in its registry, which no other organisation reads."""
    config, folder = read_client(network.laid.clients[client]), network.laid.folder
    token = BiscuitCapability.from_bytes(read_token(config.tokens[0]), network.laid.signed.owner_key)
    owner = read_identity(folder / "police" / "authority.pem")
    with Registry.open(folder / "police" / "tidings.db", now_ms=now_ms()) as registry:
        return registry.grants.revoke(token, by_key=owner.public_key, now_ms=now_ms(), reason=reason, signer=owner)


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not true():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.02)


async def to_its_end(stream: Subscription) -> None:
    async for _ in stream:
        pass


@pytest.mark.live
def test_a_revocation_ends_a_clients_subscription_in_another_organisation(tmp_path: Path) -> None:
    asyncio.run(_across(tmp_path))


async def _across(tmp_path: Path) -> None:
    async with Together(tmp_path, THREE) as network:
        camera, desk = await network.client("police/camera"), await network.client("ccs/desk")
        stream = await desk.subscribe("Numberplate", "TRUE").ready()
        durable = await desk.subscribe("Numberplate", "TRUE", durable="plates").ready()
        await durable.close()
        await camera.publish("Numberplate", {"plate": "AB12CDE"})
        ccs = network.brokers["ccs-1"]
        await until(lambda: ccs.queues.waiting() == 1)
        await network.stop("yard-1")
        id = revoke(network, "ccs/desk", "contract ended")
        await until(lambda: id in ccs.node.revocations.revoked)
        heard = {row["broker"]: row["heard"] for row in await camera.ask("heard", revocation=id)}
        assert heard["ccs/ccs-1"]
        assert not all(heard.values())  # The yard's broker is down.
        with pytest.raises(Denied, match="revoked"):
            await asyncio.wait_for(to_its_end(stream), WITHIN_S)
        with pytest.raises(Denied, match="revoked"):  # What was queued is not handed over.
            await desk.subscribe("Numberplate", "TRUE", durable="plates").ready()
        yard = await network.start("yard-1")  # Who was away hears of it on its return, and keeps it.
        await until(lambda: id in yard.node.revocations.revoked)
        with Registry.open(network.laid.folder / "ccs" / "tidings.db", now_ms=now_ms()) as registry:
            await until(lambda: bool(registry.grants.revoked([id])))
        await network.stop("ccs-1")
        ccs = await network.start("ccs-1")
        assert id in ccs.node.revocations.revoked


@pytest.mark.live
def test_a_member_that_forges_a_revocation_is_cut_off_and_ends_nothing(tmp_path: Path) -> None:
    asyncio.run(_forged(tmp_path))


async def _forged(tmp_path: Path) -> None:
    async with Together(tmp_path, THREE) as network:
        desk = await network.client("ccs/desk")
        stream = await desk.subscribe("Numberplate", "TRUE").ready()
        token = read_token(read_client(network.laid.clients["ccs/desk"]).tokens[0])
        right = BiscuitCapability.from_bytes(token, network.laid.signed.owner_key)
        owner = read_identity(network.laid.folder / "police" / "authority.pem")
        yard, ccs = network.brokers["yard-1"], network.brokers["ccs-1"]
        genuine = sign_revocation(right, 0, owner, now_ms=now_ms())
        forged = msgspec.structs.replace(genuine, by=yard.identity.public_key)
        forged = msgspec.structs.replace(forged, signature=yard.identity.sign(forged.signed_bytes()))
        refused = ccs.counts["refused"]
        await until(lambda: yard.links.ready(ccs.me.id) is not None)  # Joined, and not linked with all others yet.
        link = yard.links.ready(ccs.me.id)
        assert link is not None
        link.send(SignedRevocations((forged.to_bytes(),)))
        await until(lambda: ccs.counts["refused"] > refused)
        assert not ccs.node.revocations.revoked
        camera = await network.client("police/camera")
        await camera.publish("Numberplate", {"plate": "AB12CDE"})
        async with asyncio.timeout(WITHIN_S):
            async for event in stream:
                assert event.values["plate"] == "AB12CDE"
                break


@pytest.mark.live
def test_the_certificate_of_a_client_that_was_removed_counts_no_more(tmp_path: Path) -> None:
    asyncio.run(_removed(tmp_path))


async def _removed(tmp_path: Path) -> None:
    async with Together(tmp_path, THREE) as network:
        desk = await network.client("ccs/desk")
        await desk.subscribe("Numberplate", "TRUE").ready()
        ccs = network.brokers["ccs-1"]
        with Registry.open(network.laid.folder / "ccs" / "tidings.db", now_ms=now_ms()) as registry:
            registry.participants.remove("desk", by="test", now_ms=now_ms())
        await until(lambda: ccs.counts["handshakes failed"] > 0)  # It is cut off, dials again, and is not let in.
        assert not any(each["client"].startswith("ccs/desk/") for each in ccs.status()["connected"])
