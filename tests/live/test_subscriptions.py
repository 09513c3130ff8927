"""Publishing and subscribing over real sockets: what comes, to whom, how often, and after what."""

from __future__ import annotations

import asyncio
import base64
import secrets
from pathlib import Path
from typing import Any

import pytest

from tests.live.together import Together
from tidings.errors import Denied, InputError
from tidings.events import Date, Event, EventType, Exact, Time, Timestamp
from tidings.net import BlockingClient, DevNetwork, ReadAccess, Received, Subscription
from tidings.net.broker.journal import Backlog
from tidings.net.clock import now_ms
from tidings.net.dev_network import NUMBERPLATE
from tidings.net.ids import read_identity, read_token
from tidings.security import BiscuitCapability, Grant, Mode, SignedType, grant
from tidings.store import Registry

pytestmark = pytest.mark.live


async def take(subscription: Subscription, count: int) -> list[Received]:
    async with asyncio.timeout(60):
        return [await anext(subscription) for _ in range(count)]


def test_an_event_crosses_organisations_and_shows_each_what_it_may_see(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Together(tmp_path, DevNetwork(first_port=0)) as network:
            camera = await network.client("police/camera")
            ccs = await (await network.client("ccs/desk")).subscribe("Numberplate", "plate LIKE 'AB%'").ready()
            yard = await (await network.client("yard/desk")).subscribe("Numberplate", durable="all").ready()
            await camera.publish("Numberplate", {"plate": "ABXX", "speed": 20.0})
            id = await camera.publish("Numberplate", {"plate": "AB12CDE", "speed": 31.0})
            first, second = await take(ccs, 2)
            assert [first.values, second.values] == [{"plate": "ABXX"}, {"plate": "AB12CDE"}]
            (only,) = await take(yard, 1)  # The yard's right is for one car, and all about it.
            assert (only.id, only.values) == (id, {"plate": "AB12CDE", "speed": 31.0})

    asyncio.run(scenario())


def test_a_durable_subscription_goes_on_where_its_subscriber_left(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Together(tmp_path) as network:
            camera, desk = await network.client("police/camera"), await network.client("police/desk")
            kept = await desk.subscribe("Numberplate", "speed > 10", durable="kept").ready()
            await camera.publish_many("Numberplate", [{"plate": f"A{n}", "speed": float(n)} for n in range(30)])
            assert [event.values["plate"] for event in await take(kept, 5)] == [f"A{n}" for n in range(11, 16)]
            await desk.close()
            await network.stop("police-1")
            await network.start("police-1")
            again = (
                await (await network.client("police/desk"))
                .subscribe("Numberplate", "speed > 10", durable="kept")
                .ready()
            )
            assert [event.values["plate"] for event in await take(again, 14)] == [f"A{n}" for n in range(16, 30)]

    asyncio.run(scenario())


def test_what_is_said_twice_under_one_name_is_published_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Together(tmp_path) as network:
            camera, desk = await network.client("police/camera"), await network.client("police/desk")
            heard = await desk.subscribe("Numberplate").ready()
            event = Event.of(NUMBERPLATE, {"plate": "AB"}, id="1", source="cam-7", time=0)
            first, second = await camera.publish(event), await camera.publish(event)
            last = await camera.publish("Numberplate", {"plate": "CD"})
            assert first == second
            assert [each.id for each in await take(heard, 2)] == [first, last]

    asyncio.run(scenario())


def test_a_subscription_can_begin_in_the_past_and_the_past_comes_first(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Together(tmp_path, DevNetwork(first_port=0, brokers={"police": 1, "ccs": 1})) as network:
            camera = await network.client("police/camera")
            before = await camera.publish_many("Numberplate", [{"plate": f"A{n}"} for n in range(3)])
            near = (await network.client("police/desk")).subscribe("Numberplate", durable="p", since=Timestamp(0))
            far = (await network.client("ccs/desk")).subscribe("Numberplate", durable="p", since=Timestamp(0))
            await near.ready()
            await far.ready()
            after = await camera.publish("Numberplate", {"plate": "B"})
            for subscription in (near, far):
                assert [event.id for event in await take(subscription, 4)] == [*before, after]

    asyncio.run(scenario())


def test_a_durable_subscription_that_is_asked_for_twice_at_once_is_made_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with Together(tmp_path) as network:
            camera = await network.client("police/camera")
            said = await camera.publish_many("Numberplate", [{"plate": f"A{n}"} for n in range(3)])
            history, desks = network.brokers["police-1"].history, [await network.client("police/desk") for _ in "ab"]
            read, both_are_here = history.read, asyncio.Barrier(2)

            async def read_together(*what: Any, skew_us: int) -> list[Backlog]:
                await both_are_here.wait()
                return await read(*what, skew_us=skew_us)

            monkeypatch.setattr(history, "read", read_together)
            both = [desk.subscribe("Numberplate", durable="p", since=Timestamp(0), hold=True) for desk in desks]
            for each in both:
                await each.ready()
            said.append(await camera.publish("Numberplate", {"plate": "B"}))
            (durable,) = network.brokers["police-1"].queues.all.values()
            assert durable.next_position == 1 + len(said)

    asyncio.run(scenario())


def test_who_leaves_while_its_durable_subscription_is_being_placed_has_one_that_all_know_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with Together(tmp_path, DevNetwork(first_port=0, brokers={"police": 1, "ccs": 1})) as network:
            camera, desk = await network.client("police/camera"), await network.client("ccs/desk")
            ccs = network.brokers["ccs-1"]
            owner, tokens = read_identity(desk.config.key).public_key, [read_token(file) for file in desk.config.tokens]
            placing = ccs.subscriptions.subscribe_durable(owner, "d", ccs.types.find("Numberplate"), "TRUE", -1, tokens)
            left = asyncio.create_task(placing)
            await asyncio.sleep(0)  # Up to where it waits for the overlay.
            left.cancel()
            seen = await desk.subscribe("Numberplate", durable="d").ready()
            monkeypatch.setattr(
                ccs.receiver, "receive_from_overlay", lambda *_: None
            )  # What the overlay brings is lost.
            id = await camera.publish("Numberplate", {"plate": "AB12CDE"})
            assert [event.id for event in await take(seen, 1)] == [id]

    asyncio.run(scenario())


def test_what_a_subscriber_rejects_is_a_dead_letter_until_it_is_replayed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Together(tmp_path) as network:
            camera, desk = await network.client("police/camera"), await network.client("police/desk")
            kept = await desk.subscribe("Numberplate", durable="kept").ready()
            id = await camera.publish("Numberplate", {"plate": "BAD"})
            (bad,) = await take(kept, 1)
            await kept.reject(bad, "no such car")
            (letter,) = await desk.ask("dlq")
            assert (letter["event"], letter["subscription"], letter["why"]) == (id, "kept", "rejected: no such car")
            (listed,) = await desk.ask("subscriptions")
            assert (letter["type"], listed["type"]) == ("Numberplate", "Numberplate")  # By name, never by digest.
            assert await desk.ask("dlq replay") == [{"replayed": 1, "left": 0}]
            assert [event.id for event in await take(kept, 1)] == [id]
            assert await desk.ask("dlq") == []

    asyncio.run(scenario())


def test_an_owed_event_whose_key_does_not_come_is_a_dead_letter_until_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = DevNetwork(
        first_port=0,
        brokers={"police": 1, "ccs": 1},
        readers={"ccs": ReadAccess()},
        mode=Mode.ATTRIBUTE,
        limits={"unreadable_s_max": 0.001},
    )

    async def scenario() -> None:
        async with Together(tmp_path, layout) as network:
            camera, desk = await network.client("police/camera"), await network.client("ccs/desk")
            kept = await desk.subscribe("Numberplate", "speed > 1", durable="kept").ready()
            ccs = network.brokers["ccs-1"]
            with monkeypatch.context() as without_keys:
                without_keys.setattr(ccs.subscriptions, "match", lambda raw: None)
                without_keys.setattr(ccs.receiver, "receive_from_overlay", lambda *_: None)  # The overlay has lost it.
                id = await camera.publish("Numberplate", {"plate": "AB", "speed": 2.0})
                async with asyncio.timeout(60):
                    while not (letters := await desk.ask("dlq")):
                        pass  # Each question is a round trip to the broker.
            found = [(each["event"], each["subscription"], each["type"], each["why"]) for each in letters]
            assert found == [(id, "kept", "Numberplate", "key: the event could not be decrypted within 0 s")]
            assert await desk.ask("dlq replay") == [{"replayed": 1, "left": 0}]
            (event,) = await take(kept, 1)
            assert (event.id, event.values) == (id, {"plate": "AB", "speed": 2.0})

    asyncio.run(scenario())


def test_a_hundred_sealed_subscriptions_behind_another_broker_are_told_each_of_its_own(tmp_path: Path) -> None:
    """More than the overlay is told one by one: the network knows only that all events of the type are wanted."""
    layout = DevNetwork(
        first_port=0, brokers={"police": 1, "ccs": 1}, readers={"ccs": ReadAccess()}, mode=Mode.ATTRIBUTE
    )

    async def scenario() -> None:
        async with Together(tmp_path, layout) as network:
            camera, desk = await network.client("police/camera"), await network.client("ccs/desk")
            wanted = [desk.subscribe("Numberplate", f"plate = 'P{n}' AND speed > 1") for n in range(100)]
            for each in wanted:
                await each.ready()
            said = [{"plate": f"P{n}", "speed": 2.0} for n in range(100)]
            ids = await camera.publish_many("Numberplate", said)
            told = [(await take(each, 1))[0].id for each in wanted]
            assert told == ids
            (status,) = await desk.ask("status")
            assert sum(each["told"] for each in status["connected"]) == len(ids)

    asyncio.run(scenario())


def test_a_right_that_has_ended_by_a_wrong_clock_holds_again_when_it_is_right(tmp_path: Path) -> None:
    layout = DevNetwork(first_port=0, brokers={"police": 1}, limits={"lapsed_retry_s": 0.1})

    async def scenario() -> None:
        async with Together(tmp_path, layout) as network:
            camera, desk = await network.client("police/camera"), await network.client("police/desk")
            kept = await desk.subscribe("Numberplate", durable="kept").ready()
            police, now = network.brokers["police-1"], asyncio.get_running_loop().time()
            police.node.clock_is(now_ms() + 2 * 365 * 86_400_000, now)  # Until the broker next looks at the clock.
            police.carry_out(police.node.revoke(["nobody's"], now))  # Has all rights looked at.
            assert police.node.status(now)["subscriptions"] == 0
            async with asyncio.timeout(60):
                while police.node.status(now)["subscriptions"] == 0:
                    await desk.ask("durables")  # A round trip to the broker.
            id = await camera.publish("Numberplate", {"plate": "AB"})
            assert [event.id for event in await take(kept, 1)] == [id]

    asyncio.run(scenario())


def test_more_than_a_queue_may_hold_goes_to_the_dead_letters(tmp_path: Path) -> None:
    layout = DevNetwork(first_port=0, brokers={"police": 1}, limits={"queue_events_max": 10})

    async def scenario() -> None:
        async with Together(tmp_path, layout) as network:
            camera, desk = await network.client("police/camera"), await network.client("police/desk")
            kept = await desk.subscribe("Numberplate", durable="kept").ready()
            await kept.close()
            ids = await camera.publish_many("Numberplate", [{"plate": str(n)} for n in range(15)])
            letters = await desk.ask("dlq")
            assert [letter["event"] for letter in letters] == ids[10:]
            assert all(letter["why"].startswith("queue: more than 10") for letter in letters)

    asyncio.run(scenario())


def test_a_request_that_is_wrong_or_without_right_is_refused_as_what_it_is(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Together(tmp_path) as network:
            camera, desk = await network.client("police/camera"), await network.client("police/desk")
            with pytest.raises(Denied, match="action: publish"):
                await desk.publish("Numberplate", {"plate": "AB"})
            with pytest.raises(InputError, match="no attribute 'plat'"):
                await camera.publish("Numberplate", {"plat": "AB"})
            with pytest.raises(InputError, match="cannot compare a double with a string"):
                await desk.subscribe("Numberplate", "speed > 'x'").ready()
            with pytest.raises(InputError, match="no event type 'Number'"):
                await camera.publish("Number", {})

    asyncio.run(scenario())


def test_an_event_that_is_wrong_spoils_none_of_those_published_beside_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Together(tmp_path) as network:
            camera, desk = await network.client("police/camera"), await network.client("police/desk")
            heard = await desk.subscribe("Numberplate").ready()
            said = [{"plate": "AB"}, {"plat": "CD"}, {"plate": "EF"}]
            first, wrong, last = await asyncio.gather(
                *(camera.publish("Numberplate", values) for values in said), return_exceptions=True
            )
            assert isinstance(wrong, InputError)
            assert [each.id for each in await take(heard, 2)] == [first, last]

    asyncio.run(scenario())


def test_the_blocking_twin_does_the_same_without_an_event_loop(tmp_path: Path) -> None:
    def as_a_program(camera: Path, desk: Path) -> None:
        with BlockingClient(camera) as says, BlockingClient(desk) as hears:
            heard = hears.subscribe("Numberplate", durable="b")
            ids = says.publish_many("Numberplate", [{"plate": "A"}, {"plate": "B"}])
            assert [next(heard).id, next(heard).id] == ids
            assert heard.next(within_s=0.01) is None

    async def scenario() -> None:
        async with Together(tmp_path) as network:
            clients = network.laid.clients
            await asyncio.to_thread(as_a_program, clients["police/camera"], clients["police/desk"])

    asyncio.run(scenario())


def test_a_right_that_is_revoked_in_the_registry_ends_in_the_running_session(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Together(tmp_path) as network:
            desk = await network.client("police/desk")
            heard = await desk.subscribe("Numberplate").ready()
            owner = read_identity(network.laid.folder / "police" / "authority.pem")
            token = BiscuitCapability.from_bytes(read_token(desk.config.tokens[0]), owner.public_key)
            where = network.brokers["police-1"].config.data / "registry.db"
            with Registry.open(where, now_ms=now_ms()) as registry:
                registry.grants.revoke(token, by_key=owner.public_key, now_ms=now_ms())
            async with asyncio.timeout(60):
                with pytest.raises(Denied, match="revoked"):
                    await anext(heard)

    asyncio.run(scenario())


def give_also(network: Together, who: str, reader: ReadAccess) -> BiscuitCapability:
    """One more right to read, in the folder of a client or broker that is not running yet."""
    folder = network.laid.folder / who
    owner, holder = (read_identity(file) for file in (network.laid.folder / "police/authority.pem", folder / "key.pem"))
    granted = Grant(
        network.laid.signed.type_id,
        frozenset({"subscribe"}),
        holder.public_key,
        attributes=frozenset(map(network.laid.signed.attr_id, reader.attributes)),
        constraints=reader.where,
    )
    token = grant(owner, granted, secrets.token_bytes)
    (folder / "also.token").write_bytes(base64.urlsafe_b64encode(token.to_bytes()))
    (settings,) = folder.glob("*.toml")
    settings.write_text(settings.read_text().replace('"right-1.token"', '"right-1.token", "also.token"'))
    return token


def test_the_rights_of_a_client_and_of_its_broker_add_up_and_go_one_by_one(tmp_path: Path) -> None:
    readers = {"ccs": ReadAccess(("plate",))}
    layout = DevNetwork(first_port=0, brokers={"police": 1, "ccs": 1}, readers=readers, mode=Mode.ATTRIBUTE)

    async def scenario() -> None:
        network = Together(tmp_path, layout)
        give_also(network, "ccs/ccs-1", ReadAccess(("speed",)))
        speeds = give_also(network, "ccs/desk", ReadAccess(("speed",), ("plate = 'AB12CDE'",)))
        async with network:
            camera, desk = await network.client("police/camera"), await network.client("ccs/desk")
            seen = await desk.subscribe("Numberplate", "plate LIKE 'AB%'").ready()
            fast = await desk.subscribe("Numberplate", "plate LIKE 'AB%' AND speed > 20", durable="fast").ready()
            both = [{"plate": plate, "speed": 31.0} for plate in ("ABXX", "AB12CDE")]
            await camera.publish_many("Numberplate", both)
            assert [event.values for event in await take(seen, 2)] == [{"plate": "ABXX"}, both[1]]
            assert [event.values for event in await take(fast, 1)] == [both[1]]
            police = read_identity(network.laid.folder / "police/authority.pem")
            with Registry.open(network.brokers["ccs-1"].config.data / "registry.db", now_ms=now_ms()) as registry:
                registry.grants.revoke(speeds, by_key=police.public_key, now_ms=now_ms())
            async with asyncio.timeout(60):
                while len(network.brokers["ccs-1"].node.subscriptions()) == 2:
                    await desk.ask("durables")  # A round trip to the broker.
            await camera.publish("Numberplate", both[1])
            assert [event.values for event in await take(seen, 1)] == [{"plate": "AB12CDE"}]
            with pytest.raises(Denied, match="revoked"):
                await desk.subscribe("Numberplate", "speed > 20").ready()

    asyncio.run(scenario())


def test_a_durable_subscription_goes_on_under_a_newer_right_when_its_subscriber_comes_with_one(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Together(tmp_path) as network:
            camera, desk = await network.client("police/camera"), await network.client("police/desk")
            heard = await desk.subscribe("Numberplate", "speed > 20", durable="d").ready()
            first = await camera.publish("Numberplate", {"plate": "AB", "speed": 31.0})
            assert [event.id for event in await take(heard, 1)] == [first]
            await desk.close()
            give_also(network, "police/desk", ReadAccess(("plate", "speed")))
            police = read_identity(network.laid.folder / "police/authority.pem")
            old = BiscuitCapability.from_bytes(read_token(desk.config.tokens[0]), police.public_key)
            again = (
                await (await network.client("police/desk")).subscribe("Numberplate", "speed > 20", durable="d").ready()
            )
            with Registry.open(network.brokers["police-1"].config.data / "registry.db", now_ms=now_ms()) as registry:
                registry.grants.revoke(old, by_key=police.public_key, now_ms=now_ms())
            async with asyncio.timeout(60):
                while old.revocation_ids[0] not in network.brokers["police-1"].node.revocations.revoked:
                    await camera.ask("durables")  # A round trip to the broker.
            second = await camera.publish("Numberplate", {"plate": "CD", "speed": 32.0, "area": "A"})
            (event,) = await take(again, 1)
            assert (event.id, event.values, event.position) == (second, {"plate": "CD", "speed": 32.0}, 2)

    asyncio.run(scenario())


def test_newer_rights_that_are_shown_before_the_keys_have_come_count_when_they_have(
    tmp_path: Path,
) -> None:
    layout = DevNetwork(
        first_port=0,
        brokers={"police": 1, "ccs": 1},
        readers={"ccs": ReadAccess(("plate",))},
        mode=Mode.ATTRIBUTE,
        limits={"alone_after_s": 0.5, "key_retry_s": 0.5},
    )

    async def scenario() -> None:
        network = Together(tmp_path, layout)
        give_also(network, "ccs/ccs-1", ReadAccess(("speed",)))
        async with network:
            desk = await network.client("ccs/desk")
            await desk.subscribe("Numberplate", "plate LIKE 'AB%'", durable="d").ready()
            await desk.close()
            await network.stop("police-1")  # With the key manager.
            await network.stop("ccs-1")
            give_also(network, "ccs/desk", ReadAccess(("speed",)))
            ccs = await network.start("ccs-1")
            desk = await network.client("ccs/desk")
            seen = await desk.subscribe("Numberplate", "plate LIKE 'AB%'", durable="d").ready()
            assert ccs.subscriptions.suspended
            await network.start("police-1")
            async with asyncio.timeout(60):
                while ccs.subscriptions.suspended:
                    await desk.ask("durables")  # A round trip to the broker.
            camera = await network.client("police/camera")
            await camera.publish("Numberplate", {"plate": "AB", "speed": 2.0})
            assert [event.values for event in await take(seen, 1)] == [{"plate": "AB", "speed": 2.0}]

    asyncio.run(scenario())


def add_plain_type(network: Together) -> None:
    """A type of ccs's own, which its broker and its desk may publish and subscribe to."""
    folder = network.laid.folder
    owner = read_identity(folder / "ccs/authority.pem")
    signed = SignedType.make(owner, EventType("Departure", gate=str), mode=Mode.PLAIN)
    (folder / "Departure.type").write_bytes(signed.to_bytes())
    for settings in (folder / "ccs/ccs-1/broker.toml", folder / "ccs/desk/client.toml"):
        holder = read_identity(settings.with_name("key.pem")).public_key
        token = grant(owner, Grant(signed.type_id, frozenset({"publish", "subscribe"}), holder), secrets.token_bytes)
        settings.with_name("departures.token").write_bytes(base64.urlsafe_b64encode(token.to_bytes()))
        text = settings.read_text().replace("types = [", 'types = ["../../Departure.type", ')
        settings.write_text(text.replace("tokens = [", 'tokens = ["departures.token", '))


def test_a_type_whose_key_manager_is_away_does_not_keep_others_from_their_subscribers(tmp_path: Path) -> None:
    layout = DevNetwork(
        first_port=0, brokers={"police": 1, "ccs": 1}, readers={"ccs": ReadAccess()}, mode=Mode.ATTRIBUTE
    )

    async def scenario() -> None:
        network = Together(tmp_path, layout)
        add_plain_type(network)
        async with network:
            desk = await network.client("ccs/desk")
            for type in ("Numberplate", "Departure"):
                await desk.subscribe(type, durable=type).ready()
            await desk.close()
            await network.stop("police-1")  # With the key manager of number plates.
            await network.stop("ccs-1")
            await network.start("ccs-1")
            desk = await network.client("ccs/desk")
            departures = await desk.subscribe("Departure", durable="Departure").ready()
            id = await desk.publish("Departure", {"gate": "A1"})
            assert [event.id for event in await take(departures, 1)] == [id]

    asyncio.run(scenario())


def test_decimals_dates_and_arrays_arrive_sealed_and_as_they_were(tmp_path: Path) -> None:
    orders = EventType("Order", price="decimal(9,2)", day=Date, at=Time, tags=list[str], stock=dict[str, int])
    sent = {"price": Exact("12.30"), "day": Date("2026-01-31"), "at": Time("12:30:00"), "tags": ("new", None)}

    async def scenario() -> None:
        layout = DevNetwork(
            brokers={"police": 1, "ccs": 1},
            readers={"ccs": ReadAccess(("price", "day", "tags"))},
            event_type=orders,
            mode=Mode.ATTRIBUTE,
            first_port=0,
        )
        async with Together(tmp_path, layout) as network:
            shop, wanted = await network.client("police/camera"), "price < 12.305 AND day > DATE '2026-01-01'"
            far = await (await network.client("ccs/desk")).subscribe("Order", f"{wanted} AND 'new' = ANY(tags)").ready()
            near = await (await network.client("police/desk")).subscribe("Order", "stock['london'] > 6").ready()
            await shop.publish("Order", {**sent, "price": Exact("12.31"), "stock": {"london": 6}})
            await shop.publish("Order", {**sent, "stock": {"london": 7}})
            ((told,), (all_of_it,)) = await take(far, 1), await take(near, 1)
            assert told.values == {name: sent[name] for name in ("price", "day", "tags")}
            assert all_of_it.values == {**sent, "stock": {"london": 7}}

    asyncio.run(scenario())
