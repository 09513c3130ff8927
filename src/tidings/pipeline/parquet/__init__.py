"""Parquet pages written without Spark, for lists of subscription numbers."""
