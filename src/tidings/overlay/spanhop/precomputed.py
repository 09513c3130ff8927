"""A precomputed network: zones, tables, advertisements and near brokers as they are long after all brokers have joined.

Simulations begin with it. The state is the one that the protocol's messages would lead to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, cast

import msgspec

from tidings.overlay.messages import NodeId
from tidings.overlay.router import Router
from tidings.overlay.spanhop.messages import IndexPut, TableEntry, ZoneAdvertisement, ZoneClaim
from tidings.overlay.spanhop.network_coordinates import Coordinates, bounds
from tidings.overlay.spanhop.proximity import Row
from tidings.overlay.spanhop.static_partition import Tiling
from tidings.space import Path, within

if TYPE_CHECKING:
    from tidings.overlay.spanhop.router import Spanhop


def settle(routers: dict[NodeId, Router[Any]], now: float) -> None:
    """Give all routers the state of a network that all have joined and in which nobody has subscribed yet."""
    brokers = [cast("Spanhop", router) for router in routers.values()]
    if not brokers:
        return
    first = brokers[0]
    tiling = _tiling(first, len(brokers))
    for broker, tile in zip(brokers, tiling.tiles):
        ancestors = [tuple(TableEntry(brokers[each].me, path) for each, path in known) for known in tile.ancestors]
        broker.zones.owned = {}
        broker.zones.neighbours = {
            brokers[each].me.id: ZoneAdvertisement(brokers[each].me, 0, (ZoneClaim(tiling.tiles[each].path, 0),))
            for each in tile.neighbours
        }
        broker.zones.acquire(tile.path, 0, ancestors)
        if broker.options.mode == "together":
            for each in dict.fromkeys(each for known in tile.ancestors for each, _ in known):
                broker.zones.record_present(brokers[each].me.id, (tiling.tiles[each].path,))
    for broker in brokers:
        near = [cast("Spanhop", routers[id]) for id in broker.zones.neighbours]
        broker.zones.neighbours_of = {each.me.id: tuple(each.zones.neighbours.values()) for each in near}


def _tiling(broker: Spanhop, count: int) -> Tiling:
    space, wrap = broker.zones.space, broker.zones.around is not None
    options = broker.options
    if options.layout == "balanced":
        return Tiling.balanced(count, space, k=options.k, wrap=wrap, kept=options.half_kept)
    rng = Random(broker.rng.getrandbits(64))
    return Tiling.grown(count, space, rng, k=options.k, wrap=wrap, policy=options.join_policy, kept=options.half_kept)


def settle_near(routers: Mapping[NodeId, Spanhop], places: Mapping[NodeId, Coordinates]) -> None:
    """Give a precomputed network coordinates, the index of them, and near brokers, as if all had put and asked.

    A query is answered with the records of the zone at the asker's point, or, where there are
    none, with those of the zone nearest to the point that has some.
    """
    some = next(iter(routers.values()))
    low, high = bounds(list(places.values()), margin=0.0)
    owners = _Owners(list(routers.values()))
    kept: dict[Path, dict[NodeId, list[Row]]] = {}
    for id, router in routers.items():
        near = router.proximity
        near.at, near.low, near.high = places[id], low, high
        _advertise_coordinates(router, places)
        for path in near.levels():
            owner = owners.of(near.point(places[id], path))
            near.put[path] = places[id]
            home = next(each for each in router.zones.owned if within(each, path))
            owned = next(iter(owner.zones.owned.values()))
            owned.index[path, id] = IndexPut(path, router.me, places[id], 1, home=home)
            rows = kept.setdefault(path, {}).setdefault(owner.me.id, [])
            rows.append((router.me, places[id], home))
            if 0 < near.index_records < len(rows):
                del owned.index[path, rows.pop(0)[0].id]
    for router in routers.values():
        for entry, asked in router.proximity.entries():
            point = router.proximity.point(places[router.me.id], asked)
            found = _records_at(point, kept.get(asked, {}), routers, owners, some.zones.around)
            router.proximity.choose(entry, asked, found)


def _advertise_coordinates(router: Spanhop, places: Mapping[NodeId, Coordinates]) -> None:
    """Let a broker know its own coordinates and those of its neighbours."""
    zones = router.zones
    zones.at = places[router.me.id]
    zones.neighbours = {id: msgspec.structs.replace(advert, at=places[id]) for id, advert in zones.neighbours.items()}
    zones.invalidate_routes()


def _records_at(
    point: tuple[int, ...],
    kept: Mapping[NodeId, list[Row]],
    routers: Mapping[NodeId, Spanhop],
    owners: _Owners,
    around: int | None,
) -> list[Row]:
    here = kept.get(owners.of(point).me.id)
    if here or not kept:
        return here or []
    zones = {id: next(iter(routers[id].zones.owned.values())).zone for id in kept}
    return kept[min(zones, key=lambda each: (zones[each].distance(point, around), each))]


class _Owners:
    """The owners of points in a precomputed network."""

    def __init__(self, routers: Sequence[Spanhop]) -> None:
        self._by_path = {path: router for router in routers for path in router.zones.owned}
        self._cuts = {path[:depth]: path[depth][0] for path in self._by_path for depth in range(len(path))}
        self._axes = routers[0].zones.space.axes

    def of(self, point: tuple[int, ...]) -> Spanhop:
        path: Path = ()
        while path not in self._by_path:
            cut = self._cuts[path]
            path = (*path, (cut, int(point[len(path) % self._axes] >= cut)))
        return self._by_path[path]
