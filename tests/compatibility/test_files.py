"""Files that version 0.1 wrote, kept as they were: this version opens them, reads the same and goes on from there."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

import tidings
from tests.pipeline.sightings import Sighting, expected_pairs, sightings, subscriptions
from tests.pipeline.test_run import EVENTS, WANTED, delivered, lay_out, put_events
from tests.unit.security.london import NOW_MS
from tidings.delivery.durable_interest import read_advertisement
from tidings.delivery.messages import InterestAdvertisement
from tidings.net.broker.journal import Journal
from tidings.net.transport.frames import read_event
from tidings.node import decode_stored, node_id_of, stored_values
from tidings.overlay import EventId
from tidings.pipeline import Counts, read_pipeline, run
from tidings.security import Identity
from tidings.store import Registry

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WRITTEN = Path(__file__).parent / "written_by_0_1"
ME, OTHER = (node_id_of(Identity(bytes(range(first, first + 32))).public_key) for first in (0, 1))


def test_an_index_is_opened_and_answers_as_its_conditions_say() -> None:
    index = tidings.Index.open(WRITTEN / "index", verify=True)
    kept = [one for one in subscriptions(200) if one["id"] != "s00007"]  # That one was removed before it was saved.
    records = sightings(50, seed=9)
    answers = sorted((record["event_id"], id) for record in records for id in index.match(Sighting.check(record)))
    assert answers == [(event, id) for event, id, _ in expected_pairs(records, kept)] != []


def test_a_journal_is_opened_with_everything_a_broker_must_not_forget(tmp_path: Path) -> None:
    shutil.copy(WRITTEN / "journal.db", tmp_path)

    async def read() -> None:
        journal = Journal(tmp_path / "journal.db")
        (durable,) = journal.durables()
        assert (durable.id, durable.name, durable.type, durable.condition) == (
            "d1",
            "orders",
            "Sighting",
            "speed > 20.0",
        )
        assert (durable.next_position, durable.acknowledged) == (6, 2)
        waiting = [read_event(row.body) for row in await journal.queued("d1", 0)]
        assert [(each.event, each.values["speed"]) for each in waiting] == [
            (EventId(ME, 0, number), 10.0 * number) for number in (3, 4, 5)
        ]
        assert (journal.streams(), journal.received()) == ([(OTHER, 6, 3)], [(OTHER, b"their journal", 42)])
        pending = await journal.pending(OTHER, 1)
        assert [(each.number, each.event, each.only_for) for each in pending] == [
            (number, EventId(ME, 0, number), "x1" if number == 5 else "") for number in (3, 4, 5)
        ]
        events = dict(await journal.pending_packets(OTHER, [3, 4, 5]))
        assert {number: (decode_stored(raw).header.id.seq, stored_values(raw)) for number, raw in events.items()} == {
            number: (number, {"event_id": f"e{number}", "speed": 10.0 * number}) for number in (3, 4, 5)
        }
        ((broker, version, body),) = journal.interests()
        interests = read_advertisement(msgspec.msgpack.decode(body, type=InterestAdvertisement), node_id_of).interests
        assert (broker, version, [each.condition for each in interests]) == (OTHER, 7, ["speed > 30.0"])
        assert [letter.why for letter in await journal.dead_letters()] == ["key: never came"]
        assert journal.meta("router memory") == b"memory"
        assert journal.incarnation == 1
        journal.close()

    asyncio.run(read())


def test_a_registry_is_opened_with_its_types_rights_and_an_audit_trail_that_is_whole(tmp_path: Path) -> None:
    shutil.copy(WRITTEN / "registry.db", tmp_path)
    with Registry.open(tmp_path / "registry.db", now_ms=NOW_MS, create=False) as registry:
        assert [signed.event_type.name for signed in registry.types.all()] == ["Numberplate"]
        assert len(registry.grants.all()) == 1
        assert [kept.id for kept in registry.subscriptions.all()] == ["ccs-1"]
        assert registry.audit.verify().position == 3


@pytest.mark.slow
def test_a_checkpoint_is_taken_up_and_nothing_is_delivered_again(spark: SparkSession, tmp_path: Path) -> None:
    file = lay_out(tmp_path)
    shutil.copytree(WRITTEN / "checkpoint", tmp_path / "checkpoint")
    for seen in (tmp_path / "checkpoint/spark/sources/0").iterdir():  # Spark notes files by their whole path.
        seen.write_text(seen.read_text().replace("/FOLDER", str(tmp_path)))
    put_events(tmp_path, EVENTS[:400], 3)
    put_events(tmp_path, EVENTS[400:600], 2)
    counts = run(spark, read_pipeline(file))
    assert delivered(tmp_path) == expected_pairs(EVENTS[400:600], WANTED)
    first = Counts(events=400, delivered_from=400, deliveries=3469)
    assert counts.events == first.events + 200
    assert counts.deliveries == first.deliveries + len(delivered(tmp_path))
