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
from tidings.pipeline import Outcome, match_files
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
    [rejected] = pq.read_table(tmp_path / "out" / "rejected").to_pylist()
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
        [broken] = pq.read_table(tmp_path / name / "quarantine").to_pylist()
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
