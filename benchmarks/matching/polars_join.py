"""Polars, on one thread: the binned equi-join, sides checked one after the other on what is left."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from benchmarks.matching.binned import SIDES_MAX, event_keys, file_subscriptions
from benchmarks.matching.engine import Answers, Workload
from benchmarks.workload import ATTRIBUTES


class PolarsBinned:
    """Candidates by hash join; each further side by gathering the one value it looks at."""

    def warm_up(self, workload: Workload) -> None:
        """Nothing is compiled."""

    def build(self, workload: Workload) -> None:
        filing = file_subscriptions(workload)
        self._bins = filing.bins
        owner = filing.owner
        self._filed = pl.DataFrame(
            {"key": filing.key, "sub": owner, "lo": filing.low[0][owner], "hi": filing.high[0][owner]}
        )
        sides = zip(filing.attribute, filing.low, filing.high)
        self._sides = [pl.DataFrame({"a": a, "lo": lo, "hi": hi}) for a, lo, hi in sides]

    def admit(self, workload: Workload) -> None:
        self._events = workload.events

    def match(self) -> int:
        count = len(self._events)
        flat = pl.Series("v", self._events.reshape(-1))
        event = np.repeat(np.arange(count, dtype=np.int32), ATTRIBUTES)
        looked_up = {"key": event_keys(self._events, self._bins).reshape(-1), "event": event, "v": flat}
        joined = pl.DataFrame(looked_up).lazy().join(self._filed.lazy(), on="key")
        inside = (pl.col("v") >= pl.col("lo")) & (pl.col("v") < pl.col("hi"))
        pairs = joined.filter(inside).select("event", "sub").collect()
        for j in range(1, SIDES_MAX):
            pairs = self._check(pairs, flat, j)
        self._pairs = pairs
        return len(pairs)

    def _check(self, pairs: pl.DataFrame, flat: pl.Series, j: int) -> pl.DataFrame:
        side = self._sides[j][pairs["sub"]]
        value = flat.gather(pairs["event"] * ATTRIBUTES + side["a"])
        return pairs.filter((value >= side["lo"]) & (value < side["hi"]))

    def answers(self) -> Answers:
        return Answers.of_pairs(self._pairs["event"].to_numpy(), self._pairs["sub"].to_numpy(), len(self._events))

    def facts(self) -> dict[str, Any]:
        return {"version": pl.__version__, "threads": pl.thread_pool_size()}
