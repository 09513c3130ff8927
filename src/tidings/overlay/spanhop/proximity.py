"""MGNP: the space itself holds an index of which broker of a distant zone is nearest by network.

A broker has network coordinates (see `network_coordinates`). For each of its ancestors' zones
it puts a record of them at the point of that zone to which its coordinates scale. So records
of brokers that are near each other by network lie near each other in every zone, and a broker
that wants the nearest one in a zone asks at the point to which its *own* coordinates scale:
one look-up, instead of measuring the delay to every broker in there.

    IndexPut       for each ancestor's zone: when it is new, when coordinates drift, and refreshed periodically
    NearQuery      for each entry of an ancestor's table; where nobody is indexed, the zones around, ring by ring
    NearAnswer     the nearest broker is preferred to the recorded one as next hop
    IndexChanged   an earlier answer is out of date: ask again

Coordinates come from landmarks ("gnp": named brokers to which all measure their delay; the
first of them computes where the landmarks are) or from any measured delay ("vivaldi").
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from random import Random
from statistics import fmean
from typing import Any, Literal, TypeAlias

from tidings.overlay.messages import NodeId, Peer
from tidings.overlay.router import Effect, Send, Token, WakeAt
from tidings.overlay.spanhop.forwarding import Forwarder
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
    PRECISION_S,
    Coordinates,
    VivaldiEstimate,
    bounds,
    distance,
    embed,
    place,
    scale,
)
from tidings.overlay.spanhop.zone_ownership import OwnedZone, ZoneTable
from tidings.space import Path, Zone, within

PINGS = 5  # Answers of each landmark; the quickest counts. Of any other broker that of the latest so many.
PING_S = 0.5  # Between two of them.
LANDMARK_ROUNDS_MAX = 40  # Then a broker makes do with the landmarks that have answered, if they are enough.
VIVALDI_PING_S = 2.0  # Between two measurements, which never end.
VIVALDI_FIRST_PINGS = 40  # So many come every PING_S, so that coordinates are good after half a minute.
MEASURED_MAX = 1024  # Brokers whose round trips are kept.
LANDMARK_REQUEST_S = 2.0  # How often a broker asks for the landmarks until it has them.
DRIFT = 0.2  # By what share of their distance to the middle coordinates may drift before they are put again;
DRIFT_MIN = 0.05  # that distance counts as at least this share of the whole width.
ERROR_MAX = 0.5  # Vivaldi coordinates with a larger error are not published.
VIVALDI_BOUND_S = 0.25  # Vivaldi coordinates are taken to lie within this distance of the middle.
INDEX_MAX = 4096  # Index records of one zone.
ANSWER_MAX = 64  # Index records in one answer.
WATCHES_MAX = 4096  # Brokers to inform when an answer is out of date.
RINGS_MAX = 3  # Rings of zones around the first that a query visits if nobody is indexed there.
ASKED_MAX = 48  # Zones that a query visits: as many as lie in three rings of equal squares.
PINGS_MAX = 256  # Pings without an answer.

ProximityMethod: TypeAlias = Literal["none", "gnp", "vivaldi"]
Row: TypeAlias = tuple[Peer, Coordinates, Path]  # A broker, its network coordinates, and its zone.


class Proximity:
    """One broker's network coordinates, its part of the index, and the near brokers it has found."""

    def __init__(
        self,
        zones: ZoneTable,
        rng: Random,
        forwarder: Forwarder,
        method: ProximityMethod,
        landmarks: Sequence[NodeId],
        *,
        index_records: int = 1,
    ) -> None:
        self._zones, self._rng, self._forwarder = zones, rng, forwarder
        self.method, self.landmarks, self.index_records = method, tuple(landmarks), index_records
        self.at: Coordinates | None = None
        self.low: Coordinates = ()
        self.high: Coordinates = ()
        self.estimate = VivaldiEstimate((0.0,) * zones.space.axes)
        self.put: dict[Path, Coordinates] = {}
        self.asked: dict[Path, None] = {}
        self.watches: dict[tuple[Path, NodeId], None] = {}
        self._landmarks_known: Landmarks | None = None
        self._sent: OrderedDict[int, tuple[NodeId, float]] = OrderedDict()
        self.rtts: OrderedDict[NodeId, deque[float]] = OrderedDict()
        self._rows: dict[NodeId, tuple[float, ...]] = {}
        self._number = self._version = self._pinged = 0

    # ── Measuring coordinates ────────────────────────────────────────────────

    def start(self, now: float) -> list[Effect]:
        """Begin to measure delays."""
        if self.method == "none":
            return []
        if self.method == "vivaldi":
            axes = self._zones.space.axes
            self.low, self.high = (-VIVALDI_BOUND_S,) * axes, (VIVALDI_BOUND_S,) * axes
        return [WakeAt(now + self._rng.random() * PING_S, ("ping",), idle=True)]

    def wake(self, token: Token, now: float) -> list[Effect]:
        """Send the next pings."""
        if token != ("ping",):
            return []
        self._pinged += 1
        if self.method == "vivaldi":
            pause_s = PING_S if self._pinged <= VIVALDI_FIRST_PINGS else VIVALDI_PING_S
            return [*self._ping_any(now), WakeAt(now + pause_s, token, idle=True)]
        if self._landmarks_known is not None:
            return [*self._ping_any(now), WakeAt(now + VIVALDI_PING_S, token, idle=True)]
        missing = self._unmeasured()
        is_enough = (
            len(self.landmarks) - len(missing) > self._zones.space.axes and self._zones.me.id not in self.landmarks
        )
        if missing and not (is_enough and self._pinged > LANDMARK_ROUNDS_MAX):
            # A landmark that is not up yet is waited for: without it the others could not be placed.
            return [*(p for id in missing for p in self._ping(id, now)), WakeAt(now + PING_S, token, idle=True)]
        return self._measured(now)

    def _unmeasured(self) -> list[NodeId]:
        """Landmarks that have not answered often enough."""
        others = (id for id in self.landmarks if id != self._zones.me.id)
        return [id for id in others if len(self.rtts.get(id, ())) < PINGS]

    def _ping_any(self, now: float) -> list[Effect]:
        """A broker to which this one may send, or that it has found to be near."""
        known = tuple(dict.fromkeys((*self._zones.links(), *self._zones.preferred.values())))
        return self._ping(self._rng.choice(known), now) if known else []

    def _ping(self, id: NodeId, now: float) -> list[Effect]:
        if len(self._sent) >= PINGS_MAX:
            self._sent.popitem(last=False)
        self._number += 1
        self._sent[self._number] = (id, now)
        return [Send(id, Ping(self._number))]

    def _measured(self, now: float) -> list[Effect]:
        """All pings are done: a landmark reports to the first one, and every broker asks until it has the landmarks."""
        if self._landmarks_known is not None:
            return []
        again = WakeAt(now + LANDMARK_REQUEST_S, ("ping",), idle=True)
        me = self._zones.me.id
        if me in self.landmarks:
            row = LandmarkRtts(tuple(0.0 if id == me else min(self.rtts[id]) for id in self.landmarks))
            if me == self.landmarks[0]:  # It may have been restarted: the others know what it told them.
                ask = Send(self._rng.choice(self.landmarks[1:]), LandmarkRequest())
                return [*self._row(me, row, now), ask, again]
            return [Send(self.landmarks[0], row), Send(self.landmarks[0], LandmarkRequest()), again]
        return [Send(self._rng.choice(self.landmarks), LandmarkRequest()), again] if self.landmarks else []

    def receive(self, sender: NodeId, message: SpanhopMessage, now: float) -> list[Effect]:
        match message:
            case Ping(number=number):
                return [Send(sender, Pong(number, self.estimate.at, self.estimate.error))]
            case Pong():
                return self._pong(sender, message, now)
            case LandmarkRtts():
                return self._row(sender, message, now)
            case LandmarkRequest():
                return [Send(sender, self._landmarks_known)] if self._landmarks_known is not None else []
            case Landmarks():
                return self._landmarks(message, now) if sender in self.landmarks else []
            case NearAnswer():
                return self._answered(message)
            case IndexChanged(path=path):
                self.asked.pop(path, None)
                return self._ask_for(path, now)
        return []

    def _pong(self, sender: NodeId, pong: Pong, now: float) -> list[Effect]:
        id, sent_at = self._sent.pop(pong.number, ("", 0.0))
        if id != sender or len(pong.at) != len(self.estimate.at) or not 0.0 <= pong.error <= 1.0:
            return []
        rtts = self.rtts.setdefault(sender, deque(maxlen=PINGS))
        rtts.append(now - sent_at)
        if len(self.rtts) > MEASURED_MAX:
            self.rtts.popitem(last=False)
        # The first round trip may have had to wait for a connection, and any of them for a busy broker.
        if self.method != "vivaldi" or len(rtts) < 2 or not all(abs(x) < 1e6 for x in pong.at):
            return []
        rtt = min(rtts)
        direction = tuple(self._rng.gauss(0, 1) for _ in pong.at)
        self.estimate = self.estimate.updated(VivaldiEstimate(pong.at, pong.error), rtt, direction)
        return self.move_to(self.estimate.at, now) if self.estimate.error < ERROR_MAX else []

    def _row(self, sender: NodeId, row: LandmarkRtts, now: float) -> list[Effect]:
        """The first landmark collects the measurements of all and embeds them."""
        is_complete = len(row.rtts) == len(self.landmarks) and all(
            0.0 < rtt < 1e6 or id == sender for id, rtt in zip(self.landmarks, row.rtts)
        )
        if sender not in self.landmarks or self._landmarks_known is not None or not is_complete:
            return []
        self._rows[sender] = row.rtts
        if len(self._rows) < len(self.landmarks):
            return []
        axes = self._zones.space.axes
        places = embed([self._rows[id] for id in self.landmarks], axes)
        landmarks = Landmarks(tuple(Peer(id) for id in self.landmarks), places, *bounds(places))
        return self._landmarks(landmarks, now)

    def _landmarks(self, landmarks: Landmarks, now: float) -> list[Effect]:
        """The coordinates of the landmarks are known: compute this broker's own."""
        axes = self._zones.space.axes
        every = (*landmarks.at, landmarks.low, landmarks.high)
        is_sound = {len(at) for at in every} == {axes} and all(abs(x) < 1e6 for at in every for x in at)
        named = tuple(peer.id for peer in landmarks.peers)
        if (
            self._landmarks_known is not None
            or not is_sound
            or named != self.landmarks
            or len(named) != len(landmarks.at)
        ):
            return []
        self._landmarks_known, self.low, self.high = landmarks, landmarks.low, landmarks.high
        me = self._zones.me.id
        own = [at for peer, at in zip(landmarks.peers, landmarks.at) if peer.id == me]
        rows = [
            (at, min(self.rtts[peer.id])) for peer, at in zip(landmarks.peers, landmarks.at) if peer.id in self.rtts
        ]
        if own:
            return self.move_to(own[0], now)
        if len(rows) < axes + 1:  # Any that many will do; with fewer this broker stays without coordinates.
            return []
        return self.move_to(place([at for at, _ in rows], [rtt for _, rtt in rows]), now)

    def move_to(self, at: Coordinates, now: float) -> list[Effect]:
        """This broker has new coordinates: advertise and index them, and look for near brokers."""
        self.at = at
        advertised = self._zones.at
        if not advertised or self._has_drifted(advertised, at):
            self._zones.set_coordinates(at)
        return [*self.publish(now), *self.select(now)]

    # ── Indexing own coordinates ─────────────────────────────────────────────

    def publish(self, now: float, *, again: bool = False) -> list[Effect]:
        """Put a record for each ancestor's zone that has none, or an old one; delete those for former ancestors."""
        if self.at is None or self.method == "none":
            return []
        wanted = self.levels()
        effects: list[Effect] = []
        for path in [path for path in self.put if path not in wanted]:
            effects += self._put(path, self.put.pop(path), now, deleted=True)
        for path in wanted:
            before = self.put.get(path)
            if before is None or again or self._has_drifted(before, self.at):
                if before is not None and not again:
                    effects += self._put(path, before, now, deleted=True)
                self.put[path] = self.at
                effects += self._put(path, self.at, now, reliable=not again)
        return effects

    def withdraw(self, now: float) -> list[Effect]:
        """Delete all records of this broker."""
        effects = [effect for path, at in self.put.items() for effect in self._put(path, at, now, deleted=True)]
        self.put.clear()
        return effects

    def levels(self) -> list[Path]:
        """The zones of all ancestors but the whole space."""
        k = self._zones.k
        paths = (
            owned.path[: level * k] for owned in self._zones.owned.values() for level in range(1, len(owned.ancestors))
        )
        return list(dict.fromkeys(paths))

    def _has_drifted(self, before: Coordinates, at: Coordinates) -> bool:
        middle = tuple((a + b) / 2 for a, b in zip(self.low, self.high))
        return distance(before, at) > DRIFT * max(distance(before, middle), DRIFT_MIN * distance(self.low, self.high))

    def _put(
        self, path: Path, at: Coordinates, now: float, *, deleted: bool = False, reliable: bool = True
    ) -> list[Effect]:
        self._version += 1
        homes = (owned.path for owned in self._zones.owned.values() if within(owned.path, path))
        record = IndexPut(path, self._zones.me, at, self._version, deleted, next(homes, path))
        return self._forwarder.send_to(record, self.point(at, path), now, reliable=reliable)

    def point(self, at: Coordinates, path: Path) -> tuple[int, ...]:
        """The point of a zone to which coordinates scale."""
        return scale(at, self._zones.space.zone(path), self.low, self.high)

    # ── Serving the index ────────────────────────────────────────────────────

    def store(self, owned: OwnedZone, record: IndexPut) -> list[Effect]:
        """Store a record whose point is in an owned zone."""
        key = (record.path, record.peer.id)
        known = owned.index.get(key)
        was_empty = known is None and not any(path == record.path for path, _ in owned.index)
        if known is not None and known.age >= record.age:
            return []
        if record.deleted:
            if known is None or distance(known.at, record.at) > 0:
                return []
            del owned.index[key]
        else:
            self._make_room(owned, record)
            if known is not None or len(owned.index) < INDEX_MAX:
                owned.index[key] = record
        # One more record does not make an earlier answer wrong; its receiver learns of it when it asks again.
        has_changed = was_empty if known is None else record.deleted or known.at != record.at
        return self._notify_watchers(record.path) if has_changed else []

    def _make_room(self, owned: OwnedZone, record: IndexPut) -> None:
        """Drop the records of this level that came first until one more is allowed.

        A broker stores records for as many levels as its zone has ancestors, so this bounds what it stores. Brokers put
        their records again and again, so one that is gone does not keep its place. An earlier answer stays right.
        """
        if not self.index_records:
            return
        others = [key for key in owned.index if key[0] == record.path and key[1] != record.peer.id]
        for key in others[: len(others) + 1 - self.index_records]:
            del owned.index[key]

    def _notify_watchers(self, path: Path) -> list[Effect]:
        watching = [key for key in self.watches if key[0] == path]
        for key in watching:
            del self.watches[key]
        return [Send(id, IndexChanged(path)) for _, id in watching]

    def records_in(self, owned: OwnedZone, zone: Zone) -> tuple[IndexPut, ...]:
        """The index records of an owned zone whose points lie in a part of it."""
        if not self.low:  # Without bounds the point of a record is unknown.
            return ()
        return tuple(put for put in owned.index.values() if self.point(put.at, put.path) in zone)

    def records_moved(self, records: Sequence[IndexPut]) -> list[Effect]:
        """Records went to another broker with their zone: those who asked for them must ask there."""
        paths = dict.fromkeys(record.path for record in records)
        return [effect for path in paths for effect in self._notify_watchers(path)]

    def query(self, owned: OwnedZone, query: NearQuery, now: float) -> list[Effect]:
        """Answer which brokers of a zone are near the asker, or pass the question on."""
        found = [record for (path, _), record in owned.index.items() if path == query.path]
        found.sort(key=lambda record: (distance(record.at, query.at), record.peer.id))
        onward = [] if found else self._ask_next(query, now)
        if onward:
            return onward
        if len(self.watches) < WATCHES_MAX:
            self.watches[query.path, query.asker.id] = None
        return [Send(query.asker.id, NearAnswer(query.path, tuple(found[:ANSWER_MAX])))]

    def _ask_next(self, query: NearQuery, now: float) -> list[Effect]:
        """Visit the next zone within the one asked about: of the innermost ring, the nearest to the point."""
        asked = (*query.asked, self._zones.me.id)
        around = self._zones.around
        zones = [zone for zone in (*query.pending, *self._next_ring(query)) if zone.owner not in asked]
        zones.sort(key=lambda zone: (zone.ring, apart(zone.point, query.point, around), zone.owner))
        if not zones or len(asked) >= ASKED_MAX:
            return []
        first, *rest = _first_of_each(zones)[:ASKED_MAX]
        onward = NearQuery(query.path, query.asker, query.at, query.point, first.ring, asked, tuple(rest))
        return self._forwarder.send_to(onward, first.point, now)

    def _next_ring(self, query: NearQuery) -> list[PendingZone]:
        """The neighbouring zones that lie in the next ring, if there is one."""
        if not 0 <= query.ring < RINGS_MAX:
            return []
        zones = self._zones
        zone = zones.space.zone(query.path)
        parts = [
            (id, zones.space.zone(claim.path).meet(zone))
            for id, advert in zones.neighbours.items()
            for claim in advert.claims
        ]
        return [PendingZone(query.ring + 1, id, part.nearest(query.point, zones.around)) for id, part in parts if part]

    # ── Finding near brokers ─────────────────────────────────────────────────

    def select(self, now: float) -> list[Effect]:
        """Ask for the nearest broker of each zone in the tables of ancestors that has not been asked about."""
        if self.at is None or self.method == "none":
            return []
        zones = dict.fromkeys(zone for _, zone in self.entries())
        return [effect for path in zones if path not in self.asked for effect in self._ask_for(path, now)]

    def select_again(self, now: float) -> list[Effect]:
        """Ask again about one zone, chosen at random: there may be a nearer broker by now."""
        if self.at is None or self.method == "none" or not self.asked:
            return []
        return self._ask_for(self._rng.choice(list(self.asked)), now)

    def _ask_for(self, path: Path, now: float) -> list[Effect]:
        if self.at is None or path not in dict(self.entries()).values():
            self.asked.pop(path, None)
            return []
        self.asked[path] = None
        point = self.point(self.at, path)
        return self._forwarder.send_to(NearQuery(path, self._zones.me, self.at, point), point, now)

    def entries(self) -> list[tuple[Path, Path]]:
        """For each entry of an ancestor's table, its path and the level's zone around it that is asked about."""
        k = self._zones.k
        return [
            (entry.path, asked)
            for owned in self._zones.owned.values()
            for entry in dict.fromkeys(entry for table in owned.ancestors for entry in table)
            if (asked := level_zone(entry.path, k)) and not within(owned.path, asked)
        ]

    def _answered(self, answer: NearAnswer) -> list[Effect]:
        if self.at is None or not all(len(put.at) == len(self.at) for put in answer.found):
            return []
        found = [(put.peer, put.at, put.home) for put in answer.found if put.path == answer.path]
        for entry, asked in self.entries():
            if asked == answer.path:
                self.choose(entry, asked, found)
        return []

    def choose(self, entry: Path, asked: Path, found: Sequence[Row]) -> None:
        """Prefer the nearest of these brokers for an entry; nobody, if none of them is in the entry's zone."""
        assert self.at is not None
        # The zone asked about may be larger than the entry's, and a broker elsewhere in it is no short cut.
        there = [(peer, at) for peer, at, home in found if entry == asked or within(home, entry)]
        nearest = nearest_of(self.at, there, but=self._zones.me.id)
        self._zones.set_near(entry, nearest.id if nearest else None)

    # ── Inspection ───────────────────────────────────────────────────────────

    def status(self) -> dict[str, Any]:
        """Coordinates and their error, the index, and what nearer brokers have gained; empty if there is no proximity."""
        if self.method == "none":
            return {}
        pairs = self.found_nearer()
        both = [
            (before, after)
            for ids in pairs
            if all(id in self.rtts for id in ids)
            for before, after in [self._quickest(*ids)]
        ]
        return {
            "method": self.method,
            "coordinates_ms": [round(1000 * x, 3) for x in self.at] if self.at is not None else None,
            "error": self._error(),
            "measured": len(self.rtts),
            "published": len(self.put),
            "indexed": sum(len(owned.index) for owned in self._zones.owned.values()),
            "distant_zones": len({path for path, _ in self.entries()}),
            "nearer": len(pairs),
            "compared": len(both),
            "recorded_ms": round(1000 * fmean(before for before, _ in both), 3) if both else None,
            "nearer_ms": round(1000 * fmean(after for _, after in both), 3) if both else None,
            "waits_for": self._waits_for(),
        }

    def found_nearer(self) -> list[tuple[NodeId, NodeId]]:
        """For entries of ancestors' tables: the recorded broker, and another that is preferred to it."""
        tables = (table for owned in self._zones.owned.values() for table in owned.ancestors)
        recorded = {entry.path: entry.peer.id for table in tables for entry in table}
        near = self._zones.preferred
        return [(id, near[path]) for path, id in recorded.items() if path in near and near[path] != id]

    def _quickest(self, one: NodeId, other: NodeId) -> tuple[float, float]:
        return min(self.rtts[one]), min(self.rtts[other])

    def _error(self) -> float | None:
        """Vivaldi's own estimate; with landmarks, by how much the distances to them differ from the round trips."""
        if self.method == "vivaldi":
            return round(self.estimate.error, 3)
        known = self._landmarks_known
        if known is None or self.at is None:
            return None
        rows = [(at, min(self.rtts[peer.id])) for peer, at in zip(known.peers, known.at) if peer.id in self.rtts]
        off = [abs(distance(self.at, at) - rtt) / max(rtt, PRECISION_S) for at, rtt in rows]
        return round(fmean(off), 3) if off else None

    def _waits_for(self) -> str:
        """What is still missing before nearer brokers are used; empty if they are."""
        if self.at is None and self.method == "vivaldi":
            return f"more measurements: the error is {self.estimate.error:.2f}, and coordinates count below {ERROR_MAX}"
        if self.at is None:
            missing = self._unmeasured()
            return f"answers of landmarks: {', '.join(missing)}" if missing else "the landmarks' coordinates"
        if not self.entries():
            return f"more brokers: up to about {2**self._zones.k} of them (m) know each other as neighbours"
        if not self._zones.preferred:
            return "answers from the index about distant zones"
        return ""

    def holdings(self) -> dict[str, tuple[int, int]]:
        zones = self._zones.owned.values()
        return {
            "measured": (len(self.rtts), MEASURED_MAX + 1),
            "index": (sum(len(owned.index) for owned in zones), 2 * max(len(zones), 1) * INDEX_MAX),
            "watches": (len(self.watches), WATCHES_MAX),
            "pings": (len(self._sent), PINGS_MAX),
        }


def level_zone(path: Path, k: int) -> Path:
    """The smallest zone around a path that is a level of its own: brokers put records for those."""
    return path[: len(path) // k * k]


def apart(one: Sequence[int], other: Sequence[int], around: int | None) -> int:
    """The squared distance of two points; with `around`, the shorter way on circles of so many cells.

    >>> apart((0, 0), (9, 1), None), apart((0, 0), (9, 1), 10)
    (82, 2)
    """
    ways = (abs(a - b) for a, b in zip(one, other))
    return sum(min(way, around - way if around else way) ** 2 for way in ways)


def nearest_of(at: Coordinates, found: Sequence[tuple[Peer, Coordinates]], *, but: NodeId = "") -> Peer | None:
    """The broker whose coordinates are nearest to these."""
    rows = [(distance(there, at), peer.id, peer) for peer, there in found if peer.id != but]
    return min(rows, key=lambda row: row[:2])[2] if rows else None


def _first_of_each(zones: Sequence[PendingZone]) -> list[PendingZone]:
    """The first zone of each owner."""
    return list({zone.owner: zone for zone in reversed(zones)}.values())[::-1]
