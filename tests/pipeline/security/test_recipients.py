"""Several rights of one subscriber: they add up, event by event, and an event is mailed once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tests.pipeline.london import SIGHTINGS, keys, leases, rights
from tests.unit.security.london import NOW_MS, a_keyring, a_type, ids
from tidings.errors import Denied
from tidings.events import conform
from tidings.pipeline.security.encrypt import RecipientSealer
from tidings.pipeline.security.recipients import CONDITIONAL_MAX, Recipient, Rest, recipients_of
from tidings.security import Mode, Opener, Right

PLATES = rights()["charge"]
LANES = replace(PLATES, attributes=ids(SIGHTINGS, "lane"), constraints=("plate = 'P1'",))
SPEEDS = replace(PLATES, attributes=ids(SIGHTINGS, "speed"), constraints=("lane > 0", "area = 'EC2'"))


def of(*several: Right, rest: Rest = Rest.LEFT_OUT) -> tuple[Recipient, ...]:
    return recipients_of(SIGHTINGS, {"charge": several}, NOW_MS, rest)


def rows(*events: tuple[str, str | None, int]) -> pa.RecordBatch:
    plates, areas, lanes = zip(*events, strict=True)
    given = {"plate": pa.array(plates), "area": pa.array(areas, pa.string()), "lane": pa.array(lanes)}
    speeds = pa.array([30.5] * len(events))
    return conform(pa.RecordBatch.from_pydict({**given, "speed": speeds}), SIGHTINGS.event_type)


def test_rights_without_conditions_are_one() -> None:
    (recipient,) = of(PLATES, replace(PLATES, attributes=ids(SIGHTINGS, "lane")))
    assert (recipient.readable, recipient.met, recipient.unmet) == (("plate", "lane", "seen_at"), (), ())


def test_a_conditional_right_that_shows_nothing_more_makes_no_difference() -> None:
    assert of(PLATES, replace(PLATES, constraints=("lane = 1",))) == of(PLATES)


@pytest.mark.parametrize(
    ("event", "shown"),
    [
        (("P2", "EC2", 0), {"plate"}),
        (("P1", "EC2", 0), {"plate", "lane"}),
        (("P2", "EC2", 1), {"plate", "speed"}),
        (("P2", "WC1", 1), {"plate"}),
        (("P2", None, 1), {"plate"}),
        (("P1", "EC2", 1), {"plate", "lane", "speed"}),
    ],
)
def test_of_each_event_is_shown_what_any_right_shows_whose_conditions_it_meets(
    tmp_path: Path, event: tuple[str, str | None, int], shown: set[str]
) -> None:
    (frame,) = mail(tmp_path, rows(event), of(PLATES, LANES, SPEEDS))
    assert set(Opener(SIGHTINGS, a_keyring(SIGHTINGS)).open_(frame, NOW_MS).values) == shown


def test_an_event_that_meets_several_rights_is_mailed_once(tmp_path: Path) -> None:
    events = rows(*[(plate, area, lane) for plate in ("P1", "P2") for area in ("EC2", "W1") for lane in (0, 1)])
    assert len(mail(tmp_path, events, of(PLATES, LANES, SPEEDS))) == events.num_rows
    assert (
        len(mail(tmp_path, events, of(LANES, SPEEDS))) == 5
    )  # Those of P1, and of P2 the one that is in lane 1 of EC2.


def test_frames_that_differ_in_what_they_show_have_different_senders() -> None:
    recipients = of(PLATES, LANES, SPEEDS)
    assert len({recipient.sender for recipient in recipients}) == len({r.shown for r in recipients}) == 4


def test_rights_to_different_plates_are_a_right_to_either(tmp_path: Path) -> None:
    either = of(LANES, replace(LANES, constraints=("plate = 'P2'",)))
    assert len(mail(tmp_path, rows(("P1", None, 1), ("P2", None, 1), ("P3", None, 1)), either)) == 2


def test_more_conditional_rights_than_there_are_sender_ids_for_are_refused() -> None:
    many = [replace(LANES, constraints=(f"plate = 'P{number}'",)) for number in range(CONDITIONAL_MAX + 1)]
    with pytest.raises(Denied, match="rights: 'charge' has 7 different conditional ones"):
        of(*many)


def test_of_an_event_that_is_sealed_as_one_rights_to_parts_do_not_add_up_to_a_part() -> None:
    whole = a_type(event_type=SIGHTINGS.event_type, mode=Mode.EVENT)
    part = replace(PLATES, type_id=whole.type_id, attributes=ids(whole, "plate"))
    rest = replace(part, attributes=frozenset(whole.attr_ids.values()) - ids(whole, "plate"))
    with pytest.raises(Denied, match="sealed as one"):
        recipients_of(whole, {"charge": [part]}, NOW_MS, Rest.LEFT_OUT)
    (recipient,) = recipients_of(whole, {"charge": [part, rest]}, NOW_MS, Rest.LEFT_OUT)
    assert set(recipient.readable) == set(whole.attr_ids)


def mail(folder: Path, events: pa.RecordBatch, recipients: tuple[Recipient, ...]) -> list[bytes]:
    """The frames that a subscriber of all these events gets."""
    senders = leases(folder).senders(["source"], [recipient.sender for recipient in recipients])
    sealer = RecipientSealer(SIGHTINGS, keys(folder), recipients, senders)
    count = events.num_rows
    times, counters = np.full(count, NOW_MS), np.arange(count)
    _, frames = sealer.seal(events, pa.array(["charge"] * count), pa.array(["source"] * count), times, counters)
    found: list[bytes] = frames.to_pylist()
    return found
