"""Against a real Kafka and a real schema registry: topics as source, as sink and as subscriptions; stopped in the middle, nothing is lost or repeated."""

from __future__ import annotations

import io
import json
import pickle
import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient

from tests.pipeline.kafka_broker import (
    PASSWORD,
    USER,
    Addresses,
    broker,
    jars,
    make_topic,
    received,
    schema_registry,
    send,
)
from tests.pipeline.sightings import Record, Sighting, expected_pairs, sightings, subscriptions
from tests.pipeline.test_run import struck_run
from tidings.errors import SetupError
from tidings.events import write_file
from tidings.pipeline import BatchDone, delivery_id, read_pipeline, run
from tidings.pipeline.connectors.kafka import KafkaSink, end_offsets, read_topic
from tidings.pipeline.connectors.schema_registry import decoder_of
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
    addresses: Addresses

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
    with broker(tmp_path_factory.mktemp("kafka")) as addresses:
        yield Kafka(addresses.plain, spark, addresses)


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


# ── With a password, over TLS, by a schema registry ──────────────────────────

OPTIONS = """
[events.options]
startingOffsets = "earliest"
failOnDataLoss = false
"schema.registry.url" = "{registry}"
{security}
[subscriptions.options]
{security}
[deliveries.options]
"kafka.compression.type" = "zstd"
{security}
"""
SECURITY = """
"kafka.security.protocol" = "SASL_SSL"
"kafka.sasl.mechanism" = "SCRAM-SHA-512"
"kafka.sasl.jaas.config" = '''{module} required username="{user}" password="${{env:KAFKA_TEST_PASSWORD}}";'''
"kafka.ssl.truststore.type" = "PEM"
"kafka.ssl.truststore.location" = "{authority}"
"""
MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
AVRO = {
    "type": "record",
    "name": "Sighting",
    "fields": [
        *({"name": name, "type": "string"} for name in ("event_id", "plate", "area")),
        {"name": "speed", "type": ["null", "double"]},
        {"name": "lane", "type": ["null", "long"]},
    ],
}


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with schema_registry(tmp_path_factory.mktemp("registry")) as url:
        yield url


def registered(registry: str, subject: str, schema: str, kind: str, references: list[Any] | None = None) -> bytes:
    """Registers a schema; returns what a message of it begins with."""
    client = SchemaRegistryClient({"url": registry})
    return b"\0" + client.register_schema(subject, Schema(schema, kind, references or [])).to_bytes(4, "big")


def test_a_pipeline_with_a_password_over_tls_reads_avro_by_a_schema_registry(
    kafka: Kafka, registry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = kafka.lay_out("safe", tmp_path)
    secured = file.read_text().replace(kafka.servers, kafka.addresses.secured)
    security = SECURITY.format(module=MODULE, user=USER, authority=kafka.addresses.authority)
    file.write_text(secured.replace('type = "sighting', 'value = "avro"\ntype = "sighting') + OPTIONS.format(
        registry=registry, security=security
    ))  # fmt: skip
    events = [{**row, "position": None} for row in sightings(120)]
    head = registered(registry, "safe-events-value", json.dumps(AVRO), "AVRO")
    messages = [head + avro(event) for event in events]
    broken = [head + b"\x02", b"\0\xff\xff\xff\xff", b"no schema"]
    send(kafka.spark, kafka.servers, "safe-events", [(None, message) for message in messages + broken])
    kafka.send_subscriptions("safe", WANTED)

    monkeypatch.setenv("KAFKA_TEST_PASSWORD", "wrong")
    with pytest.raises(SetupError, match="Authentication failed") as refused:
        run(kafka.spark, read_pipeline(file))
    assert len(str(refused.value).splitlines()) == 1
    monkeypatch.setenv("KAFKA_TEST_PASSWORD", PASSWORD)
    counts = run(kafka.spark, read_pipeline(file))
    assert kafka.delivered("safe") == expected_pairs(events, WANTED)
    assert (counts.events, counts.quarantined) == (len(messages) + len(broken), len(broken))
    kept = kafka.spark.read.parquet(str(tmp_path / "quarantine" / "events")).collect()
    assert sorted(bytes(row.original) for row in kept) == sorted(broken)
    assert any("schema 4294967295 is not in the registry" in row.reason for row in kept)


def avro(record: Record) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(AVRO), record)
    return out.getvalue()


PROTO = """syntax = "proto3";
import "google/protobuf/timestamp.proto";
import "place.proto";
message Other { string unused = 1; message Inner { int64 count = 1; } }
message Sighting {
  string plate = 1; int64 lane = 2; optional double speed = 3; places.Place place = 4;
  google.protobuf.Timestamp seen = 5; repeated string tags = 6; map<string, int64> sums = 7; Kind kind = 8;
  enum Kind { CAR = 0; VAN = 1; }
}
"""
JSON_SCHEMA = {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"}
PLACE = 'syntax = "proto3"; package places; message Place { string area = 1; }'


def test_protobuf_and_json_messages_become_documents(registry: str) -> None:
    place = registered(registry, "place", PLACE, "PROTOBUF")
    assert place
    head = registered(registry, "p-value", PROTO, "PROTOBUF", [SchemaReference("place.proto", "place", 1)])
    decode = decoder_of("protobuf", {"schema.registry.url": registry})
    assert decode is not None
    # By hand: plate "AB", lane 9007199254740993, place.area "WC1", seen 1 s after 1970, tags a and b, sums {x: 5}, VAN.
    content = b"\x0a\x02AB\x10\x81\x80\x80\x80\x80\x80\x80\x10\x22\x05\x0a\x03WC1\x2a\x02\x08\x01"
    content += b"\x32\x01a\x32\x01b\x3a\x05\x0a\x01x\x10\x05\x40\x01"
    found = pickle.loads(pickle.dumps(decode))(
        pa.array([head + b"\x02\x02" + content, head + b"\x04\x00\x00\x08\x06", head + b"\x02\x08", b"", None])
    )
    assert [json.loads(line) for line in found.lines.to_pylist()] == [
        {"plate": "AB", "lane": 2**53 + 1, "place": {"area": "WC1"}, "seen": "1970-01-01T00:00:01Z",
         "tags": ["a", "b"], "sums": {"x": 5}, "kind": "VAN"},
        {"count": 6},
    ]  # fmt: skip
    assert (found.kept, [row for row, _ in found.broken]) == ([0, 1], [2, 3, 4])

    head = registered(registry, "j-value", json.dumps(JSON_SCHEMA), "JSON")
    plain = decoder_of("json", {"schema.registry.url": registry})
    assert plain is not None
    assert plain(pa.array([head + b'{"a": 1}'])).lines.to_pylist() == [b'{"a": 1}']
    assert "expects protobuf" in decode(pa.array([head + b"{}"])).broken[0][1]


def test_a_registry_that_does_not_answer_ends_the_run_and_is_no_broken_record() -> None:
    decode = decoder_of("avro", {"schema.registry.url": "http://127.0.0.1:9", "schema.registry.max.retries": "0"})
    assert decode is not None
    with pytest.raises(SetupError, match="does not answer"):
        decode(pa.array([b"\0\0\0\0\1"]))
