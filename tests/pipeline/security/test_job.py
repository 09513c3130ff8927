"""A pipeline with rights, as its file describes it, and which subscriptions it does not serve."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from tests.pipeline.london import SIGHTINGS, rights
from tests.unit.security.london import NOW_MS, ids
from tidings.errors import InputError
from tidings.pipeline import Rest, read_pipeline
from tidings.pipeline.security.job import withheld
from tidings.pipeline.security.recipients import recipients_of
from tidings.security import Right

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
        ("parquet", "parquet", SECURE, "secure: needed with events of format 'frames', and only with them"),
        ("frames", "kafka", SECURE, "sealed deliveries need parquet or json, got kafka"),
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
    recipients = recipients_of(SIGHTINGS, rights(), NOW_MS, Rest.LEFT_OUT)
    assert {who.name: ids for who, ids in withheld(table, SIGHTINGS, recipients).items()} == {"charge": {"nosy"}}


def test_a_subscription_may_ask_about_all_that_its_subscriber_s_rights_show_together() -> None:
    plates, detective = rights()["charge"], rights()["detective"]
    speeds = replace(plates, attributes=ids(SIGHTINGS, "speed"), constraints=("lane = 1",))
    table = pa.table({"id": ["fast"], "condition": ["plate = 'A1' AND speed > 3"], "subscriber": ["charge"]})
    several: dict[str, Right | Sequence[Right]] = {"charge": [plates, speeds], "detective": detective}
    recipients = recipients_of(SIGHTINGS, several, NOW_MS, Rest.LEFT_OUT)
    (hidden,) = withheld(table, SIGHTINGS, recipients)
    assert (hidden.met, hidden.readable) == ((), ("plate", "seen_at"))
