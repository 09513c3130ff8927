"""Small ready things with names."""

from __future__ import annotations

from typing import Any

from tidings.events import Event, EventType, Required, Timestamp

Plate = EventType(
    "Numberplate",
    plate=Required(str),
    area=str,
    speed=float,
    lanes=int,
    stolen=bool,
    seen_at=Timestamp,
    photo=bytes,
    position={"lat": float, "lon": float},
)

a_record: dict[str, Any] = {
    "plate": "AB12CDE",
    "area": "EC2",
    "speed": 31.0,
    "lanes": 3,
    "stolen": False,
    "seen_at": Timestamp("2026-01-01T08:00:00Z"),
    "photo": b"\xff\xd8",
    "position": {"lat": 51.5, "lon": -0.1},
}

a_sighting = Event.of(Plate, a_record, id="sighting-1", source="cam-7", time="2026-01-01T08:00:01Z")

Quake = EventType("Quake", magnitude=Required(float), depth=int)

a_quake = Event.of(Quake, {"magnitude": 6.1, "depth": 10}, id="quake-1", source="seismograph", time=0)
