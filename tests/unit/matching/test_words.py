"""Conditions filed under words are found by the words in an event's texts."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import pytest

from tidings.events import EventType
from tidings.filters import parse
from tidings.matching import Index, NaiveIndex, boxes_table
from tidings.matching.box_table import columns_of
from tidings.matching.residuals.words import NO_WORDS, SingleEventWords, file_under_words
from tidings.matching.segment import build

Note = EventType("Note", title=str, body=str, size=int)


def a_text(rng: Random, size: int) -> str:
    return "".join(rng.choice("aab ßc𝄞") for _ in range(rng.randrange(size)))


def some_conditions(rng: Random, count: int) -> list[tuple[str, str]]:
    forms = [
        "{} LIKE '%{}%'",
        "{} LIKE '%{}%a%'",
        "{} LIKE '_%{}%'",
        "{} LIKE '%{}%' OR size > 90",
        "{} NOT LIKE '%{}%'",
    ]
    forms += ["{} LIKE '%{}%' AND size < 50", "{} LIKE '%{}%' AND title LIKE '%b%'"]
    words = [a_text(rng, 6) or "a" for _ in range(count)]
    return [(str(at), rng.choice(forms).format(rng.choice(["title", "body"]), word)) for at, word in enumerate(words)]


def all_pairs(index: Index, events: pa.Table) -> list[tuple[int, str]]:
    return sorted(zip(*index.match_batch(events).to_pydict().values(), strict=True))


@pytest.mark.parametrize("seed", range(4))
def test_they_are_found_in_a_batch_one_by_one_after_compaction_and_from_a_file(seed: int, tmp_path: Path) -> None:
    rng = Random(seed)
    conditions = some_conditions(rng, 200)
    plain, fast = NaiveIndex(Note), Index(Note)
    plain.add_all(conditions)
    for half in (conditions[:100], conditions[100:]):
        fast.add_all(boxes_table([(id, parse(text, Note)) for id, text in half], Note))
    records = [
        {"title": a_text(rng, 12), "body": rng.choice([None, a_text(rng, 30)]), "size": rng.randrange(100)}
        for _ in range(60)
    ]
    events = pa.table({name: [record[name] for record in records] for name in ("title", "body", "size")})
    expected = sorted(plain.match_batch(events))
    for _ in range(2):
        assert all_pairs(fast, events) == expected
        for row, record in enumerate(records):
            values = {name: value for name, value in record.items() if value is not None}
            assert sorted(fast.match(values)) == sorted(id for at, id in expected if at == row)
        fast.settle()
    assert build(columns_of([(id, parse(text, Note)) for id, text in conditions], Note), Note).words
    fast.save(tmp_path / "index")
    assert all_pairs(Index.open(tmp_path / "index", verify=True), events) == expected


@pytest.mark.parametrize("seed", range(20))
def test_a_scan_finds_every_word_of_a_text_once(seed: int) -> None:
    rng = Random(seed)
    words = sorted({a_text(rng, 5) or "b" for _ in range(60)})
    sets = [(f"body LIKE '%{word}%'",) for word in words]
    index, is_filed = file_under_words(
        sets * 3, np.arange(len(words) * 3, dtype=np.int32), np.ones(len(words) * 3), Note
    )
    finder = SingleEventWords(index, Note)
    for text in [a_text(rng, 40) for _ in range(20)]:
        words_of = finder.words_of({"body": text}).tolist()
        found = [box for word in words_of for box in index.boxes[index.box_ptr[word] : index.box_ptr[word + 1]]]
        assert sorted(found) == sorted(at for at in np.flatnonzero(is_filed) if words[at % len(words)] in text)


def test_an_event_meets_only_the_boxes_whose_word_it_has() -> None:
    index = Index(Note)
    index.add_all([(f"w{n}", f"body LIKE '%word{n:05}%'") for n in range(3000)])
    index.settle()
    events = pa.table({"body": [f"so word{n:05} it is" for n in range(0, 6000, 100)]})
    assert index.match_batch(events)["subscription"].to_pylist() == [f"w{n}" for n in range(0, 3000, 100)]
    assert index.effort(events).candidates == 0


def test_a_few_boxes_or_boxes_with_selective_sides_are_not_filed_under_words() -> None:
    few = [(f"{n}", parse(f"body LIKE '%word{n}%'", Note)) for n in range(7)]
    assert build(columns_of(few, Note), Note).words is NO_WORDS
    selective = [(f"{n}", parse(f"title = 't{n}' AND body LIKE '%word{n}%'", Note)) for n in range(500)]
    assert build(columns_of(selective, Note), Note).words is NO_WORDS
