"""What a node makes of a batch, held against what it makes of the same events one by one."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.city import NAMES, Sighting
from tests.unit.node.pair import FEDERATION, a_node, membership
from tidings.errors import Denied, EventError
from tidings.events import rows_of_records
from tidings.node import Delivery, Keep, Node, NodePolicy, PublishedBatch, encode_stored_batch
from tidings.overlay import EventId
from tidings.security import Grant, Mode, SignedType, grant
from tidings.sim import START_MS

OPEN = FEDERATION.type(Sighting, Mode.PLAIN)
UNSIGNED = FEDERATION.type(Sighting, Mode.PLAIN, signatures=False)
SEALED = FEDERATION.type(Sighting, Mode.ATTRIBUTE)
SEALED_WHOLE = FEDERATION.type(Sighting, Mode.EVENT)
SEALED_UNSIGNED = FEDERATION.type(Sighting, Mode.ATTRIBUTE, signatures=False)
READERS: dict[str, tuple[tuple[str, ...] | None, tuple[str, ...]]] = {
    "all": (None, ()),
    "places": (("place",), ()),
    "slow ones": (("plate", "place"), ("speed < 30",)),
}
CONDITIONS = {"all": "speed > 20", "places": "place = 'Soho'", "slow ones": "plate LIKE 'A%'"}


def a_broker(signed: Any = OPEN, neighbours: tuple[str, ...] = ()) -> Node:
    policy = NodePolicy(network_key=FEDERATION.network.public_key, signing="batch", need_signatures=True)
    node = a_node("one", neighbours, policy=policy)
    node.declare(signed, 0.0)
    node.hold(membership(node).to_bytes(), 0.0)
    if signed.mode is not Mode.PLAIN:
        node.host(FEDERATION.key_manager(signed), 0.0)
    node.hold(FEDERATION.right(signed, node.identity).to_bytes(), 0.0)
    for name, (attributes, where) in READERS.items():
        key = FEDERATION.identity(name)
        what = Grant(
            signed.type_id,
            frozenset({"subscribe"}),
            key.public_key,
            attributes=None if attributes is None else frozenset(map(signed.attr_id, attributes)),
            not_before=START_MS,
            not_after=START_MS + 1_000_000,
            constraints=where,
        )
        node.attach(name, key.public_key, [grant(FEDERATION.owner, what, Random(name).randbytes).to_bytes()], 0.0)
        node.subscribe(name, "Sighting", CONDITIONS[name], 0.0)
    camera = FEDERATION.identity("camera")
    node.attach("camera", camera.public_key, [FEDERATION.right(signed, camera).to_bytes()], 0.0)
    return node


def one_by_one(node: Node, events: list[dict[str, Any]]) -> tuple[list[EventId], list[bytes], list[Any]]:
    ids, effects = node.publish_many("camera", "Sighting", events, 0.0, keep=True)
    kept = [effect.raw for effect in effects if isinstance(effect, Keep)]
    told = [(e.client, e.event, dict(e.values)) for e in effects if isinstance(e, Delivery)]
    return ids, kept, told


def together(node: Node, events: list[dict[str, Any]]) -> PublishedBatch:
    known = node.types.find("Sighting")
    rows = rows_of_records(events, known.event_type)
    assert rows is not None
    assert node.takes_batch(known, 0.0)
    return node.publish_batch("camera", known, rows, 0.0)


def sightings() -> st.SearchStrategy[list[dict[str, Any]]]:
    values = {
        "plate": st.sampled_from(["A", "B", "AÖ"]),
        "place": st.sampled_from(["Soho", "Bow"]),
        "speed": st.integers(0, 60),
    }
    names = [
        name for name in NAMES if name in values
    ]  # In the order of the type: the id is a digest of the event as it is.
    return st.lists(
        st.fixed_dictionaries({}, optional={name: values[name] for name in names}).map(
            lambda found: {name: found[name] for name in names if name in found}
        ),
        min_size=1,
        max_size=20,
    )


@settings(max_examples=30, deadline=None)
@given(sightings(), st.sampled_from([OPEN, UNSIGNED, SEALED, SEALED_WHOLE, SEALED_UNSIGNED]))
def test_ids_bytes_on_disk_deliveries_and_traces_are_those_of_the_events(
    events: list[dict[str, Any]], signed: SignedType
) -> None:
    assume(signed.mode is not Mode.ATTRIBUTE or all(events))
    apart, joined = a_broker(signed), a_broker(signed)
    ids, kept, told = one_by_one(apart, events)
    found = together(joined, events)
    assert list(found.batch.ids) == ids
    assert joined.events_in(encode_stored_batch(found.batch)) == list(zip(ids, kept, strict=True))
    delivered = [
        (each.client, found.batch.ids[row], dict(each.shown(row))) for each in found.deliveries for row in each.rows
    ]
    assert sorted(delivered, key=str) == sorted(told, key=str)
    for each in found.deliveries:
        assert list(each.rows) == sorted(each.rows)
    for id in ids:
        one, other = apart.hop(id), joined.hop(id)
        assert one is not None
        assert other is not None
        assert set(one.readable) == set(other.readable)
        assert sorted(one.delivered) == sorted(other.delivered)
        for subscription in joined.subscriptions():
            assert joined.why(id, subscription.id) == apart.why(id, subscription.id)


def test_a_publisher_needs_the_right_to_every_attribute_of_every_event() -> None:
    node = a_broker()
    key = FEDERATION.identity("half")
    node.attach("half", key.public_key, [FEDERATION.right(OPEN, key, ("plate",)).to_bytes()], 0.0)
    known = node.types.find("Sighting")
    rows = rows_of_records([{"plate": "A"}, {"plate": "A", "place": "Soho"}], known.event_type)
    assert rows is not None
    with pytest.raises(Denied):
        node.publish_batch("half", known, rows, 0.0)
    assert len(node.publish_batch("half", known, rows.slice(0, 1), 0.0).batch) == 1


def test_an_event_that_is_too_large_is_refused_in_a_batch_as_well() -> None:
    with pytest.raises(EventError, match="an event has at most 262144"):
        together(a_broker(), [{"plate": "A"}, {"plate": "é" * 140_000}])


def test_a_batch_is_taken_only_where_no_other_node_can_want_it() -> None:
    lonely, linked = a_broker(), a_broker(neighbours=("other",))
    assert lonely.takes_batch(lonely.types.find("Sighting"), 0.0)
    assert not linked.takes_batch(linked.types.find("Sighting"), 0.0)


@pytest.mark.parametrize("signed", [SEALED, SEALED_WHOLE, SEALED_UNSIGNED])
def test_a_sealed_batch_is_on_disk_without_a_byte_of_its_values(signed: SignedType) -> None:
    events = [{"plate": f"PLATE{row}", "place": f"PLACE{row}"} for row in range(300)]
    found = together(a_broker(signed), events)
    raw = encode_stored_batch(found.batch)
    assert len(found.batch) == 300
    assert b"PLATE" not in raw
    assert b"PLACE" not in raw


def test_a_batch_is_not_taken_without_keys_and_the_right_to_publish_every_attribute() -> None:
    def takes(signed: SignedType, hosts: bool, names: tuple[str, ...] | None) -> bool:
        policy = NodePolicy(network_key=FEDERATION.network.public_key, signing="batch", need_signatures=True)
        node = a_node("one", policy=policy)
        node.declare(signed, 0.0)
        node.hold(membership(node).to_bytes(), 0.0)
        if hosts:
            node.host(FEDERATION.key_manager(signed), 0.0)
        node.hold(FEDERATION.right(signed, node.identity, names).to_bytes(), 0.0)
        return node.takes_batch(node.types.find("Sighting"), 0.0)

    assert takes(SEALED, True, None)
    assert not takes(SEALED, True, ("plate",))
    assert not takes(SEALED, False, None)


@pytest.mark.parametrize("signed", [OPEN, SEALED])
def test_an_own_event_of_a_batch_that_comes_back_is_not_delivered_again(signed: SignedType) -> None:
    node = a_broker(signed)
    found = together(node, [{"place": "Soho"}, {"place": "Bow"}])
    ((id, raw), _) = node.events_in(encode_stored_batch(found.batch))
    assert id == found.batch.ids[0]
    again = [effect for effect in node.publish_again(raw, 0.0) if isinstance(effect, Delivery)]
    assert again == []
