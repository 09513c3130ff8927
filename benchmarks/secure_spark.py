"""Sealing and opening tables: Tidings against Spark's own aes_encrypt and try_aes_decrypt, in whole jobs.

    python benchmarks/secure_spark.py [--rows 100000] [--attributes 8] [--repeats 3]

Four jobs over the same rows of 30-character texts, each from a cached table to a sink that keeps
nothing. Tidings seals to whole frames and opens them with all checks; Spark's functions encrypt and
decrypt each attribute under a key from a joined column, as they have to for keys to stay out of
plans, and write no frames. Jobs take turns, and ratios are of the medians, so that what else the
machine does weighs on both. Prints a JSON line, with wall-clock seconds and with the processor
seconds of driver, JVM and workers together; on a busy machine the latter say more.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from tidings.events import EventType
from tidings.pipeline import KeyFile, Leases, Rest, admit, secure, stamp, start, write_keys
from tidings.security import Identity, Keyring, Right, SignedType, manifest_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NOW_MS = 1_763_247_840_000
TEXT_CHARS = 30


def make_type(attributes: int) -> tuple[SignedType, Keyring]:
    owner = Identity.make(secrets.token_bytes)
    event_type = EventType("Wide", {f"a{index:02}": str for index in range(attributes)})
    signed = SignedType.make(owner, event_type)
    keyring = Keyring(signed)
    for gid in signed.group_ids:
        keyring.add(gid, 1, NOW_MS, secrets.token_bytes(32))
    return signed, keyring


def make_rows(spark: SparkSession, signed: SignedType, rows: int) -> DataFrame:
    """Stamped rows, in memory."""
    numbered = spark.range(rows, numPartitions=4)
    texts = [
        f.rpad(f.concat(f.col("id").cast("string"), f.lit(f"-{a.name}")), TEXT_CHARS, "x").alias(a.name)
        for a in signed.event_type
    ]
    table = numbered.select("id", f.lit("reader").alias("subscriber"), *texts)
    made = stamp(table, source=f.lit("made up"), offset=f.col("id"), started_ms=NOW_MS).cache()
    made.count()
    return made


def sealed_by_us(rows: DataFrame, signed: SignedType, keys: KeyFile, leases: Leases) -> DataFrame:
    right = Right(bytes(32), signed.type_id, frozenset({"subscribe"}), None, 0, 2**62, 0)
    return secure(rows, signed, {"reader": right}, keys, leases, now_ms=NOW_MS, rest=Rest.SEALED, sources=["made up"])


def sealed_by_spark(rows: DataFrame, signed: SignedType, ring: DataFrame) -> DataFrame:
    """The same ciphertexts, a column each: nonce, associated data and plaintext made of expressions."""
    keyed = rows.crossJoin(f.broadcast(ring)).withColumn("nonce", f.expr(_NONCE))
    return keyed.select(
        "nonce",
        *(
            f.expr(
                f"substring(aes_encrypt({_plain(a.name)}, k_{a.name}, 'GCM', 'NONE', nonce, aad_{a.name}), 13)"
            ).alias(a.name)
            for a in signed.event_type
        ),
    )


def opened_by_spark(sealed: DataFrame, signed: SignedType, ring: DataFrame) -> DataFrame:
    keyed = sealed.crossJoin(f.broadcast(ring))
    opened = "decode(substring(try_aes_decrypt(concat(nonce, {0}), k_{0}, 'GCM', 'NONE', aad_{0}), 6), 'UTF-8')"
    return keyed.select(*(f.expr(opened.format(a.name)).alias(a.name) for a in signed.event_type))


_NONCE = "unhex(concat(lpad(hex(7), 8, '0'), lpad(hex(shiftleft(_ts_ms, 20) | cast(_seq AS bigint)), 16, '0')))"


def _plain(name: str) -> str:
    return f"concat(unhex(concat('03', lpad(hex(octet_length({name})), 8, '0'))), cast({name} AS binary))"


def key_columns(spark: SparkSession, signed: SignedType, keyring: Keyring) -> DataFrame:
    """One row: each attribute's key and associated data. A table, and not literals, which plans would show."""
    manifest = manifest_of(tuple(sorted(signed.group_ids)))
    row: dict[str, bytearray] = {}
    for a in signed.event_type:
        gid = signed.attr_id(a.name)
        key = keyring.get(gid, 1)
        assert key is not None
        row[f"k_{a.name}"] = bytearray(key.content_key("pub"))
        row[f"aad_{a.name}"] = bytearray(signed.profile.aad(signed.mode, signed.type_id, gid, 1, manifest))
    return spark.createDataFrame([tuple(row.values())], ", ".join(f"{name} binary" for name in row))


def run_to_nowhere(table: DataFrame) -> None:
    table.write.format("noop").mode("overwrite").save()


def measure(jobs: dict[str, Callable[[], DataFrame]], repeats: int) -> dict[str, float]:
    """Median seconds of each job, by the clock and of processors; they take turns, and the first round only warms up."""
    seconds: dict[str, list[float]] = {f"{name}_{of}": [] for name in jobs for of in ("s", "cpu_s")}
    for turn in range(repeats + 1):
        for name, job in jobs.items():
            began, cpu = time.perf_counter(), processor_seconds(os.getpid())
            run_to_nowhere(job())
            took, used = time.perf_counter() - began, processor_seconds(os.getpid()) - cpu
            print(f"round {turn}: {name} {took:.2f} s, {used:.2f} s of processors", file=sys.stderr, flush=True)
            if turn:
                seconds[f"{name}_s"].append(took)
                seconds[f"{name}_cpu_s"].append(used)
    return {name: statistics.median(taken) for name, taken in seconds.items()}


def processor_seconds(process: int) -> float:
    """What a process and all below it have used so far, from Linux's own books."""
    used: dict[int, float] = {}
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # It ended meanwhile.
            continue
        number = int(stat.parent.name)
        parents[number] = int(fields[1])
        used[number] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return sum(seconds for number, seconds in used.items() if _is_below(number, process, parents))


def _is_below(number: int, top: int, parents: dict[int, int]) -> bool:
    while number != top and number in parents:
        number = parents[number]
    return number == top


def kept(table: DataFrame, path: Path) -> DataFrame:
    """In files: were it cached, Spark would find it again in the job that makes it."""
    table.write.parquet(str(path))
    return table.sparkSession.read.parquet(str(path))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--rows", type=int, default=100_000)
    options.add_argument("--attributes", type=int, default=8)
    options.add_argument("--repeats", type=int, default=3)
    chosen = options.parse_args()
    signed, keyring = make_type(chosen.attributes)
    spark = start("secure_spark", "local[2]")
    with tempfile.TemporaryDirectory() as folder:
        keys = write_keys(Path(folder) / "bench.keys", keyring)
        leases = Leases(Path(folder) / "leases.json", "bench", lambda count: range(7, 7 + count), now_ms=NOW_MS)
        rows, ring = make_rows(spark, signed, chosen.rows), key_columns(spark, signed, keyring)
        frames = kept(sealed_by_us(rows, signed, keys, leases), Path(folder) / "frames")
        columns = kept(sealed_by_spark(rows, signed, ring), Path(folder) / "columns")
        assert frames.count() == columns.count() == chosen.rows
        medians = measure(
            {
                "seal_tidings": lambda: sealed_by_us(rows, signed, keys, leases),
                "seal_spark": lambda: sealed_by_spark(rows, signed, ring),
                "open_tidings": lambda: admit(frames, signed, keys, keep_duplicates=True),
                "open_spark": lambda: opened_by_spark(columns, signed, ring),
            },
            chosen.repeats,
        )
    spark.stop()
    ratios = {
        f"{what}_times_{said}": round(medians[f"{what}_spark_{of}"] / medians[f"{what}_tidings_{of}"], 2)
        for what in ("seal", "open")
        for of, said in (("s", "faster"), ("cpu_s", "less_cpu"))
    }
    told = {name: round(value, 3) for name, value in medians.items()}
    print(json.dumps({"rows": chosen.rows, "attributes": chosen.attributes, **told, **ratios}))


if __name__ == "__main__":
    main()
