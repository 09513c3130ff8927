"""A later run fences the earlier ones: the checkpoint has one owner, on whichever host."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from tests.pipeline.sightings import expected_pairs
from tests.pipeline.test_run import EVENTS, WANTED, delivered, lay_out, put_events
from tidings.errors import InputError
from tidings.pipeline import BatchDone, BatchLog, Counts, read_pipeline, run
from tidings.pipeline.state.epoch import Epoch, EpochRecord, StaleRun
from tidings.pipeline.stream_job import StreamJob

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def move_to_another_host(checkpoint: Path) -> None:
    """As if the owner ran elsewhere: whether it lives cannot be seen from here."""
    file = max((checkpoint / "epochs").glob("*.json"))
    record = msgspec.json.decode(file.read_bytes(), type=EpochRecord)
    file.write_bytes(msgspec.json.encode(msgspec.structs.replace(record, host="elsewhere")))


def test_a_run_that_was_taken_over_may_begin_and_finish_nothing(tmp_path: Path) -> None:
    old = BatchLog(str(tmp_path))
    old.begin(0, 1)
    move_to_another_host(tmp_path)
    new = BatchLog(str(tmp_path))
    assert new.epoch.number == old.epoch.number + 1
    assert new.epoch.pipeline == old.epoch.pipeline
    for write in (lambda: old.begin(1, 1), lambda: old.finish(0, Counts(events=1, unmatched=1))):
        with pytest.raises(StaleRun, match="another run has taken over the checkpoint"):
            write()
    assert new[0] is not None
    assert new[0].counts is None
    new.finish(0, Counts(events=2, unmatched=2))
    assert new.totals().events == 2
    old.close()
    new.close()


def test_a_living_owner_on_this_host_is_not_taken_over_and_a_dead_one_is(tmp_path: Path) -> None:
    program = f"from tidings.pipeline import BatchLog; import sys; BatchLog({str(tmp_path)!r}); print('mine', flush=True); sys.stdin.read()"
    owner = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": "src"},
    )
    assert owner.stdout is not None
    assert owner.stdout.readline() == b"mine\n"
    with pytest.raises(InputError, match=f"in use by another run .process {owner.pid} on "):
        BatchLog(str(tmp_path))
    owner.kill()
    owner.wait()
    taken = BatchLog(str(tmp_path))
    assert taken.epoch.number == 2
    taken.close()


def test_each_epoch_has_a_spark_checkpoint_of_its_own_with_what_the_last_one_had(tmp_path: Path) -> None:
    (tmp_path / "spark" / "offsets").mkdir(parents=True)  # As version 0.1 left it.
    (tmp_path / "spark" / "offsets" / "0").write_text("v1")
    for number in range(1, 5):
        epoch = Epoch.claim(str(tmp_path))
        folder = Path(epoch.own_spark_checkpoint())
        assert (folder.name, (folder / "offsets" / "0").read_text()) == (f"spark-{number:09}", "v1")
        assert sorted(path.name for path in (folder / "offsets").iterdir()) == [str(n) for n in range(number)]
        (folder / "offsets" / str(number)).write_text("more")
        epoch.close()
    cut_short = Epoch.claim(str(tmp_path))  # Killed before it has copied everything.
    (tmp_path / f"spark-{cut_short.number:09}" / "offsets").mkdir(parents=True)
    cut_short.close()
    folder = Path(Epoch.claim(str(tmp_path)).own_spark_checkpoint())
    assert len(list((folder / "offsets").iterdir())) == 5
    assert len([path for path in tmp_path.iterdir() if path.name.startswith("spark-")]) <= 3


def test_a_batch_that_a_stale_run_began_with_other_events_is_not_repeated_with_these(tmp_path: Path) -> None:
    old = BatchLog(str(tmp_path))
    offsets_of(old).joinpath("7").write_text("three files")
    old.begin(7, 1)  # A moment after the new run has copied the offsets of Spark, and before it noticed that run.
    move_to_another_host(tmp_path)
    new = BatchLog(str(tmp_path))
    offsets_of(new).joinpath("7").write_text("two files")
    with pytest.raises(InputError, match="begun with other events"):
        new.begin(7, 1)
    found = new[7]
    assert found is not None
    with pytest.raises(InputError, match="begun with other events"):
        new.same_input(7, found)
    offsets_of(new).joinpath("7").write_text("three files")
    assert new.begin(7, 2).version == 1, "the same batch again, by its first version"


def offsets_of(log: BatchLog) -> Path:
    folder = Path(log.spark_checkpoint(), "offsets")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def test_a_run_that_is_taken_over_in_the_middle_stops_and_the_new_one_delivers_every_pair_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    pipeline = read_pipeline(lay_out(tmp_path))
    put_events(tmp_path, EVENTS[:600], 6)
    old = BatchLog(pipeline.checkpoint)

    def take_over(done: BatchDone) -> None:
        if done.batch == 0:
            move_to_another_host(tmp_path / "checkpoint")
            BatchLog(pipeline.checkpoint).close()

    with pytest.raises(StaleRun, match="taken over"):
        StreamJob(spark, pipeline, old, take_over).run()
    assert run(spark, pipeline).events == 600
    assert delivered(tmp_path) == expected_pairs(EVENTS[:600], WANTED)
