"""Saved indexes: whole, shared, and refused when they are not."""

from __future__ import annotations

import json
import multiprocessing
import zlib
from pathlib import Path

import pyarrow as pa
import pytest

from tidings.errors import IndexFileError, InputError
from tidings.events import EventType, Required, Timestamp
from tidings.matching import Index
from tidings.matching.storage import ARRAYS, MANIFEST, VERSION

THING = EventType("Thing", n=Required(int), s=str, at={"d": float}, t=Timestamp)
EVENTS = pa.table({"n": [1, 2, 3], "s": ["ab", "cd", None], "at.d": [1.0, None, 3.0]})


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    index = Index(THING)
    index.add_all([("one", "n = 1"), ("gone", "TRUE"), ("two", "s LIKE '%d' OR at.d > 2"), ("none", "n < 1 AND n > 1")])
    index.remove("gone")
    index.save(tmp_path / "index")
    return tmp_path / "index"


def test_what_was_saved_is_opened(saved: Path) -> None:
    index = Index.open(saved, verify=True)
    assert index.event_type == THING
    assert list(index) == ["one", "two", "none"]
    assert index.match_batch(EVENTS).to_pydict() == {"event": [0, 1, 2], "subscription": ["one", "two", "two"]}
    assert index.match({"n": 1, "s": "d"}) == ["one", "two"]
    assert index.explain({"n": 2}, "one").first == "n = 1"
    assert "two" in index
    assert "gone" not in index


def test_an_open_index_can_change_and_the_files_do_not(saved: Path) -> None:
    index = Index.open(saved)
    index.remove("one")
    index.add("more", "n = 1")
    index.settle()
    assert index.match({"n": 1}) == ["more"]
    assert list(Index.open(saved)) == ["one", "two", "none"]


def test_saving_replaces_what_was_saved_and_readers_keep_theirs(saved: Path) -> None:
    before = Index.open(saved)
    changed = Index.open(saved)
    changed.remove("one")
    changed.save(saved)
    assert list(Index.open(saved)) == ["two", "none"]
    assert before.match({"n": 1}) == ["one"]
    assert [path.name for path in saved.parent.iterdir()] == ["index"]


def test_an_empty_index_is_saved_and_opened(tmp_path: Path) -> None:
    Index(THING).save(tmp_path / "empty")
    assert len(Index.open(tmp_path / "empty", verify=True)) == 0
    assert Index.open(tmp_path / "empty").match_batch(EVENTS).num_rows == 0


def test_attributes_that_were_only_ever_null_are_kept_in_their_places(tmp_path: Path) -> None:
    seen = EventType.infer({"unknown": None, "area": "EC2", "nothing": None, "speed": 31.0})
    index = Index(seen)
    index.add("fast", "speed > 20 AND nothing IS NULL")
    index.save(tmp_path / "index")
    opened = Index.open(tmp_path / "index", verify=True)
    assert opened.event_type == seen
    assert opened.match({"area": "EC2", "speed": 31.0}) == index.match({"area": "EC2", "speed": 31.0}) == ["fast"]
    assert opened.match_batch(pa.table({"speed": [31.0, 1.0]}))["event"].to_pylist() == [0]


def test_no_other_folder_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(InputError, match="saved index"):
        Index(THING).save(tmp_path / "mine")
    assert (tmp_path / "mine" / "letter.txt").read_text() == "dear"


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IndexFileError, match=MANIFEST):
        Index.open(tmp_path / "nothing")


@pytest.mark.parametrize("name", [MANIFEST, ARRAYS])
@pytest.mark.parametrize("cut", [0, 1, 100])
def test_a_truncated_file_is_refused(saved: Path, name: str, cut: int) -> None:
    raw = (saved / name).read_bytes()
    (saved / name).write_bytes(raw[:cut] if cut != 1 else raw[:-1])
    with pytest.raises(IndexFileError):
        Index.open(saved)


def test_a_longer_file_is_refused(saved: Path) -> None:
    with (saved / ARRAYS).open("ab") as file:
        file.write(b"\0")
    with pytest.raises(IndexFileError, match="bytes"):
        Index.open(saved)


def test_a_changed_manifest_is_refused(saved: Path) -> None:
    text = (saved / MANIFEST).read_text()
    (saved / MANIFEST).write_text(text.replace('"subscriptions": 3', '"subscriptions": 4'))
    with pytest.raises(IndexFileError, match="checksum"):
        Index.open(saved)


def test_every_changed_byte_is_found_when_asked(saved: Path) -> None:
    places = json.loads((saved / MANIFEST).read_text().rsplit("\n", 2)[0])["arrays"]
    raw = bytearray((saved / ARRAYS).read_bytes())
    for name, place in places.items():
        if place["shape"] and all(place["shape"]):
            damaged = bytearray(raw)
            damaged[place["at"]] ^= 0x40
            (saved / ARRAYS).write_bytes(damaged)
            with pytest.raises(IndexFileError, match=name):
                Index.open(saved, verify=True)


def test_a_newer_format_is_refused_by_its_number(saved: Path) -> None:
    body = (
        (saved / MANIFEST).read_text().rsplit("\n", 2)[0].replace(f'"version": {VERSION}', f'"version": {VERSION + 1}')
    )
    (saved / MANIFEST).write_text(f"{body}\n{zlib.crc32(body.encode()):08x}\n")
    with pytest.raises(IndexFileError, match=f"version {VERSION}, got {VERSION + 1}"):
        Index.open(saved)


@pytest.mark.slow
def test_other_processes_open_the_same_files(saved: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(_match_there, (saved,)) == ["one"]


def _match_there(path: Path) -> list[str]:
    return Index.open(path).match({"n": 1})
