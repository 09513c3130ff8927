"""Keys stay in key files: not in plans, event logs, checkpoints, results or logs, in no spelling (3.14, rule 1).

And a task that fails after it has sealed is run again to the same bytes (SECURE-INV-8). Both need a session of their own.
"""

from __future__ import annotations

import base64
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pipeline.london import SIGHTINGS, frames, sightings
from tests.unit.security.london import a_keyring

PROGRAM = """
import sys
from pathlib import Path

from pyspark.sql import functions as f

from tests.pipeline.london import SIGHTINGS, keys, leases, rights
from tests.unit.security.london import NOW_MS
from tidings.pipeline import admit, genuine, secure, start, stamp

out = Path(sys.argv[1])
spark = start("leaks", "local[1,3]", {
    "spark.eventLog.enabled": "true", "spark.eventLog.dir": str(out / "events"), "spark.log.level": "INFO",
    "spark.sql.shuffle.partitions": "1",
})
frames = spark.readStream.schema("frame binary").parquet(str(out / "frames"))
key_file = keys(out / "keys")
events = genuine(admit(frames, SIGHTINGS, key_file)).withColumn("subscriber", f.lit("charge"))
moments = stamp(events.drop("_ts_ms", "_seq"), source=f.col("_sender_id"), offset=f.col("_sender_id"), started_ms=NOW_MS)
mail = secure(moments, SIGHTINGS, rights(), key_file, leases(out), now_ms=NOW_MS, sources=["7"])
mail.explain("extended")
mail.explain("formatted")
query = mail.writeStream.format("parquet").option("checkpointLocation", str(out / "checkpoint")).option(
    "path", str(out / "mail")).trigger(availableNow=True).start()
query.awaitTermination()
query.explain(True)
print("frames written:", spark.read.parquet(str(out / "mail")).count())
spark.read.parquet(str(out / "frames")).transform(lambda t: admit(t, SIGHTINGS, key_file)).write.parquet(str(out / "opened"))


def fail_at_first(batches):
    from pyspark import TaskContext

    for batch in batches:
        if TaskContext.get().attemptNumber() == 0:
            raise RuntimeError("a task that fails")
        yield batch


still = spark.read.parquet(str(out / "opened")).withColumn("subscriber", f.lit("charge"))
stamped = stamp(still.drop("_ts_ms", "_seq"), source=f.col("_sender_id"), offset=f.col("_sender_id"), started_ms=NOW_MS)
sealed = secure(stamped, SIGHTINGS, rights(), key_file, leases(out), now_ms=NOW_MS, sources=["7"])
once, again = (sorted(bytes(row.frame) for row in table.collect()) for table in (sealed, sealed.mapInArrow(fail_at_first, sealed.schema)))
print("the same bytes after a retry:", once == again and len(once))
spark.stop()
"""


@pytest.mark.spark
def test_no_key_is_found_outside_its_file_and_a_retried_task_seals_to_the_same_bytes(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    for folder in ("events", "frames", "keys"):
        (tmp_path / folder).mkdir()
    pq.write_table(pa.table({"frame": pa.array(frames(sightings(1)), pa.binary())}), tmp_path / "frames" / "1.parquet")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, check=False, cwd=Path(__file__).parents[3]
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert b"frames written: 1" in done.stdout
    assert b"a task that fails" in done.stderr
    assert b"the same bytes after a retry: 1" in done.stdout
    said = {"what was printed and logged": done.stdout + done.stderr}
    found = {
        str(path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and "keys" not in path.parts
    }
    assert any("/events/" in name for name in found)
    assert any("/checkpoint/" in name for name in found)
    assert any(path.suffix == ".keys" and secrets_in(path.read_bytes()) for path in (tmp_path / "keys").iterdir())
    for name, content in {**said, **found}.items():
        assert not secrets_in(content), f"a key is in {name}"


def secrets_in(content: bytes) -> list[bytes]:
    """Keys that are in there: as they are, in hex, or in base64 at any place of three."""
    return [spelt for secret in secrets() for spelt in spellings(secret) if spelt in content]


def secrets() -> list[bytes]:
    keyring = a_keyring(SIGHTINGS)
    held = [key for gid in SIGHTINGS.group_ids for key in keyring.epochs(gid)]
    return [secret for key in held for secret in (key.dek, key.content_key("pub"), key.content_key("sub"))]


def spellings(secret: bytes) -> list[bytes]:
    shifted = (base64.b64encode(b"\0" * pad + secret)[-(-pad * 4 // 3) + bool(pad) : -4] for pad in range(3))
    return [secret, secret.hex().encode(), secret.hex().upper().encode(), *shifted]
