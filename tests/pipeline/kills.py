"""A streaming job that is killed again and again, at moments drawn from a seed, and then left to end.

    python -m tests.pipeline.kills [--kills 4] [--seed N] [--s3]

In the end every pair of an event and a condition that it matches stands in the sink, once.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq

from tests.pipeline import test_object_store as object_store
from tests.pipeline.s3_server import serving
from tests.pipeline.sightings import expected_pairs
from tests.pipeline.test_run import (
    EVENTS,
    WANTED,
    delivered,
    delivered_so_far,
    lay_out,
    put_events,
    start_run,
    struck_run,
)

KILLED = -signal.SIGKILL
WRITES = (3, 40)  # A run of two batches writes its state about so often: it is killed at one of these writes, or ends.
REQUESTS = (5, 150)  # Likewise in S3, where a write is several requests.
END_S_MAX = 600.0  # For the last run, on a loaded machine.


def killed_again_and_again(folder: Path, seed: int, kills: int = 4) -> list[str]:
    """What is wrong, if anything is; more events come before each start."""
    file, rng = lay_out(folder), random.Random(seed)
    share = len(EVENTS) // (kills + 1)
    wrong = []
    for kill in range(kills):
        put_events(folder, EVENTS[kill * share :][:share], 4)
        code, said = struck_run(("KILL", rng.choice(["before", "after"]), "", rng.randint(*WRITES)), file)
        wrong += [f"a run that was to be killed ended with {code}: {said[-2000:]}"] if code not in (0, KILLED) else []
        twice = sum(count > 1 for count in Counter(delivered_so_far(folder)).values())
        wrong += [f"{twice} pairs stand twice after kill {kill + 1}"] if twice else []
    put_events(folder, EVENTS[kills * share :], 4)
    last = start_run(file)
    _, last_said = last.communicate(timeout=END_S_MAX)
    if last.returncode != 0:
        return [*wrong, f"the last run ended with {last.returncode}: {last_said.decode()[-2000:]}"]
    missing = Counter(expected_pairs(EVENTS, WANTED))
    missing.subtract(delivered(folder))
    return [*wrong, *(f"{pair} stands {1 - count} times" for pair, count in missing.items() if count)]


def killed_in_s3(folder: Path, seed: int, kills: int = 3) -> list[str]:
    """The same with all state in S3: the server kills the run at one of its requests that change something."""
    rng = random.Random(seed)
    with serving() as s3:
        file = object_store.lay_out(s3, "soak", folder)
        for _ in range(kills):
            object_store.killed_at(s3, file, "", rng.randint(*REQUESTS))
        last = start_run(file, *s3.options())
        _, said = last.communicate(timeout=END_S_MAX)
        if last.returncode != 0:
            return [f"the last run in S3 ended with {last.returncode}: {said.decode()[-2000:]}"]
        rows = pq.read_table(f"{s3.bucket}/soak/deliveries", filesystem=object_store.arrow_s3(s3), partitioning="hive")
        missing = Counter(expected_pairs(object_store.EVENTS, object_store.WANTED))
        missing.subtract(object_store.pairs(rows.to_pylist()))
    return [f"in S3 {pair} stands {1 - count} times" for pair, count in missing.items() if count]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.pipeline.kills")
    parser.add_argument("--kills", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--s3", action="store_true", help="with all state in S3")
    asked = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="tidings-kills-"))
    wrong = (killed_in_s3 if asked.s3 else killed_again_and_again)(folder, asked.seed, asked.kills)
    if not wrong:
        shutil.rmtree(folder)
    print("\n".join([*wrong, f"what is left is in {folder}"]) if wrong else "every pair stands once")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
