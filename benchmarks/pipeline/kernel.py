"""The bare kernel, on one core: `python -m benchmarks.pipeline.kernel FOLDER SIZE`; processor seconds per event."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from benchmarks import workload as made
from benchmarks.matching.contest import pin
from benchmarks.matching.engine import Workload
from benchmarks.pipeline.ours import kept_index
from tidings.pipeline.matching.index_replica import IndexReplica

ROUNDS = 5


def main(folder: str, size: str) -> None:
    pin(1)
    workload = Workload.open(Path(folder), size, made.EVENTS)
    index = IndexReplica.open(kept_index(Path(folder), size)).index  # Mapped, as workers have it.
    table = made.event_table(workload.events)
    index.match_numbers(table)  # Compiles, or loads what was compiled.
    taken = []
    for _ in range(ROUNDS):
        began = time.process_time()
        index.match_numbers(table)
        taken.append(time.process_time() - began)
    print(json.dumps({"cpu_s_per_event": min(taken) / len(table)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
