"""The index as its users see it."""

from __future__ import annotations

import math

import pyarrow as pa
import pytest

from tidings.errors import EventError, FilterSyntaxError, InputError
from tidings.events import EventType, Required, Timestamp
from tidings.filters import parse
from tidings.matching import Index, IndexTuning, NaiveIndex

PLATE = EventType("Plate", plate=str, area=str, speed=float, seen_at=Timestamp, lanes=int)


@pytest.fixture
def wanted() -> Index:
    return some_index()


def some_index(tuning: IndexTuning | None = None) -> Index:
    index = Index(PLATE, tuning=tuning or IndexTuning())
    index.add("fast", "speed > 20")
    index.add("city", "area IN ('WC1', 'EC2')")
    index.add("both", "area = 'EC2' AND speed > 20 AND lanes < 3")
    return index


def test_ids_come_in_the_order_in_which_they_were_added(wanted: Index) -> None:
    assert wanted.match({"area": "EC2", "speed": 31.0, "lanes": 1}) == ["fast", "city", "both"]
    wanted.settle()
    assert wanted.match({"area": "EC2", "speed": 31.0, "lanes": 1}) == ["fast", "city", "both"]


def test_a_batch_gives_row_numbers_and_ids(wanted: Index) -> None:
    events = pa.table({"area": ["N1", "EC2", None], "speed": [31.0, 31.0, None], "lanes": [2, 2, 2]})
    found = wanted.match_batch(events)
    assert found.schema == pa.schema({"event": pa.int64(), "subscription": pa.dictionary(pa.int32(), pa.string())})
    assert found.to_pydict() == {"event": [0, 1, 1, 1], "subscription": ["fast", "fast", "city", "both"]}


def test_a_record_batch_and_an_empty_one_will_do(wanted: Index) -> None:
    batch = pa.record_batch({"speed": [31.0]})
    assert wanted.match_batch(batch)["subscription"].to_pylist() == ["fast"]
    assert wanted.match_batch(batch.slice(0, 0)).num_rows == 0


def test_numbers_lead_to_ids(wanted: Index) -> None:
    wanted.settle()
    wanted.add("late", "lanes = 2")
    found = wanted.match_numbers(pa.table({"speed": [31.0], "lanes": [2]}))
    assert sorted(found.ids.take(pa.array(found.numbers)).to_pylist()) == ["fast", "late"]


def test_replacing_moves_a_subscription_to_the_end(wanted: Index) -> None:
    wanted.settle()
    wanted.add("fast", "speed > 30")
    assert len(wanted) == 3
    assert wanted.match({"area": "EC2", "speed": 31.0, "lanes": 1}) == ["city", "both", "fast"]
    assert wanted.match({"speed": 25.0}) == []


def test_what_is_removed_matches_no_more(wanted: Index) -> None:
    wanted.settle()
    wanted.remove("city")
    assert "city" not in wanted
    assert list(wanted) == ["fast", "both"]
    assert wanted.match({"area": "WC1"}) == []
    wanted.settle()
    assert wanted.match({"area": "EC2", "speed": 31.0, "lanes": 1}) == ["fast", "both"]


def test_what_is_not_there_cannot_be_removed(wanted: Index) -> None:
    with pytest.raises(KeyError):
        wanted.remove("other")
    wanted.remove("fast")
    with pytest.raises(KeyError):
        wanted.remove("fast")


def test_add_all_adds_all_or_nothing(wanted: Index) -> None:
    with pytest.raises(FilterSyntaxError):
        wanted.add_all([("a", "lanes = 1"), ("b", "lanes = = 1")])
    assert len(wanted) == 3


def test_many_at_once_replace_what_was_there() -> None:
    wanted = some_index(IndexTuning(pending_max=2))
    wanted.add_all([("city", "lanes = 1"), ("new", "lanes = 1"), ("new", "lanes = 2"), ("newer", "lanes = 2")])
    assert len(wanted) == 5
    assert wanted.match({"area": "EC2", "lanes": 2}) == ["new", "newer"]


def test_a_condition_parsed_for_another_event_type_is_read_anew() -> None:
    index = Index(EventType("Whole", n=int))
    index.add("a", parse("n > 2"))  # Where nothing is known of n, it is a double.
    assert index.match({"n": 3}) == ["a"]


def test_wrong_things_are_refused(wanted: Index) -> None:
    with pytest.raises(InputError, match="id"):
        wanted.add(7, "lanes = 1")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="condition"):
        wanted.add("a", 7)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "record",
    [
        {"speed": "fast"},
        {"colour": "red"},
        {"lanes": 2**63},
        {"plate": "\ud800"},
        {"lanes": True},
        {"speed": 2**60 + 1},
    ],
)
def test_records_are_checked(wanted: Index, record: dict[str, object]) -> None:
    with pytest.raises(EventError):
        wanted.match(record)


def test_required_attributes_are_required() -> None:
    index = Index(EventType("Thing", a=Required(int), b=int))
    index.add("x", "b = 1")
    assert index.match({"a": 1, "b": 1}) == ["x"]
    with pytest.raises(EventError, match="required"):
        index.match({"b": 1})


def test_records_are_converted_as_everywhere(wanted: Index) -> None:
    wanted.settle()
    assert wanted.match({"speed": 31}) == ["fast"]
    assert wanted.match({"area": None, "speed": 31.0}) == ["fast"]


def test_everything_nothing_and_residuals_alone() -> None:
    index = Index(PLATE)
    index.add_all([("all", "TRUE"), ("none", "lanes < 1 AND lanes > 1"), ("odd", "lanes % 2 = 1")])
    index.add("suffix", "plate LIKE '%X' OR lanes + 1 > 9 OR plate LIKE '%Y'")
    index.settle()
    assert len(index) == 4
    assert index.match({"lanes": 3}) == ["all", "odd"]
    assert index.match({"plate": "XX", "lanes": 9}) == ["all", "odd", "suffix"]
    events = pa.table({"plate": ["X", "Y", "Z", None], "lanes": [1, 9, 2, None]})
    assert index.match_batch(events).to_pydict() == {
        "event": [0, 0, 0, 1, 1, 1, 2, 3],
        "subscription": ["all", "odd", "suffix", "all", "odd", "suffix", "all", "all"],
    }


def test_several_boxes_report_a_subscription_once() -> None:
    index = Index(PLATE)
    index.add("either", "(lanes = 1 AND speed > 1) OR (lanes < 5 AND area = 'N1')")
    index.settle()
    assert index.match({"lanes": 1, "speed": 2.0, "area": "N1"}) == ["either"]
    events = pa.table({"lanes": [1], "speed": [2.0], "area": ["N1"]})
    assert index.match_batch(events).num_rows == 1


def test_odd_doubles_are_where_spark_has_them() -> None:
    index = Index(EventType("Thing", d=float))
    index.add_all([("zero", "d = 0"), ("above", "d > 1e308"), ("below", "d < -1e308"), ("not", "d <> 5")])
    index.settle()
    events = pa.table({"d": [0.0, -0.0, math.nan, math.inf, -math.inf, 5.0, None]})
    found = index.match_batch(events).to_pandas().groupby("event")["subscription"].agg(list).to_dict()
    assert found == {
        0: ["zero", "not"],
        1: ["zero", "not"],
        2: ["above", "not"],
        3: ["above", "not"],
        4: ["below", "not"],
    }
    assert [index.match({"d": d}) for d in (-0.0, math.nan, 5.0)] == [["zero", "not"], ["above", "not"], []]


def test_texts_of_all_lengths_find_their_place() -> None:
    texts = [
        "",
        "\0",
        "a",
        "a\0",
        "abcdefg",
        "abcdefgh",
        "abcdefgh\0",
        "abcdefgi",
        "abcdefghijklmnop",
        "ü",
        "𝄞",
        "\uffff",
    ]
    both = (Index(EventType("Thing", s=str)), NaiveIndex(EventType("Thing", s=str)))
    for one in both:
        one.add_all([(f"={t}", f"s = {_quoted(t)}") for t in texts] + [(f"<{t}", f"s < {_quoted(t)}") for t in texts])
    fast, plain = both
    fast.settle()
    asked = [*texts, "b", "abcdefghi", "ab", "abcdefgg", "zzzzzzzzzzzz", "𝄟"]
    for text in asked:
        assert fast.match({"s": text}) == plain.match({"s": text})
    events = pa.table({"s": asked})
    assert list(zip(*fast.match_batch(events).to_pydict().values(), strict=True)) == plain.match_batch(events)


def test_texts_that_share_a_beginning_are_told_apart_behind_it() -> None:
    index = Index(EventType("Thing", s=str))
    index.add_all([(f"p{i}", f"s = 'https://example.org/things/{i}'") for i in range(300)])
    index.settle()
    assert index.match({"s": "https://example.org/things/217"}) == ["p217"]
    for other in (
        "",
        "http",
        "https://example.org/thingz",
        "https://example.org/things/",
        "https://example.org/things/2170",
    ):
        assert index.match({"s": other}) == []


def test_explain_names_the_first_predicate_that_failed(wanted: Index) -> None:
    said = wanted.explain({"area": "EC2", "speed": 12.0, "lanes": 7}, "both")
    assert not said.matched
    assert said.first == "speed > 20"
    assert "12.0" in str(said)
    assert wanted.explain({"area": "EC2"}, "city").matched
    assert wanted.explain({"lanes": 1}, "both").outcome is None
    wanted.settle()
    assert wanted.explain({"area": "EC2", "speed": 12.0, "lanes": 7}, "both") == said
    with pytest.raises(KeyError):
        wanted.explain({}, "other")


def test_stats_tell_sizes_memory_and_the_plan(wanted: Index) -> None:
    assert wanted.stats().pending == 3
    wanted.settle()
    stats = wanted.stats()
    assert (stats.subscriptions, stats.pending, len(stats.parts)) == (3, 0, 1)
    assert stats.bytes == sum(stats.parts[0].bytes_by_use.values()) > 0
    assert {name for grid in stats.parts[0].grids for name in grid.attributes} <= {"area", "speed", "lanes"}
    assert sum(grid.entries for grid in stats.parts[0].grids) == stats.parts[0].entries >= 3


def test_a_sample_changes_the_plan_and_not_the_answers() -> None:
    kind = EventType("Thing", common=int, rare=int)
    conditions = [(f"c{i}", f"common = {i % 50} AND rare = {i}") for i in range(3000)]
    sample = pa.table({"common": list(range(50)) * 20, "rare": [-1] * 1000})
    plain, taught = Index(kind), Index(kind, sample=sample)
    for one in (plain, taught):
        one.add_all(conditions)
    events = pa.table({"common": [i % 50 for i in range(500)], "rare": list(range(500))})
    assert plain.match_batch(events).equals(taught.match_batch(events))
    assert taught.match_batch(events).num_rows == 500


def test_two_threads_find_what_one_finds(wanted: Index) -> None:
    wanted.settle()
    events = pa.table({"area": ["EC2", "N1", "WC1"] * 100, "speed": [float(i % 40) for i in range(300)]})
    assert wanted.match_batch(events, threads=2).equals(wanted.match_batch(events))


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def test_a_wrong_row_is_told_by_its_number_among_all(wanted: Index) -> None:
    speeds = pa.table({"lanes": pa.array([1.0, 2.0, 3.0, 2.5])})
    for threads in (1, 2):
        with pytest.raises(EventError, match="lanes"):
            wanted.match_batch(speeds, threads=threads)
    moments = pa.array([0] * 9 + [2**62], pa.timestamp("s"))
    with pytest.raises(EventError, match="row 9"):
        wanted.match_batch(pa.table({"seen_at": moments}), threads=2)


def test_effort_counts_what_is_looked_at(wanted: Index) -> None:
    events = pa.table({"area": ["N1", "EC2"], "speed": [31.0, 31.0], "lanes": [2, 2]})
    effort = wanted.effort(events)
    assert effort.matches == 4
    assert effort.candidates >= effort.hits >= effort.matches
