"""Organisations that change while their brokers run: certificates, keys, trust, types and rights."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.live.processes import BrokerProcess
from tidings.cli.organisation.rotate import rotate_broker
from tidings.errors import InputError, PeerError
from tidings.events import EventType, Timestamp
from tidings.net import Client, Organisation, OrganisationSettings, Subscription, prepare_participant
from tidings.net.clock import now_ms
from tidings.net.dev_network import free_ports
from tidings.security import SignedType
from tidings.store import RightTerms

pytestmark = [pytest.mark.live, pytest.mark.slow]


class Pair:
    """The police, who owns Numberplate, and the harbour, whose desk reads it; each with one broker."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name, port in zip(("police", "harbour"), free_ports(2), strict=True):
            org, _ = Organisation.create(folder / name, OrganisationSettings(name))
            self.enrol(org, f"{name}-1", "broker", f"127.0.0.1:{port}")
            self.enrol(org, "camera" if name == "police" else "desk", "client")
        self.brokers = {name: self.broker(name, f"{name}-1") for name in ("police", "harbour")}

    def enrol(self, org: Organisation, name: str, role: str, address: str = "") -> None:
        request = prepare_participant(org.folder / name, org.name, name, role, address)
        org.install_here(org.approve(request, administers=role == "client"), listen=address)
        org.refresh()

    def broker(self, org: str, name: str) -> BrokerProcess:
        return BrokerProcess(name, self.folder / org / name / "broker.toml")

    def org(self, name: str) -> Organisation:
        return Organisation(self.folder / name)

    def exchange(self, *names: str) -> None:
        """Each of these gets the newest public file of the other."""
        for name in names:
            other = self.org("harbour" if name == "police" else "police")
            card = self.folder / f"{other.name}.org"
            card.write_bytes(other.sign(other.card()))
            self.org(name).trust(card)

    def declare(self) -> None:
        police = self.org("police")
        with police.registry() as registry:
            manager = registry.participants.find("police-1").manager_key
            plates = SignedType.make(police.authority, EventType("Numberplate", plate=str), key_manager=manager)
            registry.types.declare(plates, by=police.by, now_ms=now_ms())
            self.type_id = plates.type_id
            camera = registry.domains.key_of("camera")
            police.issuer(registry).issue(RightTerms(self.type_id, ("publish",)), camera, now_ms=now_ms())
        police.refresh()

    def grant(self) -> None:
        police, harbour = self.org("police"), self.org("harbour")
        with police.registry() as registry:
            terms = RightTerms(self.type_id, ("subscribe",), depth=1)
            key = registry.domains.key_of("harbour")
            token = police.issuer(registry).issue(terms, key, now_ms=now_ms())
        with harbour.registry() as registry:
            registry.types.declare(self._type(), by="test", now_ms=now_ms())
            registry.grants.add(token, by="test", now_ms=now_ms())
            desk = registry.domains.key_of("desk")
            harbour.issuer(registry).issue(RightTerms(self.type_id, ("subscribe",)), desk, now_ms=now_ms())
        harbour.refresh()

    def _type(self) -> SignedType:
        with self.org("police").registry() as registry:
            return registry.types.with_id(self.type_id)

    def rotate(self, name: str) -> None:
        other = "harbour" if name == "police" else "police"
        self.org(name).rotate()
        self.exchange(other)
        self.org(name).finish_rotation()
        self.org(name).refresh()

    async def client(self, org: str, name: str) -> Client:
        """Connected once its broker uses what was last changed."""
        async with asyncio.timeout(60):
            while True:
                try:
                    return await Client.connect(self.folder / org / name / "client.toml")
                except PeerError:
                    await asyncio.sleep(0.1)

    async def __aenter__(self) -> Pair:
        for broker in self.brokers.values():
            await broker.start()
        for broker in self.brokers.values():
            await broker.until("listening")
        return self

    async def __aexit__(self, *_: object) -> None:
        for broker in self.brokers.values():
            await broker.kill()


async def subscribed(client: Client, since: Timestamp | None = None) -> Subscription:
    """Once the broker has the type, its right and its keys."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await client.subscribe("Numberplate", durable="d", since=since).ready()
            except Exception:  # noqa: BLE001  The broker has not read the registry yet.
                await asyncio.sleep(0.1)


def test_strangers_link_declare_and_grant_while_their_brokers_run(tmp_path: Path) -> None:
    pair = Pair(tmp_path)

    async def scenario() -> None:
        async with pair:
            pair.exchange("police", "harbour")
            pair.declare()
            pair.grant()
            heard = await subscribed(await pair.client("harbour", "desk"))
            id = await published(await pair.client("police", "camera"), "AB")
            async with asyncio.timeout(60):
                assert (await anext(heard)).id == id

    asyncio.run(scenario())


def test_both_organisations_change_their_keys_and_no_event_is_lost_or_comes_twice(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.exchange("police", "harbour")
    pair.declare()
    pair.grant()

    async def scenario() -> None:
        async with pair:
            heard = await subscribed(await pair.client("harbour", "desk"))
            camera = await pair.client("police", "camera")
            sent = [await published(camera, "before")]
            for name in ("harbour", "police"):
                pair.rotate(name)
                sent.append(await published(camera, f"while {name} changes its key"))
            for name in ("harbour", "police"):
                pair.org(name).retire()
                pair.exchange("police" if name == "harbour" else "harbour")
            for broker in pair.brokers.values():  # All connections are made anew, under the next keys.
                await broker.kill()
                await broker.start()
                await broker.until("listening")
            sent.append(await published(camera, "after"))
            got: list[str] = []
            async with asyncio.timeout(60):
                while len(got) < len(sent):
                    got.append((await anext(heard)).id)
            assert got == sent

    asyncio.run(scenario())


async def published(camera: Client, plate: str) -> str:
    """The id of a new event; once the broker has the type and its keys."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await camera.publish("Numberplate", {"plate": plate})
            except Exception:  # noqa: BLE001  As above.
                await asyncio.sleep(0.1)


def test_a_broker_with_a_new_key_takes_the_place_of_another_and_no_event_is_lost(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.exchange("police", "harbour")
    pair.declare()
    pair.grant()

    async def scenario() -> None:
        async with pair:
            desk, camera = await pair.client("harbour", "desk"), await pair.client("police", "camera")
            heard = await subscribed(desk)
            sent = [await published(camera, "at the old broker")]
            async with asyncio.timeout(60):
                begins = (await anext(heard)).at
            await heard.close()
            sent.append(await published(camera, "between the two"))
            folder, address = pair.folder / "harbour", f"127.0.0.1:{free_ports(1)[0]}"
            rotate_broker("harbour-1", to="harbour-2", listen=address, org=folder)
            pair.exchange("police")
            joins = pair.brokers["harbour-2"] = pair.broker("harbour", "harbour-2")
            with joins.config.open("a") as file:
                file.write("\n[limits]\nalone_after_s = 300.0\n")  # On a busy machine too, it joins the others.
            await pair.brokers["harbour-2"].start()
            await pair.brokers["harbour-2"].until("joined")
            with pytest.raises(InputError, match="harbour-1 has 1 events that its clients have not read"):
                await asyncio.to_thread(rotate_broker, "harbour-1", to="harbour-2", finish=True, org=folder)
            for _ in range(2):  # The second changes nothing.
                await asyncio.to_thread(
                    rotate_broker, "harbour-1", to="harbour-2", finish=True, unread=True, org=folder
                )
            await pair.brokers["harbour"].until("stopped")
            heard = await subscribed(await pair.client("harbour", "desk"), since=begins)
            sent.append(await published(camera, "at the new broker"))
            got: list[str] = []
            async with asyncio.timeout(60):
                while sent[-1] not in got:
                    got.append((await anext(heard)).id)
            assert got == sent

    asyncio.run(scenario())


def test_a_broker_that_gives_out_the_keys_is_replaced_and_the_new_one_gives_them_out(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.exchange("police", "harbour")
    pair.declare()
    pair.grant()

    async def scenario() -> None:
        async with pair:
            heard = await subscribed(await pair.client("harbour", "desk"))
            sent = [await published(await pair.client("police", "camera"), "at the old broker")]
            folder, address = pair.folder / "police", f"127.0.0.1:{free_ports(1)[0]}"
            rotate_broker("police-1", to="police-2", listen=address, org=folder)
            pair.exchange("harbour")
            joins = pair.brokers["police-2"] = pair.broker("police", "police-2")
            with joins.config.open("a") as file:
                file.write("\n[limits]\nalone_after_s = 300.0\n")
            await joins.start()
            await joins.until("joined")
            for _ in range(2):
                await asyncio.to_thread(rotate_broker, "police-1", to="police-2", finish=True, org=folder)
            await pair.brokers["police"].until("stopped")
            assert not (folder / "police-1" / "manager.pem").exists()
            sent.append(await published(await pair.client("police", "camera"), "at the new broker"))
            async with asyncio.timeout(60):
                assert [(await anext(heard)).id for _ in sent] == sent
            await pair.brokers["harbour"].kill()  # Its keys were in its memory: it must ask for them again.
            await pair.brokers["harbour"].start()
            await pair.brokers["harbour"].until("joined")
            again = await subscribed(await pair.client("harbour", "desk"))
            last = await published(await pair.client("police", "camera"), "after")
            async with asyncio.timeout(60):
                while (id := (await anext(again)).id) != last:
                    assert id == sent[-1], "at most what it had not acknowledged comes again"

    asyncio.run(scenario())
