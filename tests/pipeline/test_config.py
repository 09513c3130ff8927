"""A pipeline's file is checked as a whole, and what is wrong is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidings.errors import InputError, SetupError
from tidings.events import EventType, write_file
from tidings.pipeline import BatchLog, Counts, check_pipeline, delivery_id, read_pipeline
from tidings.pipeline.state.batch_log import BatchEntry

WHOLE = """
name = "p"
checkpoint = "state"
[events]
format = "json"
path = "in"
type = "t.toml"
[subscriptions]
path = "wanted"
[deliveries]
path = "out"
[quarantine]
path = "broken"
"""
TO_TOPIC = 'format = "kafka"\nservers = "h:9"\ntopic = "t"\n[deliveries.options]\n'


def written(folder: Path, text: str) -> Path:
    file = folder / "p.toml"
    file.write_text(text)
    return file


def test_paths_are_taken_from_the_files_own_folder(tmp_path: Path) -> None:
    pipeline = read_pipeline(written(tmp_path, WHOLE))
    assert pipeline.checkpoint == str(tmp_path / "state")
    assert pipeline.events.type == str(tmp_path / "t.toml")
    assert read_pipeline(written(tmp_path, WHOLE.replace('"out"', '"s3a://b/out"'))).deliveries.path == "s3a://b/out"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('format = "json"', 'format = "jason"', "Invalid enum value 'jason'"),
        ('path = "in"', "", "events.path: needed with format 'json'"),
        ('type = "t.toml"', "", "events.type: needed with format 'json'"),
        ('path = "wanted"', 'path = "wanted"\nspeed = 3', "unknown field `speed`"),
        ('name = "p"', "name = 7", "Expected `str`, got `int` - at `name`"),
        ('name = "p"', "", "missing required field `name`"),
        ('path = "out"', 'path = "out"\n[trigger]\nevery_s = -1', "trigger.every_s"),
        ('path = "out"', 'path = "out"\n[spark]\nmemory = "2g"', "expected settings such as"),
        ('name = "p"', "name = ", "Invalid value"),
        ('path = "out"', 'format = "kafka"', "deliveries.servers: needed with format 'kafka'"),
        ('path = "out"', 'path = "out"\n[deliveries.options]\na = 1', "deliveries.options: only with format 'kafka'"),
        ('path = "out"', f'{TO_TOPIC}"kafka.acks" = 1', "deliveries.options.kafka.acks: expected 'all'"),
        ('path = "out"', f'{TO_TOPIC}startingOffsets = "latest"', "the checkpoint decides where to read"),
        ('path = "out"', f'{TO_TOPIC}"kafka.bootstrap.servers" = "h:1"', "given by deliveries.servers"),
        ('path = "in"', 'path = "in"\nvalue = "avro"', 'events.value: avro needs options."schema.registry.url"'),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, old: str, new: str, said: str) -> None:
    with pytest.raises(InputError, match="p.toml") as error:
        read_pipeline(written(tmp_path, WHOLE.replace(old, new)))
    assert said in str(error.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        read_pipeline(tmp_path / "none.toml")


def test_a_checkpoint_belongs_to_one_run_at_a_time(tmp_path: Path) -> None:
    first = BatchLog(str(tmp_path / "cp"))
    with pytest.raises(InputError, match="in use by another run"):
        BatchLog(str(tmp_path / "cp"))
    first.close()
    BatchLog(str(tmp_path / "cp")).close()


def test_a_checkpoint_that_cannot_be_written_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SetupError, match="cannot write the checkpoint"):
        BatchLog(str(tmp_path / "file" / "cp"))


def test_a_batch_log_adds_up_what_is_done_and_only_that(tmp_path: Path) -> None:
    log = BatchLog(str(tmp_path))
    log.begin(0, 1)
    log.finish(0, Counts(events=5, delivered_from=2, unmatched=2, quarantined=1, deliveries=9))
    log.begin(1, 1, rejected=3)
    log.finish(1, Counts(events=1, unmatched=1, rejected=3))
    log.begin(2, 2)
    assert log.totals() == Counts(events=6, delivered_from=2, unmatched=3, quarantined=1, deliveries=9, rejected=3)
    assert log.totals().add_up()
    assert log[2] == BatchEntry(2, epoch=1)
    assert log[3] is None
    log.close()


def test_delivery_ids_differ_where_pairs_do_and_not_otherwise() -> None:
    pairs = [("a", "bc"), ("ab", "c"), ("", "abc"), ("abc", ""), ("ä", "b")]
    assert len({delivery_id(*pair) for pair in pairs}) == len(pairs)
    assert delivery_id("a", "bc") == "fac4d75282e3de358e8a42f2e1166bfe"


def test_a_variable_that_is_not_there_is_told_before_spark_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = WHOLE.replace('path = "out"', TO_TOPIC + '"kafka.sasl.jaas.config" = "x ${env:TIDINGS_TEST_SECRET}"')
    (tmp_path / "in").mkdir()
    (tmp_path / "wanted").mkdir()
    write_file(EventType("T", event_id=str), tmp_path / "t.toml")
    pipeline = read_pipeline(written(tmp_path, text))
    with pytest.raises(InputError, match="the environment has no variable 'TIDINGS_TEST_SECRET'"):
        check_pipeline(pipeline)
    monkeypatch.setenv("TIDINGS_TEST_SECRET", "y")
    check_pipeline(pipeline)
