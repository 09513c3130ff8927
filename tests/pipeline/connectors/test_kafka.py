"""Against a real Kafka: topics as source, as sink and as subscriptions; stopped in the middle, nothing is lost or repeated."""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.pipeline.kafka_broker import broker, jars, make_topic, received, send
from tests.pipeline.sightings import Record, Sighting, expected_pairs, sightings, subscriptions
from tests.pipeline.test_run import struck_run
from tidings.errors import SetupError
from tidings.events import write_file
from tidings.pipeline import BatchDone, delivery_id, read_pipeline, run
from tidings.pipeline.connectors.kafka import KafkaSink, end_offsets, read_topic
from tidings.pipeline.state.epoch import Epoch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

PIPELINE = """
name = "kafka"
checkpoint = "checkpoint"
[events]
format = "kafka"
servers = "{servers}"
topic = "{name}-events"
type = "sighting.toml"
records_per_batch = 150
[subscriptions]
format = "kafka"
servers = "{servers}"
topic = "{name}-subscriptions"
[deliveries]
format = "kafka"
servers = "{servers}"
topic = "{name}-deliveries"
[quarantine]
path = "quarantine"
[trigger]
until_empty = true
"""
WANTED = subscriptions(40)


@dataclass(frozen=True)
class Kafka:
    """A broker, and a Spark that can talk to it."""

    servers: str
    spark: SparkSession

    def send_events(self, name: str, events: list[Record]) -> None:
        send(self.spark, self.servers, f"{name}-events", ((event["event_id"], json.dumps(event)) for event in events))

    def send_subscriptions(self, name: str, rows: list[Record], gone: tuple[str, ...] = ()) -> None:
        messages = [(row["id"], json.dumps(row)) for row in rows] + [(id, None) for id in gone]
        send(self.spark, self.servers, f"{name}-subscriptions", messages)

    def delivered(self, name: str) -> list[tuple[str, str, str]]:
        """What a reader of the topic finds; every message's key is its delivery id."""
        found = [(key, json.loads(value)) for key, value in received(self.spark, self.servers, f"{name}-deliveries")]
        assert all(key == delivery_id(row["event_id"], row["subscription_id"]) for key, row in found)
        return sorted((row["event_id"], row["subscription_id"], row["subscriber"]) for _, row in found)

    def lay_out(self, name: str, folder: Path, cleanup: str = "compact") -> Path:
        make_topic(self.spark, self.servers, f"{name}-events", partitions=3)
        make_topic(self.spark, self.servers, f"{name}-subscriptions", cleanup_policy=cleanup)
        make_topic(self.spark, self.servers, f"{name}-deliveries", partitions=2)
        write_file(Sighting, folder / "sighting.toml")
        file = folder / "pipeline.toml"
        file.write_text(PIPELINE.format(servers=self.servers, name=name))
        return file


def test_without_the_connector_the_error_says_how_to_get_it(spark: SparkSession) -> None:
    """Stands first: once the fixture below has given a session the connector, it has it for good."""
    with pytest.raises(SetupError, match="--conf spark.jars="):
        read_topic(spark, "localhost:9", "t", 10)
    with pytest.raises(SetupError, match="--conf spark.jars="):
        end_offsets(spark, "localhost:9", "t")


@pytest.fixture(scope="module")
def kafka(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    for jar in jars("connector"):
        spark.sql(f"ADD JAR '{jar}'")
    with broker(tmp_path_factory.mktemp("kafka")) as servers:
        yield Kafka(servers, spark)


def test_subscriptions_in_a_compacted_topic_change_from_one_batch_to_the_next(kafka: Kafka, tmp_path: Path) -> None:
    pipeline = read_pipeline(kafka.lay_out("changes", tmp_path))
    first, later = sightings(150), sightings(150, first=500)
    kafka.send_subscriptions("changes", [{**WANTED[0], "filter": "TRUE"}, *WANTED])  # The later word counts.
    kafka.send_events("changes", first)
    changed = {**WANTED[0], "filter": "lane = 3"}
    added = {"id": "new", "subscriber": "late", "filter": "lane = 1"}

    def change_after_the_first(done: BatchDone) -> None:
        if done.batch == 0:
            kafka.send_subscriptions("changes", [changed, added], gone=(WANTED[1]["id"],))

    run(kafka.spark, pipeline, change_after_the_first)
    kafka.send_events("changes", later)
    send(kafka.spark, kafka.servers, "changes-events", [(None, '{"event_id": "x"'), (None, None)])
    counts = run(kafka.spark, pipeline)
    expected = expected_pairs(first, WANTED) + expected_pairs(later, [changed, *WANTED[2:], added])
    assert kafka.delivered("changes") == sorted(expected)
    assert (counts.events, counts.quarantined, counts.deliveries) == (302, 2, len(expected))
    assert counts.add_up()


def test_a_message_whose_id_is_not_its_key_is_quarantined(kafka: Kafka, tmp_path: Path) -> None:
    # A compacted topic takes no message without a key.
    pipeline = read_pipeline(kafka.lay_out("keys", tmp_path, cleanup="delete"))
    messages = [
        ("a", '{"subscriber": "x", "filter": "lane = 1"}'),
        ("b", '{"id": "c", "subscriber": "x", "filter": "lane = 1"}'),
        (None, '{"id": "d", "subscriber": "x", "filter": "lane = 1"}'),
        ("e", "no JSON"),
    ]
    send(kafka.spark, kafka.servers, "keys-subscriptions", messages)
    events = sightings(40)
    kafka.send_events("keys", events)
    run(kafka.spark, pipeline)
    assert kafka.delivered("keys") == expected_pairs(events, [{"id": "a", "subscriber": "x", "filter": "lane = 1"}])
    rejected = kafka.spark.read.parquet(str(tmp_path / "quarantine" / "subscriptions")).collect()
    assert sorted(bytes(row.original).decode() for row in rejected) == sorted(value for _, value in messages[1:])
    assert any("key is 'b', but its id is 'c'" in row.reason for row in rejected)


def test_a_batch_that_was_half_sent_is_completed_and_not_repeated(kafka: Kafka, tmp_path: Path) -> None:
    make_topic(kafka.spark, kafka.servers, "halves", partitions=2)
    whole = kafka.spark.createDataFrame([(f"d{n:03}", f"e{n}") for n in range(100)], ["delivery_id", "event_id"])
    for part in (whole.where("event_id < 'e5'"), whole, whole):
        epoch = Epoch.claim(str(tmp_path))
        sink = KafkaSink(kafka.spark, kafka.servers, "halves", epoch)
        sink.prepare()
        sink.put(part, 7)
        epoch.close()
    assert Counter(key for key, _ in received(kafka.spark, kafka.servers, "halves")) == Counter(
        f"d{n:03}" for n in range(100)
    )


def test_killed_in_the_middle_and_started_again_nothing_is_lost_or_repeated(kafka: Kafka, tmp_path: Path) -> None:
    file = kafka.lay_out("killed", tmp_path)
    events = sightings(400)
    kafka.send_subscriptions("killed", WANTED)
    kafka.send_events("killed", events)
    connector = f"spark.jars={','.join(str(jar) for jar in jars('connector'))}"
    # At the mark of a batch whose sending now begins.
    code, said = struck_run(("KILL", "after", "checkpoint/kafka/", 2), file, "--conf", connector)
    assert code == -signal.SIGKILL, said
    run(kafka.spark, read_pipeline(file))
    assert kafka.delivered("killed") == expected_pairs(events, WANTED)


def test_a_topic_that_does_not_exist_has_no_offsets_and_no_broker_is_an_error(kafka: Kafka) -> None:
    assert end_offsets(kafka.spark, kafka.servers, "no-such-topic") == {}
    with pytest.raises(SetupError, match="does not answer for topic 'a'"):
        end_offsets(kafka.spark, "127.0.0.1:9", "a", wait_ms=500)
