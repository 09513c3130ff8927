"""A pipeline with rights, as its file describes it, and which subscriptions it does not serve."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from tests.pipeline.london import SIGHTINGS, rights
from tidings.errors import InputError
from tidings.pipeline import read_pipeline
from tidings.pipeline.secured import withheld

PIPELINE = """
name = "test"
checkpoint = "checkpoint"
[events]
format = "{events}"
path = "frames"
type = "sighting.toml"
[subscriptions]
path = "subscriptions"
[deliveries]
format = "{deliveries}"
path = "deliveries"
servers = "kafka:9092"
topic = "mail"
[quarantine]
path = "quarantine"
"""
SECURE = """
[secure]
registry = "registry.db"
type = "Sighting"
keys = "pipeline.keys"
"""


def written(folder: Path, text: str) -> Path:
    file = folder / "pipeline.toml"
    file.write_text(text)
    return file


def test_the_registry_and_the_keys_are_looked_for_beside_the_file(tmp_path: Path) -> None:
    secure = read_pipeline(written(tmp_path, PIPELINE.format(events="frames", deliveries="parquet") + SECURE)).secure
    assert secure is not None
    assert (secure.registry, secure.keys) == (str(tmp_path / "registry.db"), str(tmp_path / "pipeline.keys"))
    assert (secure.type, secure.rest) == ("Sighting", "left out")


@pytest.mark.parametrize(
    ("events", "deliveries", "more", "reason"),
    [
        ("frames", "parquet", "", "secure: needed with events of format 'frames'"),
        ("parquet", "parquet", SECURE, "secure: needed with events of format 'frames', and for them alone"),
        ("frames", "kafka", SECURE, "sealed ones go to parquet or json, not kafka"),
        ("frames", "parquet", SECURE + 'rest = "shown"', "rest"),
    ],
)
def test_a_file_that_does_not_make_sense_is_told_so(
    tmp_path: Path, events: str, deliveries: str, more: str, reason: str
) -> None:
    with pytest.raises(InputError, match=reason):
        read_pipeline(written(tmp_path, PIPELINE.format(events=events, deliveries=deliveries) + more))


def test_a_subscription_may_only_ask_about_what_its_subscriber_may_read() -> None:
    asked = [
        ("its-own", "plate LIKE 'A%' AND seen_at IS NOT NULL", "charge"),
        ("nosy", "plate = 'A1' OR area = 'EC2'", "charge"),
        ("everything", "area = 'EC2' AND speed > 3", "detective"),
        ("nobody-s", "plate = 'A1'", "stranger"),
    ]
    names = ("id", "condition", "subscriber")
    table = pa.table(dict(zip(names, map(list, zip(*asked, strict=True)), strict=True)))
    assert withheld(table, SIGHTINGS, rights()) == {"nosy", "nobody-s"}
