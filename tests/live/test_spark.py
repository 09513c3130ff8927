"""Spark on the live network: real brokers, real Spark, and crashes of either."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.types import StringType, StructField, StructType

from tests.live.processes import LiveNetwork as Brokers
from tests.live.together import Together
from tidings.errors import InputError
from tidings.events import EventType, Required, Timestamp, write_file
from tidings.net import Client, DevNetwork, Received
from tidings.pipeline import LiveNetwork, delivery_id, read_pipeline, run
from tidings.pipeline.sinks.live import values_of
from tidings.pipeline.sources.files import spark_schema
from tidings.pipeline.sources.live import table_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.live

COUNT = 300
SIGHTINGS = [{"plate": f"AB{n:03}", "speed": float(n)} for n in range(COUNT)]


class Stopped(Exception):
    """A crash that a test asked for."""


class Batches:
    """foreachBatch: keeps what came, by batch and attempt; fails where it is told to."""

    def __init__(self) -> None:
        self.seen: dict[int, list[list[tuple[str, str, float | None]]]] = {}
        self.fails_in = -1

    def __call__(self, rows: DataFrame, batch: int) -> None:
        found = [(row.event_id, row.plate, row.speed) for row in rows.collect()]
        if found:
            self.seen.setdefault(batch, []).append(found)
        if batch == self.fails_in:
            raise Stopped("in the middle")

    def take(self, stream: DataFrame, checkpoint: Path) -> None:
        """Runs a query until it has taken what is there, or fails."""
        writer = stream.writeStream.foreachBatch(self).option("checkpointLocation", str(checkpoint))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()


def reading(spark: SparkSession, client: Path, **options: Any) -> DataFrame:
    spark.dataSource.register(LiveNetwork)
    reader = spark.readStream.format("tidings").option("client", str(client)).option("type", "Numberplate")
    return reader.option("subscription", "spark").options(**options).load()


def test_a_restart_in_the_middle_loses_and_repeats_nothing(spark: SparkSession, tmp_path: Path) -> None:
    layout = DevNetwork(first_port=0, brokers={"police": 1, "ccs": 1})
    batches = Batches()

    async def scenario() -> None:
        async with Brokers(tmp_path, layout) as network:
            desk, checkpoint = network.laid.clients["ccs/desk"], tmp_path / "state"
            looks = await network.client("ccs/desk")
            await (await looks.subscribe("Numberplate", durable="spark").ready()).close()
            ids = await (await network.client("police/camera")).publish_many("Numberplate", SIGHTINGS)
            await waiting(looks, COUNT)
            stream = await asyncio.to_thread(reading, spark, desk, maxEventsPerTrigger=140)
            batches.fails_in = 1
            with pytest.raises(Exception, match="in the middle"):
                await asyncio.to_thread(batches.take, stream, checkpoint)
            await network.restart("ccs-1")
            batches.fails_in = -1
            again = await asyncio.to_thread(reading, spark, desk, maxEventsPerTrigger=140)
            await asyncio.to_thread(batches.take, again, checkpoint)
            assert [row["waiting"] for row in await looks.ask("durables")] == [0]
            expected = [(id, said["plate"], None) for id, said in zip(ids, SIGHTINGS)]  # No right to speeds.
            assert [row for attempts in batches.seen.values() for row in attempts[-1]] == expected

    asyncio.run(scenario())
    first, second = batches.seen[1]
    assert first == second
    assert [len(attempts[0]) for attempts in batches.seen.values()] == [140, 140, 20]


async def waiting(client: Client, count: int) -> None:
    """Returns when so many events stand in the queue of a client's only durable subscription."""
    async with asyncio.timeout(60):
        while (await client.ask("durables"))[0]["waiting"] < count:
            pass  # Each question is a round trip to the broker.


def test_a_batch_that_is_written_again_is_published_once(spark: SparkSession, tmp_path: Path) -> None:
    spark.dataSource.register(LiveNetwork)

    def write(camera: Path) -> None:
        # Made here: Spark looks for data sources in the session of the thread, which this makes it.
        given = spark.createDataFrame(SIGHTINGS, "plate string, speed double").repartition(2)
        given.write.mode("ignore").parquet(str(tmp_path / "in"))
        rows = spark.readStream.schema(given.schema).parquet(str(tmp_path / "in"))
        writer = rows.writeStream.format("tidings").option("client", str(camera)).option("type", "Numberplate")
        writer = writer.option("checkpointLocation", str(tmp_path / "state")).trigger(availableNow=True)
        writer.start().awaitTermination()

    async def scenario() -> None:
        async with Brokers(tmp_path, DevNetwork(first_port=0, brokers={"police": 1})) as network:
            camera = network.laid.clients["police/camera"]
            heard = await (await network.client("police/desk")).subscribe("Numberplate", durable="all").ready()
            await asyncio.to_thread(write, camera)
            shutil.rmtree(tmp_path / "state" / "commits")  # As if Spark had died before its last word.
            await asyncio.to_thread(write, camera)
            await (await network.client("police/camera")).publish("Numberplate", {"plate": "LAST"})
            async with asyncio.timeout(60):
                found = [(await anext(heard)).values for _ in range(COUNT + 1)]
            assert found[-1] == {"plate": "LAST"}
            assert sorted(found[:-1], key=lambda values: str(values["plate"])) == SIGHTINGS

    asyncio.run(scenario())


EVERYTHING = EventType(
    "Everything", text=str, whole=int, part=float, flag=bool, at=Timestamp, raw=bytes, place={"lat": float}
)


def test_values_of_every_type_come_and_go_unchanged() -> None:
    full = {
        "text": "é",
        "whole": -(2**63),
        "part": 0.1,
        "flag": False,
        "at": Timestamp(-1),
        "raw": b"\0",
        "place.lat": 1.5,
    }
    said: list[dict[str, Any]] = [full, {}, {"text": ""}]
    events = [Received(f"o.1.{n}", "Everything", Timestamp(0), values) for n, values in enumerate(said)]
    schema = StructType([StructField("id", StringType()), *spark_schema(EVERYTHING)])
    rows = table_of(events, schema, "id")
    assert rows.column("id").to_pylist() == ["o.1.0", "o.1.1", "o.1.2"]
    assert values_of(rows, EVERYTHING, "id") == said
    with pytest.raises(InputError, match="no attribute 'id'"):
        values_of(rows, EVERYTHING)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"client": "c.toml", "type": "T"}, "needs the option 'subscription'"),
        ({"client": "c.toml", "type": "T", "subscription": "s", "were": "x > 1"}, "did you mean 'where'"),
        ({"client": "c.toml", "type": "T", "subscription": "s", "maxEventsPerTrigger": "9999"}, "expected 1 to 2048"),
        ({"client": "c.toml", "type": "T", "subscription": "s", "since": "soon"}, "soon"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        LiveNetwork(options).streamReader(StructType())


def test_a_batch_read_is_told_to_be_a_stream() -> None:
    options = {"client": "c.toml", "type": "T", "subscription": "s"}
    with pytest.raises(InputError, match=r"expected spark.readStream, with trigger\(availableNow=True\)"):
        LiveNetwork(options).reader(StructType())


DELIVERY = EventType("Delivery", delivery_id=Required(str), subscriber=str, event=str)
PIPELINE = """
name = "fines"
checkpoint = "state"
[events]
format = "tidings"
client = "network/police/desk/client.toml"
type_name = "Numberplate"
subscription = "fines"
where = "speed >= 100"
records_per_batch = 150
[subscriptions]
path = "wanted"
[deliveries]
format = "tidings"
client = "network/police/camera/client.toml"
type_name = "Delivery"
[quarantine]
path = "broken"
[trigger]
until_empty = true
"""


def test_a_pipeline_reads_from_the_network_and_delivers_to_it(spark: SparkSession, tmp_path: Path) -> None:
    network = Together(tmp_path)
    write_file(DELIVERY, tmp_path / "network" / "Delivery.toml")
    broker = network.laid.brokers["police-1"]
    broker.write_text(broker.read_text().replace("types = [", 'types = ["../../Delivery.toml", '))
    (tmp_path / "wanted").mkdir()
    wanted = {"id": "fast", "subscriber": "ccs", "filter": "speed >= 250"}
    (tmp_path / "wanted" / "1.json").write_text(json.dumps(wanted) + "\n")
    (tmp_path / "fines.toml").write_text(PIPELINE)

    async def scenario() -> None:
        async with network:
            desk, camera = await network.client("police/desk"), await network.client("police/camera")
            await (await desk.subscribe("Numberplate", "speed >= 100", durable="fines").ready()).close()
            heard = await desk.subscribe("Delivery", durable="heard").ready()
            ids = await camera.publish_many("Numberplate", SIGHTINGS)
            counts = await asyncio.to_thread(run, spark, read_pipeline(tmp_path / "fines.toml"))
            assert (counts.events, counts.deliveries, counts.quarantined) == (200, 50, 0)
            await camera.publish("Delivery", {"delivery_id": "last"})
            async with asyncio.timeout(60):
                found = [(await anext(heard)).values for _ in range(51)]
            assert found.pop() == {"delivery_id": "last"}
            assert {values["delivery_id"] for values in found} == {delivery_id(id, "fast") for id in ids[250:]}
            assert {values["subscriber"] for values in found} == {"ccs"}
            assert {json.loads(values["event"])["plate"] for values in found} == {f"AB{n}" for n in range(250, 300)}

    asyncio.run(scenario())
