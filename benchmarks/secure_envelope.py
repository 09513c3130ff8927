"""How much sealing costs: plain, event and attribute mode, encode and decode of one event, no routing.

    python benchmarks/secure_envelope.py [--events 20000] [--repeats 9]

Prints events per second of each mode, the ratios against plain, and the time that attribute mode
adds for each attribute (sealing, opening and framing together). Values are 30-character strings. Times are of this
process alone (CPU time), so that a busy machine does not count.
"""

from __future__ import annotations

import argparse
import json
import secrets
import time

from tidings.events import EventType
from tidings.security import Identity, Keyring, Mode, Opener, Sealer, SignedType

WIDTHS = (1, 10, 25)
NOW_MS = 1_763_247_840_000


def run_once(mode: Mode, width: int, suite: int, events: int) -> float:
    """Microseconds for sealing and opening one event."""
    owner = Identity.make(secrets.token_bytes)
    event_type = EventType("Wide", {f"a{index:02}": str for index in range(width)})
    signed = SignedType.make(owner, event_type, mode=mode, suite=suite, grace_ms=4_000_000_000)
    keyring = Keyring(signed)
    for gid in signed.group_ids:
        keyring.add(gid, 1, NOW_MS, secrets.token_bytes(32))
    sealer = Sealer(signed, keyring, 1, publisher_key=owner.public_key)
    opener = Opener(signed, keyring)
    rows = [{a.name: f"{row:05}-{a.name}".ljust(30, "x") for a in event_type} for row in range(256)]
    start = time.process_time()
    for index in range(events):
        opener.open_(sealer.seal(rows[index & 255], NOW_MS), NOW_MS)
    return (time.process_time() - start) / events * 1e6


def measure(width: int, suite: int, events: int, repeats: int) -> dict[str, float]:
    """The best of some runs of each mode, taken in turn so that a busy moment hits all of them.

    The best and not the median: other programs on the machine only ever make a run slower.
    """
    runs: dict[Mode, list[float]] = {mode: [] for mode in Mode}
    for _ in range(repeats):
        for mode in Mode:
            runs[mode].append(run_once(mode, width, suite, events))
    plain, event, attribute = (min(runs[mode]) for mode in Mode)
    return {
        "attributes": width,
        "plain_per_s": round(1e6 / plain),
        "event_per_s": round(1e6 / event),
        "attribute_per_s": round(1e6 / attribute),
        "event_ratio": round(plain / event, 3),
        "attribute_ratio": round(plain / attribute, 3),
        "added_us_per_attribute": round((attribute - plain) / width, 2),
    }


def main() -> None:
    """Prints one JSON line for each width."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--events", type=int, default=20_000)
    options.add_argument("--repeats", type=int, default=9)
    options.add_argument("--suite", type=lambda text: int(text, 0), default=0x01)
    chosen = options.parse_args()
    for width in WIDTHS:
        print(json.dumps(measure(width, chosen.suite, max(100, chosen.events // width), chosen.repeats)))


if __name__ == "__main__":
    main()
