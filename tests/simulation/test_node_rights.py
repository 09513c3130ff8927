"""Whole nodes in a world: what crosses links, who is told what, and that rights that end end at once.

SECURE-INV-3 no plaintext beyond a right, SECURE-INV-4 not even in the same tick, SECURE-INV-5 nobody entitled misses
anything, SECURE-INV-6 and nobody is told more, SECURE-INV-12 a broker without rights learns nothing from values.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from tests.city import NAMES, Sighting, a_city, give
from tidings.errors import Denied
from tidings.filters import parse
from tidings.node import Delivery, Joined, NodePolicy
from tidings.security import PAPER, Broadcast, Mode, NotYet
from tidings.sim import (
    Federation,
    Storm,
    Weather,
    check_bounded,
    check_nothing_lost,
    check_nothing_twice,
    check_nothing_unwanted,
)

PROTOCOLS = ("flooding", "hermes", "irbr")
SEALED = (Mode.EVENT, Mode.ATTRIBUTE)


def random_reads(rng: Random, count: int, mode: Mode) -> list[Sequence[str] | None]:
    """Keys for brokers at random: some have all, some have some, some have none. The first two have all."""
    some: list[Sequence[str] | None] = [None, None]
    for _ in range(count - 2):
        names = [name for name in NAMES if rng.random() < 0.6]
        some.append(None if len(names) == 3 or rng.random() < 0.4 else names)
    return [names if names is None or mode is Mode.ATTRIBUTE else () for names in some]


def random_condition(rng: Random, names: Sequence[str] | None) -> str:
    """A condition on attributes that may be read."""
    tests = {
        "plate": [f"plate LIKE 'A{rng.randrange(3)}%'", f"plate > 'A{rng.randrange(3)}'", "plate IS NOT NULL"],
        "place": [f"place IN ('p{rng.randrange(3)}', 'p{rng.randrange(3)}')", "place IS NULL"],
        "speed": [
            f"speed BETWEEN {rng.randrange(5)} AND {rng.randrange(10)}",
            f"speed <> {rng.randrange(10)}",
        ],
    }
    parts = [rng.choice(tests[name]) for name in (names or NAMES) if rng.random() < 0.7]
    joined = rng.choice([" AND ", " OR "]).join(parts) or "TRUE"
    return f"NOT ({joined})" if parts and rng.random() < 0.2 else joined


def random_values(rng: Random) -> dict[str, Any]:
    values: dict[str, Any] = {"plate": f"A{rng.randrange(4)}", "place": f"p{rng.randrange(4)}"}
    values["speed"] = rng.randrange(10)
    return {name: value for name, value in values.items() if rng.random() < 0.85} or {"speed": 1}


def marked(rng: Random) -> dict[str, Any]:
    """Values that occur nowhere else; the number is marked by being unlikely."""
    return {"plate": rng.randbytes(8).hex(), "place": rng.randbytes(8).hex(), "speed": rng.getrandbits(62)}


def marks_of(value: object) -> list[bytes]:
    """How a value would look in the clear, in a frame and in a message."""
    if isinstance(value, int):
        return [value.to_bytes(8, "big"), value.to_bytes(8, "little"), str(value).encode()]
    return [str(value).encode()]


@pytest.mark.parametrize("mode", SEALED)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_no_link_carries_plaintext_to_a_neighbour_without_the_right(protocol: str, mode: Mode) -> None:
    """SECURE-INV-3: every value has a marker of its own, and every frame of every link is searched."""
    rng = Random(f"{protocol}/{mode}")
    reads = random_reads(rng, 9, mode)
    city = a_city(protocol, mode, reads, seed=3, organisations=[f"org {n % 3}" for n in range(9)])
    frames: list[tuple[str, bytes]] = []
    city.world.watch(lambda sender, to, raw: frames.append((to, raw)))
    for index, names in enumerate(reads):
        if index in city.rights:
            city.ask(index, random_condition(rng, names))
    said = []
    for _ in range(12):
        said.append(marked(rng))
        city.say(rng.randrange(2), **said[-1])
        city.settle()
    index_of = {member.id: member.index for member in city.world.nodes}
    shown = 0
    for to, raw in frames:
        names = reads[index_of[to]]
        for values in said:
            for name, value in values.items():
                if any(mark in raw for mark in marks_of(value)):
                    assert names is None or name in names, f"{name} in the clear to node {index_of[to]}"
                    shown += 1
    # In hermes all ways lead over a rendezvous that may have no rights, and then nobody is shown anything.
    assert shown or protocol == "hermes", "the cache is never used, so this test shows nothing"


@pytest.mark.parametrize("seed", range(1))
@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_sealing_changes_neither_who_is_told_nor_what(protocol: str, mode: Mode, seed: int) -> None:
    """SECURE-INV-5 and SECURE-INV-6: for any assignment of keys, exactly what a reader of the plaintext would be told."""
    rng = Random(f"{protocol}/{seed}")
    reads = random_reads(rng, 9, Mode.ATTRIBUTE if mode is Mode.PLAIN else mode)
    city = a_city(protocol, mode, reads, seed=seed)
    wishes = [(index, random_condition(rng, reads[index])) for index in sorted(city.rights) for _ in range(2)]
    for index, condition in wishes:
        city.ask(index, condition)
    expected: list[tuple[str, str]] = []
    for number in range(15):
        values = random_values(rng)
        city.say(number % 2, **values)
        for index, condition in wishes:
            if parse(condition, Sighting).matches(values):
                names = reads[index] or NAMES
                seen = {name: value for name, value in values.items() if name in names}
                expected.append((city.client(index), repr(sorted(seen.items()))))
        city.settle()
    assert sorted((client, repr(sorted(seen.items()))) for client, seen in city.told()) == sorted(expected)
    assert expected
    check_nothing_lost(city.world.trace)
    check_nothing_twice(city.world.trace)
    check_nothing_unwanted(city.world.trace)
    check_bounded(city.world)


@pytest.mark.parametrize("protocol", ["cbdlo", "simple", "spanhop", "tera"])
def test_an_overlay_that_places_content_is_shown_none_that_is_sealed(protocol: str) -> None:
    """SECURE-INV-3 and SECURE-INV-5 where messages speak of axes, zones and points: nothing of it in them, and nobody misses anything."""
    city = a_city(protocol, Mode.ATTRIBUTE, [None, None, None, ("speed",), (), ()], seed=2)
    frames: list[bytes] = []
    city.world.watch(lambda sender, to, raw: frames.append(raw))
    city.ask(2, "plate > 'marker of the filter' AND speed < 12345678")
    city.ask(3, "speed >= 7654321")
    city.say(1, plate="marker of the filter and more", speed=7654321)
    city.say(1, plate="another marker", speed=1)
    city.settle(5.0)
    assert sorted(client for client, _ in city.told()) == ["c2", "c3"]
    marks = [mark for number in (12345678, 7654321) for mark in marks_of(number)]
    packed = [b"\xce" + number.to_bytes(4, "big") for number in (12345678, 7654321)]
    assert not any(mark in raw for raw in frames for mark in (b"marker", *marks, *packed))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_broker_that_does_not_know_the_type_passes_it_on_all_the_same(protocol: str) -> None:
    reads: list[Sequence[str] | None] = [None, None, None, (), (), (), (), ()]
    city = a_city(protocol, Mode.ATTRIBUTE, reads, seed=1, knowing=[0, 1, 2])
    city.ask(2, "speed > 3")
    city.say(1, plate="A", speed=4)
    city.say(1, plate="A", speed=2)
    city.settle()
    assert city.told() == [("c2", {"plate": "A", "speed": 4})]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("mode", SEALED)
def test_a_broker_without_rights_sees_the_same_whatever_the_values_are(protocol: str, mode: Mode) -> None:
    """SECURE-INV-12: two runs with other values of the same length: the same actions, the same lengths, at every such broker."""

    def run(values: Sequence[dict[str, Any]]) -> list[tuple[float, str, str, int]]:
        reads: list[Sequence[str] | None] = [None, None, None, (), (), (), (), ()]
        city = a_city(protocol, mode, reads, seed=5)
        strangers = {city.world.nodes[index].id for index in range(3, 8)}
        seen: list[tuple[float, str, str, int]] = []

        def watch(sender: str, to: str, raw: bytes) -> None:
            if sender in strangers or to in strangers:
                seen.append((city.world.now, sender, to, len(raw)))

        city.world.watch(watch)
        city.ask(2, "speed > 3")
        for each in values:
            city.say(1, **each)
            city.settle()
        assert len(city.told()) == len(values)
        return seen

    one = run([{"plate": "AB12CDE", "place": "Soho", "speed": 5}, {"plate": "", "speed": 2**40}])
    other = run([{"plate": "ZZ99XXX", "place": "Bank", "speed": 99}, {"plate": "", "speed": 7}])
    assert one == other
    assert one


def test_a_right_revoked_between_receiving_and_sending_on_counts_no_more() -> None:
    """SECURE-INV-4: the effect was made while the neighbour could read; the bytes are made after it no longer can."""
    city = a_city("flooding", Mode.ATTRIBUTE, [None] * 4, seed=2)
    world = city.world
    rng = Random(4)
    for _ in range(20):
        values = marked(rng)
        world.publish_as(1, "c1", "Sighting", values)
        world.run_for(0.1)
    node = world.node(1)
    _, effects = node.publish("c1", "Sighting", marks := marked(rng), world.now)
    sends = [effect for effect in effects if type(effect).__name__ == "Send"]
    assert sends
    for send in sends:
        to = send.to  # type: ignore[union-attr]
        victim = next(member.index for member in world.nodes if member.id == to)
        before = node.frame_for(to, send.message, world.now)  # type: ignore[union-attr]
        assert str(marks["plate"]).encode() in before
        node.revoke(city.rights[victim].revocation_ids, world.now)
        after = node.frame_for(to, send.message, world.now)  # type: ignore[union-attr]
        assert not any(mark in after for value in marks.values() for mark in marks_of(value))
        assert len(after) < len(before)


def test_a_right_that_ends_by_the_clock_ends_in_that_very_moment() -> None:
    """SECURE-INV-4, by expiry: a frame made one millisecond later has no plaintext in it."""
    city = a_city("flooding", Mode.ATTRIBUTE, [None, None, ()], seed=2)
    world, federation = city.world, city.world.federation
    end_ms = world.node(2).now_ms(world.now) + 60_000
    world.hold(2, federation.right(city.signed, world.identity(2), until_ms=end_ms))
    city.settle()
    sender = next(k for k in (0, 1) if world.nodes[2].id in world.node(k).router.links())
    node, to = world.node(sender), world.nodes[2].id
    world.run_for(59.0 - (world.now % 1.0))
    _, effects = node.publish(f"c{sender}", "Sighting", {"plate": "marker-of-this"}, world.now)
    message = next(e.message for e in effects if type(e).__name__ == "Send" and e.to == to)  # type: ignore[union-attr]
    last = (end_ms - node.now_ms(world.now) - 1) / 1000
    assert b"marker-of-this" in node.frame_for(to, message, world.now + last)
    assert b"marker-of-this" not in node.frame_for(to, message, world.now + last + 0.001)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_revoked_broker_reads_nothing_published_after_its_keys_have_changed(protocol: str) -> None:
    """SECURE-INV-2 in a whole network: the revocation reaches the manager, the manager renews the keys, the rest goes on."""
    city = a_city(protocol, Mode.ATTRIBUTE, [None] * 5, seed=7)
    for index in (2, 3):
        city.ask(index, "speed > 0")
    city.say(1, speed=1)
    city.settle()
    assert sorted(city.told()) == [("c2", {"speed": 1}), ("c3", {"speed": 1})]
    city.world.revoke(city.rights[3].revocation_ids)
    city.world.run_for(3.0)
    city.settle()
    city.world.deliveries.clear()
    city.say(1, speed=2)
    city.settle()
    assert city.told() == [("c2", {"speed": 2})]
    assert city.world.identity(3).public_key not in city.manager.groups[city.signed.attr_id("speed")].members


def test_a_publisher_that_no_longer_hears_the_manager_stops() -> None:
    """The beacon rule: cut off, it must not go on under an old key; in reach again, it goes on."""
    city = a_city("flooding", Mode.ATTRIBUTE, [None] * 3, seed=1)
    city.world.run_for(20.0)
    city.say(2, speed=1)
    with city.world.split([0]):
        city.world.run_for(2.0)
        city.say(2, speed=2)
        city.world.run_for(4.0)
        with pytest.raises(Denied, match="beacon: nothing heard"):
            city.say(2, speed=3)
    city.world.run_for(4.0)
    city.say(2, speed=4)


def test_a_key_that_comes_after_its_event_is_waited_for() -> None:
    """An event under a new epoch overtakes the key; it is told when the key is there, and once."""
    city = a_city("flooding", Mode.ATTRIBUTE, [None] * 3, seed=1, organisations=["police", "charge", "police too"])
    city.ask(2, "TRUE")
    world = city.world
    world.run_for(1.0)  # Away from the manager's regular word, which would bring the key first.
    now_ms = world.node(0).now_ms(world.now)
    unsaid = city.manager.revoke(city.rights[1].revocation_ids, now_ms)
    publisher = world.node(0).types[city.signed.type_id.hex()].keys
    assert publisher is not None
    for effect in unsaid:
        if isinstance(effect, Broadcast):
            publisher.receive(effect.message, now_ms)
    world.run_for(0.01)
    city.say(0, speed=9)
    world.run_for(0.2)
    assert world.trace.counted["waiting_for_key"] == 1
    assert city.told() == []
    world.run_for(10.0)
    assert city.told() == [("c2", {"speed": 9})]


def test_whoever_comes_later_reads_from_then_on() -> None:
    city = a_city("irbr", Mode.ATTRIBUTE, [None, None, (), ()], seed=9)
    with pytest.raises(Denied, match="not attached"):
        city.ask(3, "speed > 0")
    give(city, 3, ("plate",))
    city.settle()
    with pytest.raises(Denied, match="attributes: no right to"):
        city.ask(3, "speed > 0")
    city.ask(3, "plate > 'A'")
    city.say(1, plate="B", speed=1)
    city.settle()
    assert city.told() == [("c3", {"plate": "B"})]


def test_a_node_says_why_an_event_was_told_or_not() -> None:
    city = a_city("flooding", Mode.ATTRIBUTE, [None, None, ("plate",)], seed=1)
    first, second = city.ask(2, "plate = 'A'"), city.ask(2, "plate = 'B'")
    event = city.say(1, plate="A", place="secret place")
    city.settle()
    node = city.world.node(2)
    assert node.why(event, first) == "delivered: plate = 'A'"
    assert node.why(event, second) == "not TRUE: plate = 'B'"
    hop = node.hop(event)
    assert hop is not None
    assert (hop.readable, hop.hidden) == (("plate",), ("place",))
    assert "secret place" not in repr(hop)


def test_the_same_world_twice_is_the_same_to_the_last_frame() -> None:
    def run() -> tuple[str, list[Delivery]]:
        city = a_city("irbr", Mode.EVENT, [None, None, None, ()], seed=11)
        city.ask(2, "speed > 1")
        city.say(1, speed=2)
        city.settle()
        return city.world.trace.digest(), city.world.deliveries

    assert run() == run()


def test_a_publisher_waits_for_its_keys() -> None:
    city = a_city("flooding", Mode.ATTRIBUTE, [None, ()], seed=1)
    federation, world = city.world.federation, city.world
    with world.split([0]):
        world.hold(1, federation.right(city.signed, world.identity(1)))
        world.attach(1, "c1", [federation.right(city.signed, federation.identity("c1"))])
        world.run_for(1.0)
        with pytest.raises(NotYet, match="holds no keys of Sighting yet"):
            city.say(1, speed=1)
    world.run_for(20.0)
    city.say(1, speed=1)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_no_link_carries_plaintext_to_whoever_has_just_lost_its_right(protocol: str) -> None:
    """SECURE-INV-4 with events in flight: rights are taken back at random moments, and every frame is looked at as it is made."""
    city = a_city(protocol, Mode.ATTRIBUTE, [None] * 8, seed=4)
    world, rng = city.world, Random(protocol)
    index_of = {member.id: member.index for member in world.nodes}
    for index in (2, 3):
        city.ask(index, "speed >= 0")
    said: list[bytes] = []
    lost: set[int] = set()
    shown: list[int] = []

    def watch(sender: str, to: str, raw: bytes) -> None:
        if any(mark in raw for mark in said):
            assert index_of[to] not in lost, f"plaintext to node {index_of[to]} after it lost its right"
            shown.append(index_of[to])

    world.watch(watch)

    def publish() -> None:
        said.append(rng.randbytes(8).hex().encode())
        world.publish_as(1, "c1", "Sighting", {"plate": said[-1].decode(), "speed": 1})

    def revoke(index: int) -> None:
        lost.add(index)
        world.revoke(city.rights[index].revocation_ids)

    for number in range(40):
        world.at(world.now + number * 0.01, publish)
    for index in (4, 5, 6, 7):
        world.at(world.now + rng.uniform(0.05, 0.35), lambda index=index: revoke(index))  # type: ignore[misc]
    world.run_for(5.0)
    assert lost == {4, 5, 6, 7}
    assert shown
    assert len(city.told()) == 80


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_broker_that_crashed_comes_back_with_new_keys_and_the_same_wishes(protocol: str) -> None:
    city = a_city(protocol, Mode.ATTRIBUTE, [None] * 5, seed=6)
    world = city.world
    city.ask(3, "speed > 3")
    city.say(1, speed=4)
    city.settle()
    world.crash(3)
    city.settle(40.0)
    city.say(1, speed=5)
    world.restart(3)
    city.settle(60.0)
    city.say(1, speed=6)
    city.settle(5.0)
    assert [values["speed"] for _, values in city.told()] == [4, 6]
    ids = [
        effect.sender_id for node, effect in world.effects if isinstance(effect, Joined) and node == world.nodes[3].id
    ]
    assert len(set(ids)) == len(ids) >= 2


@pytest.mark.parametrize("protocol", ["hermes", "irbr"])
def test_lost_and_repeated_messages_keep_nobody_from_its_keys_or_its_events(protocol: str) -> None:
    city = a_city(protocol, Mode.ATTRIBUTE, [None, None, None, (), ()], seed=8)
    world = city.world
    world.strike([Storm(0.0, 120.0, Weather(loss=0.1, repeat=0.1, jitter_s=0.05))])
    give(city, 4, ("plate", "speed"))
    city.settle(60.0)
    city.ask(4, "speed > 3")
    city.settle(60.0)
    for speed in range(8):
        city.say(1, speed=speed, place="hidden")
    city.settle(30.0)
    assert sorted(str(values["speed"]) for _, values in city.told()) == ["4", "5", "6", "7"]
    check_nothing_twice(world.trace)


def test_a_reader_cannot_pass_for_a_publisher_where_signatures_are_asked_for() -> None:
    """SECURE-INV-11: a member with the real keys, but only the right to read, seals and signs an event; nobody is told of it."""
    network_key = Federation(1).network.public_key
    policy = NodePolicy(network_key=network_key, signing="each", need_signatures=True)
    city = a_city("flooding", Mode.ATTRIBUTE, [None, None, None, ()], seed=1, policy=policy)
    world, federation = city.world, city.world.federation
    world.hold(3, federation.right(city.signed, world.identity(3), actions=("subscribe",)))
    world.attach(3, "c3", [federation.right(city.signed, federation.identity("c3"))])
    city.settle(10.0)
    city.ask(2, "speed > 0")
    with pytest.raises(Denied, match="action: publish"):  # Honestly it gets nowhere.
        city.say(3, speed=5)
    forger = world.node(3)
    forger.clients.check_publisher = lambda *asked: None  # type: ignore[method-assign]
    city.say(3, speed=6)
    city.say(1, speed=7)
    city.settle(90.0)
    assert city.told() == [("c2", {"speed": 7})]
    assert world.trace.counted["waiting_for_publisher"] >= 1
    assert world.trace.counted["undelivered_key"] >= 1


def test_a_publisher_is_known_to_readers_that_came_before_it_and_after_it() -> None:
    policy = NodePolicy(network_key=Federation(2).network.public_key, signing="each", need_signatures=True)
    city = a_city("hermes", Mode.EVENT, [None, None, (), ()], seed=2, policy=policy)
    give(city, 2, None)
    city.settle(10.0)
    city.ask(2, "speed > 0")
    city.say(1, speed=1)
    city.settle(5.0)
    give(city, 3, None)
    city.settle(10.0)
    city.say(3, speed=2)
    city.settle(5.0)
    assert city.told() == [("c2", {"speed": 1}), ("c2", {"speed": 2})]


@pytest.mark.parametrize("mode", SEALED)
@pytest.mark.parametrize("protocol", ["hermes", "irbr"])
def test_nothing_is_lost_while_keys_change_and_clocks_differ(protocol: str, mode: Mode) -> None:
    """Keys change every twenty seconds, clocks are up to two seconds apart, and a broker comes late."""
    skews = [0, -2000, 2000, 500, 0]
    city = a_city(protocol, mode, [None, None, None, None, ()], seed=12, skew_ms=skews.__getitem__, refresh_secs=20)
    world = city.world
    for index in (2, 3):
        city.ask(index, f"speed >= {index}")
    for second in range(60):
        city.settle(1.0)
        city.say(1, speed=second % 5)
        if second == 30:
            give(city, 4, None)
    city.settle(5.0)
    expected = {client: [s % 5 for s in range(60) if s % 5 >= least] for client, least in (("c2", 2), ("c3", 3))}
    assert {client: [v["speed"] for who, v in city.told() if who == client] for client in expected} == expected
    epochs = [group.epoch for group in city.manager.groups.values()]
    assert min(epochs) >= 3
    city.ask(4, "speed = 4")
    city.say(1, speed=4)
    city.settle(2.0)
    assert ("c4", {"speed": 4}) in city.told()
    check_nothing_twice(world.trace)


@pytest.mark.parametrize("mode", SEALED)
def test_filters_are_sealed_in_the_papers_profile_and_read_by_those_with_keys(mode: Mode) -> None:
    city = a_city("irbr", mode, [None, None, None, ()], seed=3, suite=PAPER.suite)
    city.ask(2, "speed > 3")
    for speed in range(6):
        city.settle(1.0)
        city.say(1, speed=speed)
    city.settle(5.0)
    assert [values["speed"] for _, values in city.told()] == [4, 5]
    assert city.world.node(1).boundary.holdings()["filters"][0] > 0
