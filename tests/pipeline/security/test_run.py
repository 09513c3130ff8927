"""A pipeline with rights as it runs: what publishers signed goes in, what each right shows comes out."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.pipeline.london import SIGHTINGS
from tests.unit.security.london import CAMERA, CHARGE, OWNER, a_keyring, ids
from tidings.events import Value
from tidings.pipeline import Counts, read_pipeline, run, write_keys
from tidings.security import Grant, Identity, Keyring, Opener, Sealer, Signing, grant
from tidings.store import Registry

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOW_MS = time.time_ns() // 1_000_000  # The registry's rights are judged by the clock.
EVENTS: list[dict[str, Value]] = [
    {"plate": "P1", "lane": 1, "speed": 30.5, "area": "EC2"},
    {"plate": "P2", "lane": 2, "speed": 60.5, "area": "EC2"},
    {"plate": "P3", "lane": 3, "speed": 70.5, "area": "W1"},
]
PIPELINE = """
name = "signed"
checkpoint = "checkpoint"
[events]
format = "frames"
path = "frames"
[subscriptions]
path = "subscriptions"
[deliveries]
path = "deliveries"
[quarantine]
path = "quarantine"
[secure]
registry = "registry.db"
type = "Sighting"
keys = "pipeline.keys"
signed = true
[trigger]
until_empty = true
"""


@pytest.fixture(scope="module")
def ran(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Counts]:
    """Each event comes signed by a camera, by a mere reader with the same keys, and by nobody."""
    folder = tmp_path_factory.mktemp("signed")
    (folder / "pipeline.toml").write_text(PIPELINE)
    write_keys(folder / "pipeline.keys", ring())
    give_rights(folder / "registry.db")
    (folder / "subscriptions").mkdir()
    wanted = {"id": "all", "subscriber": "charge", "filter": "plate LIKE 'P%'"}
    fast = {"id": "fast", "subscriber": "charge", "filter": "plate = 'P2' AND speed > 50"}
    asked = "".join(json.dumps(one) + "\n" for one in (wanted, fast, {**fast, "id": "far", "filter": "speed > 65"}))
    (folder / "subscriptions" / "1.jsonl").write_text(asked)
    frames = [*sealed(CAMERA, 1), *sealed(CHARGE, 2), *sealed(None, 3)]
    (folder / "frames").mkdir()
    pq.write_table(pa.table({"frame": pa.array(frames, pa.binary())}), folder / "frames" / "1.parquet")
    return folder, run(spark, read_pipeline(folder / "pipeline.toml"))


def ring() -> Keyring:
    return a_keyring(SIGHTINGS, start_ms=NOW_MS - 1000)


def give_rights(path: Path) -> None:
    """The camera publishes; the charge reads plates and lanes, and of what is in EC2 also speeds."""
    with Registry.open(path, now_ms=NOW_MS) as registry:
        registry.types.declare(SIGHTINGS, by="test", now_ms=NOW_MS)
        registry.domains.add("charge", [CHARGE.public_key], by="test", now_ms=NOW_MS)
        for holder, action, names, conditions in (
            (CAMERA, "publish", SIGHTINGS.attr_ids, ()),
            (CHARGE, "subscribe", ("plate", "lane"), ()),
            (CHARGE, "subscribe", ("speed",), ("area = 'EC2'",)),
        ):
            given = Grant(
                SIGHTINGS.type_id,
                frozenset({action}),
                holder=holder.public_key,
                attributes=ids(SIGHTINGS, *names),
                not_before=NOW_MS - 60_000,
                not_after=NOW_MS + 3_600_000,
                constraints=conditions,
            )
            registry.grants.add(grant(OWNER, given, random.Random(str(names)).randbytes), by="test", now_ms=NOW_MS)


def sealed(signer: Identity | None, sender_id: int) -> list[bytes]:
    signing: Signing = "batch" if signer else "none"
    return Sealer(SIGHTINGS, ring(), sender_id, signer=signer, signing=signing).seal_batch(EVENTS, NOW_MS)


def mail(folder: Path) -> dict[tuple[str, str], dict[str, Value]]:
    """By subscription and plate, what is in a frame."""
    opener, found = Opener(SIGHTINGS, ring()), {}
    for row in pq.read_table(folder / "deliveries").to_pylist():
        event = opener.open_(row["frame"], NOW_MS).values
        found[row["subscription_id"], str(event["plate"])] = event
    return found


def test_what_no_publisher_has_signed_is_quarantined_with_the_reason(ran: tuple[Path, Counts]) -> None:
    folder, counts = ran
    reasons = sorted(row["reason"][:26] for row in pq.read_table(folder / "quarantine" / "events").to_pylist())
    assert reasons == 3 * ["publisher: no right of ed2"] + 3 * ["signature: the event is no"]
    assert (counts.events, counts.quarantined) == (9, 6)


def test_several_rights_add_up_event_by_event(ran: tuple[Path, Counts]) -> None:
    got = {plate: event for (id, plate), event in mail(ran[0]).items() if id == "all"}
    assert got == {
        event["plate"]: {name: event[name] for name in shown}
        for event, shown in zip(EVENTS, [("plate", "lane", "speed")] * 2 + [("plate", "lane")], strict=True)
    }


def test_nobody_learns_by_getting_mail_what_its_rights_do_not_show_of_that_event(ran: tuple[Path, Counts]) -> None:
    """The third sighting is fast, and not in EC2: that it is fast is not for the charge to know."""
    assert {(id, plate) for id, plate in mail(ran[0]) if id != "all"} == {("fast", "P2")}
