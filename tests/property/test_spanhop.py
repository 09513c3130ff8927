"""Laws of a partitioned space: zones tile it, every route ends at the owner, pieces cover a box once."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.strategies_filters import random_condition, random_type, random_values
from tidings.events import Value, type_of
from tidings.overlay import (
    Interest,
    Ranges,
    RouteHeader,
    RoutingState,
    Sql,
    SubscriptionId,
    Tiling,
    View,
    hops_max,
    next_hop,
)
from tidings.overlay.spanhop.network_coordinates import scale
from tidings.overlay.spanhop.next_hop import Ancestor, RoutingEntry
from tidings.overlay.spanhop.quantisation import Quantiser
from tidings.overlay.spanhop.zone_ownership import uncovered
from tidings.space import Path, Space, Zone, siblings, within

EXAMPLES = 30  # Each is a whole network.
SMALL = Space(2, 4)  # 16 × 16 cells: every point can be looked at.


@st.composite
def tilings(draw: st.DrawFn, axes_max: int = 3) -> Tiling:
    axes = draw(st.integers(1, axes_max))
    rng = Random(draw(st.integers(0, 10_000)))
    policy = draw(st.sampled_from(["even", "point"]))
    count, k, wrap = draw(st.integers(1, 40)), draw(st.integers(1, 3)), draw(st.booleans())
    return Tiling.grown(count, Space(axes), rng, k=k, wrap=wrap, policy=policy)  # type: ignore[arg-type]


@st.composite
def boxes(draw: st.DrawFn, space: Space = SMALL) -> Zone:
    ends = [draw(st.tuples(st.integers(0, space.side - 1), st.integers(1, space.side))) for _ in range(space.axes)]
    return Zone(tuple(low for low, _ in ends), tuple(min(low + width, space.side) for low, width in ends))


def cells(zone: Zone) -> set[tuple[int, int]]:
    return {(x, y) for x in range(zone.low[0], zone.high[0]) for y in range(zone.low[1], zone.high[1])}


def points(space: Space, rng: Random, count: int) -> list[tuple[int, ...]]:
    return [tuple(rng.randrange(space.side) for _ in range(space.axes)) for _ in range(count)]


# ── Geometry ─────────────────────────────────────────────────────────────────


@given(boxes(), boxes())
def test_what_two_zones_share_and_what_only_one_has_are_all_its_points(one: Zone, other: Zone) -> None:
    both = one.meet(other)
    parts = one.without(other)
    assert cells(one) & cells(other) == (cells(both) if both else set())
    assert cells(one) - cells(other) == set().union(*map(cells, parts))
    assert sum(part.size for part in parts) == one.size - (both.size if both else 0)


@given(boxes(), st.tuples(st.integers(0, 15), st.integers(0, 15)), st.booleans())
def test_the_distance_is_that_of_the_nearest_cell(zone: Zone, at: tuple[int, int], wrap: bool) -> None:
    around = 16 if wrap else None

    def way(a: int, b: int) -> int:
        return min(abs(a - b), 16 - abs(a - b)) if wrap else abs(a - b)

    assert zone.distance(at, around) == min(way(x, at[0]) ** 2 + way(y, at[1]) ** 2 for x, y in cells(zone))
    nearest = zone.nearest(at, around)
    assert nearest in zone
    assert sum(way(a, b) ** 2 for a, b in zip(nearest, at)) == zone.distance(at, around)


@given(boxes(), boxes(), st.booleans())
def test_zones_with_a_common_face_are_those_with_cells_side_by_side(one: Zone, other: Zone, wrap: bool) -> None:
    if one.touches(other):
        return
    steps = [(1, 0), (-1, 0), (0, 1), (0, -1)]

    def moved(cell: tuple[int, int], step: tuple[int, int]) -> tuple[int, int]:
        x, y = cell[0] + step[0], cell[1] + step[1]
        return (x % 16, y % 16) if wrap else (x, y)

    side_by_side = any(moved(cell, step) in cells(other) for cell in cells(one) for step in steps)
    assert (one.borders(other, 16 if wrap else None) is not None) == side_by_side
    assert one.borders(other, 16) == other.borders(one, 16)


@settings(max_examples=EXAMPLES)
@given(tilings(), st.integers(0, 100))
def test_zones_tile_the_space_and_siblings_with_a_zone_do_too(tiling: Tiling, seed: int) -> None:
    """SPANHOP-INV-1, SPANHOP-INV-3."""
    space = tiling.space
    zones = [space.zone(tile.path) for tile in tiling.tiles]
    assert sum(zone.size for zone in zones) == space.whole.size
    for at in points(space, Random(seed), 5):
        owner = tiling.owner(at)
        assert [number for number, zone in enumerate(zones) if at in zone] == [owner]
        path = tiling.tiles[owner].path
        assert sum(at in space.zone(other) for other in siblings(path)) == 0
        assert sum(space.zone(other).size for other in siblings(path)) + zones[owner].size == space.whole.size
        assert space.has(path)


@settings(max_examples=EXAMPLES)
@given(tilings())
def test_neighbours_are_those_with_a_common_face(tiling: Tiling) -> None:
    """SPANHOP-INV-2."""
    zones = [tiling.space.zone(tile.path) for tile in tiling.tiles]
    for number, tile in enumerate(tiling.tiles):
        beside = [other for other, zone in enumerate(zones) if zones[number].borders(zone, tiling.around) is not None]
        assert sorted(tile.neighbours) == [other for other in beside if other != number]


@settings(max_examples=EXAMPLES)
@given(tilings())
def test_brokers_of_one_domain_have_the_same_ancestors_up_to_it(tiling: Tiling) -> None:
    """SPANHOP-INV-4, SPANHOP-INV-5, SPANHOP-P10: the zones, not the recorded neighbours."""
    k = tiling.k
    for tile in tiling.tiles:
        assert len(tile.ancestors) == len(tile.path) // k + 1
    for one in tiling.tiles:
        for other in tiling.tiles:
            shared = next((j for j, (a, b) in enumerate(zip(one.path, other.path)) if a != b), len(one.path))
            for level in range(shared // k + 1):
                assert one.path[: level * k] == other.path[: level * k]


@settings(max_examples=EXAMPLES)
@given(tilings())
def test_a_broker_recorded_in_a_zone_is_still_in_it(tiling: Tiling) -> None:
    """SPANHOP-INV-6, where nobody has moved: owners keep the lower part."""
    for tile in tiling.tiles:
        for known in tile.ancestors:
            assert all(within(tiling.tiles[broker].path, path) for broker, path in known)


# ── Routes ───────────────────────────────────────────────────────────────────


def arrives(
    brokers: list[RoutingState], start: int, destination: tuple[int, ...], k: int, *, greedy: bool = False
) -> int:
    at, route, hops = start, RouteHeader(destination, greedy=greedy), 0
    while (hop := next_hop(brokers[at], route, k)).to is not None:
        at, route, hops = int(hop.to), hop.route, hops + 1
        assert hops <= hops_max(len(brokers), len(destination)) + len(brokers)
    assert hop.how == "here"
    return at


@settings(max_examples=EXAMPLES)
@given(tilings(), st.integers(0, 100))
def test_some_neighbour_is_always_nearer(tiling: Tiling, seed: int) -> None:
    """SPANHOP-LAW-1."""
    zones = [tiling.space.zone(tile.path) for tile in tiling.tiles]
    for at in points(tiling.space, Random(seed), 5):
        for number, tile in enumerate(tiling.tiles):
            own = zones[number].distance(at, tiling.around)
            assert own == 0 or min(zones[other].distance(at, tiling.around) for other in tile.neighbours) < own


@settings(max_examples=EXAMPLES)
@given(tilings(), st.integers(0, 100))
def test_a_message_ends_at_the_owner_of_its_aim(tiling: Tiling, seed: int) -> None:
    """SPANHOP-P2."""
    rng = Random(seed)
    brokers = [tiling.routing_state(number) for number in range(len(tiling))]
    for destination in points(tiling.space, rng, 5):
        start = rng.randrange(len(tiling))
        assert arrives(brokers, start, destination, tiling.k) == tiling.owner(destination)
        assert arrives(brokers, start, destination, tiling.k, greedy=True) == tiling.owner(destination)


@settings(max_examples=EXAMPLES)
@given(tilings(), st.integers(0, 100))
def test_a_message_arrives_however_stale_the_tables_of_ancestors_are(tiling: Tiling, seed: int) -> None:
    """SPANHOP-P2, with any broker recorded in place of any other."""
    rng = Random(seed)
    brokers = []
    for number in range(len(tiling)):
        broker = tiling.routing_state(number)
        stale = [
            Ancestor(a.zone, tuple(RoutingEntry(str(rng.randrange(len(tiling))), known.zone) for known in a.known))
            for a in broker.ancestors
        ]
        brokers.append(replace(broker, ancestors=stale))
    for destination in points(tiling.space, rng, 5):
        assert arrives(brokers, rng.randrange(len(tiling)), destination, tiling.k) == tiling.owner(destination)


@settings(max_examples=EXAMPLES)
@given(tilings(), st.integers(0, 100))
def test_a_hop_by_ancestors_goes_to_a_broker_inside_the_recorded_zone(tiling: Tiling, seed: int) -> None:
    """SPANHOP-P3, where nobody has moved."""
    rng = Random(seed)
    for destination in points(tiling.space, rng, 5):
        number = rng.randrange(len(tiling))
        hop = next_hop(tiling.routing_state(number), RouteHeader(destination), tiling.k)
        if hop.how == "ancestor":
            assert hop.to is not None
            known = [
                path for table in tiling.tiles[number].ancestors for broker, path in table if str(broker) == hop.to
            ]
            assert any(within(tiling.tiles[int(hop.to)].path, path) for path in known)


# ── Claims, pieces, boxes ────────────────────────────────────────────────────


@settings(max_examples=EXAMPLES)
@given(tilings(), st.data())
def test_what_is_not_covered_and_what_is_are_the_whole_zone(tiling: Tiling, data: st.DataObject) -> None:
    paths = [tile.path for tile in tiling.tiles]
    claims = data.draw(st.lists(st.sampled_from(paths), unique=True))
    rest = uncovered((), claims)
    size = sum(tiling.space.zone(path).size for path in (*claims, *rest))
    assert size == tiling.space.whole.size
    assert not [1 for one in rest for other in claims if tiling.space.zone(one).touches(tiling.space.zone(other))]


@settings(max_examples=EXAMPLES)
@given(tilings(), st.integers(0, 100))
def test_pieces_cut_along_the_tree_reach_each_zone_of_a_box_once(tiling: Tiling, seed: int) -> None:
    """SPANHOP-P7, the geometry of it."""
    rng, space = Random(seed), tiling.space
    low, high = points(space, rng, 2)
    box = Zone(tuple(map(min, low, high)), tuple(max(pair) + 1 for pair in zip(low, high)))
    reached: list[Path] = []
    waiting = [box]
    while waiting:
        piece = waiting.pop()
        path = tiling.tiles[tiling.owner(piece.low)].path
        reached.append(path)
        waiting += [part for other in siblings(path) if (part := piece.meet(space.zone(other))) is not None]
    assert sorted(reached) == sorted(tile.path for tile in tiling.tiles if space.zone(tile.path).touches(box))


FLOATS = st.floats(allow_nan=True, allow_infinity=True)
VALUES = st.one_of(
    st.integers(-(2**63), 2**63 - 1), FLOATS, st.text(max_size=12), st.binary(max_size=12), st.booleans()
)
BOUNDS = st.sampled_from([(0, 1000), (-5, 5), (0.0, 1.0), (-1e300, 1e300), ("a", "z"), (b"\0", b"\xff"), (0, 2**62)])


@given(BOUNDS, VALUES, VALUES)
def test_cells_keep_the_order_of_values(bounds: tuple[Value, Value], one: Value, other: Value) -> None:
    if type_of(one) is not type_of(other):
        return
    axes = Quantiser.of({"x": bounds}, Space(1))
    kind = type_of(one)
    low, high = sorted([one, other], key=kind.key)
    assert axes.event(View({"x": low})).low <= axes.event(View({"x": high})).low


@settings(max_examples=EXAMPLES)
@given(st.integers(0, 2**32), BOUNDS, BOUNDS)
def test_no_event_that_is_wanted_lies_outside_the_boxes(
    seed: int, first: tuple[Value, Value], second: tuple[Value, Value]
) -> None:
    rng = Random(seed)
    event_type = random_type(rng)
    sql = Sql.of(random_condition(rng, event_type))
    names = [*(name for name, _ in sql.types), "elsewhere", "nowhere"][:2]
    axes = Quantiser.of(dict(zip(names, (first, second))), Space(2))
    for _ in range(10):
        values = random_values(rng, event_type)
        view = View({name: value for name, value in values.items() if value is not None})
        if sql.matches(view):
            assert any(axes.event(view).touches(box) for box in axes.wanted(sql))


@given(st.integers(-50, 1050), st.integers(-50, 1050), st.integers(-50, 1050), st.booleans())
def test_a_range_becomes_one_box_around_its_values(low: int, width: int, x: int, hidden: bool) -> None:
    axes = Quantiser.of({"x": (0, 1000), "y": (0, 1000)}, Space(2))
    wanted = Ranges.of(x=(low, low + abs(width)))
    interest = Interest(SubscriptionId("a", 0, 1), "Event", wanted)
    (box,) = axes.wanted(interest.wanted)
    event = axes.event(View({}, hidden=("x",)) if hidden else View({"x": x}))
    assert box.touches(event) or not low <= x <= low + abs(width)
    if not hidden and 0 < low <= low + abs(width) < 1000 and 0 < x < 1000:
        assert box.touches(event) == (low <= x <= low + abs(width))


@given(st.lists(st.tuples(st.floats(-2, 2), st.floats(-2, 2)), min_size=2, max_size=2), boxes())
def test_coordinates_scaled_into_a_zone_keep_their_order_and_stay_inside(
    places: list[tuple[float, float]], zone: Zone
) -> None:
    """SPANHOP-P11."""
    one, other = (scale(at, zone, (-1.0, -1.0), (1.0, 1.0)) for at in places)
    assert one in zone
    assert other in zone
    assert all((a <= b) or (x > y) for a, b, x, y in zip(one, other, *places))
