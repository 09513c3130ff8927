"""A fresh process that opens a saved index and answers: prints the seconds for import, open, first event, first batch."""

import sys
import time

STARTED = time.perf_counter()

from tidings.matching import Index  # noqa: E402  The import is part of what is measured.

IMPORTED = time.perf_counter()


def main(folder: str) -> None:
    from benchmarks.workload import event_table, events, records

    one, many = records(events()[:1])[0], event_table(events()[:100])
    start = time.perf_counter()
    index = Index.open(folder)
    opened = time.perf_counter()
    index.match(one)
    answered = time.perf_counter()
    index.match_batch(many)
    print(IMPORTED - STARTED, opened - start, answered - opened, time.perf_counter() - answered)


if __name__ == "__main__":
    main(sys.argv[1])
