"""`tidings match` on files: what it writes, what it says, and which code the shell gets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.pipeline.commands import tidings
from tests.pipeline.sightings import Sighting, expected_pairs, sightings, subscriptions, table, write_lines
from tidings.errors import InputError, SetupError, TidingsError
from tidings.events import write_file
from tidings.pipeline import Outcome, match, match_files
from tidings.pipeline.sources.files import format_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVENTS = sightings(500)
WANTED = subscriptions(50)
SMALL = ("--master", "local[2]", "--conf", "spark.sql.shuffle.partitions=2")
EXPECTED = expected_pairs(EVENTS, WANTED)


def written(folder: str | Path) -> list[tuple[str, str, str]]:
    rows = pa.concat_tables([pq.read_table(file) for file in Path(folder).glob("*.parquet")]).to_pylist()
    return sorted((row["event_id"], row["subscription_id"], row["subscriber"]) for row in rows)


def test_the_command_writes_deliveries_sets_rejects_aside_and_exits_with_1(spark: SparkSession, tmp_path: Path) -> None:
    """As a process of its own it is run where its executors are: see `test_cluster`."""
    events = write_lines(tmp_path / "events.jsonl", EVENTS)
    wanted = write_lines(tmp_path / "wanted.jsonl", [*WANTED, {"id": "bad", "subscriber": "x", "filter": "sped > 1"}])
    ended = tidings("match", str(events), str(wanted), "--out", str(tmp_path / "out"), *SMALL, "-o", "json")
    assert ended.code == 1, ended.said
    assert json.loads(ended.out)["deliveries"] == len(EXPECTED)
    assert "did you mean 'speed'" in ended.said
    assert "Traceback" not in ended.said
    assert written(tmp_path / "out") == EXPECTED
    [rejected] = pq.read_table(tmp_path / "out-rejected").to_pylist()
    assert (rejected["id"], rejected["filter"]) == ("bad", "sped > 1")


def test_parquet_in_folders_with_a_declared_type(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "events").mkdir()
    for number in range(2):
        pq.write_table(table(EVENTS[number * 250 :][:250]), tmp_path / "events" / f"{number}.parquet")
    pq.write_table(pa.Table.from_pylist(WANTED), tmp_path / "wanted.parquet")
    outcome = match_files(
        spark, str(tmp_path / "events"), str(tmp_path / "wanted.parquet"), str(tmp_path / "out"), event_type=Sighting
    )
    assert (outcome.deliveries, outcome.rejected, outcome.broken) == (len(EXPECTED), 0, 0)
    assert written(tmp_path / "out") == EXPECTED


def test_broken_lines_are_quarantined_with_and_without_a_declared_type(spark: SparkSession, tmp_path: Path) -> None:
    lines = write_lines(tmp_path / "events.jsonl", EVENTS)
    with lines.open("a") as file:
        file.write('{"event_id": "x", "spe\n')
    wanted = write_lines(tmp_path / "wanted.jsonl", WANTED)
    for name, event_type in (("typed", Sighting), ("inferred", None)):
        out = str(tmp_path / name)
        outcome = match_files(spark, str(lines), str(wanted), out, event_type=event_type)
        assert (outcome.deliveries, outcome.broken) == (len(EXPECTED), 1)
        [broken] = pq.read_table(tmp_path / f"{name}-quarantine").to_pylist()
        assert broken["original"] == b'{"event_id": "x", "spe'


def test_csv_with_and_without_a_declared_type(spark: SparkSession, tmp_path: Path) -> None:
    file = tmp_path / "events.csv"
    file.write_text("sighting,area,speed,lane\n7,EC2,31.5,1\n8,WC1,,2\n")
    rows = [
        {"id": "fast", "subscriber": "x", "filter": "speed > 30"},
        {"id": "none", "subscriber": "x", "filter": "speed IS NULL"},
    ]
    wanted = write_lines(tmp_path / "wanted.jsonl", rows)
    out = str(tmp_path / "a")
    match_files(spark, str(file), str(wanted), out, id="sighting")
    assert [(int(event), id) for event, id, _ in written(out)] == [(7, "fast"), (8, "none")]
    file.write_text("event_id,area,speed,lane\n7,EC2,31.5,1\n8,WC1,,2\n9,WC1,fast,2\n")
    outcome = match_files(spark, str(file), str(wanted), str(tmp_path / "b"), event_type=Sighting)
    assert [(event, id) for event, id, _ in written(tmp_path / "b")] == [("7", "fast"), ("8", "none")]
    assert outcome.broken == 1


def test_wrong_input_is_told_in_a_line(spark: SparkSession, tmp_path: Path) -> None:
    events, wanted = str(write_lines(tmp_path / "e.jsonl", EVENTS)), str(write_lines(tmp_path / "w.jsonl", WANTED))
    (tmp_path / "damaged.parquet").write_bytes(b"PAR1 this is no Parquet PAR1")
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "precious").write_text("keep me")
    (tmp_path / "file").write_text("")
    new = str(tmp_path / "new")
    cases: list[tuple[str, str, str, type[TidingsError], str]] = [
        (str(tmp_path / "none.jsonl"), wanted, new, InputError, "no such file or folder"),
        (events, str(tmp_path / "none.jsonl"), new, InputError, "no such file or folder"),
        (str(tmp_path / "damaged.parquet"), wanted, new, InputError, "damaged"),
        (str(tmp_path / "file"), wanted, new, InputError, "cannot tell the format"),
        (str(tmp_path / "empty.jsonl"), wanted, new, InputError, "no events to take the event type from"),
        (events, wanted, str(tmp_path / "full"), InputError, "is not empty"),
        (events, wanted, str(tmp_path / "file"), InputError, "is a file"),
        (events, wanted, str(tmp_path / "file" / "below"), SetupError, "cannot create a folder"),
    ]
    for events_path, wanted_path, out, error, said in cases:
        with pytest.raises(error, match=said) as raised:
            match_files(spark, events_path, wanted_path, out)
        assert len(str(raised.value).splitlines()) == 1
    assert (tmp_path / "full" / "precious").read_text() == "keep me"


def test_no_subscriptions_and_no_events_end_well(spark: SparkSession, tmp_path: Path) -> None:
    events, nobody = write_lines(tmp_path / "e.jsonl", EVENTS), write_lines(tmp_path / "n.jsonl", [])
    assert match_files(spark, str(events), str(nobody), str(tmp_path / "a")).deliveries == 0
    none, wanted = write_lines(tmp_path / "none.jsonl", []), write_lines(tmp_path / "w.jsonl", WANTED)
    outcome = match_files(spark, str(none), str(wanted), str(tmp_path / "b"), event_type=Sighting)
    assert (outcome.deliveries, outcome.rejected) == (0, 0)


def test_an_explanation_writes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    events, wanted = write_lines(tmp_path / "e.jsonl", EVENTS), write_lines(tmp_path / "w.jsonl", WANTED)
    outcome: Outcome = match_files(spark, str(events), str(wanted), str(tmp_path / "out"), explain_only=True)
    assert outcome.plan.startswith("plan           index to events: ")
    assert not (tmp_path / "out").exists()


def test_a_format_is_told_by_the_name_or_by_what_the_folder_holds(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "_SUCCESS").write_text("")
    (tmp_path / "in" / "part-0.snappy.parquet").write_text("")
    assert format_of(str(tmp_path / "in")) == "parquet"
    assert [format_of(name) for name in ("a.JSON", "a.ndjson.gz", "a.csv", "a.jsonl.zst")] == [
        "json",
        "json",
        "csv",
        "json",
    ]


def test_the_event_type_may_come_from_a_file(spark: SparkSession, tmp_path: Path) -> None:
    write_file(Sighting, tmp_path / "s.toml")
    files = (str(write_lines(tmp_path / "e.jsonl", EVENTS[:5])), str(write_lines(tmp_path / "w.jsonl", WANTED)))
    for name, code in (("s.toml", 0), ("none.toml", 2)):
        out = tmp_path / f"{code}"
        ended = tidings("match", *files, "--out", str(out), "--type", str(tmp_path / name), *SMALL)
        assert (ended.code, out.exists()) == (code, code == 0), ended.said
        assert "Traceback" not in ended.said


def test_events_whose_id_is_null_are_quarantined_and_not_delivered(spark: SparkSession, tmp_path: Path) -> None:
    everything = [{"id": "all", "subscriber": "x", "filter": "TRUE"}]
    wanted = str(write_lines(tmp_path / "w.jsonl", everything))
    unnamed = [{**EVENTS[0], "event_id": None}, {**EVENTS[1], "event_id": None}]
    pq.write_table(table([*EVENTS[:20], *unnamed]), tmp_path / "e.parquet")
    lines = write_lines(tmp_path / "e.jsonl", [*EVENTS[:20], *unnamed])
    (tmp_path / "e.csv").write_text("event_id,lane\n1,2\n,3\n,4\n")
    for path, plan in (("e.parquet", "index"), ("e.parquet", "zones"), (lines.name, "index"), ("e.csv", "index")):
        out = tmp_path / "out"
        outcome = match_files(spark, str(tmp_path / path), wanted, str(out), plan=plan, overwrite=True)
        assert outcome.broken == 2, path
        assert all(event is not None for event, _, _ in written(out))
        assert outcome.deliveries == len(written(out)) == (1 if path == "e.csv" else 20)
        broken = pq.read_table(tmp_path / "out-quarantine").to_pylist()
        assert {row["reason"] for row in broken} == {"has no id: event_id is NULL"}
        assert all(b"lane" in row["original"] for row in broken)
    rows = spark.read.parquet(str(tmp_path / "e.parquet"))
    assert match(rows, spark.createDataFrame(pa.Table.from_pylist(everything))).where("event_id IS NULL").isEmpty()


def test_rejected_and_quarantined_rows_are_no_results_to_other_readers(spark: SparkSession, tmp_path: Path) -> None:
    lines = write_lines(tmp_path / "events.jsonl", [*EVENTS, {"event_id": None}])
    wanted = write_lines(tmp_path / "wanted.jsonl", [*WANTED, {"id": "bad", "subscriber": "x", "filter": "sped > 1"}])
    out = tmp_path / "out"
    outcome = match_files(spark, str(lines), str(wanted), str(out))
    assert (outcome.rejected, outcome.broken) == (1, 1)
    assert len(pq.read_table(out)) == len(EXPECTED)
    with pytest.raises(InputError, match="is not empty"):
        match_files(spark, str(lines), str(wanted), str(out))
    match_files(spark, str(lines), str(write_lines(tmp_path / "good.jsonl", WANTED)), str(out), overwrite=True)
    assert not (tmp_path / "out-rejected").exists(), "of an earlier result"
    for events, known in ((str(lines), str(tmp_path / "none.jsonl")), (str(tmp_path / "none"), str(wanted))):
        with pytest.raises(InputError, match="no such file"):
            match_files(spark, events, known, str(out), overwrite=True)
    assert len(pq.read_table(out)) == len(EXPECTED), "the old result stays where there is no new one"


def test_mistakes_are_found_without_starting_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_start(*given: object) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr("tidings.pipeline.session.start", no_start)
    monkeypatch.setattr("tidings.pipeline.start", no_start, raising=False)
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "e.jsonl", EVENTS)
    write_lines(tmp_path / "w.jsonl", WANTED)
    pq.write_table(table(EVENTS).drop_columns("event_id"), tmp_path / "e.parquet")
    write_lines(tmp_path / "named.jsonl", [{"sighting": "1", "lane": 2}])
    pq.write_table(pa.table({"id": ["a"], "condition": ["TRUE"]}), tmp_path / "w.parquet")
    (tmp_path / "e.csv").write_text("sighting,area\n7,EC2\n")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "precious").write_text("")
    write_lines(tmp_path / "12:00.jsonl", EVENTS)
    write_lines(tmp_path / "colon" / "12:00.jsonl", EVENTS)
    for number in range(3):
        (tmp_path / "parts" / f"area={number}").mkdir(parents=True)
        pq.write_table(pa.table({"sighting": ["a"]}), tmp_path / "parts" / f"area={number}" / "0.parquet")
    for arguments, said in (
        (("e.jsonl", "none.jsonl", "--out", "o"), "no such file or folder: 'none.jsonl'"),
        (("none", "w.jsonl", "--out", "o"), "no such file or folder: 'none'"),
        (("12:00.jsonl", "w.jsonl", "--out", "o"), "a colon in its name; rename it"),
        (("colon", "w.jsonl", "--out", "o"), "a colon in its name; rename it"),
        (("e.parquet", "w.jsonl", "--out", "o"), "the events need a column 'event_id' or 'id'"),
        (("e.csv", "w.jsonl", "--out", "o"), "they have sighting, area"),
        (("parts", "w.jsonl", "--out", "o"), "they have sighting, area"),
        (("e.jsonl", "w.jsonl", "--out", "o", "--keep", "lame"), "did you mean 'lane'"),
        (("e.jsonl", "w.jsonl", "--out", "o", "--plan", "fast"), "expected the plan"),
        (("e.jsonl", "w.jsonl", "--out", "e.csv/o"), "cannot write to"),
        (("e.jsonl", "w.jsonl", "--out", "iceberg:matched"), "expected iceberg:CATALOG.NAMESPACE.TABLE"),
        (("named.jsonl", "w.jsonl", "--out", "o", "--id", "sigthing"), "did you mean 'sighting'"),
        (("e.jsonl", "e.csv", "--out", "o"), "expected subscriptions as JSON lines or Parquet, got csv"),
        (("e.jsonl", "w.parquet", "--out", "o"), "subscriber, filter missing"),
        (("e.jsonl", "w.jsonl", "--out", "full"), "is not empty"),
        (("e.jsonl", "w.jsonl", "--out", "o", "--type", "none.toml"), "none.toml"),
        (("e.jsonl", "w.jsonl", "--out", "s3a:/bucket/o"), "with two slashes"),
        (("e.jsonl", "w.jsonl", "--out", "o", "--conf", "executor.memory=1g"), "spark.key=value"),
    ):
        ended = tidings("match", *arguments)
        assert ended.code == 2, (arguments, ended.said)
        assert said in ended.said, ended.said
        assert not (tmp_path / "o").exists()
