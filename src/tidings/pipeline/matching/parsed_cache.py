"""Parsed subscriptions kept between runs, by the texts of their conditions and the event type.

With `spark.tidings.parsedCache`, a folder, local or of any file system that Spark knows, a set of subscriptions is
parsed once. Its name is a digest of all rows, the event type and the form of the boxes, so a changed condition, a
changed type and another release find nothing and parse again. The digest takes one pass over the texts.

    PARSED/DIGEST-RUN/           what the workers parsed, as Parquet
    PARSED/DIGEST-RUN/_SUCCESS   written by Spark when all of it is there
"""

from __future__ import annotations

import hashlib
import uuid
from typing import TYPE_CHECKING

from pyspark.sql import functions as f

import tidings
from tidings.errors import InputError
from tidings.events import EventType, arrow_schema
from tidings.matching import BOXES_SCHEMA
from tidings.pipeline.session import described, is_connect
from tidings.pipeline.storage import Location, storage_at

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SETTING = "spark.tidings.parsedCache"
FORM = 2  # Of what is kept; another one finds nothing of this one.
_PARTS, _PART_DIGITS = 4, 15  # Of a row's SHA-256: four numbers of 60 bits, which are added up over all rows.
_WHOLE = "_SUCCESS"


def cached(rows: DataFrame, event_type: EventType, parsed: DataFrame) -> DataFrame:
    """What an earlier run parsed from equal rows, or `parsed`, which is then written for the next run.

    `rows` have id, subscriber and filter as texts. Without the setting, `parsed` as it is. Raises InputError.
    """
    spark = rows.sparkSession
    folder = spark.conf.get(SETTING, None)
    if not folder:
        return parsed
    where = Location.of(folder)
    if is_connect(spark) and not where.is_local:
        raise InputError(f"{SETTING}: over Spark Connect, expected a folder that client and server both see")
    with described(spark, "look for parsed subscriptions"):
        digest = digest_of(rows, event_type)
    storage = storage_at(where.text, spark)
    storage.make_folder("")
    kept = [file.name for file in storage.list() if file.name.startswith(digest) and file.name.endswith(f"/{_WHOLE}")]
    if kept:
        return spark.read.parquet(where.below(min(kept).removesuffix(f"/{_WHOLE}")).text)
    name = f"{digest}-{uuid.uuid4().hex[:8]}"  # Of two runs at once each writes its own, and both are right.
    with described(spark, "parse subscriptions and keep them"):
        parsed.write.parquet(where.below(name).text)
    return spark.read.parquet(where.below(name).text)


def digest_of(rows: DataFrame, event_type: EventType) -> str:
    """Equal for equal sets of rows, in whatever order they come, of equal types."""
    text = f.to_json(f.struct("id", "subscriber", "filter"), {"ignoreNullFields": "false"})
    each = rows.select(f.sha2(text, 256).alias("digest"))
    parts = [
        f.sum(f.conv(f.substring("digest", 1 + at * _PART_DIGITS, _PART_DIGITS), 16, 10).cast("decimal(38,0)"))
        for at in range(_PARTS)
    ]
    sums = each.agg(f.count(f.lit(1)), *parts).collect()[0]
    types = f"{event_type.name} {arrow_schema(event_type)} {BOXES_SCHEMA} {FORM} {tidings.__version__}"
    return hashlib.sha256(f"{list(map(str, sums))} {types}".encode()).hexdigest()[:40]
