"""Contenders on one workload, in this process: `python -m benchmarks.pipeline.contest ENGINES FOLDER SIZE CORES EVENTS…`.

Started by `runs`, with its limits. ENGINES are a module and names in it, `ours:Lists,Rows`: those of one module start and take the
subscriptions in once for all. EVENTS are numbers for each of them, `800000,400000`. Leaves the answers as files, and prints
one line of JSON.
"""

from __future__ import annotations

import json
import shutil
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks import workload as made
from benchmarks.matching.contest import pin
from benchmarks.matching.engine import Answers, Array, Workload
from benchmarks.pipeline.usage import cpu_s, forget_peaks, peaks_mb, timed

ROUNDS_MAX, ROUNDS_S_MAX = 4, 9.0  # The first round warms up, the best counts; no round begins after so many seconds.
FEW = 1_000
FILES = 8  # So that two cores have work to share.


def write_events(folder: Path, values: Array, count: int, is_ours: bool) -> None:
    """`count` events, the workload's repeated under new ids; peers get texts as the codes they are made of."""
    folder.mkdir()
    per_file = -(-count // FILES)
    for number in range(FILES):
        ids = np.arange(number * per_file, min(count, (number + 1) * per_file))
        rows = values[ids % len(values)]
        if is_ours:
            table = made.event_table(rows).add_column(0, "event_id", pa.array(ids))
        else:
            table = pa.table({"event": ids, **{name: rows[:, a] for a, name in enumerate(made.NAMES)}})
        pq.write_table(table, folder / f"{number:02}.parquet")


def rounds(engine: Any, folder: Path) -> list[tuple[float, float]]:
    """Seconds and processor seconds of each."""
    found: list[tuple[float, float]] = []
    while len(found) < ROUNDS_MAX and sum(seconds for seconds, _ in found) < ROUNDS_S_MAX:
        _clear(folder / "out")
        before = cpu_s()
        _, seconds = timed(lambda: engine.run(folder / "events", folder / "out"))
        found.append((seconds, cpu_s() - before))
    return found


def answers_in(out: Path, event_count: int) -> tuple[Answers, int]:
    """What stands in the files, for the first events, and how many pairs there are in all."""
    table = pq.read_table(out)
    if "subscription_ids" in table.schema.names:
        lists = table["subscription_ids"].combine_chunks()
        events, subs = table["event_id"].combine_chunks().take(pc.list_parent_indices(lists)), lists.flatten()
    else:
        events, subs = (table.column(at).combine_chunks() for at in (0, 1))
    if pa.types.is_string(subs.type):
        subs = pc.cast(pc.utf8_slice_codeunits(subs, 1), pa.int64())  # w17 → 17.
    here = pc.less(events, event_count)
    return Answers.of_pairs(np.asarray(events.filter(here)), np.asarray(subs.filter(here)), event_count), len(subs)


def main(engine_names: str, folder_name: str, size: str, core_count: str, *event_counts: str) -> None:
    pin(int(core_count))
    folder = Path(folder_name)
    workload = Workload.open(folder.parent, size, made.EVENTS)
    module, _, names = engine_names.partition(":")
    first, *others = (getattr(import_module(f"benchmarks.pipeline.{module}"), name) for name in names.split(","))
    counts = [[int(count) for count in each.split(",")] for each in event_counts]
    _write_anew(folder, workload, FEW, module)  # Columns to be built for.
    engine = first(folder, int(core_count))
    _, build_s = timed(lambda: engine.build(workload))
    engines = [engine, *(other.beside(engine) for other in others)]
    measured = []
    for at, each in enumerate(engines):
        for count in counts[at]:
            _write_anew(folder, workload, count, module)
            measured.append(measure(each, folder, at, count) | {"build_s": build_s, "facts": engine.facts()})
    engine.close()
    print(json.dumps({"measured": measured}))


def _write_anew(folder: Path, workload: Workload, count: int, module: str) -> None:
    _clear(folder / "events")
    write_events(folder / "events", workload.events, count, is_ours=module == "ours")


def measure(engine: Any, folder: Path, at: int, count: int) -> dict[str, Any]:
    """The best round, with its answers left as a file."""
    forget_peaks()
    taken = rounds(engine, folder)
    peaks = peaks_mb()
    answers, pairs = answers_in(folder / "out", min(count, made.EVENTS))
    np.savez(answers_file(folder, at, count), counts=answers.counts, sums=answers.sums)
    seconds, cpu = min(taken)
    found = {"events": count, "seconds": seconds, "cpu_s": cpu, "pairs": pairs}
    return found | {"rounds": len(taken), "peaks_mb": peaks}


def answers_file(folder: Path, at: int, count: int) -> Path:
    """Of the engine at this place, for so many events."""
    return folder / f"answers-{at}-{count}.npz"


def _clear(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
