"""A streaming job that is killed again and again, at moments drawn from a seed, and then left to end.

    python -m tests.pipeline.kills [--kills 4] [--seed N]

In the end every pair of an event and a condition that it matches stands in the sink, once.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.pipeline.sightings import expected_pairs
from tests.pipeline.test_run import (
    EVENTS,
    WANTED,
    delivered,
    delivered_so_far,
    kill_in_a_batch,
    lay_out,
    put_events,
    start_run,
)

END_S_MAX = 600.0  # For the last run, on a loaded machine.


def killed_again_and_again(folder: Path, seed: int, kills: int = 4) -> list[str]:
    """What is wrong, if anything is; more events come before each start."""
    file, rng = lay_out(folder), random.Random(seed)
    share = len(EVENTS) // (kills + 1)
    wrong = []
    for kill in range(kills):
        put_events(folder, EVENTS[kill * share :][:share], 4)
        kill_in_a_batch(folder, file, rng)
        twice = sum(count > 1 for count in Counter(delivered_so_far(folder)).values())
        wrong += [f"{twice} pairs stand twice after kill {kill + 1}"] if twice else []
    put_events(folder, EVENTS[kills * share :], 4)
    last = start_run(file)
    _, said = last.communicate(timeout=END_S_MAX)
    if last.returncode != 0:
        return [*wrong, f"the last run ended with {last.returncode}: {said.decode()[-2000:]}"]
    missing = Counter(expected_pairs(EVENTS, WANTED))
    missing.subtract(delivered(folder))
    return [*wrong, *(f"{pair} stands {1 - count} times" for pair, count in missing.items() if count)]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.pipeline.kills")
    parser.add_argument("--kills", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="tidings-kills-"))
    wrong = killed_again_and_again(folder, asked.seed, asked.kills)
    if not wrong:
        shutil.rmtree(folder)
    print("\n".join([*wrong, f"what is left is in {folder}"]) if wrong else "every pair stands once")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
