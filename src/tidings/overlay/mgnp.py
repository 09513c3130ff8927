"""MGNP: the space itself tells which broker of a far zone is nearest by network.

A broker has network coordinates (see `gnp`). For each of its ancestors' zones it puts a
record of them at the point of that zone that its coordinates scale to. So records of
brokers that are near each other by network lie near each other in every zone, and whoever
wants the nearest broker of a zone asks at the point to which its *own* coordinates scale:
one look-up, instead of measuring the delay to everybody in there.

    IndexPut     for each ancestor's zone, when it is new, when coordinates drift, and refreshed now and then
    NearQuery    for each entry of an ancestor's table; if nobody is known at the point, on to the zones around it
    NearAnswer   whoever is nearest stands before the recorded broker when a way is chosen
    IndexChanged what was answered is no longer so: ask again

Coordinates come from `landmarks` ("gnp": brokers that are named, all measure their delay to
them, the first of them places them) or from any measured delay ("vivaldi": no landmarks).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Literal, TypeAlias

from tidings.overlay.claims import Held
from tidings.overlay.gnp import At, Spring, bounds, distance, embed, place, scale
from tidings.overlay.router import Effect, Send, Token, WakeAt
from tidings.overlay.spanhop_messages import (
    IndexChanged,
    IndexPut,
    LandmarkAsk,
    LandmarkRtts,
    Landmarks,
    NearAnswer,
    NearQuery,
    Ping,
    Pong,
    SpanhopMessage,
)
from tidings.overlay.wire import NodeId, Peer
from tidings.space import Path, within

if TYPE_CHECKING:
    from tidings.overlay.spanhop import Spanhop

PINGS = 5  # To each landmark; the quickest counts.
PING_S = 0.5  # Between them, and how long an answer is waited for.
SPRING_S = 2.0  # Between two of Vivaldi's, which go on for ever.
ASK_S = 2.0  # How often a host asks for the landmarks until it is told.
DRIFT = 0.2  # The share of its distance to the middle by which coordinates may drift before they are put anew;
DRIFT_MIN = 0.05  # that distance counts as at least this share of the whole width.
SURE = 0.5  # Vivaldi's error below which coordinates are worth telling.
SPRING_BOUND_S = 0.25  # Vivaldi's coordinates are taken to lie within this of the middle.
INDEX_MAX = 4096  # Records kept in one zone, and
ANSWER_MAX = 64  # told in one answer.
WATCHES_MAX = 4096
PINGS_MAX = 256  # Not answered yet.

How: TypeAlias = Literal["none", "gnp", "vivaldi"]


class Proximity:
    """One broker's place in the network, its part of the index, and the near brokers it has found."""

    def __init__(self, router: Spanhop, chance: Random, how: How, landmarks: Sequence[NodeId]) -> None:
        self._router, self._chance, self.how = router, chance, how
        self.landmarks = tuple(landmarks)
        self.at: At | None = None
        self.low: At = ()
        self.high: At = ()
        self.spring = Spring((0.0,) * router.atlas.space.axes)
        self.put: dict[Path, At] = {}
        self.asked: dict[Path, None] = {}
        self.watches: dict[tuple[Path, NodeId], None] = {}
        self._told: Landmarks | None = None
        self._sent: dict[int, tuple[NodeId, float]] = {}
        self._rtts: dict[NodeId, float] = {}
        self._rows: dict[NodeId, tuple[float, ...]] = {}
        self._number = self._version = self._pinged = 0

    # ── Finding out where one is ─────────────────────────────────────────────

    def start(self, now: float) -> list[Effect]:
        if self.how == "none":
            return []
        if self.how == "vivaldi":
            axes = self._router.atlas.space.axes
            self.low, self.high = (-SPRING_BOUND_S,) * axes, (SPRING_BOUND_S,) * axes
        return [WakeAt(now + self._chance.random() * PING_S, ("ping",), idle=True)]

    def wake(self, token: Token, now: float) -> list[Effect]:
        if token != ("ping",):
            return []
        if self.how == "vivaldi":
            return [*self._ping_any(now), WakeAt(now + SPRING_S, token, idle=True)]
        if self._pinged < PINGS:
            self._pinged += 1
            return [*self._ping_all(now), WakeAt(now + PING_S, token, idle=True)]
        return self._measured(now)

    def _ping_any(self, now: float) -> list[Effect]:
        links = self._router.links()
        return self._ping(self._chance.choice(links), now) if links else []

    def _ping_all(self, now: float) -> list[Effect]:
        return [effect for id in self.landmarks if id != self._router.me.id for effect in self._ping(id, now)]

    def _ping(self, id: NodeId, now: float) -> list[Effect]:
        if len(self._sent) >= PINGS_MAX:
            del self._sent[next(iter(self._sent))]
        self._number += 1
        self._sent[self._number] = (id, now)
        return [Send(id, Ping(self._number))]

    def _measured(self, now: float) -> list[Effect]:
        """All pings are over: tell the first landmark, if this is one, and ask where they are until that is known."""
        if self._told is not None:
            return []
        again = WakeAt(now + ASK_S, ("ping",), idle=True)
        me = self._router.me.id
        if me in self.landmarks:
            row = LandmarkRtts(tuple(self._rtts.get(id, 0.0) for id in self.landmarks))
            if me == self.landmarks[0]:
                return [*self._row(me, row, now), again]
            return [Send(self.landmarks[0], row), Send(self.landmarks[0], LandmarkAsk()), again]
        return [Send(self._chance.choice(self.landmarks), LandmarkAsk()), again] if self.landmarks else []

    def receive(self, sender: NodeId, message: SpanhopMessage, now: float) -> list[Effect]:
        match message:
            case Ping(number=number):
                return [Send(sender, Pong(number, self.spring.at, self.spring.error))]
            case Pong():
                return self._pong(sender, message, now)
            case LandmarkRtts():
                return self._row(sender, message, now)
            case LandmarkAsk():
                return [Send(sender, self._told)] if self._told is not None else []
            case Landmarks():
                return self._landmarks(message, now)
            case NearAnswer():
                return self._answered(message)
            case IndexChanged(path=path):
                self.asked.pop(path, None)
                return self._ask_for(path, now)
        return []

    def _pong(self, sender: NodeId, pong: Pong, now: float) -> list[Effect]:
        id, sent_at = self._sent.pop(pong.number, ("", 0.0))
        if id != sender or len(pong.at) != len(self.spring.at) or not 0.0 <= pong.error <= 1.0:
            return []
        rtt = now - sent_at
        self._rtts[sender] = min(rtt, self._rtts.get(sender, rtt))
        if self.how != "vivaldi" or not all(abs(x) < 1e6 for x in pong.at):
            return []
        direction = tuple(self._chance.gauss(0, 1) for _ in pong.at)
        self.spring = self.spring.pulled(Spring(pong.at, pong.error), rtt, direction)
        return self.move_to(self.spring.at, now) if self.spring.error < SURE else []

    def _row(self, sender: NodeId, row: LandmarkRtts, now: float) -> list[Effect]:
        """The first landmark collects what all have measured, and places them."""
        is_complete = len(row.rtts) == len(self.landmarks) and all(0.0 <= rtt < 1e6 for rtt in row.rtts)
        if sender not in self.landmarks or self._told is not None or not is_complete:
            return []
        self._rows[sender] = row.rtts
        if len(self._rows) < len(self.landmarks):
            return []
        axes = self._router.atlas.space.axes
        places = embed([self._rows[id] for id in self.landmarks], axes)
        told = Landmarks(tuple(Peer(id) for id in self.landmarks), places, *bounds(places))
        return self._landmarks(told, now)

    def _landmarks(self, told: Landmarks, now: float) -> list[Effect]:
        """Now that the landmarks are placed, this host can be."""
        axes = self._router.atlas.space.axes
        shapes = {len(at) for at in (*told.at, told.low, told.high)}
        if self._told is not None or shapes != {axes} or len(told.peers) != len(told.at):
            return []
        self._told, self.low, self.high = told, told.low, told.high
        me = self._router.me.id
        own = [at for peer, at in zip(told.peers, told.at) if peer.id == me]
        rows = [(at, self._rtts[peer.id]) for peer, at in zip(told.peers, told.at) if peer.id in self._rtts]
        if own:
            return self.move_to(own[0], now)
        if len(rows) < axes + 1:  # Any that many will do; with fewer this host stays unplaced.
            return []
        return self.move_to(place([at for at, _ in rows], [rtt for _, rtt in rows]), now)

    def move_to(self, at: At, now: float) -> list[Effect]:
        """These are this broker's coordinates now."""
        self.at = at
        return [*self.publish(now), *self.select(now)]

    # ── Telling where one is ─────────────────────────────────────────────────

    def publish(self, now: float, *, again: bool = False) -> list[Effect]:
        """Put a record for each ancestor's zone that has none, or an old one; take back those of zones left."""
        if self.at is None or self.how == "none":
            return []
        wanted = self._levels()
        effects: list[Effect] = []
        for path in [path for path in self.put if path not in wanted]:
            effects += self._put(path, self.put.pop(path), now, gone=True)
        for path in wanted:
            before = self.put.get(path)
            if before is None or again or self._has_drifted(before, self.at):
                if before is not None and not again:
                    effects += self._put(path, before, now, gone=True)
                self.put[path] = self.at
                effects += self._put(path, self.at, now, whispers=again)
        return effects

    def withdraw(self, now: float) -> list[Effect]:
        """Take back all records."""
        effects = [effect for path, at in self.put.items() for effect in self._put(path, at, now, gone=True)]
        self.put.clear()
        return effects

    def _levels(self) -> list[Path]:
        """The zones of all ancestors but the whole space."""
        k = self._router.k
        paths = (
            held.path[: level * k]
            for held in self._router.atlas.held.values()
            for level in range(1, len(held.ancestors))
        )
        return list(dict.fromkeys(paths))

    def _has_drifted(self, before: At, at: At) -> bool:
        middle = tuple((a + b) / 2 for a, b in zip(self.low, self.high))
        return distance(before, at) > DRIFT * max(distance(before, middle), DRIFT_MIN * distance(self.low, self.high))

    def _put(self, path: Path, at: At, now: float, *, gone: bool = False, whispers: bool = False) -> list[Effect]:
        self._version += 1
        version = (self._router.me.incarnation << 32) + self._version
        record = IndexPut(path, self._router.me, at, version, gone)
        return self._router.send_to(record, self.point(at, path), now, whispers=whispers)

    def point(self, at: At, path: Path) -> tuple[int, ...]:
        """Where in a zone coordinates belong."""
        return scale(at, self._router.atlas.space.zone(path), self.low, self.high)

    # ── Keeping records for others ───────────────────────────────────────────

    def keep(self, held: Held, record: IndexPut, now: float) -> list[Effect]:
        """A record whose point is in a zone held here."""
        key = (record.path, record.peer.id)
        known = held.index.get(key)
        was_empty = known is None and not any(path == record.path for path, _ in held.index)
        if known is not None and known.version >= record.version:
            return []
        if record.gone:
            if known is None or distance(known.at, record.at) > 0:
                return []
            del held.index[key]
        elif known is not None or len(held.index) < INDEX_MAX:
            held.index[key] = record
        # One more record does not make an answer wrong; whoever was told of it finds out when it asks again.
        has_changed = was_empty if known is None else record.gone or known.at != record.at
        return self._tell_watchers(record.path) if has_changed else []

    def _tell_watchers(self, path: Path) -> list[Effect]:
        watching = [key for key in self.watches if key[0] == path]
        for key in watching:
            del self.watches[key]
        return [Send(id, IndexChanged(path)) for _, id in watching]

    def moved(self, records: Sequence[IndexPut]) -> list[Effect]:
        """Records have gone to somebody else with the zone they lie in: whoever was told of them asks there."""
        paths = dict.fromkeys(record.path for record in records)
        return [effect for path in paths for effect in self._tell_watchers(path)]

    def query(self, held: Held, query: NearQuery, now: float) -> list[Effect]:
        """Somebody wants to know who is near it in a zone."""
        found = [record for (path, _), record in held.index.items() if path == query.path]
        found.sort(key=lambda record: (distance(record.at, query.at), record.peer.id))
        if not found and query.rings > 0:
            onward = self._ask_next(query, now)
            if onward:
                return onward
        if len(self.watches) < WATCHES_MAX:
            self.watches[query.path, query.asker.id] = None
        told = tuple((record.peer, record.at) for record in found[:ANSWER_MAX])
        return [Send(query.asker.id, NearAnswer(query.path, told))]

    def _ask_next(self, query: NearQuery, now: float) -> list[Effect]:
        """On to a neighbouring zone in the zone asked about, the nearest to the point that has not been asked."""
        atlas = self._router.atlas
        zone, point = atlas.space.zone(query.path), query.point
        rows = [
            (there.distance(point, atlas.around), id, there)
            for id, card in atlas.cards.items()
            for claim in card.claims
            if (there := atlas.space.zone(claim.path)).touches(zone) and id not in query.asked
        ]
        if not rows:
            return []
        _, _, there = min(rows, key=lambda row: row[:2])
        asked = (*query.asked, self._router.me.id)
        onward = NearQuery(query.path, query.asker, query.at, point, query.rings - 1, asked)
        part = there.meet(zone)
        assert part is not None
        return self._router.send_to(onward, part.nearest(point, atlas.around), now)

    # ── Finding who is near ──────────────────────────────────────────────────

    def select(self, now: float) -> list[Effect]:
        """Ask for the nearest broker of each zone in the tables of ancestors that has not been asked about."""
        if self.at is None or self.how == "none":
            return []
        zones = dict.fromkeys(zone for _, zone in self._entries())
        return [effect for path in zones if path not in self.asked for effect in self._ask_for(path, now)]

    def select_again(self, now: float) -> list[Effect]:
        """Ask once more about one zone, chosen by chance: there may be somebody nearer by now."""
        if self.at is None or self.how == "none" or not self.asked:
            return []
        return self._ask_for(self._chance.choice(list(self.asked)), now)

    def _ask_for(self, path: Path, now: float) -> list[Effect]:
        if self.at is None or path not in dict(self._entries()).values():
            self.asked.pop(path, None)
            return []
        self.asked[path] = None
        point = self.point(self.at, path)
        query = NearQuery(path, self._router.me, self.at, point, rings=1 << self._router.k)
        return self._router.send_to(query, point, now)

    def _entries(self) -> list[tuple[Path, Path]]:
        """For each entry of an ancestor's table, its path and the level's zone around it that is asked about."""
        k = self._router.k
        return [
            (plot.path, asked)
            for held in self._router.atlas.held.values()
            for plot in dict.fromkeys(plot for table in held.ancestors for plot in table)
            if (asked := level_zone(plot.path, k)) and not within(held.path, asked)
        ]

    def _answered(self, answer: NearAnswer) -> list[Effect]:
        if self.at is None or not all(len(at) == len(self.at) for _, at in answer.found):
            return []
        nearest = nearest_of(self.at, answer.found, but=self._router.me.id)
        for entry, asked in self._entries():
            if asked == answer.path:
                self._router.atlas.set_near(entry, nearest.id if nearest else None)
        return []


def level_zone(path: Path, k: int) -> Path:
    """The smallest zone around a path that has a level of its own: the one brokers put records for."""
    return path[: len(path) // k * k]


def nearest_of(at: At, found: Sequence[tuple[Peer, At]], *, but: NodeId = "") -> Peer | None:
    """Of brokers with their coordinates the one nearest to a place."""
    rows = [(distance(there, at), peer.id, peer) for peer, there in found if peer.id != but]
    return min(rows, key=lambda row: row[:2])[2] if rows else None


def settle_near(routers: Mapping[NodeId, Spanhop], places: Mapping[NodeId, At]) -> None:
    """Give a settled network its coordinates, its index and its near brokers, as if all had been put and asked.

    The answer to a query is what the zone at the asker's point keeps, or, where that keeps
    nothing, the records of the zone that has some nearest to the point.
    """
    some = next(iter(routers.values()))
    low, high = bounds(list(places.values()), margin=0.0)
    owners = _Owners(list(routers.values()))
    kept: dict[Path, dict[NodeId, list[tuple[Peer, At]]]] = {}
    for id, router in routers.items():
        near = router.proximity
        near.at, near.low, near.high = places[id], low, high
        for path in near._levels():
            owner = owners.of(near.point(places[id], path))
            near.put[path] = places[id]
            next(iter(owner.atlas.held.values())).index[path, id] = IndexPut(path, router.me, places[id], 1)
            kept.setdefault(path, {}).setdefault(owner.me.id, []).append((router.me, places[id]))
    for router in routers.values():
        for entry, asked in router.proximity._entries():
            point = router.proximity.point(places[router.me.id], asked)
            found = _records_at(point, kept.get(asked, {}), routers, owners, some.atlas.around)
            nearest = nearest_of(places[router.me.id], found, but=router.me.id)
            router.atlas.set_near(entry, nearest.id if nearest else None)


def _records_at(
    point: tuple[int, ...],
    kept: Mapping[NodeId, list[tuple[Peer, At]]],
    routers: Mapping[NodeId, Spanhop],
    owners: _Owners,
    around: int | None,
) -> list[tuple[Peer, At]]:
    here = kept.get(owners.of(point).me.id)
    if here or not kept:
        return here or []
    zones = {id: next(iter(routers[id].atlas.held.values())).zone for id in kept}
    return kept[min(zones, key=lambda each: (zones[each].distance(point, around), each))]


class _Owners:
    """Whose zone holds a point, in a settled network."""

    def __init__(self, routers: Sequence[Spanhop]) -> None:
        self._by_path = {path: router for router in routers for path in router.atlas.held}
        self._cuts = {path[:depth]: path[depth][0] for path in self._by_path for depth in range(len(path))}
        self._axes = routers[0].atlas.space.axes

    def of(self, point: tuple[int, ...]) -> Spanhop:
        path: Path = ()
        while path not in self._by_path:
            cut = self._cuts[path]
            path = (*path, (cut, int(point[len(path) % self._axes] >= cut)))
        return self._by_path[path]
