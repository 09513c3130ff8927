"""MGNP: the space itself tells which broker of a far zone is nearest by network.

A broker has network coordinates (see `gnp`). For each of its ancestors' zones it puts a
record of them at the point of that zone that its coordinates scale to. So records of
brokers that are near each other by network lie near each other in every zone, and whoever
wants the nearest broker of a zone asks at the point to which its *own* coordinates scale:
one look-up, instead of measuring the delay to everybody in there.

    IndexPut     for each ancestor's zone, when it is new, when coordinates drift, and refreshed now and then
    NearQuery    for each entry of an ancestor's table; if nobody is known at the point, in the zones around it, ring by ring
    NearAnswer   whoever is nearest stands before the recorded broker when a way is chosen
    IndexChanged what was answered is no longer so: ask again

Coordinates come from `landmarks` ("gnp": brokers that are named, all measure their delay to
them, the first of them places them) or from any measured delay ("vivaldi": no landmarks).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING, Literal, TypeAlias

from tidings.overlay.messages import NodeId, Peer
from tidings.overlay.router import Effect, Send, Token, WakeAt
from tidings.overlay.spanhop.messages import (
    IndexChanged,
    IndexPut,
    LandmarkRequest,
    LandmarkRtts,
    Landmarks,
    NearAnswer,
    NearQuery,
    PendingZone,
    Ping,
    Pong,
    SpanhopMessage,
)
from tidings.overlay.spanhop.network_coordinates import (
    Coordinates,
    VivaldiEstimate,
    bounds,
    distance,
    embed,
    place,
    scale,
)
from tidings.overlay.spanhop.zone_ownership import OwnedZone
from tidings.space import Path, within

if TYPE_CHECKING:
    from tidings.overlay.spanhop.router import Spanhop

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
RINGS_MAX = 3  # Around the first zone, that are asked if nobody is known there; and
ASKED_MAX = 48  # zones in all: as many as lie in three rings of equal squares.
PINGS_MAX = 256  # Not answered yet.

ProximityMethod: TypeAlias = Literal["none", "gnp", "vivaldi"]
Row: TypeAlias = tuple[Peer, Coordinates, Path]  # A broker, where it is by network, and its zone.


class Proximity:
    """One broker's place in the network, its part of the index, and the near brokers it has found."""

    def __init__(self, router: Spanhop, rng: Random, how: ProximityMethod, landmarks: Sequence[NodeId]) -> None:
        self._router, self._rng, self.how = router, rng, how
        self.landmarks = tuple(landmarks)
        self.at: Coordinates | None = None
        self.low: Coordinates = ()
        self.high: Coordinates = ()
        self.spring = VivaldiEstimate((0.0,) * router.zones.space.axes)
        self.put: dict[Path, Coordinates] = {}
        self.asked: dict[Path, None] = {}
        self.watches: dict[tuple[Path, NodeId], None] = {}
        self._told: Landmarks | None = None
        self._sent: OrderedDict[int, tuple[NodeId, float]] = OrderedDict()
        self._rtts: dict[NodeId, float] = {}
        self._rows: dict[NodeId, tuple[float, ...]] = {}
        self._number = self._version = self._pinged = 0

    # ── Finding out where one is ─────────────────────────────────────────────

    def start(self, now: float) -> list[Effect]:
        if self.how == "none":
            return []
        if self.how == "vivaldi":
            axes = self._router.zones.space.axes
            self.low, self.high = (-SPRING_BOUND_S,) * axes, (SPRING_BOUND_S,) * axes
        return [WakeAt(now + self._rng.random() * PING_S, ("ping",), idle=True)]

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
        return self._ping(self._rng.choice(links), now) if links else []

    def _ping_all(self, now: float) -> list[Effect]:
        return [effect for id in self.landmarks if id != self._router.me.id for effect in self._ping(id, now)]

    def _ping(self, id: NodeId, now: float) -> list[Effect]:
        if len(self._sent) >= PINGS_MAX:
            self._sent.popitem(last=False)
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
            return [Send(self.landmarks[0], row), Send(self.landmarks[0], LandmarkRequest()), again]
        return [Send(self._rng.choice(self.landmarks), LandmarkRequest()), again] if self.landmarks else []

    def receive(self, sender: NodeId, message: SpanhopMessage, now: float) -> list[Effect]:
        match message:
            case Ping(number=number):
                return [Send(sender, Pong(number, self.spring.at, self.spring.error))]
            case Pong():
                return self._pong(sender, message, now)
            case LandmarkRtts():
                return self._row(sender, message, now)
            case LandmarkRequest():
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
        direction = tuple(self._rng.gauss(0, 1) for _ in pong.at)
        self.spring = self.spring.pulled(VivaldiEstimate(pong.at, pong.error), rtt, direction)
        return self.move_to(self.spring.at, now) if self.spring.error < SURE else []

    def _row(self, sender: NodeId, row: LandmarkRtts, now: float) -> list[Effect]:
        """The first landmark collects what all have measured, and places them."""
        is_complete = len(row.rtts) == len(self.landmarks) and all(0.0 <= rtt < 1e6 for rtt in row.rtts)
        if sender not in self.landmarks or self._told is not None or not is_complete:
            return []
        self._rows[sender] = row.rtts
        if len(self._rows) < len(self.landmarks):
            return []
        axes = self._router.zones.space.axes
        places = embed([self._rows[id] for id in self.landmarks], axes)
        told = Landmarks(tuple(Peer(id) for id in self.landmarks), places, *bounds(places))
        return self._landmarks(told, now)

    def _landmarks(self, told: Landmarks, now: float) -> list[Effect]:
        """Now that the landmarks are placed, this host can be."""
        axes = self._router.zones.space.axes
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

    def move_to(self, at: Coordinates, now: float) -> list[Effect]:
        """These are this broker's coordinates now."""
        self.at = at
        told = self._router.zones.at
        if not told or self._has_drifted(told, at):
            self._router.zones.move_to(at)
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
            owned.path[: level * k]
            for owned in self._router.zones.owned.values()
            for level in range(1, len(owned.ancestors))
        )
        return list(dict.fromkeys(paths))

    def _has_drifted(self, before: Coordinates, at: Coordinates) -> bool:
        middle = tuple((a + b) / 2 for a, b in zip(self.low, self.high))
        return distance(before, at) > DRIFT * max(distance(before, middle), DRIFT_MIN * distance(self.low, self.high))

    def _put(
        self, path: Path, at: Coordinates, now: float, *, gone: bool = False, whispers: bool = False
    ) -> list[Effect]:
        self._version += 1
        version = (self._router.me.incarnation << 32) + self._version
        homes = (owned.path for owned in self._router.zones.owned.values() if within(owned.path, path))
        record = IndexPut(path, self._router.me, at, version, gone, next(homes, path))
        return self._router.carrier.send_to(record, self.point(at, path), now, whispers=whispers)

    def point(self, at: Coordinates, path: Path) -> tuple[int, ...]:
        """Where in a zone coordinates belong."""
        return scale(at, self._router.zones.space.zone(path), self.low, self.high)

    # ── Keeping records for others ───────────────────────────────────────────

    def keep(self, owned: OwnedZone, record: IndexPut, now: float) -> list[Effect]:
        """A record whose point is in a zone held here."""
        key = (record.path, record.peer.id)
        known = owned.index.get(key)
        was_empty = known is None and not any(path == record.path for path, _ in owned.index)
        if known is not None and known.version >= record.version:
            return []
        if record.gone:
            if known is None or distance(known.at, record.at) > 0:
                return []
            del owned.index[key]
        elif known is not None or len(owned.index) < INDEX_MAX:
            owned.index[key] = record
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

    def query(self, owned: OwnedZone, query: NearQuery, now: float) -> list[Effect]:
        """Somebody wants to know who is near it in a zone."""
        found = [record for (path, _), record in owned.index.items() if path == query.path]
        found.sort(key=lambda record: (distance(record.at, query.at), record.peer.id))
        onward = [] if found else self._ask_next(query, now)
        if onward:
            return onward
        if len(self.watches) < WATCHES_MAX:
            self.watches[query.path, query.asker.id] = None
        told = tuple((record.peer, record.at, record.home) for record in found[:ANSWER_MAX])
        return [Send(query.asker.id, NearAnswer(query.path, told))]

    def _ask_next(self, query: NearQuery, now: float) -> list[Effect]:
        """On to the next zone within the one asked about: of the innermost ring, the nearest to the point."""
        asked = (*query.asked, self._router.me.id)
        around = self._router.zones.around
        zones = [zone for zone in (*query.waiting, *self._beyond(query)) if zone.owner not in asked]
        zones.sort(key=lambda zone: (zone.ring, apart(zone.point, query.point, around), zone.owner))
        if not zones or len(asked) >= ASKED_MAX:
            return []
        first, *rest = _first_of_each(zones)[:ASKED_MAX]
        onward = NearQuery(query.path, query.asker, query.at, query.point, first.ring, asked, tuple(rest))
        return self._router.carrier.send_to(onward, first.point, now)

    def _beyond(self, query: NearQuery) -> list[PendingZone]:
        """The zones next to this broker's that are in the next ring, where there is one."""
        if not 0 <= query.ring < RINGS_MAX:
            return []
        zones = self._router.zones
        zone = zones.space.zone(query.path)
        parts = [
            (id, zones.space.zone(claim.path).meet(zone)) for id, card in zones.cards.items() for claim in card.claims
        ]
        return [PendingZone(query.ring + 1, id, part.nearest(query.point, zones.around)) for id, part in parts if part]

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
        return self._ask_for(self._rng.choice(list(self.asked)), now)

    def _ask_for(self, path: Path, now: float) -> list[Effect]:
        if self.at is None or path not in dict(self._entries()).values():
            self.asked.pop(path, None)
            return []
        self.asked[path] = None
        point = self.point(self.at, path)
        return self._router.carrier.send_to(NearQuery(path, self._router.me, self.at, point), point, now)

    def _entries(self) -> list[tuple[Path, Path]]:
        """For each entry of an ancestor's table, its path and the level's zone around it that is asked about."""
        k = self._router.k
        return [
            (entry.path, asked)
            for owned in self._router.zones.owned.values()
            for entry in dict.fromkeys(entry for table in owned.ancestors for entry in table)
            if (asked := level_zone(entry.path, k)) and not within(owned.path, asked)
        ]

    def _answered(self, answer: NearAnswer) -> list[Effect]:
        if self.at is None or not all(len(at) == len(self.at) for _, at, _ in answer.found):
            return []
        for entry, asked in self._entries():
            if asked == answer.path:
                self.choose(entry, asked, answer.found)
        return []

    def choose(self, entry: Path, asked: Path, found: Sequence[Row]) -> None:
        """Have the nearest stand before the recorded broker of an entry; nobody, if none of these is in its zone."""
        assert self.at is not None
        # The zone asked about may be larger than the entry's, and somebody elsewhere in it is no short cut.
        there = [(peer, at) for peer, at, home in found if entry == asked or within(home, entry)]
        nearest = nearest_of(self.at, there, but=self._router.me.id)
        self._router.zones.set_near(entry, nearest.id if nearest else None)

    def holdings(self) -> dict[str, tuple[int, int]]:
        zones = self._router.zones.owned.values()
        return {
            "index": (sum(len(owned.index) for owned in zones), 2 * max(len(zones), 1) * INDEX_MAX),
            "watches": (len(self.watches), WATCHES_MAX),
            "pings": (len(self._sent), PINGS_MAX),
        }


def level_zone(path: Path, k: int) -> Path:
    """The smallest zone around a path that has a level of its own: the one brokers put records for."""
    return path[: len(path) // k * k]


def apart(one: Sequence[int], other: Sequence[int], around: int | None) -> int:
    """The square of the way between two points; with `around` the shorter way on circles of so many cells.

    >>> apart((0, 0), (9, 1), None), apart((0, 0), (9, 1), 10)
    (82, 2)
    """
    ways = (abs(a - b) for a, b in zip(one, other))
    return sum(min(way, around - way if around else way) ** 2 for way in ways)


def nearest_of(at: Coordinates, found: Sequence[tuple[Peer, Coordinates]], *, but: NodeId = "") -> Peer | None:
    """Of brokers with their coordinates the one nearest to a place."""
    rows = [(distance(there, at), peer.id, peer) for peer, there in found if peer.id != but]
    return min(rows, key=lambda row: row[:2])[2] if rows else None


def _first_of_each(zones: Sequence[PendingZone]) -> list[PendingZone]:
    """Of each owner the first zone only."""
    return list({zone.owner: zone for zone in reversed(zones)}.values())[::-1]
