"""Peers that lie, babble, trickle or have the wrong papers: refused, and nobody else notices."""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
import struct
import warnings
from dataclasses import replace
from pathlib import Path

import pytest

from tests.live.together import Together
from tidings.errors import Denied, PeerError
from tidings.net import Client, DevNetwork, lay_out, read_client
from tidings.net.config import host_and_port
from tidings.net.ids import read_identity
from tidings.net.transport.frames import HELLO_BYTES_MAX, Query, encoded
from tidings.net.transport.handshake import Participant, shake
from tidings.net.transport.tls import anchors_in, client_context, der

pytestmark = pytest.mark.live

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def raw_connection(network: Together, client: str) -> Streams:
    """TLS with a good certificate, and not a word said."""
    config = read_client(network.laid.clients[client])
    context = client_context(config.certificate, config.key, config.trusted)
    host, port = host_and_port(config.broker)
    return await asyncio.open_connection(host, port, ssl=context, server_hostname="")


async def introduced(network: Together, client: str) -> Streams:
    """A client that has proven who it is, and not a word more."""
    config = read_client(network.laid.clients[client])
    streams = await raw_connection(network, client)
    certificate = der(config.certificate.read_bytes())
    me = Participant(
        read_identity(config.key),
        certificate,
        config.domain,
        config.name,
        "client",
        (),
        tuple(anchors_in(config.trusted.read_bytes())),
    )
    await shake(streams, me, dialled=True)
    return streams


async def hangs_up(reader: asyncio.StreamReader) -> bool:
    """Whether the other end hangs up, instead of waiting for ever."""
    try:
        async with asyncio.timeout(60):
            while await reader.read(65_536):
                pass
    except (ConnectionError, ssl.SSLError):
        return True
    except TimeoutError:
        return False
    return True


async def serves(network: Together) -> bool:
    """Whether somebody honest gets what is published."""
    camera, desk = await network.client("police/camera"), await network.client("police/desk")
    heard = await desk.subscribe("Numberplate").ready()
    id = await camera.publish("Numberplate", {"plate": "AB"})
    async with asyncio.timeout(60):
        return (await anext(heard)).id == id


GARBAGE = {
    "noise": b"\x16\x03\x01GET / HTTP/1.1\r\n\r\n",
    "a frame that is no message": struct.pack(">I", 5) + b"\xc1\xc1\xc1\xc1\xc1",
    "a length over the limit": struct.pack(">I", HELLO_BYTES_MAX + 1),
    "the longest length there is": b"\xff\xff\xff\xff",
    "nesting without end": struct.pack(">I", 4000) + b"\x91" * 4000,
}


@pytest.mark.parametrize("name", GARBAGE)
def test_whoever_babbles_is_cut_off(name: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Together(tmp_path) as network:
            reader, writer = await raw_connection(network, "police/camera")
            writer.write(GARBAGE[name])
            assert await hangs_up(reader)
            assert network.brokers["police-1"].counts["handshakes failed"] == 1
            writer.close()
            assert await serves(network)

    asyncio.run(scenario())


def test_whoever_babbles_after_the_handshake_is_cut_off_too(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Together(tmp_path) as network:
            camera = await network.client("police/camera")
            await camera.ask("status")
            assert camera.link is not None
            camera.link.transport.write(b"\xff\xff\xff\xff")
            id = await camera.publish("Numberplate", {"plate": "AB"})  # It comes back by itself, as an honest client.
            assert id
            assert network.brokers["police-1"].counts["clients that broke the rules"] == 1

    asyncio.run(scenario())


def test_a_stranger_s_certificate_opens_nothing(tmp_path: Path) -> None:
    strangers = lay_out(tmp_path / "strangers", DevNetwork(first_port=0, brokers={"police": 1}))

    async def scenario() -> None:
        async with Together(tmp_path) as network:
            theirs = read_client(strangers.clients["police/camera"])
            ours = read_client(network.laid.clients["police/camera"])
            with pytest.raises(PeerError, match="cannot reach|closed the connection"):
                await Client.connect(replace(ours, key=theirs.key, certificate=theirs.certificate))
            with pytest.raises(PeerError, match="cannot reach"):  # Nor does ours trust them.
                await Client.connect(replace(ours, trusted=theirs.trusted))

    asyncio.run(scenario())


def test_a_client_of_another_organisation_is_told_to_go_home(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Together(tmp_path, DevNetwork(first_port=0, brokers={"police": 1, "ccs": 1})) as network:
            ours, theirs = (read_client(network.laid.clients[name]) for name in ("police/camera", "ccs/desk"))
            with pytest.raises(Denied, match="a client attaches to a broker of its own organisation"):
                await Client.connect(replace(theirs, broker=ours.broker, broker_key=ours.broker_key))

    asyncio.run(scenario())


def test_a_broker_with_another_key_than_expected_is_not_talked_to(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Together(tmp_path) as network:
            ours = read_client(network.laid.clients["police/camera"])
            with pytest.raises(PeerError, match="hello: expected ed25519:00"):
                await Client.connect(replace(ours, broker_key="ed25519:" + "00" * 32))

    asyncio.run(scenario())


def test_a_stolen_token_is_worth_nothing_without_its_key(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Together(tmp_path) as network:
            camera, desk = (read_client(network.laid.clients[f"police/{name}"]) for name in ("camera", "desk"))
            thief = await Client.connect(replace(desk, tokens=camera.tokens))
            with pytest.raises(Denied):
                await thief.publish("Numberplate", {"plate": "AB"})
            await thief.close()

    asyncio.run(scenario())


def test_one_that_trickles_is_cut_off_and_stalls_nobody(tmp_path: Path) -> None:
    layout = DevNetwork(first_port=0, brokers={"police": 1}, limits={"silence_s_max": 0.5})

    async def scenario() -> None:
        async with Together(tmp_path, layout) as network:
            reader, writer = await introduced(network, "police/camera")
            writer.write(struct.pack(">I", 1000) + b"half")  # No pings, no answers: half a frame and then nothing.
            assert await serves(network)
            assert await hangs_up(reader)
            writer.close()

    asyncio.run(scenario())


def test_one_that_never_introduces_itself_is_cut_off(tmp_path: Path) -> None:
    layout = DevNetwork(first_port=0, brokers={"police": 1}, limits={"handshake_s_max": 0.3})

    async def scenario() -> None:
        async with Together(tmp_path, layout) as network:
            reader, writer = await raw_connection(network, "police/camera")
            writer.write(struct.pack(">I", 1000) + b"h")
            assert await hangs_up(reader)
            assert network.brokers["police-1"].counts["handshakes failed"] == 1
            writer.close()

    asyncio.run(scenario())


def test_connections_over_the_limit_are_refused_and_the_others_served(tmp_path: Path) -> None:
    layout = DevNetwork(first_port=0, brokers={"police": 1}, limits={"connections_max": 4})

    async def scenario() -> None:
        async with Together(tmp_path, layout) as network:
            kept = [await raw_connection(network, "police/camera") for _ in range(2)]
            assert await serves(network)
            with pytest.raises(PeerError):
                await Client.connect(network.laid.clients["police/camera"])
            assert network.brokers["police-1"].counts["connections refused"] == 1
            for _, writer in kept:
                writer.close()

    asyncio.run(scenario())


def test_a_client_that_asks_and_leaves_in_one_breath_leaves_no_warning_behind(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Together(tmp_path, DevNetwork(first_port=0, brokers={"police": 1})) as network:
            for _ in range(5):
                _, writer = await introduced(network, "police/camera")
                writer.write(encoded(Query(1, "status", {})))
                writer.close()
            assert await serves(network)

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        asyncio.run(scenario())
        gc.collect()
    assert [str(each.message) for each in warned if issubclass(each.category, RuntimeWarning)] == []


def test_a_subscriber_that_does_not_read_loses_events_and_stalls_nobody(tmp_path: Path) -> None:
    layout = DevNetwork(first_port=0, brokers={"police": 1}, limits={"client_queue_bytes_max": 1 << 20})

    async def scenario() -> None:
        async with Together(tmp_path, layout) as network:
            camera, desk = await network.client("police/camera"), await network.client("police/desk")
            heard = await desk.subscribe("Numberplate").ready()
            lazy = await Client.connect(network.laid.clients["police/desk"])
            await lazy.subscribe("Numberplate").ready()
            assert lazy.link is not None
            # Otherwise the kernel may take all of it, 32 MiB here, on behalf of somebody who does not read.
            lazy.link.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
            lazy.link.transport.pause_reading()  # type: ignore[attr-defined]
            ids = []
            for _ in range(60):
                ids += await camera.publish_many("Numberplate", [{"plate": "X" * 8000} for _ in range(20)])
            async with asyncio.timeout(60):
                assert [(await anext(heard)).id for _ in ids] == ids
            (status,) = await camera.ask("status")
            assert max(each["lost"] for each in status["connected"]) > 0
            await lazy.close()

    asyncio.run(scenario())


def test_a_broker_that_does_not_read_is_waited_for_once_and_gets_what_is_pending_later(tmp_path: Path) -> None:
    limits = {"link_queue_bytes_max": 1 << 20, "silence_s_max": 600, "link_wait_s_max": 2.0}
    layout = DevNetwork(first_port=0, brokers={"police": 1, "ccs": 1}, overlay="flooding", limits=limits)

    async def scenario() -> None:
        async with Together(tmp_path, layout) as network:
            camera, desk = await network.client("police/camera"), await network.client("ccs/desk")
            heard = await desk.subscribe("Numberplate", durable="all").ready()
            police, ccs = network.brokers["police-1"], network.brokers["ccs-1"]
            (to_police,), (to_ccs,) = ccs.links.open.values(), police.links.open.values()
            to_police.transport.pause_reading()  # type: ignore[attr-defined]
            async with asyncio.timeout(60):  # A hundred times two seconds would be too long.
                many = [{"plate": "X" * 8000}] * 10
                ids = [id for _ in range(120) for id in await camera.publish_many("Numberplate", many)]
            assert to_ccs.is_slow
            to_police.transport.resume_reading()  # type: ignore[attr-defined]
            async with asyncio.timeout(60):
                assert [(await anext(heard)).id for _ in ids] == ids

    asyncio.run(scenario())
