"""Who takes part, with how many events at which size, and how long they may take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

SIZES = ("base10k", "base100k", "base1m", "hard1m")
QUICK_SIZES = ("base10k", "base100k")
MIXED_SIZES = ("mixed1k", "mixed10k", "mixed100k", "mixed1m")
QUICK_MIXED_SIZES = ("mixed1k", "mixed10k")
ALL = 20_000


@dataclass(frozen=True, slots=True)
class Contender:
    """`events` says how many events are timed per workload: fewer for the slow, since only the rate counts.

    A workload that is not listed is not tried, for the reason in `absent`. `limit_s` bounds the whole
    process, loading and building included.
    """

    name: str
    engine: str
    events: Mapping[str, int]
    limit_s: int
    quick: bool = False
    cores: int = 1
    peer: bool = True
    absent: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)


def _events(*counts: int) -> dict[str, int]:
    return dict(zip(SIZES, counts))


def _mixed(*counts: int) -> dict[str, int]:
    return dict(zip(MIXED_SIZES, counts))


OURS, OURS_TWO_THREADS, OURS_TABLE, PROTOTYPE = "Tidings", "Tidings, 2 threads", "Tidings, ids in order", "prototype"

DUCKDB, POLARS = "DuckDB, binned join", "Polars, binned join"
CLICKHOUSE, DATAFUSION, LUCENE = "ClickHouse (chdb), binned join", "DataFusion, binned join", "Lucene Monitor"

_LUCENE_BUILDS = "not tried: registering queries takes longer than the limit allows"
_BEHIND = "not tried at this size: the same join as DuckDB's, and slower at 100k"
_SAME_LOOP = "a loop over all conditions takes as long as at base1m"

CONTENDERS = (
    Contender(OURS, "ours:Tidings", _events(ALL, ALL, ALL, ALL), 120, quick=True, peer=False),
    Contender(
        OURS_TWO_THREADS, "ours:TidingsTwoThreads", _events(ALL, ALL, ALL, ALL), 120, quick=True, cores=2, peer=False
    ),
    Contender(
        OURS_TABLE,
        "ours:TidingsTable",
        _events(ALL, ALL, ALL),
        120,
        quick=True,
        peer=False,
        absent="putting 20 million ids in order says more of memory than of matching",
    ),
    Contender(PROTOTYPE, "prototype:Prototype", _events(ALL, ALL, ALL, ALL), 90, quick=True, peer=False),
    Contender(DUCKDB, "duckdb_join:DuckdbBinned", _events(ALL, ALL, ALL, 5_000), 90, quick=True),
    Contender("DuckDB by itself", "duckdb_join:DuckdbItself", _events(5_000, 500, 40), 60, absent=_SAME_LOOP),
    Contender(POLARS, "polars_join:PolarsBinned", _events(ALL, ALL, 5_000, 1_000), 90, quick=True),
    Contender(CLICKHOUSE, "chdb_join:ChdbBinned", _events(ALL, ALL, 1_000), 60, quick=True, absent=_BEHIND),
    Contender(DATAFUSION, "datafusion_join:DatafusionBinned", _events(ALL, ALL, 1_000), 60, quick=True, absent=_BEHIND),
    Contender(LUCENE, "java_peers:lucene", _events(2_000, 300), 90, absent=_LUCENE_BUILDS),
    Contender("Spark SQL, binned join", "spark_join:SparkBinned", _events(ALL, ALL, 2_000, 200), 110),
    Contender("Spark SQL by itself", "spark_join:SparkItself", _events(1_000, 100, 10), 90, absent=_SAME_LOOP),
    Contender("NumPy scan", "numpy_scan:NumpyScan", _events(2_000, 300, 30, 30), 60, quick=True),
    Contender(
        "event-ruler",
        "java_peers:event_ruler",
        _events(2_000),
        120,
        absent="building 100k alone takes over ten minutes",
    ),
    Contender(
        "Vespa predicate search",
        "java_peers:vespa",
        _events(5_000, 2_000),
        120,
        absent="never built 1M when tried, and Maven no longer finds it",
    ),
)

_ONE_BY_ONE = "each condition looks at each event: ten times as many take ten times as long"

MIXED_CONTENDERS = (
    Contender(OURS, "ours:TidingsMixed", _mixed(ALL, ALL, ALL, ALL), 150, quick=True, peer=False),
    Contender(DUCKDB, "duckdb_join:DuckdbBinned", _mixed(ALL, ALL, ALL, 5_000), 60, quick=True),
    Contender("DuckDB, one by one", "duckdb_join:DuckdbOneByOne", _mixed(ALL), 40, absent=_ONE_BY_ONE),
    Contender(POLARS, "polars_join:PolarsBinned", _mixed(ALL, ALL, ALL, 5_000), 60, quick=True),
    Contender(
        "Polars, expressions", "polars_join:PolarsExpressions", _mixed(ALL, 5_000), 40, quick=True, absent=_ONE_BY_ONE
    ),
    Contender(CLICKHOUSE, "chdb_join:ChdbBinned", _mixed(ALL, ALL, 5_000, 1_000), 60, quick=True),
    Contender(DATAFUSION, "datafusion_join:DatafusionBinned", _mixed(ALL, ALL, 5_000, 1_000), 60, quick=True),
    Contender(LUCENE, "java_peers:lucene", _mixed(2_000, 2_000, 300), 90, absent=_LUCENE_BUILDS),
)

# One thread everywhere, whatever a library would take by itself.
ONE_THREAD = {"POLARS_MAX_THREADS": "1", "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "ARROW_NUM_THREADS": "1"}
