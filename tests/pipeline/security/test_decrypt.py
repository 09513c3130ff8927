"""Frames on Spark: opened as on a live broker, refused as on a live broker, keys nowhere to be seen."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tests.pipeline.london import SIGHTINGS, Sighting, frames, keys, sightings
from tests.unit.security.london import CAMERA, CHARGE, NOW_MS, a_keyring, a_type
from tidings.errors import InputError, SetupError
from tidings.events import Timestamp, Value
from tidings.pipeline import KeyFile, admit, genuine, refused, write_keys
from tidings.security import Frame, Identity, PublisherRights, Right, Sealer, State, cached, split

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EVENTS = sightings(60)
FRAMES = frames(EVENTS)
_SIGNED_OTHERWISE = "signature: the batch"


def table(spark: SparkSession, rows: list[bytes]) -> DataFrame:
    return spark.createDataFrame([(bytearray(row),) for row in rows], "frame binary")


def values(row: Any) -> dict[str, Any]:
    """A row's attributes, as a live reader has them."""
    found = {a.name: row[a.name] for a in Sighting if row[a.name] is not None}
    if "seen_at" in found:
        found["seen_at"] = Timestamp(found["seen_at"].astimezone(UTC))
    return found


def in_order(admitted: DataFrame) -> list[Any]:
    return sorted(admitted.collect(), key=lambda row: row["_seq"])


def test_every_event_comes_out_as_it_was_published(spark: SparkSession, tmp_path: Path) -> None:
    rows = in_order(genuine(admit(table(spark, FRAMES), SIGHTINGS, keys(tmp_path))))
    assert [values(row) for row in rows] == EVENTS
    assert [row["_event_id"] for row in rows] == [f"7-{NOW_MS}-{seq}" for seq in range(len(EVENTS))]


def test_an_attribute_without_its_key_is_null(spark: SparkSession, tmp_path: Path) -> None:
    rows = in_order(genuine(admit(table(spark, FRAMES), SIGHTINGS, keys(tmp_path, "plate", "lane"))))
    assert [values(row) for row in rows] == [
        {name: event[name] for name in ("plate", "lane") if name in event} for event in EVENTS
    ]


def test_without_any_key_every_row_is_another_s_mail_and_none_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    nothing = write_keys(tmp_path / "none.keys", a_keyring(SIGHTINGS, ()))
    admitted = admit(table(spark, FRAMES), SIGHTINGS, nothing).collect()
    assert {row["_state"] for row in admitted} == {"no_key"}
    assert not any(values(row) for row in admitted)


def test_what_was_altered_is_quarantined_with_no_more_than_its_header(spark: SparkSession, tmp_path: Path) -> None:
    rng = random.Random(5)
    altered = [_flipped(frame, rng) for frame in FRAMES[:30]] + [b"", b"nonsense", FRAMES[40][:100]]
    admitted = admit(table(spark, [*altered, *FRAMES[30:]]), SIGHTINGS, keys(tmp_path)).cache()
    bad = refused(admitted).collect()
    assert sorted(row["reason"].split(":")[0] for row in bad if row["reason"].startswith("tag")) == ["tag"] * 30
    assert len(bad) == len(altered)
    assert all(len(row["original"]) <= 54 for row in bad)
    assert [values(row) for row in in_order(genuine(admitted))] == EVENTS[30:]


def _flipped(frame: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(frame) - 16, len(frame))
    return frame[:at] + bytes([frame[at] ^ 1]) + frame[at + 1 :]


def test_a_dropped_attribute_is_noticed_by_who_reads_another(spark: SparkSession, tmp_path: Path) -> None:
    whole = split(FRAMES[0])
    kept = list(zip(whole.heads, whole.bodies, strict=True))[1:]
    body = b"".join(head + len(body).to_bytes(4, "big") + body for head, body in kept)
    shorter = whole.raw[:54] + len(kept).to_bytes(2, "big") + body
    (row,) = admit(table(spark, [shorter]), SIGHTINGS, keys(tmp_path)).collect()
    assert row["_state"] == "auth_fail"


def test_an_event_outside_the_time_of_its_epoch_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    early = FRAMES[0][:40] + (NOW_MS - 10_000).to_bytes(8, "big") + FRAMES[0][48:]
    (row,) = refused(admit(table(spark, [early]), SIGHTINGS, keys(tmp_path))).collect()
    assert row["reason"].startswith("epoch: published at")


def test_a_second_copy_is_left_out_but_a_forged_one_keeps_nobody_out(spark: SparkSession, tmp_path: Path) -> None:
    forged = [frame[:-1] + bytes([frame[-1] ^ 1]) for frame in FRAMES]
    admitted = admit(table(spark, [*forged, *FRAMES, *FRAMES]), SIGHTINGS, keys(tmp_path)).cache()
    assert [values(row) for row in in_order(genuine(admitted))] == EVENTS
    assert refused(admitted).count() == len(FRAMES)


def test_a_stream_takes_a_copy_once_even_when_it_comes_later(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "frames"
    for _ in range(2):  # The same frames in two files, and so in two batches.
        table(spark, FRAMES).coalesce(1).write.mode("append").parquet(str(folder))
    stream = spark.readStream.schema("frame binary").option("maxFilesPerTrigger", 1).parquet(str(folder))
    query = (
        admit(stream, SIGHTINGS, keys(tmp_path))
        .writeStream.format("memory")
        .queryName("once")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert [values(row) for row in in_order(spark.table("once"))] == EVENTS


def test_a_live_reader_refuses_what_is_not_fresh(spark: SparkSession, tmp_path: Path) -> None:
    rows = admit(table(spark, FRAMES), SIGHTINGS, keys(tmp_path), is_live=True).collect()
    assert {row["_reason"] for row in rows} == {"fresh: published more than 65000 ms from now"}
    assert not any(values(row) for row in rows)


def test_only_what_a_publisher_with_the_right_has_signed_is_admitted(spark: SparkSession, tmp_path: Path) -> None:
    """SECURE-INV-11: whoever has the keys can seal, and only a publisher's signature is believed."""
    alike = [event for event in EVENTS if set(event) == set(EVENTS[0])][:6]
    by_camera, by_reader = signed_by(CAMERA, 1, alike), signed_by(CHARGE, 2, alike)
    altered = [frame[:-1] + bytes([frame[-1] ^ 1]) for frame in signed_by(CAMERA, 3, alike)]
    everybody_s = [*by_camera, *by_reader, *altered, *frames(alike, 4)]
    publishers = PublisherRights.of([may_publish(CAMERA), may_publish(CHARGE, action="subscribe")])
    admitted = admit(table(spark, everybody_s), SIGHTINGS, keys(tmp_path), publishers=publishers).cache()
    assert [values(row) for row in in_order(genuine(admitted))] == alike
    why = sorted(row["reason"].split(",")[0].split(" of ")[0] for row in refused(admitted).collect())
    assert why == sorted(
        6 * ["publisher: no right"] + 6 * ["signature: the event is not signed"] + 6 * [_SIGNED_OTHERWISE]
    )


def test_a_publisher_s_right_counts_at_the_time_of_the_event(tmp_path: Path) -> None:
    (frame,) = signed_by(CAMERA, 1, EVENTS[:1])
    for times, state in (
        ((NOW_MS, NOW_MS + 1), State.OK),
        ((0, NOW_MS), State.AUTH_FAIL),
        ((NOW_MS + 1, 2**62), State.AUTH_FAIL),
    ):
        right = replace(may_publish(CAMERA), not_before=times[0], not_after=times[1])
        opened = keys(tmp_path).opener(SIGHTINGS, PublisherRights.of([right])).open_(pa.array([frame]))
        assert opened.states.tolist() == [state]
        assert all(why.startswith("publisher: validity: ") for why in opened.reasons.values())


def test_a_publisher_may_sign_only_for_the_attributes_of_its_right(tmp_path: Path) -> None:
    right = replace(may_publish(CAMERA), attributes=frozenset({SIGHTINGS.attr_id("plate")}))
    opener = keys(tmp_path).opener(SIGHTINGS, PublisherRights.of([right]))
    opened = opener.open_(pa.array(signed_by(CAMERA, 1, [{"plate": "P1"}, {"plate": "P1", "lane": 2}])))
    assert opened.states.tolist() == [State.OK, State.AUTH_FAIL]
    assert opened.reasons[1].startswith("publisher: attributes: ")


def signed_by(signer: Identity, sender_id: int, events: list[dict[str, Value]]) -> list[bytes]:
    """Frames of one batch, which rest on one signature."""
    sealer = Sealer(SIGHTINGS, a_keyring(SIGHTINGS), sender_id, signer=signer, signing="batch")
    return sealer.seal_batch(events, NOW_MS)


def may_publish(holder: Identity, action: str = "publish") -> Right:
    return Right(holder.public_key, SIGHTINGS.type_id, frozenset({action}), None, NOW_MS, NOW_MS + 1000, 0)


def test_plaintext_that_a_relay_sent_along_is_not_believed(spark: SparkSession, tmp_path: Path) -> None:
    lie: Frame = split(FRAMES[0])
    with_lie = cached(SIGHTINGS, lie, {**EVENTS[0], "plate": "FORGED"}, None)
    (row,) = genuine(admit(table(spark, [with_lie]), SIGHTINGS, keys(tmp_path))).collect()
    assert values(row) == EVENTS[0]


@pytest.mark.parametrize("suite", [0x10, 0x11, 0x12])
def test_a_type_whose_cipher_spark_lacks_is_refused_at_once(spark: SparkSession, suite: int) -> None:
    live_only = a_type(event_type=Sighting, suite=suite)
    with pytest.raises(InputError, match="live use only"):
        admit(table(spark, []), live_only, KeyFile("/nowhere"))


def test_a_table_without_frames_is_refused_at_once(spark: SparkSession) -> None:
    with pytest.raises(InputError, match="binary column 'frame'"):
        admit(spark.range(3), SIGHTINGS, KeyFile("/nowhere"))


def test_a_key_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    file = keys(tmp_path)
    Path(file.path).chmod(0o640)
    with pytest.raises(SetupError, match="expected mode 600"):
        file.read(SIGHTINGS)


@pytest.mark.parametrize("content", [b"", b"tidings/keyring/1\0", b"tidings/keyring/1\0\x91\xc0", b"x" * 100])
def test_a_damaged_key_file_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "damaged.keys"
    file.write_bytes(content)
    file.chmod(0o600)
    with pytest.raises(SetupError, match="not a key file of Sighting"):
        KeyFile(str(file)).read(SIGHTINGS)


def test_a_missing_key_file_is_told_by_its_name() -> None:
    with pytest.raises(SetupError, match="'/nowhere/keys'"):
        KeyFile("/nowhere/keys").read(SIGHTINGS)
