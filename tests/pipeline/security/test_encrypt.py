"""Mail on Spark: each recipient reads what it may and no more; the bytes are those of the live network (SECURE-INV-8, 13)."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as f

from tests.pipeline.london import SIGHTINGS, WANTED, Sighting, keys, leases, rights, sightings
from tests.unit.security.london import NOW_MS, a_keyring, a_type
from tidings.errors import Denied, InputError
from tidings.events import ARROW_TYPES, EventType, Value
from tidings.pipeline import KeyFile, Rest, admit, genuine, secure, stamp, stamp_files, write_keys
from tidings.security import Mode, Opener, Sealer, SignedType, manifest_of, split

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EVENTS = sightings(300)
WANTING = ("charge", "detective", "stranger")


def events_table(spark: SparkSession, folder: Path, rows: list[dict[str, Value]], parts: int = 2) -> DataFrame:
    """Events in Parquet files, so that each has a place of its own."""
    columns = {a.name: pa.array([row.get(a.name) for row in rows], _arrow(a.type)) for a in Sighting}
    number = pa.array(range(len(rows)), pa.int64())
    table = pa.table({"event_id": number, **{name: _cast(name, column) for name, column in columns.items()}})
    path = folder / "events"
    path.mkdir(parents=True, exist_ok=True)
    size = -(-len(rows) // parts)
    for part in range(parts):
        pq.write_table(table.slice(part * size, size), path / f"{part}.parquet")
    return spark.read.parquet(str(path))


def _arrow(value_type: Any) -> pa.DataType:
    return pa.int64() if str(value_type) == "timestamp" else ARROW_TYPES[value_type]


def _cast(name: str, column: pa.Array) -> pa.Array:
    return column.cast(pa.timestamp("us", "UTC")) if name == "seen_at" else column


def deliveries(events: DataFrame, started_ms: int = NOW_MS) -> DataFrame:
    """Everything to everybody, stamped by its place in its file."""
    spark = events.sparkSession
    people = spark.createDataFrame(
        [(name, f"{name}-1") for name in WANTING], "subscriber string, subscription_id string"
    )
    return stamp_files(events, started_ms=started_ms).crossJoin(people)


def opened(frame: bytes, *names: str, signed_type: SignedType = SIGHTINGS) -> dict[str, Value]:
    """What a live reader with these keys, or all, makes of a frame."""
    return Opener(signed_type, a_keyring(signed_type, names or None)).open_(bytes(frame), NOW_MS).values


def mail(sealed: DataFrame) -> dict[str, dict[int, bytes]]:
    got: dict[str, dict[int, bytes]] = {}
    for row in sealed.collect():
        assert got.setdefault(row.subscriber, {}).setdefault(row.event_id, bytes(row.frame)) == row.frame
    return got


@pytest.fixture(scope="module")
def sealed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[int, bytes]]:
    folder = tmp_path_factory.mktemp("secure")
    table = deliveries(events_table(spark, folder, EVENTS))
    return mail(secure(table, SIGHTINGS, rights(), keys(folder), leases(folder), now_ms=NOW_MS))


def test_a_recipient_s_mail_holds_only_what_it_may_read(sealed: dict[str, dict[int, bytes]]) -> None:
    charged = {number: opened(frame) for number, frame in sealed["charge"].items()}
    assert charged == {number: {name: row[name] for name in ("plate", "seen_at")} for number, row in enumerate(EVENTS)}


def test_a_right_to_one_plate_is_mail_about_one_plate(sealed: dict[str, dict[int, bytes]]) -> None:
    seen = {number: opened(frame) for number, frame in sealed["detective"].items()}
    assert seen == {number: row for number, row in enumerate(EVENTS) if row["plate"] == WANTED}


def test_somebody_without_a_right_gets_no_mail(sealed: dict[str, dict[int, bytes]]) -> None:
    assert sorted(sealed) == ["charge", "detective"]


def test_no_two_frames_that_differ_share_sender_and_moment(sealed: dict[str, dict[int, bytes]]) -> None:
    frames = {frame for of_one in sealed.values() for frame in of_one.values()}
    assert max(Counter(split(frame).event_id for frame in frames).values()) == 1


def test_the_bytes_are_those_that_a_live_sealer_writes(sealed: dict[str, dict[int, bytes]]) -> None:
    for number, frame in sealed["detective"].items():
        parts = split(frame)
        live = Sealer(SIGHTINGS, a_keyring(SIGHTINGS), parts.sender_id)
        assert [live.seal(EVENTS[number], NOW_MS) for _ in range(parts.seq + 1)][-1] == frame


def test_the_same_run_gives_the_same_bytes_however_the_work_is_cut(spark: SparkSession, tmp_path: Path) -> None:
    rows = deliveries(events_table(spark, tmp_path, EVENTS[:80]))
    key_file = keys(tmp_path)
    first = mail(secure(rows.coalesce(1), SIGHTINGS, rights(), key_file, leases(tmp_path), now_ms=NOW_MS))
    shuffled = rows.repartition(5).orderBy(f.desc("plate"))
    again = secure(shuffled, SIGHTINGS, rights(), key_file, leases(tmp_path, first=900), now_ms=NOW_MS)
    assert mail(again) == first


def test_another_run_never_comes_to_the_same_nonce(spark: SparkSession, tmp_path: Path) -> None:
    rows = deliveries(events_table(spark, tmp_path, EVENTS[:40]))
    runs = [
        mail(secure(rows, SIGHTINGS, rights(), keys(tmp_path), leases(tmp_path, run, first), now_ms=NOW_MS))
        for run, first in (("run-1", 100), ("run-2", 200))
    ]
    ids = [{split(frame).event_id for of_one in run.values() for frame in of_one.values()} for run in runs]
    assert ids[0].isdisjoint(ids[1])


def test_a_worker_refuses_other_keys_than_the_job_was_planned_for(spark: SparkSession, tmp_path: Path) -> None:
    rows = deliveries(events_table(spark, tmp_path, EVENTS[:10]))
    planned = secure(rows, SIGHTINGS, rights(), keys(tmp_path), leases(tmp_path), now_ms=NOW_MS)
    ring = a_keyring(SIGHTINGS)
    ring.add(SIGHTINGS.group_ids[0], 99, NOW_MS + 1, bytes(32))
    key_file = write_keys(keys(tmp_path).path, ring)
    with pytest.raises(PySparkException, match="was replaced while the job ran"):
        planned.collect()
    kept = leases(tmp_path, first=500)
    sealed = secure(rows, SIGHTINGS, rights(), key_file, kept, now_ms=NOW_MS).collect()
    assert {split(bytes(row.frame)).sender_id for row in sealed} <= set(range(500, 600))  # Not those of before.


def test_a_file_written_anew_is_another_source(spark: SparkSession, tmp_path: Path) -> None:
    before = {
        row[0]
        for row in stamp_files(events_table(spark, tmp_path, EVENTS[:4], 1), started_ms=0).select("_source").collect()
    }
    after = {
        row[0]
        for row in stamp_files(events_table(spark, tmp_path, EVENTS[4:9], 1), started_ms=0).select("_source").collect()
    }
    assert before.isdisjoint(after)


def test_once_a_right_is_changed_another_sender_id_serves_it(spark: SparkSession, tmp_path: Path) -> None:
    rows = deliveries(events_table(spark, tmp_path, EVENTS[:10])).where("subscriber = 'charge'")
    wide = rights()["charge"]
    narrow = replace(wide, attributes=frozenset({SIGHTINGS.attr_id("plate")}))
    senders, kept = set(), leases(tmp_path)
    for right in (wide, narrow):
        given = secure(rows, SIGHTINGS, {"charge": right}, keys(tmp_path), kept, now_ms=NOW_MS)
        senders.add(frozenset(split(bytes(row.frame)).sender_id for row in given.collect()))
    one, other = senders
    assert one.isdisjoint(other)


def test_the_rest_may_stay_sealed_and_then_everybody_gets_the_same_frame(spark: SparkSession, tmp_path: Path) -> None:
    rows = deliveries(events_table(spark, tmp_path, EVENTS[:60]))
    got = mail(secure(rows, SIGHTINGS, rights(), keys(tmp_path), leases(tmp_path), now_ms=NOW_MS, rest=Rest.SEALED))
    for number, frame in got["detective"].items():
        assert frame == got["charge"][number]
    assert {number: opened(frame, "plate", "seen_at") for number, frame in got["charge"].items()} == {
        number: {name: row[name] for name in ("plate", "seen_at")} for number, row in enumerate(EVENTS[:60])
    }


def test_what_spark_sealed_spark_admits(spark: SparkSession, tmp_path: Path) -> None:
    rows = deliveries(events_table(spark, tmp_path, EVENTS[:50])).where("subscriber = 'charge'")
    mailed = secure(rows, SIGHTINGS, rights(), keys(tmp_path), leases(tmp_path), now_ms=NOW_MS)
    back = genuine(admit(mailed, SIGHTINGS, keys(tmp_path, "plate"))).collect()
    assert sorted(row.plate for row in back) == sorted(str(row["plate"]) for row in EVENTS[:50])


# ── With Spark's own functions ───────────────────────────────────────────────

Text = EventType("Text", one=str, two=str)
TEXTS = a_type(event_type=Text)


def test_spark_s_own_functions_read_and_write_what_we_do(spark: SparkSession, tmp_path: Path) -> None:
    rng = random.Random(3)
    values = [{"one": f"{rng.random()}", "two": "ü" * rng.randint(0, 9)} for _ in range(10_000)]
    rows = spark.createDataFrame(
        [(n, row["one"], row["two"], "r") for n, row in enumerate(values)],
        "n long, one string, two string, subscriber string",
    )
    stamped = stamp(rows, source=f.lit("made up"), offset=f.col("n"), started_ms=NOW_MS)
    right = {"r": replace(rights()["charge"], type_id=TEXTS.type_id, attributes=None)}
    mailed = secure(stamped, TEXTS, right, keys(tmp_path, signed_type=TEXTS), leases(tmp_path), now_ms=NOW_MS)
    natively = _by_attribute(spark, mailed).selectExpr(
        "try_aes_decrypt(concat(nonce, ct), ck, 'GCM', 'NONE', aad) AS plain",
        "ct",
        "substring(aes_encrypt(try_aes_decrypt(concat(nonce, ct), ck, 'GCM', 'NONE', aad), ck, 'GCM', 'NONE', nonce, aad), 13) AS ct2",
    )
    found = natively.collect()
    assert all(row.ct == row.ct2 for row in found)
    assert Counter(bytes(row.plain[5:]).decode() for row in found) == Counter(
        text for row in values for text in row.values()
    )


def _by_attribute(spark: SparkSession, mailed: DataFrame) -> DataFrame:
    """A row for each sealed attribute of two-attribute frames, taken apart with Spark's own functions."""
    keyring = a_keyring(TEXTS)
    held = [(bytearray(gid), 3, bytearray(keyring.get(gid, 3).content_key("pub"))) for gid in TEXTS.group_ids]  # type: ignore[union-attr]
    ring = spark.createDataFrame(held, "attr_id binary, epoch int, ck binary")
    manifest = manifest_of(tuple(sorted(TEXTS.group_ids))).hex()
    first = mailed.selectExpr("frame", "57 AS at")
    sized = "cast(conv(hex(substring(frame, at + 36, 4)), 16, 10) AS int)"
    second = first.selectExpr("frame", f"at + 40 + {sized} AS at")
    return (
        first.union(second)
        .selectExpr(
            "concat(substring(frame, 37, 4), unhex(lpad(hex(shiftleft(cast(conv(hex(substring(frame, 41, 8)), 16, 10) AS bigint), 20) "
            "| cast(conv(hex(substring(frame, 49, 4)), 16, 10) AS bigint)), 16, '0'))) AS nonce",
            "substring(frame, at, 32) AS attr_id",
            "cast(conv(hex(substring(frame, at + 32, 4)), 16, 10) AS int) AS epoch",
            f"substring(frame, at + 40, {sized}) AS ct",
        )
        .join(f.broadcast(ring), ["attr_id", "epoch"])
        .selectExpr(
            "nonce",
            "ct",
            "ck",
            f"concat(unhex('50533102'), unhex('{TEXTS.type_id.hex()}'), attr_id, unhex(lpad(hex(epoch), 8, '0')), unhex('{manifest}')) AS aad",
        )
    )


# ── Refusals, at plan time ───────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"not_after": NOW_MS}, "validity"),
        ({"not_before": NOW_MS + 1}, "validity"),
        ({"actions": frozenset({"publish"})}, "action"),
        ({"type_id": bytes(32)}, "type"),
        ({"constraints": ("no_such > 1",)}, "constraints"),
    ],
)
def test_a_right_that_does_not_hold_is_refused_at_once(
    spark: SparkSession, tmp_path: Path, changed: dict[str, Any], reason: str
) -> None:
    right = replace(rights()["charge"], **changed)
    with pytest.raises(Denied, match=f"^{reason}"):
        _plan(spark, tmp_path, {"charge": right})


def _plan(spark: SparkSession, folder: Path, given: dict[str, Any], signed_type: SignedType = SIGHTINGS) -> DataFrame:
    rows = spark.createDataFrame([], "plate string, subscriber string, _source string, _ts_ms long, _seq long")
    return secure(rows, signed_type, given, KeyFile("/nowhere"), leases(folder), now_ms=NOW_MS, sources=["a"])


def test_who_may_read_part_of_an_event_gets_none_that_is_sealed_as_one(spark: SparkSession, tmp_path: Path) -> None:
    whole = a_type(event_type=Sighting, mode=Mode.EVENT)
    with pytest.raises(Denied, match="^attributes"):
        _plan(spark, tmp_path, {"charge": rights(whole)["charge"]}, whole)


def test_a_type_that_seals_nothing_shows_nobody_what_it_may_not_read(spark: SparkSession, tmp_path: Path) -> None:
    plain = a_type(event_type=Sighting, mode=Mode.PLAIN)
    only_area = replace(rights(plain)["charge"], attributes=frozenset({plain.attr_id("area")}))
    with pytest.raises(Denied, match="does not seal 'plate' separately"):
        _plan(spark, tmp_path, {"charge": only_area}, plain)


@pytest.mark.parametrize("suite", [0x10, 0x11, 0x12])
def test_a_cipher_that_spark_lacks_is_refused_at_once(spark: SparkSession, tmp_path: Path, suite: int) -> None:
    with pytest.raises(InputError, match="live use only"):
        _plan(spark, tmp_path, {}, a_type(event_type=Sighting, suite=suite))


def test_deliveries_without_moments_are_refused_at_once(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.createDataFrame([], "plate string, subscriber string")
    with pytest.raises(InputError, match="`stamp`"):
        secure(rows, SIGHTINGS, rights(), KeyFile("/nowhere"), leases(tmp_path), now_ms=NOW_MS)


def test_leases_are_the_same_after_a_restart_and_new_in_a_new_run(tmp_path: Path) -> None:
    first = leases(tmp_path).senders(["a", "b"], ["x"])
    assert leases(tmp_path, first=500).senders(["b", "a"], ["x"]) == first
    later = leases(tmp_path, first=500).senders(["a", "c"], ["x"])
    assert later == {("a", "x"): first["a", "x"], ("c", "x"): 500}
    assert set(leases(tmp_path, "run-2", 700).senders(["a", "b"], ["x"]).values()) == {700, 701}
