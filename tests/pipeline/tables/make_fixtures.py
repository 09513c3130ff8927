"""Writes the tables in `fixtures`, with Spark's own connectors. They are checked in: the connectors need an older Spark.

In an environment with pyspark 4.1.0 and the jars of io.delta:delta-spark_4.1_2.13:4.1.0, io.delta:delta-storage:4.1.0 and
org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0:

    python make_fixtures.py delta FOLDER JAR,JAR      then copy FOLDER to fixtures/delta
    python make_fixtures.py iceberg /warehouse JAR    then copy /warehouse/db to fixtures/iceberg
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

SETTINGS = {
    "delta": {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    },
    "iceberg": {
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.w": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.w.type": "hadoop",
    },
}

DELTA = """
CREATE TABLE delta.`OUT/vectors` (event_id BIGINT, area STRING, speed DOUBLE, day DATE, seen_at TIMESTAMP,
  local_at TIMESTAMP_NTZ, price DECIMAL(20,4), place STRUCT<lat: DOUBLE, lon: DOUBLE>)
  USING delta PARTITIONED BY (day) TBLPROPERTIES ('delta.enableDeletionVectors'='true');
INSERT INTO delta.`OUT/vectors` SELECT /*+ COALESCE(1) */ id, concat('WC', id % 3), id + 0.5,
  date_add(DATE'2026-03-01', cast(id % 2 as int)), timestamp_seconds(1767225600 + id),
  TIMESTAMP_NTZ'2026-01-01 00:00:00', cast(id as decimal(20,4)) / 4, named_struct('lat', 51.5, 'lon', -0.1)
  FROM range(150);
DELETE FROM delta.`OUT/vectors` WHERE event_id >= 50;
CREATE TABLE delta.`OUT/mapped` (event_id BIGINT, area STRING, mph INT, old STRING, region STRING,
  place STRUCT<lat: DOUBLE>) USING delta PARTITIONED BY (region) TBLPROPERTIES ('delta.columnMapping.mode'='name');
INSERT INTO delta.`OUT/mapped` SELECT /*+ COALESCE(1) */ id, 'WC1', cast(id as int), 'x', if(id < 3, 'north', NULL),
  named_struct('lat', 51.5) FROM range(5);
ALTER TABLE delta.`OUT/mapped` RENAME COLUMN mph TO speed;
ALTER TABLE delta.`OUT/mapped` RENAME COLUMN region TO zone;
ALTER TABLE delta.`OUT/mapped` DROP COLUMN old;
ALTER TABLE delta.`OUT/mapped` ADD COLUMN (place.lon DOUBLE, extra STRING);
INSERT INTO delta.`OUT/mapped` (event_id, area, speed, zone, place, extra)
  VALUES (5, 'EC2', 50, 'south', named_struct('lat', 51.4, 'lon', 0.1), 'new')
"""

ICEBERG = """
CREATE TABLE w.db.NAME (event_id BIGINT, area STRING, mph DOUBLE, zone STRING, seen_at TIMESTAMP, price DECIMAL(20,4))
  USING iceberg PARTITIONED BY (zone) TBLPROPERTIES ('format-version'='VERSION', 'write.delete.mode'='merge-on-read');
INSERT INTO w.db.NAME SELECT /*+ COALESCE(1) */ id, concat('WC', id % 3), id + 0.5, if(id % 2 = 0, 'north', NULL),
  timestamp_seconds(1767225600 + id), cast(id as decimal(20,4)) / 4 FROM range(150);
DELETE FROM w.db.NAME WHERE event_id >= 50;
ALTER TABLE w.db.NAME RENAME COLUMN mph TO speed;
ALTER TABLE w.db.NAME ADD COLUMN extra STRING;
INSERT INTO w.db.NAME VALUES (200, 'EC2', 99.0, 'south', TIMESTAMP'2026-01-02 00:00:00', 1.5, 'new')
"""


def main() -> None:
    format, out, jars = sys.argv[1:]
    builder = SparkSession.builder.master("local[1]").config("spark.jars", jars)
    for key, value in {**SETTINGS[format], "spark.sql.catalog.w.warehouse": out}.items():
        builder = builder.config(key, value)
    spark = builder.config("spark.sql.session.timeZone", "America/New_York").getOrCreate()
    by_format = {"merged": "2", "vectors": "3"}.items()
    iceberg = ";".join(ICEBERG.replace("NAME", name).replace("VERSION", version) for name, version in by_format)
    for statement in (DELTA.replace("OUT", out) if format == "delta" else iceberg).split(";"):
        spark.sql(statement)


if __name__ == "__main__":
    main()
