"""The online test of a right (figure 4 of the paper, steps 3 and 4): signed, cached for a stated time, and no is the default."""

from __future__ import annotations

import asyncio
import base64
import secrets
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tests.live.together import Together
from tidings.errors import Denied, InputError, PeerError
from tidings.events import EventType
from tidings.net import DevNetwork, ReadAccess, read_broker, read_client
from tidings.net.clock import now_ms
from tidings.net.ids import read_identity
from tidings.net.online_sync import read_names
from tidings.net.transport.frames import OnlineAnswers
from tidings.node import LocalIdentity, Node, NodePolicy, node_id_of
from tidings.overlay import Peer, protocol
from tidings.security import (
    Grant,
    Identity,
    KeyManager,
    Mode,
    OnlineTest,
    SealingKey,
    SignedType,
    grant,
    make_join,
    online_url,
    read_answer,
    sign_answer,
    verify_answer,
)

AGE_MS, WITHIN_S = 4_000, 60.0
SERVICE = Identity(bytes(range(32)))


def test_an_answer_is_its_services_and_nobody_elses() -> None:
    answer = read_answer(sign_answer(SERVICE, ["night", "day", "day"], 7))
    verify_answer(answer)
    assert answer.urls() == [online_url(SERVICE.public_key, "day"), online_url(SERVICE.public_key, "night")]
    more = msgspec.structs.replace(answer, names=("day", "night", "weekend"))
    later = msgspec.structs.replace(answer, at_ms=8)
    for altered in (more, later):
        with pytest.raises(PeerError, match="signature"):
            verify_answer(altered)
    with pytest.raises(PeerError, match="online"):
        read_answer(b"no answer")
    with pytest.raises(InputError, match="at most"):
        sign_answer(SERVICE, map(str, range(2000)), 7)


def test_a_file_of_names_may_have_comments_and_must_be_text(tmp_path: Path) -> None:
    (file := tmp_path / "holds").write_text("# shifts\nnight # until six\n\n day\n")
    assert read_names(file) == ["night", "day"]
    file.write_bytes(b"\xff")
    with pytest.raises(InputError, match="UTF-8"):
        read_names(file)


def test_a_member_without_a_recent_yes_is_out_of_the_key_group() -> None:
    owner, holder = Identity.make(secrets.token_bytes), Identity.make(secrets.token_bytes)
    signed = SignedType.make(owner, EventType("Quake", magnitude=int), mode=Mode.EVENT)
    url = online_url(owner.public_key, "night")
    right = Grant(signed.type_id, frozenset({"subscribe"}), holder.public_key, online=(OnlineTest(url, AGE_MS),))
    token = grant(owner, right, secrets.token_bytes).to_bytes()
    manager = KeyManager(signed, owner, secrets.token_bytes, 0)
    kex = SealingKey.make(secrets.token_bytes)

    def ask(now: int, online: dict[str, int]) -> None:
        asked, _ = make_join(signed, signed.group_ids, token, holder, kex, now_ms=now, random=secrets.token_bytes)
        manager.join(asked, now, online=online)

    with pytest.raises(Denied, match="online"):
        ask(10, {})
    ask(1_000, {url: 1_000})
    (group,) = manager.groups.values()
    assert manager.lapsed({url: 1_000}, 1_000 + AGE_MS) == set()
    late = 1_001 + AGE_MS
    manager.revoke(manager.lapsed({url: 1_000}, late), late)
    assert holder.public_key not in group.members


@pytest.mark.live
def test_a_right_with_an_online_test_holds_as_long_as_it_is_said_to(tmp_path: Path) -> None:
    asyncio.run(_live(tmp_path))


async def _live(tmp_path: Path) -> None:
    layout = DevNetwork(first_port=0, readers={"ccs": ReadAccess(), "yard": ReadAccess()}, mode=Mode.ATTRIBUTE)
    network = Together(tmp_path, layout)
    owner = read_identity(network.laid.folder / "police" / "authority.pem")
    _needs_online(network, owner)
    holds = network.laid.brokers["police-1"].parent / "holds"
    file = network.laid.brokers["police-1"]
    file.write_text(file.read_text().replace("[broker]", '[broker]\nacs = "holds"', 1))
    holds.write_text("day\n")
    async with network:
        camera, desk = await network.client("police/camera"), await network.client("ccs/desk")
        with pytest.raises(Denied, match="online"):  # Nobody says that it holds.
            await desk.subscribe("Numberplate", "TRUE").ready()
        ccs, url = network.brokers["ccs-1"], online_url(owner.public_key, "night")
        await _forged(network, url)
        holds.write_text("day\nnight\n")
        await _until(lambda: url in ccs.node.revocations.online)
        stream = await desk.subscribe("Numberplate", "TRUE").ready()
        id = await camera.publish("Numberplate", {"plate": "AB12CDE"})
        assert (await asyncio.wait_for(anext(stream), WITHIN_S)).id == id
        holds.write_text("day\n")
        with pytest.raises(Denied, match="online"):
            await asyncio.wait_for(_to_its_end(stream), WITHIN_S)


def _needs_online(network: Together, owner: Identity) -> None:
    """The desk's right gets an online test; that of its broker has none."""
    config = read_client(network.laid.clients["ccs/desk"])
    now, key = now_ms(), read_identity(config.key).public_key
    test = OnlineTest(online_url(owner.public_key, "night"), AGE_MS)
    right = Grant(
        network.laid.signed.type_id,
        frozenset({"subscribe"}),
        key,
        not_before=now - 1000,
        not_after=now + 3_600_000,
        online=(test,),
    )
    config.tokens[0].write_bytes(base64.urlsafe_b64encode(grant(owner, right, secrets.token_bytes).to_bytes()) + b"\n")


async def _forged(network: Together, url: str) -> None:
    """A member's own list in the service's name cuts it off, and confirms nothing."""
    yard, ccs = network.brokers["yard-1"], network.brokers["ccs-1"]
    mine = read_answer(sign_answer(yard.identity, ["night"], now_ms() + 1000))
    service = read_identity(read_broker(network.laid.brokers["police-1"]).manages[0])
    forged = msgspec.structs.replace(mine, key=service.public_key)
    await _until(lambda: yard.links.ready(ccs.me.id) is not None)  # Joined, and not linked with all others yet.
    link = yard.links.ready(ccs.me.id)
    assert link is not None
    link.send(OnlineAnswers((msgspec.msgpack.encode(mine), msgspec.msgpack.encode(forged))))
    await _until(lambda: not link.is_open)
    assert url not in ccs.node.revocations.online


async def _until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not true():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.02)


async def _to_its_end(stream: object) -> None:
    async for _ in stream:  # type: ignore[attr-defined]
        pass


def test_a_broker_asks_for_its_keys_once_its_own_right_is_said_to_hold() -> None:
    owner, identity = Identity.make(secrets.token_bytes), Identity.make(secrets.token_bytes)
    signed = SignedType.make(owner, EventType("Quake", magnitude=int), mode=Mode.EVENT)
    from random import Random

    me = LocalIdentity(Peer(node_id_of(identity.public_key)), identity)
    node = Node(me, protocol("flooding"), rng=Random(1), random=secrets.token_bytes, policy=NodePolicy())
    node.clock_is(1_000_000, 0.0)
    node.declare(signed, 0.0)
    url = online_url(owner.public_key, "night")
    right = Grant(signed.type_id, frozenset({"subscribe"}), identity.public_key, online=(OnlineTest(url, AGE_MS),))
    node.hold(grant(owner, right, secrets.token_bytes).to_bytes(), 0.0)
    keys = node.types[signed.type_id.hex()].keys
    assert keys is not None
    assert not keys.expected
    node.online_answers([url], 1_000_000, 0.0)
    assert keys.expected
