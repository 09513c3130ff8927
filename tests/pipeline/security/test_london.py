"""The London example: who can read what, as the program itself prints it."""

from __future__ import annotations

import re
import sys

import pytest

from tests.test_tidy import LONDON, run

READERS = re.compile(r"^(.+?) +([\d,]+) +([\d,]+) +([\d,]+)  ((?:yes|-).*)$", re.MULTILINE)
RECEIVED = re.compile(r"^(\w[\w ]+?)  +([\w-]+) +([\d,]+)$", re.MULTILINE)


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> str:
    done = run([sys.executable, str(LONDON), "3000"], tmp_path_factory.mktemp("london"))
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def readers(said: str) -> dict[str, tuple[int, int, int, list[str]]]:
    """Of each reader: frames, frames opened, different plates seen, and which attributes."""
    header = re.search(r"^reader .*$", said, re.MULTILINE)
    assert header is not None
    names = header.group().split()[4:]
    return {
        who: (
            *(int(text.replace(",", "")) for text in numbers),
            [n for n, m in zip(names, marks.split()) if m == "yes"],
        )  # type: ignore[misc]
        for who, *numbers, marks in READERS.findall(said)
    }


@pytest.mark.spark
def test_the_congestion_charge_sees_plates_but_no_places(readers: dict[str, tuple[int, int, int, list[str]]]) -> None:
    frames, opened, plates, names = readers["Congestion Charge"]
    assert frames == opened > 0
    assert plates > 400
    assert names == ["plate", "in_zone", "seen_at"]


@pytest.mark.spark
def test_the_detective_sees_everything_about_one_plate(readers: dict[str, tuple[int, int, int, list[str]]]) -> None:
    frames, opened, plates, names = readers["Detective"]
    assert frames == opened > 0
    assert plates == 1
    assert len(names) == 6


@pytest.mark.spark
def test_the_relay_has_every_frame_and_sees_nothing(readers: dict[str, tuple[int, int, int, list[str]]]) -> None:
    frames, opened, plates, names = readers["Relay"]
    assert (opened, plates, names) == (0, 0, [])
    assert frames > readers["Congestion Charge"][0]


@pytest.mark.spark
def test_what_a_right_does_not_cover_is_not_delivered(said: str) -> None:
    received = {(who, what): int(count.replace(",", "")) for who, what, count in RECEIVED.findall(said)}
    assert received["Detective", "plate-1"] > 0 == received["Detective", "plate-2"]
    assert received["Camera Repair", "radar"] > 0 == received["Camera Repair", "nosy"]


@pytest.mark.spark
def test_altered_frames_are_refused_and_second_copies_dropped(said: str) -> None:
    assert re.search(r"altered, refused +25$", said, re.MULTILINE)
    assert re.search(r"second copies dropped +40$", said, re.MULTILINE)
