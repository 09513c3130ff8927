"""What a router may conclude from what it can read of a subscription."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidings.filters import parse
from tidings.overlay import (
    SEALED,
    AnyWanted,
    EventId,
    Everything,
    Header,
    Interest,
    Packet,
    Ranges,
    Sql,
    SubscriptionId,
    View,
    key_of,
)

bounds = st.tuples(st.integers(-5, 5), st.integers(-5, 5)).map(lambda pair: (min(pair), max(pair)))
ranges = st.dictionaries(st.sampled_from("xyz"), bounds, max_size=3).map(lambda sides: Ranges.of(**sides))
texts = st.sampled_from(
    ["x > 1", "x BETWEEN -2 AND 3", "x < 0 OR y > 2", "y = 4 AND x <> 1", "x IS NULL", "TRUE", "x > y"]
)
sqls = texts.map(lambda text: Sql(text, (("x", "int"), ("y", "int"))))
wanteds: st.SearchStrategy[AnyWanted] = st.one_of(ranges, sqls, st.just(Everything()))
points = st.dictionaries(st.sampled_from("xyz"), st.integers(-6, 6), max_size=3)


def wish(wanted: AnyWanted, seq: int = 1, type: str = "T") -> Interest:
    return Interest(SubscriptionId("a", 0, seq), type, wanted)


def packet(view: View, type: str = "T") -> Packet:
    return Packet(Header(EventId("a", 0, 1), type), view)


@given(wanteds, wanteds, points)
def test_what_a_covered_interest_matches_the_covering_one_matches(
    wide: AnyWanted, narrow: AnyWanted, point: dict[str, int]
) -> None:
    if wish(wide).covers(wish(narrow)) and narrow.matches(View(point)):
        assert wide.matches(View(point))


@given(wanteds, wanteds, points)
def test_interests_that_match_one_event_overlap(one: AnyWanted, other: AnyWanted, point: dict[str, int]) -> None:
    if one.matches(View(point)) and other.matches(View(point)):
        assert one.overlaps(other)


@given(wanteds, points, st.sets(st.sampled_from("xyz")))
def test_hiding_attributes_never_loses_a_match(wanted: AnyWanted, point: dict[str, int], hidden: set[str]) -> None:
    seen = {name: value for name, value in point.items() if name not in hidden}
    if wanted.matches(View(point)):
        assert wanted.matches(View(seen, hidden=tuple(sorted(hidden))))
        assert wanted.matches(View(seen, opaque=True))
        assert wanted.matches(SEALED)


@given(wanteds, points)
def test_the_boxes_hold_every_event_that_matches(wanted: AnyWanted, point: dict[str, int]) -> None:
    def inside(box: dict[str, object]) -> bool:
        for name, extent in box.items():
            held = any(span.holds(key_of(point[name])) for span in extent.spans) if name in point else extent.absent  # type: ignore[attr-defined]
            if not held:
                return False
        return True

    if wanted.matches(View(point)):
        assert any(inside(dict(box)) for box in wanted.boxes())


def test_an_interest_that_cannot_be_read_covers_only_itself() -> None:
    blind = wish(Everything(exact=False))
    assert blind.matches(packet(View({"x": 1})))
    assert not blind.covers(wish(Ranges.of(x=(1, 1))))
    assert not wish(Everything()).covers(wish(Ranges((("x", 1, 1),), exact=False), seq=2))
    assert blind.covers(blind)


def test_another_type_is_another_matter() -> None:
    assert not wish(Everything()).matches(packet(View({}), type="U"))
    assert not wish(Everything()).covers(wish(Everything(), type="U"))
    assert not wish(Everything()).overlaps(wish(Everything(), type="U"))


def test_an_event_that_does_not_fit_its_type_matches_no_condition() -> None:
    fast = Sql.of(parse("speed > 20 AND plate = 'A'"))
    assert not fast.matches(View({"speed": "31", "plate": "A"}))
    assert not Ranges.of(x=(0, 9)).matches(View({"x": "3"}))


def test_a_condition_reads_the_same_after_its_journey() -> None:
    condition = parse("area IN ('WC1', 'EC2') AND speed > 20")
    assert Sql.of(condition).condition().matches({"area": "EC2", "speed": 31.0})
    assert Sql.of(condition).covers(Sql.of(parse("area = 'EC2' AND speed > 30")))
