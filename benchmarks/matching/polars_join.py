"""Polars, on one thread: the binned equi-join, and all conditions as expressions over the events."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from benchmarks.matching.binned import KEYS_PER_ATTRIBUTE, Bins, Coder, file_subscriptions
from benchmarks.matching.engine import Answers, Workload


class PolarsBinned:
    """Candidates by hash join; each further side by gathering the one value it looks at."""

    def warm_up(self, workload: Workload) -> None:
        """Nothing is compiled."""

    def build(self, workload: Workload) -> None:
        self._filing = filing = file_subscriptions(workload)
        owner = filing.owner
        self._filed = pl.DataFrame(
            {"key": filing.key, "box": owner, "lo": filing.low[0][owner], "hi": filing.high[0][owner]}
        )
        sides = zip(filing.attribute, filing.low, filing.high)
        self._sides = [pl.DataFrame({"a": a, "lo": lo, "hi": hi}) for a, lo, hi in sides]
        self._condition, self._twice = pl.Series(filing.condition), pl.Series(filing.twice)
        if beyond := filing.beyond:
            self._not = pl.DataFrame(
                {"a": beyond.not_attr, "lo": beyond.not_low, "hi": beyond.not_high, "above": beyond.not_above}
            )
            self._sets = pl.DataFrame({"a": beyond.set_attr, "set": beyond.set_id})
            self._accepted = pl.DataFrame({"code": beyond.accepted})

    def admit(self, workload: Workload) -> None:
        self._given = workload.event_table() if workload.boxes else workload.events
        self._bins, self._coder = Bins(workload), Coder()

    def match(self) -> int:
        values = self._coder(self._given) if isinstance(self._given, pa.Table) else self._given
        self._count, self._width = values.shape
        self._flat = pl.Series("v", values.reshape(-1))
        event = np.repeat(np.arange(self._count, dtype=np.int32), self._width)
        looked_up = {"key": self._bins.keys(values).reshape(-1), "event": event, "v": self._flat}
        joined = pl.DataFrame(looked_up).lazy().join(self._filed.lazy(), on="key")
        inside = (pl.col("v") >= pl.col("lo")) & (pl.col("v") < pl.col("hi"))
        pairs = joined.filter(inside).select("event", "box").collect()
        for j in range(1, len(self._sides)):
            side = self._sides[j][pairs["box"]]
            value = self._value(pairs, side["a"])
            pairs = pairs.filter((value >= side["lo"]) & (value < side["hi"]))
        self._pairs = self._beyond(pairs) if self._filing.beyond else pairs.rename({"box": "sub"})
        return len(self._pairs)

    def _value(self, pairs: pl.DataFrame, attribute: pl.Series) -> pl.Series:
        return self._flat.gather(pairs["event"] * self._width + attribute)

    def _beyond(self, pairs: pl.DataFrame) -> pl.DataFrame:
        """What is no side; then conditions instead of boxes."""
        negated = self._not[pairs["box"]]
        value = self._value(pairs, negated["a"])
        outside = (value < negated["lo"]) | (value >= negated["hi"])
        pairs = pairs.filter(outside & (value > negated["above"]))
        asked = self._sets[pairs["box"]]
        free, bound = pairs.filter(asked["set"] < 0), pairs.filter(asked["set"] >= 0)
        asked = asked.filter(asked["set"] >= 0)
        value = self._value(bound, asked["a"])
        code = (asked["set"].cast(pl.Int64) * KEYS_PER_ATTRIBUTE + value).alias("code")
        bound = bound.with_columns(code).join(self._accepted, on="code", how="semi").drop("code")
        found = pl.concat([free, bound])
        found = found.select("event", sub=self._condition.gather(found["box"]), twice=self._twice.gather(found["box"]))
        once, twice = found.filter(~pl.col("twice")), found.filter("twice").unique()
        return pl.concat([once, twice]).drop("twice")

    def answers(self) -> Answers:
        return Answers.of_pairs(self._pairs["event"].to_numpy(), self._pairs["sub"].to_numpy(), self._count)

    def facts(self) -> dict[str, Any]:
        return {"version": pl.__version__, "threads": pl.thread_pool_size()}


EXPRESSIONS = 250  # In one query; Polars plans more of them slower than it answers two queries.


class PolarsExpressions:
    """Each condition as an expression from its text, some hundred to a query; common parts are computed once."""

    def warm_up(self, workload: Workload) -> None:
        """Nothing is compiled."""

    def build(self, workload: Workload) -> None:
        rows = [
            pl.sql_expr(text).arg_true().cast(pl.Int32).implode().alias(str(number))
            for number, text in enumerate(workload.texts())
        ]
        self._queries = [rows[start : start + EXPRESSIONS] for start in range(0, len(rows), EXPRESSIONS)]

    def admit(self, workload: Workload) -> None:
        self._events = pl.DataFrame(workload.event_table())

    def match(self) -> int:
        self._found = list(self._rows())
        return sum(map(len, self._found))

    def _rows(self) -> Iterator[pl.Series]:
        for query in self._queries:
            for column in self._events.select(query).iter_columns():
                yield column[0]

    def answers(self) -> Answers:
        conditions = np.repeat(np.arange(len(self._found)), [len(rows) for rows in self._found])
        return Answers.of_pairs(np.concatenate(self._found), conditions, len(self._events))

    def facts(self) -> dict[str, Any]:
        return {"version": pl.__version__, "threads": pl.thread_pool_size()}
